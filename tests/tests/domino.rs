//! Domino against golden values (PyTorch, f64, printed to six digits), against its plain formula and against vanilla.
#![allow(
    clippy::unwrap_used,
    reason = "a helper fails its test by panicking, as the test's own body does"
)]

use std::collections::{BTreeMap, HashMap};

use baselines::{Arm, DominoHead, DominoShape, Load, TargetFacts, Vanilla};
use candle_core::{Device, Tensor};
use decode::{
    Anchor, Committed, DraftLaw, Drafter, Draws, Feed, Generation, Keep, Parts, Proposal, Request,
    Sampling, Settings, Silent, Slot, StepCost, Target, TokenId, TokenIo, VerifyAll, decode,
};
use models::{Source, Weights};
use serde_json::{Value, json};
use tests::golden::{self, H, P0, V};
use tests::hash_weights;

/// f32 against goldens printed to six digits.
const F32: f64 = 2e-5;
/// f64 against the same.
const F64: f64 = 1e-6;

/// Row-major values `0.5 * sin(0.7 i + c)`.
fn wave(c: f64, n: usize) -> Vec<f64> {
    (0..n).map(|i| 0.5 * (0.7 * i as f64 + c).sin()).collect()
}

fn near(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < tolerance, "got {got}, want {want}");
    }
}

fn f64s(t: &Tensor) -> Vec<f64> {
    let values: Vec<f32> = t.flatten_all().unwrap().to_vec1().unwrap();
    values.into_iter().map(f64::from).collect()
}

/// A head, the ends of its target and the states of one block, in f64 and row-major.
struct Plain {
    shape: DominoShape,
    embed: Vec<f64>,
    lm_head: Vec<f64>,
    weight_ih: Vec<f64>,
    weight_hh: Vec<f64>,
    fc1: Vec<f64>,
    fc2: Vec<f64>,
    /// Trunk states of all block rows.
    z: Vec<f64>,
}

/// `x [I]` through `w [O, I]`.
fn through(x: &[f64], w: &[f64]) -> Vec<f64> {
    w.chunks(x.len())
        .map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum())
        .collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Plain {
    /// The tensors of the goldens: H 4, G 3, rank 2, V 7, block 4.
    fn golden(prefix: usize) -> Self {
        Self {
            shape: DominoShape {
                hidden: 4,
                vocab: 7,
                draft_vocab: 7,
                gru: 3,
                rank: 2,
                prefix,
            },
            embed: wave(0.1, 28),
            lm_head: wave(0.2, 28),
            weight_ih: wave(0.3, 36),
            weight_hh: wave(0.4, 27),
            fc1: wave(0.5, 14),
            fc2: wave(0.6, 14),
            z: wave(0.7, 16),
        }
    }

    fn row<'a>(&self, of: &'a [f64], i: usize) -> &'a [f64] {
        &of[i * self.shape.hidden..(i + 1) * self.shape.hidden]
    }

    fn gru(&self, tokens: &[TokenId]) -> Vec<f64> {
        let g = self.shape.gru;
        let mut h = vec![0.0; g];
        for token in tokens {
            let x = through(self.row(&self.embed, *token as usize), &self.weight_ih);
            let r = through(&h, &self.weight_hh);
            h = (0..g)
                .map(|i| {
                    let reset = sigmoid(x[i] + r[i]);
                    let update = sigmoid(x[g + i] + r[g + i]);
                    let new = (x[2 * g + i] + reset * r[2 * g + i]).tanh();
                    (1.0 - update) * new + update * h[i]
                })
                .collect();
        }
        h
    }

    fn base(&self, position: usize) -> Vec<f64> {
        through(self.row(&self.z, position), &self.lm_head)
    }

    /// The training formula, counted in block positions. `text` is the anchor and the tokens after it.
    ///
    /// Shifted: position i predicts `text[i + 1]` and uses the state after `text[i]`; corrected from P on. In place:
    /// position i predicts `text[i]` and uses the state after `text[i - 1]`; corrected from P + 1 on.
    fn forced(&self, shifted: bool, position: usize, text: &[TokenId]) -> Vec<f64> {
        let (first, seen) = match shifted {
            true => (self.shape.prefix, position + 1),
            false => (self.shape.prefix + 1, position),
        };
        let base = self.base(position);
        if position < first {
            return base;
        }
        let joined = [
            self.row(&self.z, position),
            self.gru(&text[..seen]).as_slice(),
        ]
        .concat();
        let inner: Vec<f64> = through(&joined, &self.fc1)
            .into_iter()
            .map(|x| x * sigmoid(x))
            .collect();
        let correction = through(&inner, &self.fc2);
        base.iter().zip(correction).map(|(b, c)| b + c).collect()
    }

    fn tensor(values: &[f64], dims: &[usize]) -> Tensor {
        let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
        Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
    }

    fn head(&self, legacy: &str) -> DominoHead {
        let DominoShape {
            hidden,
            vocab,
            gru,
            rank,
            ..
        } = self.shape;
        let tensors = [
            (
                "prefix_gru.weight_ih_l0",
                &self.weight_ih,
                [3 * gru, hidden],
            ),
            ("prefix_gru.weight_hh_l0", &self.weight_hh, [3 * gru, gru]),
            ("embed_proj.0.weight", &self.fc1, [rank, hidden + gru]),
            ("embed_proj.2.weight", &self.fc2, [vocab, rank]),
        ];
        let tensors = tensors
            .map(|(name, values, dims)| (format!("{legacy}{name}"), Self::tensor(values, &dims)));
        let mut weights = Weights::from_tensors("golden", tensors);
        let head = DominoHead::new(self.shape, &mut weights).unwrap();
        weights.finish().unwrap();
        head
    }

    /// States and logits of the block's draft slots.
    fn block(&self, shifted: bool) -> (Tensor, Tensor) {
        let hidden = self.shape.hidden;
        let z = &self.z[if shifted { 0 } else { hidden }..];
        let z = Self::tensor(z, &[z.len() / hidden, hidden]);
        let logits = self.lm_head(&z).unwrap();
        (z, logits)
    }
}

