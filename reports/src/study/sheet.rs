//! A table with a name, for readers (Markdown) and for programs (CSV).

use std::fmt::Write as _;

use crate::plain::{csv_field, markdown};

/// One table of the study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sheet {
    /// Names its file and its place in a document: lower case, no spaces.
    pub id: &'static str,
    /// Above the table.
    pub title: String,
    /// Column names.
    pub header: Vec<String>,
    /// As many cells a row as the header has.
    pub rows: Vec<Vec<String>>,
    /// Below the table, a line each: definitions, and what differs from the source of a published value.
    pub notes: Vec<String>,
}

impl Sheet {
    pub(crate) fn new(id: &'static str, title: &str, header: &[&str]) -> Self {
        Self {
            id,
            title: title.to_owned(),
            header: header.iter().map(|h| (*h).to_owned()).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Title, table and notes.
    pub fn markdown(&self) -> String {
        let mut out = format!("**{}**\n\n", markdown(&self.title));
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|c| markdown(c)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        out.push_str(&line(&self.header));
        let rule = self.header.iter().enumerate().map(|(i, _)| match i {
            0 => "---",
            _ => "---:",
        });
        let rule: Vec<&str> = rule.collect();
        // Writing to a String cannot fail.
        writeln!(out, "|{}|", rule.join("|")).expect("a String takes any text");
        self.rows.iter().for_each(|row| out.push_str(&line(row)));
        for note in &self.notes {
            write!(out, "\n{}\n", markdown(note)).expect("a String takes any text");
        }
        out
    }

    /// Header and rows; a cell with a comma, a quote, a line feed or a carriage return is quoted.
    pub fn csv(&self) -> String {
        let line = |cells: &Vec<String>| {
            let cells: Vec<String> = cells.iter().map(|c| csv_field(c)).collect();
            cells.join(",") + "\n"
        };
        std::iter::once(&self.header)
            .chain(&self.rows)
            .map(line)
            .collect()
    }
}

/// Puts `text` between `<!-- generated: id -->` and `<!-- end: id -->` of a document, in place of what is there;
/// `None` if the document lacks the two marks, in this order.
pub fn splice(document: &str, id: &str, text: &str) -> Option<String> {
    let (begin, end) = (
        format!("<!-- generated: {id} -->"),
        format!("<!-- end: {id} -->"),
    );
    let from = document.find(&begin)? + begin.len();
    let to = from + document[from..].find(&end)?;
    Some(format!(
        "{}\n{}\n{}",
        &document[..from],
        text.trim_end(),
        &document[to..]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_reads_as_markdown_and_as_csv() {
        let mut sheet = Sheet::new("k", "tau by K", &["K", "tau, all"]);
        sheet.rows.push(vec!["a|b".into(), "1,5".into()]);
        sheet.notes.push("Greedy <b>\n\n_x_.".into());
        let want = "**tau by K**\n\n| K | tau, all |\n|---|---:|\n| a\\|b | 1,5 |\n\nGreedy \\<b> \\_x\\_.\n";
        assert_eq!(sheet.markdown(), want);
        assert_eq!(sheet.csv(), "K,\"tau, all\"\na|b,\"1,5\"\n");
        sheet.rows = vec![vec!["a\rb".into(), "2".into()]];
        assert_eq!(sheet.csv(), "K,\"tau, all\"\n\"a\rb\",2\n");
    }

    #[test]
    fn only_what_stands_between_the_marks_is_replaced() {
        let text = "# Study\n<!-- generated: k -->\nold\n<!-- end: k -->\nProse.\n";
        let got = splice(text, "k", "new\n").unwrap();
        assert_eq!(
            got,
            "# Study\n<!-- generated: k -->\nnew\n<!-- end: k -->\nProse.\n"
        );
        assert_eq!(splice(&got, "k", "new\n"), Some(got.clone()));
        assert_eq!(splice(text, "gamma", "new"), None);
    }
}
