//! Four lanes in plain Rust, for machines without a path of their own.

use half::bf16;

use super::Simd;

/// Needs nothing of the machine. The compiler turns the four lanes into whatever vectors the target has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

impl Simd for Portable {
    type Vector = [f32; 4];
    const WIDTH: usize = 4;
    const TILE_ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; 4] {
        [value; 4]
    }

    #[inline(always)]
    fn mul_add(self, a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        // Two roundings: a fused one would be a library call where the machine has no instruction for it.
        std::array::from_fn(|lane| a[lane] * b[lane] + c[lane])
    }

    #[inline(always)]
    fn sum_each(self, vectors: [[f32; 4]; 4]) -> [f32; 4] {
        vectors.map(|v| (v[0] + v[2]) + (v[1] + v[3]))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> [f32; 4] {
        // SAFETY: the caller vouches for four values; an array of f32 needs no more alignment than one.
        unsafe { from.cast::<[f32; 4]>().read() }
    }

    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, count: usize) -> [f32; 4] {
        let mut lanes = [0.0; 4];
        for (lane, value) in lanes.iter_mut().enumerate().take(count) {
            // SAFETY: the caller vouches for `count` values.
            *value = unsafe { from.add(lane).read() };
        }
        lanes
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> [f32; 4] {
        // SAFETY: the caller vouches for four values.
        let values = unsafe { from.cast::<[bf16; 4]>().read_unaligned() };
        values.map(|value| f32::from_bits(u32::from(value.to_bits()) << 16))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: [f32; 4]) {
        // SAFETY: the caller vouches for room for four values.
        unsafe { to.cast::<[f32; 4]>().write(vector) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize, vector: [f32; 4]) {
        for (lane, value) in vector.into_iter().enumerate().take(count) {
            // SAFETY: the caller vouches for room for `count` values.
            unsafe { to.add(lane).write(value) }
        }
    }
}
