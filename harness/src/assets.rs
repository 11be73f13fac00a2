//! Where models are found: `--weights` for the one target, the folder given with `--checkpoints`, then the models inside
//! the binary.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use include_dir::{Dir, include_dir};
use models::{DecoderConfig, Gguf, Precision, Source, TargetSpec};
use serde::{Deserialize, Serialize};

const CONFIG: &str = "config.json";

static TINY: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/../assets/tiny");

/// What `--weights` takes, and how a plan keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub(crate) enum WeightsAt {
    /// A GGUF file or a checkpoint folder.
    Files(PathBuf),
    /// Random weights for a config.json, or for that of a folder.
    Random(PathBuf),
}

/// How random weights are spelled.
const RANDOM: &str = "random:";

impl From<String> for WeightsAt {
    fn from(text: String) -> Self {
        match text.strip_prefix(RANDOM) {
            Some(config) => Self::Random(config.into()),
            None => Self::Files(text.into()),
        }
    }
}

impl From<WeightsAt> for String {
    fn from(at: WeightsAt) -> Self {
        match at {
            WeightsAt::Files(path) => path.display().to_string(),
            WeightsAt::Random(config) => format!("{RANDOM}{}", config.display()),
        }
    }
}

impl WeightsAt {
    fn absolute(&self) -> std::io::Result<Self> {
        Ok(match self {
            Self::Files(path) => Self::Files(std::path::absolute(path)?),
            Self::Random(config) => Self::Random(std::path::absolute(config)?),
        })
    }

    fn source(&self) -> Result<Source> {
        let refused = || format!("--weights {}", String::from(self.clone()));
        match self {
            Self::Files(path) if path.is_dir() => Ok(Source::Dir(path.clone())),
            Self::Files(path) => Ok(Source::Gguf(Gguf::open(path).with_context(refused)?)),
            Self::Random(config) => {
                let dir = match config.file_name() {
                    Some(name) if name == CONFIG && config.is_file() => {
                        config.parent().filter(|dir| *dir != Path::new(""))
                    }
                    _ => Some(config.as_path()),
                };
                let dir = dir.unwrap_or(Path::new(".")).to_owned();
                ensure!(
                    dir.join(CONFIG).is_file(),
                    "{}: is neither a {CONFIG} nor a folder that holds one",
                    refused()
                );
                Ok(Source::Random(Box::new(Source::Dir(dir))))
            }
        }
    }
}

/// Where models lie and how they are loaded, as typed or as a plan has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelPaths {
    /// Folder of model folders.
    pub(crate) checkpoints: Option<PathBuf>,
    /// The one target's own files.
    pub(crate) weights: Option<WeightsAt>,
    /// How weight matrices are kept, f32 where nothing is said.
    pub(crate) dtype: Option<Precision>,
}

impl ModelPaths {
    /// Each path of this machine, or else the one in `planned`.
    pub(crate) fn or(&self, planned: &Self) -> Self {
        let Self {
            checkpoints,
            weights,
            ..
        } = self.clone();
        Self {
            checkpoints: checkpoints.or_else(|| planned.checkpoints.clone()),
            weights: weights.or_else(|| planned.weights.clone()),
            dtype: self.dtype.or(planned.dtype),
        }
    }

    /// The same paths from the root on.
    ///
    /// # Errors
    /// If the current folder is unknown.
    pub(crate) fn absolute(&self) -> std::io::Result<Self> {
        let checkpoints = self.checkpoints.as_ref().map(std::path::absolute);
        let weights = self.weights.as_ref().map(WeightsAt::absolute);
        Ok(Self {
            checkpoints: checkpoints.transpose()?,
            weights: weights.transpose()?,
            dtype: self.dtype,
        })
    }
}

/// Finds models by name.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    checkpoints: Option<PathBuf>,
    weights: Option<Source>,
    /// How weight matrices are kept.
    pub(crate) precision: Precision,
}

impl Shelf {
    /// A shelf that looks into these paths first.
    ///
    /// # Errors
    /// If the folder of models is none, or the target's files are neither a folder nor a GGUF file that can be read, or
    /// random weights have no config.
    pub(crate) fn new(paths: &ModelPaths) -> Result<Self> {
        let ModelPaths {
            checkpoints,
            weights,
            dtype,
        } = paths;
        if let Some(dir) = checkpoints.as_ref().filter(|dir| !dir.is_dir()) {
            bail!("--checkpoints {}: is not a folder", dir.display());
        }
        Ok(Self {
            checkpoints: checkpoints.clone(),
            weights: weights.as_ref().map(WeightsAt::source).transpose()?,
            precision: dtype.unwrap_or_default(),
        })
    }

    /// The files of a target.
    ///
    /// # Errors
    /// If `--weights` holds a model of another family.
    pub(crate) fn target(&self, spec: &TargetSpec) -> Result<Option<Source>> {
        let Some(source) = &self.weights else {
            return Ok(self.find(spec.id));
        };
        let refused = || format!("--weights {}", source.place());
        let config = DecoderConfig::load(source).with_context(refused)?;
        ensure!(
            config.family.architecture == spec.family.architecture,
            "--weights {}: is a model of {}, target {:?} is one of {}",
            source.place(),
            config.family.architecture,
            spec.id,
            spec.family.architecture
        );
        Ok(Some(source.clone()))
    }

