//! Over decode's toy target.

use decode::toy::{Oracle, ToyDrafter, ToyLaw, ToyTarget, Wrong};

use super::*;

const VOCAB: usize = 11;
const GAMMA: usize = 5;
const N_REQUESTS: u64 = 24;
const MAX_NEW: usize = 200;

fn requests() -> Vec<Request> {
    let request = |id: u64| Request {
        id,
        prompt: vec![id as TokenId % VOCAB as TokenId, 3 + (id / 11) as TokenId],
        max_new: MAX_NEW,
    };
    (0..N_REQUESTS).map(request).collect()
}

fn tau(length: f64) -> Tau {
    Tau(length)
}

/// Answers of a drafter, as it is or replaced, in the order of requests, and vanilla's.
fn answered(
    inner: &mut dyn Drafter,
    length: f64,
    slots: usize,
) -> decode::Result<(Vec<Generation>, Texts)> {
    let mut target = ToyTarget::new(VOCAB, slots, MAX_NEW + 16, &[]);
    let mut texts = Texts::default();
    texts.complete(&mut target, &requests(), slots)?;
    let n_forwards = target.n_forwards();
    texts.complete(&mut target, &requests(), slots)?;
    assert_eq!(
        target.n_forwards(),
        n_forwards,
        "what is known is not decoded again"
    );
    let mut drafter = Synthetic::new(inner, tau(length), &texts);
    let settings = Settings {
        slots,
        sampling: Sampling::Greedy,
        seed: 7,
        cost: StepCost::flat(),
    };
    let parts = Parts {
        target: &mut target,
        drafter: &mut drafter,
        scheduler: &mut VerifyAll,
        probe: &mut Silent,
    };
    let mut answers = decode::decode(parts, requests(), &settings)?;
    answers.sort_by_key(|answer| answer.id);
    Ok((answers, texts))
}

/// Accepted drafts of every round but an answer's last, which ends where the text does.
fn accepted(answers: &[Generation]) -> Vec<Vec<u32>> {
    let of = |answer: &Generation| {
        let (_, before) = answer.rounds.split_last().unwrap();
        before.iter().map(|round| round.accepted).collect()
    };
    answers.iter().map(of).collect()
}

#[test]
fn the_chance_of_a_slot_gives_the_length_that_was_asked_for() {
    for n_drafts in 1..=16 {
        for step in 0..=10 {
            let asked = 1.0 + n_drafts as f64 * f64::from(step) / 10.0;
            let p = tau(asked).chance(n_drafts);
            let got: f64 = (1..=n_drafts as i32).map(|i| p.powi(i)).sum();
            // 64 halvings leave nothing but rounding, of at most 16 terms below 16.
            assert!(
                (got - (asked - 1.0)).abs() < 1e-12,
                "{n_drafts} {asked} {got}"
            );
        }
    }
}

#[test]
fn the_measured_length_is_the_asked_one_and_the_text_is_vanillas() {
    for asked in [1.0, 2.5, 4.0, GAMMA as f64 + 1.0] {
        let mut oracle = Oracle::new(GAMMA, Wrong::Slot(2), 3);
        let (answers, texts) = answered(&mut oracle, asked, 3).unwrap();
        for (answer, request) in answers.iter().zip(requests()) {
            assert_eq!(answer.tokens, texts.0[&request.prompt].tokens);
        }
        let rounds: Vec<f64> = accepted(&answers)
            .concat()
            .iter()
            .map(|n| f64::from(*n))
            .collect();
        let n = rounds.len() as f64;
        let got = 1.0 + rounds.iter().sum::<f64>() / n;
        // Of the law itself: P(i or more) = p^i, so E[n^2] = sum of (2i - 1) p^i.
        let p = tau(asked).chance(GAMMA);
        let square: f64 = (1..=GAMMA as i32)
            .map(|i| f64::from(2 * i - 1) * p.powi(i))
            .sum();
        let deviation = (square - (asked - 1.0).powi(2)).max(0.0).sqrt();
        // Four standard errors of independent rounds, which one seed in 16 000 leaves; these are spread more evenly.
        let slack = 4.0 * deviation / n.sqrt() + 1e-9;
        assert!(
            (got - asked).abs() <= slack,
            "{asked}: {got} of {n} rounds, slack {slack}"
        );
        assert!(n > 700.0 && slack < 0.25, "{n} {slack}");
    }
}

