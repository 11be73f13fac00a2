//! A paper's table in Markdown.

use crate::plain::markdown as escaped;

use super::{LEGEND, PaperCell, PaperTable, PaperValue, Rank};

impl PaperTable {
    /// Title, table and legend. Best bold, second underlined by the `u` tag, marks as raised signs.
    pub fn markdown(&self) -> String {
        let mut out = format!("**{}**\n\n| target | method |", escaped(&self.title()));
        let averages = ["mean", "geo. mean"];
        let names = self.suites.iter().map(String::as_str).chain(averages);
        let names: Vec<String> = names.map(|n| format!(" {} |", escaped(n))).collect();
        out.push_str(&names.concat());
        out.push_str(&format!("\n|---|---|{}\n", "---:|".repeat(names.len())));
        for block in &self.blocks {
            for row in &block.rows {
                let (target, method) = (escaped(&block.target), escaped(&row.method));
                out.push_str(&format!("| {target} | {method} |"));
                for cell in &row.cells {
                    out.push_str(&format!(" {} |", self::cell(cell)));
                }
                out.push('\n');
            }
        }
        out.push('\n');
        for line in LEGEND {
            let line = line.replacen("dagger", "†", 1).replacen("star", "\\*", 1);
            out.push_str(&format!("{line}\n"));
        }
        for note in &self.notes {
            out.push_str(&format!("- {}\n", escaped(note)));
        }
        out
    }
}

fn cell(cell: &PaperCell) -> String {
    format!("{} / {}", number(cell.speedup, "x"), number(cell.tau, ""))
}

fn number(value: Option<PaperValue>, unit: &str) -> String {
    let Some(PaperValue {
        value,
        rank,
        differs,
    }) = value
    else {
        return "-".into();
    };
    let text = format!("{value:.2}{unit}");
    let text = match rank {
        Rank::Best => format!("**{text}**"),
        Rank::Second => format!("<u>{text}</u>"),
        Rank::Other => text,
    };
    text + match differs {
        Some(true) => "\\*",
        Some(false) => "†",
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::table;

    #[test]
    fn a_table_reads_as_papers_print_it() {
        let want = "\
**Speedup / tau, greedy, thinking off, concurrency 1**

| target | method | a\\_b | z | mean | geo. mean |
|---|---|---:|---:|---:|---:|
| toy | vanilla | 1.00x / 1.00 | 1.00x / 1.00 | 1.00x / 1.00 | 1.00x / 1.00 |
| toy | new | **2.00x** / <u>2.00</u>† | - / - | - / - | - / - |
| toy | old | <u>1.00x</u>\\* / **3.00** | 1.00x / 3.00 | 1.00x / 3.00 | 1.00x / 3.00 |
";
        let got = table().markdown();
        assert!(got.starts_with(want), "{got}");
        assert!(
            got.contains("\n†: not distinguishable from the best; \\*: below"),
            "{got}"
        );
        assert!(got.ends_with("- toy, new on z: 50 % of it\n"), "{got}");
    }
}
