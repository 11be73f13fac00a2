//! The loop: equal text at every concurrency, honest counts, clean edges.

mod common;

use common::{NoDraft, SAMPLED, chain, kinds, prompts, run_cut, run_on, settings};
use decode::toy::{Oracle, ToyLaw, ToyTarget, Wrong};
use decode::{
    Drafter, Ended, Error, Generation, Parts, Request, Sampling, Scheduler, Silent, Slot, StepCost,
    VerifyAll, decode,
};

const VOCAB: usize = 24;

fn target(slots: usize) -> ToyTarget {
    ToyTarget::new(VOCAB, slots, 256, &[0])
}

fn texts(generations: &[Generation]) -> Vec<&[u32]> {
    generations.iter().map(|g| g.tokens.as_slice()).collect()
}

fn check_counts(generation: &Generation) {
    let committed: u32 = generation.rounds.iter().map(|r| r.committed).sum();
    assert_eq!(
        generation.tokens.len() as u32,
        1 + committed,
        "{generation:?}"
    );
    for (i, r) in generation.rounds.iter().enumerate() {
        assert!(r.committed >= 1 && r.committed <= r.accepted + 1, "{r:?}");
        assert!(r.accepted <= r.verified && r.verified <= r.drafted, "{r:?}");
        let last = i + 1 == generation.rounds.len();
        assert!(
            last || r.committed == r.accepted + 1,
            "only the last round is cut: {r:?}"
        );
    }
}

fn tau(generations: &[Generation]) -> f64 {
    let rounds: Vec<_> = generations.iter().flat_map(|g| &g.rounds).collect();
    rounds.iter().map(|r| f64::from(r.committed)).sum::<f64>() / rounds.len() as f64
}

/// Every toy drafter, oracle and adversary included, for `slots` sequences.
fn drafters(slots: usize) -> Vec<(String, Box<dyn Drafter>)> {
    let mut all: Vec<(String, Box<dyn Drafter>)> = vec![("none".into(), Box::new(NoDraft))];
    for (name, drafter) in kinds(VOCAB) {
        all.push((name.into(), Box::new(drafter)));
    }
    for wrong in [Wrong::Never, Wrong::Slot(2), Wrong::Always] {
        all.push((
            format!("oracle, wrong {wrong:?}"),
            Box::new(Oracle::new(5, wrong, slots)),
        ));
    }
    all
}

#[test]
fn greedy_text_is_the_same_for_every_drafter_and_concurrency() {
    let want = run_on(
        &mut target(1),
        &mut NoDraft,
        prompts(24, 50),
        &settings(1, Sampling::Greedy, 0),
    );
    assert!(
        want.iter().any(|g| g.ended == Ended::Stop)
            && want.iter().any(|g| g.ended == Ended::Length)
    );
    for slots in [1, 2, 8, 32] {
        for (name, mut drafter) in drafters(slots) {
            let settings = settings(slots, Sampling::Greedy, 0);
            let got = run_on(
                &mut target(slots),
                &mut *drafter,
                prompts(24, 50),
                &settings,
            );
            assert_eq!(texts(&got), texts(&want), "{name} at {slots} slots");
            got.iter().for_each(check_counts);
        }
    }
}

#[test]
fn sampled_text_does_not_depend_on_the_batch() {
    for (name, mut drafter) in kinds(VOCAB) {
        let mut at = |slots| {
            let got = run_on(
                &mut target(slots),
                &mut drafter,
                prompts(24, 40),
                &settings(slots, SAMPLED, 5),
            );
            got.iter().for_each(check_counts);
            got.into_iter().map(|g| g.tokens).collect::<Vec<_>>()
        };
        let alone = at(1);
        assert_eq!(alone, at(7), "{name}");
        assert_eq!(alone, at(32), "{name}");
    }
}

#[test]
fn a_seed_changes_sampled_text() {
    let run = |seed| {
        run_on(
            &mut target(4),
            &mut NoDraft,
            prompts(24, 40),
            &settings(4, SAMPLED, seed),
        )
    };
    assert_ne!(texts(&run(1)), texts(&run(2)));
}

