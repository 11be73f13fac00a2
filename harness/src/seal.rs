//! The file of one group. While it is measured it is a part file: a line a record, and a mark behind each complete
//! batch. When the group is complete it is sealed: synced to disk, without marks, under its final name.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use reports::{Record, parse_records};

/// What a mark begins with, which no record does.
const MARK: &str = "{\"batch\":";

/// A group's file, open for writing.
#[derive(Debug)]
pub(crate) struct Part {
    path: PathBuf,
    file: File,
}

/// What an interrupted worker left.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Records of complete batches, in order.
    pub(crate) records: Vec<Record>,
    /// Complete batches.
    pub(crate) n_batches: usize,
}

impl Part {
    /// Opens the part file, or makes it. Of what is in it, complete batches are kept; a batch that was begun and the
    /// line that the interruption tore go.
    ///
    /// # Errors
    /// If a line before the last is torn or no record, which names file and line, or the system refuses.
    pub(crate) fn open(path: &Path) -> Result<(Self, Kept)> {
        let what = || format!("{}: cannot be written", path.display());
        let bytes = match fs::read(path) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            read => read.with_context(|| format!("{}: cannot be read", path.display()))?,
        };
        let (kept, n_bytes) = kept(&bytes, path)?;
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .with_context(what)?;
        file.set_len(n_bytes as u64).with_context(what)?;
        let path = path.to_owned();
        Ok((Self { path, file }, kept))
    }

    /// Adds a record.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn append(&mut self, record: &Record) -> Result<()> {
        self.write(&(serde_json::to_string(record)? + "\n"))
    }

    /// Marks that `n_batches` batches are complete.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn mark(&mut self, n_batches: usize) -> Result<()> {
        self.write(&format!("{MARK}{n_batches}}}\n"))
    }

    fn write(&mut self, line: &str) -> Result<()> {
        self.file
            .write_all(line.as_bytes())
            .with_context(|| format!("{}: cannot be written", self.path.display()))
    }

    /// Puts the records under their final name, at once and for good.
    ///
    /// # Errors
    /// If the system refuses; the part file stays then.
    pub(crate) fn seal(self, sealed: &Path) -> Result<()> {
        let what = || format!("{}: cannot be read", self.path.display());
        let text = fs::read_to_string(&self.path).with_context(what)?;
        let records = text.lines().filter(|line| !line.starts_with(MARK));
        let text: String = records.flat_map(|line| [line, "\n"]).collect();
        write_whole(sealed, &text)?;
        fs::remove_file(&self.path)
            .with_context(|| format!("{}: cannot be removed", self.path.display()))
    }
}

/// What to keep of a part file, and how many of its bytes that is.
fn kept(bytes: &[u8], path: &Path) -> Result<(Kept, usize)> {
    // The last line is whole only if it ends.
    let whole = bytes
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    let mut start = 0;
    let (mut n_batches, mut n_kept, mut text) = (0, 0, String::new());
    for (line_idx, line) in bytes[..whole].split_inclusive(|b| *b == b'\n').enumerate() {
        start += line.len();
        let line = std::str::from_utf8(line)
            .with_context(|| format!("{:?} line {}: is no text", path, line_idx + 1))?;
        match line.strip_prefix(MARK) {
            None => text.push_str(line),
            Some(rest) => {
                let number = rest.trim_end().strip_suffix('}').map(str::parse);
                if number != Some(Ok(n_batches + 1)) {
                    bail!(
                        "{path:?} line {}: a mark out of order; remove the file to measure the group again",
                        line_idx + 1
                    );
                }
                n_batches += 1;
                n_kept = start;
                // An empty line keeps the numbers of those behind it.
                text.push('\n');
            }
        }
    }
    // Lines behind the last mark go, but if one of them is torn, something else than a kill was at work.
    parse_records(&text, path).context("remove the file to measure the group again")?;
    let marked = std::str::from_utf8(&bytes[..n_kept]).unwrap_or_default();
    let records = marked.lines().filter(|line| !line.starts_with(MARK));
    let records: String = records.flat_map(|line| [line, "\n"]).collect();
    let records = parse_records(&records, path)?;
    Ok((Kept { records, n_batches }, n_kept))
}

