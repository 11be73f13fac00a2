//! AVX2 with FMA, and AVX-512.

use std::arch::x86_64::*;

use half::bf16;

use super::{Kernel, Simd};

/// Proof that the machine has AVX2 and FMA: only [`Avx2::detect`] makes one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

/// Proof that the machine has AVX-512F and VL: only [`Avx512::detect`] makes one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

/// # Safety
/// The machine must have AVX2 and FMA, which `simd` proves.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
    kernel.run(simd)
}

/// # Safety
/// The machine must have AVX-512F and VL, which `simd` proves.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
pub(super) unsafe fn run_avx512<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
    kernel.run(simd)
}

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }
}

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        // VL lets the compiler use the upper 16 registers for narrow halves too; without it the tiles spill.
        let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
        (wide && Avx2::detect().is_some()).then_some(Self(()))
    }
}

/// All ones in the first `count` of eight lanes, as AVX2's masked moves want it.
#[inline(always)]
fn first_of_8(_proof: Avx2, count: usize) -> __m256i {
    // SAFETY: the token proves AVX2.
    unsafe {
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lane)
    }
}

impl Simd for Avx2 {
    type Vector = __m256;
    const WIDTH: usize = 8;
    const TILE_ROWS: usize = 3;

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the token proves FMA.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sum_each(self, [a, b, c, d]: [__m256; 4]) -> [f32; 4] {
        // SAFETY: the token proves AVX2.
        unsafe {
            // 8 lanes to 4, a in the low half and b in the high one; then to 2, a c | b d; then to 1.
            let ab = _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(a, b),
                _mm256_permute2f128_ps::<0x31>(a, b),
            );
            let cd = _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(c, d),
                _mm256_permute2f128_ps::<0x31>(c, d),
            );
            let pairs = _mm256_add_ps(
                _mm256_shuffle_ps::<0x44>(ab, cd),
                _mm256_shuffle_ps::<0xEE>(ab, cd),
            );
            let sums = _mm256_add_ps(
                _mm256_shuffle_ps::<0x88>(pairs, pairs),
                _mm256_shuffle_ps::<0xDD>(pairs, pairs),
            );
            let (low, high) = (
                _mm256_castps256_ps128(sums),
                _mm256_extractf128_ps::<1>(sums),
            );
            to_array(_mm_unpacklo_ps(low, high))
        }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: the token proves AVX2, the caller vouches for eight values.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, count: usize) -> __m256 {
        // SAFETY: the token proves AVX2, the caller vouches for the values that the mask lets through.
        unsafe { _mm256_maskload_ps(from, first_of_8(self, count)) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> __m256 {
        // SAFETY: the token proves AVX2, the caller vouches for eight values of two bytes.
        unsafe {
            let values = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(values))
        }
    }

    #[inline(always)]
    fn fetch(self, line: *const u8) {
        // SAFETY: a prefetch reads nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: __m256) {
        // SAFETY: the token proves AVX2, the caller vouches for room for eight values.
        unsafe { _mm256_storeu_ps(to, vector) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize, vector: __m256) {
        // SAFETY: the token proves AVX2, the caller vouches for room for what the mask lets through.
        unsafe { _mm256_maskstore_ps(to, first_of_8(self, count), vector) }
    }
}

impl Simd for Avx512 {
    type Vector = __m512;
    const WIDTH: usize = 16;
    const TILE_ROWS: usize = 8;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sum_each(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        // SAFETY: the token proves AVX-512F.
        unsafe {
            // 16 lanes to 8, then to 4, one vector of the four in each quarter; then to 2 and to 1 within the quarters.
            let ab = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0x44>(a, b),
                _mm512_shuffle_f32x4::<0xEE>(a, b),
            );
            let cd = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0x44>(c, d),
                _mm512_shuffle_f32x4::<0xEE>(c, d),
            );
            let quarters = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0x88>(ab, cd),
                _mm512_shuffle_f32x4::<0xDD>(ab, cd),
            );
            let pairs = _mm512_add_ps(quarters, _mm512_permute_ps::<0x4E>(quarters));
            let sums = _mm512_add_ps(pairs, _mm512_permute_ps::<0xB1>(pairs));
            let first_of_quarters =
                _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
            to_array(_mm512_castps512_ps128(_mm512_permutexvar_ps(
                first_of_quarters,
                sums,
            )))
        }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the token proves AVX-512F, the caller vouches for 16 values.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, count: usize) -> __m512 {
        // SAFETY: the token proves AVX-512F, the caller vouches for the values that the mask lets through.
        unsafe { _mm512_maskz_loadu_ps((1u16 << count) - 1, from) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> __m512 {
        // SAFETY: the token proves AVX-512F, the caller vouches for 16 values of two bytes.
        unsafe {
            let values = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(values))
        }
    }

    #[inline(always)]
    fn fetch(self, line: *const u8) {
        // SAFETY: a prefetch reads nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: __m512) {
        // SAFETY: the token proves AVX-512F, the caller vouches for room for 16 values.
        unsafe { _mm512_storeu_ps(to, vector) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize, vector: __m512) {
        // SAFETY: the token proves AVX-512F, the caller vouches for room for what the mask lets through.
        unsafe { _mm512_mask_storeu_ps(to, (1u16 << count) - 1, vector) }
    }
}

#[inline(always)]
fn to_array(vector: __m128) -> [f32; 4] {
    let mut lanes = [0.0; 4];
    // SAFETY: x86-64 always has SSE; the array has room for the four lanes.
    unsafe { _mm_storeu_ps(lanes.as_mut_ptr(), vector) };
    lanes
}
