//! No proposal kind and no honest scheduler bends the law of the text.

mod common;

use std::num::{NonZeroU32, NonZeroUsize};

use common::{NoDraft, SAMPLED, chain, kinds, run_cut, settings};
use decode::toy::{ToyDrafter, ToyLaw, ToyTarget};
use decode::{
    Adaptive, Drafter, LaggedCapacity, Request, Sampling, Scheduler, Settings, StepCost, Threshold,
    VerifyAll,
};
use statrs::distribution::{ChiSquared, ContinuousCDF};

const VOCAB: usize = 6;
const N_GENERATIONS: u64 = 60_000;
/// Below it the law is called bent. Seeds are fixed, so a pass stays a pass; the bent laws below land under 1e-30.
const P_MIN: f64 = 1e-3;

/// p-value of the counts of the first four tokens against the target's exact law.
fn p_value(drafter: &mut dyn Drafter, scheduler: &mut dyn Scheduler, seed: u64) -> f64 {
    p_value_with(drafter, scheduler, &settings(8, SAMPLED, seed))
}

fn p_value_with(
    drafter: &mut dyn Drafter,
    scheduler: &mut dyn Scheduler,
    settings: &Settings,
) -> f64 {
    let prompt = vec![1, 2, 3];
    let requests = (0..N_GENERATIONS)
        .map(|id| Request {
            id,
            prompt: prompt.clone(),
            max_new: 4,
        })
        .collect();
    let mut target = ToyTarget::new(VOCAB, 8, 64, &[]);
    let mut counts = vec![0u64; VOCAB.pow(4)];
    for generation in run_cut(&mut target, drafter, scheduler, requests, settings) {
        let cell = generation
            .tokens
            .iter()
            .fold(0, |cell, t| cell * VOCAB + *t as usize);
        counts[cell] += 1;
    }
    let (mut chi2, mut cells, mut rare, mut rare_want) = (0.0, 0usize, 0.0, 0.0);
    for (cell, count) in counts.iter().enumerate() {
        let want = exact(cell, settings.sampling) * N_GENERATIONS as f64;
        let got = *count as f64;
        if want == 0.0 && got > 0.0 {
            return 0.0;
        }
        if want < 10.0 {
            rare += got;
            rare_want += want;
        } else {
            chi2 += (got - want).powi(2) / want;
            cells += 1;
        }
    }
    if rare_want > 0.0 {
        chi2 += (rare - rare_want).powi(2) / rare_want;
    }
    let enough = if settings.sampling == SAMPLED {
        300
    } else {
        30
    };
    assert!(
        cells > enough,
        "the test must look at many outcomes, got {cells}"
    );
    ChiSquared::new(cells as f64).expect("some cells").sf(chi2)
}

/// The law at temperature 1, of which only the first `k` tokens by rank are kept and of these only those before which
/// less than `p` has been summed up.
fn truncated(law: &[f32], k: usize, p: f64) -> Vec<f64> {
    let mut ranked: Vec<(usize, f64)> = law.iter().map(|w| f64::from(*w)).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(k);
    let total: f64 = ranked.iter().map(|r| r.1).sum();
    let mut kept = vec![0.0; law.len()];
    let mut before = 0.0;
    for (token, weight) in ranked {
        if before < p * total {
            kept[token] = weight;
        }
        before += weight;
    }
    let total: f64 = kept.iter().sum();
    kept.iter().map(|w| w / total).collect()
}

fn law_after(a: u32, b: u32, sampling: Sampling) -> Vec<f64> {
    let law = ToyTarget::law(VOCAB, a, b, SAMPLED);
    let Sampling::Sampled {
        top_k, top_p_milli, ..
    } = sampling
    else {
        panic!("greedy text has no law to test");
    };
    let k = top_k.map_or(VOCAB, |k| k.get() as usize);
    let p = top_p_milli.map_or(1.0, |p| f64::from(p.get()) / 1000.0);
    truncated(&law, k, p)
}

/// Probability of four tokens after the prompt 1, 2, 3.
fn exact(cell: usize, sampling: Sampling) -> f64 {
    let tokens: Vec<u32> = (0..4)
        .rev()
        .map(|i| (cell / VOCAB.pow(i) % VOCAB) as u32)
        .collect();
    let (mut a, mut b, mut p) = (2, 3, 1.0);
    for token in tokens {
        p *= law_after(a, b, sampling)[token as usize];
        (a, b) = (b, token);
    }
    p
}

