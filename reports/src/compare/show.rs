//! A comparison for a terminal, a page or a program.

use comfy_table::{CellAlignment, Table, TableComponent, presets};

use super::{Comparison, Finding, Row, Versus, Word};
use crate::paired::Figure;

const HEAD: [&str; 8] = [
    "method",
    "suite",
    "prompts",
    "tau",
    "tau change",
    "throughput change",
    "speedup change",
    "text",
];

const DEFINITIONS: &str = "\
Changes are of a run over the reference, over the prompts that both answered, with 95 % intervals over prompts.
better, worse: the interval leaves zero. no difference: it lies within 1 % of tau or 3 % of a time.
inconclusive: fewer than 5 prompts, or an interval that holds both zero and more than that.
What a busy machine adds from run to run is in throughput, less in speedup, and in neither interval.
";

impl Comparison {
    /// For a terminal, without colour.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for versus in &self.others {
            out.push_str(&format!("{} against {}\n", versus.label, self.reference));
            for line in versus.remarks() {
                out.push_str(&format!("{line}\n"));
            }
            for rows in versus.blocks() {
                let mut table = Table::new();
                table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
                table.remove_style(TableComponent::HorizontalLines);
                table.remove_style(TableComponent::MiddleIntersections);
                table.set_header(HEAD);
                for row in rows {
                    table.add_row(row.columns("\n"));
                }
                for (idx, column) in table.column_iter_mut().enumerate() {
                    if (2..7).contains(&idx) {
                        column.set_cell_alignment(CellAlignment::Right);
                    }
                }
                out.push_str(&format!("\n{}\n{}\n", rows[0].title(), table.trim_fmt()));
            }
            for why in versus.whys() {
                out.push_str(&format!("{why}\n"));
            }
            out.push('\n');
        }
        out.push_str(DEFINITIONS);
        out
    }

    /// As a section of a Markdown document.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        for versus in &self.others {
            let (label, reference) = (escape(&versus.label), escape(&self.reference));
            out.push_str(&format!("## {label} against {reference}\n\n"));
            for line in versus.remarks() {
                out.push_str(&format!("- {}\n", escape(&line)));
            }
            for rows in versus.blocks() {
                out.push_str(&format!("\n**{}**\n\n", escape(&rows[0].title())));
                out.push_str(&format!(
                    "| {} |\n|{}\n",
                    HEAD.join(" | "),
                    "---|".repeat(HEAD.len())
                ));
                for row in rows {
                    let columns = row.columns("<br>").into_iter();
                    let columns: Vec<String> = columns.map(|c| c.replace('|', "\\|")).collect();
                    out.push_str(&format!("| {} |\n", columns.join(" | ")));
                }
            }
            out.push('\n');
            for why in versus.whys() {
                out.push_str(&format!("- {}\n", escape(&why)));
            }
            out.push('\n');
        }
        out.push_str(DEFINITIONS);
        out
    }

    /// For programs.
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("a comparison has string keys") + "\n"
    }
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('|', "\\|")
        .replace('*', "\\*")
        .replace('_', "\\_")
}

impl Versus {
    fn remarks(&self) -> Vec<String> {
        let why = self
            .incomparable
            .iter()
            .map(|why| format!("incomparable: {why}"));
        why.chain(self.notes.iter().map(|note| format!("note: {note}")))
            .collect()
    }

    /// Rows by setting.
    fn blocks(&self) -> Vec<&[Row]> {
        let mut rows: Vec<&[Row]> = self.rows.chunk_by(|a, b| a.title() == b.title()).collect();
        rows.retain(|r| !r.is_empty());
        rows
    }

    /// Why a word is no verdict, once each.
    fn whys(&self) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        for finding in self.rows.iter().flat_map(|r| &r.findings) {
            if let Some(why) = &finding.why {
                let line = match finding.word {
                    Word::Incomparable if finding.figure != Figure::Tau => {
                        format!("times are {}: {why}", finding.word)
                    }
                    word => format!("{word}: {why}"),
                };
                if !out.contains(&line) {
                    out.push(line);
                }
            }
        }
        out
    }
}

impl Row {
    fn title(&self) -> String {
        let pool = &self.pool;
        let title = format!(
            "{}, {}, thinking {}, concurrency {}",
            pool.target, pool.sampling, pool.thinking, pool.concurrency
        );
        match pool.arrivals {
            crate::ArrivalKey::Closed => title,
            open => format!("{title}, {open}"),
        }
    }

    fn columns(&self, new_line: &str) -> Vec<String> {
        let taus = self
            .taus
            .map_or("-".to_owned(), |(a, b)| format!("{a:.2} > {b:.2}"));
        let finding = |figure: Figure| {
            let found = self.findings.iter().find(|f| f.figure == figure);
            found.map_or(String::new(), |f| f.cell(new_line))
        };
        let text = match self.equal {
            None => "-".to_owned(),
            Some((equal, of)) if equal == of => format!("equal {equal}/{of}"),
            Some((equal, of)) => format!("DIFFERS {}/{of}", of - equal),
        };
        vec![
            self.pool.method.clone(),
            self.suite.clone().unwrap_or_else(|| "all".to_owned()),
            self.n_prompts.to_string(),
            taus,
            finding(Figure::Tau),
            finding(Figure::Throughput),
            finding(Figure::Speedup),
            text,
        ]
    }
}

impl Finding {
    fn cell(&self, new_line: &str) -> String {
        match &self.effect {
            Some(effect) => format!("{effect}{new_line}{}", self.word),
            None => self.word.to_string(),
        }
    }
}
