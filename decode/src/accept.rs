//! The acceptance rule: the only place that decides which draft tokens survive.
//!
//! Greedy match, "the target draws, keep while equal" and ratio acceptance with a residual draw are one law: the
//! first is a target law `p` with all mass on one token, the second a draft law `q` with all mass on one token,
//! the third the general case. For a tree the children of a node are tried in their listed order; each refusal
//! takes the child's `q` out of `p` before the next is tried.

use candle_core::{DType, Tensor};

use crate::drafter::{DraftLaw, Proposal};
use crate::error::{Error, Result};
use crate::sampling::{Draws, Law, Sampling, law, normalise};
use crate::target::TokenId;

/// What survives of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Accepted drafts as indices into `Proposal::tokens`, in order; for a chain `0, 1, ..`.
    pub accepted: Vec<usize>,
    /// The token the target adds.
    pub bonus: TokenId,
}

/// Longest prefix (or tree path) that the target allows, then the bonus token.
///
/// `logits`: `[n + 1, V]`; row 0 follows the anchor, row `i + 1` follows draft i. Draft i is judged by the row of
/// its parent.
///
/// Source: speculative sampling (Leviathan et al. 2023, Chen et al. 2023) for chains; for trees the multi-round
/// rejection of SpecInfer (Miao et al. 2024).
///
/// # Errors
/// [`Error::Contract`] if the proposal's parts do not fit each other or the logits, [`Error::NotFinite`] for bad
/// logits.
pub fn judge(
    proposal: &Proposal,
    logits: &Tensor,
    sampling: Sampling,
    draws: &mut Draws,
) -> Result<Verdict> {
    let n = proposal.tokens.len();
    let (rows, vocab) = logits.dims2()?;
    if rows != n + 1 {
        return Err(broken(format!(
            "{n} drafts need {} logits rows, got {rows}",
            n + 1
        )));
    }
    let drafts = Drafts::new(proposal, vocab)?;
    let logits = host(logits)?;
    let mut accepted = Vec::new();
    let mut node = 0;
    loop {
        let row = &logits[node * vocab..(node + 1) * vocab];
        let mut p = law(row, sampling).ok_or(Error::NotFinite { row: node })?;
        let kept = drafts
            .children(node)
            .find(|i| drafts.try_one(*i, &mut p, draws));
        match kept {
            Some(i) => {
                accepted.push(i);
                node = i + 1;
            }
            None => {
                let bonus = p.draw(draws);
                return Ok(Verdict { accepted, bonus });
            }
        }
    }
}

fn broken(what: String) -> Error {
    Error::Contract {
        who: "drafter",
        what,
    }
}

/// A proposal brought to the host.
struct Drafts<'a> {
    proposal: &'a Proposal,
    law: HostLaw,
}

enum HostLaw {
    Point,
    Full {
        vocab: usize,
        probs: Vec<f32>,
    },
    TopK {
        width: usize,
        ids: Vec<u32>,
        probs: Vec<f32>,
    },
}

impl<'a> Drafts<'a> {
    fn new(proposal: &'a Proposal, vocab: usize) -> Result<Self> {
        let n = proposal.tokens.len();
        if let Some(token) = proposal.tokens.iter().find(|t| **t as usize >= vocab) {
            return Err(broken(format!(
                "draft token {token} is outside the vocabulary of {vocab}"
            )));
        }
        if let Some(parents) = &proposal.parents {
            if parents.len() != n {
                return Err(broken(format!(
                    "{n} drafts need {n} parents, got {}",
                    parents.len()
                )));
            }
            if let Some((i, p)) = parents.iter().enumerate().find(|(i, p)| **p as usize > *i) {
                return Err(broken(format!(
                    "draft {i} hangs from row {p}, which does not come before it"
                )));
            }
        }
        let law = match &proposal.law {
            DraftLaw::Point => HostLaw::Point,
            DraftLaw::Full(probs) => {
                expect_shape(probs, (n, vocab))?;
                HostLaw::Full {
                    vocab,
                    probs: host(probs)?,
                }
            }
            DraftLaw::TopK { ids, probs } => {
                let (_, width) = ids.dims2()?;
                expect_shape(ids, (n, width))?;
                expect_shape(probs, (n, width))?;
                let ids: Vec<u32> = ids.to_dtype(DType::U32)?.flatten_all()?.to_vec1()?;
                if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
                    return Err(broken(format!(
                        "candidate {id} is outside the vocabulary of {vocab}"
                    )));
                }
                HostLaw::TopK {
                    width,
                    ids,
                    probs: host(probs)?,
                }
            }
        };
        let drafts = Self { proposal, law };
        let impossible = (0..n).find(|i| {
            let q = drafts.q(*i, proposal.tokens[*i]);
            !(q.is_finite() && q > 0.0)
        });
        match impossible {
            None => Ok(drafts),
            // Its acceptance ratio would be infinite, so it would always survive.
            Some(i) => Err(broken(format!(
                "draft {i} has no mass in the law it was drawn from"
            ))),
        }
    }

    /// Drafts that hang from a row, in listed order.
    fn children(&self, row: usize) -> Box<dyn Iterator<Item = usize> + '_> {
        match &self.proposal.parents {
            None => Box::new(
                (row < self.proposal.tokens.len())
                    .then_some(row)
                    .into_iter(),
            ),
            Some(parents) => {
                Box::new((row..parents.len()).filter(move |i| parents[*i] as usize == row))
            }
        }
    }

    /// Accepts draft i with probability `min(1, p / q)`; a refusal leaves the residual in `p`.
    fn try_one(&self, i: usize, p: &mut Law, draws: &mut Draws) -> bool {
        let token = self.proposal.tokens[i];
        let weights = match p {
            Law::Point(only) => return *only == token,
            Law::Weights(weights) => weights,
        };
        // A weight stays a probability: `take` renormalises after every refusal.
        let ratio_kept =
            draws.uniform() * f64::from(self.q(i, token)) < f64::from(weights[token as usize]);
        if !ratio_kept {
            self.take(i, token, weights);
        }
        ratio_kept
    }

    fn q(&self, i: usize, token: TokenId) -> f32 {
        match &self.law {
            HostLaw::Point => 1.0,
            HostLaw::Full { vocab, probs } => probs[i * vocab + token as usize],
            HostLaw::TopK { width, ids, probs } => (i * width..(i + 1) * width)
                .find(|at| ids[*at] == token)
                .map_or(0.0, |at| probs[at]),
        }
    }

    /// `p <- max(p - q, 0)`, renormalised; if nothing is left (p and q equal up to rounding) `p` stays.
    fn take(&self, i: usize, token: TokenId, p: &mut [f32]) {
        let mut rest = p.to_vec();
        match &self.law {
            HostLaw::Point => rest[token as usize] = 0.0,
            HostLaw::Full { vocab, probs } => {
                for (left, q) in rest.iter_mut().zip(&probs[i * vocab..]) {
                    *left = (*left - q).max(0.0);
                }
            }
            HostLaw::TopK { width, ids, probs } => {
                for at in i * width..(i + 1) * width {
                    let left = &mut rest[ids[at] as usize];
                    *left = (*left - probs[at]).max(0.0);
                }
            }
        }
        if normalise(&mut rest) > 1e-8 {
            p.copy_from_slice(&rest);
        }
    }
}

fn expect_shape(t: &Tensor, want: (usize, usize)) -> Result<()> {
    let got = t.dims2()?;
    if got == want {
        return Ok(());
    }
    Err(broken(format!("draft law is {got:?}, wanted {want:?}")))
}

fn host(t: &Tensor) -> Result<Vec<f32>> {
    Ok(t.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}
