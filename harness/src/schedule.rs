//! How many drafts of a proposal are verified: the value of an arm's `schedule` option, and the table of step costs
//! that some of its values read.

use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Result, ensure};
use decode::{
    Adaptive, Feed, Keep, LaggedCapacity, Parts, Phase, Probe, Request, Scheduler, Settings, Slot,
    StepCost, Target, Threshold, VerifyAll,
};
use reports::SamplingKey;
use serde::{Deserialize, Serialize};

use crate::engine::{Arm, sampling};

/// Spelled `all`, `threshold-P`, `adaptive` or `capacity-N`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Schedule {
    /// Every draft.
    #[default]
    All,
    /// Those before the first slot of a confidence below P.
    Threshold(f32),
    /// Those that raise the expected tokens a second, by confidences and the cost of a step.
    Adaptive,
    /// As many as would have been best N rounds ago.
    Capacity(NonZeroUsize),
}

impl Schedule {
    /// What a user may type.
    pub(crate) const SPELLINGS: &str =
        "all, threshold-P with P from 0 to 1, adaptive, or capacity-N with N rounds of at least 1";

    /// A scheduler with no history.
    pub(crate) fn scheduler(self) -> Box<dyn Scheduler> {
        match self {
            Self::All => Box::new(VerifyAll),
            Self::Threshold(floor) => Box::new(Threshold(floor)),
            Self::Adaptive => Box::new(Adaptive),
            Self::Capacity(lag) => Box::new(LaggedCapacity::new(lag)),
        }
    }

    /// Whether it reads what a step costs.
    pub(crate) fn needs_cost(self) -> bool {
        matches!(self, Self::Adaptive | Self::Capacity(_))
    }
}

impl FromStr for Schedule {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = |prefix| text.strip_prefix(prefix);
        match text {
            "all" => Ok(Self::All),
            "adaptive" => Ok(Self::Adaptive),
            _ => {
                if let Some(Ok(floor)) = number("threshold-").map(str::parse::<f32>) {
                    let is_chance = (0.0..=1.0).contains(&floor);
                    return is_chance.then_some(Self::Threshold(floor)).ok_or(());
                }
                match number("capacity-").map(str::parse) {
                    Some(Ok(lag)) => Ok(Self::Capacity(lag)),
                    _ => Err(()),
                }
            }
        }
    }
}

/// Times a pass is run; the median counts.
const REPEATS: usize = 5;

/// Tokens an answer, where the rest of a step is measured.
const DRAFTING_TOKENS: usize = 32;

/// What steps cost on this engine with so many sequences, as stored in `run.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CostTable {
    /// Id of the target.
    pub(crate) target: String,
    /// Sequences that share the rows evenly; fewer rows than sequences are one each.
    pub(crate) concurrency: u32,
    /// Tokens that each sequence has in the cache.
    pub(crate) context: usize,
    /// Verify passes, `(rows, nanoseconds)`, rows rising.
    pub(crate) points: Vec<(usize, u64)>,
    /// The rest of a step, for every arm whose scheduler asks.
    pub(crate) drafting: Vec<DraftingCost>,
}

/// What a step of all sequences spends outside its verify pass: trunk, head, schedule, acceptance and hand-over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DraftingCost {
    /// Spelling of the arm.
    pub(crate) arm: String,
    /// How it draws.
    pub(crate) sampling: SamplingKey,
    /// Nanoseconds a step.
    pub(crate) ns: u64,
}

impl CostTable {
    /// What the scheduler of an arm reads: whole steps.
    ///
    /// # Errors
    /// If what the arm spends outside its verify passes was not measured.
    pub(crate) fn step_cost(&self, arm: &str, sampling: SamplingKey) -> decode::Result<StepCost> {
        let drafting = self.drafting_of(arm, sampling).ok_or_else(|| {
            let what = format!("the cost of {arm}'s steps could not be measured at start");
            decode::Error::Model(what)
        })? as f64;
        let passes = convex_below(&self.points).into_iter();
        let steps = passes.map(|(rows, ns)| (rows, ns + drafting)).collect();
        Ok(StepCost::new(steps))
    }

