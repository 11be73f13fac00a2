//! The form that hides what a reader does not want to see; the script of the page works it.

use std::collections::BTreeSet;

use super::data::Data;
use super::html::{arm, attr, count, esc};
use crate::record::Cell;

/// Name of an axis and a cell's value on it.
type Axis = (&'static str, fn(&Cell) -> String);

pub(crate) fn html(data: &Data<'_>) -> String {
    let axes: [Axis; 6] = [
        ("target", |c| c.target.clone()),
        ("suite", |c| c.suite.clone()),
        ("sampling", |c| c.sampling.to_string()),
        ("thinking", |c| c.thinking.to_string()),
        ("concurrency", |c| c.concurrency.to_string()),
        ("arrivals", |c| c.arrivals.to_string()),
    ];
    let (mut selects, mut fixed) = (String::new(), Vec::new());
    for (name, of) in axes {
        let values = values(data, name, of);
        if let [only] = values.as_slice() {
            fixed.push(format!("{name} {}", esc(only)));
        }
        let options: String = values
            .iter()
            .map(|v| format!("<option{}>{}</option>", attr("value", v), esc(v)))
            .collect();
        // One value leaves nothing to choose.
        let hidden = if values.len() < 2 { " hidden" } else { "" };
        selects.push_str(&format!(
            "<label{hidden}>{name} <select name=\"{name}\"><option value=\"\">all {}</option>{options}</select></label>",
            values.len()
        ));
    }
    let boxes: String = data
        .arms
        .iter()
        .map(|name| {
            let value = attr("value", name);
            format!(
                "<label><input type=\"checkbox\" name=\"method\"{value} checked> {}</label>",
                arm(name)
            )
        })
        .collect();
    let same = match fixed.is_empty() {
        true => String::new(),
        false => format!(" Same everywhere: {}.", fixed.join(", ")),
    };
    format!(
        "<form id=\"filters\" class=\"filters\" aria-label=\"Filters\">{selects}<details class=\"methods\"><summary>methods <span id=\"n-methods\">all {}</span></summary><div class=\"boxes\"><p><button type=\"button\" id=\"all\">all</button> <button type=\"button\" id=\"none\">none</button></p>{boxes}</div></details><button type=\"button\" id=\"clear\">clear filters</button><p class=\"small\"><span id=\"status\" role=\"status\">{} shown</span> below.{same}</p></form><p id=\"nothing\" class=\"nothing\" hidden>Nothing matches these filters. <button type=\"button\" id=\"reset\">clear filters</button></p>",
        data.arms.len(),
        count(data.stats.len(), "cell")
    )
}

/// Values of an axis, in the order of the page.
fn values(data: &Data<'_>, axis: &str, of: fn(&Cell) -> String) -> Vec<String> {
    match axis {
        "suite" => data.suites.clone(),
        "concurrency" => {
            let all: BTreeSet<u32> = data.stats.keys().map(|c| c.concurrency).collect();
            all.into_iter().map(|c| c.to_string()).collect()
        }
        _ => {
            let all: BTreeSet<String> = data.stats.keys().map(of).collect();
            all.into_iter().collect()
        }
    }
}
