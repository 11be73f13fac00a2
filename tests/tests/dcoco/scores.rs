//! Scores and chains against golden values and against the dense network.

use std::collections::BTreeMap;

use baselines::dcoco::{Candidates, Channels, Corrector, CorrectorSizes, Lattice, Layout};
use candle_core::{DType, Tensor};
use decode::TokenIo;
use models::Weights;
use serde::Deserialize;
use tests::golden::{H, V};

use crate::{SIZES, assert_near, corrector_weights, hashed};

#[derive(Deserialize)]
struct Fixtures {
    parameter_counts: BTreeMap<String, usize>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[allow(non_snake_case, reason = "named as in the file")]
struct Case {
    name: String,
    layout: String,
    V: usize,
    h: usize,
    B: usize,
    K: usize,
    r: usize,
    f: usize,
    seed: u64,
    scales: BTreeMap<String, f64>,
    tensor_seeds: BTreeMap<String, u64>,
    tensor_shapes: BTreeMap<String, Vec<usize>>,
    candidate_ids: Vec<Vec<u32>>,
    candidate_logprobs: Vec<Vec<f64>>,
    S: Vec<Vec<Vec<f64>>>,
    walk_ranks: Vec<usize>,
    walk_tokens: Vec<u32>,
    top1_tokens: Vec<u32>,
    T: f64,
    walk_law_along_walk: Vec<Vec<f64>>,
    global_sum_tokens: Vec<u32>,
    global_logprob_tokens: Vec<u32>,
}

fn fixtures() -> Fixtures {
    serde_json::from_str(include_str!("../fixtures/dcoco.json")).unwrap()
}

/// A target that can only embed.
struct Table(Tensor);

impl TokenIo for Table {
    fn vocab(&self) -> usize {
        self.0.dims()[0]
    }
    fn embed(&self, ids: &Tensor) -> decode::Result<Tensor> {
        Ok(self.0.index_select(ids, 0)?)
    }
    fn lm_head(&self, hidden: &Tensor) -> decode::Result<Tensor> {
        Ok(kernels::linear(hidden, &self.0)?)
    }
}

/// The checkpoint's name of a tensor of the fixture.
fn checkpoint_name(name: &str, layout: &str) -> &'static str {
    match (name, layout) {
        ("Wc", _) => "corrector.candidate.weight",
        ("bc", _) => "corrector.candidate.bias",
        ("Ws", _) => "corrector.pair.weight",
        ("bs", _) => "corrector.pair.bias",
        ("Wo", _) => "corrector.candidate_out.weight",
        ("bo", _) => "corrector.candidate_out.bias",
        ("Wn", _) => "corrector.candidate_in.weight",
        ("bn", _) => "corrector.candidate_in.bias",
        ("Wl", _) => "corrector.pair_left.weight",
        ("bl", _) => "corrector.pair_left.bias",
        ("Wr", _) => "corrector.pair_right.weight",
        ("br", _) => "corrector.pair_right.bias",
        ("W1", _) => "corrector.mlp.0.weight",
        ("b1", _) => "corrector.mlp.0.bias",
        ("w2", _) => "corrector.mlp.2.weight",
        ("b2", _) => "corrector.mlp.2.bias",
        _ => panic!("unknown tensor {name} of {layout}"),
    }
}

fn corrector_of(case: &Case) -> Corrector {
    let scale = case.scales["weights"];
    let tensors = case.tensor_shapes.iter().map(|(name, shape)| {
        let tensor = hashed(shape, case.tensor_seeds[name], scale);
        (checkpoint_name(name, &case.layout).to_owned(), tensor)
    });
    let sizes = CorrectorSizes {
        hidden: case.h,
        candidate: case.r,
        pair: case.r,
        units: case.f,
    };
    let mut weights = Weights::from_tensors("golden", tensors);
    let corrector = Corrector::new(sizes, Channels::ALL, &mut weights, "golden").unwrap();
    weights.finish().unwrap();
    assert_eq!(format!("{:?}", corrector.layout()), case.layout);
    corrector
}