#[test]
fn vanilla_follows_the_target_law() {
    assert!(p_value(&mut NoDraft, &mut VerifyAll, 11) > P_MIN);
}

#[test]
fn every_proposal_kind_follows_the_target_law() {
    for (i, (name, mut drafter)) in kinds(VOCAB).into_iter().enumerate() {
        let p = p_value(&mut drafter, &mut VerifyAll, 100 + i as u64);
        assert!(p > P_MIN, "{name}: p = {p:e}");
    }
}

#[test]
fn the_likeliest_tokens_alone_follow_the_cut_law_whatever_is_proposed() {
    let cut = |k, p| Sampling::Sampled {
        temperature_milli: 1000,
        top_k: NonZeroU32::new(k),
        top_p_milli: NonZeroU32::new(p),
    };
    for (i, sampling) in [cut(3, 0), cut(0, 800), cut(4, 900)]
        .into_iter()
        .enumerate()
    {
        for (name, mut drafter) in kinds(VOCAB) {
            let seed = 500 + i as u64;
            let p = p_value_with(&mut drafter, &mut VerifyAll, &settings(8, sampling, seed));
            assert!(p > P_MIN, "{name}, {sampling:?}: p = {p:e}");
        }
    }
    let whole = p_value_with(&mut NoDraft, &mut VerifyAll, &settings(8, cut(4, 0), 9));
    assert!(whole > P_MIN, "vanilla: p = {whole:e}");
}

/// Cuts a row before the first slot whose own confidence falls below a floor: known before its token is drawn.
struct Honest(f32);

/// Cuts slot k by the confidence of slot k + 1, which was formed with slot k's token in view.
struct Anticipating(f32);

/// Confidence of slot k from the running products.
fn confidence(survival: &[f32], k: usize) -> f32 {
    if k == 0 {
        survival[0]
    } else {
        survival[k] / survival[k - 1]
    }
}

impl Scheduler for Honest {
    fn lengths(&mut self, survival: &[Vec<f32>], _: &StepCost) -> Vec<usize> {
        let keep = |s: &Vec<f32>| {
            (0..s.len())
                .take_while(|k| confidence(s, *k) >= self.0)
                .count()
        };
        survival.iter().map(keep).collect()
    }
}

impl Scheduler for Anticipating {
    fn lengths(&mut self, survival: &[Vec<f32>], _: &StepCost) -> Vec<usize> {
        let sees = |s: &Vec<f32>, k: usize| k + 1 < s.len() && confidence(s, k + 1) >= self.0;
        survival
            .iter()
            .map(|s| (0..s.len()).take_while(|k| sees(s, *k)).count())
            .collect()
    }
}

fn confident(law: ToyLaw) -> ToyDrafter {
    ToyDrafter {
        confident: true,
        ..chain(VOCAB, law)
    }
}

#[test]
fn a_cut_that_looks_only_back_follows_the_target_law() {
    for (i, floor) in [0.3, 0.5, 0.8].into_iter().enumerate() {
        let p = p_value(
            &mut confident(ToyLaw::Full),
            &mut Honest(floor),
            200 + i as u64,
        );
        assert!(p > P_MIN, "floor {floor}: p = {p:e}");
    }
}

#[test]
fn a_cut_that_looks_at_the_drawn_token_is_caught() {
    for (i, floor) in [0.5, 0.8].into_iter().enumerate() {
        let p = p_value(
            &mut confident(ToyLaw::Full),
            &mut Anticipating(floor),
            300 + i as u64,
        );
        assert!(p < 1e-30, "floor {floor}: p = {p:e}");
    }
}

/// Settings with a verify pass that takes `secs(extra)` seconds, `extra` = drafts a slot on average.
fn costing(secs: impl Fn(f64) -> f64, slots: usize, seed: u64) -> Settings {
    let point = |n: usize| {
        let extra = n as f64 / slots as f64 - 1.0;
        (n, 1e9 * secs(extra))
    };
    Settings {
        cost: StepCost::new((1..=4 * slots).map(point).collect()),
        ..settings(slots, SAMPLED, seed)
    }
}

/// Counts what a scheduler lets through.
struct Counted<'a> {
    scheduler: &'a mut dyn Scheduler,
    kept: usize,
    offered: usize,
}

