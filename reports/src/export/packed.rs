//! The same columns as Parquet.

use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use super::columns::{Column, Columns, Values};

/// Why columns cannot be packed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The Parquet writer refused.
    #[error("the Parquet file cannot be made: {0}")]
    Parquet(#[from] ParquetError),
    /// A count is too large for a signed 64-bit column.
    #[error("column {column:?} holds {value}, a Parquet file holds counts up to 2^63 - 1")]
    Count {
        /// The column.
        column: String,
        /// The count.
        value: u64,
    },
}

impl Columns {
    /// A Parquet file of one row group: text as UTF-8 strings, counts as INT64, numbers as DOUBLE, all optional,
    /// packed by Snappy. The same columns give the same bytes.
    ///
    /// # Errors
    /// [`ExportError::Count`] for a count from 2^63 on; [`ExportError::Parquet`] if the writer refuses.
    pub fn parquet(&self) -> Result<Vec<u8>, ExportError> {
        let fields: Result<Vec<_>, ParquetError> = self.columns.iter().map(field).collect();
        let schema = Type::group_type_builder("draftbench")
            .with_fields(fields?)
            .build()?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("draftbench ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let mut writer =
            SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
        let mut group = writer.next_row_group()?;
        for column in &self.columns {
            write(&mut group, column)?;
        }
        group.close()?;
        Ok(writer.into_inner()?)
    }
}

fn field(column: &Column) -> Result<Arc<Type>, ParquetError> {
    let (physical, logical) = match column.values {
        Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Values::Count(_) => (Physical::INT64, None),
        Values::Real(_) => (Physical::DOUBLE, None),
    };
    let field = Type::primitive_type_builder(&column.name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .build()?;
    Ok(Arc::new(field))
}

fn write(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    column: &Column,
) -> Result<(), ExportError> {
    let Some(mut writer) = group.next_column()? else {
        return Err(ParquetError::General("fewer columns than the schema has".into()).into());
    };
    match &column.values {
        Values::Text(values) => {
            let present: Vec<ByteArray> =
                values.iter().flatten().map(|v| v.as_str().into()).collect();
            let levels = levels(values);
            let typed = writer.typed::<ByteArrayType>();
            typed.write_batch(&present, Some(&levels), None)?;
        }
        Values::Count(values) => {
            let signed = |value: &u64| {
                i64::try_from(*value).map_err(|_too_large| ExportError::Count {
                    column: column.name.clone(),
                    value: *value,
                })
            };
            let present: Result<Vec<i64>, ExportError> =
                values.iter().flatten().map(signed).collect();
            let levels = levels(values);
            let typed = writer.typed::<Int64Type>();
            typed.write_batch(&present?, Some(&levels), None)?;
        }
        Values::Real(values) => {
            let present: Vec<f64> = values.iter().flatten().copied().collect();
            let levels = levels(values);
            let typed = writer.typed::<DoubleType>();
            typed.write_batch(&present, Some(&levels), None)?;
        }
    }
    Ok(writer.close()?)
}

/// 1 for a value, 0 for a null.
fn levels<T>(values: &[Option<T>]) -> Vec<i16> {
    values.iter().map(|v| i16::from(v.is_some())).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use parquet::file::reader::{FileReader as _, SerializedFileReader};

    use super::super::columns::tests::sample;
    use super::*;

    #[test]
    fn a_parquet_file_reads_back_with_its_types_and_nulls() {
        let mut columns = sample();
        columns.columns[1].values = Values::Count(vec![Some(3), None, Some(1 << 40)]);
        let bytes = columns.parquet().unwrap();
        assert_eq!(bytes, columns.parquet().unwrap());
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let rows: Vec<String> = reader
            .get_row_iter(None)
            .unwrap()
            .map(|row| row.unwrap().to_string())
            .collect();
        let want = [
            "{name: \"a, \"b\"\", step_ns: 3, tau: 0.1}",
            "{name: null, step_ns: null, tau: null}",
            "{name: \"ü\n\", step_ns: 1099511627776, tau: 2.0}",
        ];
        assert_eq!(rows, want);
    }

    #[test]
    fn a_count_that_does_not_fit_is_named() {
        let text = sample().parquet().unwrap_err().to_string();
        assert!(
            text.starts_with("column \"step_ns\" holds 18446744073709551615"),
            "{text}"
        );
    }
}
