//! DFlash: all draft tokens of a block in one pass, each the argmax of its slot.
//!
//! Source: arXiv 2602.06036. Drafts are argmax also when the target samples, as in the release behind the paper's
//! tables, so the draft law is a point.

use decode::{Anchor, Committed, Drafter, LayerId, Proposal, Result, Sampling, Slot, TokenIo};
use models::{Source, Weights};

use crate::trunk::{Trunk, TrunkConfig};
use crate::{Load, Method};

pub(crate) const METHOD: Method = Method {
    id: "dflash",
    title: "DFlash",
    checkpoint: Some("dflash"),
    load: |load| Ok(Box::new(DFlash::load(load)?)),
};

/// The trunk with the target's head.
#[derive(Debug)]
pub struct DFlash {
    trunk: Trunk,
    /// Drafts handed on, at most what the block yields.
    gamma: usize,
}

impl DFlash {
    /// Loads a checkpoint and checks that it fits the target.
    ///
    /// # Errors
    /// If files are missing or wrong, or made for another target, or `max_draft` exceeds the block.
    pub fn load(load: &Load<'_>) -> crate::Result<Self> {
        let source: &Source = load.files(METHOD.id)?;
        let trunk = Trunk::load(load, source)?;
        let gamma = load.gamma(trunk.config().gamma())?;
        Ok(Self { trunk, gamma })
    }

    /// Builds the drafter from its parts; `capacity` counts committed positions.
    ///
    /// # Errors
    /// If a tensor is missing, left over or of another shape.
    pub fn new(
        config: TrunkConfig,
        weights: Weights,
        slots: usize,
        capacity: usize,
    ) -> crate::Result<Self> {
        let gamma = config.gamma();
        let trunk = Trunk::new(config, weights, slots, capacity)?;
        Ok(Self { trunk, gamma })
    }

    /// Context keys and values, for tests that rebuild them.
    pub fn cache(&self) -> &models::SlotCache {
        self.trunk.cache()
    }

    /// Final-normed hidden states `[R * gamma, H]` and logits `[R * gamma, V]` of the draft slots.
    ///
    /// # Errors
    /// If a tensor operation fails.
    pub fn draft(
        &mut self,
        rows: &[Anchor<'_>],
        io: &dyn TokenIo,
    ) -> Result<(candle_core::Tensor, candle_core::Tensor)> {
        let drafted = self.trunk.draft(rows, io)?;
        Ok((drafted.hidden, drafted.logits))
    }
}

impl Drafter for DFlash {
    fn taps(&self) -> &[LayerId] {
        &self.trunk.config().taps
    }

    fn max_draft(&self) -> usize {
        self.gamma
    }

    fn start(&mut self, prompt: Committed<'_>) -> Result<()> {
        self.trunk.extend(&[prompt])
    }

    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        _sampling: Sampling,
    ) -> Result<Vec<Proposal>> {
        let drafted = self.trunk.draft(rows, io)?;
        let best = kernels::argmax_rows(&drafted.logits)?.to_vec1::<u32>()?;
        let blocks = best.chunks(self.trunk.config().gamma());
        Ok(blocks
            .map(|block| Proposal::chain(block[..self.gamma].to_vec()))
            .collect())
    }

    fn commit(&mut self, rows: Vec<Committed<'_>>) -> Result<()> {
        self.trunk.extend(&rows)
    }

    fn finish(&mut self, slot: Slot) {
        self.trunk.finish(slot);
    }
}
