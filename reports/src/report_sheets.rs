//! Tables of any runs beside those in the papers' layout: conventions, levels, drafts, predictions, published figures.

use std::collections::BTreeMap;

use crate::acceptance::Convention;
use crate::levels::{Estimate, Level, LevelKey, LevelRow};
use crate::predict::predictions;
use crate::published::{Beside, Published, Quantity, fit, stand_beside};
use crate::record::{Cell, Record};
use crate::study::sheet::Sheet;
use crate::survival::{Counted, survival};

/// Columns that name a setting.
const SETTING: [&str; 4] = ["sampling", "thinking", "concurrency", "arrivals"];

/// Every table that the records have values for; `published` are figures to stand beside ours.
pub fn report_sheets(records: &[Record], rows: &[LevelRow], published: &[Published]) -> Vec<Sheet> {
    let mut sheets = vec![conventions(rows), pooled(rows)];
    sheets.extend(drafts(records));
    sheets.push(phases(records));
    sheets.push(beside(rows, published));
    sheets.retain(|sheet| !sheet.rows.is_empty());
    sheets
}

fn header(first: &[&str], rest: &[&str]) -> Vec<String> {
    let all = first.iter().chain(&SETTING).chain(rest);
    all.map(|name| (*name).to_owned()).collect()
}

fn sheet(id: &'static str, title: &str, header: Vec<String>) -> Sheet {
    Sheet {
        header,
        ..Sheet::new(id, title, &[])
    }
}

fn setting_of(key: &LevelKey) -> [String; 4] {
    [
        key.sampling.to_string(),
        key.thinking.to_string(),
        key.concurrency.to_string(),
        key.arrivals.to_string(),
    ]
}

/// A target's acceptance length by every convention, and how far they lie apart.
fn conventions(rows: &[LevelRow]) -> Sheet {
    let letters = Convention::ALL.map(|c| c.letter().to_string());
    let mut rest = vec!["method"];
    rest.extend(letters.iter().map(String::as_str));
    rest.push("spread");
    let title = "Acceptance length by convention, all suites of a target";
    let mut out = sheet("conventions", title, header(&["target"], &rest));
    for row in rows.iter().filter(|r| r.key.level == Level::Target) {
        let Some((low, high)) = row.conventions.spread() else {
            continue;
        };
        let mut cells = vec![row.key.target.clone().unwrap_or_default()];
        cells.extend(setting_of(&row.key));
        cells.push(row.key.method.clone());
        let length = |c: &Convention| two(row.conventions.length(*c));
        cells.extend(Convention::ALL.iter().map(length));
        cells.push(format!("{:.2}", high - low));
        out.rows.push(cells);
    }
    let note = |c: &Convention| format!("{}: {} ({}).", c.letter(), c.definition(), c.used_by());
    out.notes = Convention::ALL.iter().map(note).collect();
    out
}

/// Domains, targets, and all targets together.
fn pooled(rows: &[LevelRow]) -> Sheet {
    let rest = [
        "method",
        "suites",
        "tau",
        "tau, arithmetic mean",
        "speedup",
        "speedup, arithmetic mean",
        "speedup, geometric mean",
        "end to end",
        "repeated 8-grams",
        "loops",
        "tau without loops",
        "right",
        "equal",
    ];
    let title = "By domain, target and overall";
    let mut out = sheet("levels", title, header(&["target", "domain"], &rest));
    for row in rows.iter().filter(|r| r.key.level != Level::Suite) {
        let key = &row.key;
        let all = || "all".to_owned();
        let mut cells = vec![
            key.target.clone().unwrap_or_else(all),
            key.domain.map_or_else(all, |d| d.to_string()),
        ];
        cells.extend(setting_of(key));
        cells.extend([
            key.method.clone(),
            row.n_cells.to_string(),
            with_interval(row.tau),
            two(row.tau_averages.arithmetic),
            with_interval(row.speedup()),
            two(row.speedup_averages().arithmetic),
            two(row.speedup_averages().geometric),
            with_interval(row.speedup_end_to_end),
            percent(row.repeated_share),
            format!("{} of {}", row.n_loops, row.n_answers),
            two(row.tau_without_loops),
            with_interval(right(row)),
            crate::table::verdict(row.equality),
        ]);
        out.rows.push(cells);
    }
    out.notes = vec![
        "tau and speedup without a mean's name pool all rounds and all prompts; brackets are 95 % intervals over prompts.".into(),
        "repeated 8-grams: those seen before in the same answer, of all. loops: answers with over 30 % of them; they draft easily.".into(),
        "right: share of right answers of those that could be checked, with Wilson's interval, answers as trials.".into(),
        "Speedup is of decoding at concurrency 1 and in open loop, else of throughput; end to end has prefill in.".into(),
    ];
    out
}

