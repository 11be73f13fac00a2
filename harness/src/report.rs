//! `draftbench report`: records of runs as tables, plots, files for other programs, and one HTML page.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use reports::{
    Apart, Cell, CostInput, CoverageRecord, Layout, LevelRow, Outcome, PageInput, PaperTable,
    Published, Record, Sheet, TrainingLog,
};
use serde_json::Value;

use crate::cli::ReportArgs;
use crate::coverage::COVERAGE;
use crate::folder::{RECORDS, RUN, stored_records};
use crate::matrix;
use crate::output::{Ending, Verdict, say};
use crate::study;

/// The page.
const PAGE: &str = "report.html";

/// Tables that stand in `tables.md`; the others are for programs.
const READ: [&str; 6] = [
    "conventions",
    "levels",
    "drafts",
    "phases",
    "published",
    "synthetic",
];

/// Of these, the tables that are printed too.
const SAID: [&str; 3] = ["conventions", "published", "synthetic"];

/// Writes the report of some runs.
///
/// # Errors
/// If a run cannot be read, two runs hold one cell, none holds an answer, or a file cannot be written.
pub(crate) fn report(args: &ReportArgs) -> Ending {
    let published = figures(args.published.as_deref())?;
    let costs = args.costs.as_deref().map(costs).transpose()?;
    let training = args.training.iter().map(|file| log(file));
    let training: Vec<TrainingLog> = training.collect::<Result<_>>()?;
    let Read {
        records,
        runs,
        coverage,
        unfinished,
    } = read(&args.runs)?;
    let apart = Apart::of(records);
    let records = &apart.measured;
    let layout = layout(&runs);
    let projections = costs.map(|costs| projected(records, &costs)).transpose()?;
    let input = PageInput {
        title: args.title.as_deref().unwrap_or("draftbench report"),
        records,
        synthetic: &apart.synthetic,
        runs: &runs,
        flags: &[],
        coverage: &coverage,
        training: &training,
    };
    let numbers = || {
        let rows = reports::levels(records);
        let mut sheets = reports::report_sheets(records, &rows, &published);
        sheets.extend(reports::synthetic_sheet(&apart.synthetic));
        (rows, sheets, reports::paper_tables(records, &layout))
    };
    let shown = || reports::page_and_plots(&input);
    let ((rows, sheets, papers), (page, plots)) = rayon::join(numbers, shown);
    let whole = tables(&papers, &sheets, &READ);
    let out = Folder(&args.out);
    out.make()?;
    let mut written = vec![
        out.put(PAGE, page.as_bytes())?,
        out.put("tables.md", whole.as_bytes())?,
        out.put("tables.tex", latex(&papers).as_bytes())?,
    ];
    for sheet in sheets.iter().chain(&projections) {
        written.push(out.put(&format!("csv/{}.csv", sheet.id), sheet.csv().as_bytes())?);
    }
    written.extend(columns(&out, records, &rows)?);
    written.extend(interop(&out, records, &rows)?);
    for named in plots {
        let file = |ending: &str| format!("plots/{}.{ending}", named.file);
        written.push(out.put(&file("svg"), named.plot.svg()?.as_bytes())?);
        written.push(out.put(&file("png"), &named.plot.png()?)?);
    }
    let more = projections.map_or_else(String::new, |sheet| format!("\n{}", sheet.markdown()));
    let short = tables(&papers, &sheets, &SAID);
    let aside = apart.line().map_or_else(String::new, |line| line + "\n");
    say(&format!(
        "{short}{more}\n{aside}{}{} files in {}, report.html first\n",
        missing(records.iter().chain(&apart.synthetic), &unfinished),
        written.len(),
        args.out.display()
    ))?;
    Ok(Verdict::Fine)
}

/// What folders hold.
#[derive(Default)]
struct Read {
    records: Vec<Record>,
    /// Each run's `run.json`.
    runs: Vec<Value>,
    coverage: Vec<CoverageRecord>,
    /// Folders of runs that lack some of their groups.
    unfinished: Vec<PathBuf>,
}

