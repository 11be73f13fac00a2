//! numpy's `default_rng(seed).permutation(n)`: `SeedSequence`, PCG64 (XSL RR 128/64), and a Fisher-Yates walk whose
//! indices are 32-bit draws under a mask, drawn again while too large.

/// `0..n` in numpy's order.
pub(super) fn permutation(seed: u32, n: usize) -> Vec<usize> {
    let mut generator = Pcg64::new(seed);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, generator.at_most(i as u32) as usize);
    }
    order
}

struct Pcg64 {
    state: u128,
    increment: u128,
    /// The upper half of a 64-bit draw whose lower half has been given out.
    half: Option<u32>,
}

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

impl Pcg64 {
    fn new(seed: u32) -> Self {
        let words = seed_words(seed);
        let wide = |high: usize| u128::from(words[high]) << 64 | u128::from(words[high + 1]);
        let mut generator = Pcg64 {
            state: 0,
            increment: wide(2) << 1 | 1,
            half: None,
        };
        generator.step();
        generator.state = generator.state.wrapping_add(wide(0));
        generator.step();
        generator
    }

    fn step(&mut self) {
        let product = self.state.wrapping_mul(MULTIPLIER);
        self.state = product.wrapping_add(self.increment);
    }

    fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let both = self.next_u64();
        self.half = Some((both >> 32) as u32);
        both as u32
    }

    /// A draw from `0..=most`; `most` is at least 1.
    fn at_most(&mut self, most: u32) -> u32 {
        let mask = u32::MAX >> most.leading_zeros();
        loop {
            let draw = self.next_u32() & mask;
            if draw <= most {
                return draw;
            }
        }
    }
}

const N_POOL: usize = 4;

/// What `SeedSequence(seed).generate_state(4, uint64)` gives.
fn seed_words(seed: u32) -> [u64; 4] {
    let mut hash = 0x43b0_d7e5_u32;
    let mut scramble = |value: u32| {
        let mixed = value ^ hash;
        hash = hash.wrapping_mul(0x931e_8875);
        let mixed = mixed.wrapping_mul(hash);
        mixed ^ mixed >> 16
    };
    let mut pool = [seed, 0, 0, 0].map(&mut scramble);
    for source in 0..N_POOL {
        for target in (0..N_POOL).filter(|target| *target != source) {
            let left = pool[target].wrapping_mul(0xca01_f9dd);
            let right = scramble(pool[source]).wrapping_mul(0x4973_f715);
            let mixed = left.wrapping_sub(right);
            pool[target] = mixed ^ mixed >> 16;
        }
    }
    let mut hash = 0x8b51_f9dd_u32;
    let mut word = |i: usize| {
        let mixed = pool[i % N_POOL] ^ hash;
        hash = hash.wrapping_mul(0x58f3_8ded);
        let mixed = mixed.wrapping_mul(hash);
        u64::from(mixed ^ mixed >> 16)
    };
    std::array::from_fn(|i| word(2 * i) | word(2 * i + 1) << 32)
}
