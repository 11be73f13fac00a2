//! Groups: cells of one target that differ in their arm alone. A group is measured together, sealed as one file, and
//! never split between machines.

use std::fmt;
use std::str::FromStr as _;

use anyhow::{Context as _, Result, bail};
use reports::{ArrivalKey, Cell, SamplingKey, Thinking};

use crate::arms::{ArmPlan, TargetPlan};
use crate::data::{self, Library};
use crate::engine::passes;
use crate::matrix::{Block, Exclude, Matrix, Switch};

/// The arm every speedup is relative to.
pub(crate) const VANILLA: &str = "vanilla";

/// Most sequences decoded at once.
const MAX_CONCURRENCY: u32 = 64;

/// Cells of one target that differ in their arm alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Index into the plan's targets.
    pub(crate) target: usize,
    /// Sampling, thinking, concurrency, arrivals.
    pub(crate) setting: Setting,
    /// The suite.
    pub(crate) suite: &'static str,
    /// Answers to each prompt.
    pub(crate) samples: u32,
    /// Indices into the plan's arms, rising; vanilla is among them.
    pub(crate) arms: Vec<usize>,
}

/// A group that cannot run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SkippedGroup {
    /// Coordinates of its cells, without the method.
    pub(crate) cell: Cell,
    /// Indices into the plan's arms.
    pub(crate) arms: Vec<usize>,
    /// The reason.
    pub(crate) why: String,
}

/// The axes that change between cells of one target and suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// How tokens are chosen.
    pub(crate) sampling: SamplingKey,
    /// Thinking switch.
    pub(crate) thinking: Thinking,
    /// Sequences at once.
    pub(crate) concurrency: u32,
    /// When requests come.
    pub(crate) arrivals: ArrivalKey,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, thinking {}, concurrency {}",
            self.sampling, self.thinking, self.concurrency
        )?;
        match self.arrivals {
            ArrivalKey::Closed => Ok(()),
            open => write!(f, ", {open}"),
        }
    }
}

impl Group {
    /// Coordinates of one of its cells.
    pub(crate) fn cell(&self, targets: &[TargetPlan], method: &str) -> Cell {
        cell(
            targets[self.target].spec.id,
            self.suite,
            self.setting,
            method,
        )
    }

    /// Answers that it decodes: turns of its prompts, samples, passes, and the arms that can run.
    pub(crate) fn n_answers(&self, targets: &[TargetPlan], n_turns: usize) -> u64 {
        let drafters = &targets[self.target].drafters;
        let ready = self.arms.iter().filter(|a| drafters[**a].is_ready());
        let times = u64::from(self.samples)
            * u64::from(passes(self.setting.concurrency, self.setting.arrivals));
        (n_turns * ready.count()) as u64 * times
    }
}

fn cell(target: &str, suite: &str, setting: Setting, method: &str) -> Cell {
    Cell {
        target: target.to_owned(),
        suite: suite.to_owned(),
        sampling: setting.sampling,
        thinking: setting.thinking,
        concurrency: setting.concurrency,
        arrivals: setting.arrivals,
        method: method.to_owned(),
    }
}

/// What a matrix comes to.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Those that can run: target by target, in the order asked for.
    pub(crate) ready: Vec<Group>,
    /// Those that cannot.
    pub(crate) skipped: Vec<SkippedGroup>,
    /// The reason of each exclusion, and how many cells it took out.
    pub(crate) excluded: Vec<(String, usize)>,
}

/// What was asked for of one target, suite and setting.
struct Wish {
    target: String,
    suite: &'static str,
    setting: Setting,
    samples: u32,
    arms: Vec<usize>,
}

