//! A report as JUnit XML, as test dashboards read it: a suite a layer, a case a check.

use super::{Layer, Report, Verdict, Weight};

impl Report {
    /// JUnit XML. A check that fails is a failure, one that is incomparable an error, and what is inconclusive or only
    /// advisory is skipped with its reason.
    pub fn junit(&self) -> String {
        let mut out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned();
        let [tests, failures, errors, skipped] = self
            .layers
            .iter()
            .map(counts)
            .fold([0; 4], |sum, of| std::array::from_fn(|i| sum[i] + of[i]));
        out.push_str(&format!(
            "<testsuites name=\"draftbench gate\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\">\n"
        ));
        for layer in &self.layers {
            let [tests, failures, errors, skipped] = counts(layer);
            let name = escape(&layer.id.to_string());
            out.push_str(&format!(
                "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\">\n"
            ));
            for check in &layer.checks {
                let (case, detail) = (escape(&check.name), escape(&check.detail));
                out.push_str(&format!(
                    "    <testcase classname=\"{name}\" name=\"{case}\">"
                ));
                out.push_str(&match kind(layer, check.verdict) {
                    Kind::Passed => format!("<system-out>{detail}</system-out>"),
                    Kind::Failed => format!("<failure message=\"{detail}\"/>"),
                    Kind::Error => format!("<error message=\"{detail}\"/>"),
                    Kind::Skipped => format!(
                        "<skipped message=\"{}: {detail}\"/>",
                        told(layer, check.verdict)
                    ),
                });
                out.push_str("</testcase>\n");
            }
            out.push_str("  </testsuite>\n");
        }
        out + "</testsuites>\n"
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Passed,
    Failed,
    Error,
    Skipped,
}

fn kind(layer: &Layer, verdict: Verdict) -> Kind {
    match (verdict, layer.weight) {
        (Verdict::Pass, _) => Kind::Passed,
        (_, Weight::Advisory) | (Verdict::Inconclusive, _) => Kind::Skipped,
        (Verdict::Fail, _) => Kind::Failed,
        (Verdict::Incomparable, _) => Kind::Error,
    }
}

fn told(layer: &Layer, verdict: Verdict) -> String {
    match layer.weight {
        Weight::Binding => verdict.to_string(),
        Weight::Advisory => format!("advisory, {verdict}"),
    }
}

/// Tests, failures, errors, skipped.
fn counts(layer: &Layer) -> [usize; 4] {
    let of = |wanted: Kind| {
        let kinds = layer.checks.iter().map(|c| kind(layer, c.verdict));
        kinds.filter(|k| *k == wanted).count()
    };
    [
        layer.checks.len(),
        of(Kind::Failed),
        of(Kind::Error),
        of(Kind::Skipped),
    ]
}

/// For attributes and text. Control characters, which XML cannot hold even escaped, become the replacement character.
fn escape(text: &str) -> String {
    let each = text.chars().map(|c| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        '\'' => "&apos;".to_owned(),
        '\n' | '\t' | '\r' => format!("&#{};", c as u32),
        c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => '\u{fffd}'.to_string(),
        c => c.to_string(),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_forbids_is_escaped_or_replaced() {
        assert_eq!(
            escape("a<b> & \"c\" 'd'\n\u{1b}[0m"),
            "a&lt;b&gt; &amp; &quot;c&quot; &apos;d&apos;&#10;\u{fffd}[0m"
        );
    }
}
