use std::collections::{BTreeMap, BTreeSet};

use comfy_table::{CellAlignment, Table, TableComponent, presets};

use crate::metrics::{CellStats, Equality, cells};
use crate::record::{Cell, Record};

/// Drafting methods side by side in one table; more of them start another.
const METHODS_ABREAST: usize = 2;

/// What a table needs beside records.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Column order of methods; methods it does not name follow by name.
    pub methods: Vec<String>,
    /// Row order of suites; suites it does not name follow by name.
    pub suites: Vec<String>,
    /// One line about the machine.
    pub machine: String,
    /// Lines about the run that a reader must know, such as its warm-up.
    pub remarks: Vec<String>,
}

/// Tables of all cells, one for each target, sampling, thinking and concurrency, suites as rows, then footnotes.
/// Plain text without colour.
pub fn render(records: &[Record], layout: &Layout) -> String {
    let stats = cells(records);
    let mut blocks: BTreeMap<Key, Vec<(&Cell, &CellStats)>> = BTreeMap::new();
    for (cell, stat) in &stats {
        blocks.entry(Key::of(cell)).or_default().push((cell, stat));
    }
    let mut notes = Notes::default();
    let mut out = String::new();
    for (key, block) in &blocks {
        let grid = Grid::new(block, layout);
        out.push_str(&format!("{}\n", key.title()));
        for methods in grid.methods.chunks(METHODS_ABREAST) {
            out.push_str(&grid.table(methods, &mut notes));
            out.push('\n');
        }
        out.push_str(&grid.asides());
        if grid.batched || !key.arrivals.is_closed() {
            out.push_str(&crate::load::table(&grid.load_rows(), key.arrivals));
            out.push('\n');
        }
        out.push('\n');
    }
    out.push_str(&notes.text());
    out.push_str(&definitions(&stats, layout));
    out
}

/// What separates one table from another.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    target: String,
    sampling: crate::SamplingKey,
    thinking: crate::Thinking,
    concurrency: u32,
    arrivals: crate::ArrivalKey,
}

impl Key {
    fn of(cell: &Cell) -> Self {
        Self {
            target: cell.target.clone(),
            sampling: cell.sampling,
            thinking: cell.thinking,
            concurrency: cell.concurrency,
            arrivals: cell.arrivals,
        }
    }

    fn title(&self) -> String {
        let title = format!(
            "{}, {}, thinking {}, concurrency {}",
            self.target, self.sampling, self.thinking, self.concurrency
        );
        match self.arrivals {
            crate::ArrivalKey::Closed => title,
            open => format!("{title}, {open}"),
        }
    }
}

/// Numbered footnotes; equal texts share a number.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn mark(&mut self, text: String) -> String {
        let at = self.0.iter().position(|n| *n == text).unwrap_or_else(|| {
            self.0.push(text);
            self.0.len() - 1
        });
        format!("[{}]", at + 1)
    }

    fn text(&self) -> String {
        let lines = self.0.iter().enumerate();
        lines.fold(String::new(), |mut out, (i, note)| {
            out.push_str(&format!("[{}] {note}\n", i + 1));
            out
        })
    }
}

/// The cells of one table.
struct Grid<'a> {
    /// Whether sequences share the machine at the pace of the method, so that a batch has a throughput of its own.
    batched: bool,
    /// Whether final answers could be checked anywhere.
    checked: bool,
    suites: Vec<&'a str>,
    /// Drafting methods; vanilla alone if there is none.
    methods: Vec<&'a str>,
    at: BTreeMap<(&'a str, &'a str), &'a CellStats>,
}

