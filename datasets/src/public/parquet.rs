//! Parquet files of the hub: a row becomes a JSON object. Snappy-packed and plain pages are read.

use crate::{Error, Result};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::{Map, Value};
use std::fs::File;
use std::path::Path;

/// Every row, in order. Columns of a kind that no suite reads (bytes, decimals, dates) become `null`.
///
/// # Errors
/// [`Error::Io`] if the file cannot be opened, [`Error::Row`] if it is not Parquet or is damaged; the line is then
/// the number of the row.
pub(super) fn rows(path: &Path) -> Result<Vec<Value>> {
    let io = |source| Error::Io {
        path: path.to_path_buf(),
        source,
    };
    let bad = |row_idx: usize, why: &dyn std::fmt::Display| Error::Row {
        path: path.to_path_buf(),
        line: row_idx + 1,
        why: format!("not readable as Parquet: {why}"),
    };
    let reader = SerializedFileReader::new(File::open(path).map_err(io)?);
    let reader = reader.map_err(|e| bad(0, &e))?;
    let rows = reader.get_row_iter(None).map_err(|e| bad(0, &e))?;
    rows.enumerate()
        .map(|(row_idx, row)| Ok(object(&row.map_err(|e| bad(row_idx, &e))?)))
        .collect()
}

fn object(row: &Row) -> Value {
    let pair = |(name, field): (&String, &Field)| (name.clone(), value(field));
    Value::Object(row.get_column_iter().map(pair).collect::<Map<_, _>>())
}

fn value(field: &Field) -> Value {
    match field {
        Field::Bool(b) => Value::from(*b),
        Field::Byte(n) => Value::from(*n),
        Field::Short(n) => Value::from(*n),
        Field::Int(n) => Value::from(*n),
        Field::Long(n) => Value::from(*n),
        Field::UByte(n) => Value::from(*n),
        Field::UShort(n) => Value::from(*n),
        Field::UInt(n) => Value::from(*n),
        Field::ULong(n) => Value::from(*n),
        Field::Float(x) => Value::from(*x),
        Field::Double(x) => Value::from(*x),
        Field::Str(text) => Value::from(text.as_str()),
        Field::Group(row) => object(row),
        Field::ListInternal(list) => list.elements().iter().map(value).collect(),
        _ => Value::Null,
    }
}
