//! DFlash against golden values of its reference implementation (f32, CPU), and against itself.
#![allow(
    clippy::unwrap_used,
    reason = "a helper fails its test by panicking, as the test's own body does"
)]

use std::collections::BTreeMap;

use baselines::{Alignment, DFlash, TrunkConfig, Vanilla};
use candle_core::{IndexOp, Tensor};
use decode::{
    Anchor, Committed, Drafter, Draws, Feed, Generation, Keep, LayerId, Parts, Request, Sampling,
    Settings, Silent, Slot, StepCost, Target, TokenId, VerifyAll, decode,
};
use models::{Source, Weights};
use tests::golden::{self, H, MASK, P0, V};
use tests::hash_weights;

/// Absolute, on single elements: the reference's own two implementations differ by 2e-6.
const TOLERANCE: f32 = 1e-4;
/// On sums over tens of elements.
const SUM_TOLERANCE: f64 = 1e-3;

fn near(got: f32, want: f32) {
    assert!((got - want).abs() < TOLERANCE, "got {got}, want {want}");
}

fn near_sum(t: &Tensor, want: f64) {
    let got = t
        .to_dtype(candle_core::DType::F64)
        .unwrap()
        .sum_all()
        .unwrap()
        .to_scalar::<f64>()
        .unwrap();
    assert!((got - want).abs() < SUM_TOLERANCE, "got {got}, want {want}");
}

fn config(value: &serde_json::Value) -> baselines::Result<TrunkConfig> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), value.to_string()).unwrap();
    TrunkConfig::load(&Source::Dir(dir.path().to_owned()))
}

fn weights() -> BTreeMap<String, Tensor> {
    hash_weights(&golden::dflash_shapes(), 2000)
}

fn drafter(slots: usize) -> DFlash {
    let config = config(&golden::dflash_config()).unwrap();
    DFlash::new(
        config,
        Weights::from_tensors("golden", weights()),
        slots,
        128,
    )
    .unwrap()
}

fn run(
    drafter: &mut dyn Drafter,
    prompts: &[&[TokenId]],
    max_new: usize,
    slots: usize,
) -> Vec<Generation> {
    let requests = prompts
        .iter()
        .enumerate()
        .map(|(id, p)| Request {
            id: id as u64,
            prompt: p.to_vec(),
            max_new,
        })
        .collect();
    let settings = Settings {
        slots,
        sampling: Sampling::Greedy,
        seed: 0,
        cost: StepCost::flat(),
    };
    let (target, scheduler, probe) = (&mut golden::target(slots), &mut VerifyAll, &mut Silent);
    let mut out = decode(
        Parts {
            target,
            drafter,
            scheduler,
            probe,
        },
        requests,
        &settings,
    )
    .unwrap();
    out.sort_by_key(|g| g.id);
    out
}

/// Feeds `tokens` to slot 0 of target and drafter, as a round would.
fn feed(
    target: &mut dyn Target,
    drafter: &mut dyn Drafter,
    tokens: &[TokenId],
    position: usize,
) -> Tensor {
    let taps = drafter.taps().to_vec();
    let feed = Feed {
        slot: Slot(0),
        tokens,
        parents: None,
        logits: Keep::All,
    };
    let forward = target.forward(&[feed], &taps).unwrap();
    let row = Committed {
        slot: Slot(0),
        position,
        fed: tokens,
        next_anchor: 0,
        taps: forward.taps,
    };
    match position {
        0 => drafter.start(row).unwrap(),
        _ => drafter.commit(vec![row]).unwrap(),
    }
    forward.logits
}

fn block(
    drafter: &mut DFlash,
    target: &dyn Target,
    token: TokenId,
    position: usize,
) -> (Tensor, Tensor) {
    let draws = &mut Draws::new(0, 0);
    let io: &dyn decode::TokenIo = target;
    drafter
        .draft(
            &[Anchor {
                slot: Slot(0),
                token,
                position,
                draws,
            }],
            io,
        )
        .unwrap()
}

#[test]
fn the_first_two_blocks_match_the_reference() {
    let (mut target, mut drafter) = (golden::target(1), drafter(1));
    let logits = feed(&mut target, &mut drafter, &P0, 0);
    let last = logits.i(6).unwrap();
    for (i, want) in [1.2215088, -0.0679234, -0.1245471, -0.5910679]
        .into_iter()
        .enumerate()
    {
        near(last.i(i).unwrap().to_scalar().unwrap(), want);
    }
    near_sum(&last, -1.115748);

    let (_, logits) = block(&mut drafter, &target, 0, 7);
    assert_eq!(logits.dims(), [3, V]);
    for (i, want) in [0.4631274, -0.387495, 0.2005098, -0.4699173]
        .into_iter()
        .enumerate()
    {
        near(logits.i((0, i)).unwrap().to_scalar().unwrap(), want);
    }
    near_sum(&logits, -9.551927);
    assert_eq!(
        kernels::argmax_rows(&logits)
            .unwrap()
            .to_vec1::<u32>()
            .unwrap(),
        [15, 15, 15]
    );

    // The verify pass refuses all three; the anchor's row stays.
    let verify = feed(&mut target, &mut drafter, &[0], 7);
    assert_eq!(
        kernels::argmax_rows(&verify)
            .unwrap()
            .to_vec1::<u32>()
            .unwrap(),
        [0]
    );
}

