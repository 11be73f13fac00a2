//! Domino: a DFlash block whose slots are corrected from left to right by a small recurrent network over the tokens
//! drafted so far.
//!
//! Source: arXiv 2605.29707 and its reference code. Drafts are argmax also when the target samples (the rule of the
//! published tables); `draft=sampled` draws them from the corrected law instead, which is then known exactly.

mod rollout;

use std::str::FromStr;

use decode::{Anchor, Law, Proposal, Result, Sampling, TokenId, TokenIo, laws};
use models::{Fields, Weights};
use serde_json::{Value, json};

use crate::block::{BlockDrafter, BlockHead, load_block};
use crate::draft_vocab::Drafts;
use crate::trunk::{Drafted, HeadFields, TrunkConfig};
use crate::{Error, Load, Method};
pub use rollout::{DominoHead, DominoShape, DraftStep};

pub(crate) const METHOD: Method = Method {
    id: "domino",
    title: "Domino",
    checkpoint: Some("domino"),
    options: &[(
        "draft",
        "greedy (argmax drafts) or sampled (drafts from the drafter's own law when the target samples)",
    )],
    load: |load| Ok(Box::new(Domino::load(load)?)),
};

/// The trunk with a recurrent head.
pub type Domino = BlockDrafter<DominoDrafts>;

impl Domino {
    /// Loads a checkpoint and checks that it fits the target.
    ///
    /// # Errors
    /// If files are missing or wrong, or made for another target, or hold no Domino head, or `max_draft` exceeds the
    /// block.
    pub fn load(load: &Load<'_>) -> crate::Result<Self> {
        load_block(load, METHOD.id)
    }
}

/// How draft tokens are chosen when the target samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Greedy,
    Sampled,
}

impl FromStr for Choice {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "greedy" => Ok(Self::Greedy),
            "sampled" => Ok(Self::Sampled),
            _ => Err(()),
        }
    }
}

/// A [`DominoHead`] and the rule by which it drafts.
#[derive(Debug)]
pub struct DominoDrafts {
    head: DominoHead,
    choice: Choice,
}

/// What the config says about the head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DominoConfig {
    gru: usize,
    rank: usize,
    prefix: usize,
}

impl BlockHead for DominoDrafts {
    type Config = DominoConfig;

    fn config(fields: HeadFields<'_>) -> crate::Result<DominoConfig> {
        let HeadFields { outer, nested } = fields;
        let Some(nested) = nested else {
            return Err(not_domino(outer, Value::Null));
        };
        // Published files name their architecture DFlashDraftModel, so only this key tells.
        match nested.optional::<Value>("projector_type")? {
            Some(kind) if kind == "domino" || kind == "causal_v5" => {}
            other => return Err(not_domino(nested, other.unwrap_or_default())),
        }
        for key in ["use_bias_gate", "use_bias_norm"] {
            nested.only(key, &json!(false))?;
            outer.only(key, &json!(false))?;
        }
        Ok(DominoConfig {
            gru: nested.size("gru_hidden_dim")?,
            rank: rank(outer, nested)?,
            prefix: nested.optional("pure_draft_prefix_len")?.unwrap_or(0),
        })
    }

    fn load(
        config: DominoConfig,
        trunk: &TrunkConfig,
        weights: &mut Weights,
        load: &Load<'_>,
    ) -> crate::Result<Self> {
        let DominoConfig { gru, rank, prefix } = config;
        if prefix >= trunk.gamma() {
            let gamma = trunk.gamma();
            return Err(Error::Config {
                file: load.files(METHOD.id)?.label("config.json"),
                why: format!(
                    "dflash_config.pure_draft_prefix_len {prefix} leaves none of the {gamma} draft tokens to the head"
                ),
            });
        }
        let shape = DominoShape {
            hidden: trunk.hidden,
            vocab: trunk.vocab,
            draft_vocab: trunk.draft_vocab,
            gru,
            rank,
            prefix,
        };
        let choice = load.options.get("draft", "greedy or sampled")?;
        Ok(Self {
            head: DominoHead::new(shape, weights)?,
            choice: choice.unwrap_or(Choice::Greedy),
        })
    }

    fn propose(
        &mut self,
        block: &Drafted<'_>,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
    ) -> Result<Vec<Proposal>> {
        let anchors: Vec<TokenId> = rows.iter().map(|row| row.token).collect();
        let mut drafts: Vec<Drafts> = rows.iter().map(|_| Drafts::default()).collect();
        let sampled = self.choice == Choice::Sampled && sampling != Sampling::Greedy;
        let head = &mut self.head;
        head.roll(&block.hidden, &block.logits, &anchors, io, |step| {
            let laws = match sampled {
                true => laws(step.logits, sampling)?,
                false => {
                    let best = kernels::argmax_rows(step.logits)?.to_vec1::<u32>()?;
                    best.into_iter().map(Law::Point).collect()
                }
            };
            let each = drafts.iter_mut().zip(rows.iter_mut()).zip(laws);
            Ok(each
                .map(|((drafts, row), law)| drafts.draw(law, row.draws, block.vocab))
                .collect())
        })?;
        let vocab = block.vocab;
        drafts.into_iter().map(|d| d.proposal(vocab)).collect()
    }
}

/// `emb_dim`, which stands in either object or in both.
fn rank(outer: &mut Fields, nested: &mut Fields) -> crate::Result<usize> {
    if !outer.has("emb_dim") {
        return Ok(nested.size("emb_dim")?);
    }
    let rank = outer.size("emb_dim")?;
    if nested.has("emb_dim") {
        let inner = nested.size("emb_dim")?;
        if inner != rank {
            let why = format!("is {inner}, the outer emb_dim is {rank}");
            return Err(nested.bad_value("emb_dim", why).into());
        }
    }
    Ok(rank)
}

fn not_domino(fields: &Fields, got: Value) -> Error {
    let supported =
        "\"domino\" or \"causal_v5\" in dflash_config; a trunk without a head is method dflash";
    fields.unsupported("projector_type", &got, supported).into()
}
