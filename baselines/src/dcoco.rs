//! DCOCO (reimplementation): the trunk's best K tokens of every slot, all pairs of neighbours scored in one batched pass,
//! and a walk that follows the prefix without another network call.
//!
//! Source: "Contextual Correction of Parallel Drafts for Speculative Decoding" as far as it is public: the model cards
//! (architecture name, widths, K, parameter counts) and descriptions of the method. Formulas, tensor names, config keys
//! and the law of sampled drafts are ours, so no figure of it is the authors'.
//!
//! Keys in `dflash_config`: `projector_type` "dcoco"; `corrector_candidates` (K, 16 if absent);
//! `corrector_candidate_width`, `corrector_pair_width` and `corrector_hidden_width` of the network;
//! `corrector_channels` ("all", or what it was trained without); `enable_confidence_head`.

mod corrector;
mod lattice;
mod layout;

use std::str::FromStr;

use candle_core::{Device, Tensor};
use decode::{Anchor, DraftLaw, Proposal, Sampling, TokenIo};
use models::Weights;
use serde_json::json;

use crate::block::{BlockDrafter, BlockHead, load_block};
use crate::dspark;
use crate::trunk::{Drafted, HeadFields, TrunkConfig};
use crate::{Error, Load, Method, Options};
pub use corrector::{Candidates, Channels, Corrector, Inputs, Seen};
pub use lattice::{DrawnChain, Lattice};
pub use layout::{CorrectorSizes, Layout};

pub(crate) const METHOD: Method = Method {
    id: "dcoco",
    title: "DCOCO (reimplementation)",
    checkpoint: Some("dcoco"),
    options: &[
        (
            "k",
            "candidates a slot, 1 to 32, instead of the checkpoint's",
        ),
        (
            "select",
            "the greedy chain: walk, global_sum, global_logprob, or first, which is DFlash's",
        ),
        (
            "proposal",
            "what sampled drafts are drawn from: walk, lattice, or point, which draws nothing",
        ),
        (
            "pairs",
            "all in one pass, or visited: only the rows that the walk comes by, which gives the same drafts",
        ),
        (
            "channels",
            "what the corrector sees: all, no_pair_state or no_candidate",
        ),
        dspark::CALIBRATION_OPTION,
    ],
    load: |load| Ok(Box::new(Dcoco::load(load)?)),
};

/// The trunk with a corrector.
pub type Dcoco = BlockDrafter<DcocoHead>;

impl Dcoco {
    /// Loads a checkpoint and checks that it fits the target.
    ///
    /// # Errors
    /// If files are missing or wrong, or made for another target, or an option is out of range.
    pub fn load(load: &Load<'_>) -> crate::Result<Self> {
        load_block(load, METHOD.id)
    }
}

/// Most candidates a slot may have.
const MOST_CANDIDATES: usize = 32;
/// Candidates of the released checkpoints.
const CANDIDATES: usize = 16;

/// What a config says about a corrector.
#[derive(Clone, Debug)]
pub struct DcocoConfig {
    /// Name of the config file, for errors.
    pub file: String,
    /// Candidates a slot.
    pub candidates: usize,
    /// Width of a candidate's vector.
    pub candidate_width: usize,
    /// Width of a pair state.
    pub pair_width: usize,
    /// Hidden units of the scoring network.
    pub hidden_width: usize,
    /// What it was trained to see.
    pub channels: Channels,
    /// Whether there is a confidence head.
    pub has_confidence: bool,
}

/// Which chain is taken without sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// Left to right, the best successor of each choice: the method.
    Walk,
    /// The best sum of scores over the whole chain.
    GlobalSum,
    /// The same with every row of scores normalised.
    GlobalLogprob,
    /// Each slot's first choice: DFlash.
    First,
}

impl FromStr for Select {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "walk" => Ok(Self::Walk),
            "global_sum" => Ok(Self::GlobalSum),
            "global_logprob" => Ok(Self::GlobalLogprob),
            "first" => Ok(Self::First),
            _ => Err(()),
        }
    }
}

/// What drafts are drawn from when the target samples. All three keep the target's law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// Each slot from the softmax of its row of scores, slot 1 from that of the log-probabilities.
    Walk,
    /// The whole chain from the softmax over the sums of scores.
    Lattice,
    /// Nothing is drawn: the greedy chain, reported as certain.
    Point,
}

