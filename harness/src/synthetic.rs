//! Synthetic acceptance: a method's costs at an acceptance length that is asked for instead of measured.
//!
//! The real drafter runs, then its drafts are replaced so that the target keeps a drawn number of them: slot i survives
//! with probability p given that those before it did, where p + p^2 + .. + p^K = tau - 1 over the K drafts of a round.
//! (llama.cpp's `--spec-synth-len` is the same law.) A request draws once, and its rounds go on from there by the golden
//! ratio, so that short runs come near to the length too; a round that the end of the answer cuts counts as in any run. The target's own greedy text goes into the slots that survive and
//! a wrong token into the next one, so acceptance rule, text and caches are those of any other round. One cache is not:
//! a draft model keeps keys and values of its own drafts where they were replaced, and what it proposes next, which is
//! thrown away, is read from them.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use decode::{
    Anchor, Committed, Drafter, Draws, Ended, Error, Generation, LayerId, Parts, Probe, Proposal,
    Request, Sampling, Settings, Silent, Slot, StepCost, Target, TokenId, TokenIo, VerifyAll,
};

use crate::matrix::Matrix;

/// How drafts come to be accepted: the value of an arm's `acceptance` option, spelled `real` or `synthetic-T`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Acceptance {
    /// The target keeps what it agrees with.
    #[default]
    Real,
    /// The target is made to agree with as many as give this acceptance length.
    Synthetic(Tau),
}

/// Tokens a round, bonus included; at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tau(f64);

impl Acceptance {
    /// What a user may type.
    pub(crate) const SPELLINGS: &str =
        "real, or synthetic-T with T tokens a round, from 1 to one more than the drafts of a round";

    /// Refuses an acceptance length that so many drafts a round cannot have.
    ///
    /// # Errors
    /// If it is above `n_drafts + 1`.
    pub(crate) fn check(self, n_drafts: usize) -> Result<()> {
        if let Self::Synthetic(tau) = self {
            let most = n_drafts + 1;
            ensure!(
                tau.0 <= most as f64,
                "acceptance=synthetic-{}: its drafter proposes {n_drafts} drafts a round, so the length must lie between 1 and {most}; give --acceptance or acceptance= a smaller one",
                tau.0
            );
        }
        Ok(())
    }

    /// Whether it is drawn.
    pub(crate) fn is_synthetic(self) -> bool {
        self != Self::Real
    }
}

impl FromStr for Acceptance {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "real" {
            return Ok(Self::Real);
        }
        let length = text.strip_prefix("synthetic-").ok_or(())?;
        let tau: f64 = length.parse().map_err(drop)?;
        let is_length = tau.is_finite() && tau >= 1.0;
        is_length.then_some(Self::Synthetic(Tau(tau))).ok_or(())
    }
}

impl Tau {
    /// The chance p of each of `n_drafts` slots, given the slots before it.
    fn chance(self, n_drafts: usize) -> f64 {
        let accepted = |p: f64| (0..n_drafts).fold(0.0, |sum, _| p * (1.0 + sum));
        let (mut low, mut high) = (0.0, 1.0);
        if accepted(high) <= self.0 - 1.0 {
            return high;
        }
        // As often as it takes until the two are neighbours in f64.
        for _ in 0..64 {
            let middle = 0.5 * (low + high);
            match accepted(middle) < self.0 - 1.0 {
                true => low = middle,
                false => high = middle,
            }
        }
        low
    }

    /// How many of `n_drafts` survive where `uniform` was drawn: i or more with probability p^i.
    fn accepted(self, n_drafts: usize, uniform: f64) -> usize {
        let p = self.chance(n_drafts);
        let survives = std::iter::successors(Some(p), |power| Some(power * p));
        let survives = survives.take(n_drafts);
        survives.take_while(|power| uniform < *power).count()
    }
}

