//! Files of a public set, converted or as upstream wrote them.

use super::{PublicRow, Reference, Upstream, parquet};
use crate::sources::{read_text, row_error};
use crate::{Error, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A row of a converted file. The keys below `reference` occur in copies of others and are passed over.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Converted {
    id: Option<Value>,
    turns: Vec<String>,
    reference: Option<Value>,
    #[serde(rename = "question_id")]
    _question_id: Option<IgnoredAny>,
    #[serde(rename = "category")]
    _category: Option<IgnoredAny>,
    #[serde(rename = "source")]
    _source: Option<IgnoredAny>,
}

/// Rows of a set that lies in one file or in several, one after the other. A file is JSONL (may be gzipped), a JSON
/// array, or Parquet (by its name). A row with `turns` is a converted one, any other must be `upstream`'s.
///
/// # Errors
/// [`Error::Io`] for a file that cannot be read, [`Error::Row`] with file and line for a row that is neither.
pub fn prompts(upstream: Upstream, files: &[PathBuf]) -> Result<Vec<PublicRow>> {
    let mut rows: Vec<PublicRow> = Vec::new();
    for path in files {
        for (line_idx, value) in values(path)? {
            let row_idx = rows.len();
            let row = match value.get("turns") {
                Some(_) => converted(row_idx, value),
                None => upstream.convert(row_idx, value),
            };
            rows.push(row.map_err(|why| row_error(path, line_idx, why))?);
        }
    }
    Ok(rows)
}

/// References that lie beside a converted file: a JSON object a line, whose `i` is the number of the row, from 0.
///
/// # Errors
/// [`Error::Io`], or [`Error::Row`] for a row without `i` or of no known kind.
pub fn references(path: &Path) -> Result<BTreeMap<usize, Reference>> {
    #[derive(Deserialize)]
    struct Numbered {
        i: usize,
        #[serde(flatten)]
        reference: Reference,
    }
    let mut out = BTreeMap::new();
    for (line_idx, value) in values(path)? {
        let row: Numbered =
            serde_json::from_value(value).map_err(|e| row_error(path, line_idx, e))?;
        out.insert(row.i, row.reference);
    }
    Ok(out)
}

fn converted(row_idx: usize, value: Value) -> std::result::Result<PublicRow, String> {
    let row: Converted = serde_json::from_value(value).map_err(|e| e.to_string())?;
    let id = match row.id {
        None => row_idx.to_string(),
        Some(Value::String(id)) => id,
        Some(Value::Number(id)) => id.to_string(),
        Some(_) => return Err("`id` is neither text nor a number".into()),
    };
    if row.turns.is_empty() || row.turns.iter().any(|turn| turn.trim().is_empty()) {
        return Err("a turn is empty".into());
    }
    // Other copies hold model answers there, as a list.
    let object = row.reference.filter(Value::is_object);
    let reference = object.map(serde_json::from_value).transpose();
    Ok(PublicRow {
        id,
        turns: row.turns,
        reference: reference.map_err(|e| format!("`reference`: {e}"))?,
    })
}

/// The objects of a file with the 0-based line, or number, of each.
fn values(path: &Path) -> Result<Vec<(usize, Value)>> {
    if path
        .extension()
        .is_some_and(|extension| extension == "parquet")
    {
        return Ok(parquet::rows(path)?.into_iter().enumerate().collect());
    }
    let text = read_text(path)?;
    if text.trim_start().starts_with('[') {
        let all: Vec<Value> = serde_json::from_str(&text).map_err(|e| Error::Row {
            path: path.to_path_buf(),
            line: e.line(),
            why: e.to_string(),
        })?;
        return Ok(all.into_iter().enumerate().collect());
    }
    // Only a line feed ends a line of JSON: texts hold other line separators.
    let lines = text.split('\n').enumerate();
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(i, line)| {
            Ok((
                i,
                serde_json::from_str(line).map_err(|e| row_error(path, i, e))?,
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests;
