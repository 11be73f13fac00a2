//! EAGLE-3 against golden values of a PyTorch reference in f64, and against itself.
#![allow(
    clippy::unwrap_used,
    reason = "a helper fails its test by panicking, as the test's own body does"
)]

mod loading;

use std::collections::BTreeMap;

use baselines::{DraftTree, Drafting, Eagle3, Eagle3Config};
use candle_core::{Device, IndexOp, Tensor};
use decode::{
    Anchor, Committed, Drafter, Draws, Feed, Keep, Proposal, Sampling, Silent, Slot, Target,
    TokenId, TokenIo,
};
use models::{CacheDims, Level, Rows, SlotCache, Source, Weights};
use serde_json::{Value, json};
use tests::golden::{self, P0};

/// Goldens are f64 printed to six digits.
const TOLERANCE: f32 = 2e-5;

const SLOT: Slot = Slot(0);
const CHAIN: Drafting = Drafting::Chain { n_drafts: 3 };

/// `scale * sin(0.7 i + c)` for element i.
fn wave(c: f64, shape: &[usize], scale: f64) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n)
        .map(|i| (scale * (0.7 * i as f64 + c).sin()) as f32)
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Token ids of the reference's six positions.
const X: [TokenId; 6] = [4, 9, 2, 7, 5, 0];

fn reference_weights() -> BTreeMap<String, Tensor> {
    let mut weights = BTreeMap::new();
    for (name, c, shape) in [
        ("fc", 0.2, [8, 24]),
        ("midlayer.self_attn.q_proj", 0.5, [8, 16]),
        ("midlayer.self_attn.k_proj", 0.6, [4, 16]),
        ("midlayer.self_attn.v_proj", 0.7, [4, 16]),
        ("midlayer.self_attn.o_proj", 0.8, [8, 8]),
        ("midlayer.mlp.gate_proj", 1.0, [12, 8]),
        ("midlayer.mlp.up_proj", 1.1, [12, 8]),
        ("midlayer.mlp.down_proj", 1.2, [8, 12]),
        ("lm_head", 1.4, [6, 8]),
    ] {
        weights.insert(format!("{name}.weight"), wave(c, &shape, 0.3));
    }
    for (name, c) in [
        ("midlayer.hidden_norm", 0.3),
        ("midlayer.input_layernorm", 0.4),
        ("midlayer.post_attention_layernorm", 0.9),
        ("norm", 1.3),
    ] {
        let norm = (wave(c, &[8], 0.1) + 1.0).unwrap();
        weights.insert(format!("{name}.weight"), norm);
    }
    weights.insert("d2t".into(), list(&[0, 1, 1, 2, 3, 4]));
    weights.insert("t2d".into(), list(&[1, 0, 1, 1, 0, 1, 0, 1, 0, 1]));
    weights
}

fn list(values: &[i64]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

fn reference_config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLMEagle3"], "vocab_size": 10, "draft_vocab_size": 6, "hidden_size": 8,
        "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    })
}

fn config(value: &Value) -> baselines::Result<Eagle3Config> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), value.to_string()).unwrap();
    Eagle3Config::load(&Source::Dir(dir.path().to_owned()))
}

fn build(config: &Value, weights: BTreeMap<String, Tensor>, drafting: Drafting) -> Eagle3 {
    let config = self::config(config).unwrap();
    let weights = Weights::from_tensors("reference", weights);
    Eagle3::new(config, weights, drafting, (1, 64)).unwrap()
}

fn reference(drafting: Drafting) -> Eagle3 {
    build(&reference_config(), reference_weights(), drafting)
}

/// The reference's embeddings; it has a head of its own.
struct Ends;

impl TokenIo for Ends {
    fn vocab(&self) -> usize {
        10
    }
    fn embed(&self, ids: &Tensor) -> decode::Result<Tensor> {
        Ok(wave(0.1, &[10, 8], 0.3).index_select(ids, 0)?)
    }
    fn lm_head(&self, _hidden: &Tensor) -> decode::Result<Tensor> {
        panic!("the drafter's own head is used")
    }
}

/// Hands over the first `n` positions with the reference's taps and returns the state after the last pair, `[1, 8]`.
fn fed(drafter: &mut Eagle3, n: usize) -> Tensor {
    let taps = wave(2.0, &[n, 24], 1.0);
    hand_over(
        drafter,
        (0..3).map(|t| taps.narrow(1, 8 * t, 8).unwrap()).collect(),
    )
}

