//! Public suites: a TOML file beside this crate's manifest says where the rows come from and which content is accepted;
//! the rows themselves lie in a folder of the user's.

use std::path::{Path, PathBuf};

use datasets::Domain;
use datasets::public::{PublicRow, Upstream, content_sha256, prompts, references};
use serde::Deserialize;

use crate::{Error, Prompt, Result, Suite};

/// Adding a public suite is adding a line here and the file it names.
const FILES: [(&str, &str); 12] = [
    ("gsm8k", include_str!("../gsm8k.toml")),
    ("math500", include_str!("../math500.toml")),
    ("aime24", include_str!("../aime24.toml")),
    ("aime25", include_str!("../aime25.toml")),
    ("humaneval", include_str!("../humaneval.toml")),
    ("mbpp", include_str!("../mbpp.toml")),
    ("livecodebench", include_str!("../livecodebench.toml")),
    ("swe-bench", include_str!("../swe-bench.toml")),
    ("mt-bench", include_str!("../mt-bench.toml")),
    ("alpaca", include_str!("../alpaca.toml")),
    ("lbpp", include_str!("../lbpp.toml")),
    ("arena-hard-v2", include_str!("../arena-hard-v2.toml")),
];

/// A suite whose prompts are fetched by the user.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Public {
    /// The name used on the command line and in records; equals the file name.
    pub id: String,
    /// The name used in tables.
    pub title: String,
    /// Which training domain the prompts resemble.
    pub domain: Domain,
    /// How rows of the source are converted.
    pub upstream: Upstream,
    /// Owner and name of the data set on the hub.
    pub repository: String,
    /// Branch, tag or commit there.
    pub revision: String,
    /// Configuration and split, in upstream's words.
    pub split: String,
    /// Files of the split, in order.
    pub files: Vec<String>,
    /// Version of the rule that makes turns of a row; a change of the rule changes this and `sha256`.
    pub transform: u32,
    /// What is known of the licence.
    pub licence: String,
    /// Rows of the split.
    pub rows: usize,
    /// [`content_sha256`] of the converted rows; none if no copy was at hand to pin.
    pub sha256: Option<String>,
    /// Numbers of rows, from 0, that are part of the set and of its hash but are not asked.
    #[serde(default)]
    pub leave_out: Vec<usize>,
    /// Other contents that are accepted in its place, each under its own file name.
    #[serde(default, rename = "stand_in")]
    pub stand_ins: Vec<StandIn>,
}

/// A content that is accepted in place of the set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandIn {
    /// Name of the converted file.
    pub file: String,
    /// How it differs from the set.
    pub about: String,
    /// Its rows.
    pub rows: usize,
    /// [`content_sha256`] of its rows.
    pub sha256: String,
}

/// A public suite read from a folder, its content checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// All prompts that are asked, in file order; ids are row numbers, from 0.
    pub suite: Suite,
    /// The rows as converted, none left out.
    pub rows: Vec<PublicRow>,
    /// [`content_sha256`] of the rows.
    pub sha256: String,
    /// The file, or the folder of several.
    pub from: PathBuf,
    /// What the reader of a table should know: a stand-in's difference, or that the content is not pinned.
    pub remark: Option<String>,
}

/// Where a suite was found.
struct Found<'a> {
    files: Vec<PathBuf>,
    from: PathBuf,
    stand_in: Option<&'a StandIn>,
}

/// Ids of all public suites, in the order they are listed and run.
pub fn public_ids() -> Vec<&'static str> {
    FILES.iter().map(|(id, _)| *id).collect()
}

/// The definition of a public suite; its rows are not looked for.
///
/// # Errors
/// [`Error::UnknownSuite`] with the ids of public suites; the rest would be a mistake in the embedded file.
pub fn public(id: &str) -> Result<Public> {
    let (id, text) = FILES
        .iter()
        .find(|(known, _)| *known == id)
        .ok_or_else(|| Error::UnknownSuite {
            id: id.into(),
            known: public_ids().join(", "),
        })?;
    parse(id, text)
}

fn parse(id: &str, text: &str) -> Result<Public> {
    let file = format!("{id}.toml");
    let public: Public = toml::from_str(text).map_err(|e| Error::SuiteToml {
        file: file.clone(),
        source: Box::new(e),
    })?;
    let is_hash = |hash: &String| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    let hashes = public.stand_ins.iter().map(|one| &one.sha256);
    let problem = if public.id != id {
        Some(format!(
            "`id` is {:?}, the file name wants {id:?}",
            public.id
        ))
    } else if public.files.is_empty() {
        Some("`files` is empty".into())
    } else {
        let bad = hashes.chain(&public.sha256).find(|hash| !is_hash(hash));
        bad.map(|hash| format!("`sha256` is {hash:?}, not 64 hexadecimal digits"))
    };
    match problem {
        None => Ok(public),
        Some(why) => Err(Error::Suite { file, why }),
    }
}

