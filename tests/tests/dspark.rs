//! DSpark against golden values of its reference implementation (f32, CPU), and against itself.
#![allow(
    clippy::unwrap_used,
    reason = "a helper fails its test by panicking, as the test's own body does"
)]

use std::collections::HashMap;

use baselines::{Arm, DSpark, Load, TargetFacts, Vanilla};
use candle_core::{DType, IndexOp, Tensor};
use decode::{
    Adaptive, Anchor, Committed, DraftLaw, Drafter, Draws, Feed, Generation, Keep, LaggedCapacity,
    Law, Parts, Proposal, Request, Sampling, Scheduler, Settings, Silent, Slot, StepCost, Target,
    Threshold, TokenId, TokenIo, VerifyAll, decode, laws, survival,
};
use models::Source;
use serde_json::{Value, json};
use tests::golden::{self, H, MASK, P0, V};
use tests::{Shapes, hash_weights};

/// Absolute, on single elements: the reference's own two implementations differ by 2e-6.
const TOLERANCE: f32 = 1e-4;
/// On sums over tens of elements.
const SUM_TOLERANCE: f64 = 1e-3;
const RANK: usize = 4;
const GAMMA: usize = 4;
const HEADS: [&str; 3] = ["vanilla", "gated", "rnn"];
const SAMPLED: Sampling = Sampling::at(700);

fn near(got: f32, want: f32) {
    assert!((got - want).abs() < TOLERANCE, "got {got}, want {want}");
}

fn near_sum(t: &Tensor, want: f64) {
    let sum = t.to_dtype(DType::F64).unwrap().sum_all().unwrap();
    let got = sum.to_scalar::<f64>().unwrap();
    assert!((got - want).abs() < SUM_TOLERANCE, "got {got}, want {want}");
}

fn shapes(kind: &str) -> Shapes {
    let mut shapes = golden::dflash_shapes();
    let mut add = |name: &str, shape: &[usize]| {
        shapes.insert(name.into(), shape.to_vec());
    };
    add("embed_tokens.weight", &[V, H]);
    add("lm_head.weight", &[V, H]);
    add("markov_head.markov_w1.weight", &[V, RANK]);
    add("markov_head.markov_w2.weight", &[V, RANK]);
    add("confidence_head.proj.weight", &[1, H + RANK]);
    add("confidence_head.proj.bias", &[1]);
    match kind {
        "gated" => {
            add("markov_head.gate_proj.weight", &[RANK, H + RANK]);
            add("markov_head.gate_proj.bias", &[RANK]);
        }
        "rnn" => {
            add("markov_head.joint_proj.weight", &[3 * RANK, 2 * RANK + H]);
            add("markov_head.joint_proj.bias", &[3 * RANK]);
        }
        _ => {}
    }
    shapes
}

/// A released config.json with the golden's sizes.
fn config(kind: &str) -> Value {
    let mut value = golden::dflash_config();
    let map = value.as_object_mut().unwrap();
    map.remove("dflash_config");
    let own = json!({
        "architectures": ["Qwen3DSparkModel"], "mask_token_id": MASK, "target_layer_ids": [1, 3],
        "num_anchors": 512, "enable_confidence_head": true, "confidence_head_with_markov": true,
        "markov_rank": RANK, "markov_head_type": kind,
    });
    map.extend(own.as_object().unwrap().clone());
    value
}

fn folder(config: &Value, tensors: HashMap<String, Tensor>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    candle_core::safetensors::save(&tensors, dir.path().join("model.safetensors")).unwrap();
    dir
}

fn golden_folder(kind: &str) -> tempfile::TempDir {
    let tensors = hash_weights(&shapes(kind), 3000).into_iter().collect();
    folder(&config(kind), tensors)
}

fn load_arm(dir: &tempfile::TempDir, slots: usize, arm: &str) -> baselines::Result<DSpark> {
    let arm = Arm::parse(arm).unwrap();
    DSpark::load(&Load {
        source: Some(&Source::Dir(dir.path().to_owned())),
        target: &TargetFacts {
            id: "golden".into(),
            hidden: H,
            vocab: V,
            n_layers: 6,
        },
        slots,
        capacity: 128,
        precision: models::Precision::F32,
        max_draft: arm.options.get("max_draft", "a number").unwrap(),
        options: &arm.options,
    })
}