    /// Nanoseconds of a step outside its verify pass, if they were measured.
    pub(crate) fn drafting_of(&self, arm: &str, sampling: SamplingKey) -> Option<u64> {
        let its = |d: &&DraftingCost| d.arm == arm && d.sampling == sampling;
        self.drafting.iter().find(its).map(|d| d.ns)
    }
}

/// Lets an arm answer the prompts together a few times with every draft verified, and takes the median of what the
/// steps that all of them share spend outside their verify passes. Answers have at most `max_new` tokens.
///
/// # Errors
/// If target or drafter fail; the slots are freed.
pub(crate) fn drafting(
    target: &mut dyn Target,
    arm: &mut Arm,
    prompts: &[&[u32]],
    (key, max_new): (SamplingKey, usize),
) -> Result<DraftingCost> {
    let mut watch = StepWatch::new(prompts.len());
    // One more than counted: the first warms up.
    for repeat in 0..=REPEATS {
        let requests = (0..).zip(prompts).map(|(id, prompt)| Request {
            id,
            prompt: prompt.to_vec(),
            max_new: max_new.min(DRAFTING_TOKENS),
        });
        let settings = Settings {
            slots: prompts.len(),
            sampling: sampling(key),
            seed: 0,
            cost: StepCost::flat(),
        };
        let parts = Parts {
            target: &mut *target,
            drafter: &mut *arm.drafter,
            scheduler: &mut VerifyAll,
            probe: &mut watch,
        };
        if let Err(err) = decode::decode(parts, requests.collect(), &settings) {
            for slot in (0..prompts.len()).map(Slot) {
                arm.drafter.finish(slot);
                target.keep(slot, 0, &[])?;
            }
            return Err(err.into());
        }
        if repeat == 0 {
            watch.steps.clear();
        }
    }
    Ok(DraftingCost {
        arm: arm.method.clone(),
        sampling: key,
        ns: watch.median(),
    })
}

/// Times what full steps spend outside their verify passes.
struct StepWatch {
    /// Sequences of a full step.
    full: usize,
    /// When the phase that runs began, if it counts; `Head` lies inside `Draft`.
    since: Option<Instant>,
    /// Whether the step that runs is a full one.
    counts: bool,
    /// Nanoseconds of each.
    steps: Vec<u64>,
}

impl StepWatch {
    fn new(full: usize) -> Self {
        Self {
            full,
            since: None,
            counts: false,
            steps: Vec::new(),
        }
    }

    fn median(mut self) -> u64 {
        self.steps.sort_unstable();
        self.steps.get(self.steps.len() / 2).copied().unwrap_or(0)
    }
}

impl Probe for StepWatch {
    fn enter(&mut self, phase: Phase, rows: usize) {
        match phase {
            Phase::Draft => {
                self.counts = rows == self.full;
                if self.counts {
                    self.steps.push(0);
                }
                self.since = Some(Instant::now());
            }
            Phase::Schedule | Phase::Judge | Phase::Commit => self.since = Some(Instant::now()),
            Phase::Prefill | Phase::Start | Phase::Head | Phase::Verify => {}
        }
    }

    fn leave(&mut self, phase: Phase) {
        if matches!(
            phase,
            Phase::Prefill | Phase::Start | Phase::Head | Phase::Verify
        ) {
            return;
        }
        let spent = self.since.take().map_or(0, |since| {
            u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
        });
        if let (true, Some(step)) = (self.counts, self.steps.last_mut()) {
            *step += spent;
        }
    }
}

