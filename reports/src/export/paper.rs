//! Tables as papers print them: methods as rows within a target, suites as columns, speedup and tau in each cell.

mod latex;
mod markdown;

use std::collections::{BTreeMap, BTreeSet};

use crate::contrast::{Contrast, Measure, contrasts};
use crate::levels::Averages;
use crate::metrics::{CellStats, cells};
use crate::record::{Cell, Record, Thinking};
use crate::table::ordered;
use crate::{ArrivalKey, Layout, SamplingKey};

/// What the marks and the columns mean, in plain words.
const LEGEND: [&str; 4] = [
    "A cell is speedup over vanilla / tau. Best of the drafting methods bold, second underlined.",
    "dagger: not distinguishable from the best; star: below the best, paired by prompt, at a false discovery rate of 5 % over all cells (Benjamini-Hochberg).",
    "Speedup is of decoding at concurrency 1 and in open loop, else of throughput. tau is tokens committed a round, prefill's token out.",
    "mean: arithmetic mean of the suites; geo. mean: geometric mean of the suites.",
];

/// One table: all targets in one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperTable {
    /// How tokens are chosen.
    pub sampling: SamplingKey,
    /// Whether the chat template asks for a thinking section.
    pub thinking: Thinking,
    /// Sequences decoded at once, at least 1.
    pub concurrency: u32,
    /// When requests come.
    pub arrivals: ArrivalKey,
    /// Columns, before the two of averages.
    pub suites: Vec<String>,
    /// One a target.
    pub blocks: Vec<PaperBlock>,
    /// Why cells are empty.
    pub notes: Vec<String>,
}

/// The rows of one target.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperBlock {
    /// Id of the target.
    pub target: String,
    /// Vanilla first, if it was measured.
    pub rows: Vec<PaperRow>,
}

/// The row of one method.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperRow {
    /// Id of the method.
    pub method: String,
    /// One a suite, then the arithmetic and the geometric mean.
    pub cells: Vec<PaperCell>,
}

/// Speedup and tau; `None` where there is no number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PaperCell {
    /// Over vanilla.
    pub speedup: Option<PaperValue>,
    /// Tokens committed a round.
    pub tau: Option<PaperValue>,
}

/// A number and how it stands among the drafting methods of its column and target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperValue {
    /// The number.
    pub value: f64,
    /// Its place.
    pub rank: Rank,
    /// Whether it differs from the best, where that was tested.
    pub differs: Option<bool>,
}

/// Place of a number; equal numbers share theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// The largest.
    Best,
    /// The largest of the rest.
    Second,
    /// Any other, and vanilla.
    Other,
}

/// One table for each sampling, thinking, concurrency and arrivals.
pub fn paper_tables(records: &[Record], layout: &Layout) -> Vec<PaperTable> {
    let stats = cells(records);
    let differs = differs(records);
    let mut settings: BTreeMap<Setting, BTreeMap<&Cell, &CellStats>> = BTreeMap::new();
    for (cell, stat) in &stats {
        let setting = (
            cell.sampling,
            cell.thinking,
            cell.concurrency,
            cell.arrivals,
        );
        settings.entry(setting).or_default().insert(cell, stat);
    }
    let tables = settings.into_iter();
    tables
        .map(|(setting, cells)| table(setting, &cells, &differs, layout))
        .collect()
}

type Setting = (SamplingKey, Thinking, u32, ArrivalKey);
type Differs = BTreeMap<(Cell, Measure), bool>;

fn differs(records: &[Record]) -> Differs {
    let of = |c: Contrast| {
        let differs = c.differs();
        ((c.cell, c.measure), differs)
    };
    contrasts(records).into_iter().map(of).collect()
}

fn table(
    setting: Setting,
    cells: &BTreeMap<&Cell, &CellStats>,
    differs: &Differs,
    layout: &Layout,
) -> PaperTable {
    let names = |of: fn(&Cell) -> &str| cells.keys().map(|c| of(c)).collect::<BTreeSet<&str>>();
    let suites = ordered(names(|c| &c.suite), &layout.suites);
    let mut blocks = Vec::new();
    for target in names(|c| &c.target) {
        let own = cells.keys().filter(|c| c.target == target);
        let mut methods = ordered(own.map(|c| c.method.as_str()).collect(), &layout.methods);
        methods.sort_by_key(|m| *m != "vanilla");
        let rows = methods.into_iter().map(|method| {
            let at = |suite: &&str| Cell {
                target: target.to_owned(),
                suite: (*suite).to_owned(),
                sampling: setting.0,
                thinking: setting.1,
                concurrency: setting.2,
                arrivals: setting.3,
                method: method.to_owned(),
            };
            let of_row: Vec<Cell> = suites.iter().map(at).collect();
            row(method, &of_row, cells, differs)
        });
        let mut rows: Vec<PaperRow> = rows.collect();
        rank(&mut rows, |cell| &mut cell.speedup);
        rank(&mut rows, |cell| &mut cell.tau);
        blocks.push(PaperBlock {
            target: target.to_owned(),
            rows,
        });
    }
    let trouble = cells.iter().filter_map(|(cell, stat)| {
        let why = stat.trouble.as_ref()?;
        let Cell {
            target,
            method,
            suite,
            ..
        } = cell;
        Some(format!("{target}, {method} on {suite}: {why}"))
    });
    PaperTable {
        sampling: setting.0,
        thinking: setting.1,
        concurrency: setting.2,
        arrivals: setting.3,
        suites: suites.iter().map(|s| (*s).to_owned()).collect(),
        notes: trouble.collect(),
        blocks,
    }
}