fn drafter(kind: &str, slots: usize) -> DSpark {
    load_arm(&golden_folder(kind), slots, "dspark").unwrap()
}

fn run(
    drafter: &mut dyn Drafter,
    scheduler: &mut dyn Scheduler,
    prompts: &[&[TokenId]],
    (slots, sampling): (usize, Sampling),
) -> Vec<Generation> {
    let requests = prompts.iter().enumerate().map(|(id, prompt)| Request {
        id: id as u64,
        prompt: prompt.to_vec(),
        max_new: 25,
    });
    let settings = Settings {
        slots,
        sampling,
        seed: 0,
        cost: StepCost::new((1..40).map(|n| (n, 1e9 * (1.0 + 0.3 * n as f64))).collect()),
    };
    let (target, probe) = (&mut golden::target(slots), &mut Silent);
    let parts = Parts {
        target,
        drafter,
        scheduler,
        probe,
    };
    let mut out = decode(parts, requests.collect(), &settings).unwrap();
    out.sort_by_key(|g| g.id);
    out
}

/// Feeds the prompt to slot 0 of target and drafter.
fn start(target: &mut dyn Target, drafter: &mut dyn Drafter, prompt: &[TokenId]) {
    let taps = drafter.taps().to_vec();
    let feed = Feed {
        slot: Slot(0),
        tokens: prompt,
        parents: None,
        logits: Keep::Last,
    };
    let taps = target.forward(&[feed], &taps).unwrap().taps;
    let row = Committed {
        slot: Slot(0),
        position: 0,
        fed: prompt,
        next_anchor: 0,
        taps,
    };
    drafter.start(row).unwrap();
}

fn anchor(token: TokenId, draws: &mut Draws) -> Anchor<'_> {
    Anchor {
        slot: Slot(0),
        token,
        position: P0.len(),
        draws,
    }
}

fn propose(drafter: &mut DSpark, io: &dyn TokenIo, sampling: Sampling, seed: u64) -> Proposal {
    let draws = &mut Draws::new(seed, 0);
    let mut proposals = drafter
        .propose(&mut [anchor(0, draws)], io, sampling, &mut Silent)
        .unwrap();
    proposals.pop().unwrap()
}

/// Hidden states and base logits of the block after P0.
fn block(drafter: &mut DSpark, io: &dyn TokenIo) -> (Tensor, Tensor) {
    let draws = &mut Draws::new(0, 0);
    drafter.draft(&[anchor(0, draws)], io).unwrap()
}

/// Corrected logits `[gamma, V]` and confidence logits when the drafts are these.
fn forced(
    drafter: &DSpark,
    (hidden, logits): &(Tensor, Tensor),
    tokens: &[TokenId],
) -> (Tensor, Vec<f32>) {
    let mut corrected = Vec::new();
    let mut left = tokens.iter();
    let sequence = drafter
        .head()
        .run(hidden, logits, &[0], |slot| {
            corrected.push(slot.clone());
            Ok(vec![*left.next().unwrap()])
        })
        .unwrap();
    let rated = sequence.confidence_logits.unwrap();
    (Tensor::cat(&corrected, 0).unwrap(), rated[0].clone())
}

#[test]
fn the_first_block_matches_the_reference() {
    // Sums of hidden, base and corrected logits; the first corrected logits; confidence logits.
    let gate = [-0.998030, -1.037706, -1.089073, -1.184218];
    let goldens = [
        (
            [-21.145815, -4.018190, -4.255994],
            [-0.582437, -0.293154, 0.350838, -0.071051],
            [-0.998363, -1.063265, -1.112615, -1.197828],
        ),
        (
            [-21.789916, -3.365905, -3.223595],
            [-0.652388, -0.331663, 0.442968, -0.172423],
            gate,
        ),
        (
            [-21.789916, -3.365905, -5.787432],
            [-0.790912, -0.033889, 0.232062, -0.345890],
            gate,
        ),
    ];
    for (kind, (sums, first, rated)) in HEADS.into_iter().zip(goldens) {
        let (mut target, mut drafter) = (golden::target(1), drafter(kind, 1));
        assert_eq!(drafter.max_draft(), GAMMA);
        start(&mut target, &mut drafter, &P0);
        let proposal = propose(&mut drafter, &target, Sampling::Greedy, 0);
        assert_eq!(proposal.tokens, [13; 4], "{kind}");
        assert!(matches!(proposal.law, DraftLaw::Point));

        let states = block(&mut drafter, &target);
        let (corrected, confidence) = forced(&drafter, &states, &proposal.tokens);
        for (t, want) in [&states.0, &states.1, &corrected].into_iter().zip(sums) {
            near_sum(t, want);
        }
        for (i, want) in first.into_iter().enumerate() {
            near(corrected.i((0, i)).unwrap().to_scalar().unwrap(), want);
        }
        for (got, want) in confidence.iter().zip(rated) {
            near(*got, want);
        }
        if kind == "vanilla" {
            let want = [0.269263, 0.069116, 0.017098, 0.003964];
            let got = survival(&proposal.confidence.unwrap());
            got.into_iter().zip(want).for_each(|(g, w)| near(g, w));
        }
    }
}