#[test]
fn scores_chains_and_laws_are_the_goldens() {
    let fixtures = fixtures();
    assert_eq!(fixtures.cases.len(), 3);
    for case in &fixtures.cases {
        let io = Table(hashed(&[case.V, case.h], case.seed, case.scales["E"]));
        let hidden = hashed(&[case.B, case.h], case.seed + 1, case.scales["Hd"]);
        let logits = hashed(&[case.B, case.V], case.seed + 2, case.scales["U"]);
        let candidates = Candidates::of(&logits, case.K).unwrap();
        assert_eq!(candidates.ids, case.candidate_ids.concat(), "{}", case.name);
        assert_near(
            &candidates.log_probs,
            case.candidate_logprobs.concat(),
            &case.name,
        );

        let mut corrector = corrector_of(case);
        let scores = corrector.scores(&hidden, &candidates, case.B, &io).unwrap();
        assert_near(&scores, case.S.concat().concat(), &case.name);

        let lattice = Lattice::new(&candidates.log_probs[..case.K], &scores);
        let tokens = |ranks: &[usize]| -> Vec<u32> {
            let ids = case.candidate_ids.iter().zip(ranks);
            ids.map(|(ids, rank)| ids[*rank]).collect()
        };
        let walk = lattice.walk();
        assert_eq!(walk, case.walk_ranks, "{}", case.name);
        assert_eq!(tokens(&walk), case.walk_tokens, "{}", case.name);
        assert_eq!(tokens(&vec![0; case.B]), case.top1_tokens, "{}", case.name);
        assert_eq!(
            tokens(&lattice.global_sum()),
            case.global_sum_tokens,
            "{}",
            case.name
        );
        let logprob = tokens(&lattice.global_logprob());
        assert_eq!(logprob, case.global_logprob_tokens, "{}", case.name);
        let law = lattice.walk_law(&walk, case.T);
        assert_near(&law, case.walk_law_along_walk.concat(), &case.name);
    }
}

#[test]
fn published_parameter_counts_are_those_of_every_layout() {
    for (key, count) in fixtures().parameter_counts {
        let numbers: Vec<usize> = key
            .split(',')
            .map(|part| part.split_once('=').unwrap().1.parse().unwrap())
            .collect();
        let sizes = CorrectorSizes {
            hidden: numbers[0],
            candidate: numbers[1],
            pair: numbers[1],
            units: numbers[2],
        };
        for layout in Layout::ALL {
            assert_eq!(layout.parameters(&sizes), count, "{layout:?}, {key}");
        }
    }
}

