//! DCOCO (reimplementation) against golden values, against its dense form and against DFlash.
//!
//! `fixtures/dcoco.json` was computed in f64 by a plain loop over the formulas; 2e-5 on a score is f32 against f64.
#![allow(
    clippy::unwrap_used,
    reason = "a helper fails its test by panicking, as the test's own body does"
)]

mod laws;
mod scores;

use std::collections::BTreeMap;

use baselines::dcoco::{CorrectorSizes, Dcoco, Layout};
use baselines::{Arm, DFlash, Load, TargetFacts, TrunkConfig, Vanilla};
use candle_core::{Device, Tensor};
use decode::{
    Anchor, Committed, DraftLaw, Drafter, Draws, Feed, Generation, Keep, Parts, Proposal, Request,
    Sampling, Settings, Silent, Slot, StepCost, Target, TokenId, VerifyAll, decode,
};
use models::{Source, Weights};
use serde_json::{Value, json};
use tests::golden::{self, H, P0, V};
use tests::{hash_fill, hash_weights};

const TOLERANCE: f64 = 2e-5;

fn hashed(shape: &[usize], seed: u64, scale: f64) -> Tensor {
    let values = hash_fill(shape.iter().product(), seed, scale, 0.0);
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn assert_near<'a>(
    got: impl IntoIterator<Item = &'a f32>,
    want: impl IntoIterator<Item = f64>,
    what: &str,
) {
    let (got, want): (Vec<&f32>, Vec<f64>) =
        (got.into_iter().collect(), want.into_iter().collect());
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(**got) - want).abs();
        assert!(off < TOLERANCE, "{what}, {i}: {got} for {want}");
    }
}

/// Widths that all differ.
const SIZES: CorrectorSizes = CorrectorSizes {
    hidden: H,
    candidate: 5,
    pair: 4,
    units: 7,
};

/// Random tensors of a layout; `out` scales the second layer.
fn corrector_weights(layout: Layout, out: f64) -> BTreeMap<String, Tensor> {
    let tensors = layout.tensors(&SIZES).into_iter().enumerate();
    tensors
        .map(|(i, (name, shape))| {
            let scale = if name.contains("mlp.2") { out } else { 1.0 };
            let tensor = hashed(&shape, 700 + i as u64, scale);
            (name, tensor)
        })
        .collect()
}

/// The golden drafter's config with a corrector: shifted, so that the block of 4 drafts 4.
fn config(confidence: bool) -> Value {
    let mut value = golden::dflash_config();
    value["architectures"] = json!(["DCOCODraftModel"]);
    let keys = json!({
        "projector_type": "dcoco", "shift_label": true, "corrector_candidates": 8, "corrector_candidate_width": 5,
        "corrector_pair_width": 4, "corrector_hidden_width": 7, "enable_confidence_head": confidence,
    });
    for (key, given) in keys.as_object().unwrap() {
        value["dflash_config"][key] = given.clone();
    }
    value
}

fn all_weights(out: f64) -> BTreeMap<String, Tensor> {
    let mut weights = hash_weights(&golden::dflash_shapes(), 2000);
    weights.extend(corrector_weights(Layout::L1, out));
    weights
}

/// Writes a checkpoint and loads it as the arm `key` asks.
fn load(
    key: &str,
    config: &Value,
    weights: &BTreeMap<String, Tensor>,
    slots: usize,
) -> baselines::Result<Dcoco> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let named: std::collections::HashMap<String, Tensor> = weights
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor.clone()))
        .collect();
    candle_core::safetensors::save(&named, dir.path().join("model.safetensors")).unwrap();
    let arm = Arm::parse(key)?;
    Dcoco::load(&Load {
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
        max_draft: None,
        options: &arm.options,
    })
}

fn dflash(slots: usize) -> DFlash {
    let mut value = golden::dflash_config();
    value["dflash_config"]["shift_label"] = true.into();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), value.to_string()).unwrap();
    let config = TrunkConfig::load(&Source::Dir(dir.path().to_owned())).unwrap();
    let weights = hash_weights(&golden::dflash_shapes(), 2000);
    DFlash::new(config, Weights::from_tensors("golden", weights), slots, 128).unwrap()
}