/// Reads folders, of which no two may hold answers of one cell.
fn read(dirs: &[PathBuf]) -> Result<Read> {
    let mut out = Read::default();
    let mut cells: BTreeSet<Cell> = BTreeSet::new();
    for dir in dirs {
        let place = dir.display();
        let ranks = dir.join(COVERAGE);
        if ranks.is_file() {
            out.coverage.extend(study::read_coverage(&ranks)?);
        }
        let Some(its) = stored_records(dir)? else {
            ensure!(
                ranks.is_file(),
                "{place}: holds neither {RECORDS} nor {COVERAGE}; name the folder of a run"
            );
            continue;
        };
        let is_answer = |r: &&Record| matches!(r.outcome, Outcome::Ok(_));
        let own: BTreeSet<Cell> = its
            .iter()
            .filter(is_answer)
            .map(|r| r.cell.clone())
            .collect();
        if let Some(twice) = own.intersection(&cells).next() {
            bail!(
                "{place}: holds answers of {twice}, as does a run named before it; report them apart, or as repeats of one plan: draftbench merge OUT RUN.. --repeats"
            );
        }
        cells.extend(own);
        // Shards of a plan all say what none of them could run.
        let is_known = |r: &Record| {
            let is_whole_skip = r.prompt.is_none() && matches!(r.outcome, Outcome::Skipped { .. });
            is_whole_skip && out.records.iter().any(|known| known.cell == r.cell)
        };
        let its: Vec<Record> = its.into_iter().filter(|r| !is_known(r)).collect();
        out.records.extend(its);
        let info = dir.join(RUN);
        if info.is_file() {
            let text = fs::read(&info).with_context(|| format!("{place}: {RUN} cannot be read"))?;
            let info = serde_json::from_slice(&text);
            let info: Value = info.with_context(|| format!("{place}: {RUN} is no JSON"))?;
            if info["complete"] == false {
                out.unfinished.push(dir.clone());
            }
            out.runs.push(info);
        }
    }
    let is_answer = |r: &Record| matches!(r.outcome, Outcome::Ok(_));
    ensure!(
        out.records.iter().any(is_answer),
        "the runs hold no answer, so there is nothing to report; go on with them by draftbench run --resume RUN"
    );
    Ok(out)
}

/// Methods and suites in the order that the runs were asked for.
fn layout(runs: &[Value]) -> Layout {
    let names = |key: &str| {
        let lists = runs.iter().filter_map(|run| run["asked"][key].as_array());
        let names = lists.flatten().filter_map(Value::as_str);
        let mut out: Vec<String> = Vec::new();
        for name in names {
            if !out.iter().any(|known| known == name) {
                out.push(name.to_owned());
            }
        }
        out
    };
    Layout {
        methods: names("methods"),
        suites: names("suites"),
        ..Layout::default()
    }
}

/// Published figures: those of the program, or of a file.
fn figures(file: Option<&Path>) -> Result<Vec<Published>> {
    let Some(file) = file else {
        return Ok(reports::published());
    };
    let what = || format!("--published {}: cannot be read", file.display());
    let text = fs::read_to_string(file).with_context(what)?;
    Ok(reports::parse_published(&text, file)?)
}

fn log(file: &Path) -> Result<TrainingLog> {
    let place = format!("--training {}", file.display());
    let text = fs::read_to_string(file).with_context(|| format!("{place}: cannot be read"))?;
    reports::parse_training_log(&text, file).context("--training")
}

fn costs(file: &Path) -> Result<CostInput> {
    let place = format!("--costs {}", file.display());
    let text = fs::read_to_string(file).with_context(|| format!("{place}: cannot be read"))?;
    let costs: CostInput = matrix::from_toml(&text, &place)?;
    costs.check().with_context(|| place)?;
    Ok(costs)
}

fn tables(papers: &[PaperTable], sheets: &[Sheet], which: &[&str]) -> String {
    let papers = papers.iter().map(PaperTable::markdown);
    let read = sheets.iter().filter(|sheet| which.contains(&sheet.id));
    let all: Vec<String> = papers.chain(read.map(Sheet::markdown)).collect();
    all.join("\n")
}

fn latex(papers: &[PaperTable]) -> String {
    let tables: Vec<String> = papers.iter().map(PaperTable::latex).collect();
    format!("% needs \\usepackage{{booktabs}}\n{}", tables.join("\n"))
}