#[test]
fn an_oracle_fills_every_round_and_an_adversary_none() {
    // No stop token and 1 + 8 * 6 new tokens, so that no round is cut.
    let run = |wrong| {
        let mut target = ToyTarget::new(VOCAB, 4, 256, &[]);
        run_on(
            &mut target,
            &mut Oracle::new(5, wrong, 4),
            prompts(24, 49),
            &settings(4, Sampling::Greedy, 0),
        )
    };
    assert_eq!(tau(&run(Wrong::Never)), 6.0);
    assert_eq!(tau(&run(Wrong::Always)), 1.0);
}

#[test]
fn a_wrong_slot_j_leaves_j_minus_1_accepted() {
    for j in 1..=5 {
        let mut target = ToyTarget::new(VOCAB, 4, 256, &[]);
        let mut oracle = Oracle::new(5, Wrong::Slot(j), 4);
        let got = run_on(
            &mut target,
            &mut oracle,
            prompts(24, 61),
            &settings(4, Sampling::Greedy, 0),
        );
        for round in got.iter().flat_map(|g| &g.rounds) {
            assert_eq!((round.drafted, round.accepted), (5, j as u32 - 1));
        }
    }
}

/// Greedy continuation of a prompt without any stop.
fn greedy(prompt: &[u32], n: usize) -> Vec<u32> {
    let mut target = ToyTarget::new(VOCAB, 1, 256, &[]);
    let request = Request {
        id: 0,
        prompt: prompt.to_vec(),
        max_new: n,
    };
    run_on(
        &mut target,
        &mut NoDraft,
        vec![request],
        &settings(1, Sampling::Greedy, 0),
    )
    .remove(0)
    .tokens
}

#[test]
fn a_stop_token_ends_the_answer_wherever_it_falls() {
    // Prompts whose first seven tokens differ, so that each place can be made the stop.
    let distinct = |p: &Vec<u32>| {
        let mut t = greedy(p, 7);
        t.sort_unstable();
        t.windows(2).all(|w| w[0] != w[1])
    };
    let prompt = (0..24)
        .flat_map(|a| (0..24).map(move |b| vec![a, b]))
        .find(distinct)
        .unwrap();
    let text = greedy(&prompt, 7);
    for place in 0..7 {
        // gamma 5: place 0 is the prefill token, 1..=5 an accepted draft, 6 the bonus of the first round.
        let mut target = ToyTarget::new(VOCAB, 1, 256, &[text[place]]);
        let request = Request {
            id: 0,
            prompt: prompt.clone(),
            max_new: 40,
        };
        let mut oracle = Oracle::new(5, Wrong::Never, 1);
        let got = run_on(
            &mut target,
            &mut oracle,
            vec![request],
            &settings(1, Sampling::Greedy, 0),
        )
        .remove(0);
        assert_eq!(got.tokens, text[..=place], "stop at {place}");
        assert_eq!(got.ended, Ended::Stop);
        assert_eq!(got.rounds.len(), usize::from(place > 0));
        assert_eq!(
            got.rounds
                .iter()
                .map(|r| r.committed as usize)
                .sum::<usize>(),
            place
        );
        assert!(target.cached(Slot(0)).is_empty(), "the slot is freed");
    }
}

#[test]
fn max_new_cuts_the_last_round_only() {
    for max_new in [1, 2, 6, 7, 8, 13] {
        let mut target = ToyTarget::new(VOCAB, 2, 256, &[]);
        let mut oracle = Oracle::new(5, Wrong::Never, 2);
        let got = run_on(
            &mut target,
            &mut oracle,
            prompts(24, max_new),
            &settings(2, Sampling::Greedy, 0),
        );
        for g in &got {
            check_counts(g);
            assert_eq!((g.tokens.len(), g.ended), (max_new, Ended::Length));
            assert_eq!(g.rounds.len(), (max_new - 1).div_ceil(6));
        }
    }
}

struct CutTo(usize);

