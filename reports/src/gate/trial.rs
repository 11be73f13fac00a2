//! What the gate catches and what it cries wolf over: runs of a synthetic drafter under a synthetic clock, with one
//! thing wrong, or nothing.
//!
//! Print the table of docs/gate.md: `cargo test -p draftbench-reports --lib measured_rates -- --nocapture`

use std::collections::BTreeMap;

use super::{GateInput, LayerId, Policy, Verdict, gate, throughput};
use crate::SamplingKey;
use crate::record::{Cell, Grams, Thinking};
use crate::run_data::{AnswerKey, Brief, CellData, GroupIdentity, Identity, RunData, Setting};

const TRIALS: u64 = 200;
/// Fewer than the 10,000 of a gate, for the time that 200 trials take.
const RESAMPLES: usize = 1000;
const SUITES: [&str; 2] = ["one", "two"];
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
    /// Of each suite.
    pub(super) prompts: usize,
}

impl Process {
    pub(super) fn run(&self) -> RunData {
        let mut noise = Dice::new(self.world ^ self.id.wrapping_mul(0xA5A5_5A5A_1234_4321));
        let mut cells: BTreeMap<Cell, CellData> = BTreeMap::new();
        let mut process = || (self.machine.process * noise.normal()).exp();
        let bias = [process(), process()];
        // The machine as a whole becomes faster and slower, which vanilla shares.
        let mut speed = 0.0;
        for suite in SUITES {
            for prompt in 0..self.prompts {
                speed = 0.9 * speed + self.machine.drift * noise.normal();
                for (method, bias) in ["vanilla", "dflash"].into_iter().zip(bias) {
                    let rounds = self.rounds(suite, prompt, method);
                    let n_tokens = 1 + rounds.iter().map(|r| r[2]).sum::<u32>();
                    let own = (speed + self.machine.answer * noise.normal()).exp() * bias;
                    let key = AnswerKey {
                        id: prompt.to_string(),
                        sample: 0,
                        pass: 0,
                        turn: 0,
                    };
                    let brief = Brief {
                        prompt: format!("{suite} {prompt}"),
                        text: self.text(suite, prompt, method, n_tokens),
                        n_tokens,
                        busy_ns: (self.clock(method, rounds.len()) * own) as u64,
                        rounds,
                        grams: Grams::default(),
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
        let suite = suite.len() as u64 + u64::from(suite == "two");
        let mut seed = self.world.wrapping_mul(1_000_003) ^ (suite << 40) ^ ((prompt as u64) << 20);
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
        let seed = seeds.next();
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
            concurrency: 1,
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
            groups: SUITES.iter().map(|s| group(s)).collect(),
        }
    }
}

/// How often the gate said what, of [`TRIALS`].
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

    fn columns(&self) -> String {
        let share = |n: u64| format!("{:.1} %", 100.0 * n as f64 / TRIALS as f64);
        let [fail, unsure, pass] = [self.fail, self.inconclusive, self.pass].map(share);
        format!("{fail} | {unsure} | {pass}")
    }
}

/// L2, L3 with a null control, L3 without.
fn trials(
    machine: Machine,
    sampling: SamplingKey,
    injection: Injection,
    prompts: usize,
) -> [Rates; 3] {
    let policy = Policy {
        resamples: RESAMPLES,
        ..Policy::default()
    };
    let mut rates = [Rates::default(); 3];
    for world in 0..TRIALS {
        let process = |id: u64, injection: Injection| {
            Process {
                world,
                id,
                machine,
                sampling,
                injection,
                prompts,
            }
            .run()
        };
        let (reference, candidate) = (process(1, Injection::Nothing), process(2, injection));
        let null = process(3, Injection::Nothing);
        let input = GateInput {
            reference: &reference,
            candidate: &candidate,
            null: Some(&null),
        };
        let report = gate(input, &policy).unwrap();
        let of = |id: LayerId| {
            let layer = report.layers.iter().find(|l| l.id == id);
            layer.unwrap().verdict
        };
        let alone = throughput::checks(&reference, &candidate, None, &policy);
        rates[0].add(of(LayerId::Acceptance));
        rates[1].add(of(LayerId::Throughput));
        rates[2].add(alone.iter().map(|c| c.verdict).max().unwrap());
        assert_eq!(of(LayerId::KnownAnswers), Verdict::Pass);
    }
    rates
}

/// The table of docs/gate.md and what it says, by row.
fn measured_rates() -> (String, BTreeMap<String, [Rates; 3]>) {
    let warm = SamplingKey::at(1000);
    let greedy = SamplingKey::Greedy;
    let mut table = "\
| injected | tokens | prompts | machine | L2: fail | inconclusive | pass | L3, null control: fail | inconclusive | pass | L3 alone: fail | inconclusive | pass |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
"
    .to_owned();
    let mut all = BTreeMap::new();
    let delay = Injection::Delay(0.05);
    for (name, injection, sampling, machine, prompts) in [
        ("nothing", Injection::Nothing, greedy, QUIET, 24),
        ("nothing", Injection::Nothing, greedy, QUIET, 60),
        ("nothing", Injection::Nothing, greedy, BUSY, 24),
        ("nothing", Injection::Nothing, warm, QUIET, 24),
        ("+5 % delay", delay, greedy, QUIET, 24),
        ("+5 % delay", delay, greedy, QUIET, 60),
        ("+5 % delay", delay, greedy, BUSY, 24),
        ("draft 1 wrong", Injection::Corrupted(1), greedy, QUIET, 24),
        ("draft 4 wrong", Injection::Corrupted(4), greedy, QUIET, 24),
        ("draft 7 wrong", Injection::Corrupted(7), greedy, QUIET, 24),
        ("draft 4 wrong", Injection::Corrupted(4), warm, QUIET, 24),
        ("draft 7 wrong", Injection::Corrupted(7), warm, QUIET, 24),
    ] {
        let rates = trials(machine, sampling, injection, prompts);
        let columns = rates.map(|r| r.columns()).join(" | ");
        let n = prompts * SUITES.len();
        let row = format!("{name} | {sampling} | {n} | {}", machine.name);
        table.push_str(&format!("| {row} | {columns} |\n"));
        all.insert(row, rates);
    }
    (table, all)
}

#[test]
fn measured_rates_are_those_of_the_document_and_within_honest_bounds() {
    let (table, rates) = measured_rates();
    eprintln!("{table}");
    let share = |n: u64| n as f64 / TRIALS as f64;
    let of = |row: &str| rates[row].map(|r| (share(r.fail), share(r.pass)));
    // False alarms: none where tokens leave nothing to chance, and of intervals of 95 % at most their lower tail,
    // whose standard deviation in 200 trials is 1.1 points.
    for row in [
        "nothing | greedy | 48 | quiet",
        "nothing | greedy | 120 | quiet",
    ] {
        let [l2, l3, alone] = of(row);
        assert_eq!(l2, (0.0, 1.0), "{row}");
        assert!(l3.0 <= 0.03 && alone.0 <= 0.03, "{row}: {l3:?} {alone:?}");
    }
    assert!(of("nothing | t1000 | 48 | quiet")[0].0 <= 0.03);
    // A busy machine is what the null control is for.
    let [_, l3, alone] = of("nothing | greedy | 48 | busy");
    assert!(l3.0 <= 0.05 && alone.0 >= 2.0 * l3.0, "{l3:?} {alone:?}");
    // Detection.
    for row in [
        "draft 1 wrong | greedy | 48 | quiet",
        "draft 4 wrong | greedy | 48 | quiet",
        "draft 4 wrong | t1000 | 48 | quiet",
    ] {
        assert_eq!(of(row)[0], (1.0, 0.0), "{row}");
    }
    assert!(of("draft 7 wrong | greedy | 48 | quiet")[0].0 >= 0.8);
    assert!(of("+5 % delay | greedy | 48 | quiet")[1].0 >= 0.6);
    assert!(of("+5 % delay | greedy | 120 | quiet")[1].0 >= 0.9);
    assert_eq!(
        of("+5 % delay | greedy | 48 | quiet")[0],
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