impl Public {
    /// Looks for the suite in `dir`, then in `dir/eval`: first a converted or raw file that is named after the suite
    /// (`.jsonl`, `.jsonl.gz`, `.json`, `.parquet`), then a folder named after it with upstream's files, then a
    /// stand-in. References that the file does not hold are taken from `refs/` beside it or beside its folder.
    /// `None` if nothing is there.
    ///
    /// # Errors
    /// [`Error::Data`] for a file that cannot be read as rows, [`Error::Content`] for rows that are not the pinned ones.
    pub fn read(&self, dir: &Path) -> Result<Option<Content>> {
        let places = [dir.to_path_buf(), dir.join("eval")];
        let Some(found) = places.iter().find_map(|place| self.find(place)) else {
            return Ok(None);
        };
        self.content(found).map(Some)
    }

    /// Converts upstream's files, which are [`Self::files`] in their order.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn convert(&self, files: &[PathBuf]) -> Result<Content> {
        self.content(Found {
            files: files.to_vec(),
            from: files.first().cloned().unwrap_or_default(),
            stand_in: None,
        })
    }

    fn content(&self, found: Found<'_>) -> Result<Content> {
        let mut rows = prompts(self.upstream, &found.files)?;
        let sha256 = content_sha256(&rows);
        let remark = self.check(&found, &rows, &sha256)?;
        if found.stand_in.is_none() {
            self.add_references(&found.from, &mut rows)?;
        }
        Ok(Content {
            suite: self.suite(&rows),
            rows,
            sha256,
            from: found.from,
            remark,
        })
    }

    /// The file names that [`Self::read`] looks for, for a message.
    pub fn names(&self) -> String {
        let own = format!("{0}.jsonl, {0}.json, {0}.parquet, {0}/", self.id);
        let others = self.stand_ins.iter().map(|one| one.file.as_str());
        [own.as_str()]
            .into_iter()
            .chain(others)
            .collect::<Vec<_>>()
            .join(", ")
    }

    fn find(&self, place: &Path) -> Option<Found<'_>> {
        let own = ["jsonl", "jsonl.gz", "json", "parquet"]
            .map(|extension| place.join(format!("{}.{extension}", self.id)));
        if let Some(file) = own.into_iter().find(|file| file.is_file()) {
            return Some(Found {
                files: vec![file.clone()],
                from: file,
                stand_in: None,
            });
        }
        let folder = place.join(&self.id);
        if folder.is_dir() {
            return Some(Found {
                files: self
                    .files
                    .iter()
                    .map(|file| upstream_file(&folder, file))
                    .collect(),
                from: folder,
                stand_in: None,
            });
        }
        let stand_in = self
            .stand_ins
            .iter()
            .find(|one| place.join(&one.file).is_file())?;
        let file = place.join(&stand_in.file);
        Some(Found {
            files: vec![file.clone()],
            from: file,
            stand_in: Some(stand_in),
        })
    }

    /// Holds the rows to what is pinned; gives the remark of an accepted content.
    fn check(&self, found: &Found<'_>, rows: &[PublicRow], got: &str) -> Result<Option<String>> {
        let (want_rows, want) = match found.stand_in {
            Some(one) => (one.rows, Some(one.sha256.as_str())),
            None => (self.rows, self.sha256.as_deref()),
        };
        let is_pinned = want.is_none_or(|want| want.eq_ignore_ascii_case(got));
        if rows.len() != want_rows || !is_pinned {
            return Err(Error::Content {
                id: self.id.clone(),
                path: found.from.clone(),
                got: got.to_owned(),
                got_rows: rows.len(),
                want: want.unwrap_or("not pinned").to_owned(),
                want_rows,
            });
        }
        Ok(match found.stand_in {
            Some(one) => Some(one.about.clone()),
            None if want.is_none() => Some("content is held to its number of rows alone".into()),
            None => None,
        })
    }

    fn add_references(&self, from: &Path, rows: &mut [PublicRow]) -> Result<()> {
        let name = format!("{}.jsonl", self.id);
        let above = from
            .parent()
            .into_iter()
            .flat_map(|dir| [Some(dir), dir.parent()]);
        let files = above.flatten().map(|dir| dir.join("refs").join(&name));
        let Some(file) = files.into_iter().find(|file| file.is_file()) else {
            return Ok(());
        };
        let mut known = references(&file)?;
        for (row_idx, row) in rows.iter_mut().enumerate() {
            row.reference = row.reference.take().or_else(|| known.remove(&row_idx));
        }
        Ok(())
    }

    fn suite(&self, rows: &[PublicRow]) -> Suite {
        let asked = rows
            .iter()
            .enumerate()
            .filter(|(i, _)| !self.leave_out.contains(i));
        let prompt = |(row_idx, row): (usize, &PublicRow)| Prompt {
            id: row_idx as u32,
            turns: row.turns.clone(),
            reference: row.reference.clone(),
        };
        Suite {
            id: self.id.clone(),
            title: self.title.clone(),
            domain: self.domain,
            prompts: asked.map(prompt).collect(),
        }
    }
}

/// A file of upstream's, below its folders or beside the others.
fn upstream_file(folder: &Path, file: &str) -> PathBuf {
    let whole = folder.join(file);
    match (whole.is_file(), Path::new(file).file_name()) {
        (false, Some(name)) if folder.join(name).is_file() => folder.join(name),
        _ => whole,
    }
}

#[cfg(test)]
mod tests;
