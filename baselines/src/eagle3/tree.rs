//! EAGLE-2's dynamic draft tree: each level grows from the most likely nodes of the one before, and of all candidates
//! the most likely ones are proposed.
//!
//! Source: EAGLE-2 (arXiv 2406.16858) and the authors' code, which EAGLE-3 shares.

use std::cmp::Ordering;

use decode::TokenId;

/// A tree under construction. It starts from the candidates that follow the anchor; every further level is grown
/// from a frontier of `width` nodes.
#[derive(Clone, Debug)]
pub struct DraftTree {
    width: usize,
    /// Sum of log-probabilities from the root to each candidate, in the order they were found.
    scores: Vec<f32>,
    tokens: Vec<TokenId>,
    /// For each group of `width` candidates their parent: 0 is the root, c is candidate c - 1.
    parents: Vec<usize>,
    /// Candidates that the next level grows from.
    frontier: Vec<usize>,
    /// For each frontier node the frontier nodes on its path, itself last, counted over all levels.
    paths: Vec<Vec<u32>>,
}

impl DraftTree {
    /// `first`: the most likely tokens after the anchor with their log-probabilities, best first. How many they are
    /// is the tree's width.
    pub fn new(first: &[(TokenId, f32)]) -> Self {
        let width = first.len();
        Self {
            width,
            scores: first.iter().map(|c| c.1).collect(),
            tokens: first.iter().map(|c| c.0).collect(),
            parents: vec![0],
            frontier: (0..width).collect(),
            paths: (0..width as u32).map(|row| vec![row]).collect(),
        }
    }

    /// Tokens of the frontier, which the next draft step is fed.
    pub fn frontier(&self) -> impl Iterator<Item = TokenId> + '_ {
        self.frontier.iter().map(|c| self.tokens[*c])
    }

    /// For each frontier node the rows of earlier frontiers on its path and its own, counted over all levels.
    pub fn paths(&self) -> &[Vec<u32>] {
        &self.paths
    }

    /// Adds the candidates that follow each frontier node, `width` a node with their log-probabilities, and moves the
    /// frontier to the most likely of them. Returns for each new frontier node the old one it hangs from.
    pub fn grow(&mut self, found: &[(TokenId, f32)]) -> Vec<u32> {
        assert_eq!(found.len(), self.width * self.width, "a group a node");
        let base = self.scores.len();
        for (group, node) in found.chunks(self.width).zip(&self.frontier) {
            let so_far = self.scores[*node];
            self.parents.push(node + 1);
            self.scores.extend(group.iter().map(|c| c.1 + so_far));
            self.tokens.extend(group.iter().map(|c| c.0));
        }
        let best = best(&self.scores[base..], self.width);
        let hang: Vec<usize> = best.iter().map(|c| c / self.width).collect();
        let first = self.paths.iter().flatten().max().map_or(0, |row| row + 1);
        self.paths = (first..)
            .zip(&hang)
            .map(|(row, from)| [self.paths[*from].as_slice(), &[row]].concat())
            .collect();
        self.frontier = best.iter().map(|c| base + c).collect();
        hang.into_iter().map(|from| from as u32).collect()
    }

    /// Sums of log-probabilities of all candidates, in the order they were found.
    pub fn scores(&self) -> &[f32] {
        &self.scores
    }

    /// The `n` most likely candidates, or all if there are fewer: their tokens, parents before children, and for each
    /// the row it hangs from, 0 for the anchor and r for draft r - 1.
    pub fn select(&self, n: usize) -> (Vec<TokenId>, Vec<u32>) {
        // A path's sum never rises and a tie goes to the earlier candidate, so a parent is chosen before its child.
        let mut chosen = best(&self.scores, n.min(self.scores.len()));
        chosen.sort_unstable();
        let row_of = |candidate: usize| match self.parents[candidate / self.width] {
            0 => 0,
            parent => 1 + chosen.partition_point(|c| *c < parent - 1) as u32,
        };
        let parents = chosen.iter().map(|c| row_of(*c)).collect();
        let tokens = chosen.iter().map(|c| self.tokens[*c]).collect();
        (tokens, parents)
    }
}

/// Indices of the `n` largest values, best first; of equal values the earliest.
fn best(values: &[f32], n: usize) -> Vec<usize> {
    let order = |a: &usize, b: &usize| -> Ordering {
        values[*b].total_cmp(&values[*a]).then_with(|| a.cmp(b))
    };
    let mut ids: Vec<usize> = (0..values.len()).collect();
    ids.sort_unstable_by(order);
    ids.truncate(n);
    ids
}
