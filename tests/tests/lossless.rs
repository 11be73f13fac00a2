//! Every method on real decoders: equal text when greedy, the target's law when sampled.
#![allow(
    clippy::unwrap_used,
    reason = "a helper fails its test by panicking, as the test's own body does"
)]

use std::collections::BTreeMap;

use baselines::{Alignment, Arm, DFlash, DraftModel, Load, TargetFacts, TrunkConfig, Vanilla};
use candle_core::Tensor;
use decode::{
    Anchor, Committed, Drafter, Draws, Feed, Generation, Keep, Law, Parts, Request, Sampling,
    Settings, Silent, Slot, StepCost, Target, TokenId, VerifyAll, decode, laws,
};
use models::{Decoder, DecoderConfig, DecoderOptions, Precision, Source, Weights};
use serde_json::{Value, json};
use statrs::distribution::{ChiSquared, ContinuousCDF};
use tests::golden::{self, H, V};
use tests::{Shapes, hash_weights, reduce};

/// A target family of the golden size.
struct Family {
    name: &'static str,
    config: Value,
    shapes: Shapes,
}

fn families() -> Vec<Family> {
    let (qwen3, shapes) = (golden::target_config(), golden::target_shapes());
    let mut llama = qwen3.clone();
    llama["architectures"] = json!(["LlamaForCausalLM"]);
    llama["model_type"] = json!("llama");
    let llama_shapes = shapes
        .iter()
        .filter(|(name, _)| !name.contains("q_norm") && !name.contains("k_norm"));
    let llama_shapes = llama_shapes
        .map(|(name, shape)| (name.clone(), shape.clone()))
        .collect();
    let mut moe = qwen3.clone();
    moe["architectures"] = json!(["Qwen3MoeForCausalLM"]);
    moe["model_type"] = json!("qwen3_moe");
    for (key, value) in [
        ("num_experts", json!(4)),
        ("num_experts_per_tok", json!(2)),
        ("moe_intermediate_size", json!(12)),
        ("norm_topk_prob", json!(true)),
        ("decoder_sparse_step", json!(1)),
        ("mlp_only_layers", json!([])),
    ] {
        moe[key] = value;
    }
    vec![
        Family {
            name: "qwen3",
            config: qwen3,
            shapes: shapes.clone(),
        },
        Family {
            name: "llama",
            config: llama,
            shapes: llama_shapes,
        },
        Family {
            name: "qwen3-moe",
            config: moe,
            shapes: expert_shapes(&shapes),
        },
    ]
}

fn expert_shapes(dense: &Shapes) -> Shapes {
    let mut shapes: Shapes = dense
        .iter()
        .filter(|(name, _)| !name.contains(".mlp."))
        .map(|(n, s)| (n.clone(), s.clone()))
        .collect();
    for layer in 0..6 {
        let prefix = format!("model.layers.{layer}.mlp.");
        shapes.insert(format!("{prefix}gate.weight"), vec![4, H]);
        for expert in 0..4 {
            for (name, shape) in [
                ("gate_proj", [12, H]),
                ("up_proj", [12, H]),
                ("down_proj", [H, 12]),
            ] {
                shapes.insert(
                    format!("{prefix}experts.{expert}.{name}.weight"),
                    shape.to_vec(),
                );
            }
        }
    }
    shapes
}

impl Family {
    fn decoder(&self, slots: usize) -> Decoder {
        self.kept_as(Precision::F32, slots)
    }

    fn kept_as(&self, precision: Precision, slots: usize) -> Decoder {
        decoder(&self.config, &self.shapes, 1000, (slots, precision))
    }
}

fn decoder(
    config: &Value,
    shapes: &Shapes,
    seed: u64,
    (slots, precision): (usize, Precision),
) -> Decoder {
    let config = DecoderConfig::from_json("golden", config.to_string().as_bytes()).unwrap();
    let weights = Weights::from_tensors("golden", hash_weights(shapes, seed)).kept_as(precision);
    Decoder::new(
        config,
        weights,
        DecoderOptions {
            slots,
            capacity: 128,
            precision,
        },
    )
    .unwrap()
}

/// Writes a model in checkpoint layout.
fn checkpoint(config: &Value, weights: &BTreeMap<String, Tensor>) -> (tempfile::TempDir, Source) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let named: std::collections::HashMap<String, Tensor> = weights
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor.clone()))
        .collect();
    candle_core::safetensors::save(&named, dir.path().join("model.safetensors")).unwrap();
    let source = Source::Dir(dir.path().to_owned());
    (dir, source)
}

