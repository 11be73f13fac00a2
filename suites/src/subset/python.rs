//! Python's `random.Random(seed).shuffle`: MT19937 seeded by an array, indices by as many bits as the bound has, drawn
//! again while too large.

const N: usize = 624;
const M: usize = 397;

/// `0..n` as Python leaves `list(range(n))`.
pub(super) fn shuffled(seed: u32, n: usize) -> Vec<usize> {
    let mut generator = Mt19937::new(seed);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, generator.below(i as u32 + 1) as usize);
    }
    order
}

struct Mt19937 {
    state: [u32; N],
    at: usize,
}

impl Mt19937 {
    /// `init_by_array` with a key of one word.
    fn new(seed: u32) -> Self {
        let mut state = [0u32; N];
        state[0] = 19_650_218;
        for i in 1..N {
            state[i] = next_seed(state[i - 1], 1_812_433_253).wrapping_add(i as u32);
        }
        let mut i = 1;
        for _ in 0..N {
            state[i] = (state[i] ^ next_seed(state[i - 1], 1_664_525)).wrapping_add(seed);
            i = wrap(&mut state, i + 1);
        }
        for _ in 1..N {
            state[i] = (state[i] ^ next_seed(state[i - 1], 1_566_083_941)).wrapping_sub(i as u32);
            i = wrap(&mut state, i + 1);
        }
        state[0] = 0x8000_0000;
        Self { state, at: N }
    }

    fn refill(&mut self) {
        for i in 0..N {
            let next = self.state[(i + 1) % N];
            let y = self.state[i] & 0x8000_0000 | next & 0x7fff_ffff;
            let twist = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ y >> 1 ^ twist;
        }
        self.at = 0;
    }

    fn next_u32(&mut self) -> u32 {
        if self.at == N {
            self.refill();
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c_5680;
        y ^= y << 15 & 0xefc6_0000;
        y ^ y >> 18
    }

    /// A draw from `0..bound`; `bound` is at least 1.
    fn below(&mut self, bound: u32) -> u32 {
        loop {
            let draw = self.next_u32() >> bound.leading_zeros();
            if draw < bound {
                return draw;
            }
        }
    }
}

fn next_seed(before: u32, factor: u32) -> u32 {
    (before ^ before >> 30).wrapping_mul(factor)
}

/// The next index; behind the last one it is 1 again, and word 0 becomes the last.
fn wrap(state: &mut [u32; N], i: usize) -> usize {
    if i < N {
        return i;
    }
    state[0] = state[N - 1];
    1
}
