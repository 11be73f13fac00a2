//! Properties of the acceptance rule.

use candle_core::{Device, Tensor};
use decode::{DraftLaw, Draws, Error, Proposal, Sampling, judge};
use proptest::prelude::*;

const VOCAB: usize = 8;

fn tensor(rows: &[Vec<f32>]) -> Tensor {
    Tensor::from_vec(rows.concat(), (rows.len(), VOCAB), &Device::Cpu)
        .expect("rows of equal length")
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32
}

fn rows(n: usize) -> impl Strategy<Value = Vec<Vec<f32>>> {
    // Coarse values, so that ties are common.
    prop::collection::vec(
        prop::collection::vec((0u8..6).prop_map(f32::from), VOCAB),
        n,
    )
}

/// A chain (`None`) or a tree over n drafts, with logits and a seed.
fn cases() -> impl Strategy<Value = (Proposal, Vec<Vec<f32>>, u64)> {
    (0usize..7).prop_flat_map(|n| {
        let parents = (0..n).map(|i| 0..=i as u32).collect::<Vec<_>>();
        let tokens = prop::collection::vec(0..VOCAB as u32, n);
        (
            tokens,
            prop::option::of(parents),
            rows(n + 1),
            any::<u64>(),
            0usize..2,
            rows(n),
        )
            .prop_map(|(tokens, parents, logits, seed, kind, q)| {
                let law = match kind {
                    0 => DraftLaw::Point,
                    _ if tokens.is_empty() => DraftLaw::Point,
                    1 => DraftLaw::Full(tensor(&normalised(&q))),
                    _ => top_two(&tokens, &q),
                };
                (
                    Proposal {
                        tokens,
                        parents,
                        law,
                        confidence: None,
                    },
                    logits,
                    seed,
                )
            })
    })
}

/// The draft token and one other, with the masses `q` gives them.
fn top_two(tokens: &[u32], q: &[Vec<f32>]) -> DraftLaw {
    let ids: Vec<u32> = tokens
        .iter()
        .flat_map(|t| [*t, (t + 3) % VOCAB as u32])
        .collect();
    let probs = tokens.iter().zip(q).flat_map(|(t, q)| {
        let (a, b) = (q[*t as usize] + 0.1, q[(*t as usize + 3) % VOCAB] + 0.1);
        [a / (a + b), b / (a + b)]
    });
    let shape = (tokens.len(), 2);
    DraftLaw::TopK {
        ids: Tensor::from_vec(ids, shape, &Device::Cpu).expect("two ids a draft"),
        probs: Tensor::from_vec(probs.collect(), shape, &Device::Cpu).expect("two masses a draft"),
    }
}

fn normalised(q: &[Vec<f32>]) -> Vec<Vec<f32>> {
    q.iter()
        .map(|row| {
            let total: f32 = row.iter().map(|x| x + 0.1).sum();
            row.iter().map(|x| (x + 0.1) / total).collect()
        })
        .collect()
}

fn parent(p: &Proposal, i: usize) -> usize {
    p.parents.as_ref().map_or(i, |parents| parents[i] as usize)
}