impl FromStr for Draw {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "walk" => Ok(Self::Walk),
            "lattice" => Ok(Self::Lattice),
            "point" => Ok(Self::Point),
            _ => Err(()),
        }
    }
}

/// Which pairs are scored. Drafts do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// All (gamma - 1) K x K in one batched pass: the method.
    All,
    /// The (gamma - 1) K that follow the walk's own choices: a sixteenth of the work, one slot after the other.
    Visited,
}

impl FromStr for Pairs {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "all" => Ok(Self::All),
            "visited" => Ok(Self::Visited),
            _ => Err(()),
        }
    }
}

/// How a chain is chosen from a block's scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Candidates a slot, K.
    pub k: usize,
    /// The greedy chain.
    pub select: Select,
    /// The law of sampled drafts.
    pub draw: Draw,
    /// What is scored.
    pub pairs: Pairs,
}

impl Choice {
    /// Reads `k`, `select`, `proposal` and `pairs`; `k` is the checkpoint's.
    ///
    /// # Errors
    /// [`Error::Option`] if a value is unknown or out of range, or two exclude each other.
    pub fn read(options: &Options, k: usize, vocab: usize) -> crate::Result<Self> {
        let most = MOST_CANDIDATES.min(vocab);
        let range = format!("a number, 1 to {most}");
        let k = match options.get::<usize>("k", &range)? {
            Some(k) if k == 0 || k > most => {
                return Err(options.bad(&format!("k={k}"), &format!("must be {range}")));
            }
            given => given.unwrap_or(k),
        };
        let chains = "walk, global_sum, global_logprob or first";
        let select = options.get("select", chains)?.unwrap_or(Select::Walk);
        let own = match select {
            Select::Walk => Draw::Walk,
            _ => Draw::Point,
        };
        let draw: Option<Draw> = options.get("proposal", "walk, lattice or point")?;
        let draw = draw.unwrap_or(own);
        let is_fit = match draw {
            Draw::Point => true,
            Draw::Walk => select == Select::Walk,
            Draw::Lattice => matches!(select, Select::Walk | Select::GlobalSum),
        };
        if !is_fit {
            let why = "walk goes with select=walk alone, lattice with walk or global_sum; use proposal=point";
            return Err(options.bad("proposal", why));
        }
        let pairs = options
            .get("pairs", "all or visited")?
            .unwrap_or(Pairs::All);
        if pairs == Pairs::Visited && (select != Select::Walk || draw == Draw::Lattice) {
            let why = "needs a walk; leave out select, and proposal=lattice";
            return Err(options.bad("pairs=visited", why));
        }
        Ok(Self {
            k,
            select,
            draw,
            pairs,
        })
    }

    /// The walk of a block whose rows are scored when it comes by.
    fn visit(
        self,
        inputs: &Inputs<'_>,
        block: usize,
        sampling: Sampling,
        row: &mut Anchor<'_>,
    ) -> DrawnChain {
        let scores = |slot, before| inputs.row(block, slot, before);
        let gamma = inputs.gamma();
        match (sampling.temperature(), self.draw) {
            (Some(temperature), Draw::Walk) => {
                lattice::draw_visit(gamma, scores, temperature, row.draws)
            }
            _ => DrawnChain {
                ranks: lattice::visit(gamma, scores),
                probs: Vec::new(),
            },
        }
    }

    /// The chain of candidates and what it was drawn from.
    fn chain(self, lattice: &Lattice<'_>, sampling: Sampling, row: &mut Anchor<'_>) -> DrawnChain {
        if let Some(temperature) = sampling.temperature() {
            match self.draw {
                Draw::Walk => return lattice.draw_walk(temperature, row.draws),
                Draw::Lattice => return lattice.draw_global(temperature, row.draws),
                Draw::Point => {}
            }
        }
        let ranks = match self.select {
            Select::Walk => lattice.walk(),
            Select::GlobalSum => lattice.global_sum(),
            Select::GlobalLogprob => lattice.global_logprob(),
            Select::First => vec![0; lattice.gamma()],
        };
        let probs = Vec::new();
        DrawnChain { ranks, probs }
    }
}

/// Corrector, choice and confidences.
#[derive(Debug)]
pub struct DcocoHead {
    corrector: Corrector,
    choice: Choice,
    confidence: Option<Confidence>,
}