/// The small model: the golden target's first two layers with other weights.
fn loaded_draft_model(slots: usize, max_draft: usize) -> DraftModel {
    let mut config = golden::target_config();
    config["num_hidden_layers"] = json!(2);
    let shapes = golden::target_shapes().into_iter();
    let shapes: Shapes = shapes
        .filter(|(name, _)| !(2..6).any(|l| name.contains(&format!("layers.{l}."))))
        .collect();
    let (_dir, source) = checkpoint(&config, &hash_weights(&shapes, 1000));
    let target = TargetFacts {
        id: "golden".into(),
        hidden: H,
        vocab: V,
        n_layers: 6,
    };
    let options = baselines::Options::default();
    let load = Load {
        options: &options,
        source: Some(&source),
        target: &target,
        slots,
        capacity: 128,
        precision: models::Precision::F32,
        max_draft: Some(max_draft),
    };
    DraftModel::load(&load).unwrap()
}

fn draft_model(slots: usize, max_draft: usize) -> Box<dyn Drafter> {
    Box::new(loaded_draft_model(slots, max_draft))
}

fn dflash(slots: usize, alignment: Alignment) -> Box<dyn Drafter> {
    let mut value = golden::dflash_config();
    value["dflash_config"]["shift_label"] = (alignment == Alignment::Shifted).into();
    let weights = hash_weights(&golden::dflash_shapes(), 2000);
    let (_dir, source) = checkpoint(&value, &weights);
    let config = TrunkConfig::load(&source).unwrap();
    Box::new(DFlash::new(config, Weights::open(&source).unwrap(), slots, 128).unwrap())
}

/// An EAGLE-3 drafter, asked for as on the command line.
fn eagle3(slots: usize, arm: &str) -> Box<dyn Drafter> {
    of_arm(
        slots,
        &golden::eagle3_config(),
        &golden::eagle3_weights(),
        arm,
    )
}

/// A Domino drafter that `arm` asks for.
fn domino(slots: usize, alignment: Alignment, arm: &str) -> Box<dyn Drafter> {
    let mut value = golden::domino_config();
    value["dflash_config"]["shift_label"] = (alignment == Alignment::Shifted).into();
    of_arm(slots, &value, &golden::domino_weights(), arm)
}

fn dspark(slots: usize) -> Box<dyn Drafter> {
    of_arm(
        slots,
        &golden::dspark_config(),
        &golden::dspark_weights(),
        "dspark",
    )
}

fn dcoco(slots: usize, arm: &str) -> Box<dyn Drafter> {
    of_arm(
        slots,
        &golden::dcoco_config(),
        &golden::dcoco_weights(),
        arm,
    )
}

/// DSpark, Domino or DCOCO, which can draft three ids of four.
fn few(slots: usize, arm: &str) -> Box<dyn Drafter> {
    let (mut config, mut weights) = match arm.split(':').next() {
        Some("dspark") => (golden::dspark_config(), golden::dspark_weights()),
        Some("domino") => (golden::domino_config(), golden::domino_weights()),
        _ => (golden::dcoco_config(), golden::dcoco_weights()),
    };
    let head = &hash_weights(&golden::target_shapes(), 1000)["lm_head.weight"];
    let kept: Vec<u32> = (0..V as u32).filter(|id| id % 4 != 1).collect();
    reduce(&mut config, &mut weights, head, &kept);
    of_arm(slots, &config, &weights, arm)
}

/// The drafter that `arm` asks for, from files.
fn of_arm(
    slots: usize,
    config: &Value,
    weights: &BTreeMap<String, Tensor>,
    arm: &str,
) -> Box<dyn Drafter> {
    let (_dir, source) = checkpoint(config, weights);
    let target = TargetFacts {
        id: "golden".into(),
        hidden: H,
        vocab: V,
        n_layers: 6,
    };
    let arm = Arm::parse(arm).unwrap();
    let load = Load {
        options: &arm.options,
        source: Some(&source),
        target: &target,
        slots,
        capacity: 128,
        precision: models::Precision::F32,
        max_draft: None,
    };
    arm.method.load(&load).unwrap()
}

fn drafters(slots: usize) -> Vec<(&'static str, Box<dyn Drafter>)> {
    vec![
        ("vanilla", Box::new(Vanilla)),
        ("draft model, 1", draft_model(slots, 1)),
        ("draft model, 5", draft_model(slots, 5)),
        ("dflash, in place", dflash(slots, Alignment::InPlace)),
        ("dflash, shifted", dflash(slots, Alignment::Shifted)),
        ("eagle3, chain", eagle3(slots, "eagle3")),
        (
            "eagle3, tree",
            eagle3(slots, "eagle3:mode=tree:depth=2:topk=4:total=14"),
        ),
        (
            "domino, in place",
            domino(slots, Alignment::InPlace, "domino"),
        ),
        (
            "domino, sampled drafts",
            domino(slots, Alignment::Shifted, "domino:draft=sampled"),
        ),
        ("dspark", dspark(slots)),
        ("dcoco, walk", dcoco(slots, "dcoco")),
        ("dcoco, lattice", dcoco(slots, "dcoco:proposal=lattice")),
        ("dspark, few ids", few(slots, "dspark")),
        ("domino, few ids", few(slots, "domino:draft=sampled")),
        ("dcoco, few ids", few(slots, "dcoco")),
    ]
}

