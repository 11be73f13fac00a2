//! The one decode loop. Vanilla is a drafter that proposes nothing.

use std::collections::BTreeSet;

use candle_core::Tensor;

use crate::accept::{Verdict, judge};
use crate::arrivals::{Arrivals, Entry, Together};
use crate::drafter::{Anchor, Committed, Drafter, Proposal};
use crate::error::{Error, Result};
use crate::probe::{Phase, Probe};
use crate::sampling::{Draws, Sampling, laws};
use crate::schedule::{Scheduler, StepCost, survival};
use crate::target::{Feed, Forward, Keep, LayerId, Slot, Target, TokenId, TokenIo};

/// Caller's number for a request; also the number of its random stream.
pub type RequestId = u64;

/// One prompt to answer.
#[derive(Clone, Debug)]
pub struct Request {
    /// Unique within a call of [`decode`].
    pub id: RequestId,
    /// At least one token.
    pub prompt: Vec<TokenId>,
    /// Most tokens to generate, at least 1.
    pub max_new: usize,
}

/// One draft-verify round of one sequence, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Drafts proposed.
    pub drafted: u32,
    /// Drafts verified, after the scheduler's cut.
    pub verified: u32,
    /// Drafts kept by the acceptance rule.
    pub accepted: u32,
    /// Tokens added to the answer: accepted + bonus, cut at a stop token or at `max_new`.
    pub committed: u32,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its last token is a stop token.
    Stop,
    /// It holds `max_new` tokens.
    Length,
}

/// One answer.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The request.
    pub id: RequestId,
    /// Generated tokens, a stop token included; the first comes from prefill.
    pub tokens: Vec<TokenId>,
    /// One entry a round; `tokens.len() == 1 + sum of committed`.
    pub rounds: Vec<Round>,
    /// Why it ended.
    pub ended: Ended,
}

/// What the loop works with.
pub struct Parts<'a> {
    /// The model whose text must not change.
    pub target: &'a mut dyn Target,
    /// The method.
    pub drafter: &'a mut dyn Drafter,
    /// Cuts proposals.
    pub scheduler: &'a mut dyn Scheduler,
    /// Listens.
    pub probe: &'a mut dyn Probe,
}

/// How to decode.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sequences decoded at once (concurrency), at least 1.
    pub slots: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Seed of every request's random stream.
    pub seed: u64,
    /// Handed to the scheduler.
    pub cost: StepCost,
}

/// Answers all requests with `settings.slots` sequences in flight; a slot that becomes free takes the next request.
/// Answers come in the order they end.
///
/// # Errors
/// [`Error::NoSlots`], [`Error::ZeroTemperature`], [`Error::DuplicateRequest`], [`Error::EmptyPrompt`],
/// [`Error::NothingToDo`] or [`Error::TooLong`] before anything is
/// computed; later the errors of target and drafter, or [`Error::Contract`].
pub fn decode(
    parts: Parts<'_>,
    requests: Vec<Request>,
    settings: &Settings,
) -> Result<Vec<Generation>> {
    decode_arriving(parts, requests, settings, &mut Together)
}

/// [`decode`] of requests that come one after another: `arrivals` says how many of them, in their order, are there.
///
/// # Errors
/// Those of [`decode`], and [`Error::Contract`] if nothing is decoded, requests are left and `arrivals` does not wait
/// for the next.
pub fn decode_arriving(
    parts: Parts<'_>,
    requests: Vec<Request>,
    settings: &Settings,
    arrivals: &mut dyn Arrivals,
) -> Result<Vec<Generation>> {
    check(&parts, &requests, settings)?;
    let mut batch = Batch {
        stop: parts.target.stop_tokens().to_vec(),
        taps: parts.drafter.taps().to_vec(),
        live: (0..settings.slots).map(|_| None).collect(),
        parts,
        settings,
    };
    let mut entry = Entry::new(requests, arrivals);
    let mut done = Vec::new();
    loop {
        batch.retire(&mut done)?;
        batch.admit(&mut entry)?;
        // A first token may already end its answer.
        batch.retire(&mut done)?;
        if batch.live.iter().any(Option::is_some) {
            batch.round()?;
        } else if entry.is_over() {
            return Ok(done);
        }
    }
}

