//! Arms, the columns of a run, and what each gets on a target.

use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use models::{Precision, Source, TargetSpec};

use crate::assets::Shelf;
use crate::schedule::Schedule;
use crate::synthetic::Acceptance;

/// A method with its options, those that every method takes already read.
#[derive(Clone, Debug)]
pub(crate) struct ArmPlan {
    /// Method, its own options, and the key that names it in records.
    pub(crate) arm: baselines::Arm,
    /// Suffix of the drafter's folder; `None` if the method has no weights.
    pub(crate) checkpoint: Option<String>,
    /// Draft tokens a round; `None` is the method's own choice.
    pub(crate) max_draft: Option<usize>,
    /// How many of them are verified.
    pub(crate) schedule: Schedule,
    /// How they come to be accepted.
    pub(crate) acceptance: Acceptance,
    /// Whether its drafter was trained.
    pub(crate) weights: DrafterWeights,
}

/// The value of an arm's `weights` option, spelled `stored` or `random`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DrafterWeights {
    /// Those in its folder.
    #[default]
    Stored,
    /// Made up for the config.json in its folder.
    Random,
}

impl FromStr for DrafterWeights {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "stored" => Ok(Self::Stored),
            "random" => Ok(Self::Random),
            _ => Err(()),
        }
    }
}

impl ArmPlan {
    /// Reads what `--methods` takes.
    ///
    /// # Errors
    /// If the method or an option is unknown, or the value of an option that every method takes cannot be used.
    pub(crate) fn parse(key: &str) -> Result<Self> {
        let arm = baselines::Arm::parse(key)?;
        let options = &arm.options;
        let checkpoint: Option<String> = options.get("checkpoint", "a folder's suffix")?;
        if let Some(suffix) = &checkpoint {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if !suffix.chars().all(is_plain) {
                let item = format!("checkpoint={suffix}");
                return Err(options
                    .bad(&item, "is no folder's suffix: letters, digits and -_. only")
                    .into());
            }
        }
        let max_draft = options.get("max_draft", "a number of at least 1")?;
        if max_draft == Some(0) {
            return Err(options.bad("max_draft=0", "must be at least 1").into());
        }
        let schedule: Option<Schedule> = options.get("schedule", Schedule::SPELLINGS)?;
        let schedule = schedule.unwrap_or_default();
        let acceptance: Option<Acceptance> = options.get("acceptance", Acceptance::SPELLINGS)?;
        let acceptance = acceptance.unwrap_or_default();
        if acceptance.is_synthetic() && schedule != Schedule::All {
            let why = "cuts drafts, and then acceptance=synthetic-T is not what is measured; leave one of the two out";
            return Err(options.bad("schedule=", why).into());
        }
        Ok(Self {
            checkpoint: arm
                .method
                .checkpoint
                .map(|own| checkpoint.unwrap_or_else(|| own.to_owned())),
            max_draft,
            schedule,
            acceptance,
            weights: options
                .get("weights", "stored or random")?
                .unwrap_or_default(),
            arm,
        })
    }

    /// What records and tables call it.
    pub(crate) fn key(&self) -> &str {
        &self.arm.key
    }
}

/// One target and the drafters that go with it.
#[derive(Debug)]
pub(crate) struct TargetPlan {
    /// The target.
    pub(crate) spec: &'static TargetSpec,
    /// Its files.
    pub(crate) source: Source,
    /// How its weight matrices and those of its drafters are kept.
    pub(crate) precision: Precision,
    /// One entry an arm of the plan, in its order.
    pub(crate) drafters: Vec<DrafterPlan>,
}

/// What an arm gets on one target.
#[derive(Debug)]
pub(crate) enum DrafterPlan {
    /// It can run.
    Ready(ArmPlan, Option<Source>),
    /// It cannot; its cells are skipped.
    Skipped(ArmPlan, String),
}