/// Runs verify passes of rising size over an idle target and takes the median time of each.
///
/// `name` is the target's id. Every sequence first reads `context`; all of them are freed again. `most` is the most
/// rows of one sequence.
///
/// # Errors
/// If the target refuses a pass, or `context` is empty.
pub(crate) fn profile(
    name: &str,
    target: &mut dyn Target,
    concurrency: u32,
    context: &[u32],
    most: usize,
) -> Result<CostTable> {
    ensure!(
        !context.is_empty(),
        "a step's cost needs a prompt to stand behind"
    );
    let n_slots = concurrency as usize;
    for slot in 0..n_slots {
        let feed = Feed {
            slot: Slot(slot),
            tokens: context,
            parents: None,
            logits: Keep::Last,
        };
        target.forward(&[feed], &[])?;
    }
    let mut points = Vec::new();
    for rows in sizes(n_slots * most) {
        let mut times = Vec::with_capacity(REPEATS);
        // One more than counted: the first pass of a size is a warm-up.
        for repeat in 0..=REPEATS {
            let spent_ns = pass(target, rows, n_slots.min(rows), context)?;
            if repeat > 0 {
                times.push(spent_ns);
            }
        }
        times.sort_unstable();
        points.push((rows, times[REPEATS / 2]));
    }
    for slot in 0..n_slots {
        target.keep(Slot(slot), 0, &[])?;
    }
    Ok(CostTable {
        target: name.to_owned(),
        concurrency,
        context: context.len(),
        points,
        drafting: Vec::new(),
    })
}

/// The largest convex function below measured points, at every number of rows between the first and the last. On it the
/// expected tokens a second rise once and fall once, so that a search with an early stop ends at the best place;
/// noise and steps in the measured times would end it at the first draft.
fn convex_below(points: &[(usize, u64)]) -> Vec<(usize, f64)> {
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for (rows, ns) in points {
        let new = (*rows as f64, *ns as f64);
        while let [.., a, b] = hull.as_slice() {
            let is_above = (b.1 - a.1) * (new.0 - a.0) >= (new.1 - a.1) * (b.0 - a.0);
            if !is_above {
                break;
            }
            hull.pop();
        }
        hull.push(new);
    }
    let mut out = Vec::new();
    for pair in hull.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        out.extend(
            (x0 as usize..x1 as usize).map(|x| (x, y0 + (x as f64 - x0) * (y1 - y0) / (x1 - x0))),
        );
    }
    out.extend(hull.last().map(|last| (last.0 as usize, last.1)));
    out
}

/// One verify pass of `rows` rows over `n_slots` sequences, rolled back; nanoseconds of the forward alone.
fn pass(target: &mut dyn Target, rows: usize, n_slots: usize, context: &[u32]) -> Result<u64> {
    let tokens: Vec<u32> = context.iter().copied().cycle().take(rows).collect();
    let mut feeds = Vec::with_capacity(n_slots);
    let mut used = 0;
    for slot in 0..n_slots {
        let end = rows * (slot + 1) / n_slots;
        feeds.push(Feed {
            slot: Slot(slot),
            tokens: &tokens[used..end],
            parents: None,
            logits: Keep::All,
        });
        used = end;
    }
    let began = Instant::now();
    target.forward(&feeds, &[])?;
    let spent_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    for slot in 0..n_slots {
        target.keep(Slot(slot), context.len(), &[])?;
    }
    Ok(spent_ns)
}