/// Share of right answers.
fn right(row: &LevelRow) -> Option<Estimate> {
    let (hits, of) = row.correct?;
    let interval = row.correct_interval();
    (of > 0).then(|| Estimate {
        value: hits as f64 / of as f64,
        interval,
    })
}

/// What became of drafts, and acceptance by position.
fn drafts(records: &[Record]) -> [Sheet; 2] {
    let rest = [
        "suite",
        "method",
        "rounds",
        "drafted",
        "verified",
        "accepted",
        "wasted",
        "fallback rounds",
        "cut rounds",
    ];
    let title = "What became of drafts";
    let mut counts = sheet("drafts", title, header(&["target"], &rest));
    let rest = [
        "suite",
        "method",
        "position",
        "survival",
        "low",
        "high",
        "survival of verified",
        "conditional",
        "judged",
        "conditional low",
        "conditional high",
    ];
    let title = "Acceptance by position";
    let mut positions = sheet("positions", title, header(&["target"], &rest));
    for (cell, its) in survival(records) {
        if cell.method == "vanilla" {
            continue;
        }
        let named = named(&cell);
        let mut row = named.clone();
        let numbers = [
            its.n_rounds,
            its.drafted,
            its.verified,
            its.accepted,
            its.wasted(),
        ];
        row.extend(numbers.map(|n| n.to_string()));
        row.extend([percent(its.fallback_share()), percent(its.cut_share())]);
        counts.rows.push(row);
        for at in &its.positions {
            let mut row = named.clone();
            let ends = |c: &Counted| {
                [
                    three(c.interval.map(|i| i.0)),
                    three(c.interval.map(|i| i.1)),
                ]
            };
            row.extend([at.position.to_string(), three(at.survival.share())]);
            row.extend(ends(&at.survival));
            row.extend([
                three(at.survival_verified.and_then(|c| c.share())),
                three(at.conditional.and_then(|c| c.share())),
                at.conditional
                    .map_or_else(String::new, |c| c.of.to_string()),
            ]);
            let empty = || [String::new(), String::new()];
            row.extend(at.conditional.as_ref().map_or_else(empty, ends));
            positions.rows.push(row);
        }
    }
    counts.notes = vec![
        "wasted: drafted and not accepted. fallback rounds: no draft accepted, of rounds that verified one. cut rounds: a schedule cut drafts, of all.".into(),
    ];
    positions.notes = vec![
        "A tree's positions end at its deepest acceptance. Its rounds record how many nodes were verified, not how deep, so survival of verified and conditional acceptance are left empty.".into(),
        "An interval is over prompts; that of a share of exactly 0 or 1 is Wilson's, with prompts as trials.".into(),
    ];
    [counts, positions]
}

fn named(cell: &Cell) -> Vec<String> {
    vec![
        cell.target.clone(),
        cell.sampling.to_string(),
        cell.thinking.to_string(),
        cell.concurrency.to_string(),
        cell.arrivals.to_string(),
        cell.suite.clone(),
        cell.method.clone(),
    ]
}

