//! DSpark: the shifted DFlash trunk, a Markov head that corrects each slot by the token drafted before it, and a head
//! that says how likely each slot is to be accepted.
//!
//! Source: arXiv 2607.05147 and its released checkpoints (`Qwen3DSparkModel`). Drafts are drawn from the corrected law
//! at the target's temperature, so the draft law is full; greedy drafts are argmax.

mod config;
mod markov;

use candle_core::{D, Tensor};
use decode::{Anchor, Proposal, Result, Sampling, TokenId, TokenIo, laws};
use models::Weights;

use crate::block::{BlockDrafter, BlockHead, load_block};
use crate::draft_vocab::Drafts;
use crate::trunk::{Drafted, HeadFields, TrunkConfig};
use crate::{Load, Method};
pub use config::MarkovKind;
pub(crate) use config::{
    CALIBRATION_OPTION, ConfidenceInput, HeadConfig, has_calibration, refuse_calibration,
    temperatures,
};
use markov::Markov;
pub use markov::MarkovShape;

pub(crate) const METHOD: Method = Method {
    id: "dspark",
    title: "DSpark",
    checkpoint: Some("dspark"),
    options: &[CALIBRATION_OPTION],
    load: |load| Ok(Box::new(DSpark::load(load)?)),
};

/// The trunk with the sequential head.
pub type DSpark = BlockDrafter<Sequential>;

/// Corrects the slots of a block from left to right and rates them.
#[derive(Debug)]
pub struct Sequential {
    markov: Markov,
    confidence: Option<Confidence>,
}

/// `sigmoid((w . [h ; e] + b) / T)` of each slot; e is the embedding of the token before it.
#[derive(Debug)]
struct Confidence {
    input: ConfidenceInput,
    /// `[1, H + rank]`, or `[1, H]`.
    weight: Tensor,
    bias: f32,
    /// One for each slot of a block.
    temperatures: Vec<f32>,
}

/// What the head says about R blocks.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Tokens of each row, gamma of them.
    pub tokens: Vec<Vec<TokenId>>,
    /// Logits before temperature scaling that tell how likely each slot is accepted, a list a row; `None` without a
    /// confidence head.
    pub confidence_logits: Option<Vec<Vec<f32>>>,
}

impl DSpark {
    /// Loads a checkpoint and checks that it fits the target.
    ///
    /// # Errors
    /// If files are missing or wrong, or made for another target, or an option or `max_draft` is out of range.
    pub fn load(load: &Load<'_>) -> crate::Result<Self> {
        load_block(load, METHOD.id)
    }
}

impl BlockHead for Sequential {
    type Config = HeadConfig;

    fn config(fields: HeadFields<'_>) -> crate::Result<HeadConfig> {
        HeadConfig::read(fields)
    }

    fn load(
        config: HeadConfig,
        trunk: &TrunkConfig,
        weights: &mut Weights,
        load: &Load<'_>,
    ) -> crate::Result<Self> {
        let shape = MarkovShape {
            kind: config.kind,
            rank: config.rank,
            hidden: trunk.hidden,
            vocab: trunk.vocab,
            draft_vocab: trunk.draft_vocab,
        };
        let markov = Markov::load(shape, weights)?;
        let source = load.files(METHOD.id)?;
        let confidence = match config.confidence {
            None => {
                refuse_calibration(source)?;
                None
            }
            Some(input) => {
                let width = match input {
                    ConfidenceInput::Hidden => trunk.hidden,
                    ConfidenceInput::HiddenAndMarkov => trunk.hidden + config.rank,
                };
                let weight = weights.take("confidence_head.proj.weight", &[1, width])?;
                let bias = weights.take("confidence_head.proj.bias", &[1])?;
                Some(Confidence {
                    input,
                    weight,
                    bias: bias.get(0)?.to_scalar()?,
                    temperatures: temperatures(source, load.options, trunk.gamma())?,
                })
            }
        };
        Ok(Self { markov, confidence })
    }

    fn rates_drafts(&self) -> bool {
        self.confidence.is_some()
    }