impl TokenIo for Plain {
    fn vocab(&self) -> usize {
        self.shape.vocab
    }

    fn embed(&self, ids: &Tensor) -> decode::Result<Tensor> {
        let table = Self::tensor(&self.embed, &[self.shape.vocab, self.shape.hidden]);
        Ok(table.index_select(ids, 0)?)
    }

    fn lm_head(&self, hidden: &Tensor) -> decode::Result<Tensor> {
        let head = Self::tensor(&self.lm_head, &[self.shape.vocab, self.shape.hidden]);
        Ok(kernels::linear(hidden, &head)?)
    }
}

/// What one position of a rollout showed.
struct Seen {
    logits: Vec<f64>,
    state: Vec<f64>,
    token: TokenId,
}

/// One block after `anchor`; argmax drafts, or `forced` ones.
fn roll(
    plain: &Plain,
    head: &mut DominoHead,
    shifted: bool,
    anchor: TokenId,
    forced: Option<&[TokenId]>,
) -> Vec<Seen> {
    let (z, logits) = plain.block(shifted);
    let mut seen = Vec::new();
    head.roll(&z, &logits, &[anchor], plain, |step| {
        let best = kernels::argmax_rows(step.logits)?.to_vec1::<u32>()?[0];
        let token = forced.map_or(best, |tokens| tokens[step.slot]);
        seen.push(Seen {
            logits: f64s(step.logits),
            state: f64s(step.state),
            token,
        });
        Ok(vec![token])
    })
    .unwrap();
    seen
}