const PROMPTS: [&[TokenId]; 3] = [&P0, &[8, 36, 4, 16, 7], &[22, 23, 28, 10, 25]];

#[test]
fn greedy_text_and_acceptance_match_the_reference() {
    let texts = [
        (
            1,
            [
                29, 26, 26, 26, 26, 26, 36, 14, 14, 14, 15, 36, 14, 0, 26, 0, 15, 36, 14, 0, 27, 0,
                15, 36,
            ],
            [vec![1, 2], vec![1; 21]].concat(),
        ),
        (
            2,
            [
                35, 35, 35, 34, 34, 34, 35, 35, 35, 12, 23, 33, 33, 12, 13, 35, 35, 35, 35, 35, 35,
                35, 35, 33,
            ],
            [vec![1; 23], vec![5]].concat(),
        ),
    ];
    for (prompt, text, acceptance) in texts {
        let prompts = &PROMPTS[prompt..=prompt];
        let mut drafter = drafter("vanilla", 1);
        let out = run(&mut drafter, &mut VerifyAll, prompts, (1, Sampling::Greedy));
        assert_eq!(out[0].tokens[..24], text);
        let got: Vec<u32> = out[0].rounds.iter().map(|r| r.accepted + 1).collect();
        assert_eq!(got, acceptance);
    }
}

#[test]
fn a_threshold_cuts_where_the_reference_does() {
    let (mut drafter, at) = (drafter("vanilla", 1), (1, Sampling::Greedy));
    let out = run(&mut drafter, &mut Threshold(0.25), &PROMPTS[1..2], at);
    let verified: Vec<u32> = out[0].rounds.iter().map(|r| r.verified).collect();
    let accepted: Vec<u32> = out[0].rounds.iter().map(|r| r.accepted + 1).collect();
    let want = [
        4, 2, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 0, 4, 0, 4, 4, 4, 4, 4, 0, 4,
    ];
    assert_eq!(verified, want);
    assert_eq!(accepted, [vec![1, 2], vec![1; 21]].concat());
}

#[test]
fn greedy_text_is_the_targets_at_every_concurrency_and_schedule() {
    let at = |slots| (slots, Sampling::Greedy);
    let vanilla = run(&mut Vanilla, &mut VerifyAll, &PROMPTS, at(1));
    for (kind, slots) in HEADS
        .iter()
        .flat_map(|kind| [1, 2, 3, 8].map(|n| (kind, n)))
    {
        let two = std::num::NonZeroUsize::new(2).unwrap();
        let schedulers: [Box<dyn Scheduler>; 4] = [
            Box::new(VerifyAll),
            Box::new(Threshold(0.26)),
            Box::new(Adaptive),
            Box::new(LaggedCapacity::new(two)),
        ];
        for mut scheduler in schedulers {
            let mut drafter = drafter(kind, slots);
            let out = run(&mut drafter, &mut *scheduler, &PROMPTS, at(slots));
            for (got, want) in out.iter().zip(&vanilla) {
                assert_eq!(got.tokens, want.tokens, "{kind} at {slots} slots");
            }
        }
    }
}

#[test]
fn a_sampled_answer_depends_on_its_own_draws_alone() {
    for kind in HEADS {
        let alone = run(
            &mut drafter(kind, 1),
            &mut VerifyAll,
            &PROMPTS,
            (1, SAMPLED),
        );
        let together = run(
            &mut drafter(kind, 3),
            &mut VerifyAll,
            &PROMPTS,
            (3, SAMPLED),
        );
        for (alone, together) in alone.iter().zip(&together) {
            assert_eq!(alone.tokens, together.tokens, "{kind}");
        }
    }
}