fn check(parts: &Parts<'_>, requests: &[Request], settings: &Settings) -> Result<()> {
    if settings.slots == 0 {
        return Err(Error::NoSlots);
    }
    if settings.sampling.temperature() == Some(0.0) {
        return Err(Error::ZeroTemperature);
    }
    let mut ids = BTreeSet::new();
    if let Some(twice) = requests.iter().find(|r| !ids.insert(r.id)) {
        return Err(Error::DuplicateRequest { id: twice.id });
    }
    let (capacity, round) = (parts.target.capacity(), parts.drafter.max_draft() + 1);
    for Request {
        id,
        prompt,
        max_new,
    } in requests
    {
        let (id, prompt, max_new) = (*id, prompt.len(), *max_new);
        if prompt == 0 {
            return Err(Error::EmptyPrompt { id });
        }
        if max_new == 0 {
            return Err(Error::NothingToDo { id });
        }
        let need = prompt.saturating_add(max_new).saturating_add(round);
        if need > capacity {
            return Err(Error::TooLong {
                id,
                need,
                prompt,
                max_new,
                round,
                capacity,
            });
        }
    }
    Ok(())
}

/// A sequence in a slot.
struct Live {
    request: Request,
    tokens: Vec<TokenId>,
    rounds: Vec<Round>,
    draws: Draws,
}

impl Live {
    fn anchor(&self) -> TokenId {
        *self.tokens.last().expect("prefill gave the first token")
    }

    /// Position of the anchor, which is what the target's cache holds.
    fn position(&self) -> usize {
        self.request.prompt.len() + self.tokens.len() - 1
    }

    fn ended(&self, stop: &[TokenId]) -> Option<Ended> {
        if stop.contains(&self.anchor()) {
            Some(Ended::Stop)
        } else {
            (self.tokens.len() >= self.request.max_new).then_some(Ended::Length)
        }
    }

    /// Adds accepted drafts and bonus up to a stop token or `max_new`; returns how many were added.
    fn commit(&mut self, new: impl Iterator<Item = TokenId>, stop: &[TokenId]) -> usize {
        let before = self.tokens.len();
        for token in new {
            self.tokens.push(token);
            if self.ended(stop).is_some() {
                break;
            }
        }
        self.tokens.len() - before
    }
}

struct Batch<'p, 's> {
    parts: Parts<'p>,
    settings: &'s Settings,
    stop: Vec<TokenId>,
    taps: Vec<LayerId>,
    live: Vec<Option<Live>>,
}

impl Batch<'_, '_> {
    /// Fills free slots, one prefill a request.
    fn admit(&mut self, entry: &mut Entry<'_>) -> Result<()> {
        for slot_idx in 0..self.live.len() {
            if self.live[slot_idx].is_some() {
                continue;
            }
            let idle = self.live.iter().all(Option::is_none);
            let Some(request) = entry.next(idle)? else {
                return Ok(());
            };
            self.live[slot_idx] = Some(self.prefill(Slot(slot_idx), request)?);
        }
        Ok(())
    }

    fn prefill(&mut self, slot: Slot, request: Request) -> Result<Live> {
        let Parts {
            target,
            drafter,
            probe,
            ..
        } = &mut self.parts;
        probe.admitted(request.id);
        probe.enter(Phase::Prefill, 1);
        let feed = Feed {
            slot,
            tokens: &request.prompt,
            parents: None,
            logits: Keep::Last,
        };
        let forward = target.forward(&[feed], &self.taps)?;
        let mut draws = Draws::new(self.settings.seed, request.id);
        let law = laws(&forward.logits, self.settings.sampling)?
            .pop()
            .ok_or_else(|| Error::Contract {
                who: "target",
                what: "prefill gave no logits row".into(),
            })?;
        let first = law.draw(&mut draws);
        probe.leave(Phase::Prefill);
        probe.first_token(request.id, first);
        probe.enter(Phase::Start, 1);
        drafter.start(Committed {
            slot,
            position: 0,
            fed: &request.prompt,
            next_anchor: first,
            taps: forward.taps,
        })?;
        probe.leave(Phase::Start);
        Ok(Live {
            request,
            tokens: vec![first],
            rounds: Vec::new(),
            draws,
        })
    }

    /// Frees the slots of complete answers.
    fn retire(&mut self, done: &mut Vec<Generation>) -> Result<()> {
        let Parts {
            target,
            drafter,
            probe,
            ..
        } = &mut self.parts;
        for (slot_idx, place) in self.live.iter_mut().enumerate() {
            let Some(ended) = place.as_ref().and_then(|l| l.ended(&self.stop)) else {
                continue;
            };
            let Some(live) = place.take() else { continue };
            drafter.finish(Slot(slot_idx));
            target.keep(Slot(slot_idx), 0, &[])?;
            let generation = Generation {
                id: live.request.id,
                tokens: live.tokens,
                rounds: live.rounds,
                ended,
            };
            probe.finished(&generation);
            done.push(generation);
        }
        Ok(())
    }

