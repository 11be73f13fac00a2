//! How EAGLE-3 is asked to draft.

use models::RopeConfig;

use super::config::Eagle3Config;
use crate::{Load, Options, Result};

pub(super) const OPTIONS: &[(&str, &str)] = &[
    (
        "mode",
        "chain (one draft after another, the default) or tree",
    ),
    (
        "depth",
        "chain: drafts a round; tree: draft steps after the first, so that it has one level more; default 7",
    ),
    (
        "topk",
        "tree: candidates of each node, and nodes that a level grows from; default 10",
    ),
    (
        "total",
        "tree: rows of a verify pass, the anchor's included; default 60",
    ),
    (
        "rope_theta",
        "base of the rotary angles instead of the config's, which may differ from the one trained with",
    ),
];

/// Draft steps of both modes in the tables of the compared papers.
const DEPTH: usize = 7;
/// Deeper drafts are of no use, and every step has a row in the cache.
const MAX_DEPTH: usize = 64;
/// Width and size of the tree in the authors' code.
const TOP_K: usize = 10;
const TOTAL: usize = 60;

/// What is proposed each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafting {
    /// A chain: argmax drafts when greedy, else draws from the draft law.
    Chain {
        /// Drafts a round.
        n_drafts: usize,
    },
    /// A dynamic tree of the most likely candidates.
    Tree {
        /// Candidates of each node, and nodes that a level grows from.
        width: usize,
        /// Draft steps after the first candidates; the tree has one level more.
        steps: usize,
        /// Drafts that are proposed out of all candidates.
        nodes: usize,
    },
}

impl Drafting {
    pub(super) fn read(load: &Load<'_>, draft_vocab: usize) -> Result<Self> {
        let options = load.options;
        let number = |key: &str, or: usize| {
            let given: Option<usize> = options.get(key, "a number")?;
            match given {
                Some(0) => Err(options.bad(&format!("{key}=0"), "must be at least 1")),
                given => Ok(given.unwrap_or(or)),
            }
        };
        let mode: Option<String> = options.get("mode", "chain or tree")?;
        let steps = number("depth", DEPTH)?;
        if steps > MAX_DEPTH {
            let why = format!("must be at most {MAX_DEPTH}");
            return Err(options.bad(&format!("depth={steps}"), &why));
        }
        match mode.as_deref() {
            None | Some("chain") => {
                for key in ["topk", "total"] {
                    if let Some(value) = options.get::<String>(key, "a number")? {
                        return Err(options.bad(&format!("{key}={value}"), "needs mode=tree"));
                    }
                }
                Ok(Self::Chain {
                    n_drafts: load.gamma(steps)?,
                })
            }
            Some("tree") => {
                let (width, total) = (number("topk", TOP_K)?, number("total", TOTAL)?);
                if width > draft_vocab {
                    let why = format!("exceeds the draft vocabulary of {draft_vocab}");
                    return Err(options.bad(&format!("topk={width}"), &why));
                }
                let most = width + steps * width * width;
                if total < 2 || total - 1 > most {
                    let why = format!(
                        "must lie between 2 and {}, the candidates there are",
                        1 + most
                    );
                    return Err(options.bad(&format!("total={total}"), &why));
                }
                Ok(Self::Tree {
                    width,
                    steps,
                    nodes: load.gamma(total - 1)?,
                })
            }
            Some(other) => Err(options.bad(&format!("mode={other}"), "expected chain or tree")),
        }
    }

    /// Most drafts a round.
    pub(super) fn max_draft(self) -> usize {
        match self {
            Self::Chain { n_drafts } => n_drafts,
            Self::Tree { nodes, .. } => nodes,
        }
    }

    /// Cache rows that drafting fills behind the committed ones.
    pub(super) fn scratch_rows(self) -> usize {
        match self {
            Self::Chain { n_drafts } => n_drafts,
            Self::Tree { width, steps, .. } => width * steps,
        }
    }
}

/// Puts the base that was asked for in place of the config's.
pub(super) fn read_theta(options: &Options, config: &mut Eagle3Config) -> Result<()> {
    let Some(asked) = options.get::<f64>("rope_theta", "a number above 0")? else {
        return Ok(());
    };
    if !(asked > 0.0 && asked.is_finite()) {
        return Err(options.bad(&format!("rope_theta={asked}"), "must be above 0"));
    }
    let (RopeConfig::Default { theta } | RopeConfig::Llama3 { theta, .. }) = &mut config.rope;
    *theta = asked;
    Ok(())
}
