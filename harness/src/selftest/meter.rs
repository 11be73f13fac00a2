//! How much of a round is spent outside target and drafter.

use std::cell::Cell;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use candle_core::Tensor;
use decode::{
    Anchor, Committed, Drafter, Feed, Forward, Generation, LayerId, Parts, Phase, Probe, Proposal,
    Request, Round, Sampling, Settings, Silent, Slot, StepCost, Target, TokenId, TokenIo,
    VerifyAll,
};
use models::Decoder;
use reports::{
    ArrivalKey, Cell as CellKey, Outcome, PromptKey, Record, SCHEMA, SamplingKey, Thinking,
};

use crate::arms::{self, ArmPlan, DrafterPlan};
use crate::assets::Shelf;
use crate::engine::{self, Arm, Tokens};
use crate::measure::stopwatch;
use crate::stage;

/// What is asked, a prompt of the shipped suites' kind.
const PROMPT: &str =
    "Julia has 90 dollars and buys 8 lamps for 7 dollars each. How much money does she have left?";
const MAX_NEW: usize = 96;
/// Answers that are timed; the median counts.
const REPEATS: usize = 15;

/// Medians over answers, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overhead {
    /// One round.
    pub(super) round_ns: f64,
    /// The part of it outside target and drafter: batching, schedule, acceptance, bookkeeping, and two clock reads
    /// for each call that is timed here.
    pub(super) loop_ns: f64,
    /// One answer, its prefill left out.
    pub(super) answer_ns: f64,
}