impl<'a> Grid<'a> {
    fn new(block: &[(&'a Cell, &'a CellStats)], layout: &Layout) -> Self {
        let suites = block.iter().map(|(c, _)| c.suite.as_str()).collect();
        let methods = block.iter().map(|(c, _)| c.method.as_str()).collect();
        let mut methods = ordered(methods, &layout.methods);
        // Vanilla is the first column of every table; alone it is a table too.
        methods.retain(|m| *m != "vanilla");
        if methods.is_empty() {
            methods.push("vanilla");
        }
        Self {
            batched: block
                .iter()
                .any(|(c, _)| c.concurrency > 1 && c.arrivals.is_closed()),
            checked: block.iter().any(|(_, s)| s.correct.is_some()),
            suites: ordered(suites, &layout.suites),
            methods,
            at: block
                .iter()
                .map(|(c, s)| ((c.suite.as_str(), c.method.as_str()), *s))
                .collect(),
        }
    }

    fn table(&self, methods: &[&str], notes: &mut Notes) -> String {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        table.remove_style(TableComponent::HorizontalLines);
        table.remove_style(TableComponent::MiddleIntersections);
        let mut head = vec!["\nsuite".to_owned(), "vanilla\ntok/s".to_owned()];
        if self.batched {
            head.push("\nbatch tok/s".into());
        }
        if self.checked {
            head.push("\ncorrect".into());
        }
        let drafting: Vec<&str> = methods
            .iter()
            .copied()
            .filter(|m| *m != "vanilla")
            .collect();
        for method in &drafting {
            head.extend([
                format!("{method}\ntau"),
                "\nspeedup".into(),
                "\ntok/s".into(),
            ]);
            if self.batched {
                head.push("\nbatch tok/s".into());
            }
            if self.checked {
                head.push("\ncorrect".into());
            }
            head.push("\nequal".into());
        }
        table.set_header(head);
        for suite in &self.suites {
            let mut row = vec![(*suite).to_owned()];
            match self.look_up(suite, "vanilla", notes) {
                Ok(stat) => row.extend(self.rates(stat)),
                Err(dash) => row.extend([vec![dash], self.dashes(0)].concat()),
            }
            for method in &drafting {
                row.extend(self.numbers(suite, method, notes));
            }
            table.add_row(row);
        }
        if self.suites.len() > 1 {
            table.add_row(self.mean_row(&drafting));
        }
        for (idx, column) in table.column_iter_mut().enumerate() {
            if idx > 0 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }

    /// The cell's numbers, or the dash that stands for them.
    fn look_up(&self, suite: &str, method: &str, notes: &mut Notes) -> Result<&CellStats, String> {
        let stat = self.at.get(&(suite, method)).ok_or("-")?;
        match &stat.trouble {
            None => Ok(stat),
            Some(why) => Err(format!(
                "- {}",
                notes.mark(format!("{method} on {suite}: {why}"))
            )),
        }
    }

    /// Tokens a second of one sequence and, where sequences share the machine, of the batch; where answers were checked,
    /// how many are right.
    fn rates(&self, stat: &CellStats) -> Vec<String> {
        let mut rates = vec![number(stat.tokens_per_sec, rate)];
        if self.batched {
            rates.push(number(stat.throughput, rate));
        }
        if self.checked {
            rates.push(correct(stat.correct));
        }
        rates
    }

    /// What stands beside the first dash of a cell without numbers; `n` columns, the batch's and that of right answers.
    fn dashes(&self, n: usize) -> Vec<String> {
        vec!["-".to_owned(); n + usize::from(self.batched) + usize::from(self.checked)]
    }

    fn numbers(&self, suite: &str, method: &str, notes: &mut Notes) -> Vec<String> {
        match self.look_up(suite, method, notes) {
            Ok(stat) => {
                let mut row = vec![number(stat.tau, two), number(stat.speedup, times)];
                row.extend(self.rates(stat));
                row.push(verdict(stat.equality));
                row
            }
            Err(dash) => [vec![dash], self.dashes(3)].concat(),
        }
    }

    fn mean_row(&self, methods: &[&str]) -> Vec<String> {
        let vanilla = self.mean("vanilla", |s| s.tokens_per_sec);
        let mut row = vec!["mean".to_owned(), number(vanilla, rate)];
        let throughput = |method: &str| {
            let mean = self.mean(method, |s| s.throughput);
            self.batched.then(|| number(mean, rate))
        };
        row.extend(throughput("vanilla"));
        row.extend(self.correct_of_all("vanilla"));
        for method in methods {
            row.extend([
                number(self.mean(method, |s| s.tau), two),
                number(self.mean(method, |s| s.speedup), times),
                number(self.mean(method, |s| s.tokens_per_sec), rate),
            ]);
            row.extend(throughput(method));
            row.extend(self.correct_of_all(method));
            row.push(self.equality_of_all(method));
        }
        row
    }

    /// Mean over suites; `None` if one has no value.
    fn mean(&self, method: &str, value: impl Fn(&CellStats) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = self
            .suites
            .iter()
            .map(|suite| {
                let stat = self.at.get(&(*suite, method))?;
                stat.trouble.is_none().then(|| value(stat))?
            })
            .collect();
        let values = values.filter(|v| !v.is_empty())?;
        Some(values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Right answers of all suites that could be checked; `None` if the table has no such column.
    fn correct_of_all(&self, method: &str) -> Option<String> {
        let of_suite = |suite: &&str| self.at.get(&(*suite, method))?.correct;
        let all = self.suites.iter().filter_map(of_suite);
        let sum = all.reduce(|sum, one| (sum.0 + one.0, sum.1 + one.1));
        self.checked.then(|| correct(sum))
    }

    fn equality_of_all(&self, method: &str) -> String {
        let each = self.suites.iter().map(|suite| {
            let stat = self.at.get(&(*suite, method));
            stat.filter(|s| s.trouble.is_none())
                .map_or(Equality::Unknown, |s| s.equality)
        });
        verdict(each.reduce(Equality::and).unwrap_or(Equality::Unknown))
    }

    /// One line with a method's interval on each suite; empty if there is none.
    fn intervals(
        &self,
        method: &str,
        what: &str,
        of: fn(&CellStats) -> Option<(f64, f64)>,
    ) -> String {
        let part = |suite: &&str| {
            let stat = self.at.get(&(*suite, method))?;
            let (low, high) = of(stat).filter(|_| stat.trouble.is_none())?;
            Some(format!("{suite} {low:.2} to {high:.2}"))
        };
        let parts: Vec<String> = self.suites.iter().filter_map(part).collect();
        match parts.is_empty() {
            true => String::new(),
            false => format!("{method} {what}, 95 % interval: {}\n", parts.join(", ")),
        }
    }

    /// One line with the median and the range of a method's speedup over passes; empty if no cell has three.
    fn by_pass(&self, method: &str) -> String {
        let part = |suite: &&str| {
            let stat = self.at.get(&(*suite, method))?;
            let mut each = stat.speedup_by_pass.clone();
            each.sort_by(f64::total_cmp);
            let (low, high) = (each.first()?, each.last()?);
            let median = (each[(each.len() - 1) / 2] + each[each.len() / 2]) / 2.0;
            (each.len() > 2).then(|| {
                let n = each.len();
                format!("{suite} {median:.2} ({low:.2} to {high:.2}, {n} passes)")
            })
        };
        let parts: Vec<String> = self.suites.iter().filter_map(part).collect();
        match parts.is_empty() {
            true => String::new(),
            false => format!("{method} speedup, median of passes: {}\n", parts.join(", ")),
        }
    }

    /// Every cell with answers, in the order of the table.
    fn load_rows(&self) -> Vec<(&str, &str, &CellStats)> {
        let methods = std::iter::once("vanilla").chain(self.methods.iter().copied());
        let mut methods: Vec<&str> = methods.collect();
        methods.dedup();
        let suites = self.suites.iter();
        let each = suites.flat_map(|suite| methods.iter().map(|method| (*suite, *method)));
        each.filter_map(|(suite, method)| {
            let stat = self.at.get(&(suite, method))?;
            stat.trouble.is_none().then_some((suite, method, *stat))
        })
        .collect()
    }

    /// One line with how many of each suite's prompts or later turns were left out, the most of any arm; empty if none
    /// was.
    fn left_out(&self, what: &str, count: fn(&CellStats) -> usize) -> String {
        let of_suite = |suite: &&str| {
            let its = self.at.iter().filter(|(at, _)| at.0 == *suite);
            let n = its.map(|(_, stat)| count(stat)).max().unwrap_or(0);
            (n > 0).then(|| format!("{suite} {n}"))
        };
        let suites: Vec<String> = self.suites.iter().filter_map(of_suite).collect();
        match suites.is_empty() {
            true => String::new(),
            false => format!(
                "{what} left out, too long for the target: {}\n",
                suites.join(", ")
            ),
        }
    }

    /// One line with the methods and suites that a flag is up for; empty if none is.
    fn flagged(&self, flag: &str, is_up: fn(&CellStats) -> bool) -> String {
        let mut parts = Vec::new();
        let drafting = self.methods.iter().copied().filter(|m| *m != "vanilla");
        for method in std::iter::once("vanilla").chain(drafting) {
            let on = |suite: &&&str| self.at.get(&(**suite, method)).is_some_and(|s| is_up(s));
            let suites: Vec<&str> = self.suites.iter().filter(on).copied().collect();
            if !suites.is_empty() {
                parts.push(format!("{method} on {}", suites.join(", ")));
            }
        }
        match parts.is_empty() {
            true => String::new(),
            false => format!("{flag}: {}\n", parts.join("; ")),
        }
    }

    /// One line with what warm-up took; empty if none is known.
    fn warm_ups(&self) -> String {
        let drafting = self.methods.iter().copied().filter(|m| *m != "vanilla");
        let of = |method| {
            let its = self.at.iter().filter(|(at, _)| at.1 == method);
            let ns: u64 = its.map(|(_, stat)| stat.warm_up_ns).sum();
            (ns > 0).then(|| format!("{method} {:.2} s", ns as f64 / 1e9))
        };
        let each: Vec<String> = std::iter::once("vanilla")
            .chain(drafting)
            .filter_map(of)
            .collect();
        match each.is_empty() {
            true => String::new(),
            false => format!("warm-up, not measured: {}\n", each.join(", ")),
        }
    }

    /// One line with each method's mean tau over answers that are no loops; empty if no answer is one.
    fn without_loops(&self) -> String {
        let n_loops: u64 = self.at.values().map(|stat| stat.n_loops).sum();
        let drafting = self.methods.iter().filter(|m| **m != "vanilla");
        let of = |m: &&str| {
            let tau = self.mean(m, |s| s.tau_without_loops)?;
            Some(format!("{m} {tau:.2}"))
        };
        let each: Vec<String> = drafting.filter_map(of).collect();
        match n_loops == 0 || each.is_empty() {
            true => String::new(),
            false => format!(
                "tau without answers of over 30 % repeated 8-grams: {}\n",
                each.join(", ")
            ),
        }
    }

    /// Intervals and shares, which would make the table too wide.
    fn asides(&self) -> String {
        let mut out = String::new();
        for method in self.methods.iter().filter(|m| **m != "vanilla") {
            out.push_str(&self.intervals(method, "tau", |s| s.tau_interval));
            out.push_str(&self.intervals(method, "speedup", |s| s.speedup_interval));
            out.push_str(&self.by_pass(method));
            if let Some(share) = self.mean(method, |s| s.accepted_share) {
                out.push_str(&format!("{method} drafts accepted: {}\n", percent(share)));
            }
        }
        out.push_str(&self.left_out("prompts", |s| s.n_skipped));
        out.push_str(&self.left_out("later turns", |s| s.n_skipped_turns));
        let drafting = self.methods.iter().copied().filter(|m| *m != "vanilla");
        let shares: Vec<String> = std::iter::once("vanilla")
            .chain(drafting)
            .filter_map(|m| {
                let share = self.mean(m, |s| s.repeated_share)?;
                Some(format!("{m} {}", percent(share)))
            })
            .collect();
        if !shares.is_empty() {
            out.push_str(&format!("repeated 8-grams: {}\n", shares.join(", ")));
        }
        out.push_str(&self.without_loops());
        out.push_str(&self.flagged("LOOPING TEXT, tau says little there", |s| s.is_degenerate()));
        out.push_str(&self.warm_ups());
        out.push_str(&self.flagged(
            "unsettled, steps still varied by over 3 % when measuring began",
            |s| s.is_unsettled,
        ));
        out
    }
}

/// Ids in the given order; those it does not name follow by name.
pub(crate) fn ordered<'a>(ids: BTreeSet<&'a str>, order: &[String]) -> Vec<&'a str> {
    let mut ids: Vec<&str> = ids.into_iter().collect();
    ids.sort_by_key(|id| order.iter().position(|o| o == id).unwrap_or(order.len()));
    ids
}

fn definitions(stats: &BTreeMap<Cell, CellStats>, layout: &Layout) -> String {
    let mut out = String::new();
    let mut say = |text: &str| out.push_str(&format!("{text}\n"));
    say(
        "tau: tokens committed per round (accepted drafts + 1, cut where an answer ends), pooled over a",
    );
    say(
        "  suite's rounds; the first token, which prefill gives, belongs to no round. Mean row: mean of suites.",
    );
    say(
        "  Intervals resample whole prompts; what a busy machine adds from run to run is not in them.",
    );
    say(
        "speedup: vanilla's decode time per token / the method's, over the same prompts, in one process,",
    );
    say("  interleaved; prefill is out, the drafter's own start on a prompt is in.");
    say("tok/s: (answer tokens - 1) / decode time, of one sequence.");
    let is_batched = |cell: &Cell| cell.concurrency > 1 && cell.arrivals.is_closed();
    if stats.keys().any(is_batched) {
        say(
            "batch tok/s: tokens of all sequences / wall time of the batch, prefills out; at concurrency above 1 the",
        );
        say("  speedup is the ratio of these.");
    }
    if stats.keys().any(Cell::is_batched) {
        crate::load::DEFINITIONS.iter().for_each(|line| say(line));
    }
    if stats.keys().any(|cell| !cell.arrivals.is_closed()) {
        crate::load::OPEN_LOOP.iter().for_each(|line| say(line));
    }
    if stats.values().any(|s| s.correct.is_some()) {
        say(
            "correct: answers whose final answer is the known one or whose code passes the known tests, of those that could",
        );
        say("  be checked; a guard, not a grade.");
    }
    let any = |wanted: fn(&Equality) -> bool| stats.values().any(|s| wanted(&s.equality));
    if any(|e| matches!(e, Equality::Exact { .. })) {
        say("equal: answers that are vanilla's token by token, of all answers.");
    }
    if any(|e| matches!(e, Equality::Law)) {
        say(
            "equal: law = draws differ, their distribution is vanilla's by the acceptance rule (tested in the",
        );
        say("  decode crate by chi-square, not by this run).");
    }
    say(
        "repeated 8-grams: share of 8-token runs seen before in the same answer; looping text drafts easily.",
    );
    layout.remarks.iter().for_each(|r| say(r));
    say(
        "Models that fit in the processor's cache make speedups small: there the extra rows of a verify pass are",
    );
    say("  paid for in full, and no time is left over from waiting for weights.");
    if !layout.machine.is_empty() {
        say(&format!("machine: {}", layout.machine));
    }
    out
}

pub(crate) fn verdict(equality: Equality) -> String {
    match equality {
        Equality::Reference => "reference".into(),
        Equality::Exact { equal, of } if equal == of => format!("exact {equal}/{of}"),
        Equality::Exact { equal, of } => format!("DIFFERS {equal}/{of}"),
        Equality::Law => "law".into(),
        Equality::Unknown => "-".into(),
    }
}

fn correct(counts: Option<(usize, usize)>) -> String {
    counts.map_or_else(|| "-".into(), |(right, of)| format!("{right}/{of}"))
}

fn number(value: Option<f64>, form: fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), form)
}

fn two(value: f64) -> String {
    format!("{value:.2}")
}

fn times(value: f64) -> String {
    format!("{value:.2}x")
}

fn rate(value: f64) -> String {
    if value < 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