/// Prompts that differ in length and content.
fn prompts() -> Vec<Request> {
    let mut prompts: Vec<Vec<TokenId>> = vec![P0.to_vec(), vec![8, 36, 4, 16, 7], vec![37, 11]];
    prompts.extend((0..8u32).map(|i| (0..3 + i % 4).map(|j| (i * 7 + j * 5 + 2) % 39).collect()));
    let prompts = prompts.into_iter().enumerate();
    prompts
        .map(|(id, prompt)| Request {
            id: id as u64,
            prompt,
            max_new: 24,
        })
        .collect()
}

fn run(drafter: &mut dyn Drafter, slots: usize, sampling: Sampling) -> Vec<Generation> {
    let settings = Settings {
        slots,
        sampling,
        seed: 5,
        cost: StepCost::flat(),
    };
    let parts = Parts {
        target: &mut golden::target(slots),
        drafter,
        scheduler: &mut VerifyAll,
        probe: &mut Silent,
    };
    let mut out = decode(parts, prompts(), &settings).unwrap();
    out.sort_by_key(|g| g.id);
    out
}

fn texts(generations: &[Generation]) -> Vec<&[TokenId]> {
    generations.iter().map(|g| g.tokens.as_slice()).collect()
}

const SAMPLED: Sampling = Sampling::at(700);

#[test]
fn greedy_text_is_vanillas_at_every_concurrency() {
    let want = run(&mut Vanilla, 1, Sampling::Greedy);
    for key in [
        "dcoco",
        "dcoco:select=global_sum",
        "dcoco:select=global_logprob",
        "dcoco:k=3",
    ] {
        let mut alone: Option<Vec<Vec<u32>>> = None;
        for slots in [1, 2, 3, 8] {
            let mut drafter = load(key, &config(false), &all_weights(1.0), slots).unwrap();
            let got = run(&mut drafter, slots, Sampling::Greedy);
            assert_eq!(texts(&got), texts(&want), "{key} at {slots} slots");
            let accepted: Vec<Vec<u32>> = got
                .iter()
                .map(|g| g.rounds.iter().map(|r| r.accepted).collect())
                .collect();
            let total: u32 = accepted.iter().flatten().sum();
            assert!(
                total > 0,
                "{key}: nothing was accepted, so equal text says little"
            );
            assert_eq!(
                alone.get_or_insert(accepted.clone()),
                &accepted,
                "{key} at {slots}"
            );
        }
    }
}

#[test]
fn sampled_text_does_not_depend_on_the_batch() {
    for key in ["dcoco", "dcoco:proposal=lattice", "dcoco:proposal=point"] {
        let of = |slots| {
            let mut drafter = load(key, &config(false), &all_weights(1.0), slots).unwrap();
            run(&mut drafter, slots, SAMPLED)
        };
        let (alone, crowded) = (of(1), of(8));
        assert_eq!(texts(&alone), texts(&crowded), "{key}");
    }
}

/// Proposals for two anchors after prefill, by any drafter.
fn proposals(drafter: &mut dyn Drafter, sampling: Sampling) -> Vec<Proposal> {
    let mut target = golden::target(2);
    let prompts: [&[TokenId]; 2] = [&P0, &[8, 36, 4, 16, 7]];
    for (slot, prompt) in prompts.iter().enumerate() {
        let feed = Feed {
            slot: Slot(slot),
            tokens: prompt,
            parents: None,
            logits: Keep::Last,
        };
        let taps = target.forward(&[feed], drafter.taps()).unwrap().taps;
        let row = Committed {
            slot: Slot(slot),
            position: 0,
            fed: prompt,
            next_anchor: 0,
            taps,
        };
        drafter.start(row).unwrap();
    }
    let mut draws = [Draws::new(1, 0), Draws::new(1, 1)];
    let mut rows: Vec<Anchor<'_>> = draws
        .iter_mut()
        .enumerate()
        .map(|(slot, draws)| Anchor {
            slot: Slot(slot),
            token: 3,
            position: prompts[slot].len(),
            draws,
        })
        .collect();
    drafter
        .propose(&mut rows, &target, sampling, &mut Silent)
        .unwrap()
}

