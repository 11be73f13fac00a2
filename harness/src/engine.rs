//! Runs the cells that differ in their method alone, interleaved, over one loaded target.

use std::time::Instant;

use anyhow::Result;
use decode::{
    Drafter, Generation, Parts, Request, RequestId, Sampling, Settings, StepCost, Target,
};
use reports::{
    Answer, ArrivalKey, Cell, Ended, Grams, Outcome, PromptKey, Record, Rounds, SCHEMA,
    SamplingKey, Startup,
};

use crate::arrivals::{self, Timetable};
use crate::measure::{Times, stopwatch_from};
use crate::schedule::{CostTable, Schedule};
use crate::synthetic::{Acceptance, Synthetic, Texts};
use crate::warm_up::{self, COVER_TOKENS, SETTLE_TOKENS, Settling, Warm};

/// A method ready to draft.
pub(crate) struct Arm {
    /// What records call it.
    pub(crate) method: String,
    /// Its drafter.
    pub(crate) drafter: Box<dyn Drafter>,
    /// How its proposals are cut.
    pub(crate) schedule: Schedule,
    /// How its drafts come to be accepted.
    pub(crate) acceptance: Acceptance,
}

/// A rendered prompt.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// Number of the random stream; the same for every method and concurrency.
    pub(crate) id: RequestId,
    /// What the record says about it; `pass` is filled in by the engine.
    pub(crate) prompt: PromptKey,
    /// Token ids.
    pub(crate) tokens: Vec<u32>,
    /// What `tokens` says, the user's turns and the arm's own answers alternately.
    pub(crate) turns: Vec<String>,
    /// User turns that are asked after the answer.
    pub(crate) later: Vec<String>,
    /// Cache positions set aside for the whole conversation.
    pub(crate) room: usize,
    /// What a right answer is known by.
    pub(crate) reference: Option<suites::Reference>,
}

/// Leads conversations on.
pub(crate) trait Talk {
    /// What is asked after `answer` to `ask`.
    fn next(&self, ask: &Ask, answer: &[u32]) -> Next;

    /// Whether `answer` to `ask` is right; `None` if that is not known.
    fn judge(&self, ask: &Ask, answer: &[u32]) -> Option<bool>;
}

/// How a conversation goes on.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// It is over.
    Over,
    /// With another turn.
    Ask(Ask),
    /// With a turn that cannot be asked, for a reason.
    Skip(PromptKey, String),
}

/// Whether records hold token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tokens {
    /// Their hash only.
    Hashed,
    /// The ids too.
    Kept,
}

/// One block of cells.
pub(crate) struct Job<'a> {
    /// Id of the run.
    pub(crate) run: &'a str,
    /// Coordinates; the method is filled in.
    pub(crate) cell: Cell,
    /// Prompts, each as often as it has samples.
    pub(crate) asks: &'a [Ask],
    /// Most tokens an answer.
    pub(crate) max_new: usize,
    /// Seed of all streams.
    pub(crate) seed: u64,
    /// What records hold.
    pub(crate) tokens: Tokens,
    /// What schedulers are told of the engine; nothing if none asks.
    pub(crate) cost: Option<&'a CostTable>,
    /// Batches that were measured before an interruption, and are not measured again.
    pub(crate) n_done: usize,
    /// Methods that failed in them.
    pub(crate) lost: &'a [String],
    /// What follows an answer.
    pub(crate) talk: &'a dyn Talk,
}

/// Takes records as they come.
pub(crate) trait Sink {
    /// `tokens` is the answer, empty if there is none.
    ///
    /// # Errors
    /// If the record cannot be stored; the run ends.
    fn take(&mut self, record: Record, tokens: &[u32]) -> Result<()>;

    /// Every arm has answered the batch; `n_batches` are complete.
    ///
    /// # Errors
    /// If that cannot be stored; the run ends.
    fn batch_done(&mut self, _n_batches: usize) -> Result<()> {
        Ok(())
    }

    /// Whether the user wants no more answers.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// How a block of cells ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measured {
    /// Every batch is complete.
    Whole,
    /// The user stopped it; the batch at hand is lost.
    Stopped,
}

/// How often [`measure`] answers each prompt: batches run twice, so that arms can be taken in both orders.
pub(crate) fn passes(concurrency: u32, arrivals: ArrivalKey) -> u32 {
    if concurrency == 1 && arrivals.is_closed() {
        1
    } else {
        2
    }
}

