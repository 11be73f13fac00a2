//! Golden values of the DFlash loss, from a PyTorch reference with the same deterministic weights.

use super::*;
use crate::anchors::{BlockShape, Blocks, DraftPack};
use crate::answers::answers;
use crate::block::{Chunk, DraftNet, Place};
use crate::lm::CausalLm;
use crate::optim::Gradients;
use crate::tokenizer::TextCodec;
use crate::trunk::Trunk;
use baselines::Alignment;
use datasets::Domain;
use std::path::Path;

type Recipe = BlockRecipe<DflashHead>;
use crate::config::NetConfig;
use crate::ops::testing::{assert_is_alive, difference, relative_difference};
use crate::optim::{AdamW, OptimizerConfig};
use crate::progress::Silent;
use crate::sample::greedy;
use crate::testing::golden::{self, ANCHORS, SEQUENCE, drafter, pack};
use crate::testing::{CutAfter, assert_same_checkpoints};
use candle_core::Device;

fn net(alignment: Alignment) -> Result<DraftNet<NoHead>> {
    let config = drafter(alignment);
    let target = golden::target()?;
    let trunk = Trunk::new(&config, target.config(), 0)?;
    golden::fill(&trunk.params, 2000, &[])?;
    DraftNet::live(target, trunk, NoHead)
}

fn shape(alignment: Alignment, decay: Option<f64>) -> BlockShape {
    BlockShape {
        block_rows: 4,
        alignment,
        mask: 39,
        decay,
        coverage: Coverage::EachLabel,
    }
}

fn loss(net: &DraftNet<NoHead>, blocks: &Blocks) -> Result<f32> {
    Ok(net
        .loss(&pack(), blocks, Place::end(blocks.weight()))?
        .to_scalar::<f32>()?)
}

