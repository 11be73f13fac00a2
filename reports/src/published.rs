//! Figures that papers and projects published, and which of ours, if any, each may stand beside.

mod fit;

use std::path::{Path, PathBuf};

pub use fit::{Beside, Fit, PublishedAt, Quantity, fit, stand_beside};

/// Columns of the reference file, in its order.
const COLUMNS: [&str; 12] = [
    "paper",
    "table",
    "target",
    "method",
    "temperature",
    "thinking",
    "engine",
    "hardware",
    "concurrency",
    "dataset",
    "metric",
    "value",
];
/// Columns that a file must have.
const NEEDED: [&str; 5] = ["target", "method", "dataset", "metric", "value"];

/// One published figure, spelled as its source spells it; empty is what the source does not say.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Paper, page or thread.
    pub paper: String,
    /// Where in it.
    pub table: String,
    /// The target.
    pub target: String,
    /// The method, with what sets it apart from others of its name.
    pub method: String,
    /// Sampling temperature; 0 is greedy.
    pub temperature: String,
    /// `on`, `off` or `n/a`.
    pub thinking: String,
    /// The program that decoded.
    pub engine: String,
    /// The machine.
    pub hardware: String,
    /// Sequences at once.
    pub concurrency: String,
    /// The data set.
    pub dataset: String,
    /// What is measured; the unit is the source's.
    pub metric: String,
    /// The figure.
    pub value: f64,
}

/// Why a file of reference figures cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PublishedError {
    /// A column has a name that nothing reads.
    #[error(
        "{file:?}: column {column:?} is unknown; rename it to one of {known}, or take it out", known = COLUMNS.join(", ")
    )]
    Column {
        /// The file.
        file: PathBuf,
        /// The column.
        column: String,
    },
    /// A column is missing, or there twice.
    #[error("{file:?}: column {column:?} is needed once; it is there {times} times")]
    Count {
        /// The file.
        file: PathBuf,
        /// The column.
        column: String,
        /// How often it is there.
        times: usize,
    },
    /// A line cannot be read.
    #[error("{file:?} line {line}: {why}")]
    Line {
        /// The file.
        file: PathBuf,
        /// 1-based line.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

/// The figures that ship with the program, of `reports/reference/published.csv`.
pub fn published() -> Vec<Published> {
    let text = include_str!("../reference/published.csv");
    parse_published(text, Path::new("published.csv"))
        .expect("the file is part of the source, and a test reads it")
}

/// Reads comma-separated figures with a line of column names; `file` only names them in errors. Target, method,
/// dataset, metric and value must be there, the other columns may be left out. A field may be quoted; it holds no line
/// break.
///
/// # Errors
/// [`PublishedError`] at the first column or line that cannot be read.
pub fn parse_published(text: &str, file: &Path) -> Result<Vec<Published>, PublishedError> {
    let mut lines = text.lines().enumerate();
    let broken = |line_idx: usize, why: String| PublishedError::Line {
        file: file.to_owned(),
        line: line_idx + 1,
        why,
    };
    let header = lines.next().map_or("", |(_, line)| line);
    let header = fields(header).map_err(|why| broken(0, why))?;
    let places = places(&header, file)?;
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(line_idx, line)| {
            let fields = fields(line).map_err(|why| broken(line_idx, why))?;
            if fields.len() != header.len() {
                let (found, wanted) = (fields.len(), header.len());
                let why = format!("{found} fields, the first line names {wanted} columns");
                return Err(broken(line_idx, why));
            }
            row(&fields, &places).map_err(|why| broken(line_idx, why))
        })
        .collect()
}

