//! What the gate catches and what it cries wolf over: runs of a synthetic drafter under a synthetic clock, with one
//! thing wrong, or nothing.
//!
//! Print the table of docs/gate.md: `cargo test -p draftbench-reports --lib measured_rates -- --nocapture`

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::{GateInput, LayerId, Policy, Verdict, gate, throughput};
use crate::SamplingKey;
use crate::record::{Cell, Grams, Thinking};
use crate::run_data::{AnswerKey, Brief, CellData, GroupIdentity, Identity, RunData, Setting};

/// Of a row, unless it says how many.
const TRIALS: u64 = 200;
/// Of rows that cost more, or show less.
const FEW_TRIALS: u64 = 100;
/// Fewer than the 10,000 of a gate, for the time that 200 trials take.
const RESAMPLES: usize = 1000;
const SUITES: [&str; 4] = ["one", "two", "three", "four"];
/// Drafts a round.
const GAMMA: u32 = 7;
/// Nanoseconds of a vanilla step; below, of a verify pass and of a draft.
const STEP_NS: f64 = 1e6;
const VERIFY_NS: f64 = 1.1e6;
const DRAFT_NS: f64 = 2e5;

/// Pseudo-random numbers from a seed: splitmix64.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        let mut dice = Self(seed);
        // Neighbouring seeds part.
        dice.0 = dice.next() ^ seed.rotate_left(32);
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    pub(super) fn normal(&mut self) -> f64 {
        let (a, b) = (self.uniform(), self.uniform());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

/// What is wrong with the candidate.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Injection {
    Nothing,
    /// The draft of this slot, from 1, is never right.
    Corrupted(u32),
    /// Every round of the drafter takes this much longer.
    Delay(f64),
    /// All methods write another text at every so-manieth prompt: the target has changed.
    Altered(usize),
}

impl Injection {
    fn alters(self, prompt: usize) -> bool {
        matches!(self, Self::Altered(every) if prompt.is_multiple_of(every))
    }
}

/// How a machine disturbs times, as standard deviations of their logarithm.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    name: &'static str,
    /// Of one program's times from process to process.
    process: f64,
    /// Of one answer's time beside its neighbour's.
    answer: f64,
    /// Of the whole machine's speed from prompt to prompt; nine tenths of it stay.
    drift: f64,
}

pub(super) const QUIET: Machine = Machine {
    name: "quiet",
    process: 0.002,
    answer: 0.02,
    drift: 0.002,
};
pub(super) const BUSY: Machine = Machine {
    name: "busy",
    process: 0.02,
    answer: 0.08,
    drift: 0.05,
};

/// One process of a synthetic experiment.
pub(super) struct Process {
    /// What prompts and texts depend on.
    pub(super) world: u64,
    /// What its times depend on, and its draws where tokens are sampled.
    pub(super) id: u64,
    pub(super) machine: Machine,
    pub(super) sampling: SamplingKey,
    pub(super) injection: Injection,
    pub(super) asked: Asked,
}

/// What every method answers.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// Up to the four there are.
    pub(super) suites: usize,
    /// Of each suite.
    pub(super) prompts: usize,
    /// Above 1 every prompt is answered in two passes.
    pub(super) concurrency: u32,
}

impl Asked {
    /// One prompt after the other, of two suites.
    pub(super) fn single(prompts: usize) -> Self {
        Self {
            suites: 2,
            prompts,
            concurrency: 1,
        }
    }

    fn batched(suites: usize, prompts: usize) -> Self {
        Self {
            suites,
            prompts,
            concurrency: 8,
        }
    }

    /// Pass and prompt, in the order they are asked.
    fn each(self) -> impl Iterator<Item = (u32, usize)> {
        let passes = if self.concurrency > 1 { 2 } else { 1 };
        (0..passes).flat_map(move |pass| (0..self.prompts).map(move |prompt| (pass, prompt)))
    }

    fn suites(self) -> &'static [&'static str] {
        &SUITES[..self.suites]
    }
}

/// Numbers that suites' dice are made from.
fn suite_seed(suite: &str) -> u64 {
    match suite {
        "two" => 4,
        "four" => 6,
        other => other.len() as u64,
    }
}