#[test]
fn gradients_are_the_same_whatever_part_of_the_logits_exists_at_once() -> Result<()> {
    let net = net(Alignment::Shifted)?;
    let blocks = Blocks::new(&pack(), &ANCHORS, &shape(Alignment::Shifted, None));
    let at = Place::end(blocks.weight());
    let mut whole = Gradients::default();
    whole.add(&net.trunk.params, &net.loss(&pack(), &blocks, at)?)?;
    for frozen_trunk in [false, true] {
        let mut parts = Gradients::default();
        let chunk = Chunk {
            blocks: 2,
            frozen_trunk,
        };
        let loss = net.accumulate(&pack(), &blocks, at, chunk, &mut parts)?;
        let want = f64::from(net.loss(&pack(), &blocks, at)?.to_scalar::<f32>()?);
        assert!((loss - want).abs() < 1e-5, "{loss} for {want}");
        for (name, _) in net.trunk.params.iter() {
            let (whole, parts) = (whole.of(name), parts.of(name));
            assert_eq!(parts.is_none(), frozen_trunk, "{name}");
            for (a, b) in whole.into_iter().flatten().zip(parts.into_iter().flatten()) {
                assert!((a - b).abs() < 1e-5, "{name}: {a} and {b}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_target_gives_the_reference_logits() -> Result<()> {
    let net = net(Alignment::InPlace)?;
    let prompt = 0..7;
    let texts = std::slice::from_ref(&prompt);
    let logits = net.target.forward(&SEQUENCE[..7], texts)?.logits;
    let last: Vec<f32> = logits.get(6)?.to_vec1()?;
    for (got, want) in last
        .iter()
        .zip([1.2215088, -0.0679234, -0.1245471, -0.5910679])
    {
        assert!((got - want).abs() < 1e-4, "{got} for {want}");
    }
    Ok(())
}

#[test]
fn a_block_gives_the_reference_states() -> Result<()> {
    let net = net(Alignment::InPlace)?;
    let mut prompt = DraftPack::default();
    prompt.push(&SEQUENCE[..7], &[0]);
    let blocks = Blocks::new(&prompt, &[7], &shape(Alignment::InPlace, None));
    let (_, taps) = net.target.states(&prompt.ids, &prompt.texts, &[1, 3])?;
    let slots = net.target.embed(&blocks.ids)?;
    let hidden = net
        .trunk
        .forward(&taps, &prompt.positions(), &slots, &blocks.at)?;
    let sum = hidden.sum_all()?.to_scalar::<f32>()?;
    assert!((sum + 11.740961).abs() < 1e-3, "{sum}");
    let first: Vec<f32> = hidden.get(0)?.to_vec1()?;
    for (got, want) in first
        .iter()
        .zip([-0.3277166, -0.0211071, -2.2050397, -0.0814595])
    {
        assert!((got - want).abs() < 1e-4, "{got} for {want}");
    }
    Ok(())
}

/// States of the block that follows the prompt and one committed 0, with context and block shifted and other taps.
fn second_block(shift: [i64; 2], tap_ids: [usize; 2]) -> Result<Tensor> {
    let net = net(Alignment::InPlace)?;
    let mut text = DraftPack::default();
    text.push(&SEQUENCE[..7], &[0, 0]);
    let mut blocks = Blocks::new(&text, &[8], &shape(Alignment::InPlace, None));
    let (_, taps) = net.target.states(&text.ids, &text.texts, &tap_ids)?;
    let slots = net.target.embed(&blocks.ids)?;
    let moved = |position: i64, by: i64| (position + by) as u32;
    let positions = text.positions();
    let positions: Vec<u32> = positions
        .iter()
        .map(|p| moved(i64::from(*p), shift[0]))
        .collect();
    blocks.at[0].position = moved(8, shift[1]) as usize;
    net.trunk.forward(&taps, &positions, &slots, &blocks.at)
}

#[test]
fn a_wrong_position_or_tap_changes_a_block_as_much_as_the_references() -> Result<()> {
    let right = second_block([0, 0], [1, 3])?;
    let sum = right.sum_all()?.to_scalar::<f32>()?;
    assert!((sum + 14.155338).abs() < 1e-3, "{sum}");
    let change = |shift, taps| -> Result<f32> {
        let off = (&right - second_block(shift, taps)?)?.abs()?.max_all()?;
        Ok(off.to_scalar::<f32>()?)
    };
    // Only distances matter: the reference moves by 6e-7, rounding alone.
    let together = change([1, 1], [1, 3])?;
    assert!(together < 1e-5, "{together}");
    // The reference's changes are known to three digits.
    for (what, got, want) in [
        ("block early", change([0, -1], [1, 3])?, 0.392),
        ("taps of the layer before", change([0, 0], [0, 2])?, 1.479),
    ] {
        assert!((got - want).abs() < 1e-3, "{what}: {got} for {want}");
    }
    Ok(())
}

#[test]
fn the_loss_is_the_references_with_and_without_decay() -> Result<()> {
    let net = net(Alignment::InPlace)?;
    for (decay, want) in [(Some(7.0), 3.830_349_2), (None, 3.831_065)] {
        let blocks = Blocks::new(&pack(), &ANCHORS, &shape(Alignment::InPlace, decay));
        let got = loss(&net, &blocks)?;
        assert!(
            (got - want).abs() < 1e-4,
            "decay {decay:?}: {got} for {want}"
        );
    }
    Ok(())
}

#[test]
fn one_pass_over_all_anchors_equals_a_pass_for_each() -> Result<()> {
    for alignment in [Alignment::InPlace, Alignment::Shifted] {
        let net = net(alignment)?;
        let shape = shape(alignment, None);
        let together = net.logits(&pack(), &Blocks::new(&pack(), &ANCHORS, &shape))?;
        for (i, anchor) in ANCHORS.iter().enumerate() {
            // The context ends before the anchor, so nothing behind it can be seen.
            let mut short = DraftPack::default();
            short.push(&SEQUENCE[..7], &SEQUENCE[7..=*anchor]);
            let alone = net.logits(&short, &Blocks::new(&short, &[*anchor], &shape))?;
            let apart = difference(&together.narrow(0, 4 * i, 4)?, &alone)?;
            assert!(apart < 1e-5, "{alignment:?}, anchor {anchor}: {apart}");
        }
    }
    Ok(())
}

#[test]
fn every_trained_tensor_receives_a_gradient_and_the_target_none() -> Result<()> {
    for alignment in [Alignment::InPlace, Alignment::Shifted] {
        let net = net(alignment)?;
        let blocks = Blocks::new(&pack(), &ANCHORS, &shape(alignment, Some(7.0)));
        let term = net.loss(&pack(), &blocks, Place::end(blocks.weight()))?;
        let mut gradients = Gradients::default();
        gradients.add(&net.trunk.params, &term)?;
        for (name, _) in net.trunk.params.iter() {
            assert_is_alive(gradients.of(name), &format!("{alignment:?}: {name}"));
        }
        let term = net.loss(&pack(), &blocks, Place::end(blocks.weight()))?;
        let mut frozen = Gradients::default();
        frozen.add(&net.target.params, &term)?;
        assert_eq!(frozen.norm(), 0.0);
    }
    Ok(())
}

#[test]
fn a_slope_agrees_with_the_loss_around_it() -> Result<()> {
    let net = net(Alignment::InPlace)?;
    let blocks = Blocks::new(&pack(), &ANCHORS, &shape(Alignment::InPlace, Some(7.0)));
    let mut gradients = Gradients::default();
    gradients.add(
        &net.trunk.params,
        &net.loss(&pack(), &blocks, Place::end(blocks.weight()))?,
    )?;
    for name in [
        "fc.weight",
        "layers.0.self_attn.k_proj.weight",
        "layers.1.mlp.up_proj.weight",
    ] {
        let var = net.trunk.params.get(name).expect("a trained tensor");
        let grad = gradients.of(name).expect("has a gradient");
        let start = var.as_tensor().copy()?;
        let direction = Tensor::from_vec(grad.to_vec(), var.dims(), &Device::Cpu)?;
        let slope = grad.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>();
        // A step that changes the loss by about 2e-3: far above f32 rounding, small against the curvature.
        let step = 1e-3 / slope;
        var.set(&(&start + (&direction * step)?)?)?;
        let above = loss(&net, &blocks)?;
        var.set(&(&start - (&direction * step)?)?)?;
        let below = loss(&net, &blocks)?;
        var.set(&start)?;
        let measured = f64::from(above - below) / (2.0 * step);
        assert!(
            (measured - slope).abs() < 0.02 * slope,
            "{name}: {measured} for {slope}"
        );
    }
    Ok(())
}

#[test]
fn training_on_one_sequence_learns_its_blocks() -> Result<()> {
    for alignment in [Alignment::InPlace, Alignment::Shifted] {
        let net = net(alignment)?;
        let blocks = Blocks::new(&pack(), &ANCHORS, &shape(alignment, Some(7.0)));
        let config = OptimizerConfig {
            lr: 0.02,
            final_fraction: 1.0,
            warmup_steps: 1,
            betas: [0.9, 0.95],
            eps: 1e-8,
            weight_decay: 0.0,
            clip: 1.0,
        };
        let mut optimizer = AdamW::default();
        for _ in 0..300 {
            let mut gradients = Gradients::default();
            gradients.add(
                &net.trunk.params,
                &net.loss(&pack(), &blocks, Place::end(blocks.weight()))?,
            )?;
            optimizer.update(&net.trunk.params, &gradients, &config, config.lr)?;
        }
        let left = loss(&net, &blocks)?;
        assert!(left < 0.05, "{alignment:?}: {left}");
        // Every draft is right: the mean block commits its anchor's slot and all labelled ones.
        let labelled = blocks.weights.iter().filter(|w| **w > 0.0).count();
        let want = 1.0 + labelled as f64 / ANCHORS.len() as f64;
        assert_eq!(net.acceptance_length(&pack(), &blocks)?, want);
    }
    Ok(())
}

#[test]
fn a_warm_start_takes_the_targets_last_layers_and_norm() -> Result<()> {
    let net = net(Alignment::InPlace)?;
    let copied = net.trunk.warm_start(&net.target)?;
    assert_eq!(copied.len(), 2 * 11 + 2);
    let pairs = [
        (
            "layers.0.mlp.up_proj.weight",
            "model.layers.4.mlp.up_proj.weight",
        ),
        (
            "layers.1.self_attn.q_norm.weight",
            "model.layers.5.self_attn.q_norm.weight",
        ),
        ("norm.weight", "model.norm.weight"),
    ];
    for (ours, theirs) in pairs {
        let values = |params: &Params, name: &str| -> Result<Vec<f32>> {
            Ok(params
                .get(name)
                .expect("a tensor")
                .flatten_all()?
                .to_vec1()?)
        };
        assert_eq!(
            values(&net.trunk.params, ours)?,
            values(&net.target.params, theirs)?,
            "{ours}"
        );
    }
    Ok(())
}

#[test]
fn a_saved_drafter_gives_its_logits_in_the_method_that_runs_it() -> Result<()> {
    for alignment in [Alignment::InPlace, Alignment::Shifted] {
        let folder = tempfile::tempdir().unwrap();
        let (target_dir, draft_dir) = (folder.path().join("t"), folder.path().join("d"));
        let shape = shape(alignment, None);
        let trained = net(alignment)?;
        trained.target.save(&target_dir, 1, 0)?;
        trained.save(&draft_dir, &shape)?;
        // Both sides read the bf16 files.
        let config = drafter(alignment);
        let target = CausalLm::load(&target_dir)?;
        let trunk = Trunk::new(&config, target.config(), 0)?;
        trunk.params.load(&draft_dir.join("model.safetensors"))?;
        let net = DraftNet::live(target, trunk, NoHead)?;
        let mut prompt = DraftPack::default();
        prompt.push(&SEQUENCE[..7], &SEQUENCE[7..8]);
        let blocks = Blocks::new(&prompt, &[7], &shape);
        let first = alignment.first_slot();
        let want = net.logits(&prompt, &blocks)?.narrow(0, first, 4 - first)?;

        let source = |dir: &Path| models::Source::Dir(dir.to_owned());
        let options = models::DecoderOptions {
            slots: 1,
            capacity: 32,
            precision: models::Precision::F32,
        };
        let mut decoder = models::Decoder::load(&source(&target_dir), options)?;
        let facts = baselines::TargetFacts {
            id: "golden".to_owned(),
            hidden: 16,
            vocab: 40,
            n_layers: 6,
        };
        let load = baselines::Load {
            source: Some(&source(&draft_dir)),
            target: &facts,
            slots: 1,
            capacity: 32,
            precision: models::Precision::F32,
            max_draft: None,
            options: &baselines::Options::default(),
        };
        let mut method = baselines::DFlash::load(&load).expect("the saved folder is complete");
        let got = drafted_logits(&mut decoder, &mut method)?;
        let apart = relative_difference(&got, &want)?;
        // Two independent implementations, f32 sums in another order.
        assert!(apart < 1e-4, "{alignment:?}: {apart}");
    }
    Ok(())
}

/// Feeds the prompt and drafts one block from the token after it.
fn drafted_logits(decoder: &mut models::Decoder, method: &mut baselines::DFlash) -> Result<Tensor> {
    let slot = decode::Slot(0);
    let feed = decode::Feed {
        slot,
        tokens: &SEQUENCE[..7],
        parents: None,
        logits: decode::Keep::Last,
    };
    let taps = decode::Drafter::taps(method).to_vec();
    let forward = decode::Target::forward(decoder, &[feed], &taps)?;
    let prompt = decode::Committed {
        slot,
        position: 0,
        fed: &SEQUENCE[..7],
        next_anchor: SEQUENCE[7],
        taps: forward.taps,
    };
    decode::Drafter::start(method, prompt)?;
    let mut draws = decode::Draws::new(0, 0);
    let anchor = decode::Anchor {
        slot,
        token: SEQUENCE[7],
        position: 7,
        draws: &mut draws,
    };
    Ok(method.draft(&[anchor], decoder)?.1)
}

/// A tokenizer and an untrained target beside it, and a recipe that drafts for it.
fn tiny_recipe(folder: &Path) -> Result<Recipe> {
    let words = (0..60).map(|i| format!("user\nwhat is {i} and {}\n", i * i));
    let codec = TextCodec::train(words, 270)?;
    let target = folder.join("target");
    codec.save(&target, "")?;
    let config = NetConfig {
        vocab_size: 270,
        max_position_embeddings: 1024,
        num_hidden_layers: 4,
        ..net(Alignment::InPlace)?.target.config().clone()
    };
    CausalLm::new(&config, 7)?.save(&target, codec.special("<|im_end|>")?, 0)?;
    let text = format!(
        "seed = 1\ntarget = {target:?}\nout = {:?}\nwork = {:?}\n{}",
        folder.join("out"),
        folder.join("work"),
        r#"
[drafter]
num_hidden_layers = 1
intermediate_size = 24
block_size = 4
alignment = "in_place"
target_layer_ids = [0, 2]
[answers]
max_new = 12
slots = 3
held_out = 1
[answers.corpus]
seed = 1
maths = 4
code = 3
chat = 4
[batch]
micro_tokens = 512
packs_per_step = 2
anchors_per_text = 3
decay = 4.0
[optimizer]
lr = 1e-2
final_fraction = 0.1
warmup_steps = 2
betas = [0.9, 0.95]
eps = 1e-8
weight_decay = 0.1
clip = 1.0
[stop]
max_steps = 4
[report]
checkpoint_minutes = 0.0
held_out_every_steps = 2
"#
    );
    let file = folder.join("recipe.toml");
    std::fs::write(&file, text).unwrap();
    load_dflash_recipe(&file)
}

#[test]
fn answers_are_the_targets_own_and_are_asked_for_once() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let recipe = tiny_recipe(folder.path())?;
    let ask = || answers(&recipe.target, &recipe.work, &recipe.answers, &mut Silent);
    let (first, file) = ask()?;
    let lm = CausalLm::load(&recipe.target)?;
    let stop = [TextCodec::load(&recipe.target.join("tokenizer.json"))?.special("<|im_end|>")?];
    for answer in first.iter().take(4) {
        let want = greedy(&lm, &answer.prompt_ids, &stop, recipe.answers.max_new)?;
        assert_eq!(answer.answer_ids, want);
    }
    // A kill in the middle of the last line costs that line only.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &text[..text.len() - 5]).unwrap();
    assert_eq!(ask()?.0, first);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn a_run_past_the_memory_its_recipe_states_ends_behind_a_checkpoint() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = tiny_recipe(folder.path())?;
    recipe.report.checkpoint_minutes = 1e9;
    recipe.report.peak_mib = Some(1);
    let error = train_dflash(&recipe, &mut Silent).unwrap_err();
    assert!(error.to_string().contains("report.peak_mib = 1"), "{error}");
    assert!(recipe.work.join("checkpoint.safetensors").is_file());
    recipe.report.peak_mib = Some(1 << 20);
    train_dflash(&recipe, &mut Silent)
}

#[test]
fn a_resumed_drafter_run_draws_the_same_anchors() -> Result<()> {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let uncut = tiny_recipe(whole.path())?;
    train_dflash(&uncut, &mut Silent)?;
    let first = tiny_recipe(parts.path())?;
    let mut cut = CutAfter {
        steps: 2,
        work: first.work.clone(),
    };
    train_dflash(&first, &mut cut)?;
    cut.restore();
    train_dflash(&first, &mut Silent)?;
    assert_same_checkpoints(&uncut.work, &first.work)
}

#[test]
fn a_held_out_answer_without_an_anchor_is_left_out_of_the_figures() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let recipe = tiny_recipe(folder.path())?;
    let (mut given, file) = answers(&recipe.target, &recipe.work, &recipe.answers, &mut Silent)?;
    // One held-out text of a lone token, and one with anchors in another domain.
    let lone = given[0].domain;
    given.iter_mut().for_each(|answer| answer.held_back = false);
    given[0].held_back = true;
    given[0].answer_ids.truncate(1);
    let other = given
        .iter_mut()
        .find(|a| a.domain != lone && a.answer_ids.len() > 1)
        .expect("the target answers at length");
    other.held_back = true;
    let other = other.domain;
    let lines = given
        .iter()
        .map(|a| serde_json::to_string(a).unwrap() + "\n");
    std::fs::write(&file, lines.collect::<String>()).unwrap();

    train_dflash(&recipe, &mut Silent)?;
    let log = std::fs::read_to_string(recipe.work.join("log.csv")).unwrap();
    let (names, last) = (log.lines().next().unwrap(), log.lines().last().unwrap());
    let of = |domain: Domain| {
        let name = format!("held_out_{domain}");
        let column = names.split(',').position(|n| n == name).unwrap();
        last.split(',').nth(column).unwrap().to_owned()
    };
    assert_eq!(of(lone), "");
    assert!(of(other).parse::<f64>().unwrap().is_finite(), "{log}");
    Ok(())
}

#[test]
fn a_tap_that_the_target_lacks_is_an_error_that_names_recipe_and_key() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = tiny_recipe(folder.path())?;
    recipe.drafter.target_layer_ids = vec![0, 4];
    let message = train_dflash(&recipe, &mut Silent).unwrap_err().to_string();
    for part in ["recipe.toml", "drafter.target_layer_ids", "layer 4"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    Ok(())
}