/// Where each of [`COLUMNS`] stands.
fn places(header: &[String], file: &Path) -> Result<[Option<usize>; 12], PublishedError> {
    if let Some(column) = header.iter().find(|c| !COLUMNS.contains(&c.as_str())) {
        return Err(PublishedError::Column {
            file: file.to_owned(),
            column: column.clone(),
        });
    }
    for column in COLUMNS {
        let times = header.iter().filter(|c| *c == column).count();
        if times > 1 || (times == 0 && NEEDED.contains(&column)) {
            return Err(PublishedError::Count {
                file: file.to_owned(),
                column: column.to_owned(),
                times,
            });
        }
    }
    Ok(COLUMNS.map(|column| header.iter().position(|c| c == column)))
}

fn row(fields: &[String], places: &[Option<usize>; 12]) -> Result<Published, String> {
    let texts = places.map(|at| at.map_or_else(String::new, |at| fields[at].clone()));
    let [
        paper,
        table,
        target,
        method,
        temperature,
        thinking,
        engine,
        hardware,
        concurrency,
        dataset,
        metric,
        value,
    ] = texts;
    let number = value.parse::<f64>().ok().filter(|v| v.is_finite());
    Ok(Published {
        paper,
        table,
        target,
        method,
        temperature,
        thinking,
        engine,
        hardware,
        concurrency,
        dataset,
        metric,
        value: number.ok_or_else(|| format!("value {value:?} is no number"))?,
    })
}

/// The fields of one line of CSV.
fn fields(line: &str) -> Result<Vec<String>, String> {
    let mut found = vec![String::new()];
    let (mut quoted, mut chars) = (false, line.chars().peekable());
    while let Some(c) = chars.next() {
        let at = found.len() - 1;
        let field = &mut found[at];
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' if quoted || field.is_empty() => quoted = !quoted,
            ',' if !quoted => found.push(String::new()),
            _ => field.push(c),
        }
    }
    match quoted {
        true => Err("a quote is left open".into()),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        let error = parse_published(text, Path::new("mine.csv")).unwrap_err();
        error.to_string()
    }

    #[test]
    fn the_shipped_figures_are_read() {
        let all = published();
        assert_eq!(all.len(), 4323);
        let is = |p: &&Published| {
            (p.table.as_str(), p.target.as_str(), p.method.as_str())
                == ("Table 1", "Qwen3-4B", "DFlash (block 16)")
                && (
                    p.dataset.as_str(),
                    p.metric.as_str(),
                    p.temperature.as_str(),
                ) == ("gsm8k", "accept_len", "0")
        };
        assert_eq!(all.iter().find(is).unwrap().value, 6.53);
        assert!(all.iter().any(|p| p.engine == "SGLang (FA4, Spec-v2)"));
    }

    #[test]
    fn columns_may_stand_in_any_order_and_some_be_left_out() {
        let text = "value,metric,dataset,method,target\n2.5,speedup,\"a, \"\"b\"\"\",m,t\n\n";
        let got = parse_published(text, Path::new("mine.csv")).unwrap();
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].value, got[0].dataset.as_str()), (2.5, "a, \"b\""));
        assert_eq!((got[0].paper.as_str(), got[0].target.as_str()), ("", "t"));
    }

    #[test]
    fn a_wrong_file_is_told_with_column_and_remedy() {
        let got = message("target,method,dataset,metric,tau\n");
        assert!(
            got.starts_with(
                "\"mine.csv\": column \"tau\" is unknown; rename it to one of paper, table"
            ),
            "{got}"
        );
        assert!(
            message("target,method,dataset,metric\n")
                .contains("\"value\" is needed once; it is there 0")
        );
        assert!(message("value,value,target,method,dataset,metric\n").contains("there 2 times"));
        let head = "target,method,dataset,metric,value\n";
        assert!(
            message(&format!("{head}a,b,c,d,fast\n"))
                .contains("line 2: value \"fast\" is no number")
        );
        assert!(
            message(&format!("{head}\na,b,c,1\n"))
                .contains("line 3: 4 fields, the first line names 5")
        );
        assert!(message(&format!("{head}a,\"b,c,d,1\n")).contains("line 2: a quote is left open"));
    }
}