/// The matrix as groups, sets of suites spelled out; what two blocks both ask for is run once. `absent` are targets that
/// cannot run, and why.
///
/// # Errors
/// If a suite or a sampling key is unknown or a concurrency out of range.
pub(crate) fn build(
    matrix: &Matrix,
    arms: &[ArmPlan],
    targets: &[TargetPlan],
    absent: &[(String, String)],
    library: &Library,
) -> Result<Groups> {
    let mut wishes = wishes(matrix, arms)?;
    let mut out = Groups::default();
    for exclude in &matrix.excludes {
        let n_before: usize = wishes.iter().map(|w| w.arms.len()).sum();
        wishes.retain_mut(|wish| wish.survives(exclude, arms));
        let n_left: usize = wishes.iter().map(|w| w.arms.len()).sum();
        let why = exclude.why.clone().unwrap_or_else(|| "excluded".to_owned());
        out.excluded.push((why, n_before - n_left));
    }
    for mut wish in wishes {
        if let SamplingKey::Sampled { .. } = wish.setting.sampling {
            out.skipped.extend(wish.split_synthetic(arms));
        }
        if wish.arms.is_empty() {
            continue;
        }
        let target = targets.iter().position(|t| t.spec.id == wish.target);
        let why = match (target, library.lacks(wish.suite)) {
            (Some(target), None) => {
                out.ready.push(Group {
                    target,
                    setting: wish.setting,
                    suite: wish.suite,
                    samples: wish.samples,
                    arms: wish.arms,
                });
                continue;
            }
            (None, _) => absent
                .iter()
                .find(|(id, _)| *id == wish.target)
                .map_or_else(
                    || format!("target {} is absent", wish.target),
                    |a| a.1.clone(),
                ),
            (_, Some(why)) => why.to_owned(),
        };
        out.skipped.push(SkippedGroup {
            cell: cell(&wish.target, wish.suite, wish.setting, ""),
            arms: wish.arms,
            why,
        });
    }
    Ok(out)
}

/// Ids of all targets, in the order asked for.
pub(crate) fn target_ids(matrix: &Matrix) -> Vec<&str> {
    unique(matrix.blocks.iter().flat_map(|b| &b.targets))
}

fn wishes(matrix: &Matrix, arms: &[ArmPlan]) -> Result<Vec<Wish>> {
    let mut wishes: Vec<Wish> = Vec::new();
    for target in target_ids(matrix) {
        let of_target = |b: &&Block| b.targets.iter().any(|t| t == target);
        for block in matrix.blocks.iter().filter(of_target) {
            let is_asked = |arm: &ArmPlan| {
                arm.key() == VANILLA || block.methods.iter().any(|m| m == arm.key())
            };
            let asked: Vec<usize> = (0..arms.len()).filter(|i| is_asked(&arms[*i])).collect();
            for setting in settings(block)? {
                let samples = match setting.sampling {
                    SamplingKey::Greedy => block.repeat,
                    SamplingKey::Sampled { .. } => block.repeat.saturating_mul(matrix.samples),
                };
                for suites::Wanted { id: suite, .. } in data::expand(&block.suites)? {
                    let is_same = |w: &&mut Wish| {
                        (w.setting, w.suite, w.target.as_str()) == (setting, suite, target)
                    };
                    match wishes.iter_mut().find(is_same) {
                        Some(wish) => {
                            wish.samples = wish.samples.max(samples);
                            wish.arms.extend(&asked);
                            wish.arms.sort_unstable();
                            wish.arms.dedup();
                        }
                        None => wishes.push(Wish {
                            target: target.to_owned(),
                            suite,
                            setting,
                            samples,
                            arms: asked.clone(),
                        }),
                    }
                }
            }
        }
    }
    Ok(wishes)
}

impl Wish {
    /// Takes out the arms whose acceptance is drawn, as a group that cannot run, and with them a vanilla that would be
    /// left alone.
    fn split_synthetic(&mut self, arms: &[ArmPlan]) -> Option<SkippedGroup> {
        let is_drawn = |arm: &usize| arms[*arm].acceptance.is_synthetic();
        let is_vanilla = |arm: &usize| arms[*arm].key() == VANILLA;
        if !self.arms.iter().any(is_drawn) {
            return None;
        }
        let others = self.arms.iter().filter(|arm| !is_drawn(arm));
        let is_lonely = others.copied().all(|arm| is_vanilla(&arm));
        let out = self.arms.extract_if(.., |arm| is_drawn(arm) || is_lonely);
        Some(SkippedGroup {
            cell: cell(&self.target, self.suite, self.setting, ""),
            arms: out.collect(),
            why: format!(
                "acceptance=synthetic-T needs the text before it is decoded, which is known of greedy decoding alone, not of --sampling {}",
                self.setting.sampling
            ),
        })
    }

