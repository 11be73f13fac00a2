//! The table of what clients wait for when sequences share the machine.

use comfy_table::{CellAlignment, Table, TableComponent, presets};

use crate::ArrivalKey;
use crate::latency::percentile;
use crate::metrics::CellStats;

/// What the columns mean.
pub(crate) const DEFINITIONS: [&str; 4] = [
    "first, token, answer, step: milliseconds from a slot to the first token; from first to last token, over the",
    "  tokens between; from a slot to the last token; from one round's tokens to the next. A percentile that the",
    "  sample cannot bound is -. whole: tokens over the batch's wall time, prefills included. plateau: the same over",
    "  the longest span with 0.9 of the slots taken, and its part of all tokens; it needs 10 answers a slot.",
];

/// What is different in open loop.
pub(crate) const OPEN_LOOP: [&str; 3] = [
    "poisson-N: N requests come in 1000 seconds on average, at random times that are the same for every method. first",
    "  and answer begin when a request comes, queue is its part before a slot is free; req/s is of answers over the",
    "  whole time. Requests set the pace here, so the speedup is that of decode time per token and not of throughput.",
];

/// `(suite, method, numbers)` a row.
pub(crate) fn table(rows: &[(&str, &str, &CellStats)], arrivals: ArrivalKey) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.remove_style(TableComponent::HorizontalLines);
    table.remove_style(TableComponent::MiddleIntersections);
    let mut head = vec!["\nsuite", "\nmethod"];
    if !arrivals.is_closed() {
        head.extend(["queue, ms\np50", "\np90"]);
    }
    head.extend([
        "first, ms\np50",
        "\np90",
        "token, ms\np50",
        "\np90",
        "answer, ms\np50",
        "\np90",
        "step, ms\np50",
        "\np99",
        "tok/s\nwhole",
    ]);
    head.push(match arrivals {
        ArrivalKey::Closed => "\nplateau",
        ArrivalKey::Poisson(_) => "\nreq/s",
    });
    table.set_header(head);
    for (suite, method, stat) in rows {
        let latency = &stat.latency;
        let mut row = vec![(*suite).to_owned(), (*method).to_owned()];
        let queue = (&latency.queue, 90.0);
        let queue = (!arrivals.is_closed()).then_some(queue);
        for (values, high) in queue.into_iter().chain([
            (&latency.first_token, 90.0),
            (&latency.per_token, 90.0),
            (&latency.answer, 90.0),
            (&latency.step, 99.0),
        ]) {
            row.extend([50.0, high].map(|p| millis(percentile(values, p))));
        }
        let whole = latency.makespan_tokens_per_sec;
        row.push(whole.map_or_else(|| "-".into(), |v| format!("{v:.0}")));
        row.push(match arrivals {
            ArrivalKey::Closed => latency.plateau.map_or_else(
                || "n/a".into(),
                |p| format!("{:.0} ({:.0} %)", p.tokens_per_sec, 100.0 * p.share),
            ),
            ArrivalKey::Poisson(_) => latency
                .answers_per_sec
                .map_or_else(|| "-".into(), |v| format!("{v:.3}")),
        });
        table.add_row(row);
    }
    for (idx, column) in table.column_iter_mut().enumerate() {
        if idx > 1 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

fn millis(ns: Option<f64>) -> String {
    match ns.map(|ns| ns / 1e6) {
        None => "-".into(),
        Some(ms) if ms < 10.0 => format!("{ms:.2}"),
        Some(ms) => format!("{ms:.0}"),
    }
}