fn row(
    method: &str,
    at: &[Cell],
    cells: &BTreeMap<&Cell, &CellStats>,
    differs: &Differs,
) -> PaperRow {
    let well = |cell: &Cell| cells.get(cell).filter(|s| s.trouble.is_none());
    let speedups: Vec<Option<f64>> = at.iter().map(|c| well(c)?.speedup).collect();
    let taus: Vec<Option<f64>> = at.iter().map(|c| well(c)?.tau).collect();
    let value = |value: Option<f64>, differs: Option<&bool>| {
        value.map(|value| PaperValue {
            value,
            rank: Rank::Other,
            differs: differs.copied(),
        })
    };
    let mut row: Vec<PaperCell> = at
        .iter()
        .zip(speedups.iter().zip(&taus))
        .map(|(cell, (speedup, tau))| PaperCell {
            speedup: value(*speedup, differs.get(&(cell.clone(), Measure::Speed))),
            tau: value(*tau, differs.get(&(cell.clone(), Measure::Tau))),
        })
        .collect();
    let (speedups, taus) = (Averages::of(&speedups), Averages::of(&taus));
    row.push(PaperCell {
        speedup: value(speedups.arithmetic, None),
        tau: value(taus.arithmetic, None),
    });
    row.push(PaperCell {
        speedup: value(speedups.geometric, None),
        tau: value(taus.geometric, None),
    });
    PaperRow {
        method: method.to_owned(),
        cells: row,
    }
}

/// Ranks each column among the drafting methods.
fn rank(rows: &mut [PaperRow], of: fn(&mut PaperCell) -> &mut Option<PaperValue>) {
    let drafting = |row: &&mut PaperRow| row.method != "vanilla";
    for column in 0..rows.first().map_or(0, |r| r.cells.len()) {
        let mut values: Vec<&mut PaperValue> = rows
            .iter_mut()
            .filter(drafting)
            .filter_map(|row| of(&mut row.cells[column]).as_mut())
            .collect();
        // Alone in its column a method is neither best nor second.
        if values.len() < 2 {
            continue;
        }
        for rank in [Rank::Best, Rank::Second] {
            let left = values.iter().filter(|v| v.rank == Rank::Other);
            let most = left.map(|v| v.value).fold(f64::NEG_INFINITY, f64::max);
            for value in values.iter_mut().filter(|v| v.value == most) {
                value.rank = rank;
            }
        }
    }
}

impl PaperTable {
    fn title(&self) -> String {
        let Self {
            sampling,
            thinking,
            concurrency,
            arrivals,
            ..
        } = self;
        let title =
            format!("Speedup / tau, {sampling}, thinking {thinking}, concurrency {concurrency}");
        match arrivals {
            ArrivalKey::Closed => title,
            open => format!("{title}, {open}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Outcome;
    use crate::record::tests::{answer, record};

    /// `new` is twice as fast as `old` and drafts worse; it has the suite `a_b` alone.
    fn records() -> Vec<Record> {
        let mut records = Vec::new();
        for suite in ["a_b", "z"] {
            for i in 0..10 {
                let methods = [
                    ("vanilla", 1, [(0, 1); 12].as_slice()),
                    ("old", 1, &[(2, 3); 4]),
                    ("new", 2, &[(1, 2); 6]),
                ];
                for (method, speed, rounds) in methods {
                    let mut a = answer(rounds);
                    a.decode_ns /= speed;
                    let mut rec = record(method, &i.to_string(), a);
                    rec.cell.suite = suite.into();
                    if (suite, method) == ("z", "new") {
                        rec.outcome = Outcome::Failed {
                            why: "50 % of it".into(),
                        };
                    }
                    records.push(rec);
                }
            }
        }
        records
    }

    /// The table of [`records`], one difference in tau made insignificant.
    pub(super) fn table() -> PaperTable {
        let mut tables = paper_tables(&records(), &Layout::default());
        let mut table = tables.remove(0);
        assert!(tables.is_empty());
        let new = table.blocks[0]
            .rows
            .iter_mut()
            .find(|r| r.method == "new")
            .unwrap();
        let tau = new.cells[0].tau.as_mut().unwrap();
        assert_eq!(tau.differs.replace(false), Some(true));
        table
    }

    #[test]
    fn drafting_methods_are_ranked_and_tested_against_the_best() {
        let table = table();
        let at = |row: usize, column: usize| table.blocks[0].rows[row].cells[column];
        let best = |value| {
            Some(PaperValue {
                value,
                rank: Rank::Best,
                differs: None,
            })
        };
        assert_eq!((at(1, 0).speedup, at(2, 0).tau), (best(2.0), best(3.0)));
        let second = at(2, 0).speedup.unwrap();
        assert_eq!((second.rank, second.differs), (Rank::Second, Some(true)));
        // Alone on z.
        assert_eq!(at(2, 1).speedup.map(|v| v.rank), Some(Rank::Other));
        assert_eq!(at(0, 0).speedup.map(|v| v.rank), Some(Rank::Other));
        assert_eq!(at(1, 2), PaperCell::default());
    }

    #[test]
    fn rows_and_columns_follow_the_layout_and_settings_are_apart() {
        let mut records = records();
        let mut sampled = records[0].clone();
        sampled.cell.sampling = SamplingKey::at(1000);
        records.push(sampled);
        let layout = Layout {
            methods: vec!["old".into(), "new".into()],
            suites: vec!["z".into()],
            ..Layout::default()
        };
        let tables = paper_tables(&records, &layout);
        assert_eq!(tables.len(), 2);
        assert_eq!(tables[0].suites, ["z", "a_b"]);
        let methods: Vec<&str> = tables[0].blocks[0]
            .rows
            .iter()
            .map(|r| r.method.as_str())
            .collect();
        assert_eq!(methods, ["vanilla", "old", "new"]);
        assert_eq!(tables[1].suites, ["a_b"]);
    }
}