impl Process {
    pub(super) fn run(&self) -> RunData {
        let mut noise = Dice::new(self.world ^ self.id.wrapping_mul(0xA5A5_5A5A_1234_4321));
        let mut cells: BTreeMap<Cell, CellData> = BTreeMap::new();
        let mut process = || (self.machine.process * noise.normal()).exp();
        let bias = [process(), process()];
        // The machine as a whole becomes faster and slower, which vanilla shares.
        let mut speed = 0.0;
        for suite in self.asked.suites() {
            for (pass, prompt) in self.asked.each() {
                speed = 0.9 * speed + self.machine.drift * noise.normal();
                for (method, bias) in ["vanilla", "dflash"].into_iter().zip(bias) {
                    let rounds = self.rounds(suite, prompt, method);
                    let n_tokens = 1 + rounds.iter().map(|r| r[2]).sum::<u32>();
                    let own = (speed + self.machine.answer * noise.normal()).exp() * bias;
                    let key = AnswerKey {
                        id: prompt.to_string(),
                        sample: 0,
                        pass,
                        turn: 0,
                    };
                    let brief = Brief {
                        prompt: format!("{suite} {prompt}"),
                        text: self.text(suite, prompt, method, n_tokens),
                        n_tokens,
                        busy_ns: (self.clock(method, rounds.len()) * own) as u64,
                        rounds,
                        grams: Grams::default(),
                        correct: None,
                    };
                    let data = cells.entry(self.cell(suite, method)).or_default();
                    data.answers.insert(key, brief);
                }
            }
        }
        RunData {
            label: format!("run {}", self.id),
            identity: self.identity(),
            faults: Vec::new(),
            synthetic: Vec::new(),
            cells,
        }
    }

    /// What the rounds of an answer take on an undisturbed machine.
    fn clock(&self, method: &str, n_rounds: usize) -> f64 {
        let slower = match self.injection {
            Injection::Delay(share) => 1.0 + share,
            _ => 1.0,
        };
        n_rounds as f64
            * match method {
                "vanilla" => STEP_NS,
                _ => (VERIFY_NS + DRAFT_NS) * slower,
            }
    }

    /// Dice of one prompt, and where tokens are sampled of one process and method.
    fn dice(&self, suite: &str, prompt: usize, method: &str) -> Dice {
        let mut seed = self.world.wrapping_mul(1_000_003)
            ^ (suite_seed(suite) << 40)
            ^ ((prompt as u64) << 20);
        if self.sampling != SamplingKey::Greedy {
            let method = u64::from(method == "vanilla");
            seed ^= (self.id * 2 + method).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        }
        Dice::new(seed)
    }

    /// An answer of the prompt's own length and acceptance. Whether a draft is right depends on the place in the text
    /// and on the slot, as it does with greedy text.
    fn rounds(&self, suite: &str, prompt: usize, method: &str) -> Vec<[u32; 3]> {
        let mut own = Dice::new(
            self.world
                ^ ((prompt as u64) << 8)
                ^ suite.len() as u64
                ^ (u64::from(suite == "two") << 60),
        );
        let acceptance = (0.8 + 0.08 * own.normal()).clamp(0.2, 0.98);
        let mut left = (120.0 * (0.5 * own.normal()).exp()).clamp(8.0, 500.0) as u32;
        let mut seeds = self.dice(suite, prompt, method);
        // Another text has its right drafts elsewhere.
        let seed = seeds.next() ^ u64::from(self.injection.alters(prompt));
        let mut rounds = Vec::new();
        while left > 0 {
            let mut dice = Dice::new(seed ^ (u64::from(left) << 32));
            let mut accepted = 0;
            let drafts = if method == "vanilla" { 0 } else { GAMMA };
            while accepted < drafts {
                let is_right = dice.uniform() < acceptance;
                if !is_right || self.injection == Injection::Corrupted(accepted + 1) {
                    break;
                }
                accepted += 1;
            }
            let committed = (accepted + 1).min(left);
            rounds.push([drafts, accepted, committed]);
            left -= committed;
        }
        rounds
    }

    fn text(&self, suite: &str, prompt: usize, method: &str, n_tokens: u32) -> String {
        match self.sampling {
            SamplingKey::Greedy if self.injection.alters(prompt) => {
                format!("{suite} {prompt} altered")
            }
            SamplingKey::Greedy => format!("{suite} {prompt} {n_tokens}"),
            SamplingKey::Sampled { .. } => format!("{suite} {prompt} {method} {}", self.id),
        }
    }

    fn cell(&self, suite: &str, method: &str) -> Cell {
        Cell {
            target: "toy".into(),
            suite: suite.into(),
            sampling: self.sampling,
            thinking: Thinking::Off,
            concurrency: self.asked.concurrency,
            arrivals: crate::ArrivalKey::Closed,
            method: method.into(),
        }
    }

    fn identity(&self) -> Identity {
        let group = |suite: &str| GroupIdentity {
            setting: Setting::of(&self.cell(suite, "dflash")),
            suite_sha256: suite.into(),
            target_sha256: "t".into(),
            drafters_sha256: [("dflash".to_owned(), Some("d".to_owned()))].into(),
            max_new: 512,
            seed: 0,
        };
        Identity {
            run: self.id.to_string(),
            program: if self.id == 2 { "new" } else { "old" }.into(),
            hardware: Some("synthetic".into()),
            dtype: Some("f32".into()),
            groups: self.asked.suites().iter().map(|s| group(s)).collect(),
        }
    }
}

