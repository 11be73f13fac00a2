//! The vocabulary of speculative decoding, the one decode loop and the acceptance rule.
//!
//! A [`Target`] is the model whose text must not change; a [`Drafter`] guesses tokens; [`judge`] decides which
//! guesses survive; a [`Scheduler`] decides how many are worth verifying; [`decode`] runs them over a fixed
//! number of slots with continuous batching. Nothing here reads a clock, a file or the network: a [`Probe`] is
//! told what happens and measures what it likes.

mod accept;
mod arrivals;
mod drafter;
mod error;
mod looping;
mod probe;
mod sampling;
mod schedule;
mod schedulers;
mod target;
pub mod toy;

pub use accept::{Verdict, judge};
pub use arrivals::Arrivals;
pub use drafter::{Anchor, Committed, DraftLaw, Drafter, Proposal};
pub use error::{Error, Result};
pub use looping::{
    Ended, Generation, Parts, Request, RequestId, Round, Settings, decode, decode_arriving,
};
pub use probe::{Phase, Probe, Silent};
pub use sampling::{Draws, Law, Sampling, laws};
pub use schedule::{Scheduler, StepCost, VerifyAll, survival};
pub use schedulers::{Adaptive, LaggedCapacity, Threshold};
pub use target::{Feed, Forward, Keep, LayerId, Slot, Target, TokenId, TokenIo};
