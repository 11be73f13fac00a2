//! A table as named, typed columns, and its CSV.

use crate::plain::csv_field;

/// A table; all columns are equally long.
#[derive(Clone, Debug, PartialEq)]
pub struct Columns {
    /// In the order of the file.
    pub columns: Vec<Column>,
}

/// One column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Unit at the end where it has one: `prefill_ns`.
    pub name: String,
    /// One a row; `None` is an empty field in CSV and null in Parquet.
    pub values: Values,
}

/// Values of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// UTF-8.
    Text(Vec<Option<String>>),
    /// Whole numbers.
    Count(Vec<Option<u64>>),
    /// Finite numbers.
    Real(Vec<Option<f64>>),
}

impl Values {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(values) => values.len(),
            Self::Count(values) => values.len(),
            Self::Real(values) => values.len(),
        }
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn field(&self, row: usize) -> String {
        let text = match self {
            Self::Text(values) => values[row].as_deref().map(csv_field),
            Self::Count(values) => values[row].map(|v| v.to_string()),
            Self::Real(values) => values[row].map(|v| v.to_string()),
        };
        text.unwrap_or_default()
    }
}

impl Columns {
    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.columns.first().map_or(0, |c| c.values.len())
    }

    /// Comma-separated values with a line of names, quoted as RFC 4180 says, lines ended by a line feed. A number has
    /// as many digits as bring the same number back.
    pub fn csv(&self) -> String {
        let mut out = line(self.columns.iter().map(|c| csv_field(&c.name)));
        for row in 0..self.n_rows() {
            out.push_str(&line(self.columns.iter().map(|c| c.values.field(row))));
        }
        out
    }
}

fn line(fields: impl Iterator<Item = String>) -> String {
    fields.collect::<Vec<_>>().join(",") + "\n"
}

/// Makes columns of one list of rows.
pub(super) struct Builder<'a, R> {
    rows: &'a [R],
    columns: Vec<Column>,
}

impl<'a, R> Builder<'a, R> {
    pub(super) fn new(rows: &'a [R]) -> Self {
        Self {
            rows,
            columns: Vec::new(),
        }
    }

    fn add(&mut self, name: &str, values: Values) -> &mut Self {
        self.columns.push(Column {
            name: name.to_owned(),
            values,
        });
        self
    }

    pub(super) fn text(&mut self, name: &str, of: impl Fn(&R) -> Option<String>) -> &mut Self {
        let values = Values::Text(self.rows.iter().map(of).collect());
        self.add(name, values)
    }

    pub(super) fn count(&mut self, name: &str, of: impl Fn(&R) -> Option<u64>) -> &mut Self {
        let values = Values::Count(self.rows.iter().map(of).collect());
        self.add(name, values)
    }

    pub(super) fn real(&mut self, name: &str, of: impl Fn(&R) -> Option<f64>) -> &mut Self {
        let finite = |row| of(row).filter(|v| v.is_finite());
        let values = Values::Real(self.rows.iter().map(finite).collect());
        self.add(name, values)
    }

    pub(super) fn finish(self) -> Columns {
        Columns {
            columns: self.columns,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One column of each type, with a null in each.
    pub(crate) fn sample() -> Columns {
        let rows = [
            (Some("a, \"b\""), Some(3), Some(0.1)),
            (None, None, Some(f64::NAN)),
            (Some("ü\n"), Some(u64::MAX), Some(2.0)),
        ];
        let mut builder = Builder::new(&rows);
        builder
            .text("name", |r| r.0.map(str::to_owned))
            .count("step_ns", |r| r.1)
            .real("tau", |r| r.2);
        builder.finish()
    }

    #[test]
    fn csv_quotes_what_needs_it_and_leaves_nulls_empty() {
        let want = "name,step_ns,tau\n\"a, \"\"b\"\"\",3,0.1\n,,\n\"ü\n\",18446744073709551615,2\n";
        assert_eq!(sample().csv(), want);
        assert_eq!(
            (sample().n_rows(), Columns { columns: vec![] }.csv()),
            (3, "\n".into())
        );
    }
}