#[test]
fn a_walk_that_scores_what_it_visits_drafts_the_same() {
    let weights = all_weights(1.0);
    for (options, sampling) in [
        ("", Sampling::Greedy),
        ("", SAMPLED),
        (":proposal=point", SAMPLED),
        (":k=3", Sampling::Greedy),
    ] {
        let of = |pairs: &str| {
            let key = format!("dcoco:pairs={pairs}{options}");
            let mut drafter = load(&key, &config(false), &weights, 2).unwrap();
            let proposals = proposals(&mut drafter, sampling).into_iter();
            let law = |law: DraftLaw| match law {
                DraftLaw::TopK { ids, probs } => {
                    let ids = ids.flatten_all().unwrap().to_vec1::<u32>().unwrap();
                    let probs = probs.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                    Some((ids, probs))
                }
                _ => None,
            };
            proposals
                .map(|p| (p.tokens, law(p.law)))
                .collect::<Vec<_>>()
        };
        let all = of("all");
        assert_eq!(all, of("visited"), "{options}");
        let is_drawn = sampling == SAMPLED && options.is_empty();
        assert_eq!(all[0].1.is_some(), is_drawn, "{options}");
    }
}

#[test]
fn an_untrained_corrector_is_dflash_bit_for_bit() {
    let weights = all_weights(0.0);
    for slots in [1, 3] {
        let want = run(&mut dflash(slots), slots, Sampling::Greedy);
        let mut drafter = load("dcoco", &config(false), &weights, slots).unwrap();
        let got = run(&mut drafter, slots, Sampling::Greedy);
        for (got, want) in got.iter().zip(&want) {
            assert_eq!((&got.tokens, &got.rounds), (&want.tokens, &want.rounds));
        }
    }
    let want = proposals(&mut dflash(2), Sampling::Greedy);
    // A trained corrector is DFlash, too, if it has one candidate or is not asked.
    let trained = all_weights(1.0);
    for (key, weights) in [
        ("dcoco", &weights),
        ("dcoco:k=1", &trained),
        ("dcoco:select=first", &trained),
    ] {
        for sampling in [Sampling::Greedy, SAMPLED] {
            let key = match sampling {
                Sampling::Greedy => key.to_owned(),
                Sampling::Sampled { .. } => format!("{key}:proposal=point"),
            };
            let mut drafter = load(&key, &config(false), weights, 2).unwrap();
            let got = proposals(&mut drafter, sampling);
            for (got, want) in got.iter().zip(&want) {
                assert_eq!(got.tokens, want.tokens, "{key}");
                assert!(matches!(got.law, DraftLaw::Point), "{key}");
            }
        }
    }
    let mut drafter = load("dcoco", &config(false), &trained, 2).unwrap();
    let corrected = proposals(&mut drafter, Sampling::Greedy);
    assert!(
        corrected
            .iter()
            .zip(&want)
            .any(|(a, b)| a.tokens != b.tokens)
    );
}