/// CSV and Parquet of every level and of every answer.
fn columns(out: &Folder<'_>, records: &[Record], rows: &[LevelRow]) -> Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for (name, columns) in [
        ("all-levels", reports::level_columns(rows)),
        ("answers", reports::answer_columns(records)),
    ] {
        written.push(out.put(&format!("csv/{name}.csv"), columns.csv().as_bytes())?);
        written.push(out.put(&format!("parquet/{name}.parquet"), &columns.parquet()?)?);
    }
    Ok(written)
}

/// Files that other programs read.
fn interop(out: &Folder<'_>, records: &[Record], rows: &[LevelRow]) -> Result<Vec<PathBuf>> {
    let mut written = vec![
        out.put(
            "interop/openmetrics.txt",
            reports::openmetrics(rows).as_bytes(),
        )?,
        out.put(
            "interop/bencher.json",
            reports::bencher_json(rows).as_bytes(),
        )?,
    ];
    let mut names: BTreeSet<String> = BTreeSet::new();
    for (cell, text) in reports::vllm_bench_json(records) {
        let name: String = cell
            .to_string()
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '.' {
                    c
                } else {
                    '-'
                }
            })
            .collect();
        let name = name.split('-').filter(|part| !part.is_empty());
        let name: Vec<&str> = name.collect();
        let mut name = name.join("-");
        // Options may differ in what a file name has no letter for.
        while !names.insert(name.clone()) {
            name.push_str("-again");
        }
        let file = format!("interop/vllm-bench/{name}.json");
        written.push(out.put(&file, text.as_bytes())?);
    }
    Ok(written)
}

/// Recorded rounds under another machine's costs; every name in it says that nothing of it was measured.
fn projected(records: &[Record], costs: &CostInput) -> Result<Sheet> {
    let projections = reports::project(records, costs)?;
    let mut sheet = Sheet {
        id: "projection",
        title:
            "PROJECTION of recorded acceptance under the costs given; nothing of this was measured"
                .into(),
        header: [
            "cell",
            "tokens",
            "rounds",
            "projected tokens a unit",
            "unit",
            "projected speedup",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: Vec::new(),
        notes: Vec::new(),
    };
    for (cell, its) in projections {
        sheet.rows.push(vec![
            cell.to_string(),
            its.tokens.to_string(),
            its.rounds.to_string(),
            format!("{:.4}", its.projected_tokens_per_unit),
            its.unit,
            format!("{:.2}", its.projected_speedup),
        ]);
    }
    Ok(sheet)
}

/// What was asked for and has no answer, a line a reason.
fn missing<'a>(records: impl Iterator<Item = &'a Record>, unfinished: &[PathBuf]) -> String {
    let mut lines: BTreeSet<String> = BTreeSet::new();
    for dir in unfinished {
        let dir = dir.display();
        lines.insert(format!(
            "{dir} is not complete, what it has is reported; draftbench run --resume {dir} goes on, or if it was merged, merge it again with the runs that it lacks\n"
        ));
    }
    for record in records {
        match (&record.outcome, &record.prompt) {
            (Outcome::Failed { why }, _) => {
                lines.insert(format!("failed: {}: {why}\n", record.cell));
            }
            (Outcome::Skipped { why }, None) => {
                lines.insert(format!("skipped: {}: {why}\n", record.cell));
            }
            _ => {}
        }
    }
    lines.into_iter().collect()
}

/// Where the files go.
struct Folder<'a>(&'a Path);

impl Folder<'_> {
    /// Makes it, and removes what an earlier report left: files of cells that are not in this one would mix in.
    fn make(&self) -> Result<()> {
        let what = || format!("--out {}: cannot be written to", self.0.display());
        let is_report = self.0.join(PAGE).is_file();
        let is_empty = fs::read_dir(self.0).map_or(true, |mut entries| entries.next().is_none());
        ensure!(
            is_report || is_empty,
            "--out {}: holds files that no report made; choose another folder",
            self.0.display()
        );
        for below in ["csv", "parquet", "plots", "interop"] {
            match fs::remove_dir_all(self.0.join(below)) {
                Err(err) if err.kind() != ErrorKind::NotFound => {
                    return Err(err).with_context(what);
                }
                _ => {}
            }
        }
        for below in ["csv", "parquet", "plots", "interop/vllm-bench"] {
            fs::create_dir_all(self.0.join(below)).with_context(what)?;
        }
        Ok(())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::write(&path, bytes)
            .with_context(|| format!("--out {}: cannot be written", path.display()))?;
        Ok(path)
    }
}
