//! No drafter: the target alone, one token a step. Every speedup is against this.

use decode::{
    Anchor, Committed, Drafter, LayerId, Probe, Proposal, Result, Sampling, Slot, TokenIo,
};

use crate::Method;

pub(crate) const METHOD: Method = Method {
    id: "vanilla",
    title: "vanilla",
    checkpoint: None,
    options: &[],
    load: |_| Ok(Box::new(Vanilla)),
};

/// Proposes nothing (gamma 0).
#[derive(Clone, Copy, Debug)]
pub struct Vanilla;

impl Drafter for Vanilla {
    fn taps(&self) -> &[LayerId] {
        &[]
    }

    fn max_draft(&self) -> usize {
        0
    }

    fn start(&mut self, _prompt: Committed<'_>) -> Result<()> {
        Ok(())
    }

    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        _io: &dyn TokenIo,
        _sampling: Sampling,
        _probe: &mut dyn Probe,
    ) -> Result<Vec<Proposal>> {
        Ok(rows.iter().map(|_| Proposal::none()).collect())
    }

    fn commit(&mut self, _rows: Vec<Committed<'_>>) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self, _slot: Slot) {}
}
