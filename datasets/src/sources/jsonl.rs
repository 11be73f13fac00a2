//! GSM8K and MBPP, one JSON object a line.

use super::{read_text, row_error};
use crate::{Domain, Example, Result};
use serde::Deserialize;
use std::path::Path;

/// MBPP ids that are not in its test or validation part: few-shot 1 to 10, training from 601.
fn mbpp_trainable(task_id: u32) -> bool {
    (1..=10).contains(&task_id) || task_id > 600
}

#[derive(Deserialize)]
struct Gsm8kRow {
    question: String,
    answer: String,
}

/// Reads a GSM8K file (`question`, `answer`; JSONL, may be gzipped), calculator marks removed.
///
/// # Errors
/// [`crate::Error::Row`] for a row without both keys, an open `<<` mark or no `#### ` result.
pub fn gsm8k(path: &Path) -> Result<Vec<Example>> {
    rows(path, |row: Gsm8kRow| {
        let answer = without_marks(&row.answer)?;
        if !answer
            .lines()
            .last()
            .is_some_and(|line| line.starts_with("#### "))
        {
            return Err("`answer` does not end in a `#### ` line".into());
        }
        let user = row.question.trim().to_string();
        Ok(Some(Example {
            domain: Domain::Maths,
            user,
            think: None,
            answer,
        }))
    })
}

#[derive(Deserialize)]
struct MbppRow {
    task_id: u32,
    text: String,
    code: String,
}

/// Reads the full MBPP file (`task_id`, `text`, `code`; JSONL, may be gzipped).
///
/// Ids 11 to 600 are its test and validation parts and are left out. Code gets `\n` line ends,
/// four spaces for a tab, and the sentences and the fence of the synthetic answers around it.
///
/// # Errors
/// [`crate::Error::Row`] for a row that lacks a key or whose code is empty.
pub fn mbpp(path: &Path) -> Result<Vec<Example>> {
    rows(path, |row: MbppRow| {
        if !mbpp_trainable(row.task_id) {
            return Ok(None);
        }
        let code = row.code.replace("\r\n", "\n").replace('\t', "    ");
        let code = code
            .lines()
            .map(str::trim_end)
            .collect::<Vec<_>>()
            .join("\n");
        if code.trim().is_empty() {
            return Err("`code` is empty".into());
        }
        let answer = super::python::fenced(&code, "It follows the task step by step.");
        let user = row.text.trim().to_string();
        Ok(Some(Example {
            domain: Domain::Code,
            user,
            think: None,
            answer,
        }))
    })
}

fn rows<Row: for<'de> Deserialize<'de>>(
    path: &Path,
    convert: impl Fn(Row) -> std::result::Result<Option<Example>, String>,
) -> Result<Vec<Example>> {
    let text = read_text(path)?;
    let mut examples = Vec::new();
    for (line_idx, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let row = serde_json::from_str(line).map_err(|e| row_error(path, line_idx, e))?;
        examples.extend(convert(row).map_err(|why| row_error(path, line_idx, why))?);
    }
    Ok(examples)
}

fn without_marks(answer: &str) -> std::result::Result<String, String> {
    let mut out = String::with_capacity(answer.len());
    let mut rest = answer.trim();
    while let Some((before, mark)) = rest.split_once("<<") {
        out.push_str(before);
        rest = mark
            .split_once(">>")
            .ok_or("a `<<` mark in `answer` is not closed")?
            .1;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(name: &str, text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    const GSM8K: &str =
        r#"{"question": "What is 48 halved?", "answer": "It is 48/2 = <<48/2=24>>24.\n#### 24"}"#;

    #[test]
    fn gsm8k_answers_lose_their_calculator_marks() {
        let (_dir, path) = file("a.jsonl", GSM8K);
        let examples = gsm8k(&path).unwrap();
        assert_eq!(examples.len(), 1);
        assert_eq!(examples[0].user, "What is 48 halved?");
        assert_eq!(examples[0].answer, "It is 48/2 = 24.\n#### 24");
    }

    #[test]
    fn a_gzipped_file_reads_like_a_plain_one() {
        let (_dir, plain) = file("a.jsonl", GSM8K);
        let packed = plain.with_file_name("a.jsonl.gz");
        let out = std::fs::File::create(&packed).unwrap();
        let mut gz = flate2::write::GzEncoder::new(out, flate2::Compression::fast());
        gz.write_all(GSM8K.as_bytes()).unwrap();
        gz.finish().unwrap();
        assert_eq!(gsm8k(&packed).unwrap(), gsm8k(&plain).unwrap());
    }

    #[test]
    fn a_malformed_gsm8k_row_is_named_with_file_and_line() {
        for (row, why) in [
            ("{\"question\": \"a\"}", "missing field `answer`"),
            (
                "{\"question\": \"a\", \"answer\": \"2 <<1+1\\n#### 2\"}",
                "not closed",
            ),
            (
                "{\"question\": \"a\", \"answer\": \"2\"}",
                "does not end in",
            ),
            ("nonsense", "expected"),
        ] {
            let (_dir, path) = file("bad.jsonl", &format!("{GSM8K}\n\n{row}\n"));
            let error = gsm8k(&path).unwrap_err().to_string();
            assert!(
                error.contains("bad.jsonl\":3: ") && error.contains(why),
                "{error}"
            );
        }
    }

    #[test]
    fn mbpp_keeps_only_trainable_ids_and_mends_tabs_and_line_ends() {
        let row = |id: u32| {
            format!(
                r#"{{"task_id": {id}, "text": "Add.", "code": "def f(a):\r\n\treturn a + 1 \r\n"}}"#
            )
        };
        let text = [1, 10, 11, 510, 600, 601].map(row).join("\n");
        let (_dir, path) = file("mbpp.jsonl", &text);
        let examples = mbpp(&path).unwrap();
        assert_eq!(examples.len(), 3);
        assert!(
            examples[0]
                .answer
                .contains("```python\ndef f(a):\n    return a + 1\n```\n")
        );
    }

    #[test]
    fn an_mbpp_row_without_code_is_an_error() {
        for code in ["", ", \"code\": \" \""] {
            let (_dir, path) = file(
                "m.jsonl",
                &format!("{{\"task_id\": 1, \"text\": \"a\"{code}}}"),
            );
            let error = mbpp(&path).unwrap_err().to_string();
            assert!(error.contains("m.jsonl\":1: "), "{error}");
        }
    }
}
