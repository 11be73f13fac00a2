//! What this machine can do at best: the yardsticks beside which a kernel's speed is read.
#![allow(unsafe_code, reason = "reads memory in vectors")]

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::pool;
use crate::simd::{Isa, Kernel, Simd};

/// Bytes read at a time by one thread.
const PIECE: usize = 1 << 18;
/// Products summed between two looks at the clock, in vectors.
const ROUNDS: usize = 20_000;
/// Sums under way at once; fewer would wait for each other.
const SUMS: usize = 16;

/// The most that was seen of reading memory and of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Gigabytes a second that all threads together read from memory.
    pub read_gb_s: f64,
    /// f32 multiplications and additions a second of all threads together, in units of 10^9, out of registers.
    pub gflop_s: f64,
}

/// Measures the limits of `rayon::current_num_threads()` threads, the best of `repeats` tries each. Reads a buffer of 256
/// MiB, which no cache of a usual machine holds.
///
/// # Panics
/// If there is no memory for the buffer.
pub fn limits(repeats: usize) -> Limits {
    let threads = rayon::current_num_threads();
    let buffer = vec![1f32; (256 << 20) / size_of::<f32>()];
    let best = |try_once: &dyn Fn() -> f64| (0..repeats).map(|_| try_once()).fold(0.0, f64::max);
    Limits {
        read_gb_s: best(&|| read(&buffer, threads)),
        gflop_s: best(&|| compute(threads)),
    }
}

fn read(buffer: &[f32], threads: usize) -> f64 {
    let isa = Isa::detect();
    let next = AtomicUsize::new(0);
    let pieces: Vec<&[f32]> = buffer.chunks(PIECE / size_of::<f32>()).collect();
    let began = Instant::now();
    pool::together(threads, &|| {
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            black_box(isa.run(Read(piece)));
        }
    });
    size_of_val(buffer) as f64 / began.elapsed().as_secs_f64() / 1e9
}

fn compute(threads: usize) -> f64 {
    let isa = Isa::detect();
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let began = Instant::now();
    pool::together(threads, &|| {
        while next.fetch_add(1, Ordering::Relaxed) < 64 * threads {
            let n = isa.run(Compute(black_box(ROUNDS)));
            done.fetch_add(n, Ordering::Relaxed);
        }
    });
    done.into_inner() as f64 / began.elapsed().as_secs_f64() / 1e9
}

/// The sum of the whole vectors of a slice.
struct Read<'a>(&'a [f32]);

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let one = simd.splat(1.0);
        let mut sums = [simd.splat(0.0); 4];
        for line in self.0.chunks_exact(4 * S::WIDTH) {
            for (at, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the line has four vectors.
                let values = unsafe { simd.load(line.as_ptr().add(at * S::WIDTH)) };
                *sum = simd.mul_add(values, one, *sum);
            }
        }
        simd.sum_each(sums).iter().sum()
    }
}

/// So many rounds of multiplications and additions; returns how many of both there were.
struct Compute(usize);

impl Kernel for Compute {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> usize {
        let (a, b) = (simd.splat(black_box(1e-3)), simd.splat(black_box(0.5)));
        let mut sums = [simd.splat(0.0); SUMS];
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = simd.mul_add(a, b, *sum);
            }
        }
        for four in sums.chunks_exact(4) {
            black_box(simd.sum_each([four[0], four[1], four[2], four[3]]));
        }
        2 * SUMS * S::WIDTH * self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_reads_all_and_counts_what_it_computes() {
        let values = vec![0.25; 64 * 10];
        for isa in Isa::all() {
            assert_eq!(isa.run(Read(&values)), 160.0);
            assert_eq!(isa.run(Compute(10)) % (2 * SUMS * 10), 0);
        }
        assert!(compute(2) > 0.0 && read(&values, 2) > 0.0);
    }
}