/// Writes a file so that after a crash at any moment it is absent or whole.
///
/// # Errors
/// If the system refuses.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<()> {
    let what = || format!("{}: cannot be written", path.display());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = path.with_file_name(format!("{name}.tmp"));
    let mut file = File::create(&part).with_context(what)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&part, path))
        .with_context(what)?;
    // The new name is in the folder, which has to reach the disk too; not every system can sync one.
    if let Some(Ok(dir)) = path.parent().map(File::open) {
        dir.sync_all().ok();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use reports::{Cell, Outcome, SCHEMA, SamplingKey, Thinking};

    use super::*;

    fn record(method: &str) -> Record {
        let cell = Cell {
            target: "toy".into(),
            suite: "mini".into(),
            sampling: SamplingKey::Greedy,
            thinking: Thinking::Off,
            concurrency: 1,
            arrivals: reports::ArrivalKey::Closed,
            method: method.into(),
        };
        Record {
            schema: SCHEMA,
            run: "r".into(),
            cell,
            prompt: None,
            outcome: Outcome::Failed { why: "é".into() },
        }
    }

    fn methods(kept: &Kept) -> Vec<&str> {
        kept.records
            .iter()
            .map(|r| r.cell.method.as_str())
            .collect()
    }

    /// A part file with two complete batches and one record of a third.
    fn filled(path: &Path) -> Vec<u8> {
        let (mut part, kept) = Part::open(path).unwrap();
        assert_eq!((kept.n_batches, kept.records.len()), (0, 0));
        for (method, batch) in [("a", 1), ("b", 2)] {
            part.append(&record(method)).unwrap();
            part.mark(batch).unwrap();
        }
        part.append(&record("c")).unwrap();
        fs::read(path).unwrap()
    }

    #[test]
    fn complete_batches_are_kept_wherever_the_file_was_torn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("g.part");
        let whole = filled(&path);
        let marks: Vec<usize> = (0..=whole.len())
            .filter(|n| whole[..*n].ends_with(b"1}\n") || whole[..*n].ends_with(b"2}\n"))
            .collect();
        for n in 0..=whole.len() {
            fs::write(&path, &whole[..n]).unwrap();
            let (_, kept) = Part::open(&path).unwrap();
            let n_batches = marks.iter().filter(|mark| **mark <= n).count();
            assert_eq!(methods(&kept), ["a", "b"][..n_batches], "{n} bytes");
            assert_eq!(kept.n_batches, n_batches);
        }
    }

    #[test]
    fn a_torn_line_in_the_middle_is_named_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("g.part");
        let text = String::from_utf8(filled(&path)).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        for (line_idx, number) in [(2, "line 3"), (4, "line 5")] {
            let whole = std::mem::replace(&mut lines[line_idx], "{\"schema\":");
            fs::write(&path, lines.join("\n") + "\n").unwrap();
            let err = crate::chain(&Part::open(&path).unwrap_err());
            assert!(err.contains("g.part") && err.contains(number), "{err}");
            lines[line_idx] = whole;
        }
        lines.swap(1, 3);
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        let err = crate::chain(&Part::open(&path).unwrap_err());
        assert!(err.contains("line 2: a mark out of order"), "{err}");
    }

    #[test]
    fn a_sealed_file_has_the_records_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("g.part");
        filled(&path);
        let (mut part, kept) = Part::open(&path).unwrap();
        assert_eq!(methods(&kept), ["a", "b"]);
        part.append(&record("d")).unwrap();
        part.mark(3).unwrap();
        let sealed = dir.path().join("g.jsonl");
        part.seal(&sealed).unwrap();
        let records = reports::read_records(&sealed).unwrap();
        let got: Vec<&str> = records.iter().map(|r| r.cell.method.as_str()).collect();
        assert_eq!(got, ["a", "b", "d"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