/// The speedup that tau and the phases of a round explain, beside the measured one.
fn phases(records: &[Record]) -> Sheet {
    let rest = [
        "suite",
        "method",
        "tau",
        "draft, ms",
        "head, ms",
        "verify, ms",
        "rest, ms",
        "vanilla step, ms",
        "predicted",
        "measured",
        "error",
    ];
    let title = "Speedup explained by phases";
    let mut out = sheet("phases", title, header(&["target"], &rest));
    for (cell, its) in predictions(records) {
        let ms = |ns: f64| format!("{:.3}", ns / 1e6);
        let mut row = named(&cell);
        row.push(format!("{:.2}", its.tau));
        let parts = &its.round;
        row.extend(
            [
                parts.draft_ns,
                parts.head_ns,
                parts.verify_ns,
                parts.rest_ns,
            ]
            .map(ms),
        );
        row.extend([
            ms(its.vanilla_step_ns),
            format!("{:.2}", its.predicted),
            two(its.measured),
            its.error()
                .map_or_else(String::new, |e| format!("{:+.1} %", e * 100.0)),
        ]);
        out.rows.push(row);
    }
    out.notes = vec![
        "predicted = tau x vanilla's step / (draft + head + verify + rest); time outside all phases sets the measured one apart. error: predicted over measured, minus 1.".into(),
    ];
    out
}

/// Published figures of the same definition and coordinates, beside ours.
fn beside(rows: &[LevelRow], published: &[Published]) -> Sheet {
    let header = [
        "target",
        "suite",
        "method",
        "sampling",
        "thinking",
        "quantity",
        "published",
        "ours",
        "our prompts",
        "source",
        "engine",
        "hardware",
        "caveat",
    ];
    let mut out = Sheet::new("published", "Published figures beside ours", &header);
    for Beside {
        published,
        at,
        ours,
        n_prompts,
    } in stand_beside(published, rows)
    {
        let quantity = match at.quantity {
            Quantity::SpeedupDecode => "speedup, decode".to_owned(),
            Quantity::Length(convention) => format!("acceptance length {}", convention.letter()),
        };
        out.rows.push(vec![
            at.target.to_owned(),
            at.suite.clone(),
            at.method.to_owned(),
            at.sampling.to_string(),
            at.thinking.to_string(),
            quantity,
            format!("{:.2}", published.value),
            with_interval(Some(ours)),
            n_prompts.to_string(),
            format!("{}, {}", published.paper, published.table),
            published.engine.clone(),
            published.hardware.clone(),
            at.caveat.unwrap_or_default(),
        ]);
        if let Some(note) = cut(&at.suite, n_prompts).filter(|n| !out.notes.contains(n)) {
            out.notes.push(note);
        }
    }
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in published.iter().filter_map(|row| fit(row).err()) {
        *reasons.entry(reason).or_default() += 1;
    }
    let reasons = reasons
        .iter()
        .map(|(why, n)| format!("Not placed, {n}: {why}."));
    out.notes.extend(reasons);
    out
}

/// Prompts that the sources ask of a suite at least.
///
/// Source: DFlash's README; DSpark's paper for arena-hard-v2.
const ASKED: [(&str, u64); 10] = [
    ("gsm8k", 128),
    ("math500", 128),
    ("aime24", 30),
    ("aime25", 30),
    ("humaneval", 164),
    ("mbpp", 128),
    ("livecodebench", 128),
    ("mt-bench", 80),
    ("alpaca", 128),
    ("arena-hard-v2", 500),
];

/// What to say of a suite of which we asked fewer prompts than any source.
fn cut(suite: &str, n_prompts: u64) -> Option<String> {
    let (_, asked) = ASKED.iter().find(|(id, _)| *id == suite)?;
    (n_prompts < *asked).then(|| {
        format!("{suite} is cut: ours asks {n_prompts} prompts, the sources at least {asked}.")
    })
}