/// Gives every drafting method of a matrix that says nothing of acceptance the one that was typed.
///
/// # Errors
/// If it does not read `synthetic:T`, or the matrix has no drafting method.
pub(crate) fn impose(typed: &str, matrix: &mut Matrix) -> Result<()> {
    let spelled = typed.replacen(':', "-", 1);
    let asked: Result<Acceptance, ()> = spelled.parse();
    if !asked.is_ok_and(Acceptance::is_synthetic) {
        bail!(
            "--acceptance {typed}: must read synthetic:T with T tokens a round, from 1 to one more than the drafts of a round, such as synthetic:3.0"
        );
    }
    let mut n_arms = 0;
    let blocks = matrix.blocks.iter_mut().flat_map(|b| &mut b.methods);
    for key in blocks {
        n_arms += usize::from(add_option(key, &spelled));
    }
    ensure!(
        n_arms > 0,
        "--acceptance {typed}: no method drafts without an acceptance of its own; name one with --methods"
    );
    let excluded = matrix
        .excludes
        .iter_mut()
        .filter_map(|e| e.methods.as_mut());
    for key in excluded.flatten() {
        add_option(key, &spelled);
    }
    Ok(())
}

/// Whether the method drafts and has no acceptance yet; if so it has one now. What cannot be read is left for
/// [`crate::plan`] to refuse.
fn add_option(key: &mut String, spelled: &str) -> bool {
    let drafts = baselines::Arm::parse(key).is_ok_and(|arm| {
        let own = arm.options.get::<String>("acceptance", "");
        arm.method.checkpoint.is_some() && matches!(own, Ok(None))
    });
    if drafts {
        key.push_str(&format!(":acceptance={spelled}"));
    }
    drafts
}

/// What the target says by itself when it is greedy, by prompt.
#[derive(Debug, Default)]
pub(crate) struct Texts(BTreeMap<Vec<TokenId>, Text>);

#[derive(Debug)]
struct Text {
    tokens: Vec<TokenId>,
    ended: Ended,
}

impl Text {
    /// Whether it is as long as an answer of at most `max_new` tokens.
    fn reaches(&self, max_new: usize) -> bool {
        self.ended == Ended::Stop || self.tokens.len() >= max_new
    }
}

impl Texts {
    /// Adds what vanilla answered.
    pub(crate) fn add(&mut self, requests: Vec<Request>, answers: &[Generation]) {
        for Request { id, prompt, .. } in requests {
            let Some(answer) = answers.iter().find(|a| a.id == id) else {
                continue;
            };
            let known = self.0.get(&prompt).map_or(0, |text| text.tokens.len());
            if known < answer.tokens.len() {
                let (tokens, ended) = (answer.tokens.clone(), answer.ended);
                self.0.insert(prompt, Text { tokens, ended });
            }
        }
    }

    /// Decodes what is not known yet of the answers to some requests, without drafts.
    ///
    /// # Errors
    /// Those of the target.
    pub(crate) fn complete(
        &mut self,
        target: &mut dyn Target,
        requests: &[Request],
        slots: usize,
    ) -> decode::Result<()> {
        let mut unknown: BTreeMap<&[TokenId], &Request> = BTreeMap::new();
        for request in requests {
            let text = self.0.get(&request.prompt);
            if !text.is_some_and(|text| text.reaches(request.max_new)) {
                unknown.insert(&request.prompt, request);
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let unknown: Vec<Request> = unknown.into_values().cloned().collect();
        let settings = Settings {
            slots,
            sampling: Sampling::Greedy,
            seed: 0,
            cost: StepCost::flat(),
        };
        let parts = Parts {
            target,
            drafter: &mut baselines::Vanilla,
            scheduler: &mut VerifyAll,
            probe: &mut Silent,
        };
        let answers = decode::decode(parts, unknown.clone(), &settings)?;
        self.add(unknown, &answers);
        Ok(())
    }
}

/// A drafter whose drafts are replaced.
pub(crate) struct Synthetic<'a> {
    inner: &'a mut dyn Drafter,
    tau: Tau,
    texts: &'a Texts,
    live: BTreeMap<Slot, Live<'a>>,
}

/// What a slot will say, and what its next round draws.
struct Live<'a> {
    n_prompt: usize,
    text: &'a [TokenId],
    /// Nothing before the first round.
    uniform: Option<f64>,
}

/// The fraction of the golden ratio, whose multiples are spread most evenly over `[0, 1)`.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

impl Live<'_> {
    /// Uniform in `[0, 1)`, as a function of the seed, the request and the number of the round: nobody else draws from
    /// a greedy sequence's stream.
    fn draw(&mut self, draws: &mut Draws) -> f64 {
        let uniform = self.uniform.unwrap_or_else(|| draws.uniform());
        self.uniform = Some((uniform + GOLDEN).fract());
        uniform
    }
}

