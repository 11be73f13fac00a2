//! Golden values of training-time test, from a PyTorch reference in f64, and what the drafter's runner makes of it.

mod run;

use super::*;
use crate::config::{Family, NetConfig};
use crate::ops::testing::assert_is_alive;
use baselines::StateForm;
use candle_core::Device;

/// Goldens are f64 printed to at least six digits; f32 sums of a few hundred terms.
const TOLERANCE: f64 = 2e-5;

/// `scale * sin(0.7 i + c)` for element i.
fn wave(c: f64, shape: &[usize], scale: f64) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n)
        .map(|i| (scale * (0.7 * i as f64 + c).sin()) as f32)
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn target() -> NetConfig {
    NetConfig {
        architecture: Family::LlamaForCausalLM,
        vocab_size: 10,
        hidden_size: 8,
        intermediate_size: 12,
        num_hidden_layers: 6,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 4,
        rms_norm_eps: 1e-5,
        rope_theta: 1e4,
        max_position_embeddings: 16,
        tie_word_embeddings: false,
        experts: None,
    }
}

fn shape() -> Eagle3Shape {
    Eagle3Shape {
        intermediate_size: 12,
        target_layer_ids: vec![0, 1, 2],
        draft_vocab_size: 6,
        ttt_steps: 3,
        step_decay: 0.8,
        residual: StateForm::Raw,
        feedback: StateForm::Raw,
    }
}

fn net(shape: &Eagle3Shape) -> Result<Eagle3Net> {
    let vocab = DraftVocab::new(vec![0, 2, 3, 5, 7, 9], 10);
    let net = Eagle3Net::new(shape, &target(), vocab, 0)?;
    for (name, c) in [
        ("fc", 0.2),
        ("midlayer.self_attn.q_proj", 0.5),
        ("midlayer.self_attn.k_proj", 0.6),
        ("midlayer.self_attn.v_proj", 0.7),
        ("midlayer.self_attn.o_proj", 0.8),
        ("midlayer.mlp.gate_proj", 1.0),
        ("midlayer.mlp.up_proj", 1.1),
        ("midlayer.mlp.down_proj", 1.2),
        ("lm_head", 1.4),
    ] {
        let var = net.params.get(&format!("{name}.weight")).unwrap();
        var.set(&wave(c, var.dims(), 0.3))?;
    }
    for (name, c) in [
        ("midlayer.hidden_norm", 0.3),
        ("midlayer.input_layernorm", 0.4),
        ("midlayer.post_attention_layernorm", 0.9),
        ("norm", 1.3),
    ] {
        let var = net.params.get(&format!("{name}.weight")).unwrap();
        var.set(&(wave(c, var.dims(), 0.1) + 1.0)?)?;
    }
    Ok(net)
}

/// The reference's text; the loss looks at rows 1 to 4.
fn walk() -> Walk {
    let ids = vec![4, 9, 2, 7, 5, 0];
    let counts = vec![false, true, true, true, true, false];
    let whole = 0..6;
    Walk::of(ids, vec![whole], counts, 3)
}

fn teacher(net: &Eagle3Net) -> Result<Teacher> {
    let (hidden, head) = (wave(2.5, &[6, 8], 1.0), wave(3.6, &[10, 8], 1.0));
    let logits = hidden.matmul(&head.t()?)?;
    let best: Vec<u32> = logits.argmax(1)?.to_vec1()?;
    assert_eq!(best, [2, 3, 4, 5, 5, 7]);
    Ok(Teacher::new(&logits, &net.vocab)?)
}

fn steps(net: &Eagle3Net, walk: &Walk) -> Result<Vec<Tensor>> {
    let taps = wave(2.0, &[6, 24], 1.0);
    let taps: Vec<Tensor> = (0..3)
        .map(|t| taps.narrow(1, 8 * t, 8))
        .collect::<candle_core::Result<_>>()?;
    let table = wave(0.1, &[10, 8], 0.3);
    net.steps(walk, &taps, &|ids| {
        Ok(table.index_select(&Tensor::new(ids, &Device::Cpu)?, 0)?)
    })
}

