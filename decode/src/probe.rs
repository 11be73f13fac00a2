use crate::drafter::Proposal;
use crate::looping::{Generation, RequestId, Round};
use crate::target::TokenId;

/// The parts of a round, in order; `Prefill` and `Start` happen when a request enters a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The target reads a prompt.
    Prefill,
    /// The drafter takes over the prompt's taps.
    Start,
    /// The drafter proposes.
    Draft,
    /// Inside `Draft`: what chooses tokens once the drafter's trunk has run. Entered and left by the drafter.
    Head,
    /// The scheduler cuts.
    Schedule,
    /// The target's verify pass.
    Verify,
    /// Acceptance.
    Judge,
    /// Roll-back and hand-over to the drafter.
    Commit,
}

/// Is told what the loop does; reads the clock if it wants to. Phases nest: `Head` lies inside `Draft`.
pub trait Probe {
    /// A phase begins; `rows` sequences take part.
    fn enter(&mut self, _phase: Phase, _rows: usize) {}
    /// The phase ends.
    fn leave(&mut self, _phase: Phase) {}
    /// A request entered a slot and is about to be prefilled.
    fn admitted(&mut self, _id: RequestId) {}
    /// Prefill gave the first token.
    fn first_token(&mut self, _id: RequestId, _token: TokenId) {}
    /// The drafter proposed this; the scheduler has not cut it yet.
    fn proposed(&mut self, _id: RequestId, _proposal: &Proposal) {}
    /// A round committed these tokens, accepted drafts first.
    fn round(&mut self, _id: RequestId, _round: &Round, _committed: &[TokenId]) {}
    /// The answer is complete.
    fn finished(&mut self, _generation: &Generation) {}
}

/// Listens to nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Probe for Silent {}