/// Score of every pair, one at a time and in f64, from the formulas of [`Layout`].
fn dense_scores(
    layout: Layout,
    tensors: &BTreeMap<String, Tensor>,
    (hidden, candidates, gamma): (&Tensor, &Candidates, usize),
    io: &Table,
) -> Vec<f64> {
    let matrix = |name: &str| -> Vec<Vec<f64>> {
        let t = tensors[&format!("corrector.{name}.weight")]
            .to_dtype(DType::F64)
            .unwrap();
        t.to_vec2().unwrap()
    };
    let apply = |name: &str, x: &[f64]| -> Vec<f64> {
        let bias = tensors.get(&format!("corrector.{name}.bias"));
        let bias: Option<Vec<f32>> = bias.map(|t| t.to_vec1().unwrap());
        let rows = matrix(name).into_iter().enumerate();
        rows.map(|(i, row)| {
            let dot: f64 = row.iter().zip(x).map(|(w, x)| w * x).sum();
            dot + bias.as_ref().map_or(0.0, |b| f64::from(b[i]))
        })
        .collect()
    };
    let rows = |t: &Tensor| -> Vec<Vec<f64>> { t.to_dtype(DType::F64).unwrap().to_vec2().unwrap() };
    let (embed, hidden) = (rows(&io.0), rows(hidden));
    let k = candidates.k;
    let mut out = Vec::new();
    for slot in (0..hidden.len()).filter(|slot| slot % gamma != 0) {
        let (h0, h1) = (&hidden[slot - 1], &hidden[slot]);
        let at = |slot: usize, rank: usize| {
            let i = slot * k + rank;
            let u = f64::from(candidates.log_probs[i]);
            (&embed[candidates.ids[i] as usize], u)
        };
        for (a, b) in (0..k * k).map(|i| (i / k, i % k)) {
            let ((ea, ua), (eb, ub)) = (at(slot - 1, a), at(slot, b));
            let times =
                |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).collect::<Vec<_>>();
            let x = match layout {
                Layout::L1 => {
                    let ca = apply("candidate", &[ea.as_slice(), h0].concat());
                    let cb = apply("candidate", &[eb.as_slice(), h1].concat());
                    let s = apply("pair", &[h0.as_slice(), h1].concat());
                    let both = times(&ca, &cb);
                    [ca, cb, both, s, vec![ua, ub]].concat()
                }
                Layout::L2 => {
                    let (o, n) = (apply("candidate_out", ea), apply("candidate_in", eb));
                    let s = apply("pair", &[h0.as_slice(), h1].concat());
                    let both = times(&o, &n);
                    [o, n, both, s, vec![ua, ub, at(slot, 0).1]].concat()
                }
                Layout::L3 => [
                    apply("candidate_out", ea),
                    apply("candidate_in", eb),
                    apply("pair_left", h0),
                    apply("pair_right", h1),
                    vec![ub],
                ]
                .concat(),
            };
            let units = apply("mlp.0", &x)
                .into_iter()
                .map(|x| x / (1.0 + (-x).exp()));
            out.push(ub + apply("mlp.2", &units.collect::<Vec<_>>())[0]);
        }
    }
    out
}

#[test]
fn the_split_first_layer_is_the_dense_one() {
    let io = Table(hashed(&[V, H], 1, 2.0));
    let (hidden, logits) = (hashed(&[12, H], 2, 2.0), hashed(&[12, V], 3, 6.0));
    for layout in Layout::ALL {
        for k in [1, 6, 17] {
            let tensors = corrector_weights(layout, 1.0);
            let mut weights = Weights::from_tensors("golden", tensors.clone());
            let mut corrector =
                Corrector::new(SIZES, Channels::ALL, &mut weights, "golden").unwrap();
            assert_eq!(corrector.layout(), layout);
            let candidates = Candidates::of(&logits, k).unwrap();
            let got = corrector.scores(&hidden, &candidates, 4, &io).unwrap();
            let want = dense_scores(layout, &tensors, (&hidden, &candidates, 4), &io);
            assert_near(&got, want, &format!("{layout:?}, k {k}"));
        }
    }
}

#[test]
fn a_channel_that_is_not_seen_is_zero() {
    let io = Table(hashed(&[V, H], 1, 2.0));
    let (hidden, logits) = (hashed(&[8, H], 2, 2.0), hashed(&[8, V], 3, 6.0));
    let candidates = Candidates::of(&logits, 6).unwrap();
    for layout in Layout::ALL {
        for (name, prefix) in [("no_pair_state", "pair"), ("no_candidate", "candidate")] {
            let full = corrector_weights(layout, 1.0);
            let mut cut = full.clone();
            for (key, tensor) in &mut cut {
                if key.starts_with(&format!("corrector.{prefix}")) {
                    *tensor = tensor.zeros_like().unwrap();
                }
            }
            let run = |tensors: &BTreeMap<String, Tensor>, channels: &str| {
                let mut weights = Weights::from_tensors("golden", tensors.clone());
                let channels = channels.parse().unwrap();
                let mut corrector =
                    Corrector::new(SIZES, channels, &mut weights, "golden").unwrap();
                corrector.scores(&hidden, &candidates, 4, &io).unwrap()
            };
            assert_eq!(run(&full, name), run(&cut, "all"), "{layout:?}, {name}");
            assert_ne!(run(&full, name), run(&full, "all"), "{layout:?}, {name}");
        }
    }
}