fn hand_over(drafter: &mut Eagle3, taps: Vec<Tensor>) -> Tensor {
    let n = taps[0].dim(0).unwrap();
    start(drafter, taps);
    let draws = &mut Draws::new(0, 0);
    drafter.extend(&[anchor(n, X[n], draws)], &Ends).unwrap()
}

fn start(drafter: &mut Eagle3, taps: Vec<Tensor>) {
    let n = taps[0].dim(0).unwrap();
    let prompt = Committed {
        slot: SLOT,
        position: 0,
        fed: &X[..n],
        next_anchor: X[n],
        taps,
    };
    drafter.start(prompt).unwrap();
}

fn anchor(position: usize, token: TokenId, draws: &mut Draws) -> Anchor<'_> {
    Anchor {
        slot: SLOT,
        token,
        position,
        draws,
    }
}

/// One draft step that follows the committed pairs, or the steps before it.
fn step(
    drafter: &mut Eagle3,
    depth: usize,
    token: TokenId,
    y: &Tensor,
    io: &dyn TokenIo,
) -> Tensor {
    let seen = [(0..=depth as u32).collect()];
    let level = Level {
        slot: SLOT,
        depth,
        first: depth,
        seen: &seen,
    };
    drafter.step(&[level], &[token], y, io).unwrap()
}

#[track_caller]
fn near(got: &Tensor, want: &[f32]) {
    let got: Vec<f32> = got.flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < TOLERANCE, "got {got}, want {want}");
    }
}

#[test]
fn the_first_pass_matches_the_reference() {
    let mut drafter = reference(CHAIN);
    let y = fed(&mut drafter, 4);
    near(
        &y,
        &[
            -1.036709, -2.563012, 3.516117, -0.590629, -2.946832, 3.264075, -0.165556, -3.222255,
        ],
    );
    near(
        &drafter.logits(&y, &Ends).unwrap(),
        &[-0.310392, -0.003348, 0.305198, 0.476750, 0.434305, 0.196914],
    );
    let mut value = reference_config();
    value["norm_before_residual"] = true.into();
    let mut normed = build(&value, reference_weights(), CHAIN);
    near(
        &fed(&mut normed, 4),
        &[
            -0.397181, -1.128201, 1.59978, -0.236156, -1.239515, 1.23435, -0.076641, -1.238352,
        ],
    );
}

#[test]
fn a_step_after_a_prefix_matches_the_reference() {
    for (row, want) in [
        (
            0,
            [-0.098450, 0.141416, 0.317804, 0.351541, 0.227481, 0.001313],
        ),
        (
            2,
            [
                0.040432, 0.030197, 0.006408, -0.020258, -0.037831, -0.038422,
            ],
        ),
    ] {
        let mut drafter = reference(CHAIN);
        let y = fed(&mut drafter, row + 1);
        let y = step(&mut drafter, 0, X[row + 2], &y, &Ends);
        near(&drafter.logits(&y, &Ends).unwrap(), &want);
    }
}

#[test]
fn a_chain_starts_with_the_references_best_token() {
    let mut drafter = reference(CHAIN);
    let proposal = propose(&mut drafter, Sampling::Greedy);
    assert_eq!(proposal.tokens.len(), 3);
    // Draft id 3 is target id 5.
    assert_eq!(proposal.tokens[0], 5);
    assert!(proposal.parents.is_none());
}

fn propose(drafter: &mut Eagle3, sampling: Sampling) -> Proposal {
    let taps = wave(2.0, &[4, 24], 1.0);
    start(
        drafter,
        (0..3).map(|t| taps.narrow(1, 8 * t, 8).unwrap()).collect(),
    );
    let draws = &mut Draws::new(0, 0);
    let mut rows = [anchor(4, X[4], draws)];
    let mut all = drafter
        .propose(&mut rows, &Ends, sampling, &mut Silent)
        .unwrap();
    all.remove(0)
}

/// Rows that row `i` of a tree sees, as the target's cache plans them.
fn mask(parents: &[u32]) -> Vec<String> {
    let cache = SlotCache::new(CacheDims {
        n_layers: 1,
        slots: 1,
        capacity: 16,
        width: 1,
    });
    let with_root: Vec<u32> = [0].iter().chain(parents).copied().collect();
    let tree = Rows {
        slot: SLOT,
        n_rows: with_root.len(),
        parents: Some(&with_root),
    };
    let plan = cache.unwrap().plan(&[tree]).unwrap();
    let seen = |extra: &[u32]| {
        (0..with_root.len() as u32)
            .map(|row| if extra.contains(&row) { '1' } else { '0' })
            .collect()
    };
    plan.visible.iter().map(|v| seen(&v.extra)).collect()
}