fn run(
    target: &mut Decoder,
    drafter: &mut dyn Drafter,
    requests: Vec<Request>,
    settings: &Settings,
) -> Vec<Generation> {
    let (scheduler, probe) = (&mut VerifyAll, &mut Silent);
    let mut out = decode(
        Parts {
            target,
            drafter,
            scheduler,
            probe,
        },
        requests,
        settings,
    )
    .unwrap();
    out.sort_by_key(|g| g.id);
    out
}

fn settings(slots: usize, sampling: Sampling) -> Settings {
    Settings {
        slots,
        sampling,
        seed: 3,
        cost: StepCost::flat(),
    }
}

fn prompts(max_new: usize) -> Vec<Request> {
    (0..34u64)
        .map(|id| Request {
            id,
            prompt: (0..1 + id % 9)
                .map(|i| ((id * 11 + i * 5 + 1) % 39) as TokenId)
                .collect(),
            max_new: max_new + (id % 3) as usize,
        })
        .collect()
}

fn texts(generations: &[Generation]) -> Vec<&[TokenId]> {
    generations.iter().map(|g| g.tokens.as_slice()).collect()
}

#[test]
fn greedy_text_is_vanillas_for_every_method_family_and_concurrency() {
    for family in families() {
        let alone = &settings(1, Sampling::Greedy);
        let want = run(&mut family.decoder(1), &mut Vanilla, prompts(24), alone);
        // Rounds of each drafter that has one slot.
        let mut rounds_alone = BTreeMap::new();
        for slots in [1, 2, 8, 32] {
            for (name, mut drafter) in drafters(slots) {
                let together = settings(slots, Sampling::Greedy);
                let got = run(
                    &mut family.decoder(slots),
                    &mut *drafter,
                    prompts(24),
                    &together,
                );
                assert_eq!(
                    texts(&got),
                    texts(&want),
                    "{}, {name}, {slots} slots",
                    family.name
                );
                let rounds: Vec<_> = got.into_iter().map(|g| g.rounds).collect();
                let known = rounds_alone.entry(name).or_insert_with(|| rounds.clone());
                assert_eq!(*known, rounds, "{}, {name}, {slots} slots", family.name);
            }
        }
    }
}

#[test]
fn greedy_text_is_vanillas_when_weights_are_bf16() {
    for family in families() {
        let alone = &settings(1, Sampling::Greedy);
        let target = |slots| family.kept_as(Precision::Bf16, slots);
        let want = run(&mut target(1), &mut Vanilla, prompts(24), alone);
        for slots in [1, 5] {
            for (name, mut drafter) in drafters(slots) {
                let together = settings(slots, Sampling::Greedy);
                let got = run(&mut target(slots), &mut *drafter, prompts(24), &together);
                let what = format!("{}, {name}, {slots} slots", family.name);
                assert_eq!(texts(&got), texts(&want), "{what}");
            }
        }
    }
}

#[test]
fn drafts_are_accepted_now_and_then() {
    // Otherwise the equality above would say little.
    for (name, mut drafter) in drafters(4).into_iter().skip(1) {
        let got = run(
            &mut golden::target(4),
            &mut *drafter,
            prompts(24),
            &settings(4, Sampling::Greedy),
        );
        let accepted: u32 = got.iter().flat_map(|g| &g.rounds).map(|r| r.accepted).sum();
        assert!(accepted > 20, "{name} had {accepted} drafts accepted");
    }
}

const SAMPLED: Sampling = Sampling::at(800);

#[test]
fn sampled_text_does_not_depend_on_the_batch() {
    for slot_drafters in [(1, 7), (1, 32)] {
        let pairs = drafters(slot_drafters.0)
            .into_iter()
            .zip(drafters(slot_drafters.1));
        for ((name, mut alone), (_, mut crowded)) in pairs {
            let [few, many] = [slot_drafters.0, slot_drafters.1];
            let want = run(
                &mut golden::target(few),
                &mut *alone,
                prompts(16),
                &settings(few, SAMPLED),
            );
            let got = run(
                &mut golden::target(many),
                &mut *crowded,
                prompts(16),
                &settings(many, SAMPLED),
            );
            assert_eq!(texts(&got), texts(&want), "{name} at {many} slots");
        }
    }
}

/// Tokens looked at: the prefill token and two of the loop's.
const N_SEEN: u32 = 3;
const PEAKED: Sampling = Sampling::at(400);

