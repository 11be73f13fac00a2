//! Golden values of the DSpark losses, from a PyTorch reference with the same deterministic weights.

use super::*;
use crate::anchors::{BlockShape, Blocks, DraftPack};
use crate::block::{Chunk, DraftNet, Place};
use crate::lm::CausalLm;
use crate::ops::testing::{assert_is_alive, difference, relative_difference};
use crate::optim::{AdamW, Gradients, OptimizerConfig};
use crate::testing::golden::{self, ANCHORS, SEQUENCE, pack};
use crate::trunk::Trunk;

const KINDS: [MarkovKind; 3] = [MarkovKind::Vanilla, MarkovKind::Gated, MarkovKind::Rnn];

fn config(markov: MarkovKind) -> DsparkHead {
    DsparkHead {
        markov,
        rank: 4,
        ..DsparkHead::default()
    }
}

fn net(config: DsparkHead) -> Result<DraftNet<Sequential>> {
    let trunk_config = golden::drafter(Alignment::Shifted);
    let target = golden::target()?;
    let mut trunk = Trunk::new(&trunk_config, target.config(), 0)?;
    let head = Sequential::new(&config, dims(), &mut trunk.params, 0)?;
    // Copies of the target's tables, which the reference counts and training does not write.
    let others = ["embed_tokens.weight", "lm_head.weight"];
    golden::fill(&trunk.params, 3000, &others)?;
    DraftNet::live(target, trunk, head)
}

fn dims() -> HeadDims {
    HeadDims {
        hidden: 16,
        vocab: 40,
        draft_vocab: 40,
        block_rows: 4,
        alignment: Alignment::Shifted,
    }
}

fn shape() -> BlockShape {
    BlockShape {
        block_rows: 4,
        alignment: Alignment::Shifted,
        mask: 39,
        decay: Some(4.0),
        coverage: Sequential::COVERAGE,
    }
}

fn blocks() -> Blocks {
    Blocks::new(&pack(), &ANCHORS, &shape())
}

fn loss(net: &DraftNet<Sequential>) -> Result<Tensor> {
    let blocks = blocks();
    net.loss(&pack(), &blocks, Place::end(blocks.weight()))
}

fn weighed([cross_entropy_weight, distance_weight, confidence_weight]: [f64; 3]) -> DsparkHead {
    DsparkHead {
        cross_entropy_weight,
        distance_weight,
        confidence_weight,
        ..config(MarkovKind::Vanilla)
    }
}

#[test]
fn every_loss_is_the_references() -> Result<()> {
    let weight = blocks().weight();
    assert!((weight - 6.243_029_6).abs() < 1e-6, "{weight}");
    for (weights, want) in [
        ([1.0, 0.0, 0.0], 3.373_119),
        ([0.0, 1.0, 0.0], 0.552_920_5),
        ([0.0, 0.0, 1.0], 1.072_763),
        ([0.1, 0.9, 1.0], 1.907_704),
    ] {
        let got = loss(&net(weighed(weights))?)?.to_scalar::<f32>()?;
        assert!((got - want).abs() < 2e-5, "{weights:?}: {got} for {want}");
    }
    Ok(())
}

#[test]
fn a_confidence_learns_the_overlap_of_both_laws() -> Result<()> {
    let net = net(config(MarkovKind::Vanilla))?;
    let (pack, blocks) = (pack(), blocks());
    let states = net.states(&pack, &blocks)?;
    let logits = net.logits(&pack, &blocks)?;
    let out = BlockOut {
        hidden: &states.hidden,
        logits: &logits,
        lm_head: &net.lm_head,
        vocab: &net.vocab,
        target_hidden: &states.target_hidden,
        target: &net.target,
        pack: &pack,
        blocks: &blocks,
        total: 1.0,
        progress: 1.0,
    };
    let embedded = net.head.embed(&tokens_before(&out))?;
    let corrected = (&logits + net.head.bias(&embedded, &out)?)?;
    let parts = Parts {
        cross_entropy: 0.0,
        distance: 1.0,
    };
    let ones = [1.0; 12];
    let (_, overlap) = imitation(&corrected, &teacher(&out)?, &blocks.labels, &ones, parts)?;
    let want = [
        0.694124, 0.705322, 0.703213, 0.694090, 0.752887, 0.718130, 0.744053, 0.738298, 0.755806,
    ];
    for (i, want) in want.into_iter().enumerate() {
        let got = overlap[i];
        assert!((got - want).abs() < 2e-5, "slot {i}: {got} for {want}");
    }
    Ok(())
}

#[test]
fn every_trained_tensor_receives_a_gradient_and_the_target_none() -> Result<()> {
    for kind in KINDS {
        let net = net(config(kind))?;
        let mut gradients = Gradients::default();
        gradients.add(&net.trunk.params, &loss(&net)?)?;
        for (name, _) in net.trunk.params.iter() {
            assert_is_alive(gradients.of(name), &format!("{kind:?}: {name}"));
        }
        let mut frozen = Gradients::default();
        frozen.add(&net.target.params, &loss(&net)?)?;
        assert_eq!(frozen.norm(), 0.0);
    }
    Ok(())
}

