use serde::{Deserialize, Serialize};

/// What a gate lets through: `gate.toml`. Every key may be left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Share of gates whose intervals of one layer all hold the truth: with m pools each interval is of
    /// `1 - (1 - confidence) / m`. Default 0.95.
    pub confidence: f64,
    /// Bootstrap resamples of an interval. Default 10000.
    pub resamples: usize,
    /// L1.
    pub losslessness: LosslessnessPolicy,
    /// L2.
    pub acceptance: AcceptancePolicy,
    /// L3.
    pub throughput: ThroughputPolicy,
    /// The advisory look at earlier gates.
    pub history: HistoryPolicy,
}

/// L1: greedy text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LosslessnessPolicy {
    /// `same`: greedy text of vanilla that is not the reference's is inconclusive. `any`: it passes. Default same.
    pub vanilla_text: VanillaText,
}

/// Whether the target may write other greedy text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VanillaText {
    /// It must be the reference's.
    Same,
    /// It may be new.
    Any,
}

/// L2: acceptance length against the reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AcceptancePolicy {
    /// Fails if the whole interval of the change of tau lies below this drop. Default 0.01, that is -1 %.
    pub max_drop: f64,
    /// Passes only if the interval excludes a drop of this size, else inconclusive. Default 0.05.
    pub excluded_drop: f64,
    /// Fewer prompts are inconclusive, unless every round is the reference's. Default 5.
    pub min_prompts: usize,
    /// `same`: another checkpoint of a drafter is incomparable. `any`: it is what is judged. Default same.
    pub drafters: Drafters,
    /// Methods that are judged, as spelled in records. Default: all of the reference.
    pub methods: Vec<String>,
    /// More repeated 8-grams than this share make tau worthless: a loop is easy to draft. Default 0.5.
    pub max_repeated: f64,
}

/// Whether drafters may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drafters {
    /// Their checkpoints must be the reference's.
    Same,
    /// They may be new.
    Any,
}

/// L3: time against the reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ThroughputPolicy {
    /// Fails if the whole interval of the change lies below this drop and the null control is clean. Default 0.03.
    pub max_drop: f64,
    /// Passes only if the interval excludes a drop of this size, else inconclusive. Default 0.1.
    pub excluded_drop: f64,
    /// Fewer blocks are inconclusive; a block is a prompt at concurrency 1, a pass above. Default 6.
    pub min_blocks: usize,
    /// A null control that moved by more than this is not clean. Default 0.015.
    pub null_tolerance: f64,
}

/// Change points in the history of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HistoryPolicy {
    /// Fewer points of a figure are not looked at. Default 30.
    pub min_points: usize,
    /// Only so many of the latest are. Default 200.
    pub window: usize,
    /// Largest p of a t test across the split, times the number of splits tried. Default 0.001.
    pub p: f64,
    /// Smallest relative change that is told. Default 0.02.
    pub min_magnitude: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            confidence: 0.95,
            resamples: 10_000,
            losslessness: LosslessnessPolicy::default(),
            acceptance: AcceptancePolicy::default(),
            throughput: ThroughputPolicy::default(),
            history: HistoryPolicy::default(),
        }
    }
}

impl Default for LosslessnessPolicy {
    fn default() -> Self {
        Self {
            vanilla_text: VanillaText::Same,
        }
    }
}

impl Default for AcceptancePolicy {
    fn default() -> Self {
        Self {
            max_drop: 0.01,
            excluded_drop: 0.05,
            min_prompts: 5,
            drafters: Drafters::Same,
            methods: Vec::new(),
            max_repeated: 0.5,
        }
    }
}

impl Default for ThroughputPolicy {
    fn default() -> Self {
        Self {
            max_drop: 0.03,
            excluded_drop: 0.1,
            min_blocks: 6,
            null_tolerance: 0.015,
        }
    }
}

impl Default for HistoryPolicy {
    fn default() -> Self {
        Self {
            min_points: 30,
            window: 200,
            p: 0.001,
            min_magnitude: 0.02,
        }
    }
}

/// A key out of its range.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{key} = {value}: must be {range}")]
pub struct PolicyError {
    /// The key.
    pub key: &'static str,
    /// What it was set to.
    pub value: f64,
    /// What it may be.
    pub range: &'static str,
}

impl Policy {
    /// Itself, if every key is within its range.
    ///
    /// # Errors
    /// [`PolicyError`] names the first that is not.
    pub fn checked(self) -> Result<Self, PolicyError> {
        const SHARE: &str = "above 0 and below 1";
        let (a, t, h) = (&self.acceptance, &self.throughput, &self.history);
        let shares = [
            ("acceptance.max_drop", a.max_drop),
            ("acceptance.excluded_drop", a.excluded_drop),
            ("throughput.max_drop", t.max_drop),
            ("throughput.excluded_drop", t.excluded_drop),
            ("throughput.null_tolerance", t.null_tolerance),
            ("history.p", h.p),
            ("history.min_magnitude", h.min_magnitude),
        ];
        let bad = |ok: bool, key: &'static str, value: f64, range: &'static str| match ok {
            true => Ok(()),
            false => Err(PolicyError { key, value, range }),
        };
        for (key, value) in shares {
            bad(value > 0.0 && value < 1.0, key, value, SHARE)?;
        }
        let repeated = a.max_repeated;
        bad(
            (0.0..=1.0).contains(&repeated),
            "acceptance.max_repeated",
            repeated,
            "between 0 and 1",
        )?;
        let c = self.confidence;
        bad(
            (0.5..1.0).contains(&c),
            "confidence",
            c,
            "at least 0.5 and below 1",
        )?;
        for (key, value, least, range) in [
            ("resamples", self.resamples, 100, "at least 100"),
            ("acceptance.min_prompts", a.min_prompts, 2, "at least 2"),
            ("throughput.min_blocks", t.min_blocks, 2, "at least 2"),
            ("history.min_points", h.min_points, 10, "at least 10"),
        ] {
            bad(value >= least, key, value as f64, range)?;
        }
        let is_wide = h.window >= h.min_points;
        bad(
            is_wide,
            "history.window",
            h.window as f64,
            "at least history.min_points",
        )?;
        Ok(self)
    }
}
