//! What a user sees while a run is on: a live line on a terminal, a line a group elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use reports::{Outcome, Record};

use crate::show::span;

/// Counts what was decoded in this process and shows it on standard error.
pub(crate) struct Progress {
    /// Hidden where standard error is no terminal.
    bar: ProgressBar,
    is_live: bool,
    n_groups: usize,
    n_groups_done: usize,
    group: String,
    began: Instant,
    /// Answers that an earlier process decoded.
    n_kept: u64,
    /// Tokens since the run began.
    n_tokens: u64,
    /// Answers and tokens of this group.
    of_group: (u64, u64),
    /// Committed tokens and rounds of this group's arms.
    rounds: BTreeMap<String, (u64, u64)>,
    group_began: Instant,
}

impl Progress {
    /// `n_answers` are to come; `n_groups_done` of `n_groups` groups are sealed.
    pub(crate) fn new(n_answers: u64, n_groups_done: usize, n_groups: usize) -> Self {
        let bar = ProgressBar::new(n_answers);
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} answers, {eta} left, {msg}");
        bar.set_style(style.expect("the template is constant and parses"));
        Self {
            bar,
            is_live: std::io::stderr().is_terminal(),
            n_groups,
            n_groups_done,
            group: String::new(),
            began: Instant::now(),
            n_kept: 0,
            n_tokens: 0,
            of_group: (0, 0),
            rounds: BTreeMap::new(),
            group_began: Instant::now(),
        }
    }

    /// A group begins, of which `n_kept` answers are there already.
    pub(crate) fn enter(&mut self, group: String, n_kept: u64) {
        self.group = group;
        self.of_group = (0, 0);
        self.rounds.clear();
        self.group_began = Instant::now();
        self.n_kept += n_kept;
        self.bar.inc(n_kept);
        self.show();
    }

    /// An answer is there.
    pub(crate) fn take(&mut self, record: &Record) {
        if let Outcome::Ok(answer) = &record.outcome {
            let n_tokens = u64::from(answer.n_tokens);
            self.n_tokens += n_tokens;
            self.of_group.0 += 1;
            self.of_group.1 += n_tokens;
            let arm = self.rounds.entry(record.cell.method.clone()).or_default();
            let committed = answer.rounds.committed.iter().map(|c| u64::from(*c));
            arm.0 += committed.sum::<u64>();
            arm.1 += answer.rounds.committed.len() as u64;
            self.bar.inc(1);
            self.show();
        }
    }

    /// The group is sealed.
    pub(crate) fn leave(&mut self) {
        self.n_groups_done += 1;
        if self.is_live {
            return;
        }
        let (n_answers, n_tokens) = self.of_group;
        let rate = per_sec(n_tokens, self.group_began);
        let (n, of, group) = (self.n_groups_done, self.n_groups, &self.group);
        let (taus, left) = (self.taus(), self.left());
        eprintln!("[{n}/{of}] {group}: {n_answers} answers, {rate} tokens/s, tau {taus}{left}");
    }

    /// Says a line above the live one.
    pub(crate) fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Takes the live line away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn show(&self) {
        let rate = per_sec(self.n_tokens, self.began);
        let (n, of) = (self.n_groups_done + 1, self.n_groups);
        let taus = self.taus();
        let group = &self.group;
        self.bar.set_message(format!(
            "{rate} tokens/s, group {n}/{of}: {group}, tau {taus}"
        ));
    }

    /// Acceptance length so far of every drafting arm of the group.
    fn taus(&self) -> String {
        let drafting = self.rounds.iter().filter(|(arm, _)| *arm != "vanilla");
        let of_arm = |(arm, (committed, rounds)): (&String, &(u64, u64))| match rounds {
            0 => format!("{arm} -"),
            _ => format!("{arm} {:.2}", *committed as f64 / *rounds as f64),
        };
        let taus: Vec<String> = drafting.map(of_arm).collect();
        match taus.is_empty() {
            true => "-".to_owned(),
            false => taus.join(" "),
        }
    }

    fn left(&self) -> String {
        let left = self.bar.length().unwrap_or(0);
        let left = left.saturating_sub(self.bar.position());
        let done = self.bar.position().saturating_sub(self.n_kept);
        match (done, left) {
            (0, _) | (_, 0) => String::new(),
            _ => {
                let secs = self.began.elapsed().as_secs_f64() * left as f64 / done as f64;
                format!("; about {} left", span(secs.ceil() as u64))
            }
        }
    }
}

fn per_sec(n: u64, since: Instant) -> u64 {
    (n as f64 / since.elapsed().as_secs_f64().max(1e-9)).round() as u64
}