#[test]
fn a_shifted_rollout_matches_the_golden() {
    let plain = Plain::golden(1);
    let seen = roll(&plain, &mut plain.head(""), true, 3, None);
    let tokens: Vec<TokenId> = seen.iter().map(|s| s.token).collect();
    assert_eq!(tokens, [0, 1, 0, 3]);
    let want = [
        [
            0.503140, -0.390696, 0.233105, -0.048578, -0.141563, 0.315346, -0.452688,
        ],
        [
            -0.641934, 0.379121, -0.303359, 0.315674, -0.018794, -0.310684, 0.321199,
        ],
        [
            0.687450, -0.351545, 0.348205, -0.515205, 0.177901, 0.239346, -0.163977,
        ],
        [
            -0.575058, 0.398116, -0.392268, 0.527020, -0.320569, -0.013569, 0.035023,
        ],
    ];
    for (seen, want) in seen.iter().zip(&want) {
        near(&seen.logits, want, F32);
    }
    let states = [
        [-0.151754, 0.204338, -0.215391],
        [-0.082912, -0.015734, 0.039801],
        [-0.149415, 0.145367, -0.183197],
    ];
    for (seen, want) in seen[1..].iter().zip(&states) {
        near(&seen.state, want, F32);
    }
    // The reference of the tests below gives them too.
    for (position, want) in want.iter().enumerate() {
        near(&plain.forced(true, position, &[3, 0, 1, 0, 3]), want, F64);
    }
    // The correction decides the last draft.
    let base = plain.base(3);
    let best = (0..7).max_by(|a, b| base[*a].total_cmp(&base[*b]));
    assert_eq!(best, Some(1));
}

#[test]
fn forced_tokens_match_the_golden_of_both_alignments() {
    let text = [3, 1, 5, 0, 2];
    let plain = Plain::golden(1);
    let shifted = roll(&plain, &mut plain.head(""), true, 3, Some(&text[1..]));
    let states = [
        [-0.109203, 0.094455, -0.004617],
        [-0.050489, -0.087213, 0.153405],
        [-0.214524, 0.204117, -0.030049],
        [-0.190835, 0.259852, -0.224482],
    ];
    for (seen, want) in shifted.iter().zip(&states) {
        near(&seen.state, want, F32);
    }
    let in_place = roll(&plain, &mut plain.head(""), false, 3, Some(&text[1..4]));
    near(&in_place[0].logits, &plain.base(1), F32);
    let want = [
        [
            0.677066, -0.363910, 0.354385, -0.500739, 0.176637, 0.224450, -0.167778,
        ],
        [
            -0.587577, 0.382857, -0.384937, 0.544771, -0.321866, -0.031761, 0.030136,
        ],
    ];
    for (i, want) in want.iter().enumerate() {
        near(&in_place[1 + i].logits, want, F32);
        near(&plain.forced(false, 2 + i, &text), want, F64);
    }
}

#[test]
fn a_rollout_with_forced_tokens_is_the_training_formula() {
    for prefix in 0..3 {
        let plain = Plain::golden(prefix);
        for shifted in [true, false] {
            for text in [[3, 1, 5, 0, 2], [6, 6, 0, 4, 1], [0, 2, 2, 2, 5]] {
                let n_drafts = if shifted { 4 } else { 3 };
                let forced = Some(&text[1..=n_drafts]);
                let seen = roll(&plain, &mut plain.head(""), shifted, text[0], forced);
                assert_eq!(seen.len(), n_drafts);
                for (draft, seen) in seen.iter().enumerate() {
                    let position = if shifted { draft } else { draft + 1 };
                    let want = plain.forced(shifted, position, &text);
                    near(&seen.logits, &want, 1e-5);
                }
            }
        }
    }
}

#[test]
fn a_table_of_recurrent_inputs_and_company_in_the_batch_change_no_bit() {
    let plain = Plain::golden(1);
    let (z, logits) = plain.block(true);
    let anchors: [TokenId; 3] = [3, 0, 6];
    let twice = |t: &Tensor| Tensor::cat(&[t, t, t], 0).unwrap();
    for table_bytes in [0, 1 << 20] {
        let mut head = plain.head("").with_table_of(table_bytes);
        let mut together = Vec::new();
        head.roll(&twice(&z), &twice(&logits), &anchors, &plain, |step| {
            let rows = step.logits.to_vec2::<f32>()?;
            together.push(rows.clone());
            Ok(kernels::argmax_rows(step.logits)?.to_vec1()?)
        })
        .unwrap();
        for (row, anchor) in anchors.iter().enumerate() {
            let mut lone = plain.head("");
            lone.roll(&z, &logits, &[*anchor], &plain, |step| {
                assert_eq!(step.logits.to_vec2::<f32>()?[0], together[step.slot][row]);
                Ok(kernels::argmax_rows(step.logits)?.to_vec1()?)
            })
            .unwrap();
        }
    }
}