impl DrafterPlan {
    fn new(spec: &TargetSpec, arm: &ArmPlan, shelf: &Shelf) -> Self {
        let arm = arm.clone();
        let Some(suffix) = &arm.checkpoint else {
            return Self::Ready(arm, None);
        };
        let folder = format!("{}-{suffix}", spec.id);
        match shelf.find(&folder) {
            Some(source) => {
                let source = match arm.weights {
                    DrafterWeights::Stored => source,
                    DrafterWeights::Random => Source::Random(Box::new(source)),
                };
                Self::Ready(arm, Some(source))
            }
            None => {
                let why = format!(
                    "{} has no drafter for {}: no folder {folder}/ under --checkpoints or inside the binary",
                    arm.key(),
                    spec.id
                );
                Self::Skipped(arm, why)
            }
        }
    }

    /// Whether it can run.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self, Self::Ready(..))
    }
}

/// A target, its files and its drafters.
///
/// # Errors
/// If the target is unknown, or its files are nowhere or of another family.
pub(crate) fn target_plan(id: &str, arms: &[ArmPlan], shelf: &Shelf) -> Result<TargetPlan> {
    let spec = models::target(id)?;
    let Some(source) = shelf.target(spec)? else {
        bail!("{}", no_files(spec));
    };
    let drafters = arms
        .iter()
        .map(|arm| DrafterPlan::new(spec, arm, shelf))
        .collect();
    Ok(TargetPlan {
        spec,
        source,
        precision: shelf.precision,
        drafters,
    })
}

/// Refuses random weights beside arms whose acceptance is measured, which would be noise.
///
/// # Errors
/// If target or drafters have such weights, and acceptance is not drawn for every drafting arm, or none drafts.
pub(crate) fn check_random(targets: &[TargetPlan], arms: &[ArmPlan]) -> Result<()> {
    let random = |arm: &&ArmPlan| arm.weights == DrafterWeights::Random;
    let target = targets.iter().find(|t| t.is_random());
    let what = match (target, arms.iter().find(random)) {
        (Some(target), _) => format!("--weights: {}", target.source.place()),
        (None, Some(arm)) => format!("method {}: weights=random", arm.key()),
        (None, None) => return Ok(()),
    };
    let mut drafting = arms
        .iter()
        .filter(|arm| arm.checkpoint.is_some())
        .peekable();
    ensure!(
        drafting.peek().is_some(),
        "{what}: nothing drafts; name a method with --methods and a length with --acceptance synthetic:T"
    );
    if let Some(real) = drafting.find(|arm| !arm.acceptance.is_synthetic()) {
        bail!(
            "{what}: random weights show costs and no acceptance, so every method of the run needs one that is given, and {} has none; add --acceptance synthetic:T",
            real.key()
        );
    }
    let Some(target) = target else {
        return Ok(());
    };
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        ensure!(
            target.source.exists(name),
            "{what}: {} is missing, and prompts have to be tokenized; put {name} of a model whose token ids lie below this config's vocab_size beside config.json",
            target.source.label(name)
        );
    }
    Ok(())
}

/// Refuses what only `draftbench run` does: an acceptance that is drawn, and random weights.
///
/// # Errors
/// If the arm or the target is such.
pub(crate) fn check_real(target: &TargetPlan, arm: &ArmPlan) -> Result<()> {
    let what = if arm.acceptance.is_synthetic() {
        format!("method {}: acceptance=synthetic-T is", arm.key())
    } else if arm.weights == DrafterWeights::Random {
        format!("method {}: weights=random is", arm.key())
    } else if target.is_random() {
        format!("--weights: {} are", target.source.place())
    } else {
        return Ok(());
    };
    bail!("{what} for `draftbench run` alone; leave it out")
}

fn no_files(spec: &TargetSpec) -> String {
    match spec.files {
        models::Files::Embedded => format!(
            "target {:?} is not inside this binary; build it with the files in assets/tiny/{}, or name a folder that holds {0}/ with --checkpoints",
            spec.id, spec.id
        ),
        models::Files::Checkpoint { repository } => format!(
            "target {:?} needs files: put those of {repository} into DIR/{} and give --checkpoints DIR, or give --weights FILE.gguf",
            spec.id, spec.id
        ),
    }
}

impl TargetPlan {
    /// Whether its weights are made up.
    pub(crate) fn is_random(&self) -> bool {
        matches!(self.source, Source::Random(_))
    }