#[test]
fn a_confidence_is_the_state_alone_through_the_head() {
    let mut weights = all_weights(1.0);
    weights.insert(
        "confidence_head.proj.weight".into(),
        hashed(&[1, H], 90, 2.0),
    );
    weights.insert("confidence_head.proj.bias".into(), hashed(&[1], 91, 2.0));
    let mut drafter = load("dcoco", &config(true), &weights, 2).unwrap();
    let greedy = proposals(&mut drafter, Sampling::Greedy);
    let sampled = proposals(
        &mut load("dcoco", &config(true), &weights, 2).unwrap(),
        SAMPLED,
    );
    // The trunk's own states: the same block through DFlash.
    let mut trunk = dflash(2);
    proposals(&mut trunk, Sampling::Greedy);
    let mut draws = [Draws::new(1, 0), Draws::new(1, 1)];
    let [first, second] = &mut draws;
    let anchors = [(0, 7, first), (1, 5, second)].map(|(slot, position, draws)| Anchor {
        slot: Slot(slot),
        token: 3,
        position,
        draws,
    });
    let (hidden, _) = trunk.draft(&anchors, &golden::target(2)).unwrap();
    let (w, b) = (
        &weights["confidence_head.proj.weight"],
        &weights["confidence_head.proj.bias"],
    );
    let b = f64::from(b.to_vec1::<f32>().unwrap()[0]);
    let logits = hidden
        .matmul(&w.t().unwrap())
        .unwrap()
        .flatten_all()
        .unwrap();
    let want = logits.to_vec1::<f32>().unwrap().into_iter();
    let want: Vec<f64> = want
        .map(|x| 1.0 / (1.0 + (-(f64::from(x) + b)).exp()))
        .collect();
    let of = |proposals: &[Proposal]| -> Vec<f32> {
        proposals
            .iter()
            .flat_map(|p| p.confidence.clone().unwrap())
            .collect()
    };
    assert_near(&of(&greedy), want, "confidence");
    assert_eq!(of(&greedy), of(&sampled));
    assert_ne!(
        greedy[0].tokens, sampled[0].tokens,
        "else the line above says nothing"
    );
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let weights = all_weights(1.0);
    let refused =
        |key: &str, change: &dyn Fn(&mut Value, &mut BTreeMap<String, Tensor>), says: &str| {
            let (mut config, mut weights) = (config(false), weights.clone());
            change(&mut config, &mut weights);
            let error = load(key, &config, &weights, 1).unwrap_err().to_string();
            assert!(error.contains(says), "{says:?} is not in: {error}");
        };
    let as_is = |_: &mut Value, _: &mut BTreeMap<String, Tensor>| {};
    refused("dcoco:k=33", &as_is, "k=33 must be a number, 1 to 32");
    refused("dcoco:k=0", &as_is, "1 to 32");
    refused("dcoco:select=best", &as_is, "select=best expected walk");
    refused(
        "dcoco:select=first:proposal=walk",
        &as_is,
        "select=walk alone",
    );
    refused(
        "dcoco:select=global_logprob:proposal=lattice",
        &as_is,
        "global_sum",
    );
    refused("dcoco:channels=none", &as_is, "channels=none expected all");
    let set = |key: &'static str, to: Value| {
        move |config: &mut Value, _: &mut BTreeMap<String, Tensor>| {
            config["dflash_config"][key] = to.clone();
        }
    };
    refused(
        "dcoco",
        &set("projector_type", json!("domino")),
        "dflash_config.projector_type",
    );
    refused(
        "dcoco",
        &set("corrector_candidates", json!(33)),
        "at most 32",
    );
    refused(
        "dcoco",
        &set("corrector_channels", json!("some")),
        "corrector_channels",
    );
    refused(
        "dcoco",
        &set("corrector_depth", json!(2)),
        "corrector_depth",
    );
    refused(
        "dcoco",
        &set("confidence_head_with_markov", json!(true)),
        "confidence_head_with_markov",
    );
    refused(
        "dcoco",
        &set("enable_confidence_head", json!(true)),
        "confidence_head.proj.weight",
    );
    refused(
        "dcoco",
        &set("corrector_hidden_width", json!(8)),
        "L1: \"corrector.mlp.0.weight\" is [7, 21], wanted [8, 21]",
    );
    let drop_bias = |_: &mut Value, weights: &mut BTreeMap<String, Tensor>| {
        weights.remove("corrector.pair.bias");
    };
    refused("dcoco", &drop_bias, "\"corrector.pair.bias\" is missing");
    let add = |_: &mut Value, weights: &mut BTreeMap<String, Tensor>| {
        weights.insert("corrector.slots.weight".into(), hashed(&[4, 5], 1, 1.0));
    };
    refused("dcoco", &add, "corrector.slots.weight");
}
