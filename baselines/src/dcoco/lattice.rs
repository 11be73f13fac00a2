//! The scored candidates of one block, and the ways to choose a chain through them. No tensor operation happens here.

use decode::Draws;

/// Scores of K candidates at each of gamma slots, best unary first.
#[derive(Clone, Copy, Debug)]
pub struct Lattice<'a> {
    /// `[K]`: log-probabilities at slot 1.
    first: &'a [f32],
    /// `[gamma - 1, K, K]`: entry `[i, a, b]` rates candidate b at slot i + 2 after a at i + 1.
    pairs: &'a [f32],
}

/// A chain that was drawn, and what it was drawn from.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnChain {
    /// The chosen candidate of every slot.
    pub ranks: Vec<usize>,
    /// `[gamma, K]`: the law each was drawn from, given those before it.
    pub probs: Vec<f32>,
}

impl<'a> Lattice<'a> {
    /// `first`: `[K]`; `pairs`: `[gamma - 1, K, K]`.
    ///
    /// # Panics
    /// If `pairs` does not hold whole K by K squares.
    pub fn new(first: &'a [f32], pairs: &'a [f32]) -> Self {
        let k = first.len();
        assert!(
            k > 0 && pairs.len().is_multiple_of(k * k),
            "squares of K candidates"
        );
        Self { first, pairs }
    }

    fn k(&self) -> usize {
        self.first.len()
    }

    /// Draft slots.
    pub fn gamma(&self) -> usize {
        1 + self.pairs.len() / (self.k() * self.k())
    }

    /// Scores of all candidates at slot `slot` (0-based) after candidate `before` at the slot before.
    fn row(&self, slot: usize, before: Option<usize>) -> &'a [f32] {
        let k = self.k();
        match before {
            None => self.first,
            Some(rank) => &self.pairs[((slot - 1) * k + rank) * k..][..k],
        }
    }

    /// Left to right, each slot the best successor of the one chosen before it; ties go to the better unary. Slot 1
    /// takes the trunk's first choice.
    pub fn walk(&self) -> Vec<usize> {
        follow(self.gamma(), |slot, before| best(self.row(slot, before)))
    }

    /// The chain with the largest `u_1 + sum of S`; of equal ones the first in the order of ranks.
    pub fn global_sum(&self) -> Vec<usize> {
        let tail = self.tails(f64::from, max);
        follow(self.gamma(), |slot, before| {
            let row = self.row(slot, before).iter().zip(&tail[slot]);
            best(&row.map(|(s, t)| f64::from(*s) + t).collect::<Vec<_>>())
        })
    }

    /// The chain most probable under the walk's own law at temperature 1: rows are normalised before they are summed.
    pub fn global_logprob(&self) -> Vec<usize> {
        let k = self.k();
        let normalised = |row: &[f32]| {
            let total = log_sum_exp(row.iter().map(|s| f64::from(*s)));
            row.iter()
                .map(move |s| (f64::from(*s) - total) as f32)
                .collect::<Vec<_>>()
        };
        let pairs: Vec<f32> = self.pairs.chunks_exact(k).flat_map(normalised).collect();
        Lattice::new(&normalised(self.first), &pairs).global_sum()
    }

    /// Draws left to right, each slot from the softmax of its row over the temperature.
    pub fn draw_walk(&self, temperature: f64, draws: &mut Draws) -> DrawnChain {
        draw(
            self.gamma(),
            |slot, before| {
                let row = self.row(slot, before).iter();
                softmax(row.map(|s| f64::from(*s) / temperature).collect())
            },
            draws,
        )
    }

    /// Draws from the law over whole chains that is proportional to `exp((u_1 + sum of S) / temperature)`, left to
    /// right by its exact conditionals.
    pub fn draw_global(&self, temperature: f64, draws: &mut Draws) -> DrawnChain {
        let tail = self.tails(
            |s| f64::from(s) / temperature,
            |terms| log_sum_exp(terms.iter().copied()),
        );
        draw(
            self.gamma(),
            |slot, before| {
                let row = self.row(slot, before).iter().zip(&tail[slot]);
                softmax(row.map(|(s, t)| f64::from(*s) / temperature + t).collect())
            },
            draws,
        )
    }

    /// The law of [`Lattice::draw_walk`] along a given chain: `[gamma, K]`.
    pub fn walk_law(&self, ranks: &[usize], temperature: f64) -> Vec<f32> {
        let mut before = None;
        let mut probs = Vec::with_capacity(ranks.len() * self.k());
        for (slot, rank) in ranks.iter().enumerate() {
            let row = self.row(slot, before).iter();
            probs.extend(softmax(row.map(|s| f64::from(*s) / temperature).collect()));
            before = Some(*rank);
        }
        probs
    }

    /// For each slot and candidate, what `join` makes of everything that can follow it; 0 at the last slot.
    fn tails(&self, scale: impl Fn(f32) -> f64, join: impl Fn(&[f64]) -> f64) -> Vec<Vec<f64>> {
        let (k, gamma) = (self.k(), self.gamma());
        let mut tails = vec![vec![0.0; k]; gamma];
        for slot in (0..gamma - 1).rev() {
            for rank in 0..k {
                let row = self.row(slot + 1, Some(rank)).iter().zip(&tails[slot + 1]);
                let terms: Vec<f64> = row.map(|(s, t)| scale(*s) + t).collect();
                tails[slot][rank] = join(&terms);
            }
        }
        tails
    }
}

/// [`Lattice::walk`] through rows of K scores that are made when they are visited: `row` gives that of a slot after a
/// candidate of the slot before.
pub(super) fn visit(
    gamma: usize,
    mut row: impl FnMut(usize, Option<usize>) -> Vec<f32>,
) -> Vec<usize> {
    follow(gamma, |slot, before| best(&row(slot, before)))
}

/// [`Lattice::draw_walk`] through such rows.
pub(super) fn draw_visit(
    gamma: usize,
    mut row: impl FnMut(usize, Option<usize>) -> Vec<f32>,
    temperature: f64,
    draws: &mut Draws,
) -> DrawnChain {
    let law = |slot, before| {
        let row = row(slot, before).into_iter();
        softmax(row.map(|s| f64::from(s) / temperature).collect())
    };
    draw(gamma, law, draws)
}

fn follow(gamma: usize, mut choose: impl FnMut(usize, Option<usize>) -> usize) -> Vec<usize> {
    let mut ranks: Vec<usize> = Vec::with_capacity(gamma);
    for slot in 0..gamma {
        ranks.push(choose(slot, ranks.last().copied()));
    }
    ranks
}

fn draw(
    gamma: usize,
    mut law: impl FnMut(usize, Option<usize>) -> Vec<f32>,
    draws: &mut Draws,
) -> DrawnChain {
    let mut probs = Vec::new();
    let ranks = follow(gamma, |slot, before| {
        let law = law(slot, before);
        probs.extend_from_slice(&law);
        draws.pick(&law)
    });
    DrawnChain { ranks, probs }
}

/// Index of the largest value, the first of equal ones.
fn best<T: PartialOrd + Copy>(values: &[T]) -> usize {
    let mut best = 0;
    for (i, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = i;
        }
    }
    best
}

fn max(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn log_sum_exp(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let top = values.clone().fold(f64::NEG_INFINITY, f64::max);
    top + values.map(|v| (v - top).exp()).sum::<f64>().ln()
}

fn softmax(values: Vec<f64>) -> Vec<f32> {
    let total = log_sum_exp(values.iter().copied());
    values.iter().map(|v| (v - total).exp() as f32).collect()
}