#[test]
fn the_tree_matches_the_reference() {
    for sampling in [Sampling::Greedy, Sampling::at(300)] {
        let mut drafter = reference(Drafting::Tree {
            width: 2,
            steps: 2,
            nodes: 6,
        });
        let proposal = propose(&mut drafter, sampling);
        assert_eq!(proposal.tokens, [5, 7, 7, 5, 7, 5]);
        let parents = proposal.parents.unwrap();
        assert_eq!(parents, [0, 0, 1, 1, 2, 2]);
        assert_eq!(
            mask(&parents),
            [
                "1000000", "1100000", "1010000", "1101000", "1100100", "1010010", "1010001"
            ]
        );
        // The cache holds the four committed pairs and nothing of the tree.
        assert_eq!(drafter.cache().len(SLOT).unwrap(), 4);
    }
}

/// The `k` best tokens after a state, with log-probabilities.
fn best(
    drafter: &Eagle3,
    y: &Tensor,
    io: &dyn TokenIo,
    ids: &[TokenId],
    k: usize,
) -> Vec<(TokenId, f32)> {
    let logits = drafter.logits(y, io).unwrap();
    let laws = candle_nn::ops::log_softmax(&logits, 1).unwrap();
    let mut all: Vec<(TokenId, f32)> = ids
        .iter()
        .copied()
        .zip(laws.i(0).unwrap().to_vec1::<f32>().unwrap())
        .collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(k);
    all
}

#[test]
fn every_candidate_of_the_tree_is_scored_as_in_the_reference() {
    // As the drafter grows it, but each node by a chain of its own.
    let used = [0, 2, 3, 5, 7, 9];
    let mut drafter = reference(CHAIN);
    let root = fed(&mut drafter, 4);
    let mut tree = DraftTree::new(&best(&drafter, &root, &Ends, &used, 2));
    let mut paths: Vec<Vec<TokenId>> = tree.frontier().map(|t| vec![t]).collect();
    for _ in 0..2 {
        let mut found = Vec::new();
        for path in &paths {
            let mut y = root.clone();
            for (depth, token) in path.iter().enumerate() {
                y = step(&mut drafter, depth, *token, &y, &Ends);
            }
            found.extend(best(&drafter, &y, &Ends, &used, 2));
        }
        let hang = tree.grow(&found);
        let next = hang.iter().zip(tree.frontier());
        paths = next
            .map(|(from, token)| [paths[*from as usize].as_slice(), &[token]].concat())
            .collect();
    }
    let scores = Tensor::new(tree.scores(), &Device::Cpu).unwrap();
    near(
        &scores,
        &[
            -1.53268, -1.575126, -3.063835, -3.069331, -3.065635, -3.132321, -4.565792, -4.613521,
            -4.565654, -4.595864,
        ],
    );
    assert_eq!(
        tree.select(6),
        (vec![5, 7, 7, 5, 7, 5], vec![0, 0, 1, 1, 2, 2])
    );
    let (tokens, _) = tree.select(usize::MAX);
    assert_eq!(tokens, [5, 7, 7, 5, 7, 5, 5, 7, 7, 5]);
}

#[test]
fn equal_scores_select_no_orphan() {
    // A certain token adds nothing to its path's score, so children tie with parents all the way down.
    for p in [0.0, -1.5] {
        let level = |n: u32| {
            (0..n)
                .map(|t| (t, if t == 0 { 0.0 } else { p }))
                .collect::<Vec<_>>()
        };
        let mut tree = DraftTree::new(&level(3));
        for _ in 0..4 {
            let found: Vec<_> = (0..3).flat_map(|_| level(3)).collect();
            tree.grow(&found);
        }
        for n in 1..=tree.scores().len() {
            let (tokens, parents) = tree.select(n);
            assert_eq!(tokens.len(), n);
            for (i, parent) in parents.iter().enumerate() {
                assert!(
                    *parent as usize <= i,
                    "draft {i} of {n} hangs from {parent}"
                );
            }
            let siblings = |i: usize| {
                (0..i)
                    .filter(|j| parents[*j] == parents[i])
                    .all(|j| tokens[j] != tokens[i])
            };
            assert!((0..n).all(siblings), "{n}: {tokens:?} {parents:?}");
        }
    }
}