    /// Takes out what an exclusion names; whether anything but a lonely vanilla is left.
    fn survives(&mut self, exclude: &Exclude, arms: &[ArmPlan]) -> bool {
        let names = |list: &Option<Vec<String>>, own: &str| {
            list.as_ref()
                .is_none_or(|list| list.iter().any(|l| l == own))
        };
        let thinking = match self.setting.thinking {
            Thinking::Off => Switch::Off,
            Thinking::On => Switch::On,
        };
        let concurrency = self.setting.concurrency;
        let is_meant = names(&exclude.targets, &self.target)
            && data::is_named(exclude.suites.as_deref(), self.suite)
            && names(&exclude.sampling, &self.setting.sampling.to_string())
            && exclude
                .thinking
                .as_ref()
                .is_none_or(|t| t.contains(&thinking))
            && exclude
                .concurrency
                .as_ref()
                .is_none_or(|c| c.contains(&concurrency))
            && names(&exclude.arrivals, &self.setting.arrivals.to_string());
        if !is_meant {
            return true;
        }
        let Some(methods) = &exclude.methods else {
            self.arms.clear();
            return false;
        };
        let n_before = self.arms.len();
        self.arms
            .retain(|a| !methods.iter().any(|m| m == arms[*a].key()));
        self.arms.len() == n_before || self.arms.len() > 1
    }
}

fn settings(block: &Block) -> Result<Vec<Setting>> {
    let sampling = unique(&block.sampling)
        .into_iter()
        .map(|key| SamplingKey::from_str(key).context("--sampling"))
        .collect::<Result<Vec<_>>>()?;
    let mut thinking: Vec<Thinking> = Vec::new();
    for switch in &block.thinking {
        let switch = match switch {
            Switch::Off => Thinking::Off,
            Switch::On => Thinking::On,
        };
        if !thinking.contains(&switch) {
            thinking.push(switch);
        }
    }
    let arrivals = unique(&block.arrivals)
        .into_iter()
        .map(|key| ArrivalKey::from_str(key).context("--arrivals"))
        .collect::<Result<Vec<_>>>()?;
    let mut concurrency = block.concurrency.clone();
    concurrency.sort_unstable();
    concurrency.dedup();
    if let Some(bad) = concurrency
        .iter()
        .find(|c| !(1..=MAX_CONCURRENCY).contains(*c))
    {
        bail!("--concurrency {bad}: must be between 1 and {MAX_CONCURRENCY}");
    }
    let mut out = Vec::new();
    for sampling in sampling {
        for thinking in &thinking {
            for concurrency in &concurrency {
                out.extend(arrivals.iter().map(|arrivals| Setting {
                    sampling,
                    thinking: *thinking,
                    concurrency: *concurrency,
                    arrivals: *arrivals,
                }));
            }
        }
    }
    Ok(out)
}