#[test]
fn hidden_states_of_all_slots_match_the_reference() {
    // A shifted trunk hands out every slot's hidden state, slot 0 included.
    let mut value = golden::dflash_config();
    value["dflash_config"]["shift_label"] = true.into();
    let config = config(&value).unwrap();
    let mut drafter =
        DFlash::new(config, Weights::from_tensors("golden", weights()), 1, 128).unwrap();
    let mut target = golden::target(1);
    feed(&mut target, &mut drafter, &P0, 0);
    let (hidden, _) = block(&mut drafter, &target, 0, 7);
    assert_eq!(hidden.dims(), [4, H]);
    near_sum(&hidden, -11.740961);
    for (i, want) in [-0.3277166, -0.0211071, -2.2050397, -0.0814595]
        .into_iter()
        .enumerate()
    {
        near(hidden.i((0, i)).unwrap().to_scalar().unwrap(), want);
    }
    feed(&mut target, &mut drafter, &[0], 7);
    near_sum(&block(&mut drafter, &target, 0, 8).0, -14.155338);
}

const PROMPTS: [&[TokenId]; 3] = [&P0, &[8, 36, 4, 16, 7], &[37, 11, 5, 35, 16]];

/// 24 greedy tokens after each prompt; top-1 leads by at least 0.0026.
const TEXTS: [[TokenId; 24]; 3] = [
    [
        0, 0, 0, 0, 0, 0, 27, 0, 27, 0, 27, 38, 27, 38, 38, 27, 14, 0, 27, 0, 27, 0, 15, 15,
    ],
    [
        29, 26, 26, 26, 26, 26, 36, 14, 14, 14, 15, 36, 14, 0, 26, 0, 15, 36, 14, 0, 27, 0, 15, 36,
    ],
    [
        29, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 36, 26, 36, 14, 14, 15, 36, 14, 0, 0, 14, 0,
    ],
];

/// Tokens committed by each round, uncut, until 24 tokens follow the prefill token.
fn acceptance(prompt_idx: usize) -> Vec<u32> {
    let ones = |n| vec![1; n];
    match prompt_idx {
        0 => ones(24),
        1 => [ones(6), vec![4], ones(11), vec![2], ones(1)].concat(),
        _ => [
            ones(14),
            vec![3],
            ones(1),
            vec![2],
            ones(1),
            vec![2],
            ones(1),
        ]
        .concat(),
    }
}

#[test]
fn greedy_text_and_acceptance_match_the_reference_at_every_concurrency() {
    for slots in [1, 2, 3, 8] {
        let vanilla = run(&mut Vanilla, &PROMPTS, 24, slots);
        let dflash = run(&mut drafter(slots), &PROMPTS, 25, slots);
        for (i, (vanilla, dflash)) in vanilla.iter().zip(&dflash).enumerate() {
            assert_eq!(vanilla.tokens, TEXTS[i], "prompt {i}");
            assert_eq!(dflash.tokens[..24], TEXTS[i], "prompt {i}");
            let accepted: Vec<u32> = dflash.rounds.iter().map(|r| r.accepted + 1).collect();
            assert_eq!(accepted, acceptance(i), "prompt {i} at {slots} slots");
        }
    }
}

/// Feeds prompt and answer in one go and compares the drafter's context with the one built round by round.
#[test]
fn the_context_cache_equals_one_rebuilt_from_scratch() {
    let (mut target, mut grown) = (golden::target(1), drafter(1));
    let text: Vec<TokenId> = P0.iter().chain(&TEXTS[0]).copied().collect();
    feed(&mut target, &mut grown, &text[..7], 0);
    for (from, to) in [(7, 8), (8, 12), (12, 13), (13, 20)] {
        // A block in between leaves scratch rows behind the context, which must not matter.
        block(&mut grown, &target, text[from], from);
        feed(&mut target, &mut grown, &text[from..to], from);
        let (mut fresh_target, mut fresh) = (golden::target(1), drafter(1));
        feed(&mut fresh_target, &mut fresh, &text[..to], 0);
        for layer in 0..2 {
            let (k, v) = grown.cache().rows(layer, Slot(0)).unwrap();
            let (want_k, want_v) = fresh.cache().rows(layer, Slot(0)).unwrap();
            assert_eq!(k.dims(), [to, 16]);
            for (got, want) in [(k, want_k), (v, want_v)] {
                let off = (got - want)
                    .unwrap()
                    .abs()
                    .unwrap()
                    .max_all()
                    .unwrap()
                    .to_scalar::<f32>()
                    .unwrap();
                assert!(off <= 1e-5, "layer {layer}, {to} positions: {off}");
            }
        }
    }
}