#[test]
fn sampled_drafts_carry_the_law_they_were_drawn_from() {
    for kind in HEADS {
        let (mut target, mut drafter) = (golden::target(1), drafter(kind, 1));
        start(&mut target, &mut drafter, &P0);
        let states = block(&mut drafter, &target);
        let mut counts = [0u32; V];
        let mut first_law = Vec::new();
        for seed in 0..2000 {
            let proposal = propose(&mut drafter, &target, SAMPLED, seed);
            counts[proposal.tokens[0] as usize] += 1;
            if seed > 20 {
                continue;
            }
            let DraftLaw::Full(q) = &proposal.law else {
                panic!("{kind}: sampled drafts have a full law");
            };
            let q = q.to_vec2::<f32>().unwrap();
            let (corrected, _) = forced(&drafter, &states, &proposal.tokens);
            for (q, law) in q.iter().zip(laws(&corrected, SAMPLED).unwrap()) {
                assert_eq!(Law::Weights(q.clone()), law, "{kind}");
            }
            first_law.clone_from(&q[0]);
        }
        // Pearson's statistic over the tokens of the first slot, those expected less than 10 times as one: its mean is
        // at most the number of terms, its standard deviation the root of twice that; five of them.
        let (mut chi2, mut terms, mut rare) = (0.0, 1.0f64, (0.0, 0.0));
        for (got, q) in counts.iter().zip(&first_law) {
            let (got, want) = (f64::from(*got), 2000.0 * f64::from(*q));
            if want < 10.0 {
                rare = (rare.0 + got, rare.1 + want);
            } else {
                chi2 += (got - want).powi(2) / want;
                terms += 1.0;
            }
        }
        if rare.1 > 0.0 {
            chi2 += (rare.0 - rare.1).powi(2) / rare.1;
        }
        assert!(terms > 20.0, "{kind}: only {terms} terms");
        assert!(chi2 < terms + 5.0 * (2.0 * terms).sqrt(), "{kind}: {chi2}");
    }
}

#[test]
fn a_confidence_does_not_see_the_token_it_rates() {
    for kind in HEADS {
        let (mut target, mut drafter) = (golden::target(1), drafter(kind, 1));
        start(&mut target, &mut drafter, &P0);
        let states = block(&mut drafter, &target);
        let (_, before) = forced(&drafter, &states, &[13, 13, 13, 13]);
        let (_, after) = forced(&drafter, &states, &[13, 5, 13, 13]);
        assert_eq!(before[..2], after[..2], "{kind}");
        assert!((before[2] - after[2]).abs() > 1e-3, "{kind}");
        assert_eq!(before[3], after[3], "{kind}");
    }
}

#[test]
fn a_shorter_proposal_is_the_head_of_the_full_one() {
    let dir = golden_folder("rnn");
    let drafts = |arm: &str| {
        let (mut target, mut drafter) = (golden::target(1), load_arm(&dir, 1, arm).unwrap());
        start(&mut target, &mut drafter, &P0);
        propose(&mut drafter, &target, SAMPLED, 7)
    };
    let (full, short) = (drafts("dspark"), drafts("dspark:max_draft=2"));
    assert_eq!(short.tokens, full.tokens[..2]);
    assert_eq!(short.confidence.unwrap(), full.confidence.unwrap()[..2]);
}

fn confidences(dir: &tempfile::TempDir, arm: &str) -> Vec<f32> {
    let (mut target, mut drafter) = (golden::target(1), load_arm(dir, 1, arm).unwrap());
    start(&mut target, &mut drafter, &P0);
    let proposal = propose(&mut drafter, &target, Sampling::Greedy, 0);
    proposal.confidence.unwrap()
}