/// Row counts up to `most`: every one to 8, then four to an octave.
fn sizes(most: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=most.min(8)).collect();
    let mut octave = 8;
    while octave < most {
        sizes.extend((1..=4).map(|quarter| octave + quarter * octave / 4));
        octave *= 2;
    }
    sizes.retain(|n| *n <= most);
    if sizes.last() != Some(&most) && most > 0 {
        sizes.push(most);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use decode::toy::ToyTarget;

    use super::*;

    #[test]
    fn costs_are_convex_and_never_above_what_was_measured() {
        let measured = [(1, 10), (2, 30), (4, 20), (6, 90), (8, 60)];
        let smooth = convex_below(&measured);
        let want = [
            10.0,
            13.0 + 1.0 / 3.0,
            16.0 + 2.0 / 3.0,
            20.0,
            30.0,
            40.0,
            50.0,
            60.0,
        ];
        assert_eq!(smooth.len(), 8);
        for ((rows, ns), (want_rows, want)) in smooth.iter().zip((1..).zip(want)) {
            assert!(*rows == want_rows && (ns - want).abs() < 1e-9, "{smooth:?}");
        }
        assert_eq!(convex_below(&[(3, 5)]), [(3, 5.0)]);
    }

    #[test]
    fn a_step_is_a_verify_pass_and_the_arms_own_drafting() {
        let drafting = |arm: &str, sampling, ns| DraftingCost {
            arm: arm.into(),
            sampling,
            ns,
        };
        let table = CostTable {
            target: "toy".into(),
            concurrency: 1,
            context: 1,
            points: vec![(1, 100), (2, 200)],
            drafting: vec![
                drafting("a", SamplingKey::Greedy, 300),
                drafting("a", SamplingKey::at(1000), 800),
            ],
        };
        let ns = |arm, key| 1e9 / table.step_cost(arm, key).unwrap().steps_per_sec(2);
        assert!((ns("a", SamplingKey::Greedy) - 500.0).abs() < 1e-6);
        assert!((ns("a", SamplingKey::at(1000)) - 1000.0).abs() < 1e-6);
        assert!(table.step_cost("b", SamplingKey::Greedy).is_err());
    }

    #[test]
    fn drafting_is_timed_over_whole_answers_and_frees_the_target() {
        let mut target = ToyTarget::new(11, 2, 64, &[]);
        let mut arm = Arm {
            method: "toy".into(),
            drafter: Box::new(baselines::Vanilla),
            schedule: Schedule::Adaptive,
            acceptance: crate::synthetic::Acceptance::Real,
        };
        let key = SamplingKey::Greedy;
        let cost = drafting(&mut target, &mut arm, &[&[1, 2], &[3]], (key, 4)).unwrap();
        assert!(cost.ns > 0 && cost.arm == "toy" && cost.sampling == key);
        for slot in 0..2 {
            assert!(target.cached(Slot(slot)).is_empty());
        }
    }

    #[test]
    fn a_schedule_is_read_as_it_is_spelled() {
        let lag = |n| Schedule::Capacity(NonZeroUsize::new(n).unwrap());
        for (text, want) in [
            ("all", Schedule::All),
            ("threshold-0.35", Schedule::Threshold(0.35)),
            ("threshold-1", Schedule::Threshold(1.0)),
            ("adaptive", Schedule::Adaptive),
            ("capacity-2", lag(2)),
        ] {
            assert_eq!(text.parse(), Ok(want));
        }
        for text in [
            "",
            "All",
            "threshold-",
            "threshold-1.5",
            "threshold--1",
            "threshold-NaN",
            "capacity-0",
            "capacity-two",
            "adaptive-2",
        ] {
            assert_eq!(text.parse::<Schedule>(), Err(()), "{text}");
        }
    }

    #[test]
    fn sizes_rise_to_the_most() {
        assert_eq!(sizes(3), [1, 2, 3]);
        assert_eq!(sizes(21), [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 21]);
    }

    #[test]
    fn a_profile_has_a_time_for_every_size_and_leaves_the_target_free() {
        let mut target = ToyTarget::new(11, 2, 64, &[]);
        let points = profile("toy", &mut target, 2, &[1, 2, 3], 4)
            .unwrap()
            .points;
        let rows: Vec<usize> = points.iter().map(|p| p.0).collect();
        assert_eq!(rows, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(points.iter().all(|p| p.1 > 0), "{points:?}");
        for slot in 0..2 {
            assert!(target.cached(Slot(slot)).is_empty());
        }
    }
}
