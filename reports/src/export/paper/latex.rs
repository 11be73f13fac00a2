//! A paper's table in LaTeX.

use crate::plain::folded;

use super::{LEGEND, PaperCell, PaperTable, PaperValue, Rank};

impl PaperTable {
    /// A `table` with a `tabular` of booktabs rules, so that the document needs `\usepackage{booktabs}`.
    pub fn latex(&self) -> String {
        let averages = ["mean", "geo. mean"];
        let names = self.suites.iter().map(String::as_str).chain(averages);
        let names: Vec<String> = names.map(escaped).collect();
        let width = names.len() + 1;
        let mut out = String::from("\\begin{table}[t]\n\\centering\n");
        out.push_str(&format!("\\caption{{{}}}\n", self.caption()));
        out.push_str(&format!(
            "\\begin{{tabular}}{{l{}}}\n",
            "r".repeat(names.len())
        ));
        out.push_str(&format!("\\toprule\nMethod & {} \\\\\n", names.join(" & ")));
        for block in &self.blocks {
            let target = escaped(&block.target);
            out.push_str(&format!(
                "\\midrule\n\\multicolumn{{{width}}}{{l}}{{\\textit{{{target}}}}} \\\\\n"
            ));
            for row in &block.rows {
                out.push_str(&escaped(&row.method));
                for cell in &row.cells {
                    out.push_str(&format!(" & {}", self::cell(cell)));
                }
                out.push_str(" \\\\\n");
            }
        }
        out.push_str("\\bottomrule\n\\end{tabular}\n\\end{table}\n");
        out
    }

    fn caption(&self) -> String {
        let mut parts = vec![escaped(&format!("{}.", self.title()))];
        for line in LEGEND {
            let line = escaped(line);
            let line = line.replacen("dagger", "$^{\\dagger}$", 1);
            parts.push(line.replacen("star", "$^{*}$", 1));
        }
        parts.extend(self.notes.iter().map(|n| escaped(&format!("{n}."))));
        parts.join(" ")
    }
}

fn cell(cell: &PaperCell) -> String {
    let speedup = number(cell.speedup, "$\\times$");
    format!("{speedup} / {}", number(cell.tau, ""))
}

fn number(value: Option<PaperValue>, unit: &str) -> String {
    let Some(PaperValue {
        value,
        rank,
        differs,
    }) = value
    else {
        return "--".into();
    };
    let text = format!("{value:.2}{unit}");
    let text = match rank {
        Rank::Best => format!("\\textbf{{{text}}}"),
        Rank::Second => format!("\\underline{{{text}}}"),
        Rank::Other => text,
    };
    text + match differs {
        Some(true) => "$^{*}$",
        Some(false) => "$^{\\dagger}$",
        None => "",
    }
}

/// One line of text without meaning to LaTeX: a blank line would end the paragraph, which a caption must not hold.
fn escaped(text: &str) -> String {
    let text = folded(text);
    let each = text.chars().map(|c| match c {
        '&' | '%' | '$' | '#' | '_' | '{' | '}' => format!("\\{c}"),
        '~' => "\\textasciitilde{}".into(),
        '^' => "\\textasciicircum{}".into(),
        '\\' => "\\textbackslash{}".into(),
        '<' => "\\textless{}".into(),
        '>' => "\\textgreater{}".into(),
        '|' => "\\textbar{}".into(),
        _ => c.into(),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::table;
    use super::escaped;

    #[test]
    fn a_table_compiles_as_papers_print_it() {
        let got = table().latex();
        let want = "\
\\begin{tabular}{lrrrr}
\\toprule
Method & a\\_b & z & mean & geo. mean \\\\
\\midrule
\\multicolumn{5}{l}{\\textit{toy}} \\\\
vanilla & 1.00$\\times$ / 1.00 & 1.00$\\times$ / 1.00 & 1.00$\\times$ / 1.00 & 1.00$\\times$ / 1.00 \\\\
new & \\textbf{2.00$\\times$} / \\underline{2.00}$^{\\dagger}$ & -- / -- & -- / -- & -- / -- \\\\
old & \\underline{1.00$\\times$}$^{*}$ / \\textbf{3.00} & 1.00$\\times$ / 3.00 & 1.00$\\times$ / 3.00 & 1.00$\\times$ / 3.00 \\\\
\\bottomrule
\\end{tabular}
\\end{table}
";
        assert!(got.ends_with(want), "{got}");
        assert!(got.starts_with("\\begin{table}[t]\n\\centering\n\\caption{Speedup / tau, greedy"));
        assert!(
            got.contains("rate of 5 \\% over") && got.contains("z: 50 \\% of it."),
            "{got}"
        );
        let open = got.matches('{').count() - got.matches("\\{").count();
        assert_eq!(open, got.matches('}').count() - got.matches("\\}").count());
    }

    #[test]
    fn specials_lose_their_meaning() {
        let got = escaped("50 % of $x_1 & #{y} ~ ^ \\");
        let want = "50 \\% of \\$x\\_1 \\& \\#\\{y\\} \\textasciitilde{} \\textasciicircum{} \\textbackslash{}";
        assert_eq!(got, want);
        assert_eq!(escaped("out of\n\n\tmemory\r\n"), "out of memory");
    }
}
