//! Tables as papers print them: methods as rows within a target, suites as columns, speedup and tau in each cell.

mod latex;
mod markdown;

use std::collections::{BTreeMap, BTreeSet};

use crate::contrast::{Measure, contrasts};
use crate::levels::Averages;
use crate::metrics::{CellStats, cells};
pub use crate::places::Rank;
use crate::places::{Unranked, places};
use crate::record::{Cell, Record, Thinking};
use crate::table::ordered;
use crate::{ArrivalKey, Layout, SamplingKey};

/// What the marks and the columns mean, in plain words.
const LEGEND: [&str; 5] = [
    "A cell is speedup over vanilla / tau. Best of the drafting methods bold, second underlined.",
    "dagger: not distinguishable from the best; star: below the best, paired by prompt, at a false discovery rate of 5 % over all pairs of drafting methods (Benjamini-Hochberg); no mark: not tested, such as with fewer than 6 prompts.",
    "Marks of speedups hold within one process: what differs from process to process is not in them.",
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
    /// Why cells are empty, or not ranked.
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

/// One table for each sampling, thinking, concurrency and arrivals.
pub fn paper_tables(records: &[Record], layout: &Layout) -> Vec<PaperTable> {
    let stats = cells(records);
    let differs = differs(records, &stats);
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
/// Whether a method in its cell differs from another one; both orders are there.
type Differs = BTreeMap<(Cell, String, Measure), bool>;

fn differs(records: &[Record], stats: &BTreeMap<Cell, CellStats>) -> Differs {
    let mut found = Differs::new();
    for contrast in contrasts(records, stats) {
        let differs = contrast.differs();
        let other = Cell {
            method: contrast.other.clone(),
            ..contrast.cell.clone()
        };
        let method = contrast.cell.method.clone();
        found.insert((contrast.cell, contrast.other, contrast.measure), differs);
        found.insert((other, method, contrast.measure), differs);
    }
    found
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
            (row(method, &of_row, cells), of_row)
        });
        let (mut rows, at): (Vec<PaperRow>, Vec<Vec<Cell>>) = rows.unzip();
        let ranked: Vec<Vec<bool>> = at.iter().map(|its| ranked(its, cells)).collect();
        for (measure, of) in MEASURES {
            rank(&mut rows, &ranked, of);
            mark(&mut rows, &at, (differs, measure), of);
        }
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
    let unranked = cells.iter().filter_map(|(cell, stat)| {
        let why = Unranked::of(stat).filter(|_| is_listed(cell, stat))?;
        let (target, method, suite) = (&cell.target, &cell.method, &cell.suite);
        Some(format!("{target}, {method} on {suite}: {}", why.reason()))
    });
    PaperTable {
        sampling: setting.0,
        thinking: setting.1,
        concurrency: setting.2,
        arrivals: setting.3,
        suites: suites.iter().map(|s| (*s).to_owned()).collect(),
        notes: trouble.chain(unranked).collect(),
        blocks,
    }
}

/// Whether a cell has numbers that could be ranked.
fn is_listed(cell: &Cell, stat: &CellStats) -> bool {
    cell.method != "vanilla" && stat.trouble.is_none()
}

fn row(method: &str, at: &[Cell], cells: &BTreeMap<&Cell, &CellStats>) -> PaperRow {
    let well = |cell: &Cell| cells.get(cell).filter(|s| s.trouble.is_none());
    let speedups: Vec<Option<f64>> = at.iter().map(|c| well(c)?.speedup).collect();
    let taus: Vec<Option<f64>> = at.iter().map(|c| well(c)?.tau).collect();
    let value = |value: Option<f64>| {
        value.map(|value| PaperValue {
            value,
            rank: Rank::Other,
            differs: None,
        })
    };
    let cell = |speedup: Option<f64>, tau: Option<f64>| PaperCell {
        speedup: value(speedup),
        tau: value(tau),
    };
    let each = speedups.iter().zip(&taus);
    let mut row: Vec<PaperCell> = each.map(|(speedup, tau)| cell(*speedup, *tau)).collect();
    let (speedups, taus) = (Averages::of(&speedups), Averages::of(&taus));
    row.push(cell(speedups.arithmetic, taus.arithmetic));
    row.push(cell(speedups.geometric, taus.geometric));
    PaperRow {
        method: method.to_owned(),
        cells: row,
    }
}