#[test]
fn a_wrong_token_is_refused_even_where_the_drafter_was_right() {
    for (wrong, length, want) in [
        (Wrong::Never, 1.0, 0),
        (Wrong::Always, GAMMA as f64 + 1.0, GAMMA as u32),
    ] {
        let (answers, _) = answered(&mut Oracle::new(GAMMA, wrong, 2), length, 2).unwrap();
        let rounds = accepted(&answers).concat();
        assert!(
            !rounds.is_empty() && rounds.iter().all(|n| *n == want),
            "{wrong:?}"
        );
    }
}

#[test]
fn draws_are_a_function_of_seed_request_and_round() {
    let of = |wrong, slots| {
        let (answers, _) = answered(&mut Oracle::new(GAMMA, wrong, slots), 2.5, slots).unwrap();
        accepted(&answers)
    };
    let alone = of(Wrong::Never, 1);
    assert_eq!(of(Wrong::Never, 4), alone);
    assert_eq!(
        of(Wrong::Slot(3), 4),
        alone,
        "whatever the drafter proposes"
    );
    assert_ne!(alone[0], alone[1]);
}

#[test]
fn trees_and_short_proposals_are_refused() {
    let toy = |width, gamma| ToyDrafter {
        vocab: VOCAB,
        gamma,
        width,
        law: ToyLaw::Point,
        confident: false,
    };
    assert!(toy(2, 2).drafts_trees() && !toy(1, 2).drafts_trees());
    let tree = answered(&mut toy(2, 2), 2.0, 1).unwrap_err().to_string();
    assert!(tree.contains("proposed a tree"), "{tree}");
    let short = answered(&mut toy(1, 2), 4.0, 1).unwrap_err().to_string();
    assert!(short.contains("too few"), "{short}");
    let range = Acceptance::Synthetic(tau(3.5))
        .check(2)
        .unwrap_err()
        .to_string();
    assert!(
        range.contains("synthetic-3.5") && range.contains("between 1 and 3"),
        "{range}"
    );
    assert!(Acceptance::Synthetic(tau(3.0)).check(2).is_ok());
}

#[test]
fn what_is_typed_is_an_option_of_every_drafting_method() {
    let matrix = |keys: &[&str]| {
        let text = format!(
            "methods = {keys:?}\nsuites = [\"mini-chat\"]\nmax_new = 1\n[[exclude]]\nmethods = [\"dflash\"]\n"
        );
        crate::matrix::parse(&text, "m")
            .unwrap()
            .resolve("m")
            .unwrap()
    };
    let mut many = matrix(&["vanilla", "dflash", "dspark:acceptance=real", "unknown"]);
    impose("synthetic:3.0", &mut many).unwrap();
    let want = [
        "vanilla",
        "dflash:acceptance=synthetic-3.0",
        "dspark:acceptance=real",
        "unknown",
    ];
    assert_eq!(many.blocks[0].methods, want);
    assert_eq!(many.excludes[0].methods.as_ref().unwrap(), &want[1..2]);
    for typed in ["3.0", "synthetic", "synthetic:0.9", "real", "synthetic:x"] {
        let error = impose(typed, &mut matrix(&["dflash"]))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("--acceptance {typed}: must read")),
            "{error}"
        );
    }
    let lonely = impose("synthetic:2", &mut matrix(&["vanilla"])).unwrap_err();
    assert!(lonely.to_string().contains("no method drafts"), "{lonely}");
}