/// How often the gate said what.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rates {
    fail: u64,
    inconclusive: u64,
    pass: u64,
}

impl Rates {
    fn add(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Fail => self.fail += 1,
            Verdict::Inconclusive => self.inconclusive += 1,
            Verdict::Pass => self.pass += 1,
            Verdict::Incomparable => panic!("synthetic runs are pairs"),
        }
    }

    fn n(&self) -> u64 {
        self.fail + self.inconclusive + self.pass
    }

    fn columns(&self) -> String {
        let share = |n: u64| format!("{:.1} %", 100.0 * n as f64 / self.n() as f64);
        let [fail, unsure, pass] = [self.fail, self.inconclusive, self.pass].map(share);
        format!("{fail} | {unsure} | {pass}")
    }
}

/// L2, L3 with a null control, L3 without.
fn trials(
    machine: Machine,
    sampling: SamplingKey,
    injection: Injection,
    asked: Asked,
    n_trials: u64,
) -> [Rates; 3] {
    let trial = |world: u64| {
        let process = |id: u64, injection: Injection| {
            Process {
                world,
                id,
                machine,
                sampling,
                injection,
                asked,
            }
            .run()
        };
        let reference = process(1, Injection::Nothing);
        let candidate = process(2, injection);
        let null = process(3, Injection::Nothing);
        judged([&reference, &candidate, &null], injection)
    };
    let mut rates = [Rates::default(); 3];
    let verdicts: Vec<[Verdict; 3]> = (0..n_trials).into_par_iter().map(trial).collect();
    for trial in verdicts {
        for (rates, verdict) in rates.iter_mut().zip(trial) {
            rates.add(verdict);
        }
    }
    rates
}

/// What the gate says of a reference, a candidate and a null control: L2, L3, and L3 without the control.
fn judged([reference, candidate, null]: [&RunData; 3], injection: Injection) -> [Verdict; 3] {
    let policy = Policy {
        resamples: RESAMPLES,
        ..Policy::default()
    };
    let input = GateInput {
        reference,
        candidate,
        null: Some(null),
    };
    let report = gate(input, &policy).unwrap();
    let of = |id: LayerId| {
        let layer = report.layers.iter().find(|l| l.id == id);
        layer.unwrap().verdict
    };
    assert_eq!(of(LayerId::KnownAnswers), Verdict::Pass);
    let is_altered = matches!(injection, Injection::Altered(_));
    let is_greedy = reference.cells.keys().all(crate::paired::is_greedy);
    let text = match is_greedy && !is_altered {
        true => Verdict::Pass,
        false => Verdict::Inconclusive,
    };
    assert_eq!(of(LayerId::Losslessness), text);
    let alone = throughput::checks(reference, candidate, None, &policy);
    [
        of(LayerId::Acceptance),
        of(LayerId::Throughput),
        alone.iter().map(|c| c.verdict).max().unwrap(),
    ]
}

/// The table of docs/gate.md and what it says, by row.
fn measured_rates() -> (String, BTreeMap<String, [Rates; 3]>) {
    let warm = SamplingKey::at(1000);
    let greedy = SamplingKey::Greedy;
    let mut table = "\
| injected | tokens | prompts | blocks | machine | trials | L2: fail | inconclusive | pass | L3, null control: fail | inconclusive | pass | L3 alone: fail | inconclusive | pass |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
"
    .to_owned();
    let mut all = BTreeMap::new();
    let (delay, wrong) = (Injection::Delay, Injection::Corrupted);
    let passes = |suites| Asked::batched(suites, 12);
    let (few, many) = (Asked::single(24), Asked::single(60));
    for (name, injection, sampling, machine, asked, n_trials) in [
        ("nothing", Injection::Nothing, greedy, QUIET, few, TRIALS),
        ("nothing", Injection::Nothing, greedy, QUIET, many, TRIALS),
        ("nothing", Injection::Nothing, greedy, BUSY, few, TRIALS),
        ("nothing", Injection::Nothing, warm, QUIET, few, TRIALS),
        ("+2 % delay", delay(0.02), greedy, QUIET, many, FEW_TRIALS),
        ("+3 % delay", delay(0.03), greedy, QUIET, many, FEW_TRIALS),
        ("+4 % delay", delay(0.04), greedy, QUIET, many, FEW_TRIALS),
        ("+5 % delay", delay(0.05), greedy, QUIET, few, TRIALS),
        ("+5 % delay", delay(0.05), greedy, QUIET, many, TRIALS),
        ("+5 % delay", delay(0.05), greedy, BUSY, few, TRIALS),
        (
            "+5 % delay",
            delay(0.05),
            greedy,
            QUIET,
            passes(2),
            FEW_TRIALS,
        ),
        (
            "+5 % delay",
            delay(0.05),
            greedy,
            QUIET,
            passes(4),
            FEW_TRIALS,
        ),
        (
            "other text",
            Injection::Altered(3),
            greedy,
            QUIET,
            few,
            FEW_TRIALS,
        ),
        ("draft 1 wrong", wrong(1), greedy, QUIET, few, TRIALS),
        ("draft 4 wrong", wrong(4), greedy, QUIET, few, TRIALS),
        ("draft 7 wrong", wrong(7), greedy, QUIET, few, TRIALS),
        ("draft 4 wrong", wrong(4), warm, QUIET, few, TRIALS),
        ("draft 7 wrong", wrong(7), warm, QUIET, few, TRIALS),
    ] {
        let rates = trials(machine, sampling, injection, asked, n_trials);
        let columns = rates.map(|r| r.columns()).join(" | ");
        let n = asked.prompts * asked.suites;
        let blocks = match asked.concurrency {
            1 => n,
            _ => 2 * asked.suites,
        };
        let row = format!("{name} | {sampling} | {n} | {blocks} | {}", machine.name);
        table.push_str(&format!("| {row} | {} | {columns} |\n", rates[0].n()));
        all.insert(row, rates);
    }
    (table, all)
}