impl<'a> Synthetic<'a> {
    /// `texts` holds the answer to every prompt that comes.
    pub(crate) fn new(inner: &'a mut dyn Drafter, tau: Tau, texts: &'a Texts) -> Self {
        Self {
            inner,
            tau,
            texts,
            live: BTreeMap::new(),
        }
    }

    /// Puts the target's tokens in as many slots as survive, and a wrong one behind them. `at`: slot, the position of
    /// the anchor and the anchor itself.
    fn replace(
        &self,
        mut tokens: Vec<TokenId>,
        at: (Slot, usize, TokenId),
        uniform: f64,
        vocab: usize,
    ) -> decode::Result<Proposal> {
        let (slot, position, anchor) = at;
        let n_drafts = tokens.len();
        if self.tau.0 > (n_drafts + 1) as f64 {
            return Err(broken(format!(
                "proposed {n_drafts} drafts in a round, too few for a synthetic acceptance length of {}",
                self.tau.0
            )));
        }
        let live = self.live.get(&slot).ok_or_else(|| strange(slot))?;
        let said = position.checked_sub(live.n_prompt);
        let said = said.filter(|idx| live.text.get(*idx) == Some(&anchor));
        let said = said.ok_or_else(|| strange(slot))?;
        let n_kept = self.tau.accepted(n_drafts, uniform);
        // Behind the end of the text nothing is known, and nothing counts.
        let ahead = &live.text[said + 1..];
        for (slot_idx, (draft, right)) in tokens.iter_mut().zip(ahead).enumerate() {
            if slot_idx < n_kept {
                *draft = *right;
            } else if slot_idx == n_kept && draft == right {
                *draft = ((*right as usize + 1) % vocab) as TokenId;
            }
        }
        // Confidences were of other tokens, and of another chance to survive.
        Ok(Proposal::chain(tokens))
    }
}

fn broken(what: String) -> Error {
    Error::Contract {
        who: "drafter",
        what,
    }
}

fn strange(slot: Slot) -> Error {
    let what = format!(
        "slot {}: says something else than the target said by itself",
        slot.0
    );
    Error::Contract {
        who: "target",
        what,
    }
}

impl Drafter for Synthetic<'_> {
    fn taps(&self) -> &[LayerId] {
        self.inner.taps()
    }

    fn max_draft(&self) -> usize {
        self.inner.max_draft()
    }

    fn drafts_trees(&self) -> bool {
        self.inner.drafts_trees()
    }

    fn start(&mut self, prompt: Committed<'_>) -> decode::Result<()> {
        let text = self.texts.0.get(prompt.fed);
        let text = text.ok_or_else(|| strange(prompt.slot))?;
        let live = Live {
            n_prompt: prompt.fed.len(),
            text: &text.tokens,
            uniform: None,
        };
        self.live.insert(prompt.slot, live);
        self.inner.start(prompt)
    }

    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
        probe: &mut dyn Probe,
    ) -> decode::Result<Vec<Proposal>> {
        if sampling != Sampling::Greedy {
            return Err(broken("synthetic acceptance is for greedy decoding".into()));
        }
        let draw = |row: &mut Anchor<'_>| {
            let live = self
                .live
                .get_mut(&row.slot)
                .ok_or_else(|| strange(row.slot))?;
            Ok(live.draw(row.draws))
        };
        let uniforms: Vec<f64> = rows.iter_mut().map(draw).collect::<decode::Result<_>>()?;
        let proposals = self.inner.propose(rows, io, sampling, probe)?;
        let replaced = proposals.into_iter().zip(rows.iter()).zip(uniforms);
        replaced
            .map(|((proposal, row), uniform)| {
                if proposal.parents.is_some() {
                    return Err(broken(
                        "proposed a tree, whose acceptance is not drawn".into(),
                    ));
                }
                let at = (row.slot, row.position, row.token);
                self.replace(proposal.tokens, at, uniform, io.vocab())
            })
            .collect()
    }

    fn commit(&mut self, rows: Vec<Committed<'_>>) -> decode::Result<()> {
        self.inner.commit(rows)
    }

    fn finish(&mut self, slot: Slot) {
        self.live.remove(&slot);
        self.inner.finish(slot);
    }
}

#[cfg(test)]
mod tests;
