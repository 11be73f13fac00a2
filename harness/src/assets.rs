//! Where models are found: the folder given with `--checkpoints` first, then the models inside the binary.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use include_dir::{Dir, include_dir};
use models::Source;

static TINY: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/../assets/tiny");

/// Finds model folders by name.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    checkpoints: Option<PathBuf>,
}

impl Shelf {
    /// A shelf that looks into `checkpoints` first.
    ///
    /// # Errors
    /// If `checkpoints` is no folder.
    pub(crate) fn new(checkpoints: Option<&Path>) -> Result<Self> {
        if let Some(dir) = checkpoints.filter(|dir| !dir.is_dir()) {
            bail!("--checkpoints {}: is not a folder", dir.display());
        }
        Ok(Self {
            checkpoints: checkpoints.map(Path::to_owned),
        })
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
        if !sources.any(|source| matches!(source, Source::Dir(_))) {
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

    #[test]
    fn a_folder_on_disk_hides_the_embedded_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("tiny-qwen3")).unwrap();
        let shelf = Shelf::new(Some(dir.path())).unwrap();
        let found = shelf.find("tiny-qwen3").unwrap();
        assert!(matches!(found, Source::Dir(at) if at == dir.path().join("tiny-qwen3")));
        assert!(shelf.find("no-such-model").is_none());
    }

    #[test]
    fn a_checkpoint_folder_must_exist_and_be_of_use() {
        let err = Shelf::new(Some(Path::new("/no/such"))).unwrap_err();
        assert_eq!(err.to_string(), "--checkpoints /no/such: is not a folder");
        let dir = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(Some(dir.path())).unwrap();
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