fn total(net: &Eagle3Net) -> Result<(Tensor, Vec<Tensor>)> {
    let walk = walk();
    net.loss(&walk, &teacher(net)?, &steps(net, &walk)?, 6.0)
}

#[track_caller]
fn near(got: f64, want: f64) {
    assert!((got - want).abs() < TOLERANCE, "got {got}, want {want}");
}

fn scalar(t: &Tensor) -> f64 {
    f64::from(t.to_scalar::<f32>().unwrap())
}

#[test]
fn the_rows_that_count_move_with_the_steps() -> Result<()> {
    let (net, walk) = (net(&shape())?, walk());
    let teacher = teacher(&net)?;
    for (step, want) in [[0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]]
        .into_iter()
        .enumerate()
    {
        let rows = teacher.rows(&walk, step);
        let got: Vec<i32> = rows.iter().map(|(_, counts)| i32::from(*counts)).collect();
        assert_eq!(got, want, "step {step}");
    }
    Ok(())
}

#[test]
fn losses_and_logits_of_every_step_match_the_reference() -> Result<()> {
    let net = net(&shape())?;
    let logits = steps(&net, &walk())?;
    let (total, terms) = total(&net)?;
    let want = [
        (
            0.915425576,
            [
                0.199401, -0.048963, -0.275349, -0.378139, -0.311195, -0.104566,
            ],
        ),
        (
            0.927742454,
            [
                0.178473, -0.092870, -0.322527, -0.407411, -0.309422, -0.072543,
            ],
        ),
        (
            0.919440400,
            [
                0.061703, -0.134957, -0.271039, -0.285460, -0.171747, 0.019058,
            ],
        ),
    ];
    for ((term, logits), (loss, row)) in terms.iter().zip(&logits).zip(want) {
        near(scalar(term), loss);
        let got: Vec<f32> = logits.get(1)?.to_vec1()?;
        got.iter()
            .zip(row)
            .for_each(|(got, want)| near(f64::from(*got), want));
    }
    near(scalar(&total), 2.246061395);
    Ok(())
}

#[test]
fn both_switches_match_the_reference() -> Result<()> {
    let normed_residual = Eagle3Shape {
        residual: StateForm::Normed,
        ..shape()
    };
    near(scalar(&total(&net(&normed_residual)?)?.0), 2.327760502);
    let normed_feedback = Eagle3Shape {
        feedback: StateForm::Normed,
        ..shape()
    };
    near(scalar(&total(&net(&normed_feedback)?)?.0), 2.281974138);
    Ok(())
}

#[test]
fn gradients_match_the_reference() -> Result<()> {
    let net = net(&shape())?;
    let mut gradients = Gradients::default();
    gradients.add(&net.params, &total(&net)?.0)?;
    for (name, sum, size) in [
        ("fc", -0.036611863, 1.197598754),
        ("midlayer.self_attn.q_proj", 0.041903118, 1.353827613),
        ("lm_head", 0.0, 1.185902229),
        ("midlayer.hidden_norm", 0.020120720, 0.057231064),
        ("norm", 0.078250601, 0.130200608),
        ("midlayer.mlp.gate_proj", 0.015478072, 0.098711400),
    ] {
        let of = gradients.of(&format!("{name}.weight")).unwrap();
        near(of.iter().map(|g| f64::from(*g)).sum(), sum);
        near(of.iter().map(|g| f64::from(g.abs())).sum(), size);
    }
    for (name, _) in net.params.iter() {
        assert_is_alive(gradients.of(name), name);
    }
    Ok(())
}