/// Chance that a slot is accepted given that those before it were, from the slot's state alone, so that it cannot
/// depend on any draft token.
///
/// Source: DSpark's confidence head without Markov features, names and shapes included; not part of DCOCO.
#[derive(Debug)]
struct Confidence {
    /// `[1, H]`.
    weight: Tensor,
    bias: f32,
    /// One for each slot of a block; none means 1.
    temperatures: Vec<f32>,
}

impl Confidence {
    fn take(weights: &mut Weights, hidden: usize) -> crate::Result<Self> {
        Ok(Self {
            weight: weights.take("confidence_head.proj.weight", &[1, hidden])?,
            bias: weights
                .take("confidence_head.proj.bias", &[1])?
                .to_vec1::<f32>()?[0],
            temperatures: Vec::new(),
        })
    }

    /// `[R * gamma, H]` to R * gamma chances.
    fn of(&self, hidden: &Tensor, gamma: usize) -> candle_core::Result<Vec<f32>> {
        let logits = kernels::linear(hidden, &self.weight)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        let chance = |(i, x): (usize, f32)| {
            let temperature = self.temperatures.get(i % gamma).copied().unwrap_or(1.0);
            1.0 / (1.0 + (-(x + self.bias) / temperature).exp())
        };
        Ok(logits.into_iter().enumerate().map(chance).collect())
    }
}

impl DcocoHead {
    /// Takes the head's tensors for a target of width `hidden`, `vocab` of whose tokens can be drafted.
    ///
    /// # Errors
    /// If the tensors fit no layout or an option is out of range.
    pub fn new(
        config: &DcocoConfig,
        (hidden, vocab): (usize, usize),
        weights: &mut Weights,
        options: &Options,
    ) -> crate::Result<Self> {
        if config.candidates > vocab {
            let why = format!(
                "corrector_candidates {} exceed the {vocab} tokens that can be drafted",
                config.candidates
            );
            let file = config.file.clone();
            return Err(Error::Config { file, why });
        }
        let sizes = CorrectorSizes {
            hidden,
            candidate: config.candidate_width,
            pair: config.pair_width,
            units: config.hidden_width,
        };
        let choice = Choice::read(options, config.candidates, vocab)?;
        let asked = options.get("channels", "all, no_pair_state or no_candidate")?;
        let channels = config.channels.and(asked.unwrap_or(Channels::ALL));
        let corrector = Corrector::new(sizes, channels, weights, &config.file)?;
        let confidence = match config.has_confidence {
            true => Some(Confidence::take(weights, hidden)?),
            false => None,
        };
        Ok(Self {
            corrector,
            choice,
            confidence,
        })
    }

    /// The scoring network.
    pub fn corrector(&mut self) -> &mut Corrector {
        &mut self.corrector
    }

    /// One proposal a row from what the trunk says of the whole vocabulary: `hidden` `[R * gamma, H]`, `logits`
    /// `[R * gamma, V]`, both f32.
    ///
    /// # Errors
    /// If shapes do not fit or a logit is NaN.
    pub fn propose(
        &mut self,
        (hidden, logits): (&Tensor, &Tensor),
        gamma: usize,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
    ) -> decode::Result<Vec<Proposal>> {
        let candidates = Candidates::of(logits, self.choice.k)?;
        self.choose(hidden, &candidates, gamma, rows, io, sampling)
    }

    /// One proposal a row, each token one of the slot's candidates.
    fn choose(
        &mut self,
        hidden: &Tensor,
        candidates: &Candidates,
        gamma: usize,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
    ) -> decode::Result<Vec<Proposal>> {
        let confidence = match &self.confidence {
            Some(head) => Some(head.of(hidden, gamma)?),
            None => None,
        };
        let chains = self.chains(hidden, candidates, gamma, rows, io, sampling)?;
        let (k, mut proposals) = (self.choice.k, Vec::with_capacity(rows.len()));
        for (i, chain) in chains.into_iter().enumerate() {
            let ids = &candidates.ids[i * gamma * k..][..gamma * k];
            let chosen = ids.chunks_exact(k).zip(&chain.ranks);
            let law = match chain.probs.is_empty() {
                true => DraftLaw::Point,
                false => DraftLaw::TopK {
                    ids: Tensor::from_slice(ids, (gamma, k), &Device::Cpu)?,
                    probs: Tensor::from_vec(chain.probs, (gamma, k), &Device::Cpu)?,
                },
            };
            proposals.push(Proposal {
                tokens: chosen.map(|(ids, rank)| ids[*rank]).collect(),
                parents: None,
                law,
                confidence: confidence
                    .as_ref()
                    .map(|c| c[i * gamma..(i + 1) * gamma].to_vec()),
            });
        }
        Ok(proposals)
    }

