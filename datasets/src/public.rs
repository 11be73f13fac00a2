//! Public evaluation sets: upstream rows brought to one shape, `{id, turns, reference?}`, and the hash that pins them.

mod parquet;
mod read;
mod upstream;

pub use read::{prompts, references};
pub use upstream::Upstream;

use crate::python_json;
use serde::{Deserialize, Serialize};

/// One conversation of a public set, as a converted file holds it, one a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PublicRow {
    /// Upstream's own name for it, or the row number, counted from 0, where upstream has none.
    pub id: String,
    /// The user's turns, asked one after the other; not empty.
    pub turns: Vec<String>,
    /// What a right answer is known by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
}

/// What a right answer is known by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reference {
    /// A final answer in words, digits or LaTeX.
    Answer {
        /// Without `\boxed{}` and without dollar signs.
        answer: String,
    },
    /// A Python function and the source text of a `check(candidate)` that asserts what it must do.
    Function {
        /// Name of the function.
        entry_point: String,
        /// Defines `check`.
        test: String,
    },
    /// Python statements that must all pass after the answer's code has run.
    Asserts {
        /// Run first, before the asserts.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        test_imports: Vec<String>,
        /// One `assert` each.
        test_list: Vec<String>,
    },
}

/// The hash that pins a set: SHA-256, lower-case hex, over one line a row, in order. A line is `{"turns": ["...", "..."]}`
/// and a line feed, in UTF-8, written as Python's `json.dumps(row, ensure_ascii=False)` writes it, so that it is the
/// `sha256sum` of a converted file that holds turns alone. Ids and references are not part of it.
pub fn content_sha256(rows: &[PublicRow]) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        turns: &'a [String],
    }
    let text: String = rows
        .iter()
        .map(|row| line(&Line { turns: &row.turns }))
        .collect();
    crate::sha256_bytes(text.as_bytes())
}

/// The text of a converted file, a line a row.
pub fn converted_text(rows: &[PublicRow]) -> String {
    rows.iter().map(line).collect()
}

fn line(row: &impl Serialize) -> String {
    python_json(row).expect("a row holds text and lists of text") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(turns: &[&str]) -> PublicRow {
        PublicRow {
            id: "a".into(),
            turns: turns.iter().map(|turn| (*turn).to_owned()).collect(),
            reference: None,
        }
    }

    #[test]
    fn the_pin_is_the_hash_of_the_lines_that_python_writes() {
        // printf '%s\n' '{"turns": ["a\u00e9 \"x\"\n", "b"]}' with the accent as UTF-8, piped to sha256sum.
        let lines = "{\"turns\": [\"a\u{e9} \\\"x\\\"\\n\", \"b\"]}\n{\"turns\": [\"c\"]}\n";
        let rows = [row(&["a\u{e9} \"x\"\n", "b"]), row(&["c"])];
        assert_eq!(content_sha256(&rows), crate::sha256_bytes(lines.as_bytes()));
    }

    #[test]
    fn ids_and_references_are_stored_and_do_not_change_the_pin() {
        let mut other = row(&["c"]);
        other.id = "z".into();
        other.reference = Some(Reference::Answer { answer: "4".into() });
        assert_eq!(
            content_sha256(&[row(&["c"])]),
            content_sha256(&[other.clone()])
        );
        let text = "{\"id\": \"z\", \"turns\": [\"c\"], \"reference\": {\"answer\": \"4\"}}\n";
        assert_eq!(converted_text(&[other]), text);
        assert_eq!(
            converted_text(&[row(&["c"])]),
            "{\"id\": \"a\", \"turns\": [\"c\"]}\n"
        );
    }
}
