//! Levels as OpenMetrics text, for a scraper or a push gateway.

use crate::acceptance::Convention;
use crate::levels::{Estimate, LevelRow};

/// A sample's own labels and value.
type Sample = (Vec<(&'static str, String)>, f64);

/// Values with the end of an interval that each is, if it is one.
type Ends = Vec<(Option<&'static str>, f64)>;

/// One gauge family.
struct Family {
    name: &'static str,
    /// The last word of the name, if it is a unit.
    unit: Option<&'static str>,
    help: &'static str,
    of: fn(&LevelRow) -> Vec<Sample>,
}

const FAMILIES: [Family; 6] = [
    Family {
        name: "draftbench_acceptance_length_tokens",
        unit: Some("tokens"),
        help: "Tokens per round by convention; tau is committed tokens over rounds.",
        of: |row| {
            let lengths = Convention::ALL.iter().filter_map(|convention| {
                let label = vec![("convention", convention.name().to_owned())];
                Some((label, row.conventions.length(*convention)?))
            });
            lengths.collect()
        },
    },
    Family {
        name: "draftbench_speedup_ratio",
        unit: Some("ratio"),
        help: "Vanilla over the method, by what is timed.",
        of: |row| each(row, |e| vec![(None, e.value)]),
    },
    Family {
        name: "draftbench_interval_ratio",
        unit: Some("ratio"),
        help: "Ends of the 95 % intervals of tau (tokens per round) and of the speedups.",
        of: |row| {
            let ends = |e: Estimate| {
                let ends = e
                    .interval
                    .map(|(low, high)| [(Some("low"), low), (Some("high"), high)]);
                ends.into_iter().flatten().collect()
            };
            let mut samples = labelled("tau", row.tau, ends);
            samples.extend(each(row, ends));
            samples
        },
    },
    Family {
        name: "draftbench_tokens_per_second",
        unit: None,
        help: "Committed tokens a second, of one sequence and of all sequences together.",
        of: |row| {
            let of = |kind: &str, rate: Option<f64>| {
                rate.map(|rate| (vec![("of", kind.to_owned())], rate))
            };
            [
                of("sequence", row.tokens_per_sec),
                of("batch", row.throughput),
            ]
            .into_iter()
            .flatten()
            .collect()
        },
    },
    Family {
        name: "draftbench_share_ratio",
        unit: Some("ratio"),
        help: "Drafts accepted of those verified; 8-grams repeated of all.",
        of: |row| {
            let of = |kind: &str, share: Option<f64>| {
                share.map(|share| (vec![("of", kind.to_owned())], share))
            };
            [
                of("accepted", row.accepted_share),
                of("repeated", row.repeated_share),
            ]
            .into_iter()
            .flatten()
            .collect()
        },
    },
    Family {
        name: "draftbench_sample_size",
        unit: None,
        help: "Answers, prompts and rounds behind the numbers.",
        of: |row| {
            [
                ("answers", row.n_answers),
                ("prompts", row.n_prompts),
                ("rounds", row.n_rounds),
            ]
            .map(|(kind, n)| (vec![("of", kind.to_owned())], n as f64))
            .to_vec()
        },
    },
];

fn each(row: &LevelRow, of: fn(Estimate) -> Ends) -> Vec<Sample> {
    [
        ("decode", row.speedup_decode),
        ("end_to_end", row.speedup_end_to_end),
        ("throughput", row.throughput_ratio),
    ]
    .into_iter()
    .flat_map(|(kind, estimate)| labelled(kind, estimate, of))
    .collect()
}

fn labelled(kind: &str, estimate: Option<Estimate>, of: fn(Estimate) -> Ends) -> Vec<Sample> {
    let samples = estimate.into_iter().flat_map(of);
    samples
        .map(|(end, value)| {
            let mut labels = vec![("kind", kind.to_owned())];
            labels.extend(end.map(|end| ("end", end.to_owned())));
            (labels, value)
        })
        .collect()
}

/// All rows as gauges without a time stamp; a number that does not exist has no sample. Labels are the coordinates of
/// the row and those that its family names; a coordinate that the row pools over is left out. Ends with `# EOF`.
///
/// Source: OpenMetrics 1.0, text format.
pub fn openmetrics(rows: &[LevelRow]) -> String {
    let mut out = String::new();
    for Family {
        name,
        unit,
        help,
        of,
    } in &FAMILIES
    {
        out.push_str(&format!("# TYPE {name} gauge\n"));
        if let Some(unit) = unit {
            out.push_str(&format!("# UNIT {name} {unit}\n"));
        }
        out.push_str(&format!("# HELP {name} {help}\n"));
        for row in rows {
            for (own, value) in of(row) {
                let labels = coordinates(row).into_iter().chain(own);
                let labels: Vec<String> = labels
                    .map(|(key, value)| format!("{key}=\"{}\"", escaped(&value)))
                    .collect();
                out.push_str(&format!("{name}{{{}}} {value}\n", labels.join(",")));
            }
        }
    }
    out.push_str("# EOF\n");
    out
}

fn coordinates(row: &LevelRow) -> Vec<(&'static str, String)> {
    let key = &row.key;
    let optional = [
        ("target", key.target.clone()),
        ("domain", key.domain.map(|d| d.to_string())),
        ("suite", key.suite.clone()),
    ];
    let mut labels = vec![("level", key.level.to_string())];
    labels.extend(optional.into_iter().filter_map(|(k, v)| Some((k, v?))));
    labels.extend([
        ("sampling", key.sampling.to_string()),
        ("thinking", key.thinking.to_string()),
        ("concurrency", key.concurrency.to_string()),
        ("arrivals", key.arrivals.to_string()),
        ("method", key.method.clone()),
    ]);
    labels
}

fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levels;
    use crate::record::tests::{answer, record};

    #[test]
    fn families_stand_together_and_the_text_ends() {
        let mut records = Vec::new();
        for prompt in ["a", "b"] {
            records.push(record("vanilla", prompt, answer(&[(0, 1); 6])));
            records.push(record("df\"1\\", prompt, answer(&[(2, 3), (2, 3)])));
        }
        let text = openmetrics(&levels(&records));
        assert!(text.ends_with("\n# EOF\n"));
        let at = "level=\"suite\",target=\"toy\",domain=\"other\",suite=\"mini\",sampling=\"greedy\",\
                  thinking=\"off\",concurrency=\"1\",arrivals=\"closed\",method=\"df\\\"1\\\\\"";
        for want in [
            format!("draftbench_acceptance_length_tokens{{{at},convention=\"tau\"}} 3\n"),
            format!("draftbench_speedup_ratio{{{at},kind=\"decode\"}} 1\n"),
            format!("draftbench_interval_ratio{{{at},kind=\"tau\",end=\"low\"}} 3\n"),
            format!("draftbench_sample_size{{{at},of=\"rounds\"}} 4\n"),
            "# UNIT draftbench_speedup_ratio ratio\n".to_owned(),
        ] {
            assert!(text.contains(&want), "{want} in {text}");
        }
        let mut names: Vec<&str> = text
            .lines()
            .filter(|l| !l.starts_with('#'))
            .map(|l| l.split('{').next().unwrap())
            .collect();
        names.dedup();
        assert_eq!(names.len(), FAMILIES.len());
        // No sample twice.
        let mut samples: Vec<&str> = text
            .lines()
            .filter_map(|l| l.rsplit_once(' '))
            .map(|l| l.0)
            .collect();
        let n = samples.len();
        samples.sort_unstable();
        samples.dedup();
        // HELP lines are not samples and never equal.
        assert_eq!(samples.len(), n);
        for Family { name, unit, .. } in &FAMILIES {
            assert!(unit.is_none_or(|u| name.ends_with(&format!("_{u}"))));
        }
    }
}
