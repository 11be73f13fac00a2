//! What the decode tests share.
#![allow(dead_code, reason = "each test file uses its part")]

use decode::toy::{ToyDrafter, ToyLaw, ToyTarget};
use decode::{Anchor, Committed, Proposal};
use decode::{
    Drafter, Generation, LayerId, Parts, Request, Result, Sampling, Scheduler, Settings, Silent,
    Slot, StepCost, TokenIo, VerifyAll, decode,
};

pub(crate) const SAMPLED: Sampling = Sampling::at(1000);

/// Proposes nothing: the loop is vanilla.
pub(crate) struct NoDraft;

impl Drafter for NoDraft {
    fn taps(&self) -> &[LayerId] {
        &[]
    }
    fn max_draft(&self) -> usize {
        0
    }
    fn start(&mut self, _: Committed<'_>) -> Result<()> {
        Ok(())
    }
    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        _: &dyn TokenIo,
        _: Sampling,
        _: &mut dyn decode::Probe,
    ) -> Result<Vec<Proposal>> {
        Ok(rows.iter().map(|_| Proposal::none()).collect())
    }
    fn commit(&mut self, _: Vec<Committed<'_>>) -> Result<()> {
        Ok(())
    }
    fn finish(&mut self, _: Slot) {}
}

pub(crate) fn settings(slots: usize, sampling: Sampling, seed: u64) -> Settings {
    Settings {
        slots,
        sampling,
        seed,
        cost: StepCost::flat(),
    }
}

pub(crate) fn chain(vocab: usize, law: ToyLaw) -> ToyDrafter {
    ToyDrafter {
        vocab,
        gamma: 3,
        width: 1,
        law,
        confident: false,
    }
}

/// Every proposal kind: name and drafter.
pub(crate) fn kinds(vocab: usize) -> Vec<(&'static str, ToyDrafter)> {
    let tree = |law| ToyDrafter {
        vocab,
        gamma: 2,
        width: 2,
        law,
        confident: false,
    };
    vec![
        ("chain, point", chain(vocab, ToyLaw::Point)),
        ("chain, full", chain(vocab, ToyLaw::Full)),
        ("chain, top-3", chain(vocab, ToyLaw::TopK(3))),
        ("tree, point", tree(ToyLaw::Point)),
        ("tree, full", tree(ToyLaw::Full)),
        ("tree, top-3", tree(ToyLaw::TopK(3))),
    ]
}

pub(crate) fn run_on(
    target: &mut ToyTarget,
    drafter: &mut dyn Drafter,
    requests: Vec<Request>,
    settings: &Settings,
) -> Vec<Generation> {
    run_cut(target, drafter, &mut VerifyAll, requests, settings)
}

pub(crate) fn run_cut(
    target: &mut ToyTarget,
    drafter: &mut dyn Drafter,
    scheduler: &mut dyn Scheduler,
    requests: Vec<Request>,
    settings: &Settings,
) -> Vec<Generation> {
    let probe = &mut Silent;
    let parts = Parts {
        target,
        drafter,
        scheduler,
        probe,
    };
    let mut out = decode(parts, requests, settings).expect("valid toy requests");
    out.sort_by_key(|g| g.id);
    out
}

/// Forty different prompts of one to five tokens.
pub(crate) fn prompts(vocab: u32, max_new: usize) -> Vec<Request> {
    (0..40u64)
        .map(|id| Request {
            id,
            prompt: (0..=id % 5)
                .map(|i| (id * 7 + i * 3) as u32 % vocab)
                .collect(),
            max_new,
        })
        .collect()
}