#[test]
fn tensors_under_the_older_prefix_are_the_same_head() {
    let plain = Plain::golden(1);
    let new = roll(&plain, &mut plain.head(""), true, 3, None);
    let old = roll(&plain, &mut plain.head("logit_head."), true, 3, None);
    for (new, old) in new.iter().zip(&old) {
        assert_eq!(new.logits, old.logits);
    }
}

/// The golden trunk with the golden head.
fn config(shifted: bool) -> Value {
    let mut config = golden::domino_config();
    config["dflash_config"]["shift_label"] = json!(shifted);
    config
}

/// Loads a checkpoint of this config and these tensors as the method `arm` asks for.
fn load(
    arm: &str,
    config: &Value,
    weights: &BTreeMap<String, Tensor>,
    slots: usize,
) -> baselines::Result<Box<dyn Drafter>> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let named: HashMap<String, Tensor> = weights.clone().into_iter().collect();
    candle_core::safetensors::save(&named, dir.path().join("model.safetensors")).unwrap();
    let arm = Arm::parse(arm).unwrap();
    arm.method.load(&Load {
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

fn texts(drafter: &mut dyn Drafter, slots: usize) -> Vec<Generation> {
    let requests = (0..20u64).map(|id| Request {
        id,
        prompt: (0..1 + id % 7)
            .map(|i| ((id * 13 + i * 5 + 2) % 39) as TokenId)
            .collect(),
        max_new: 20 + (id % 3) as usize,
    });
    let settings = Settings {
        slots,
        sampling: Sampling::Greedy,
        seed: 0,
        cost: StepCost::flat(),
    };
    let parts = Parts {
        target: &mut golden::target(slots),
        drafter,
        scheduler: &mut VerifyAll,
        probe: &mut Silent,
    };
    let mut out = decode(parts, requests.collect(), &settings).unwrap();
    out.sort_by_key(|g| g.id);
    out
}

#[test]
fn greedy_text_is_vanillas_and_drafts_do_not_depend_on_the_batch() {
    let want = texts(&mut Vanilla, 1);
    for shifted in [true, false] {
        let mut alone: Option<Vec<Generation>> = None;
        for slots in [1, 2, 3, 8] {
            let mut drafter =
                load("domino", &config(shifted), &golden::domino_weights(), slots).unwrap();
            let got = texts(&mut *drafter, slots);
            let alone = alone.get_or_insert_with(|| got.clone());
            for ((got, want), alone) in got.iter().zip(&want).zip(alone) {
                assert_eq!(got.tokens, want.tokens, "{slots} slots");
                let accepted = |g: &Generation| -> Vec<u32> {
                    g.rounds.iter().map(|round| round.accepted).collect()
                };
                assert_eq!(accepted(got), accepted(alone), "{slots} slots");
            }
        }
    }
}

/// One proposal after the prompt.
fn proposal(arm: &str, sampling: Sampling) -> Proposal {
    let mut target = golden::target(1);
    let mut drafter = load(arm, &config(true), &golden::domino_weights(), 1).unwrap();
    let taps = drafter.taps().to_vec();
    let slot = Slot(0);
    let feed = Feed {
        slot,
        tokens: &P0,
        parents: None,
        logits: Keep::Last,
    };
    let taps = target.forward(&[feed], &taps).unwrap().taps;
    let prompt = Committed {
        slot,
        position: 0,
        fed: &P0,
        next_anchor: 0,
        taps,
    };
    drafter.start(prompt).unwrap();
    let anchor = Anchor {
        slot,
        token: 0,
        position: P0.len(),
        draws: &mut Draws::new(5, 0),
    };
    let mut proposals = drafter
        .propose(&mut [anchor], &target, sampling, &mut Silent)
        .unwrap();
    proposals.remove(0)
}

const T1: Sampling = Sampling::at(1000);

#[test]
fn drafts_are_argmax_unless_sampled_ones_are_asked_for() {
    let greedy = proposal("domino", Sampling::Greedy);
    assert_eq!(greedy.tokens.len(), 4);
    for (arm, sampling) in [
        ("domino", T1),
        ("domino:draft=greedy", T1),
        ("domino:draft=sampled", Sampling::Greedy),
    ] {
        let same = proposal(arm, sampling);
        assert!(matches!(same.law, DraftLaw::Point), "{arm}");
        assert_eq!(same.tokens, greedy.tokens, "{arm}");
    }
    let sampled = proposal("domino:draft=sampled", T1);
    let DraftLaw::Full(law) = sampled.law else {
        panic!("a sampled chain carries its law");
    };
    assert_eq!(law.dims(), [4, V]);
    for row in law.to_vec2::<f32>().unwrap() {
        let mass: f64 = row.iter().map(|q| f64::from(*q)).sum();
        assert!((mass - 1.0).abs() < 1e-6, "{mass}");
    }
    // The first slot is the trunk's alone: its likeliest token is the first greedy draft.
    let first = kernels::argmax_rows(&law.narrow(0, 0, 1).unwrap()).unwrap();
    assert_eq!(first.to_vec1::<u32>().unwrap(), greedy.tokens[..1]);
}

#[test]
fn fewer_drafts_are_the_first_ones() {
    let all = proposal("domino", Sampling::Greedy).tokens;
    for n in 1..4 {
        let some = proposal(&format!("domino:max_draft={n}"), Sampling::Greedy);
        assert_eq!(some.tokens, all[..n]);
    }
}

#[test]
fn a_file_that_is_not_a_domino_drafter_is_refused() {
    let refused = |arm: &str, change: &dyn Fn(&mut Value), says: &str| {
        let mut config = config(true);
        change(&mut config);
        let error = load(arm, &config, &golden::domino_weights(), 1)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(says), "{error}");
    };
    let key = |key: &'static str, value: Value| {
        move |v: &mut Value| v["dflash_config"][key] = value.clone()
    };
    // Names of the architecture do not tell the two apart.
    refused("dflash", &|_| (), "projector_type");
    refused(
        "domino",
        &key("projector_type", json!(null)),
        "method dflash",
    );
    refused("domino", &key("projector_type", json!("dflash")), "dflash");
    refused(
        "domino",
        &key("use_bias_gate", json!(true)),
        "use_bias_gate",
    );
    refused(
        "domino",
        &key("use_bias_norm", json!(true)),
        "use_bias_norm",
    );
    refused(
        "domino",
        &key("pure_draft_prefix_len", json!(4)),
        "prefix_len 4",
    );
    refused(
        "domino",
        &key("gru_hidden_dim", json!(null)),
        "gru_hidden_dim",
    );
    refused("domino", &key("emb_dim", json!(7)), "embed_proj.0.weight");
    refused("domino", &key("selector_rank", json!(7)), "selector_rank");
    refused("domino", &|v| v["emb_dim"] = json!(7), "outer emb_dim is 7");
    refused("domino:draft=best", &|_| (), "greedy or sampled");
    refused("domino:max_draft=5", &|_| (), "max_draft");
    let bare = hash_weights(&golden::dflash_shapes(), 2000);
    let error = load("domino", &config(true), &bare, 1).err().unwrap();
    assert!(
        error.to_string().contains("prefix_gru.weight_ih_l0"),
        "{error}"
    );
}

#[test]
fn released_spellings_are_read() {
    let drafted = |change: &dyn Fn(&mut Value)| {
        let mut config = config(false);
        change(&mut config);
        load("domino", &config, &golden::domino_weights(), 1)
            .unwrap()
            .max_draft()
    };
    assert_eq!(drafted(&|_| ()), 3);
    assert_eq!(
        drafted(&|v| v["dflash_config"]["shift_label"] = json!(true)),
        4
    );
    assert_eq!(
        drafted(&|v| {
            v["architectures"] = json!(["DominoDraftModel"]);
            v["auto_map"] = json!({ "AutoModel": "domino.DominoDraftModel" });
            v["emb_dim"] = json!(6);
            let block = v["dflash_config"].as_object_mut().unwrap();
            block.remove("emb_dim");
            block.remove("shift_label");
            block.remove("pure_draft_prefix_len");
            block["projector_type"] = json!("causal_v5");
            block.insert("use_bias_gate".into(), json!(false));
        }),
        3
    );
}