    fn propose(
        &mut self,
        block: &Drafted<'_>,
        rows: &mut [Anchor<'_>],
        _io: &dyn TokenIo,
        sampling: Sampling,
    ) -> Result<Vec<Proposal>> {
        let anchors: Vec<TokenId> = rows.iter().map(|row| row.token).collect();
        let mut drafts: Vec<Drafts> = rows.iter().map(|_| Drafts::default()).collect();
        let sequence = self.run(&block.hidden, &block.logits, &anchors, |logits| {
            let laws = laws(logits, sampling)?.into_iter();
            let rows = rows.iter_mut().zip(&mut drafts);
            Ok(laws
                .zip(rows)
                .map(|(law, (row, drafts))| drafts.draw(law, row.draws, block.vocab))
                .collect())
        })?;
        let mut confidence = sequence
            .confidence_logits
            .map(|logits| self.scaled(logits).into_iter());
        let drafts = drafts.into_iter();
        drafts
            .map(|drafts| {
                Ok(Proposal {
                    confidence: confidence.as_mut().and_then(Iterator::next),
                    ..drafts.proposal(block.vocab)?
                })
            })
            .collect()
    }
}

impl Sequential {
    /// A Markov head that rates nothing, from tensors under the names of the released drafters.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape.
    pub fn unrated(shape: MarkovShape, weights: &mut Weights) -> crate::Result<Self> {
        Ok(Self {
            markov: Markov::load(shape, weights)?,
            confidence: None,
        })
    }

    /// Walks the slots of R blocks: `choose` is given `[R, V_d]` corrected logits of one slot after another and names a
    /// token for each row, by its target id.
    ///
    /// `hidden`: `[R * gamma, H]`, `logits`: `[R * gamma, V_d]`, from [`BlockDrafter::draft`]; `anchors`: R tokens.
    ///
    /// # Errors
    /// If a tensor operation or `choose` fails.
    pub fn run(
        &self,
        hidden: &Tensor,
        logits: &Tensor,
        anchors: &[TokenId],
        mut choose: impl FnMut(&Tensor) -> Result<Vec<TokenId>>,
    ) -> Result<Sequence> {
        let n_rows = anchors.len();
        let (n_slots, width) = hidden.dims2()?;
        let gamma = n_slots / n_rows.max(1);
        let slots = hidden.reshape((n_rows, gamma, width))?;
        let base = logits.reshape((n_rows, gamma, logits.dim(1)?))?;
        // [R, gamma, ..] -> [R, ..]
        let of_slot = |t: &Tensor, slot| t.narrow(1, slot, 1)?.squeeze(1)?.contiguous();
        let mut before = anchors.to_vec();
        let mut state = self.markov.start(n_rows)?;
        let mut tokens = vec![Vec::with_capacity(gamma); n_rows];
        let mut features = Vec::with_capacity(gamma);
        for slot in 0..gamma {
            let hidden = of_slot(&slots, slot)?;
            let embedded = self.markov.embed(&before)?;
            let bias = self.markov.bias(&embedded, &hidden, &mut state)?;
            before = choose(&(of_slot(&base, slot)? + bias)?)?;
            for (row, token) in tokens.iter_mut().zip(&before) {
                row.push(*token);
            }
            if let Some(confidence) = &self.confidence {
                features.push(confidence.logits(&hidden, &embedded)?);
            }
        }
        let by_row = |row| features.iter().map(|slot| slot[row]).collect();
        let rated = self.confidence.is_some();
        let confidence_logits = rated.then(|| (0..n_rows).map(by_row).collect());
        Ok(Sequence {
            tokens,
            confidence_logits,
        })
    }

    /// Confidences after each slot's temperature.
    fn scaled(&self, logits: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let temperatures = self.confidence.as_ref().map(|c| c.temperatures.as_slice());
        let scaled = |row: Vec<f32>| {
            let slots = row.into_iter().zip(temperatures.unwrap_or_default());
            slots.map(|(logit, t)| sigmoid(logit / t)).collect()
        };
        logits.into_iter().map(scaled).collect()
    }
}

impl Confidence {
    /// One logit a row, from `[R, H]` and `[R, rank]`. It sees the token before the slot, not the slot's own.
    fn logits(&self, hidden: &Tensor, embedded: &Tensor) -> Result<Vec<f32>> {
        let x = match self.input {
            ConfidenceInput::Hidden => hidden.clone(),
            ConfidenceInput::HiddenAndMarkov => Tensor::cat(&[hidden, embedded], D::Minus1)?,
        };
        let logits = kernels::linear(&x, &self.weight)?.flatten_all()?;
        let logits = logits.to_vec1::<f32>()?;
        Ok(logits.into_iter().map(|l| l + self.bias).collect())
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
