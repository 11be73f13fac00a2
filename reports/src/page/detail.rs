//! The table of all cells, one a row.

use std::collections::BTreeSet;

use super::data::{Data, Setting};
use super::html::{arm, attr, esc, millis, percent, rate, span, times, two};
use super::notes::Notes;
use super::tables::{sorter, verdict};
use crate::metrics::{CellStats, Equality};
use crate::percentile;
use crate::record::Cell;

/// Name of each column of numbers.
const NUMBERS: [&str; 15] = [
    "tau",
    "tau, 95\u{a0}%",
    "speedup",
    "speedup, 95\u{a0}%",
    "tok/s",
    "throughput, tok/s",
    "accepted",
    "repeated 8-grams",
    "tau, no loops",
    "equal text",
    "answers",
    "prompts",
    "first token, ms",
    "a token, ms",
    "correct",
];

/// What a cell is named by beside its method: name and kind of the column, and what stands in it.
type Axis = (&'static str, &'static str, fn(&Cell) -> String);

const AXES: [Axis; 6] = [
    ("suite", "text", |cell| cell.suite.clone()),
    ("target", "text", |cell| cell.target.clone()),
    ("sampling", "text", |cell| cell.sampling.to_string()),
    ("thinking", "text", |cell| cell.thinking.to_string()),
    ("concurrency", "number", |cell| cell.concurrency.to_string()),
    ("arrivals", "text", |cell| cell.arrivals.to_string()),
];

pub(crate) fn html(data: &Data<'_>, notes: &Notes) -> String {
    // What is the same in every cell is said once.
    let is_same = |of: fn(&Cell) -> String| {
        let mut values = data.stats.keys().map(of);
        let first = values.next();
        values
            .all(|value| Some(value) == first)
            .then_some(first)
            .flatten()
    };
    let (mut axes, mut same) = (Vec::new(), Vec::new());
    for axis in AXES {
        match is_same(axis.2) {
            Some(value) => same.push(format!("{} {}", axis.0, esc(&value))),
            None => axes.push(axis),
        }
    }
    let same = match same.is_empty() {
        true => String::new(),
        false => format!(" The same in all: {}.", same.join(", ")),
    };
    let mut out = format!(
        "<div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"All cells\"><table id=\"cells\" class=\"detail sortable\"><caption><span>One row a cell. Times are medians; tok/s is of one sequence, throughput of all together; accepted is the share of verified drafts.{same}</span></caption><thead><tr>{}",
        sorter("method", "", "text")
    );
    for (name, kind, _) in &axes {
        out.push_str(&sorter(name, "", kind));
    }
    for name in NUMBERS {
        out.push_str(&sorter(name, "", "number"));
    }
    out.push_str("<th scope=\"col\">notes</th></tr></thead><tbody>");
    for setting in &data.settings {
        for suite in data.suites_of(setting) {
            for method in data.arms_of(setting) {
                if let Some(stat) = data.stat(setting, suite, method) {
                    let cell = setting.cell(suite, method);
                    out.push_str(&row(data, &cell, stat, (&axes, notes)));
                }
            }
        }
    }
    out + "</tbody></table></div>"
}

fn row(data: &Data<'_>, cell: &Cell, stat: &CellStats, with: (&[Axis], &Notes)) -> String {
    let (axes, notes) = with;
    let mut out = format!(
        "<tr{}{}{}><th scope=\"row\">{}</th>",
        Setting::of(cell).attrs(),
        attr("data-suite", &cell.suite),
        attr("data-method", &cell.method),
        arm(&cell.method)
    );
    for (_, kind, of) in axes {
        let value = esc(&of(cell));
        out.push_str(&match *kind {
            "number" => format!("<td data-v=\"{value}\">{value}</td>"),
            _ => format!("<td class=\"text\">{value}</td>"),
        });
    }
    match &stat.trouble {
        Some(why) => {
            let (n, why) = (NUMBERS.len(), esc(why));
            out.push_str(&format!("<td class=\"text\" colspan=\"{n}\">{why}</td>"));
        }
        None => out.push_str(&numbers(stat, data.n_prompts(cell))),
    }
    let marks = notes.marks(cell, &BTreeSet::new());
    out + &format!("<td>{marks}</td></tr>")
}

fn numbers(stat: &CellStats, n_prompts: usize) -> String {
    let interval = |ends: Option<(f64, f64)>| match ends {
        Some(ends) => format!(
            "<td class=\"iv\" data-v=\"{:.6}\">{}</td>",
            ends.0,
            span(ends)
        ),
        None => number(None, two),
    };
    let median = |values: &[u64]| number(percentile(values, 50.0), millis);
    let whole = |n: usize| number(Some(n as f64), |v| format!("{v}"));
    let correct = match stat.correct {
        Some((right, of)) => format!(
            "<td data-v=\"{:.6}\">{right}/{of}</td>",
            right as f64 / of.max(1) as f64
        ),
        None => number(None, two),
    };
    [
        number(stat.tau, two),
        interval(
            stat.tau_interval
                .filter(|_| stat.equality != Equality::Reference),
        ),
        number(stat.speedup, times),
        interval(stat.speedup_interval),
        number(stat.tokens_per_sec, rate),
        number(stat.throughput, rate),
        number(stat.accepted_share, percent),
        number(stat.repeated_share, percent),
        number(stat.tau_without_loops, two),
        verdict(stat.equality, ""),
        whole(stat.n_answers),
        whole(n_prompts),
        median(&stat.latency.first_token),
        median(&stat.latency.per_token),
        correct,
    ]
    .concat()
}

fn number(value: Option<f64>, form: impl Fn(f64) -> String) -> String {
    match value {
        Some(value) => format!("<td data-v=\"{value:.6}\">{}</td>", form(value)),
        None => "<td>\u{2013}</td>".into(),
    }
}
