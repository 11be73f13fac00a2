use candle_core::Result;
use criterion::Criterion;

use super::values;

pub(crate) fn bench(criterion: &mut Criterion) -> Result<()> {
    for n in [1, 16] {
        for hidden in [192, 2048] {
            let (x, w) = (values(&[n, hidden])?, values(&[hidden])?);
            criterion.bench_function(&format!("rms_norm/{n}x{hidden}"), |b| {
                b.iter(|| kernels::rms_norm(&x, &w, 1e-6))
            });
        }
        let (gate, up) = (values(&[n, 640])?, values(&[n, 640])?);
        criterion.bench_function(&format!("swiglu/{n}x640"), |b| {
            b.iter(|| kernels::swiglu(&gate, &up))
        });

        let (x, angles) = (values(&[n, 6, 32])?, values(&[4096, 16])?);
        let positions: Vec<u32> = (100..100 + n as u32).collect();
        let turn = || kernels::rope(&x, &angles, &angles, &positions);
        criterion.bench_function(&format!("rope/{n}x6x32"), |b| b.iter(turn));
    }
    Ok(())
}