/// Without repeats, in order.
fn unique<'a>(ids: impl IntoIterator<Item = &'a String>) -> Vec<&'a str> {
    let mut out: Vec<&str> = Vec::new();
    for id in ids {
        if !out.contains(&id.as_str()) {
            out.push(id);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assets::{ModelPaths, Shelf};
    use crate::matrix;

    /// Targets, arms and groups of a matrix over `tiny-qwen3`.
    fn built(text: &str) -> Result<(Vec<String>, Groups)> {
        let matrix = matrix::parse(text, "m")?.resolve("m")?;
        let keys = ["vanilla", "draft_model", "dflash"];
        let arms: Vec<ArmPlan> = keys.iter().map(|a| ArmPlan::parse(a).unwrap()).collect();
        let shelf = Shelf::new(&ModelPaths::default())?;
        let target = crate::arms::target_plan("tiny-qwen3", &arms, &shelf)?;
        let absent = [("qwen3-4b".to_owned(), "no files".to_owned())];
        let names = matrix.blocks.iter().flat_map(|b| &b.suites);
        let dir = tempfile::tempdir()?;
        let place = crate::cli::DirArgs {
            data_dir: Some(dir.path().to_owned()),
            cache: None,
        };
        let cut = data::Cut {
            subset: None,
            seed: 0,
            most: data::Most {
                alone: None,
                of_sets: None,
            },
        };
        let library = Library::open(&data::expand(names)?, &place, cut)?;
        let groups = build(&matrix, &arms, &[target], &absent, &library)?;
        let shown = groups.ready.iter().map(|g| {
            let arms: Vec<&str> = g.arms.iter().map(|a| keys[*a]).collect();
            format!("{} x{} {}", g.suite, g.setting.concurrency, arms.join("+"))
        });
        Ok((shown.collect(), groups))
    }

    const TOP: &str = "suites = [\"mini-chat\"]\nmax_new = 1\n";

    #[test]
    fn what_two_blocks_ask_for_is_run_once() {
        let (got, _) = built(&format!(
            "{TOP}[[block]]\nmethods = [\"dflash\"]\nconcurrency = [8, 1]\n[[block]]\nmethods = [\"draft_model\", \"dflash\"]\n"
        ))
        .unwrap();
        let want = [
            "mini-chat x1 vanilla+draft_model+dflash",
            "mini-chat x8 vanilla+dflash",
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn exclusions_take_out_methods_or_whole_groups_but_leave_no_lonely_vanilla() {
        let top =
            format!("{TOP}methods = [\"dflash\", \"draft_model\"]\nconcurrency = [1, 2, 4]\n");
        let (got, groups) = built(&format!(
            "{top}[[exclude]]\nmethods = [\"dflash\"]\nconcurrency = [2]\nwhy = \"slow\"\n[[exclude]]\nconcurrency = [4]\n[[exclude]]\nsuites = [\"mini-code\"]\n"
        ))
        .unwrap();
        let want = [
            "mini-chat x1 vanilla+draft_model+dflash",
            "mini-chat x2 vanilla+draft_model",
        ];
        assert_eq!(got, want);
        let excluded = [
            ("slow".to_owned(), 1),
            ("excluded".to_owned(), 3),
            ("excluded".to_owned(), 0),
        ];
        assert_eq!(groups.excluded, excluded);
        let (got, _) = built(&format!(
            "{top}[[exclude]]\nmethods = [\"dflash\", \"draft_model\"]\nconcurrency = [2, 4]\n"
        ))
        .unwrap();
        assert_eq!(got, ["mini-chat x1 vanilla+draft_model+dflash"]);
    }

    #[test]
    fn what_cannot_run_is_skipped_with_its_reason_and_a_typing_error_is_refused() {
        let text =
            "methods = [\"dflash\"]\nmax_new = 1\ntargets = [\"tiny-qwen3\", \"qwen3-4b\"]\n";
        let (got, groups) = built(&format!("{text}suites = [\"mini-chat\", \"gsm8k\"]\n")).unwrap();
        assert_eq!(got, ["mini-chat x1 vanilla+dflash"]);
        let whys: Vec<&str> = groups.skipped.iter().map(|s| s.why.as_str()).collect();
        assert_eq!(whys.len(), 3);
        assert!(whys[0].starts_with("suite gsm8k: "), "{whys:?}");
        assert!(whys[0].contains("holds none of gsm8k.jsonl"), "{whys:?}");
        assert_eq!(whys[1..], ["no files", "no files"]);
        let set = "suites = [\"dflash10\", \"mini-chat\"]\n[[exclude]]\nsuites = [\"dflash7\"]\n";
        let (got, groups) = built(&format!("{text}{set}")).unwrap();
        assert_eq!(got, ["mini-chat x1 vanilla+dflash"]);
        let suites = groups.skipped.iter().map(|s| s.cell.suite.as_str());
        let its: Vec<&str> = suites.take(3).collect();
        assert_eq!(its, ["aime24", "swe-bench", "alpaca"]);
        let error = built(&format!("{text}suites = [\"gsm9k\"]\n")).unwrap_err();
        assert!(error.to_string().starts_with("suite \"gsm9k\" is unknown"));
    }
}