#[test]
fn rows_left_out_before_the_answer_change_nothing() -> Result<()> {
    // The loss looks at row 3 of the first text and row 4 of the second, so three steps ask from two rows before.
    let net = net(&shape())?;
    let texts = || vec![0..6, 6..12];
    let ids = vec![4, 9, 2, 7, 5, 0, 1, 3, 8, 9, 2, 6];
    let counts: Vec<bool> = (0..12).map(|row| matches!(row, 3 | 10)).collect();
    let few = Walk::of(ids.clone(), texts(), counts.clone(), 3);
    let all = Walk::of(ids, texts(), counts, 7);
    assert_eq!((few.asking.len(), all.asking.len()), (5 + 4, 12));
    let taps: Vec<Tensor> = (0..3).map(|t| wave(f64::from(t), &[12, 8], 1.0)).collect();
    let table = wave(0.1, &[10, 8], 0.3);
    let law = wave(4.0, &[12, 10], 2.0);
    let loss = |walk: &Walk| -> Result<f64> {
        let logits = net.steps(walk, &taps, &|ids| {
            Ok(table.index_select(&Tensor::new(ids, &Device::Cpu)?, 0)?)
        })?;
        let teacher = Teacher::new(&law, &net.vocab)?;
        Ok(scalar(&net.loss(walk, &teacher, &logits, 12.0)?.0))
    };
    let (few, all) = (loss(&few)?, loss(&all)?);
    assert!(few > 0.01, "{few}");
    near(few, all);
    Ok(())
}

#[test]
fn what_is_exported_drafts_what_was_trained() -> Result<()> {
    for feedback in [StateForm::Raw, StateForm::Normed] {
        let shape = Eagle3Shape {
            feedback,
            ..shape()
        };
        let folder = tempfile::tempdir().unwrap();
        let net = net(&shape)?;
        export(&net, folder.path())?;
        let source = models::Source::Dir(folder.path().to_owned());
        let facts = baselines::TargetFacts {
            id: "tiny".to_owned(),
            hidden: 8,
            vocab: 10,
            n_layers: 6,
        };
        let load = baselines::Load {
            source: Some(&source),
            target: &facts,
            slots: 1,
            capacity: 16,
            precision: models::Precision::F32,
            max_draft: None,
            options: &baselines::Options::default(),
        };
        let mut drafter = baselines::Eagle3::load(&load).unwrap();
        check_drafts(&mut drafter, &net)?;
    }
    Ok(())
}

/// The embeddings that both sides are fed.
struct Table;

impl decode::TokenIo for Table {
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

/// Row 3 of step 0 and of step 1, by the drafter's runner: four committed pairs, then one forced draft.
fn check_drafts(drafter: &mut baselines::Eagle3, net: &Eagle3Net) -> Result<()> {
    use decode::Drafter;
    // The file is in bf16, so the tensors that are compared with it are rounded too.
    for (_, var) in net.params.iter() {
        var.set(&var.to_dtype(DType::BF16)?.to_dtype(DType::F32)?)?;
    }
    let walk = walk();
    let taps = wave(2.0, &[6, 24], 1.0).narrow(0, 0, 4)?;
    let prompt = decode::Committed {
        slot: decode::Slot(0),
        position: 0,
        fed: &walk.ids[..4],
        next_anchor: walk.ids[4],
        taps: (0..3)
            .map(|t| taps.narrow(1, 8 * t, 8))
            .collect::<candle_core::Result<_>>()?,
    };
    drafter.start(prompt)?;
    let draws = &mut decode::Draws::new(0, 0);
    let anchor = decode::Anchor {
        slot: decode::Slot(0),
        token: walk.ids[4],
        position: 4,
        draws,
    };
    let y = drafter.extend(&[anchor], &Table)?;
    let seen = [vec![0]];
    let level = models::Level {
        slot: decode::Slot(0),
        depth: 0,
        first: 0,
        seen: &seen,
    };
    let next = drafter.step(&[level], &walk.ids[5..], &y, &Table)?;
    let want = steps(net, &walk)?;
    for (y, want) in [(y, &want[0]), (next, &want[1])] {
        let got: Vec<f32> = drafter.logits(&y, &Table)?.get(0)?.to_vec1()?;
        let want: Vec<f32> = want.get(3)?.to_vec1()?;
        for (got, want) in got.iter().zip(&want) {
            near(f64::from(*got), f64::from(*want));
        }
    }
    Ok(())
}
