//! A table with a name, for readers (Markdown) and for programs (CSV).

use std::fmt::Write as _;

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
        let mut out = format!("**{}**\n\n", self.title);
        let escape = |cell: &String| cell.replace('|', "\\|");
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(escape).collect();
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
            write!(out, "\n{note}\n").expect("a String takes any text");
        }
        out
    }

    /// Header and rows; a cell with a comma, a quote or a line break is quoted.
    pub fn csv(&self) -> String {
        let cell = |text: &String| match text.contains([',', '"', '\n']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.clone(),
        };
        let line = |cells: &Vec<String>| {
            let cells: Vec<String> = cells.iter().map(cell).collect();
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
        sheet.notes.push("Greedy.".into());
        let want = "**tau by K**\n\n| K | tau, all |\n|---|---:|\n| a\\|b | 1,5 |\n\nGreedy.\n";
        assert_eq!(sheet.markdown(), want);
        assert_eq!(sheet.csv(), "K,\"tau, all\"\na|b,\"1,5\"\n");
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
