//! What a drafter's folder says about its sequential head.

use std::str::FromStr;

use models::{Fields, Source};
use serde::Deserialize;
use serde_json::json;

use crate::trunk::HeadFields;
use crate::{Error, Options, Result};

/// Temperatures of the confidences, beside config.json.
const CALIBRATION: &str = "calibration.json";

/// The option of methods that rate their drafts.
pub(crate) const CALIBRATION_OPTION: (&str, &str) = (
    "calibration",
    "on: confidences are scaled by the drafter's calibration.json, if it has one; or off",
);

/// How the token before a slot corrects its logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkovKind {
    /// By that token alone.
    Vanilla,
    /// Gated by the slot's hidden state.
    Gated,
    /// With a state that runs along the block.
    Rnn,
}

/// What the confidence head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfidenceInput {
    /// The slot's hidden state.
    Hidden,
    /// The hidden state, then the Markov embedding of the token before the slot.
    HiddenAndMarkov,
}

/// Shape of the head, read from the drafter's config.json.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadConfig {
    pub(crate) kind: MarkovKind,
    pub(crate) rank: usize,
    pub(crate) confidence: Option<ConfidenceInput>,
}

impl HeadConfig {
    pub(super) fn read(fields: HeadFields<'_>) -> Result<Self> {
        let outer = fields.outer;
        if fields.nested.is_some() {
            let got = json!("one with dflash_config");
            let known = "Qwen3DSparkModel, whose keys are not nested";
            return Err(outer.unsupported("architectures", &got, known).into());
        }
        let rank: usize = outer.required("markov_rank")?;
        if rank == 0 {
            let why = "is 0: this trunk has no Markov head; use method dflash".to_owned();
            return Err(outer.bad_value("markov_rank", why).into());
        }
        Self::of_rank(rank, outer)
    }

    /// Reads the keys that follow `markov_rank`, which is not 0.
    pub(crate) fn of_rank(rank: usize, outer: &mut Fields) -> Result<Self> {
        let kind = outer.required("markov_head_type")?;
        let enabled: bool = outer.required("enable_confidence_head")?;
        let confidence = match enabled {
            false => {
                outer.ignore(&["confidence_head_with_markov"]);
                None
            }
            true => Some(match outer.required("confidence_head_with_markov")? {
                true => ConfidenceInput::HiddenAndMarkov,
                false => ConfidenceInput::Hidden,
            }),
        };
        Ok(Self {
            kind,
            rank,
            confidence,
        })
    }
}

/// Whether confidences are scaled by the drafter's own temperatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calibration {
    On,
    Off,
}

impl FromStr for Calibration {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(()),
        }
    }
}

/// `gamma` temperatures of calibration.json (`{"temperatures": [..]}`), 1 where it is missing or off.
pub(crate) fn temperatures(source: &Source, options: &Options, gamma: usize) -> Result<Vec<f32>> {
    let calibration = options
        .get(CALIBRATION_OPTION.0, "on or off")?
        .unwrap_or(Calibration::On);
    if calibration == Calibration::Off || !source.exists(CALIBRATION) {
        return Ok(vec![1.0; gamma]);
    }
    let file = source.label(CALIBRATION);
    let mut fields = Fields::parse(file, &source.read(CALIBRATION)?)?;
    let temperatures: Vec<f32> = fields.required("temperatures")?;
    let bad = |t: &&f32| !(t.is_finite() && **t > 0.0);
    let why = match temperatures.iter().find(bad) {
        Some(t) => format!("holds {t}; a temperature must be above 0"),
        None if temperatures.len() != gamma => {
            let n = temperatures.len();
            format!("holds {n} temperatures, block_size is {gamma}; fit them again")
        }
        None => {
            fields.finish()?;
            return Ok(temperatures);
        }
    };
    Err(fields.bad_value("temperatures", why).into())
}

/// Whether temperatures lie beside the config.
pub(crate) fn has_calibration(source: &Source) -> bool {
    source.exists(CALIBRATION)
}

/// A drafter without confidences has nothing to calibrate.
pub(crate) fn refuse_calibration(source: &Source) -> Result<()> {
    if !has_calibration(source) {
        return Ok(());
    }
    Err(Error::Config {
        file: source.label(CALIBRATION),
        why: "the drafter has no confidence head to calibrate; remove the file".to_owned(),
    })
}