    /// Refuses `--weights` for several targets, of which it could be only one.
    ///
    /// # Errors
    /// If it was given and there are several.
    pub(crate) fn check_targets(&self, ids: &[&str]) -> Result<()> {
        if let Some(source) = &self.weights {
            ensure!(
                ids.len() == 1,
                "--weights {}: is one target's files, the run has {}: {}; choose one with --targets",
                source.place(),
                ids.len(),
                ids.join(", ")
            );
        }
        Ok(())
    }

    /// The model folder of this name.
    pub(crate) fn find(&self, name: &str) -> Option<Source> {
        let on_disk = self.checkpoints.as_ref().map(|dir| dir.join(name));
        match on_disk.filter(|dir| dir.is_dir()) {
            Some(dir) => Some(Source::Dir(dir)),
            None => embedded(name),
        }
    }

    /// Notes on entries of the checkpoint folder that no target or drafter is named like; `in_use` are the suffixes
    /// of drafters that this run asks for.
    ///
    /// # Errors
    /// If the folder cannot be listed.
    pub(crate) fn strangers<'a>(
        &self,
        in_use: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<String>> {
        let Some(dir) = &self.checkpoints else {
            return Ok(Vec::new());
        };
        let methods = baselines::METHODS.iter().filter_map(|m| m.checkpoint);
        let suffixes: Vec<&str> = methods.chain(in_use).collect();
        let is_known = |name: &str| {
            models::TARGETS.iter().any(|target| {
                let mut suffixes = suffixes.iter();
                name == target.id || suffixes.any(|s| name == format!("{}-{s}", target.id))
            })
        };
        let mut notes = Vec::new();
        let what = || format!("--checkpoints {}: cannot be listed", dir.display());
        for entry in std::fs::read_dir(dir).with_context(what)? {
            let entry = entry.with_context(what)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !is_known(&name) {
                notes.push(format!(
                    "--checkpoints {}: {name} is named like no target or drafter and is not used",
                    dir.display()
                ));
            } else if !entry.path().is_dir() {
                notes.push(format!(
                    "--checkpoints {}: {name} is no folder and is not used",
                    dir.display()
                ));
            }
        }
        notes.sort();
        Ok(notes)
    }

    /// Refuses a checkpoint folder that nothing was taken from.
    ///
    /// # Errors
    /// If a checkpoint folder was given that holds none of the models in use, which is a slip of the pen.
    pub(crate) fn check_used<'a>(
        &self,
        mut sources: impl Iterator<Item = &'a Source>,
    ) -> Result<()> {
        let Some(dir) = &self.checkpoints else {
            return Ok(());
        };
        fn place(source: &Source) -> Option<&Path> {
            match source {
                Source::Dir(at) => Some(at),
                Source::Random(files) => place(files),
                Source::Embedded { .. } | Source::Gguf(_) => None,
            }
        }
        if !sources.any(|source| place(source).is_some_and(|at| at.starts_with(dir))) {
            bail!(
                "--checkpoints {}: holds no folder named like a target in use (<target>) or its drafter (<target>-<method>)",
                dir.display()
            );
        }
        Ok(())
    }
}

fn embedded(name: &str) -> Option<Source> {
    let dir = TINY.get_dir(name)?;
    let files: Vec<(&'static str, &'static [u8])> = dir
        .files()
        .filter_map(|file| {
            let name = file.path().file_name()?.to_str()?;
            Some((name, file.contents()))
        })
        .collect();
    let name = dir.path().to_str()?;
    (!files.is_empty()).then_some(Source::Embedded { name, files })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf(checkpoints: &Path) -> Result<Shelf> {
        Shelf::new(&ModelPaths {
            checkpoints: Some(checkpoints.to_owned()),
            weights: None,
            dtype: None,
        })
    }

    #[test]
    fn a_folder_on_disk_hides_the_embedded_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("tiny-qwen3")).unwrap();
        let shelf = shelf(dir.path()).unwrap();
        let found = shelf.find("tiny-qwen3").unwrap();
        assert!(matches!(found, Source::Dir(at) if at == dir.path().join("tiny-qwen3")));
        assert!(shelf.find("no-such-model").is_none());
    }

    #[test]
    fn a_checkpoint_folder_must_exist_and_be_of_use() {
        let err = shelf(Path::new("/no/such")).unwrap_err();
        assert_eq!(err.to_string(), "--checkpoints /no/such: is not a folder");
        let dir = tempfile::tempdir().unwrap();
        let shelf = shelf(dir.path()).unwrap();
        let inside = Source::Embedded {
            name: "x",
            files: Vec::new(),
        };
        let err = shelf.check_used([inside].iter()).unwrap_err().to_string();
        assert!(
            err.contains("holds no folder named like a target in use"),
            "{err}"
        );
        let on_disk = Source::Dir(dir.path().to_owned());
        shelf.check_used([on_disk].iter()).unwrap();
    }
}
