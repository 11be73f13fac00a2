//! Where a matrix comes from: a preset inside the binary, a file, and what was typed, each over the one before.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::cli::{SelectArgs, ThinkingArg};
use crate::matrix::{self, Matrix, MatrixFile, Switch};
use crate::synthetic;

/// Adding a preset is adding a line here and the file it names.
const FILES: [(&str, &str); 7] = [
    ("quick", include_str!("../presets/quick.toml")),
    ("ablation", include_str!("../presets/ablation.toml")),
    ("schedules", include_str!("../presets/schedules.toml")),
    ("paper-main", include_str!("../presets/paper-main.toml")),
    (
        "paper-concurrency",
        include_str!("../presets/paper-concurrency.toml"),
    ),
    ("coverage", include_str!("../presets/coverage.toml")),
    ("smollm2", include_str!("../presets/smollm2.toml")),
];

/// Most files that may extend one another.
const MAX_DEPTH: usize = 8;

/// Ids of all presets.
pub(crate) fn ids() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(id, _)| *id)
}

/// The preset of this name.
///
/// # Errors
/// If there is none; the rest would be a mistake in an embedded file.
pub(crate) fn load(id: &str) -> Result<Matrix> {
    read_preset(id, MAX_DEPTH)?.resolve(&format!("presets/{id}.toml"))
}

/// What was asked for: the file of `--matrix` or the preset of `--preset`, and what was typed over it.
///
/// # Errors
/// If the preset is unknown, the file is not there or not understood, or `--acceptance` is not understood.
pub(crate) fn asked(args: &SelectArgs) -> Result<Matrix> {
    let mut matrix = without_acceptance(args)?;
    if let Some(acceptance) = &args.acceptance {
        synthetic::impose(acceptance, &mut matrix)?;
    }
    Ok(matrix)
}

fn without_acceptance(args: &SelectArgs) -> Result<Matrix> {
    let typed = typed(args);
    match &args.matrix {
        Some(path) => {
            let place = format!("--matrix {}", path.display());
            typed.over(read_file(path, MAX_DEPTH)?).resolve(&place)
        }
        None => {
            let place = format!("presets/{}.toml", args.preset);
            let base = read_preset(&args.preset, MAX_DEPTH)?;
            let mut matrix = typed.over(base).resolve(&place)?;
            // A preset counts the suites it names; a set that is typed over them counts its own.
            matrix.prompts_of_sets = args.prompts;
            Ok(matrix)
        }
    }
}

fn read_preset(id: &str, depth: usize) -> Result<MatrixFile> {
    let Some((id, text)) = FILES.iter().find(|(known, _)| *known == id) else {
        let known: Vec<&str> = ids().collect();
        bail!("--preset {id:?} is unknown; known: {}", known.join(", "));
    };
    let place = format!("presets/{id}.toml");
    extend(matrix::parse(text, &place)?, None, &place, depth)
}

fn read_file(path: &Path, depth: usize) -> Result<MatrixFile> {
    let place = format!("--matrix {}", path.display());
    let text = std::fs::read_to_string(path).with_context(|| format!("{place}: cannot be read"))?;
    extend(matrix::parse(&text, &place)?, Some(path), &place, depth)
}

/// The file over the one that it extends; `path` is where it lies, if it is no preset.
fn extend(file: MatrixFile, path: Option<&Path>, place: &str, depth: usize) -> Result<MatrixFile> {
    let Some(name) = file.extends.clone() else {
        return Ok(file);
    };
    ensure!(
        depth > 0,
        "{place}: extends {name:?}: more than {MAX_DEPTH} files extend one another; is there a circle?"
    );
    let base = if ids().any(|id| id == name) {
        read_preset(&name, depth - 1)?
    } else {
        let near = path.and_then(Path::parent).unwrap_or(Path::new(""));
        let base: PathBuf = near.join(&name);
        let known: Vec<&str> = ids().collect();
        ensure!(
            base.is_file(),
            "{place}: extends {name:?}: {} is no file, and the presets are {}",
            base.display(),
            known.join(", ")
        );
        read_file(&base, depth - 1)?
    };
    Ok(file.over(base))
}

