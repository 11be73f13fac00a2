//! The tables in the papers' layout: methods as rows, suites as columns, speedup and tau a cell.

use std::collections::BTreeSet;

use super::data::{Data, Setting};
use super::html::{arm, attr, esc, span, times, two};
use super::notes::{Notes, links};
use super::speedups;
use crate::Share;
use crate::metrics::Equality;
use crate::places::{Rank, places};

/// A section a setting: its table and its plot of speedups.
pub(crate) fn sections(data: &Data<'_>, notes: &Notes) -> String {
    let mut out = String::new();
    for (idx, setting) in data.settings.iter().enumerate() {
        let table = Table::new(data, setting, notes);
        out.push_str(&format!(
            "<section class=\"setting\"{}><h3>{}</h3>{}",
            setting.attrs(),
            esc(&setting.title()),
            table.html()
        ));
        match speedups::figure(data, setting, &format!("s{idx}")) {
            Ok(figure) => out.push_str(&figure.html("")),
            Err(why) => out.push_str(&format!(
                "<p class=\"small\">No plot of speedups: {}.</p>",
                esc(&why)
            )),
        }
        out.push_str("</section>");
    }
    out
}

/// A table of more rows scrolls in itself, below its head.
const TALL: usize = 20;

/// One column of numbers: a suite or the mean, by one measure.
struct Column {
    /// What filters read.
    attrs: String,
    /// One entry a row.
    values: Vec<Option<Share>>,
    form: fn(f64) -> String,
    /// One entry a row.
    ranks: Vec<Rank>,
}

struct Table<'a> {
    data: &'a Data<'a>,
    setting: &'a Setting,
    notes: &'a Notes,
    suites: Vec<&'a str>,
    arms: Vec<&'a str>,
    /// Notes of all cells with answers, said once.
    common: BTreeSet<usize>,
}

impl<'a> Table<'a> {
    fn new(data: &'a Data<'a>, setting: &'a Setting, notes: &'a Notes) -> Self {
        let its = data.stats.keys();
        let its = its.filter(|c| Setting::of(c) == *setting && data.n_prompts(c) > 0);
        Self {
            data,
            setting,
            notes,
            suites: data.suites_of(setting),
            arms: data.arms_of(setting),
            common: notes.common(its),
        }
    }

    fn columns(&self) -> Vec<Column> {
        let mut columns = Vec::new();
        for suite in &self.suites {
            let attrs = attr("data-suite", suite);
            let stat = |arm: &&str| {
                let stat = self.data.stat(self.setting, suite, arm);
                stat.filter(|s| s.trouble.is_none())
            };
            let speedup = |arm: &&str| {
                let stat = stat(arm)?;
                Some(Share {
                    value: stat.speedup?,
                    interval: stat.speedup_interval,
                })
            };
            let tau = |arm: &&str| {
                let stat = stat(arm)?;
                Some(Share {
                    value: stat.tau?,
                    interval: stat.tau_interval.filter(|_| *arm != "vanilla"),
                })
            };
            let is_ranked = |arm: &&str| self.data.is_ranked(self.setting, suite, arm);
            columns.push(self.column(&attrs, is_ranked, speedup, times));
            columns.push(self.column(&attrs, is_ranked, tau, two));
        }
        if self.suites.len() > 1 {
            let standing = |arm: &&str| self.data.standing(self.setting, arm);
            let is_ranked = |arm: &&str| self.data.is_ranked_throughout(self.setting, arm);
            columns.push(self.column("", is_ranked, |arm| standing(arm).speedup, times));
            columns.push(self.column("", is_ranked, |arm| standing(arm).tau, two));
        }
        columns
    }

    fn column(
        &self,
        attrs: &str,
        is_ranked: impl Fn(&&str) -> bool,
        value: impl Fn(&&str) -> Option<Share>,
        form: fn(f64) -> String,
    ) -> Column {
        let values: Vec<Option<Share>> = self.arms.iter().map(value).collect();
        let ranked = self.arms.iter().zip(&values).map(|(arm, share)| {
            let share = share.filter(|_| is_ranked(arm))?;
            Some(share.value)
        });
        let ranks = places(&ranked.collect::<Vec<_>>());
        Column {
            attrs: attrs.to_owned(),
            values,
            form,
            ranks,
        }
    }

