//! What every op asks of its inputs.

use candle_core::{CpuStorage, DType, Layout, Result, Tensor, WithDType, bail};

/// `t` laid out row by row, copied only if it is not already; an error names `op` and the argument `name`.
pub(crate) fn dense_f32(op: &str, name: &str, t: &Tensor) -> Result<Tensor> {
    if t.dtype() != DType::F32 {
        bail!(
            "{op}: {name} is {:?}, must be f32: convert it with to_dtype",
            t.dtype()
        );
    }
    t.contiguous()
}

/// The dimensions of a tensor that must have two.
pub(crate) fn dims2(op: &str, name: &str, t: &Tensor) -> Result<(usize, usize)> {
    match *t.dims() {
        [rows, columns] => Ok((rows, columns)),
        _ => bail!(
            "{op}: {name} has shape {:?}, must have two dimensions",
            t.dims()
        ),
    }
}

/// The dimensions of a tensor that must have three.
pub(crate) fn dims3(op: &str, name: &str, t: &Tensor) -> Result<(usize, usize, usize)> {
    match *t.dims() {
        [a, b, c] => Ok((a, b, c)),
        _ => bail!(
            "{op}: {name} has shape {:?}, must have three dimensions",
            t.dims()
        ),
    }
}

/// The elements of a contiguous f32 CPU tensor, start offset applied.
pub(crate) fn slice_f32<'a>(
    op: &str,
    storage: &'a CpuStorage,
    layout: &Layout,
) -> Result<&'a [f32]> {
    slice(op, storage, layout)
}

/// The elements of a contiguous CPU tensor of one type, start offset applied.
pub(crate) fn slice<'a, T: WithDType>(
    op: &str,
    storage: &'a CpuStorage,
    layout: &Layout,
) -> Result<&'a [T]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("{op}: an input is not contiguous");
    };
    Ok(&storage.as_slice::<T>()?[start..end])
}