fn with_interval(estimate: Option<Estimate>) -> String {
    match estimate {
        None => "-".into(),
        Some(Estimate { value, interval }) => match interval {
            None => format!("{value:.2}"),
            Some((low, high)) => format!("{value:.2} [{low:.2}, {high:.2}]"),
        },
    }
}

fn two(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |v| format!("{v:.2}"))
}

/// For programs: empty where there is none.
fn three(value: Option<f64>) -> String {
    value.map_or_else(String::new, |v| format!("{v:.3}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |s| format!("{:.1} %", 100.0 * s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levels;
    use crate::published::published;
    use crate::record::tests::{answer, record};

    fn of(sheets: &[Sheet], id: &str) -> Vec<Vec<String>> {
        let found = sheets.iter().find(|sheet| sheet.id == id);
        found.map(|sheet| sheet.rows.clone()).unwrap_or_default()
    }

    #[test]
    fn tables_have_a_row_for_all_that_was_answered() {
        let mut records = vec![
            record("vanilla", "a", answer(&[(0, 1); 6])),
            record("dflash", "a", answer(&[(2, 3), (3, 3)])),
        ];
        for record in &mut records {
            record.cell.target = "qwen3-4b".into();
            record.cell.suite = "gsm8k".into();
        }
        let sheets = report_sheets(&records, &levels(&records), &published());
        for sheet in &sheets {
            let n = sheet.header.len();
            assert!(sheet.rows.iter().all(|row| row.len() == n), "{}", sheet.id);
        }
        let conventions = of(&sheets, "conventions");
        assert_eq!(conventions.len(), 2);
        assert_eq!(
            conventions[0][5..],
            [
                "dflash", "3.50", "3.00", "3.50", "3.50", "3.50", "2.33", "1.17"
            ]
        );
        let drafts = of(&sheets, "drafts");
        assert_eq!(drafts[0][7..], ["2", "6", "6", "5", "1", "0.0 %", "0.0 %"]);
        let positions = of(&sheets, "positions");
        assert_eq!(positions.len(), 3);
        assert_eq!(positions[2][7..9], ["3", "0.500"]);
        assert_eq!(positions[2][12..14], ["0.500", "2"]);
        // Domain, target and overall, of both methods.
        assert_eq!(of(&sheets, "levels").len(), 6);
        let published = of(&sheets, "published");
        assert!(!published.is_empty());
        assert!(
            published
                .iter()
                .all(|row| row[..3] == ["qwen3-4b", "gsm8k", "dflash"] && row[8] == "1")
        );
        let notes = &sheets.iter().find(|s| s.id == "published").unwrap().notes;
        let cut = "gsm8k is cut: ours asks 1 prompts, the sources at least 128.";
        assert_eq!(notes.iter().filter(|n| *n == cut).count(), 1);
    }

    #[test]
    fn a_tree_has_no_conditional_acceptance_and_the_sheet_says_so() {
        let mut of_tree = answer(&[(2, 3), (1, 2)]);
        of_tree.rounds.verified = vec![60, 60];
        of_tree.rounds.drafted = vec![60, 60];
        of_tree.correct = Some(true);
        let records = [record("eagle3-tree-7-10-60", "a", of_tree)];
        let sheets = report_sheets(&records, &levels(&records), &[]);
        let positions = of(&sheets, "positions");
        assert_eq!(positions.len(), 2);
        assert_eq!(positions[1][7..9], ["2", "0.500"]);
        assert!(
            positions[1][11..].iter().all(String::is_empty),
            "{positions:?}"
        );
        let sheet = sheets.iter().find(|s| s.id == "positions").unwrap();
        assert!(sheet.notes[0].contains("left empty"));
        // Wilson's interval of one of one.
        assert_eq!(of(&sheets, "levels")[0][17], "1.00 [0.21, 1.00]");
        let guard = &of(&sheets, "levels")[0][14..17];
        assert_eq!(guard, ["10.0 %", "0 of 1", "2.50"]);
    }
}