/// Which numbers of a row may be ranked: a mean if all cells may.
fn ranked(at: &[Cell], cells: &BTreeMap<&Cell, &CellStats>) -> Vec<bool> {
    let is_ranked = |cell: &Cell| {
        let stat = cells.get(cell);
        cell.method != "vanilla" && stat.is_none_or(|s| Unranked::of(s).is_none())
    };
    let mut row: Vec<bool> = at.iter().map(is_ranked).collect();
    let all = row.iter().all(|is_ranked| *is_ranked);
    row.extend([all; 2]);
    row
}

type Pick = fn(&mut PaperCell) -> &mut Option<PaperValue>;

const MEASURES: [(Measure, Pick); 2] = [
    (Measure::Speed, |cell| &mut cell.speedup),
    (Measure::Tau, |cell| &mut cell.tau),
];

/// Ranks each column among the drafting methods that may be.
fn rank(rows: &mut [PaperRow], ranked: &[Vec<bool>], of: Pick) {
    for column in 0..rows.first().map_or(0, |r| r.cells.len()) {
        let values: Vec<Option<f64>> = rows
            .iter_mut()
            .zip(ranked)
            .map(|(row, ranked)| {
                let value = of(&mut row.cells[column]).filter(|_| ranked[column])?;
                Some(value.value)
            })
            .collect();
        for (row, place) in rows.iter_mut().zip(places(&values)) {
            if let Some(value) = of(&mut row.cells[column]) {
                value.rank = place;
            }
        }
    }
}

/// Says of each number of a suite that is not the best whether it differs from it, where that was tested. `at` are the
/// cells of each row.
fn mark(
    rows: &mut [PaperRow],
    at: &[Vec<Cell>],
    (differs, measure): (&Differs, Measure),
    of: Pick,
) {
    for column in 0..at.first().map_or(0, Vec::len) {
        let mut best = None;
        for row in rows.iter_mut() {
            let is_best = of(&mut row.cells[column]).is_some_and(|v| v.rank == Rank::Best);
            best = best.or_else(|| is_best.then(|| row.method.clone()));
        }
        let Some(best) = best else {
            continue;
        };
        for (row, at) in rows.iter_mut().zip(at) {
            let value = of(&mut row.cells[column]).as_mut();
            if let Some(value) = value.filter(|v| v.rank != Rank::Best) {
                let key = (at[column].clone(), best.clone(), measure);
                value.differs = differs.get(&key).copied();
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
    fn text_that_differs_or_loops_is_noted_and_not_ranked() {
        let mut records = records();
        let mut third = Vec::new();
        for rec in &mut records {
            if rec.cell.suite == "z" {
                continue;
            }
            if rec.cell.method == "old" {
                let mut own = rec.clone();
                own.cell.method = "third".into();
                third.push(own);
            }
            if let (Outcome::Ok(answer), "new") = (&mut rec.outcome, rec.cell.method.as_str()) {
                answer.tokens_sha256 = "other".into();
            }
        }
        records.extend(third);
        let looping = |records: &mut Vec<Record>, method: &str| {
            for rec in records.iter_mut().filter(|r| r.cell.method == method) {
                if let Outcome::Ok(answer) = &mut rec.outcome {
                    answer.grams.repeated = 10;
                }
            }
        };
        let table = paper_tables(&records, &Layout::default()).remove(0);
        let ranks = |table: &PaperTable, method: &str| {
            let row = table.blocks[0].rows.iter().find(|r| r.method == method);
            let cell = row.unwrap().cells[0];
            [cell.speedup, cell.tau].map(|v| v.map(|v| (v.rank, v.differs)))
        };
        // Twice as fast, of other text; the two others tie.
        assert_eq!(ranks(&table, "new"), [Some((Rank::Other, None)); 2]);
        assert_eq!(ranks(&table, "old"), [Some((Rank::Best, None)); 2]);
        assert_eq!(ranks(&table, "third"), [Some((Rank::Best, None)); 2]);
        let note = "toy, new on a_b: text differs from vanilla's: not ranked";
        assert!(table.notes.contains(&note.to_owned()), "{:?}", table.notes);
        looping(&mut records, "third");
        let table = paper_tables(&records, &Layout::default()).remove(0);
        assert_eq!(ranks(&table, "old"), [Some((Rank::Other, None)); 2]);
        let note = "toy, third on a_b: looping text: not ranked";
        assert!(table.notes.contains(&note.to_owned()), "{:?}", table.notes);
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