#[test]
fn temperatures_scale_the_confidence_logits() {
    let dir = golden_folder("vanilla");
    let write = |text: &str| std::fs::write(dir.path().join("calibration.json"), text).unwrap();
    let logits = [-0.998363f32, -1.063265, -1.112615, -1.197828];
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    write(r#"{"temperatures": [1, 2, 0.5, 10]}"#);
    let scaled = confidences(&dir, "dspark");
    for (i, temperature) in [1.0, 2.0, 0.5, 10.0].into_iter().enumerate() {
        near(scaled[i], sigmoid(logits[i] / temperature));
    }
    let raw = confidences(&dir, "dspark:calibration=off");
    raw.iter()
        .zip(logits)
        .for_each(|(got, l)| near(*got, sigmoid(l)));

    let refused = |text: &str, says: &str| {
        write(text);
        let error = load_arm(&dir, 1, "dspark").unwrap_err().to_string();
        assert!(
            error.contains(says) && error.contains("calibration.json"),
            "{error}"
        );
    };
    refused(r#"{"temperatures": [1, 2]}"#, "block_size is 4");
    refused(r#"{"temperatures": [1, 1, 0, 1]}"#, "above 0");
    refused(r#"{"temperatures": [1, 1, 1, 1], "bins": 15}"#, "bins");
    refused(r#"{"temperature": [1, 1, 1, 1]}"#, "temperatures");
    let error = load_arm(&dir, 1, "dspark:calibration=yes").unwrap_err();
    assert!(error.to_string().contains("on or off"), "{error}");
}

#[test]
fn a_head_without_confidences_verifies_all_and_has_nothing_to_calibrate() {
    let mut value = config("vanilla");
    value["enable_confidence_head"] = false.into();
    let tensors = hash_weights(&shapes("vanilla"), 3000).into_iter();
    let dir = folder(
        &value,
        tensors.filter(|t| !t.0.starts_with("confidence")).collect(),
    );
    let (mut target, mut drafter) = (golden::target(1), load_arm(&dir, 1, "dspark").unwrap());
    start(&mut target, &mut drafter, &P0);
    let proposal = propose(&mut drafter, &target, Sampling::Greedy, 0);
    assert_eq!(
        (proposal.tokens, proposal.confidence),
        (vec![13; 4], None::<Vec<f32>>)
    );
    let text = r#"{"temperatures": [1, 1, 1, 1]}"#;
    std::fs::write(dir.path().join("calibration.json"), text).unwrap();
    let error = load_arm(&dir, 1, "dspark").unwrap_err().to_string();
    assert!(error.contains("no confidence head"), "{error}");
}

#[test]
fn a_confidence_may_read_the_hidden_state_alone() {
    let mut value = config("gated");
    value["confidence_head_with_markov"] = false.into();
    let mut shapes = shapes("gated");
    shapes.insert("confidence_head.proj.weight".into(), vec![1, H]);
    let dir = folder(&value, hash_weights(&shapes, 3000).into_iter().collect());
    let (mut target, mut drafter) = (golden::target(1), load_arm(&dir, 1, "dspark").unwrap());
    start(&mut target, &mut drafter, &P0);
    let states = block(&mut drafter, &target);
    let (_, a) = forced(&drafter, &states, &[1, 2, 3, 4]);
    let (_, b) = forced(&drafter, &states, &[9, 8, 7, 6]);
    assert_eq!(a, b);
}

#[test]
fn a_folder_that_is_not_dsparks_is_refused() {
    let tensors = || -> HashMap<String, Tensor> {
        hash_weights(&shapes("vanilla"), 3000).into_iter().collect()
    };
    let refused = |change: &dyn Fn(&mut Value), says: &str| {
        let mut value = config("vanilla");
        change(&mut value);
        let error = load_arm(&folder(&value, tensors()), 1, "dspark").unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    };
    refused(&|v| v["markov_rank"] = 0.into(), "use method dflash");
    refused(&|v| v["markov_rank"] = 5.into(), "markov_w1");
    refused(
        &|v| v["markov_head_type"] = "lstm".into(),
        "markov_head_type",
    );
    refused(&|v| v["markov_head_type"] = "gated".into(), "gate_proj");
    refused(
        &|v| drop(v.as_object_mut().unwrap().remove("markov_head_type")),
        "markov_head_type",
    );
    refused(
        &|v| drop(v.as_object_mut().unwrap().remove("enable_confidence_head")),
        "enable_confidence_head",
    );
    refused(
        &|v| v["enable_confidence_head"] = false.into(),
        "confidence_head",
    );
    refused(&|v| v["markov_depth"] = 2.into(), "markov_depth");
    refused(&|v| *v = golden::dflash_config(), "Qwen3DSparkModel");
}