/// Largest change of the second block's drafting logits when something is wrong.
fn change(spoil: impl Fn(&mut DFlash, &mut dyn Target)) -> f32 {
    let logits = |spoil: &dyn Fn(&mut DFlash, &mut dyn Target)| {
        let (mut target, mut drafter) = (golden::target(1), drafter(1));
        spoil(&mut drafter, &mut target);
        let held = drafter.cache().len(Slot(0)).unwrap();
        block(&mut drafter, &target, 0, held).1
    };
    let right = logits(&|drafter, target| {
        feed(target, drafter, &P0, 0);
        feed(target, drafter, &[0], 7);
    });
    let off = (right - logits(&spoil)).unwrap().abs().unwrap();
    off.max_all().unwrap().to_scalar().unwrap()
}

#[test]
fn a_block_one_position_early_or_late_shows() {
    // One context row short: the block stands one position early and lacks the last tap.
    assert!(change(|drafter, target| drop(feed(target, drafter, &P0, 0))) > 0.1);
    // Taps of other layers than the config names.
    let off = change(|drafter, target| {
        let tokens: Vec<TokenId> = P0.iter().copied().chain([0]).collect();
        let feed = Feed {
            slot: Slot(0),
            tokens: &tokens,
            parents: None,
            logits: Keep::Last,
        };
        let taps = target
            .forward(&[feed], &[LayerId(0), LayerId(2)])
            .unwrap()
            .taps;
        let row = Committed {
            slot: Slot(0),
            position: 0,
            fed: &tokens,
            next_anchor: 0,
            taps,
        };
        drafter.start(row).unwrap();
    });
    assert!(off > 0.1, "taps off by one changed {off}");
}

#[test]
fn alignment_is_read_from_the_config() {
    let nested = config(&golden::dflash_config()).unwrap();
    assert_eq!(
        (nested.alignment, nested.gamma(), nested.mask),
        (Alignment::InPlace, 3, MASK)
    );
    let mut value = golden::dflash_config();
    value["dflash_config"]["shift_label"] = true.into();
    let shifted = config(&value).unwrap();
    assert_eq!(
        (shifted.alignment, shifted.gamma()),
        (Alignment::Shifted, 4)
    );
    let map = value.as_object_mut().unwrap();
    map.remove("dflash_config");
    map.insert(
        "architectures".into(),
        serde_json::json!(["Qwen3DSparkModel"]),
    );
    map.insert("markov_rank".into(), 0.into());
    map.insert("mask_token_id".into(), MASK.into());
    map.insert("target_layer_ids".into(), serde_json::json!([1, 3]));
    let flat = config(&value).unwrap();
    assert_eq!((flat.alignment, flat.gamma()), (Alignment::Shifted, 4));
}

#[test]
fn a_config_that_means_another_model_is_refused() {
    let refused = |change: &dyn Fn(&mut serde_json::Value), says: &str| {
        let mut value = golden::dflash_config();
        change(&mut value);
        let error = config(&value).unwrap_err().to_string();
        assert!(
            error.contains(says) && error.contains("config.json"),
            "{error}"
        );
    };
    refused(
        &|v| v["dflash_config"]["projector_type"] = "domino".into(),
        "projector_type",
    );
    refused(
        &|v| v["dflash_config"]["selector_rank"] = 4.into(),
        "dflash_config.selector_rank",
    );
    refused(
        &|v| v["attention_sink_bias"] = true.into(),
        "attention_sink_bias",
    );
    refused(
        &|v| v["dflash_config"]["target_layer_ids"] = serde_json::json!([3, 1]),
        "target_layer_ids",
    );
    refused(
        &|v| v["dflash_config"]["target_layer_ids"] = serde_json::json!([1, 6]),
        "target_layer_ids",
    );
    refused(
        &|v| v["dflash_config"]["mask_token_id"] = 40.into(),
        "mask_token_id",
    );
    refused(&|v| v["block_size"] = 1.into(), "block_size");
    refused(
        &|v| v["architectures"] = serde_json::json!(["Qwen3ForCausalLM"]),
        "architectures",
    );
    refused(
        &|v| drop(v.as_object_mut().unwrap().remove("block_size")),
        "block_size",
    );
    refused(
        &|v| drop(v.as_object_mut().unwrap().remove("dflash_config")),
        "dflash_config",
    );
}
