//! DFlash: all draft tokens of a block in one pass, each the argmax of its slot.
//!
//! Source: arXiv 2602.06036. Drafts are argmax also when the target samples, as in the release behind the paper's
//! tables, so the draft law is a point.

use decode::{Anchor, Proposal, Result, Sampling, TokenIo};
use models::Weights;

use crate::block::{BlockDrafter, BlockHead, load_block};
use crate::trunk::{Drafted, HeadFields, Trunk, TrunkConfig, no_head};
use crate::{Load, Method};

pub(crate) const METHOD: Method = Method {
    id: "dflash",
    title: "DFlash",
    checkpoint: Some("dflash"),
    options: &[],
    load: |load| Ok(Box::new(DFlash::load(load)?)),
};

/// The trunk with the target's head.
pub type DFlash = BlockDrafter<Argmax>;

/// Takes the first choice of every slot.
#[derive(Clone, Copy, Debug)]
pub struct Argmax;

impl DFlash {
    /// Loads a checkpoint and checks that it fits the target.
    ///
    /// # Errors
    /// If files are missing or wrong, or made for another target, or `max_draft` exceeds the block.
    pub fn load(load: &Load<'_>) -> crate::Result<Self> {
        load_block(load, METHOD.id)
    }

    /// Builds the drafter from its parts; `capacity` counts committed positions.
    ///
    /// # Errors
    /// If a tensor is missing, left over or of another shape.
    pub fn new(
        config: TrunkConfig,
        mut weights: Weights,
        slots: usize,
        capacity: usize,
    ) -> crate::Result<Self> {
        let trunk = Trunk::new(config, &mut weights, slots, capacity)?;
        weights.finish()?;
        Ok(Self::of(trunk, Argmax))
    }
}

impl BlockHead for Argmax {
    type Config = ();

    fn config(fields: HeadFields<'_>) -> crate::Result<()> {
        no_head(fields)
    }

    fn load(
        (): (),
        _trunk: &TrunkConfig,
        _weights: &mut Weights,
        _load: &Load<'_>,
    ) -> crate::Result<Self> {
        Ok(Self)
    }

    fn propose(
        &mut self,
        block: &Drafted<'_>,
        _rows: &mut [Anchor<'_>],
        _io: &dyn TokenIo,
        _sampling: Sampling,
    ) -> Result<Vec<Proposal>> {
        let best = kernels::argmax_rows(&block.logits)?.to_vec1::<u32>()?;
        let best = block.vocab.rename(best);
        let chains = best.chunks(block.gamma);
        Ok(chains
            .map(|chain| Proposal::chain(chain.to_vec()))
            .collect())
    }
}