/// Decodes every prompt with every arm and hands over the records.
///
/// At concurrency 1 arms alternate prompt by prompt, at higher concurrency and in open loop batch by batch, each time
/// in the reverse of the order before (A B, B A), so that a machine that becomes slower favours nobody. Before that each
/// arm is warmed up unmeasured, and a record tells what that took. An arm that errs is out for this job; its record says why.
///
/// # Errors
/// Those of the sink.
pub(crate) fn measure(
    target: &mut dyn Target,
    arms: &mut [&mut Arm],
    job: &Job<'_>,
    sink: &mut dyn Sink,
) -> Result<Measured> {
    let batch_len = match job.cell.is_batched() {
        true => job.asks.len().max(1),
        false => 1,
    };
    let passes = 0..passes(job.cell.concurrency, job.cell.arrivals);
    let batches: Vec<(u32, &[Ask])> = passes
        .flat_map(|pass| job.asks.chunks(batch_len).map(move |batch| (pass, batch)))
        .collect();
    if job.n_done >= batches.len() {
        return Ok(Measured::Whole);
    }
    let mut bench = Bench {
        target,
        job,
        out: arms.iter().map(|a| job.lost.contains(&a.method)).collect(),
        sink,
        unjudged: Vec::new(),
        is_cut: false,
        is_drawn: arms.iter().any(|arm| arm.acceptance.is_synthetic()),
        texts: Texts::default(),
    };
    for (arm_idx, arm) in arms.iter_mut().enumerate() {
        if bench.sink.is_stopped() {
            return Ok(Measured::Stopped);
        }
        if bench.out[arm_idx] {
            continue;
        }
        match bench.warm_up(arm) {
            Ok(startup) => {
                let record = bench.record(arm, None, Outcome::Started(startup));
                bench.sink.take(record, &[])?;
            }
            Err(err) => bench.fail(arm_idx, arm, None, &err)?,
        }
    }
    for (batch_idx, (pass, batch)) in batches.into_iter().enumerate().skip(job.n_done) {
        for step in 0..arms.len() {
            if bench.sink.is_stopped() {
                return Ok(Measured::Stopped);
            }
            let arm_idx = match batch_idx % 2 {
                0 => step,
                _ => arms.len() - 1 - step,
            };
            bench.batch(arm_idx, arms[arm_idx], batch, pass)?;
        }
        if bench.is_cut {
            return Ok(Measured::Stopped);
        }
        bench.judge()?;
        bench.sink.batch_done(batch_idx + 1)?;
    }
    Ok(Measured::Whole)
}

/// What one batch gave.
struct Answers {
    each: Vec<(Generation, Times)>,
    /// Wall time of the batch.
    batch_ns: u64,
}

impl Answers {
    fn of(&self, id: RequestId) -> Option<(&Generation, &Times)> {
        let found = self.each.iter().find(|(g, _)| g.id == id)?;
        Some((&found.0, &found.1))
    }
}

struct Bench<'a> {
    target: &'a mut dyn Target,
    job: &'a Job<'a>,
    /// Arms that failed.
    out: Vec<bool>,
    sink: &'a mut dyn Sink,
    /// Answers of the batch at hand that have a reference, in order.
    unjudged: Vec<Unjudged>,
    /// Whether the user stopped the batch at hand in its middle.
    is_cut: bool,
    /// Whether an arm's acceptance is.
    is_drawn: bool,
    /// What the target says by itself, if so.
    texts: Texts,
}

/// An answer before it is judged.
struct Unjudged {
    record: Record,
    tokens: Vec<u32>,
    ask: Ask,
}

