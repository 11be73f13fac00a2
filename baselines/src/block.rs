//! A trunk and the head that chooses tokens from what it says: the drafter of DFlash, DSpark, Domino and DCOCO.

use std::fmt;

use candle_core::Tensor;
use decode::{
    Anchor, Committed, Drafter, LayerId, Phase, Probe, Proposal, Result, Sampling, Slot, TokenId,
    TokenIo,
};
use models::Weights;

use crate::Load;
use crate::trunk::{Drafted, HeadFields, Trunk, TrunkConfig};

/// What one method puts on top of the shared trunk.
pub(crate) trait BlockHead: fmt::Debug + Sized {
    /// What the config says about it.
    type Config;

    /// Reads the head's keys.
    ///
    /// # Errors
    /// If one is missing, unknown, of the wrong type or not supported.
    fn config(fields: HeadFields<'_>) -> crate::Result<Self::Config>;

    /// Takes the head's tensors and reads the options of `load`.
    ///
    /// # Errors
    /// If a tensor or an option does not fit.
    fn load(
        config: Self::Config,
        trunk: &TrunkConfig,
        weights: &mut Weights,
        load: &Load<'_>,
    ) -> crate::Result<Self>;

    /// Whether its proposals carry confidences.
    fn rates_drafts(&self) -> bool {
        false
    }

    /// One proposal a row, each of up to `block.gamma` drafts.
    ///
    /// # Errors
    /// If a tensor operation fails.
    fn propose(
        &mut self,
        block: &Drafted<'_>,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
    ) -> Result<Vec<Proposal>>;
}

/// A trunk with a head.
#[derive(Debug)]
pub struct BlockDrafter<H> {
    trunk: Trunk,
    head: H,
    /// Drafts a round, at most what the block yields.
    gamma: usize,
}

/// Loads the checkpoint of `load` and checks that it fits the target.
pub(crate) fn load_block<H: BlockHead>(
    load: &Load<'_>,
    method: &'static str,
) -> crate::Result<BlockDrafter<H>> {
    let source = load.files(method)?;
    let (config, head) = TrunkConfig::load_with(source, H::config)?;
    let mut weights = Weights::open(source)?.kept_as(load.precision);
    let head = H::load(head, &config, &mut weights, load)?;
    let gamma = load.gamma(config.gamma())?;
    let trunk = Trunk::load(load, source, config, &mut weights)?;
    weights.finish()?;
    Ok(BlockDrafter { trunk, head, gamma })
}

impl<H> BlockDrafter<H> {
    /// Builds the drafter from its parts.
    pub(crate) fn of(trunk: Trunk, head: H) -> Self {
        let gamma = trunk.config().gamma();
        Self { trunk, head, gamma }
    }

    /// Context keys and values, for tests that rebuild them.
    pub fn cache(&self) -> &models::SlotCache {
        self.trunk.cache()
    }

    /// What turns the trunk's states into tokens.
    pub fn head(&self) -> &H {
        &self.head
    }

    /// Target ids that stand behind the V_d columns of its logits, rising; `None` if the two are the same.
    pub fn target_ids(&self) -> Option<&[TokenId]> {
        self.trunk.vocab().ids()
    }

    /// Final-normed hidden states `[R * gamma, H]` and logits `[R * gamma, V_d]` of the draft slots.
    ///
    /// # Errors
    /// If a tensor operation fails.
    pub fn draft(&mut self, rows: &[Anchor<'_>], io: &dyn TokenIo) -> Result<(Tensor, Tensor)> {
        let drafted = self.trunk.draft(rows, self.gamma, io)?;
        Ok((drafted.hidden, drafted.logits))
    }
}

impl<H: BlockHead> Drafter for BlockDrafter<H> {
    fn taps(&self) -> &[LayerId] {
        &self.trunk.config().taps
    }

    fn max_draft(&self) -> usize {
        self.gamma
    }

    fn rates_drafts(&self) -> bool {
        self.head.rates_drafts()
    }

    fn start(&mut self, prompt: Committed<'_>) -> Result<()> {
        self.trunk.extend(&[prompt])
    }

    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
        probe: &mut dyn Probe,
    ) -> Result<Vec<Proposal>> {
        let drafted = self.trunk.draft(rows, self.gamma, io)?;
        probe.enter(Phase::Head, rows.len());
        let proposals = self.head.propose(&drafted, rows, io, sampling)?;
        probe.leave(Phase::Head);
        Ok(proposals)
    }

    fn commit(&mut self, rows: Vec<Committed<'_>>) -> Result<()> {
        self.trunk.extend(&rows)
    }

    fn finish(&mut self, slot: Slot) {
        self.trunk.finish(slot);
    }
}