impl Scheduler for CutTo {
    fn lengths(&mut self, survival: &[Vec<f32>], _: &StepCost) -> Vec<usize> {
        survival.iter().map(|s| self.0.min(s.len())).collect()
    }
}

#[test]
fn a_chain_cut_to_nothing_still_yields_the_bonus() {
    for law in [ToyLaw::Point, ToyLaw::Full, ToyLaw::TopK(4)] {
        let (mut target, mut drafter) = (target(3), chain(VOCAB, law));
        let settings = settings(3, SAMPLED, 9);
        let got = run_cut(
            &mut target,
            &mut drafter,
            &mut CutTo(0),
            prompts(24, 30),
            &settings,
        );
        for g in &got {
            check_counts(g);
            assert!(
                g.rounds
                    .iter()
                    .all(|r| (r.drafted, r.verified, r.committed) == (3, 0, 1))
            );
        }
    }
}

#[test]
fn bad_requests_are_refused_before_anything_runs() {
    let mut target = ToyTarget::new(VOCAB, 1, 32, &[]);
    let mut refused = |prompt: Vec<u32>, max_new, slots| {
        let (drafter, probe) = (&mut Oracle::new(5, Wrong::Never, 1), &mut Silent);
        let parts = Parts {
            target: &mut target,
            drafter,
            scheduler: &mut VerifyAll,
            probe,
        };
        let request = Request {
            id: 3,
            prompt,
            max_new,
        };
        decode(parts, vec![request], &settings(slots, Sampling::Greedy, 0)).unwrap_err()
    };
    assert!(matches!(
        refused(vec![], 5, 1),
        Error::EmptyPrompt { id: 3 }
    ));
    assert!(matches!(
        refused(vec![1], 0, 1),
        Error::NothingToDo { id: 3 }
    ));
    assert!(matches!(refused(vec![1], 5, 0), Error::NoSlots));
    let long = refused(vec![1; 20], 7, 1);
    assert!(
        matches!(
            long,
            Error::TooLong {
                need: 33,
                capacity: 32,
                ..
            }
        ),
        "{long}"
    );
    assert_eq!(target.n_forwards(), 0);
}

#[test]
fn a_batch_costs_as_many_forwards_as_its_longest_answers() {
    let mut target = ToyTarget::new(VOCAB, 40, 256, &[]);
    run_on(
        &mut target,
        &mut Oracle::new(5, Wrong::Never, 40),
        prompts(24, 31),
        &settings(40, Sampling::Greedy, 0),
    );
    assert_eq!(
        target.n_forwards(),
        40 + 5,
        "one prefill each, then five rounds of six for all at once"
    );
}

#[test]
fn a_slot_that_becomes_free_is_filled_before_the_next_round() {
    // Two slots, six answers of one prefill token and five rounds of six: three waves of full rounds.
    let mut target = ToyTarget::new(VOCAB, 2, 256, &[]);
    let requests = prompts(24, 31).into_iter().take(6).collect();
    let settings = settings(2, Sampling::Greedy, 0);
    run_on(
        &mut target,
        &mut Oracle::new(5, Wrong::Never, 2),
        requests,
        &settings,
    );
    assert_eq!(target.n_forwards(), 6 + 3 * 5);
}

#[test]
fn requests_that_share_a_number_and_temperature_zero_are_refused() {
    let refused = |ids: [u64; 2], sampling| {
        let (target, drafter) = (&mut target(1), &mut NoDraft);
        let parts = Parts {
            target,
            drafter,
            scheduler: &mut VerifyAll,
            probe: &mut Silent,
        };
        let requests = ids.map(|id| Request {
            id,
            prompt: vec![1],
            max_new: 2,
        });
        decode(parts, requests.to_vec(), &settings(1, sampling, 0)).unwrap_err()
    };
    let twice = refused([4, 4], Sampling::Greedy);
    assert!(
        matches!(twice, Error::DuplicateRequest { id: 4 }),
        "{twice}"
    );
    let frozen = refused([4, 5], Sampling::at(0));
    assert!(matches!(frozen, Error::ZeroTemperature), "{frozen}");
}