    /// Draft, cut, verify, judge, then roll back and hand on.
    fn round(&mut self) -> Result<()> {
        let Parts {
            target,
            drafter,
            scheduler,
            probe,
        } = &mut self.parts;
        let sampling = self.settings.sampling;
        let mut rows: Vec<(Slot, &mut Live)> = self
            .live
            .iter_mut()
            .enumerate()
            .filter_map(|(i, place)| Some((Slot(i), place.as_mut()?)))
            .collect();
        let n_rows = rows.len();

        probe.enter(Phase::Draft, n_rows);
        let proposals = draft(&mut **drafter, &mut rows, &**target, sampling, &mut **probe)?;
        probe.leave(Phase::Draft);

        for ((_, live), proposal) in rows.iter().zip(&proposals) {
            probe.proposed(live.request.id, proposal);
        }
        probe.enter(Phase::Schedule, n_rows);
        let drafted: Vec<usize> = proposals.iter().map(|p| p.tokens.len()).collect();
        let proposals = cut(proposals, &mut **scheduler, &self.settings.cost)?;
        probe.leave(Phase::Schedule);

        probe.enter(Phase::Verify, n_rows);
        let mut base = 0;
        let mut fed = Vec::with_capacity(n_rows);
        for ((_, live), proposal) in rows.iter().zip(&proposals) {
            fed.push(Fed::new(live.anchor(), proposal, base));
            base += proposal.tokens.len() + 1;
        }
        let feeds: Vec<Feed<'_>> = rows
            .iter()
            .zip(&fed)
            .map(|((slot, _), f)| f.feed(*slot))
            .collect();
        let Forward { logits, taps } = target.forward(&feeds, &self.taps)?;
        probe.leave(Phase::Verify);

        probe.enter(Phase::Judge, n_rows);
        let mut verdicts = Vec::with_capacity(n_rows);
        for (((_, live), proposal), fed) in rows.iter_mut().zip(&proposals).zip(&fed) {
            let logits = logits.narrow(0, fed.base, fed.tokens.len())?;
            verdicts.push(judge(proposal, &logits, sampling, &mut live.draws)?);
        }
        probe.leave(Phase::Judge);

        probe.enter(Phase::Commit, n_rows);
        let mut kept = Vec::with_capacity(n_rows);
        for (row_idx, ((slot, live), verdict)) in rows.iter_mut().zip(&verdicts).enumerate() {
            let fed = &fed[row_idx];
            kept.push(fed.keep(&mut **target, *slot, live.position(), verdict, &taps)?);
            let new = kept[row_idx].new_tokens();
            let committed = live.commit(new.iter().copied(), &self.stop);
            let round = Round {
                drafted: drafted[row_idx] as u32,
                verified: proposals[row_idx].tokens.len() as u32,
                accepted: verdict.accepted.len() as u32,
                committed: committed as u32,
            };
            live.rounds.push(round);
            probe.round(live.request.id, &round, &new[..committed]);
        }
        drafter.commit(kept.iter_mut().map(Kept::committed).collect())?;
        probe.leave(Phase::Commit);
        Ok(())
    }
}

fn draft(
    drafter: &mut dyn Drafter,
    rows: &mut [(Slot, &mut Live)],
    io: &dyn TokenIo,
    sampling: Sampling,
    probe: &mut dyn Probe,
) -> Result<Vec<Proposal>> {
    let mut anchors: Vec<Anchor<'_>> = rows
        .iter_mut()
        .map(|(slot, live)| Anchor {
            slot: *slot,
            token: live.anchor(),
            position: live.position(),
            draws: &mut live.draws,
        })
        .collect();
    let proposals = drafter.propose(&mut anchors, io, sampling, probe)?;
    check_proposals(&proposals, rows.len(), drafter.max_draft())?;
    Ok(proposals)
}

/// Anchor and drafts of one row, as the target is fed them.
struct Fed {
    tokens: Vec<TokenId>,
    parents: Option<Vec<u32>>,
    /// First row of this feed in the packed forward.
    base: usize,
}

impl Fed {
    fn new(anchor: TokenId, proposal: &Proposal, base: usize) -> Self {
        let parents = proposal.parents.as_ref();
        Self {
            tokens: std::iter::once(anchor)
                .chain(proposal.tokens.iter().copied())
                .collect(),
            parents: parents.map(|p| std::iter::once(0).chain(p.iter().copied()).collect()),
            base,
        }
    }

    fn feed(&self, slot: Slot) -> Feed<'_> {
        Feed {
            slot,
            tokens: &self.tokens,
            parents: self.parents.as_deref(),
            logits: Keep::All,
        }
    }

    /// Cuts the target's cache back to the anchor and the accepted drafts and collects what they leave behind.
    fn keep(
        &self,
        target: &mut dyn Target,
        slot: Slot,
        position: usize,
        verdict: &Verdict,
        taps: &[Tensor],
    ) -> Result<Kept> {
        let path: Vec<u32> = std::iter::once(0)
            .chain(verdict.accepted.iter().map(|i| *i as u32 + 1))
            .collect();
        match self.parents {
            None => target.keep(slot, position + path.len(), &[])?,
            Some(_) => target.keep(slot, position, &path)?,
        }
        Ok(Kept {
            slot,
            position,
            tokens: path.iter().map(|r| self.tokens[*r as usize]).collect(),
            next_anchor: verdict.bonus,
            taps: rows_of(taps, self.base, &path)?,
        })
    }
}