#[test]
fn measured_rates_are_those_of_the_document_and_within_honest_bounds() {
    let (table, rates) = measured_rates();
    eprintln!("{table}");
    let of = |row: &str| {
        rates[row].map(|r| (r.fail as f64 / r.n() as f64, r.pass as f64 / r.n() as f64))
    };
    // False alarms: none where tokens leave nothing to chance, and of intervals of 95 % at most their lower tail,
    // whose standard deviation in 200 trials is 1.1 points.
    for row in [
        "nothing | greedy | 48 | 48 | quiet",
        "nothing | greedy | 120 | 120 | quiet",
    ] {
        let [l2, l3, alone] = of(row);
        assert_eq!(l2, (0.0, 1.0), "{row}");
        assert!(l3.0 <= 0.03 && alone.0 <= 0.03, "{row}: {l3:?} {alone:?}");
    }
    assert!(of("nothing | t1000 | 48 | 48 | quiet")[0].0 <= 0.03);
    // A busy machine is what the null control is for.
    let [_, l3, alone] = of("nothing | greedy | 48 | 48 | busy");
    assert!(l3.0 <= 0.05 && alone.0 >= 2.0 * l3.0, "{l3:?} {alone:?}");
    // Detection.
    for row in [
        "draft 1 wrong | greedy | 48 | 48 | quiet",
        "draft 4 wrong | greedy | 48 | 48 | quiet",
        "draft 4 wrong | t1000 | 48 | 48 | quiet",
    ] {
        assert_eq!(of(row)[0], (1.0, 0.0), "{row}");
    }
    assert!(of("draft 7 wrong | greedy | 48 | 48 | quiet")[0].0 >= 0.8);
    assert!(of("+5 % delay | greedy | 48 | 48 | quiet")[1].0 >= 0.6);
    assert!(of("+5 % delay | greedy | 120 | 120 | quiet")[1].0 >= 0.9);
    assert_eq!(
        of("other text | greedy | 48 | 48 | quiet")[0],
        (0.0, 1.0),
        "tau is compared where the text is the same"
    );
    // What the document says in words.
    let delayed = |share: u32| of(&format!("+{share} % delay | greedy | 120 | 120 | quiet"));
    for share in [2, 3, 4, 5] {
        assert_eq!(delayed(share)[0], (0.0, 1.0), "+{share} %");
    }
    assert!(delayed(2)[1].0 == 0.0 && delayed(2)[1].1 >= 0.95);
    assert!(delayed(3)[1].0 <= 0.05, "{:?}", delayed(3));
    assert!((0.35..0.6).contains(&delayed(4)[1].0), "{:?}", delayed(4));
    assert!(of("+5 % delay | greedy | 48 | 8 | quiet")[1].0 >= 0.6);
    let batched = of("+5 % delay | greedy | 24 | 4 | quiet");
    assert_eq!(batched[1..], [(0.0, 0.0); 2], "{batched:?}");
    assert_eq!(
        of("+5 % delay | greedy | 48 | 48 | quiet")[0],
        (0.0, 1.0),
        "a delay is no matter of tokens"
    );
    let doc = include_str!("../../../docs/gate.md");
    // Another platform's logarithm may round otherwise.
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        assert!(
            doc.contains(&table),
            "docs/gate.md does not hold the table above"
        );
    }
}