/// Probability of every run of [`N_SEEN`] tokens after a prompt, from plain forwards of the target.
fn exact_runs(prompt: &[TokenId]) -> Vec<f64> {
    let mut target = golden::target(1);
    let mut next = |tokens: &[TokenId]| {
        let feed = Feed {
            slot: Slot(0),
            tokens,
            parents: None,
            logits: Keep::Last,
        };
        let logits = target.forward(&[feed], &[]).unwrap().logits;
        target.keep(Slot(0), 0, &[]).unwrap();
        match laws(&logits, PEAKED).unwrap().remove(0) {
            Law::Weights(weights) => weights,
            Law::Point(_) => panic!("a sampled law has weights"),
        }
    };
    let mut runs = vec![(prompt.to_vec(), 1.0)];
    for _ in 0..N_SEEN {
        let longer = runs.iter().flat_map(|(tokens, p)| {
            let law = next(tokens).into_iter().enumerate();
            law.map(|(t, q)| {
                (
                    [tokens.as_slice(), &[t as TokenId]].concat(),
                    p * f64::from(q),
                )
            })
            .collect::<Vec<_>>()
        });
        runs = longer.collect();
    }
    runs.into_iter().map(|(_, p)| p).collect()
}

#[test]
fn every_method_samples_the_targets_law() {
    const N: u64 = 20_000;
    let prompt = vec![3, 17, 5];
    let exact = exact_runs(&prompt);
    for (name, mut drafter) in drafters(32) {
        let requests = (0..N)
            .map(|id| Request {
                id,
                prompt: prompt.clone(),
                max_new: N_SEEN as usize + 2,
            })
            .collect();
        let got = run(
            &mut golden::target(32),
            &mut *drafter,
            requests,
            &settings(32, PEAKED),
        );
        let mut counts = vec![0f64; V.pow(N_SEEN)];
        for generation in &got {
            let seen = &generation.tokens[..N_SEEN as usize];
            counts[seen.iter().fold(0, |run, t| run * V + *t as usize)] += 1.0;
        }
        let (mut chi2, mut cells, mut rare) = (0.0, 0, (0.0, 0.0));
        for (count, p) in counts.iter().zip(&exact) {
            let want = p * N as f64;
            if want < 10.0 {
                rare = (rare.0 + count, rare.1 + want);
            } else {
                chi2 += (count - want).powi(2) / want;
                cells += 1;
            }
        }
        chi2 += (rare.0 - rare.1).powi(2) / rare.1;
        assert!(cells > 100, "{cells} cells are too few");
        let p = ChiSquared::new(cells as f64).unwrap().sf(chi2);
        assert!(p > 1e-3, "{name}: p = {p:e}");
    }
}

#[test]
fn the_small_models_cache_equals_one_rebuilt_from_scratch() {
    let (mut target, mut grown) = (golden::target(1), loaded_draft_model(1, 4));
    let mut text: Vec<TokenId> = vec![3, 17, 5, 9];
    let mut position = 0;
    for (kept, anchor) in [(4, 7), (1, 30), (3, 2), (5, 11), (2, 8)] {
        // Each round keeps the anchor and some drafts, all four in the fourth.
        let fed: Vec<TokenId> = text[position..position + kept].to_vec();
        let row = Committed {
            slot: Slot(0),
            position,
            fed: &fed,
            next_anchor: anchor,
            taps: Vec::new(),
        };
        match position {
            0 => grown.start(row).unwrap(),
            _ => grown.commit(vec![row]).unwrap(),
        }
        position += kept;
        let draws = &mut Draws::new(0, 0);
        let mut rows = [Anchor {
            slot: Slot(0),
            token: anchor,
            position,
            draws,
        }];
        let io: &dyn decode::TokenIo = &target;
        let drafts = grown
            .propose(&mut rows, io, Sampling::Greedy, &mut Silent)
            .unwrap()
            .remove(0);
        text.truncate(position);
        text.push(anchor);
        text.extend(drafts.tokens);
        // While drafting it holds everything but the last draft.
        let mut fresh = loaded_draft_model(1, 4);
        let all = Committed {
            slot: Slot(0),
            position: 0,
            fed: &text[..text.len() - 1],
            next_anchor: 0,
            taps: Vec::new(),
        };
        fresh.start(all).unwrap();
        for layer in 0..2 {
            let (k, v) = grown.cache().rows(layer, Slot(0)).unwrap();
            let (want_k, want_v) = fresh.cache().rows(layer, Slot(0)).unwrap();
            assert_eq!(k.dims()[0], position + 4);
            for (got, want) in [(k, want_k), (v, want_v)] {
                let off = (got - want).unwrap().abs().unwrap().max_all().unwrap();
                assert!(off.to_scalar::<f32>().unwrap() <= 1e-5);
            }
        }
    }
    target.keep(Slot(0), 0, &[]).unwrap();
}
