//! Noun glosses of WordNet's `data.noun` (format: `man 5 wndb`).

use super::{read_text, row_error};
use crate::{Domain, Example, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// Reads glosses of single lower-case words; a word with several synsets keeps its first in the file.
///
/// # Errors
/// [`crate::Error::Row`] for a line without a gloss, with a bad word count or too few words.
pub fn wordnet(path: &Path) -> Result<Vec<Example>> {
    let text = read_text(path)?;
    let mut seen = BTreeSet::new();
    let mut examples = Vec::new();
    for (line_idx, line) in text.lines().enumerate() {
        // Lines of the licence at the top start with two spaces.
        if line.starts_with("  ") || line.is_empty() {
            continue;
        }
        let (words, gloss) = synset(line).map_err(|why| row_error(path, line_idx, why))?;
        let plain = |word: &&&str| word.bytes().all(|b| b.is_ascii_lowercase());
        for word in words.iter().filter(plain) {
            if seen.insert(word.to_string()) {
                examples.push(example(word, &words, gloss));
            }
        }
    }
    Ok(examples)
}

/// The words and the gloss of `offset file type count word id ... | gloss`.
fn synset(line: &str) -> std::result::Result<(Vec<&str>, &str), String> {
    let (fields, gloss) = line.split_once(" | ").ok_or("no ` | ` before a gloss")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let count = fields.get(3).ok_or("fewer than four fields")?;
    let count = usize::from_str_radix(count, 16)
        .map_err(|e| format!("word count {count:?} is not hexadecimal: {e}"))?;
    let words: Vec<&str> = fields[4..].iter().step_by(2).take(count).copied().collect();
    if words.len() < count {
        return Err(format!("{} words, the count says {count}", words.len()));
    }
    Ok((words, gloss.trim()))
}

fn example(word: &str, words: &[&str], gloss: &str) -> Example {
    let (meaning, usage) = match gloss.split_once("; \"") {
        Some((meaning, rest)) => (meaning, rest.split('"').next()),
        None => (gloss, None),
    };
    let mut answer = format!(
        "The noun \"{word}\" means: {}.",
        meaning.trim_end_matches(['.', ';'])
    );
    if let Some(other) = words.iter().find(|other| **other != word) {
        answer.push_str(&format!(
            " Another word for it is \"{}\".",
            other.replace('_', " ")
        ));
    }
    if let Some(usage) = usage {
        answer.push_str(&format!(" For example: \"{usage}\"."));
    }
    let user = format!("What does the word \"{word}\" mean?");
    Example {
        domain: Domain::Chat,
        user,
        think: None,
        answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Example>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.noun");
        std::fs::write(&path, text).unwrap();
        wordnet(&path)
    }

    #[test]
    fn a_gloss_becomes_a_meaning_another_word_and_a_usage() {
        let text = "  1 This is the licence.\n\
            00000010 04 n 02 stroll 0 Short_Walk 0 001 @ 00000020 n 0000 | a calm walk; \"we took a stroll\"  \n\
            00000030 04 n 01 stroll 1 000 | something else\n";
        let examples = read(text).unwrap();
        assert_eq!(examples.len(), 1);
        assert_eq!(examples[0].user, "What does the word \"stroll\" mean?");
        assert_eq!(
            examples[0].answer,
            "The noun \"stroll\" means: a calm walk. Another word for it is \"Short Walk\". \
             For example: \"we took a stroll\"."
        );
    }

    #[test]
    fn a_malformed_line_is_named_with_file_and_line() {
        for (line, why) in [
            ("00000010 04 n 01 stroll 0", "gloss"),
            ("00000010 | x", "fewer than four fields"),
            ("00000010 04 n zz stroll 0 | x", "hexadecimal"),
            ("00000010 04 n 02 stroll 0 | x", "the count says 2"),
        ] {
            let error = read(&format!("  1 licence\n{line}\n"))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("data.noun\":2: ") && error.contains(why),
                "{error}"
            );
        }
    }
}