impl Bench<'_> {
    /// Covers the shapes of the cell, then repeats a batch until its steps take equally long.
    fn warm_up(&mut self, arm: &mut Arm) -> decode::Result<Startup> {
        let asks = self.job.asks;
        let slots = self.job.cell.concurrency as usize;
        let began = Instant::now();
        let requests = |batch: &[Warm<'_>], most: usize| -> Vec<Request> {
            let request = |(id, prompt): &Warm<'_>| Request {
                id: *id,
                prompt: prompt.to_vec(),
                max_new: self.job.max_new.min(most),
            };
            batch.iter().map(request).collect()
        };
        let cover: Vec<Vec<Request>> = warm_up::shapes(asks, slots)
            .iter()
            .map(|batch| requests(batch, COVER_TOKENS))
            .collect();
        let settle = requests(&warm_up::repeated(asks, slots), SETTLE_TOKENS);
        for batch in cover {
            self.decode(arm, batch, None)?;
        }
        let cover_ns = nanos_since(began);
        let began = Instant::now();
        let passes = passes(self.job.cell.concurrency, self.job.cell.arrivals) as usize;
        let n_tokens = asks.len() * passes * self.job.max_new;
        let mut settling = Settling::new(n_tokens, settle.iter().map(|r| r.max_new).sum());
        while !settling.is_over() && !self.sink.is_stopped() {
            let answers = self.decode(arm, settle.clone(), None)?;
            settling.add(answers.each.iter().map(|(_, times)| times));
        }
        Ok(Startup {
            cover_ns,
            settle_ns: nanos_since(began),
            settled: settling.is_settled(),
            step_ns: settling.into_medians(),
        })
    }

    /// When the requests of one pass and turn come; nothing in closed loop. Every prompt has its time, whether or not its
    /// conversation has come to this turn, so that the same prompt comes at the same time for every arm.
    fn timetable(&self, asks: &[Ask], pass: u32) -> Option<Vec<u64>> {
        let per_sec = self.job.cell.arrivals.per_sec()?;
        let turn = asks.first().map_or(0, |ask| ask.prompt.turn);
        let stream = u64::from(pass) << 32 | u64::from(turn);
        let all = self.job.asks;
        let times = arrivals::poisson(all.len(), per_sec, self.job.seed, stream);
        let of = |ask: &Ask| {
            let key = |ask: &Ask| (ask.prompt.id.clone(), ask.prompt.sample);
            let nth = all.iter().position(|first| key(first) == key(ask));
            nth.map_or(0, |nth| times[nth])
        };
        Some(asks.iter().map(of).collect())
    }

    /// Answers the first turn of every prompt, then the second of those that have one, and so on.
    fn batch(&mut self, arm_idx: usize, arm: &mut Arm, asks: &[Ask], pass: u32) -> Result<()> {
        let mut later = self.turn(arm_idx, arm, asks, pass)?;
        while !later.is_empty() {
            later = self.turn(arm_idx, arm, &later, pass)?;
        }
        Ok(())
    }

    /// Answers one turn and gives what is asked next.
    fn turn(&mut self, arm_idx: usize, arm: &mut Arm, asks: &[Ask], pass: u32) -> Result<Vec<Ask>> {
        let mut later = Vec::new();
        if self.out[arm_idx] {
            return Ok(later);
        }
        let due_ns = self.timetable(asks, pass);
        let request = |ask: &Ask| Request {
            id: ask.id,
            prompt: ask.tokens.clone(),
            max_new: self.job.max_new,
        };
        let requests = asks.iter().map(request).collect();
        let answers = match self.decode(arm, requests, due_ns.as_deref()) {
            Ok(answers) => answers,
            Err(_) if self.sink.is_stopped() => {
                self.is_cut = true;
                self.free(arm);
                return Ok(later);
            }
            Err(err) => {
                let prompt = asks.first().filter(|_| asks.len() == 1);
                self.fail(arm_idx, arm, prompt, &err)?;
                return Ok(later);
            }
        };
        for ask in asks {
            let Some((generation, times)) = answers.of(ask.id) else {
                continue;
            };
            let prompt = PromptKey {
                pass,
                ..ask.prompt.clone()
            };
            let answer = answer(generation, times, answers.batch_ns, self.job.tokens);
            let outcome = Outcome::Ok(Box::new(answer));
            let record = self.record(arm, Some(prompt), outcome);
            match ask.reference {
                None => self.sink.take(record, &generation.tokens)?,
                Some(_) => self.unjudged.push(Unjudged {
                    record,
                    tokens: generation.tokens.clone(),
                    ask: ask.clone(),
                }),
            }
            match self.job.talk.next(ask, &generation.tokens) {
                Next::Over => {}
                Next::Ask(ask) => later.push(ask),
                Next::Skip(prompt, why) => {
                    let prompt = PromptKey { pass, ..prompt };
                    let record = self.record(arm, Some(prompt), Outcome::Skipped { why });
                    self.sink.take(record, &[])?;
                }
            }
        }
        Ok(later)
    }

    fn step_cost(&self, arm: &Arm) -> decode::Result<StepCost> {
        if !arm.schedule.needs_cost() {
            return Ok(StepCost::flat());
        }
        match self.job.cost {
            Some(table) => table.step_cost(&arm.method, self.job.cell.sampling),
            None => Err(decode::Error::Model(
                "the cost of steps at this concurrency could not be measured at start".into(),
            )),
        }
    }

    /// Answers some requests, all at once or each when it is due.
    fn decode(
        &mut self,
        arm: &mut Arm,
        requests: Vec<Request>,
        due_ns: Option<&[u64]>,
    ) -> decode::Result<Answers> {
        let ids: Vec<RequestId> = requests.iter().map(|r| r.id).collect();
        let slots = self.job.cell.concurrency as usize;
        let settings = Settings {
            slots,
            sampling: sampling(self.job.cell.sampling),
            seed: self.job.seed,
            cost: self.step_cost(arm)?,
        };
        let is_told = self.is_drawn && arm.drafter.max_draft() == 0;
        let asked = is_told.then(|| requests.clone());
        let mut synthetic;
        let drafter: &mut dyn Drafter = match arm.acceptance {
            Acceptance::Real => &mut *arm.drafter,
            Acceptance::Synthetic(tau) => {
                // Before the clock starts.
                self.texts.complete(&mut *self.target, &requests, slots)?;
                synthetic = Synthetic::new(&mut *arm.drafter, tau, &self.texts);
                &mut synthetic
            }
        };
        let began = Instant::now();
        let mut watch = stopwatch_from(began);
        let mut scheduler = arm.schedule.scheduler();
        let parts = Parts {
            target: &mut *self.target,
            drafter,
            scheduler: &mut *scheduler,
            probe: &mut watch,
        };
        let done = match due_ns {
            None => decode::decode(parts, requests, &settings)?,
            Some(due_ns) => {
                let sink = &*self.sink;
                let mut timetable = Timetable {
                    origin: began,
                    due_ns,
                    is_stopped: &|| sink.is_stopped(),
                };
                decode::decode_arriving(parts, requests, &settings, &mut timetable)?
            }
        };
        let batch_ns = nanos_since(began);
        if let Some(asked) = asked {
            self.texts.add(asked, &done);
        }
        let with_times = |generation: Generation| {
            let mut times = watch.times(generation.id);
            let nth = ids.iter().position(|id| *id == generation.id);
            times.timeline.arrived_ns = nth.and_then(|nth| due_ns?.get(nth).copied());
            (generation, times)
        };
        Ok(Answers {
            batch_ns,
            each: done.into_iter().map(with_times).collect(),
        })
    }

    fn fail(
        &mut self,
        arm_idx: usize,
        arm: &mut Arm,
        ask: Option<&Ask>,
        err: &decode::Error,
    ) -> Result<()> {
        self.out[arm_idx] = true;
        let why = crate::message(err) + &self.free(arm);
        let record = self.record(arm, ask.map(|a| a.prompt.clone()), Outcome::Failed { why });
        self.sink.take(record, &[])
    }

    /// Frees every slot after an error; says which could not be.
    fn free(&mut self, arm: &mut Arm) -> String {
        let mut stuck = String::new();
        for slot in (0..self.job.cell.concurrency as usize).map(decode::Slot) {
            arm.drafter.finish(slot);
            if let Err(err) = self.target.keep(slot, 0, &[]) {
                stuck.push_str(&format!("; slot {} could not be freed: {err}", slot.0));
            }
        }
        stuck
    }

    /// Judges what the arms of a batch have answered and hands it over. To judge may take seconds, which must not come
    /// between the arms: only the one behind the first answer of a text would start on a machine that had idled.
    fn judge(&mut self) -> Result<()> {
        for mut unjudged in std::mem::take(&mut self.unjudged) {
            if let Outcome::Ok(answer) = &mut unjudged.record.outcome {
                answer.correct = self.job.talk.judge(&unjudged.ask, &unjudged.tokens);
            }
            self.sink.take(unjudged.record, &unjudged.tokens)?;
        }
        Ok(())
    }

    fn record(&self, arm: &Arm, prompt: Option<PromptKey>, outcome: Outcome) -> Record {
        Record {
            schema: SCHEMA,
            run: self.job.run.to_owned(),
            cell: Cell {
                method: arm.method.clone(),
                ..self.job.cell.clone()
            },
            prompt,
            outcome,
        }
    }
}