#[test]
fn each_loss_reaches_what_it_should() -> Result<()> {
    let reached = |weights: [f64; 3], name: &str| -> Result<bool> {
        let net = net(weighed(weights))?;
        let mut gradients = Gradients::default();
        gradients.add(&net.trunk.params, &loss(&net)?)?;
        Ok(gradients
            .of(name)
            .is_some_and(|g| g.iter().any(|g| *g != 0.0)))
    };
    let (w2, fc) = ("markov_head.markov_w2.weight", "fc.weight");
    let confidence = "confidence_head.proj.weight";
    for laws in [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]] {
        assert!(reached(laws, w2)? && reached(laws, fc)? && !reached(laws, confidence)?);
    }
    // A confidence shapes the trunk and the embeddings it reads; what it is compared with stays put.
    let rated = [0.0, 0.0, 1.0];
    assert!(reached(rated, confidence)? && reached(rated, fc)? && !reached(rated, w2)?);
    assert!(reached(rated, "markov_head.markov_w1.weight")?);
    Ok(())
}

#[test]
fn a_slope_agrees_with_the_loss_around_it() -> Result<()> {
    for kind in KINDS {
        // Without the distance, whose slope jumps, and with a confidence that is compared with what stays put.
        let net = net(DsparkHead {
            cross_entropy_weight: 1.0,
            distance_weight: 0.0,
            confidence_weight: 0.0,
            ..config(kind)
        })?;
        let mut gradients = Gradients::default();
        gradients.add(&net.trunk.params, &loss(&net)?)?;
        let mut checked = 0;
        for (name, var) in net.trunk.params.iter() {
            if !name.starts_with("markov_head") {
                continue;
            }
            let grad = gradients.of(name).expect("has a gradient");
            let start = var.as_tensor().copy()?;
            let direction = Tensor::from_vec(grad.to_vec(), var.dims(), &Device::Cpu)?;
            let slope = grad.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>();
            // A step that changes the loss by about 4e-3: far above f32 rounding, small against the curvature.
            let step = 2e-3 / slope;
            let at = |sign: f64| -> Result<f64> {
                var.set(&(&start + (&direction * (sign * step))?)?)?;
                Ok(f64::from(loss(&net)?.to_scalar::<f32>()?))
            };
            let measured = (at(1.0)? - at(-1.0)?) / (2.0 * step);
            var.set(&start)?;
            assert!(
                (measured - slope).abs() < 0.02 * slope,
                "{kind:?} {name}: {measured} for {slope}"
            );
            checked += 1;
        }
        assert_eq!(checked, if kind == MarkovKind::Vanilla { 2 } else { 4 });
    }
    Ok(())
}

#[test]
fn gradients_are_the_same_whatever_part_of_the_logits_exists_at_once() -> Result<()> {
    for kind in KINDS {
        let net = net(config(kind))?;
        let blocks = blocks();
        let at = Place::end(blocks.weight());
        let (mut whole, mut parts) = (Gradients::default(), Gradients::default());
        whole.add(&net.trunk.params, &loss(&net)?)?;
        let chunk = Chunk {
            blocks: 2,
            frozen_trunk: false,
        };
        net.accumulate(&pack(), &blocks, at, chunk, &mut parts)?;
        for (name, _) in net.trunk.params.iter() {
            let (whole, parts) = (whole.of(name), parts.of(name));
            for (a, b) in whole.into_iter().flatten().zip(parts.into_iter().flatten()) {
                assert!((a - b).abs() < 1e-5, "{name}: {a} and {b}");
            }
        }
    }
    Ok(())
}

#[test]
fn training_on_one_sequence_learns_its_blocks() -> Result<()> {
    for kind in KINDS {
        let net = net(DsparkHead {
            cross_entropy_weight: 1.0,
            distance_weight: 0.0,
            ..config(kind)
        })?;
        let optimizer_config = OptimizerConfig {
            lr: 0.02,
            final_fraction: 1.0,
            warmup_steps: 1,
            betas: [0.9, 0.95],
            eps: 1e-8,
            weight_decay: 0.0,
            clip: 1.0,
        };
        let mut optimizer = AdamW::default();
        for _ in 0..200 {
            let mut gradients = Gradients::default();
            gradients.add(&net.trunk.params, &loss(&net)?)?;
            let lr = optimizer_config.lr;
            optimizer.update(&net.trunk.params, &gradients, &optimizer_config, lr)?;
        }
        // Every draft is right: the mean block commits its bonus and all labelled slots.
        let blocks = blocks();
        let labelled = blocks.weights.iter().filter(|w| **w > 0.0).count();
        let want = 1.0 + labelled as f64 / ANCHORS.len() as f64;
        assert_eq!(net.acceptance_length(&pack(), &blocks)?, want, "{kind:?}");
    }
    Ok(())
}