    /// The chosen candidates of every row.
    fn chains(
        &mut self,
        hidden: &Tensor,
        candidates: &Candidates,
        gamma: usize,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
    ) -> decode::Result<Vec<DrawnChain>> {
        let choice = self.choice;
        let rows = rows.iter_mut().enumerate();
        if choice.pairs == Pairs::Visited {
            let inputs = self.corrector.inputs(hidden, candidates, gamma, io)?;
            return Ok(rows
                .map(|(i, row)| choice.visit(&inputs, i, sampling, row))
                .collect());
        }
        let square = (gamma - 1) * choice.k * choice.k;
        let scores = match choice.select {
            // Nothing reads them.
            Select::First => vec![0.0; rows.len() * square],
            _ => self.corrector.scores(hidden, candidates, gamma, io)?,
        };
        let chain = |(i, row): (usize, &mut Anchor<'_>)| {
            let pairs = &scores[i * square..][..square];
            let lattice = Lattice::new(candidates.unary(i * gamma), pairs);
            choice.chain(&lattice, sampling, row)
        };
        Ok(rows.map(chain).collect())
    }
}

impl BlockHead for DcocoHead {
    type Config = DcocoConfig;

    fn config(fields: HeadFields<'_>) -> crate::Result<DcocoConfig> {
        let file = fields.outer.file().to_owned();
        let Some(nested) = fields.nested else {
            let why = "DCOCO keys lie in dflash_config, which this architecture does not have; use a checkpoint of DCOCODraftModel";
            return Err(Error::Config {
                file,
                why: why.to_owned(),
            });
        };
        let projector: String = nested.required("projector_type")?;
        if projector != "dcoco" {
            let supported = "\"dcoco\"";
            return Err(nested
                .unsupported("projector_type", &json!(projector), supported)
                .into());
        }
        let candidates = match nested.has("corrector_candidates") {
            true => nested.size("corrector_candidates")?,
            false => CANDIDATES,
        };
        if candidates > MOST_CANDIDATES {
            let why = format!("is {candidates}, at most {MOST_CANDIDATES} are supported");
            return Err(nested.bad_value("corrector_candidates", why).into());
        }
        let channels: Option<String> = nested.optional("corrector_channels")?;
        let channels = channels.as_deref().unwrap_or("all");
        let Ok(channels) = channels.parse() else {
            let supported = "\"all\", \"no_pair_state\", \"no_candidate\"";
            let key = "corrector_channels";
            return Err(nested.unsupported(key, &json!(channels), supported).into());
        };
        nested.only("confidence_head_with_markov", &json!(false))?;
        Ok(DcocoConfig {
            file,
            candidates,
            candidate_width: nested.size("corrector_candidate_width")?,
            pair_width: nested.size("corrector_pair_width")?,
            hidden_width: nested.size("corrector_hidden_width")?,
            channels,
            has_confidence: nested.optional("enable_confidence_head")?.unwrap_or(false),
        })
    }

    fn load(
        config: DcocoConfig,
        trunk: &TrunkConfig,
        weights: &mut Weights,
        load: &Load<'_>,
    ) -> crate::Result<Self> {
        let mut head = Self::new(
            &config,
            (trunk.hidden, trunk.draft_vocab),
            weights,
            load.options,
        )?;
        let source = load.files(METHOD.id)?;
        let temperatures = dspark::temperatures(source, load.options, trunk.gamma())?;
        match &mut head.confidence {
            Some(confidence) => confidence.temperatures = temperatures,
            None => dspark::refuse_calibration(source)?,
        }
        Ok(head)
    }

    fn rates_drafts(&self) -> bool {
        self.confidence.is_some()
    }

    fn propose(
        &mut self,
        block: &Drafted<'_>,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
    ) -> decode::Result<Vec<Proposal>> {
        let mut candidates = Candidates::of(&block.logits, self.choice.k)?;
        candidates.ids = block.vocab.rename(candidates.ids);
        self.choose(&block.hidden, &candidates, block.gamma, rows, io, sampling)
    }
}
