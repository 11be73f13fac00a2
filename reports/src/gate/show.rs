//! A report for a terminal, for GitHub and for programs.

use super::{Layer, Report, Verdict, Weight};

impl Report {
    /// For a terminal, without colour: a line a layer, below it what did not pass, and the verdict last.
    pub fn text(&self) -> String {
        let mut out = format!("gate: {} against {}\n", self.candidate, self.reference);
        if let Some(null) = &self.null {
            out.push_str(&format!("null control: {null}\n"));
        }
        for layer in &self.layers {
            out.push_str(&format!("{:<17} {}\n", layer.id.to_string(), layer.told()));
            for check in &layer.checks {
                out.push_str(&format!(
                    "  {:<13} {}: {}\n",
                    check.verdict.to_string(),
                    check.name,
                    check.detail
                ));
            }
        }
        for note in &self.notes {
            out.push_str(&format!("note: {note}\n"));
        }
        out + &format!(
            "verdict: {} (exit code {})\n",
            self.verdict,
            self.verdict.exit_code()
        )
    }

    /// For the summary of a GitHub step.
    pub fn markdown(&self) -> String {
        let mut out = format!("## draftbench gate: {}\n\n", self.verdict);
        out.push_str(&format!(
            "{} against {}\n\n",
            escape(&self.candidate),
            escape(&self.reference)
        ));
        out.push_str("| layer | verdict | passed |\n|---|---|---|\n");
        for layer in &self.layers {
            let passed = layer
                .checks
                .iter()
                .filter(|c| c.verdict == Verdict::Pass)
                .count();
            out.push_str(&format!(
                "| {} | {} | {passed} of {} |\n",
                layer.id,
                layer.told(),
                layer.checks.len()
            ));
        }
        for layer in &self.layers {
            out.push_str(&format!("\n<details><summary>{}</summary>\n\n", layer.id));
            out.push_str("| check | verdict | |\n|---|---|---|\n");
            for check in &layer.checks {
                out.push_str(&format!(
                    "| {} | {} | {} |\n",
                    escape(&check.name),
                    check.verdict,
                    escape(&check.detail)
                ));
            }
            out.push_str("\n</details>\n");
        }
        if !self.notes.is_empty() {
            out.push('\n');
        }
        for note in &self.notes {
            out.push_str(&format!("- {}\n", escape(note)));
        }
        out
    }

    /// GitHub workflow commands: an error for what fails, a warning for what cannot be told, a notice for each note.
    pub fn annotations(&self) -> String {
        let mut out = String::new();
        for layer in &self.layers {
            for check in layer.checks.iter().filter(|c| c.verdict != Verdict::Pass) {
                let level = match (layer.weight, check.verdict) {
                    (Weight::Binding, Verdict::Fail) => "error",
                    _ => "warning",
                };
                let title = property(&format!("gate {}: {}", layer.id, layer.said(check.verdict)));
                let text = data(&format!("{}: {}", check.name, check.detail));
                out.push_str(&format!("::{level} title={title}::{text}\n"));
            }
        }
        for note in &self.notes {
            out.push_str(&format!("::notice title=gate::{}\n", data(note)));
        }
        out
    }

    /// For programs.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has string keys") + "\n"
    }
}

impl Layer {
    fn told(&self) -> String {
        self.said(self.verdict)
    }

    fn said(&self, verdict: Verdict) -> String {
        match self.weight {
            Weight::Binding => verdict.to_string(),
            Weight::Advisory => format!("{verdict} (advisory)"),
        }
    }
}

/// The text of a workflow command.
fn data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

/// A property of a workflow command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// For a cell of a Markdown table.
fn escape(text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('\n', " ");
    text.replace('|', "\\|")
        .replace('*', "\\*")
        .replace('_', "\\_")
        .replace('`', "\\`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workflow_commands_are_escaped() {
        assert_eq!(data("5 %\nof: a, b"), "5 %25%0Aof: a, b");
        assert_eq!(property("gate: a, b"), "gate%3A a%2C b");
        assert_eq!(escape("a|b <c>\n*d*"), "a\\|b &lt;c> \\*d\\*");
    }
}