/// Owner of what a [`Committed`] borrows.
struct Kept {
    slot: Slot,
    position: usize,
    tokens: Vec<TokenId>,
    next_anchor: TokenId,
    taps: Vec<Tensor>,
}

impl Kept {
    /// Accepted drafts, then the bonus.
    fn new_tokens(&self) -> Vec<TokenId> {
        self.tokens[1..]
            .iter()
            .copied()
            .chain([self.next_anchor])
            .collect()
    }

    fn committed(&mut self) -> Committed<'_> {
        Committed {
            slot: self.slot,
            position: self.position,
            fed: &self.tokens,
            next_anchor: self.next_anchor,
            taps: std::mem::take(&mut self.taps),
        }
    }
}

fn check_proposals(proposals: &[Proposal], n_rows: usize, max_draft: usize) -> Result<()> {
    let broken = |what| {
        Err(Error::Contract {
            who: "drafter",
            what,
        })
    };
    if proposals.len() != n_rows {
        return broken(format!(
            "{n_rows} rows need {n_rows} proposals, got {}",
            proposals.len()
        ));
    }
    for proposal in proposals {
        let n = proposal.tokens.len();
        if n > max_draft {
            return broken(format!(
                "it proposed {n} drafts, its max_draft is {max_draft}"
            ));
        }
        if let Some(confidence) = proposal.confidence.as_ref().filter(|c| c.len() != n) {
            return broken(format!(
                "{n} drafts need {n} confidences, got {}",
                confidence.len()
            ));
        }
        // Above 1 a later slot could outrank an earlier one, and a cut would no longer look only back.
        let mut claims = proposal.confidence.iter().flatten();
        if let Some(claim) = claims.find(|c| !(0.0..=1.0).contains(*c)) {
            return broken(format!("confidence {claim} is not between 0 and 1"));
        }
    }
    Ok(())
}

/// Lets the scheduler shorten the chains; trees are verified whole.
fn cut(
    mut proposals: Vec<Proposal>,
    scheduler: &mut dyn Scheduler,
    cost: &StepCost,
) -> Result<Vec<Proposal>> {
    let survivals: Vec<Vec<f32>> = proposals
        .iter()
        .map(|p| {
            p.confidence
                .as_ref()
                .map_or_else(|| vec![1.0; p.tokens.len()], |c| survival(c))
        })
        .collect();
    let lengths = scheduler.lengths(&survivals, cost);
    let fits = lengths.len() == proposals.len()
        && lengths.iter().zip(&survivals).all(|(l, s)| *l <= s.len());
    if !fits {
        let what = format!("lengths {lengths:?} do not fit {} rows", proposals.len());
        return Err(Error::Contract {
            who: "scheduler",
            what,
        });
    }
    for (proposal, len) in proposals.iter_mut().zip(lengths) {
        if proposal.parents.is_none() && len < proposal.tokens.len() {
            shorten(proposal, len)?;
        }
    }
    Ok(proposals)
}

fn shorten(proposal: &mut Proposal, len: usize) -> Result<()> {
    use crate::drafter::DraftLaw;
    proposal.tokens.truncate(len);
    if let Some(confidence) = &mut proposal.confidence {
        confidence.truncate(len);
    }
    proposal.law = match &proposal.law {
        _ if len == 0 => DraftLaw::Point,
        DraftLaw::Point => DraftLaw::Point,
        DraftLaw::Full(q) => DraftLaw::Full(q.narrow(0, 0, len)?),
        DraftLaw::TopK { ids, probs } => DraftLaw::TopK {
            ids: ids.narrow(0, 0, len)?,
            probs: probs.narrow(0, 0, len)?,
        },
    };
    Ok(())
}

/// Rows `base + path[i]` of every tap.
fn rows_of(taps: &[Tensor], base: usize, path: &[u32]) -> Result<Vec<Tensor>> {
    let chain = path.iter().enumerate().all(|(i, r)| *r as usize == i);
    taps.iter()
        .map(|tap| {
            if chain {
                return Ok(tap.narrow(0, base, path.len())?);
            }
            let rows: Vec<u32> = path.iter().map(|r| base as u32 + r).collect();
            Ok(tap.index_select(&Tensor::new(rows, tap.device())?, 0)?)
        })
        .collect()
}