#[test]
fn a_saved_drafter_corrects_and_rates_the_same_in_the_method_that_runs_it() -> Result<()> {
    for kind in KINDS {
        for input in [
            ConfidenceInput::HiddenAndMarkov,
            ConfidenceInput::Hidden,
            ConfidenceInput::None,
        ] {
            let config = DsparkHead {
                confidence: input,
                ..config(kind)
            };
            let folder = tempfile::tempdir().unwrap();
            let (target_dir, draft_dir) = (folder.path().join("t"), folder.path().join("d"));
            let trained = net(config)?;
            trained.target.save(&target_dir, 1, 0)?;
            trained.save(&draft_dir, &shape())?;
            assert_same_head(config, &target_dir, &draft_dir)?;
        }
    }
    Ok(())
}

/// Both sides read the bf16 files.
fn assert_same_head(config: DsparkHead, target_dir: &Path, draft_dir: &Path) -> Result<()> {
    let trunk_config = golden::drafter(Alignment::Shifted);
    let target = CausalLm::load(target_dir)?;
    let mut trunk = Trunk::new(&trunk_config, target.config(), 0)?;
    let head = Sequential::new(&config, dims(), &mut trunk.params, 0)?;
    trunk.params.load(&draft_dir.join("model.safetensors"))?;
    let net = DraftNet::live(target, trunk, head)?;
    let mut prompt = DraftPack::default();
    prompt.push(&SEQUENCE[..7], &SEQUENCE[7..12]);
    let blocks = Blocks::new(&prompt, &[7], &shape());
    let states = net.states(&prompt, &blocks)?;
    let logits = net.logits(&prompt, &blocks)?;
    let out = BlockOut {
        hidden: &states.hidden,
        logits: &logits,
        lm_head: &net.lm_head,
        vocab: &net.vocab,
        target_hidden: &states.target_hidden,
        target: &net.target,
        pack: &prompt,
        blocks: &blocks,
        total: 1.0,
        progress: 1.0,
    };
    let embedded = net.head.embed(&tokens_before(&out))?;
    let want = (&logits + net.head.bias(&embedded, &out)?)?;
    let want_drafts = net.head.drafts(&out)?;

    let source = |dir: &Path| models::Source::Dir(dir.to_owned());
    let facts = baselines::TargetFacts {
        id: "golden".to_owned(),
        hidden: 16,
        vocab: 40,
        n_layers: 6,
    };
    let load = baselines::Load {
        source: Some(&source(draft_dir)),
        target: &facts,
        slots: 1,
        capacity: 32,
        precision: models::Precision::F32,
        max_draft: None,
        options: &baselines::Options::default(),
    };
    let method = baselines::DSpark::load(&load).expect("the saved folder is complete");
    // Labels as drafts, so that both walk the same tokens.
    let (mut got, mut left) = (Vec::new(), blocks.labels.iter());
    let head = method.head();
    let forced = head.run(&states.hidden, &logits, &blocks.ids[..1], |slot| {
        got.push(slot.clone());
        Ok(left.next().copied().into_iter().collect())
    })?;
    // Two independent implementations, f32 sums in another order.
    let apart = relative_difference(&Tensor::cat(&got, 0)?, &want)?;
    assert!(apart < 1e-4, "{config:?}: {apart}");
    let greedy = head.run(&states.hidden, &logits, &blocks.ids[..1], |slot| {
        Ok(slot.argmax(1)?.to_vec1()?)
    })?;
    assert_eq!(greedy.tokens[0], want_drafts, "{config:?}");
    let Some((weight, bias)) = &net.head.confidence else {
        assert!(forced.confidence_logits.is_none());
        return Ok(());
    };
    let x = match config.confidence {
        ConfidenceInput::HiddenAndMarkov => Tensor::cat(&[&states.hidden, &embedded], 1)?,
        _ => states.hidden.clone(),
    };
    let want = affine(&x, weight, bias)?;
    let got = forced.confidence_logits.unwrap().concat();
    let apart = difference(&Tensor::new(got, &Device::Cpu)?, &want)?;
    assert!(apart < 1e-4, "{config:?}: {apart}");
    Ok(())
}

#[test]
fn a_recipe_of_blocks_in_place_is_refused() {
    let recipe = crate::testing::recipes().join("tiny-qwen3-dspark.toml");
    let refused = |from: &str, to: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("changed.toml");
        let text = std::fs::read_to_string(&recipe).unwrap();
        assert!(text.contains(from), "{from}");
        std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
        load_dspark_recipe(&file).unwrap_err().to_string()
    };
    for (from, to, key) in [
        ("\"shifted\"", "\"in_place\"", "drafter.alignment"),
        ("rank = 32", "rank = 0", "head.rank"),
        ("markov = \"vanilla\"", "markov = \"lstm\"", "lstm"),
        ("rank = 32", "rang = 32", "rang"),
        (
            "distance_weight = 0.9",
            "distance_weight = -1.0",
            "head.distance_weight",
        ),
    ] {
        let message = refused(from, to);
        assert!(
            message.contains("changed.toml") && message.contains(key),
            "{key}: {message}"
        );
    }
}
