//! What a reader must know about single cells, as numbered footnotes.

use std::collections::{BTreeMap, BTreeSet};

use super::PageInput;
use super::data::Data;
use super::html::{count, esc, percent};
use crate::metrics::Equality;
use crate::record::{Cell, Outcome, Record};

/// Below this number of prompts a sample is called small.
const PROMPTS: usize = 30;

/// In the order of footnotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Failed,
    Skipped,
    Differs,
    Flag,
    Unsettled,
    Degenerate,
    LeftOut,
    Small,
}

/// One footnote.
pub(crate) struct Note {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    /// With what is to be said of each alone, or nothing.
    pub(crate) cells: Vec<(Cell, String)>,
}

/// All footnotes; the number of one is its place, from 1.
pub(crate) struct Notes {
    pub(crate) all: Vec<Note>,
    of: BTreeMap<Cell, Vec<usize>>,
}

impl Notes {
    pub(crate) fn new(input: &PageInput<'_>, data: &Data<'_>) -> Self {
        let mut found: BTreeMap<(Kind, String), BTreeMap<Cell, String>> = BTreeMap::new();
        let mut add = |kind, text: String, cell: &Cell, alone: String| {
            let its = found.entry((kind, text)).or_default();
            its.insert(cell.clone(), alone);
        };
        for (cell, kind, why) in troubles(input.records) {
            let verb = match kind {
                Kind::Failed => "Failed",
                _ => "Skipped",
            };
            add(kind, format!("{verb}: {why}"), cell, String::new());
        }
        for (cell, why) in left_out(input.records) {
            let (n, text) = (why.1.len(), format!("Prompts left out: {}", why.0));
            add(Kind::LeftOut, text, cell, count(n, "prompt or turn"));
        }
        for (cell, text) in input.flags {
            add(Kind::Flag, text.clone(), cell, String::new());
        }
        for (cell, stat) in &data.stats {
            if let Equality::Exact { equal, of } = stat.equality
                && equal < of
            {
                let text = "Text differs from vanilla's: times and acceptance are of other text, so it is not ranked";
                let alone = format!("{equal} of {of} answers equal");
                add(Kind::Differs, text.into(), cell, alone);
            }
            if stat.is_unsettled {
                let text = "Unsettled: steps still varied by over 3 % when measuring began";
                add(Kind::Unsettled, text.into(), cell, String::new());
            }
            if let Some(share) = stat.repeated_share.filter(|_| stat.is_degenerate()) {
                let text = "Degenerate text: more than 20 % of its 8-grams are repeated; loops draft easily, so it is not ranked";
                add(Kind::Degenerate, text.into(), cell, percent(share));
            }
            let n = data.n_prompts(cell);
            if (1..PROMPTS).contains(&n) {
                let text = "Small sample: fewer than 30 prompts, so intervals are rough";
                add(Kind::Small, text.into(), cell, count(n, "prompt"));
            }
        }
        Self::numbered(found)
    }

    fn numbered(found: BTreeMap<(Kind, String), BTreeMap<Cell, String>>) -> Self {
        let mut notes = Self {
            all: Vec::new(),
            of: BTreeMap::new(),
        };
        for ((kind, text), cells) in found {
            for cell in cells.keys() {
                let its = notes.of.entry(cell.clone()).or_default();
                its.push(notes.all.len());
            }
            notes.all.push(Note {
                kind,
                text,
                cells: cells.into_iter().collect(),
            });
        }
        notes
    }

    fn of(&self, cell: &Cell) -> &[usize] {
        self.of.get(cell).map_or(&[], Vec::as_slice)
    }

    /// Notes that hold for every one of some cells.
    pub(crate) fn common<'c>(&self, mut cells: impl Iterator<Item = &'c Cell>) -> BTreeSet<usize> {
        let first = cells.next().map_or(&[][..], |cell| self.of(cell));
        let mut common: BTreeSet<usize> = first.iter().copied().collect();
        cells.for_each(|cell| common.retain(|idx| self.of(cell).contains(idx)));
        common
    }

    /// Links to a cell's notes, without those that are said elsewhere.
    pub(crate) fn marks(&self, cell: &Cell, said: &BTreeSet<usize>) -> String {
        let its = self.of(cell).iter().filter(|idx| !said.contains(idx));
        links(its.copied())
    }

    /// The list of footnotes.
    pub(crate) fn html(&self, n_cells: usize) -> String {
        if self.all.is_empty() {
            return "<p>Nothing to note about any cell.</p>".into();
        }
        let mut out = String::from("<ol class=\"notes\">");
        for (idx, note) in self.all.iter().enumerate() {
            let which = match note.cells.len() {
                n if n == n_cells => "All cells".to_owned(),
                n => count(n, "cell"),
            };
            let each = note.cells.iter().map(|(cell, alone)| {
                let alone = match alone.is_empty() {
                    true => String::new(),
                    false => format!(": {}", esc(alone)),
                };
                format!("<li>{}{alone}</li>", super::html::arm(&cell.to_string()))
            });
            out.push_str(&format!(
                "<li id=\"note-{}\"><p>{}.</p><details><summary>{which}</summary><ul>{}</ul></details></li>",
                idx + 1,
                esc(note.text.trim_end_matches('.')),
                each.collect::<String>()
            ));
        }
        out + "</ol>"
    }
}

/// Superscript links.
pub(crate) fn links(notes: impl Iterator<Item = usize>) -> String {
    let each: Vec<String> = notes
        .map(|idx| {
            let n = idx + 1;
            format!("<a href=\"#note-{n}\" aria-label=\"note {n}\">{n}</a>")
        })
        .collect();
    match each.is_empty() {
        true => String::new(),
        false => format!("<sup>{}</sup>", each.join(",")),
    }
}

/// Cells that failed or were skipped as a whole, each with its first reason.
fn troubles(records: &[Record]) -> Vec<(&Cell, Kind, &str)> {
    let mut seen = BTreeSet::new();
    let each = records
        .iter()
        .filter_map(|record| match (&record.outcome, &record.prompt) {
            (Outcome::Failed { why }, _) => Some((&record.cell, Kind::Failed, why.as_str())),
            (Outcome::Skipped { why }, None) => Some((&record.cell, Kind::Skipped, why.as_str())),
            _ => None,
        });
    each.filter(|(cell, ..)| seen.insert(*cell)).collect()
}

/// Prompts and later turns that were not asked: by cell the first reason and which.
fn left_out(records: &[Record]) -> BTreeMap<&Cell, (&str, BTreeSet<String>)> {
    let mut found: BTreeMap<&Cell, (&str, BTreeSet<String>)> = BTreeMap::new();
    for record in records {
        if let (Outcome::Skipped { why }, Some(prompt)) = (&record.outcome, &record.prompt) {
            let its = found.entry(&record.cell);
            let its = its.or_insert_with(|| (why, BTreeSet::new()));
            its.1.insert(prompt.name());
        }
    }
    found
}