/// The loop's name for a sampling key.
pub(crate) fn sampling(key: SamplingKey) -> Sampling {
    match key {
        SamplingKey::Greedy => Sampling::Greedy,
        SamplingKey::Sampled {
            temperature_milli,
            top_k,
            top_p_milli,
        } => Sampling::Sampled {
            temperature_milli,
            top_k,
            top_p_milli,
        },
    }
}

fn nanos_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// What is recorded of an answer.
pub(crate) fn answer(
    generation: &Generation,
    times: &Times,
    batch_ns: u64,
    tokens: Tokens,
) -> Answer {
    let list = |of: fn(&decode::Round) -> u32| generation.rounds.iter().map(of).collect();
    Answer {
        n_tokens: generation.tokens.len() as u32,
        tokens_sha256: sha256_of(&generation.tokens),
        tokens: (tokens == Tokens::Kept).then(|| generation.tokens.clone()),
        rounds: Rounds {
            drafted: list(|r| r.drafted),
            verified: list(|r| r.verified),
            accepted: list(|r| r.accepted),
            committed: list(|r| r.committed),
            confidence_ppm: times.confidence_ppm.clone(),
        },
        ended: match generation.ended {
            decode::Ended::Stop => Ended::Stop,
            decode::Ended::Length => Ended::Length,
        },
        prefill_ns: times.prefill_ns,
        decode_ns: times.decode_ns,
        batch_ns,
        timeline: times.timeline.clone(),
        phases: times.phases,
        grams: Grams::of(&generation.tokens),
        correct: None,
    }
}

/// SHA-256 over the ids, four little-endian bytes each, hexadecimal.
pub(crate) fn sha256_of(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    datasets::sha256_bytes(&bytes)
}