proptest! {
    #[test]
    fn accepted_drafts_form_a_path_from_the_anchor((proposal, logits, seed) in cases()) {
        for sampling in [Sampling::Greedy, Sampling::at(700)] {
            let verdict = judge(&proposal, &tensor(&logits), sampling, &mut Draws::new(seed, 1)).unwrap();
            let mut node = 0;
            for i in &verdict.accepted {
                prop_assert_eq!(parent(&proposal, *i), node);
                node = i + 1;
            }
            prop_assert!((verdict.bonus as usize) < VOCAB);
        }
    }

    #[test]
    fn greedy_accepts_exactly_the_targets_own_choices((proposal, logits, seed) in cases()) {
        let verdict = judge(&proposal, &tensor(&logits), Sampling::Greedy, &mut Draws::new(seed, 1)).unwrap();
        let mut node = 0;
        for i in &verdict.accepted {
            prop_assert_eq!(proposal.tokens[*i], argmax(&logits[node]));
            node = i + 1;
        }
        prop_assert_eq!(verdict.bonus, argmax(&logits[node]));
        let missed = (0..proposal.tokens.len())
            .any(|i| parent(&proposal, i) == node && proposal.tokens[i] == verdict.bonus);
        prop_assert!(!missed, "a child that equals the target's choice must be taken");
    }

    #[test]
    fn a_verdict_is_a_function_of_its_draws((proposal, logits, seed) in cases()) {
        let sampling = Sampling::at(1000);
        let once = judge(&proposal, &tensor(&logits), sampling, &mut Draws::new(seed, 4)).unwrap();
        let again = judge(&proposal, &tensor(&logits), sampling, &mut Draws::new(seed, 4)).unwrap();
        prop_assert_eq!(once, again);
    }

    #[test]
    fn a_draft_law_equal_to_the_targets_is_never_refused(logits in rows(4), seed in any::<u64>()) {
        // q computed as the rule computes p, so that the ratio is 1 exactly.
        let sampling = Sampling::at(1000);
        let laws = decode::laws(&tensor(&logits), sampling).unwrap();
        let mut draws = Draws::new(seed, 2);
        let (mut q, mut tokens) = (Vec::new(), Vec::new());
        for law in &laws[..3] {
            tokens.push(law.draw(&mut draws));
            let decode::Law::Weights(w) = law else { panic!("sampled laws have weights") };
            q.push(w.clone());
        }
        let proposal = Proposal { law: DraftLaw::Full(tensor(&q)), ..Proposal::chain(tokens) };
        let verdict = judge(&proposal, &tensor(&logits), sampling, &mut draws).unwrap();
        prop_assert_eq!(verdict.accepted, vec![0, 1, 2]);
    }

    #[test]
    fn a_token_without_target_mass_is_never_kept(token in 0..VOCAB as u32, seed in any::<u64>()) {
        let mut row = vec![0.0f32; VOCAB];
        row[token as usize] = -1e4;
        let sampling = Sampling::at(1000);
        let proposal = Proposal::chain(vec![token]);
        let verdict = judge(&proposal, &tensor(&[row.clone(), row]), sampling, &mut Draws::new(seed, 3)).unwrap();
        prop_assert!(verdict.accepted.is_empty());
        prop_assert_ne!(verdict.bonus, token);
    }
}

#[test]
fn proposals_that_contradict_themselves_are_refused() {
    let logits = tensor(&vec![vec![0.0; VOCAB]; 3]);
    let refuse = |proposal: Proposal| {
        let got = judge(&proposal, &logits, Sampling::Greedy, &mut Draws::new(0, 0));
        assert!(
            matches!(got, Err(Error::Contract { who: "drafter", .. })),
            "{proposal:?}: {got:?}"
        );
    };
    let two = || Proposal::chain(vec![1, 2]);
    refuse(Proposal::chain(vec![1]));
    refuse(Proposal::chain(vec![1, VOCAB as u32]));
    refuse(Proposal {
        parents: Some(vec![0]),
        ..two()
    });
    refuse(Proposal {
        parents: Some(vec![0, 2]),
        ..two()
    });
    refuse(Proposal {
        law: DraftLaw::Full(tensor(&[vec![0.1; VOCAB]])),
        ..two()
    });
    let ids = Tensor::new(&[[0u32, 99], [1, 2]], &Device::Cpu).unwrap();
    let probs = Tensor::new(&[[0.5f32, 0.5], [0.5, 0.5]], &Device::Cpu).unwrap();
    let absent = Tensor::new(&[[1u32, 3], [4, 5]], &Device::Cpu).unwrap();
    refuse(Proposal {
        law: DraftLaw::TopK {
            ids: absent,
            probs: probs.clone(),
        },
        ..two()
    });
    let mut without = vec![vec![1.0 / (VOCAB as f32 - 1.0); VOCAB]; 2];
    without[1][2] = 0.0;
    refuse(Proposal {
        law: DraftLaw::Full(tensor(&without)),
        ..two()
    });
    refuse(Proposal {
        law: DraftLaw::TopK { ids, probs },
        ..two()
    });
}

#[test]
fn a_logit_that_is_not_finite_is_an_error() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut row = vec![0.0; VOCAB];
        row[3] = bad;
        let got = judge(
            &Proposal::none(),
            &tensor(&[row]),
            Sampling::Greedy,
            &mut Draws::new(0, 0),
        );
        assert!(matches!(got, Err(Error::NotFinite { row: 0 })), "{got:?}");
    }
}
