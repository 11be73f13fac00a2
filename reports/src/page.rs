//! `report.html`: one file that shows what records say, to a reader with a browser and no network.

mod bars;
mod chart;
pub(crate) mod data;
mod detail;
mod drafters;
mod figure;
mod filters;
mod frontier;
mod html;
pub(crate) mod mean;
mod notes;
pub(crate) mod plots;
mod provenance;
pub(crate) mod rounds;
mod speedups;
mod summary;
mod svg;
mod synthetic;
mod tables;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::coverage::CoverageRecord;
use crate::plots::NamedPlot;
use crate::record::{Cell, Record};
use crate::training_log::TrainingLog;
use data::Data;
use html::{count, esc};
use notes::Notes;

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
const DEFINITIONS: &str = include_str!("page/definitions.html");

/// What a page is made of.
#[derive(Clone, Copy, Debug)]
pub struct PageInput<'a> {
    /// Above everything.
    pub title: &'a str,
    /// Of any number of runs, as long as no cell is in two of them.
    pub records: &'a [Record],
    /// The `run.json` of each run, shown as provenance; may be empty. Methods and suites are in the order of its
    /// `asked`.
    pub runs: &'a [Value],
    /// Arms whose acceptance was given instead of measured, and their vanilla: in a section of their own, and nowhere
    /// else; may be empty.
    pub synthetic: &'a [Record],
    /// What else a reader must know about a cell, such as that its times did not settle; equal texts share a footnote.
    pub flags: &'a [(Cell, String)],
    /// Ranks of right tokens in drafters' slots; may be empty.
    pub coverage: &'a [CoverageRecord],
    /// How drafters were trained; may be empty.
    pub training: &'a [TrainingLog],
}

/// The page as HTML: it loads nothing, and every string of the input is shown as text.
pub fn page(input: &PageInput<'_>) -> String {
    written(input, &Data::new(input))
}

/// [`page()`] and [`crate::report_plots`], which read the same pools, in the time of one.
pub fn page_and_plots(input: &PageInput<'_>) -> (String, Vec<NamedPlot>) {
    let data = Data::new(input);
    (written(input, &data), crate::plots::drawn(&data))
}

fn written(input: &PageInput<'_>, data: &Data<'_>) -> String {
    let notes = Notes::new(input, data);
    let title = esc(input.title);
    let mut sections = vec![
        ("summary", "Summary", summary::html(input, data, &notes)),
        ("results", "Results", tables::sections(data, &notes)),
        ("behaviour", "Behaviour", plots::html(data)),
        ("drafters", "Drafters", drafters::html(input)),
        (
            "synthetic",
            "Synthetic acceptance",
            synthetic::html(input.synthetic),
        ),
        ("all-cells", "All cells", detail::html(data, &notes)),
        ("notes", "Notes", notes.html(data.stats.len())),
        ("definitions", "Definitions", DEFINITIONS.to_owned()),
        ("provenance", "Provenance", provenance::html(input.runs)),
    ];
    sections.retain(|section| !section.2.is_empty());
    let links: String = sections
        .iter()
        .map(|(id, name, _)| format!("<li><a href=\"#{id}\">{name}</a></li>"))
        .collect();
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\"><link rel=\"icon\" href=\"data:,\"><title>{title}</title><style>{STYLE}</style></head>\n<body><a class=\"skip\" href=\"#main\">Skip to the content</a>{PATTERNS}<header class=\"top\"><h1>{title}</h1><p class=\"small\">{}</p></header><div class=\"bar\"><nav aria-label=\"Sections\"><ul>{links}</ul></nav><button type=\"button\" id=\"theme\" class=\"js-only\">theme: system</button></div><main id=\"main\" tabindex=\"-1\">",
        about(input, data)
    );
    for (id, name, inside) in sections {
        out.push_str(&format!(
            "\n<section id=\"{id}\" aria-labelledby=\"h-{id}\"><h2 id=\"h-{id}\">{name}</h2>{inside}</section>"
        ));
        if id == "summary" {
            out.push_str(&filters::html(data));
        }
    }
    out + &format!("\n</main><script>{SCRIPT}</script></body></html>\n")
}

/// What lies over the colours of parts that stand beside each other.
const PATTERNS: &str = "<svg width=\"0\" height=\"0\" class=\"patterns\" aria-hidden=\"true\"><defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><path d=\"M0,0V6\" class=\"over\"/></pattern><pattern id=\"dots\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><circle cx=\"3\" cy=\"3\" r=\"1.3\" class=\"over\"/></pattern></defs></svg>";

/// One line that says how much there is.
fn about(input: &PageInput<'_>, data: &Data<'_>) -> String {
    let answers: usize = data.stats.values().map(|s| s.n_answers).sum();
    let runs: Vec<&str> = input
        .runs
        .iter()
        .filter_map(|r| r["run"].as_str())
        .collect();
    let of = match runs.is_empty() {
        true => String::new(),
        false => format!(" Run {}.", esc(&runs.join(", "))),
    };
    format!(
        "{}, {}, {}, {}.{of}",
        count(answers, "answer"),
        count(data.stats.len(), "cell"),
        count(data.arms.len(), "method"),
        count(data.suites.len(), "suite")
    )
}