    fn html(&self) -> String {
        let columns = self.columns();
        let title = esc(&self.setting.title());
        let tall = if self.arms.len() > TALL { " tall" } else { "" };
        let marks = links(self.common.iter().copied());
        let all = match marks.is_empty() {
            true => String::new(),
            false => format!(" All cells: note{marks}."),
        };
        let mut out = format!(
            "<div class=\"scroll{tall}\" tabindex=\"0\" role=\"region\" aria-label=\"Results, {title}\"><table class=\"grid sortable\"><caption><span><span class=\"vh\">{title}. </span>Speedup and tau with 95\u{a0}% intervals; <strong>best</strong> and <u>second</u> method of a column.{all}</span></caption>{}<tbody>",
            self.head()
        );
        for (row, name) in self.arms.iter().enumerate() {
            out.push_str(&format!(
                "<tr{}><th scope=\"row\">{}</th>",
                attr("data-method", name),
                arm(name)
            ));
            for (idx, column) in columns.iter().enumerate() {
                // The marks of a cell stand at its first number.
                let suite = self.suites.get(idx / 2).filter(|_| idx % 2 == 0);
                let marks = suite.map_or_else(String::new, |suite| {
                    let cell = self.setting.cell(suite, name);
                    self.notes.marks(&cell, &self.common)
                });
                out.push_str(&column.cell(row, idx % 2 == 0, &marks));
            }
            out.push_str(&self.equal(name));
            out.push_str("</tr>");
        }
        out + "</tbody></table></div>"
    }

    fn head(&self) -> String {
        let mut top = String::from("<tr><td></td>");
        let mut below = sorter("method", "", "text");
        let mut pair = |name: &str, attrs: &str| {
            top.push_str(&format!(
                "<th scope=\"colgroup\" colspan=\"2\" class=\"first\"{attrs}>{}</th>",
                esc(name)
            ));
            below.push_str(&sorter(
                "speedup",
                &format!("{attrs} class=\"first\""),
                "number",
            ));
            below.push_str(&sorter("tau", attrs, "number"));
        };
        for suite in &self.suites {
            pair(suite, &attr("data-suite", suite));
        }
        if self.suites.len() > 1 {
            pair("mean of suites", "");
        }
        below.push_str(&sorter("equal text", " class=\"first\"", "number"));
        format!("<thead>{top}<td class=\"first\"></td></tr><tr>{below}</tr></thead>")
    }

    /// How many answers are vanilla's, over all suites.
    fn equal(&self, arm: &str) -> String {
        let stats = self.suites.iter();
        let stats = stats.filter_map(|suite| self.data.stat(self.setting, suite, arm));
        let each = stats.filter(|s| s.trouble.is_none()).map(|s| s.equality);
        let all = each.reduce(Equality::and).unwrap_or(Equality::Unknown);
        verdict(all, " class=\"first\"")
    }
}

impl Column {
    fn cell(&self, row: usize, is_first: bool, marks: &str) -> String {
        let class = if is_first { " class=\"first\"" } else { "" };
        let Some(share) = self.values[row] else {
            return format!("<td{}{class}>\u{2013}{marks}</td>", self.attrs);
        };
        let number = (self.form)(share.value);
        let number = match self.ranks[row] {
            Rank::Best => format!("<strong>{number}</strong>"),
            Rank::Second => format!("<u>{number}</u>"),
            Rank::Other => number,
        };
        let interval = share.interval.map_or_else(String::new, |i| {
            format!("<span class=\"iv\">{}</span>", span(i))
        });
        format!(
            "<td{}{class} data-v=\"{:.6}\">{number}{marks}{interval}</td>",
            self.attrs, share.value
        )
    }
}

/// The cell that says whether text is vanilla's.
pub(crate) fn verdict(equality: Equality, class: &str) -> String {
    match equality {
        Equality::Reference => format!("<td{class}>reference</td>"),
        Equality::Law => format!("<td{class}>in law</td>"),
        Equality::Unknown => format!("<td{class}>\u{2013}</td>"),
        Equality::Exact { equal, of } => {
            let tag = match equal == of {
                true => format!("{equal}/{of}"),
                false => format!("<span class=\"tag bad\">{equal}/{of}</span>"),
            };
            let share = equal as f64 / of.max(1) as f64;
            format!("<td{class} data-v=\"{share:.6}\">{tag}</td>")
        }
    }
}

/// A column's head with the button that sorts by it.
pub(crate) fn sorter(name: &str, attrs: &str, kind: &str) -> String {
    format!(
        "<th scope=\"col\" aria-sort=\"none\" data-kind=\"{kind}\"{attrs}><button type=\"button\">{}</button></th>",
        esc(name)
    )
}