/// What was typed, as a file; its lists take the place of those of every block.
fn typed(args: &SelectArgs) -> MatrixFile {
    let list = |typed: &[String]| (!typed.is_empty()).then(|| typed.to_vec());
    MatrixFile {
        targets: list(&args.targets),
        methods: list(&args.methods),
        suites: list(&args.suites),
        sampling: list(&args.sampling),
        thinking: args.thinking.map(|thinking| match thinking {
            ThinkingArg::Off => vec![Switch::Off],
            ThinkingArg::On => vec![Switch::On],
            ThinkingArg::Both => vec![Switch::Off, Switch::On],
        }),
        concurrency: (!args.concurrency.is_empty()).then(|| args.concurrency.clone()),
        arrivals: list(&args.arrivals),
        prompts: args.prompts,
        subset: args.data.subset.clone(),
        subset_seed: args.data.subset_seed,
        samples: args.samples,
        max_new: args.max_new,
        seed: args.seed,
        ..MatrixFile::default()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arms::ArmPlan;
    use crate::cli::Cli;

    fn select(typed: &[&str]) -> SelectArgs {
        let typed = ["draftbench"].iter().chain(typed);
        Cli::try_parse_from(typed).unwrap().run.select
    }

    #[test]
    fn every_preset_is_read_and_runs_something() {
        for id in ids() {
            let preset = load(id).unwrap();
            assert!(!preset.title.is_empty(), "{id}");
            for key in preset.blocks.iter().flat_map(|b| &b.methods) {
                ArmPlan::parse(key).unwrap();
            }
            for target in preset.blocks.iter().flat_map(|b| &b.targets) {
                models::target(target).unwrap();
            }
        }
        let error = load("quik").unwrap_err().to_string();
        assert!(
            error.starts_with("--preset \"quik\" is unknown; known: quick"),
            "{error}"
        );
    }

    #[test]
    fn what_is_typed_takes_the_place_of_the_presets_list() {
        let args = select(&[
            "--methods",
            "dflash",
            "--concurrency",
            "1,2",
            "--max-new",
            "9",
        ]);
        let matrix = asked(&args).unwrap();
        assert_eq!(
            (matrix.max_new, matrix.prompts),
            (9, load("quick").unwrap().prompts)
        );
        for block in matrix.blocks {
            assert_eq!(
                (block.methods, block.concurrency),
                (vec!["dflash".to_owned()], vec![1, 2])
            );
            assert_eq!(block.sampling, ["greedy", "t1000"]);
        }
    }

    #[test]
    fn a_preset_leaves_the_numbers_of_sets_alone_and_what_is_typed_or_in_a_file_does_not() {
        let of_sets = |typed: &[&str]| asked(&select(typed)).unwrap().prompts_of_sets;
        assert_eq!(of_sets(&["--suites", "dflash10"]), None);
        assert_eq!(of_sets(&["--prompts", "4"]), Some(4));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "extends = \"quick\"\nprompts = 3\n").unwrap();
        let path = file.path().display().to_string();
        assert_eq!(of_sets(&["--matrix", &path]), Some(3));
        assert_eq!(of_sets(&["--matrix", &path, "--prompts", "2"]), Some(2));
    }

    #[test]
    fn files_extend_presets_and_one_another_but_not_in_a_circle() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        write("a.toml", "extends = \"quick\"\nmax_new = 5\nprompts = 2\n");
        let b = write("b.toml", "extends = \"a.toml\"\nprompts = 3\n");
        let matrix = asked(&select(&["--matrix", &b])).unwrap();
        assert_eq!((matrix.max_new, matrix.prompts), (5, Some(3)));
        assert_eq!(matrix.blocks, load("quick").unwrap().blocks);

        let c = write("c.toml", "extends = \"c.toml\"\n");
        let error = asked(&select(&["--matrix", &c])).unwrap_err().to_string();
        assert!(error.contains("is there a circle?"), "{error}");
        let d = write("d.toml", "extends = \"qick\"\n");
        let error = asked(&select(&["--matrix", &d])).unwrap_err().to_string();
        assert!(
            error.contains("qick is no file, and the presets are quick"),
            "{error}"
        );
    }

    #[test]
    fn the_papers_matrix_has_twelve_configurations() {
        let matrix = load("paper-main").unwrap();
        let mut distinct = std::collections::BTreeSet::new();
        for block in &matrix.blocks {
            for target in &block.targets {
                for thinking in &block.thinking {
                    let its = block.sampling.iter();
                    distinct.extend(its.map(|s| (target, *thinking as u8, s)));
                }
            }
        }
        assert_eq!(distinct.len(), 12);
        let concurrency = load("paper-concurrency").unwrap();
        assert!(
            concurrency
                .blocks
                .iter()
                .all(|b| b.concurrency == [1, 2, 4, 8, 16, 32])
        );
    }
}