impl Scheduler for Counted<'_> {
    fn lengths(&mut self, survival: &[Vec<f32>], cost: &StepCost) -> Vec<usize> {
        let lengths = self.scheduler.lengths(survival, cost);
        self.kept += lengths.iter().sum::<usize>();
        self.offered += survival.iter().map(Vec::len).sum::<usize>();
        lengths
    }
}

#[test]
fn every_scheduler_follows_the_target_law() {
    let lag = |rounds| LaggedCapacity::new(NonZeroUsize::new(rounds).expect("a lag"));
    let schedulers: [(&str, Box<dyn Scheduler>); 4] = [
        ("threshold", Box::new(Threshold(0.5))),
        ("adaptive", Box::new(Adaptive)),
        ("capacity of 1 round ago", Box::new(lag(1))),
        ("capacity of 2 rounds ago", Box::new(lag(2))),
    ];
    for (i, (name, mut scheduler)) in schedulers.into_iter().enumerate() {
        for slots in [1, 8] {
            let settings = costing(|extra| 1.0 + 0.6 * extra, slots, 500 + i as u64);
            let mut counted = Counted {
                scheduler: &mut *scheduler,
                kept: 0,
                offered: 0,
            };
            let p = p_value_with(&mut confident(ToyLaw::Full), &mut counted, &settings);
            assert!(p > P_MIN, "{name} at {slots} slots: p = {p:e}");
            let share = counted.kept as f64 / counted.offered as f64;
            assert!(
                (0.05..0.95).contains(&share),
                "{name} at {slots} slots must cut, it kept {share}"
            );
        }
    }
}

/// Verifies what gives the most expected tokens a second by the confidences of this very round: the counterexample of
/// DSpark (arXiv 2607.05147) to schedulers without an early stop.
struct Search;

impl Scheduler for Search {
    fn lengths(&mut self, survival: &[Vec<f32>], cost: &StepCost) -> Vec<usize> {
        let [row] = survival else {
            panic!("one slot, one row");
        };
        let rate = |len: &usize| {
            let tokens: f32 = 1.0 + row[..*len].iter().sum::<f32>();
            f64::from(tokens) * cost.steps_per_sec(1 + len)
        };
        let lens = 0..=row.len();
        let best = lens.max_by(|a, b| rate(a).total_cmp(&rate(b)));
        vec![best.expect("0 is a length")]
    }
}

#[test]
fn a_search_over_this_rounds_confidences_is_caught() {
    // The first draft makes a pass 2.7 times as long, the others are free: they pay only together, so that the second
    // confidence, which sees the first draft, decides whether that draft is verified.
    let settings = costing(|extra| 1.0 + 1.7 * extra.min(1.0), 1, 600);
    let p = p_value_with(&mut confident(ToyLaw::Full), &mut Search, &settings);
    assert!(p < 1e-30, "p = {p:e}");
}

#[test]
fn drafts_passed_off_as_a_wrong_law_are_caught() {
    struct Liar(ToyDrafter);
    impl Drafter for Liar {
        fn taps(&self) -> &[decode::LayerId] {
            self.0.taps()
        }
        fn max_draft(&self) -> usize {
            self.0.max_draft()
        }
        fn start(&mut self, prompt: decode::Committed<'_>) -> decode::Result<()> {
            self.0.start(prompt)
        }
        fn propose(
            &mut self,
            rows: &mut [decode::Anchor<'_>],
            io: &dyn decode::TokenIo,
            sampling: decode::Sampling,
            _probe: &mut dyn decode::Probe,
        ) -> decode::Result<Vec<decode::Proposal>> {
            let mut proposals = self.0.propose(rows, io, sampling, &mut decode::Silent)?;
            // Argmax drafts, reported as if drawn from the full law.
            let honest = ToyDrafter {
                law: ToyLaw::Point,
                ..chain(VOCAB, ToyLaw::Point)
            }
            .propose(rows, io, sampling, &mut decode::Silent)?;
            for (lie, truth) in proposals.iter_mut().zip(honest) {
                lie.tokens = truth.tokens;
            }
            Ok(proposals)
        }
        fn commit(&mut self, rows: Vec<decode::Committed<'_>>) -> decode::Result<()> {
            self.0.commit(rows)
        }
        fn finish(&mut self, slot: decode::Slot) {
            self.0.finish(slot);
        }
    }
    let p = p_value(&mut Liar(chain(VOCAB, ToyLaw::Full)), &mut VerifyAll, 400);
    assert!(p < 1e-30, "p = {p:e}");
}