pub(super) fn ns_since(origin: Instant) -> u64 {
    u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A target and one method, loaded.
pub(super) struct Rig {
    target: Decoder,
    arm: Arm,
    prompt: Vec<u32>,
}

impl Rig {
    /// # Errors
    /// If an id is unknown or a file is missing or wrong.
    pub(super) fn load(target: &str, method: &str, shelf: &Shelf) -> Result<Self> {
        let arm = ArmPlan::parse(method)?;
        let target = arms::target_plan(target, std::slice::from_ref(&arm), shelf)?;
        for drafter in &target.drafters {
            if let DrafterPlan::Skipped(_, why) = drafter {
                bail!("{why}");
            }
        }
        let renderer = stage::renderer(&target.source)?;
        let turns = stage::one_turn(PROMPT);
        let prompt = renderer
            .render(&turns, stage::switch(Thinking::Off))?
            .token_ids;
        let capacity = stage::check_one(&target, prompt.len(), MAX_NEW, 16)?;
        let (decoder, arms) = stage::load(&target, &[1], capacity)?;
        let Some((_, arm)) = arms.into_iter().next() else {
            bail!("method {method} was not loaded");
        };
        Ok(Self {
            target: decoder,
            arm,
            prompt,
        })
    }

    /// Answers the prompt some times; gives the medians and a record of one answer.
    ///
    /// # Errors
    /// If target or drafter fail.
    pub(super) fn measure(&mut self) -> Result<(Overhead, Record)> {
        let (mut rounds, mut loops, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = None;
        for repeat in 0..=REPEATS {
            let spent = Spent::default();
            let origin = Instant::now();
            let mut watch = Since {
                origin,
                spent: &spent,
                first: None,
            };
            let done = self.answer(&spent, &mut watch)?;
            let (wall, inner) = watch.first.map_or((0, 0), |(at, inner)| {
                (ns_since(origin) - at, spent.0.get() - inner)
            });
            let Some(generation) = done.into_iter().next() else {
                bail!("the loop gave no answer");
            };
            let n = generation.rounds.len().max(1) as f64;
            // The first answer warms up.
            if repeat > 0 {
                rounds.push(wall as f64 / n);
                loops.push(wall.saturating_sub(inner) as f64 / n);
                answers.push(wall as f64);
            }
            last = Some(generation);
        }
        let generation = last.context("nothing was measured")?;
        let overhead = Overhead {
            round_ns: median(&mut rounds),
            loop_ns: median(&mut loops),
            answer_ns: median(&mut answers),
        };
        Ok((overhead, record(&generation)))
    }

    fn answer(&mut self, spent: &Spent, probe: &mut dyn Probe) -> Result<Vec<Generation>> {
        let mut target = TimedTarget(&mut self.target, spent);
        let mut drafter = TimedDrafter(&mut *self.arm.drafter, spent);
        let parts = Parts {
            target: &mut target,
            drafter: &mut drafter,
            scheduler: &mut VerifyAll,
            probe,
        };
        let request = Request {
            id: 0,
            prompt: self.prompt.clone(),
            max_new: MAX_NEW,
        };
        let settings = Settings {
            slots: 1,
            sampling: Sampling::Greedy,
            seed: 0,
            cost: StepCost::flat(),
        };
        Ok(decode::decode(parts, vec![request], &settings)?)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn record(generation: &Generation) -> Record {
    let times = stopwatch().times(0);
    let answer = engine::answer(generation, &times, 0, Tokens::Hashed);
    Record {
        schema: SCHEMA,
        run: "selftest".into(),
        cell: CellKey {
            target: "selftest".into(),
            method: "selftest".into(),
            suite: "selftest".into(),
            sampling: SamplingKey::Greedy,
            thinking: Thinking::Off,
            concurrency: 1,
            arrivals: ArrivalKey::Closed,
        },
        prompt: Some(PromptKey {
            id: "0".into(),
            sample: 0,
            pass: 0,
            turn: 0,
            sha256: "0".repeat(64),
            n_tokens: 0,
        }),
        outcome: Outcome::Ok(Box::new(answer)),
    }
}

/// Nanoseconds that the clock's probe adds to a round of one sequence, over many rounds of its calls.
pub(super) fn probe_ns() -> f64 {
    const ROUNDS: u32 = 50_000;
    let mut watch = stopwatch();
    watch.admitted(0);
    watch.first_token(0, 0);
    let proposal = Proposal::chain(vec![0; 7]);
    let round = Round {
        drafted: 7,
        verified: 7,
        accepted: 0,
        committed: 1,
    };
    let origin = Instant::now();
    for _ in 0..ROUNDS {
        watch.enter(Phase::Draft, 1);
        watch.enter(Phase::Head, 1);
        watch.leave(Phase::Head);
        watch.leave(Phase::Draft);
        watch.proposed(0, &proposal);
        for phase in [Phase::Schedule, Phase::Verify, Phase::Judge, Phase::Commit] {
            watch.enter(phase, 1);
            watch.leave(phase);
        }
        watch.round(0, &round, &[0]);
    }
    ns_since(origin) as f64 / f64::from(ROUNDS)
}

/// Nanoseconds to write a record as a run does, into a file in `dir` that is removed again.
///
/// # Errors
/// If the folder cannot be written to.
pub(super) fn recording_ns(record: &Record, dir: &Path) -> Result<f64> {
    const RECORDS: u32 = 200;
    let path = dir.join(format!(".draftbench-records-{}.tmp", std::process::id()));
    let mut file = fs::File::create_new(&path)
        .with_context(|| format!("{}: cannot be written to", dir.display()))?;
    let origin = Instant::now();
    let written = (0..RECORDS).try_for_each(|_| -> Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        Ok(file.write_all(&line)?)
    });
    let spent_ns = ns_since(origin);
    fs::remove_file(&path)?;
    written?;
    Ok(spent_ns as f64 / f64::from(RECORDS))
}

/// Time inside target and drafter so far.
#[derive(Default)]
struct Spent(Cell<u64>);

impl Spent {
    fn time<T>(&self, call: impl FnOnce() -> T) -> T {
        let origin = Instant::now();
        let out = call();
        self.0.set(self.0.get() + ns_since(origin));
        out
    }
}

/// Remembers when the first token came, so that prefill stays out.
struct Since<'a> {
    origin: Instant,
    spent: &'a Spent,
    /// Nanoseconds since `origin`, and inside target and drafter, then.
    first: Option<(u64, u64)>,
}

impl Probe for Since<'_> {
    fn first_token(&mut self, _id: u64, _token: TokenId) {
        self.first = Some((ns_since(self.origin), self.spent.0.get()));
    }
}

struct TimedTarget<'a>(&'a mut Decoder, &'a Spent);

impl TokenIo for TimedTarget<'_> {
    fn vocab(&self) -> usize {
        self.0.vocab()
    }

    fn embed(&self, ids: &Tensor) -> decode::Result<Tensor> {
        self.0.embed(ids)
    }

    fn lm_head(&self, hidden: &Tensor) -> decode::Result<Tensor> {
        self.0.lm_head(hidden)
    }
}

impl Target for TimedTarget<'_> {
    fn stop_tokens(&self) -> &[TokenId] {
        self.0.stop_tokens()
    }

    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    fn forward(&mut self, feeds: &[Feed<'_>], taps: &[LayerId]) -> decode::Result<Forward> {
        self.1.time(|| self.0.forward(feeds, taps))
    }

    fn keep(&mut self, slot: Slot, len: usize, path: &[u32]) -> decode::Result<()> {
        self.1.time(|| self.0.keep(slot, len, path))
    }
}

struct TimedDrafter<'a>(&'a mut dyn Drafter, &'a Spent);

impl Drafter for TimedDrafter<'_> {
    fn taps(&self) -> &[LayerId] {
        self.0.taps()
    }

    fn max_draft(&self) -> usize {
        self.0.max_draft()
    }

    fn start(&mut self, prompt: Committed<'_>) -> decode::Result<()> {
        self.1.time(|| self.0.start(prompt))
    }

    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
        _probe: &mut dyn Probe,
    ) -> decode::Result<Vec<Proposal>> {
        let spent = self.1;
        spent.time(|| self.0.propose(rows, io, sampling, &mut Silent))
    }

    fn commit(&mut self, rows: Vec<Committed<'_>>) -> decode::Result<()> {
        self.1.time(|| self.0.commit(rows))
    }

    fn finish(&mut self, slot: Slot) {
        self.1.time(|| self.0.finish(slot));
    }
}
