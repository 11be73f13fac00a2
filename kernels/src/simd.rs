//! Vectors of f32 for the fast paths, and the choice of instruction set at run time.
//!
//! A [`Simd`] value is a token: it exists only where its instructions do, so its arithmetic is safe to call. A kernel
//! is written once over the trait and compiled once for each instruction set by [`Isa::run`].
#![allow(unsafe_code, reason = "vector instructions and reads through pointers")]

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use half::bf16;

pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// f32 arithmetic on `WIDTH` lanes. Every method of an implementation is inlined into the kernel that uses it.
pub(crate) trait Simd: Copy + Send + Sync {
    type Vector: Copy;
    /// Lanes of one vector.
    const WIDTH: usize;
    /// Rows of the left operand in the largest register tile; see [`crate::tile`].
    const TILE_ROWS: usize;

    fn splat(self, value: f32) -> Self::Vector;
    /// `a * b + c` in each lane, rounded once where the machine can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The sum of the lanes of each vector: halves are added to each other until one lane is left, so the order is the
    /// same at each of the four places.
    fn sum_each(self, vectors: [Self::Vector; 4]) -> [f32; 4];
    /// # Safety
    /// `WIDTH` values must be readable at `from`.
    unsafe fn load(self, from: *const f32) -> Self::Vector;
    /// The first `count < WIDTH` lanes from memory, zero in the others.
    ///
    /// # Safety
    /// `count` values must be readable at `from`.
    unsafe fn load_first(self, from: *const f32, count: usize) -> Self::Vector;
    /// `WIDTH` values of bf16 as f32, in their order.
    ///
    /// # Safety
    /// `WIDTH` values must be readable at `from`.
    unsafe fn load_bf16(self, from: *const bf16) -> Self::Vector;
    /// Asks for a cache line that will be read soon; any address will do.
    #[inline(always)]
    fn fetch(self, _line: *const u8) {}
    /// # Safety
    /// `WIDTH` values must be writable at `to`.
    unsafe fn store(self, to: *mut f32, vector: Self::Vector);
    /// Writes the first `count < WIDTH` lanes.
    ///
    /// # Safety
    /// `count` values must be writable at `to`.
    unsafe fn store_first(self, to: *mut f32, count: usize, vector: Self::Vector);
}

/// Work that is compiled for each instruction set. `run` must be `#[inline(always)]`, and so must what it calls with
/// vectors: only code inlined into [`Isa::run`] may use the instructions.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Isa {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Isa {
    /// The widest one. The standard library caches the detection.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(simd) = Avx512::detect() {
                return Self::Avx512(simd);
            }
            if let Some(simd) = Avx2::detect() {
                return Self::Avx2(simd);
            }
        }
        Self::Portable(Portable)
    }

    /// All of them, for tests.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        let wider = [
            Avx2::detect().map(Self::Avx2),
            Avx512::detect().map(Self::Avx512),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let wider = [];
        std::iter::once(Self::Portable(Portable))
            .chain(wider.into_iter().flatten())
            .collect()
    }

    /// Rows of the left operand in the largest register tile.
    pub(crate) fn tile_rows(self) -> usize {
        match self {
            Self::Portable(_) => Portable::TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => Avx2::TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => Avx512::TILE_ROWS,
        }
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable(simd) => kernel.run(simd),
            // SAFETY: the token exists, so the machine has AVX2 and FMA.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => unsafe { x86::run_avx2(simd, kernel) },
            // SAFETY: the token exists, so the machine has AVX-512F.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => unsafe { x86::run_avx512(simd, kernel) },
        }
    }
}
