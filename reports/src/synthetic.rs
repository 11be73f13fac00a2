//! Arms whose acceptance was given instead of measured. They stand apart: in no ranking, no table of a paper, no
//! comparison and no gate, but in a table of their own.

use std::collections::{BTreeMap, BTreeSet};

use crate::metrics::cells;
use crate::record::{Cell, Record};
use crate::run_data::Setting;
use crate::study::sheet::Sheet;

/// What everybody should know who sees such numbers.
pub const SYNTHETIC_NOTE: &str = "The acceptance length of these methods was given, not measured: the target's own text took the place of their drafts. What they cost is measured; tau and speedup are what it comes to at that length, and no result of a method.";

/// Records in two parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Apart {
    /// What every table, plot and file is made of.
    pub measured: Vec<Record>,
    /// Arms of given acceptance, and the vanilla that they are held against.
    pub synthetic: Vec<Record>,
}

impl Apart {
    /// Sets records apart. A vanilla whose drafting arms are all of given acceptance goes with them alone, since its
    /// weights may be random too; one that has others beside it is in both parts.
    pub fn of(records: Vec<Record>) -> Self {
        let mut kinds: BTreeMap<Setting, BTreeSet<bool>> = BTreeMap::new();
        for cell in records.iter().map(|r| &r.cell).filter(|c| !is_vanilla(c)) {
            let its = kinds.entry(Setting::of(cell)).or_default();
            its.insert(cell.is_synthetic());
        }
        let has = |cell: &Cell, kind: bool| {
            let its = kinds.get(&Setting::of(cell));
            its.is_some_and(|kinds| kinds.contains(&kind))
        };
        let mut out = Self::default();
        for record in records {
            let cell = &record.cell;
            let (is_measured, is_synthetic) = match is_vanilla(cell) {
                true => (has(cell, false) || !has(cell, true), has(cell, true)),
                false => (!cell.is_synthetic(), cell.is_synthetic()),
            };
            if is_measured && is_synthetic {
                out.synthetic.push(record.clone());
                out.measured.push(record);
            } else if is_synthetic {
                out.synthetic.push(record);
            } else {
                out.measured.push(record);
            }
        }
        out
    }

    /// Cells of given acceptance.
    pub fn cells(&self) -> BTreeSet<&Cell> {
        let cells = self.synthetic.iter().map(|r| &r.cell);
        cells.filter(|c| c.is_synthetic()).collect()
    }

    /// One line that says how many cells stand apart; `None` if none does.
    pub fn line(&self) -> Option<String> {
        let n = match self.cells().len() {
            0 => return None,
            1 => "1 cell of synthetic acceptance is".to_owned(),
            n => format!("{n} cells of synthetic acceptance are"),
        };
        Some(format!(
            "{n} set apart: in no ranking, table or comparison of measured ones"
        ))
    }
}

fn is_vanilla(cell: &Cell) -> bool {
    cell.method == "vanilla"
}

/// The table of arms of given acceptance, each after its vanilla; `None` if there is none.
pub fn synthetic_sheet(records: &[Record]) -> Option<Sheet> {
    let header = [
        "target",
        "suite",
        "thinking",
        "concurrency",
        "arrivals",
        "method",
        "tau that came of it",
        "tokens/s of one",
        "tokens/s of all",
        "speedup at that tau",
        "equal",
    ];
    let mut sheet = Sheet::new("synthetic", "Synthetic acceptance", &header);
    let stats = cells(records);
    if !stats.keys().any(Cell::is_synthetic) {
        return None;
    }
    let mut rows: Vec<_> = stats.iter().collect();
    rows.sort_by_key(|(cell, _)| (Setting::of(cell), !is_vanilla(cell)));
    let two = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.2}"));
    let rate = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.1}"));
    for (cell, stat) in rows {
        let speedup = match (stat.speedup, stat.speedup_interval) {
            (Some(value), Some((low, high))) => format!("{value:.2} [{low:.2}, {high:.2}]"),
            (value, _) => two(value),
        };
        sheet.rows.push(vec![
            cell.target.clone(),
            cell.suite.clone(),
            cell.thinking.to_string(),
            cell.concurrency.to_string(),
            cell.arrivals.to_string(),
            cell.method.clone(),
            two(stat.tau),
            rate(stat.tokens_per_sec),
            rate(stat.throughput),
            speedup,
            stat.trouble
                .clone()
                .unwrap_or_else(|| crate::table::verdict(stat.equality)),
        ]);
    }
    sheet.notes = vec![
        SYNTHETIC_NOTE.to_owned(),
        "A last round is cut where its answer ends, so that tau comes out a little below the length asked for, the more the shorter answers are.".to_owned(),
    ];
    Some(sheet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{answer, record};

    #[test]
    fn arms_of_given_acceptance_stand_apart_with_the_vanilla_that_has_no_other() {
        let all = [
            ("a", "vanilla"),
            ("a", "dflash:acceptance=synthetic-3"),
            ("b", "vanilla"),
            ("b", "dflash:acceptance=real"),
            ("b", "dflash:acceptance=synthetic-2"),
            ("c", "vanilla"),
        ];
        let records = all.map(|(suite, method)| {
            let mut record = record(method, "0", answer(&[(2, 3)]));
            record.cell.suite = suite.to_owned();
            record
        });
        let apart = Apart::of(records.to_vec());
        let names = |records: &[Record]| -> Vec<String> {
            let name = |r: &Record| format!("{} {}", r.cell.suite, r.cell.method);
            records.iter().map(name).collect()
        };
        assert_eq!(
            names(&apart.measured),
            ["b vanilla", "b dflash:acceptance=real", "c vanilla"]
        );
        assert_eq!(
            names(&apart.synthetic),
            [
                "a vanilla",
                "a dflash:acceptance=synthetic-3",
                "b vanilla",
                "b dflash:acceptance=synthetic-2"
            ]
        );
        assert!(
            apart
                .line()
                .unwrap()
                .starts_with("2 cells of synthetic acceptance are set apart")
        );
        let sheet = synthetic_sheet(&apart.synthetic).unwrap();
        assert_eq!(
            (sheet.title.as_str(), sheet.rows.len()),
            ("Synthetic acceptance", 4)
        );
        assert_eq!(synthetic_sheet(&apart.measured), None);
        assert_eq!(Apart::of(apart.measured).line(), None);
    }
}