fn golden_drafter(drafting: Drafting) -> Eagle3 {
    let config = config(&golden::eagle3_config()).unwrap();
    let weights = Weights::from_tensors("golden", golden::eagle3_weights());
    Eagle3::new(config, weights, drafting, (1, 64)).unwrap()
}

/// Feeds `tokens` to slot 0 of target and drafter, as a round would.
fn feed(
    target: &mut dyn Target,
    drafter: &mut dyn Drafter,
    (tokens, next): (&[TokenId], TokenId),
    position: usize,
) {
    let taps = drafter.taps().to_vec();
    let feed = Feed {
        slot: SLOT,
        tokens,
        parents: None,
        logits: Keep::Last,
    };
    let forward = target.forward(&[feed], &taps).unwrap();
    let row = Committed {
        slot: SLOT,
        position,
        fed: tokens,
        next_anchor: next,
        taps: forward.taps,
    };
    match position {
        0 => drafter.start(row).unwrap(),
        _ => drafter.commit(vec![row]).unwrap(),
    }
}

#[test]
fn the_cache_equals_one_rebuilt_from_scratch() {
    let tree = Drafting::Tree {
        width: 3,
        steps: 2,
        nodes: 10,
    };
    let text: Vec<TokenId> = P0
        .iter()
        .copied()
        .chain([0, 28, 13, 30, 2, 19, 6, 1])
        .collect();
    for drafting in [Drafting::Chain { n_drafts: 5 }, tree] {
        let (mut target, mut grown) = (golden::target(1), golden_drafter(drafting));
        let mut from = 0;
        for to in [7, 8, 12, 14] {
            feed(&mut target, &mut grown, (&text[from..to], text[to]), from);
            let io: &dyn TokenIo = &target;
            let draws = &mut Draws::new(0, 0);
            let mut rows = [anchor(to, text[to], draws)];
            grown
                .propose(&mut rows, io, Sampling::Greedy, &mut Silent)
                .unwrap();
            let (mut fresh_target, mut fresh) = (golden::target(1), golden_drafter(CHAIN));
            feed(&mut fresh_target, &mut fresh, (&text[..to], text[to]), 0);
            let io: &dyn TokenIo = &fresh_target;
            fresh.extend(&rows, io).unwrap();
            let (k, v) = grown.cache().rows(0, SLOT).unwrap();
            let (want_k, want_v) = fresh.cache().rows(0, SLOT).unwrap();
            assert_eq!(k.dims(), [to, 16]);
            for (got, want) in [(k, want_k), (v, want_v)] {
                let off = (got - want).unwrap().abs().unwrap().max_all().unwrap();
                assert!(
                    off.to_scalar::<f32>().unwrap() <= 1e-5,
                    "{drafting:?}, {to}"
                );
            }
            from = to;
        }
    }
}

#[test]
fn a_context_that_does_not_end_at_the_anchor_is_refused() {
    let (mut target, mut drafter) = (golden::target(1), golden_drafter(CHAIN));
    feed(&mut target, &mut drafter, (&P0, 5), 0);
    let io: &dyn TokenIo = &target;
    let draws = &mut Draws::new(0, 0);
    let error = drafter.extend(&[anchor(8, 5, draws)], io).unwrap_err();
    assert!(error.to_string().contains("holds 7 pairs"), "{error}");
}

#[test]
fn a_draft_law_has_its_mass_on_the_draft_vocabulary() {
    let sampling = Sampling::at(700);
    let mut drafter = reference(CHAIN);
    let proposal = propose(&mut drafter, sampling);
    let decode::DraftLaw::TopK { ids, probs } = proposal.law else {
        panic!("a sampled chain over a reduced vocabulary lists its candidates");
    };
    assert_eq!(ids.to_vec2::<u32>().unwrap()[2], [0, 2, 3, 5, 7, 9]);
    let y = fed(&mut reference(CHAIN), 4);
    let logits = (drafter.logits(&y, &Ends).unwrap() / 0.7).unwrap();
    let want = candle_nn::ops::softmax(&logits, 1).unwrap();
    near(
        &probs.i(0).unwrap(),
        &want.i(0).unwrap().to_vec1::<f32>().unwrap(),
    );
}