    /// Where weights come from, if any are not inside the binary.
    pub(crate) fn weights(&self) -> Option<String> {
        self.sources()
            .find(|source| !matches!(source, Source::Embedded { .. }))?;
        let drafters = self.drafters.iter().filter_map(|d| match d {
            DrafterPlan::Ready(arm, Some(source)) => {
                Some(format!("{} {}", arm.key(), source.place()))
            }
            _ => None,
        });
        let all: Vec<String> = std::iter::once(format!("{} {}", self.spec.id, self.source.place()))
            .chain(drafters)
            .collect();
        Some(format!("weights: {}", all.join(", ")))
    }

    /// Every set of files in use.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &Source> {
        let drafters = self.drafters.iter().filter_map(|d| match d {
            DrafterPlan::Ready(_, source) => source.as_ref(),
            DrafterPlan::Skipped(..) => None,
        });
        std::iter::once(&self.source).chain(drafters)
    }

    /// Notes on drafters inside the binary that meet a target from elsewhere, which they may not have been trained for.
    pub(crate) fn mixed(&self) -> Vec<String> {
        let from_outside = !matches!(self.source, Source::Embedded { .. });
        let embedded = self.drafters.iter().filter_map(|drafter| match drafter {
            DrafterPlan::Ready(arm, Some(Source::Embedded { .. })) if from_outside => {
                Some(arm.key())
            }
            _ => None,
        });
        let place = self.source.place();
        let note =
            |id| format!("the target is {place}, the {id} drafter is the one inside the binary");
        embedded.map(note).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assets::ModelPaths;

    fn refused(key: &str) -> String {
        ArmPlan::parse(key).unwrap_err().to_string()
    }

    #[test]
    fn common_options_are_read_before_anything_is_loaded() {
        let arm = ArmPlan::parse("dflash:max_draft=3:checkpoint=dflash-15").unwrap();
        assert_eq!(
            (arm.checkpoint.as_deref(), arm.max_draft),
            (Some("dflash-15"), Some(3))
        );
        let arm = ArmPlan::parse("dflash").unwrap();
        assert_eq!(
            (arm.checkpoint.as_deref(), arm.max_draft),
            (Some("dflash"), None)
        );
        assert_eq!(ArmPlan::parse("vanilla").unwrap().checkpoint, None);
    }

    #[test]
    fn values_that_cannot_be_used_are_refused_by_name() {
        assert!(refused("dflash:max_draft=0").contains("max_draft=0"));
        assert!(refused("dflash:max_draft=seven").contains("max_draft=seven"));
        assert!(refused("dflash:checkpoint=../x").contains("letters, digits"));
        assert!(refused("dflash:schedule=maybe").contains("schedule=maybe"));
        for length in ["0.5", "nan", "inf", "three", ""] {
            let item = format!("acceptance=synthetic-{length}");
            assert!(refused(&format!("dflash:{item}")).contains(&item));
        }
        assert!(refused("dflash:acceptance=maybe").contains("expected real, or synthetic-T"));
        let cut = refused("dspark:schedule=threshold-0.5:acceptance=synthetic-2");
        assert!(cut.contains("leave one of the two out"), "{cut}");
        assert!(refused("vanilla:acceptance=synthetic-1").contains("no options"));
        assert!(refused("dflash:speed=3").contains("known: checkpoint, max_draft, schedule"));
    }

    #[test]
    fn a_checkpoint_that_is_nowhere_skips_the_arm_and_names_the_folder() {
        let arms = ["vanilla", "dflash", "dflash:checkpoint=none"];
        let arms: Vec<ArmPlan> = arms.iter().map(|a| ArmPlan::parse(a).unwrap()).collect();
        let shelf = Shelf::new(&ModelPaths::default()).unwrap();
        let plan = target_plan("tiny-qwen3", &arms, &shelf).unwrap();
        let ready: Vec<bool> = plan.drafters.iter().map(DrafterPlan::is_ready).collect();
        assert_eq!(ready, [true, true, false]);
        let DrafterPlan::Skipped(_, why) = &plan.drafters[2] else {
            panic!("the folder is not there");
        };
        assert!(why.contains("no folder tiny-qwen3-none/"), "{why}");
    }
}
