//! Whole runs from a recipe on a target made for it.

use super::*;
use crate::progress::Silent;
use crate::testing::{CutAfter, assert_same_checkpoints};
use crate::tokenizer::TextCodec;

/// A tokenizer and an untrained target beside it, and a recipe that drafts for it.
fn tiny_recipe(folder: &Path) -> Result<Eagle3Recipe> {
    let words = (0..60).map(|i| format!("user\nwhat is {i} and {}\n", i * i));
    let codec = TextCodec::train(words, 270)?;
    let at = folder.join("target");
    codec.save(&at, "")?;
    let config = NetConfig {
        architecture: Family::Qwen3ForCausalLM,
        vocab_size: 270,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 4,
        head_dim: 8,
        max_position_embeddings: 1024,
        ..target()
    };
    CausalLm::new(&config, 7)?.save(&at, codec.special("<|im_end|>")?, 0)?;
    let text = format!(
        "seed = 1\ntarget = {at:?}\nout = {:?}\nwork = {:?}\n{}",
        folder.join("out"),
        folder.join("work"),
        r#"
[drafter]
intermediate_size = 24
target_layer_ids = [0, 1, 2]
draft_vocab_size = 200
ttt_steps = 3
step_decay = 0.8
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
    Eagle3Recipe::load(&file)
}

#[test]
fn a_resumed_run_ends_where_an_uncut_one_does() -> Result<()> {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let uncut = tiny_recipe(whole.path())?;
    train_eagle3(&uncut, &mut Silent)?;
    let first = tiny_recipe(parts.path())?;
    let mut cut = CutAfter {
        steps: 2,
        work: first.work.clone(),
    };
    train_eagle3(&first, &mut cut)?;
    cut.restore();
    train_eagle3(&first, &mut Silent)?;
    assert_same_checkpoints(&uncut.work, &first.work)
}

#[test]
fn training_lowers_the_loss_and_leaves_a_drafter_of_its_target() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = tiny_recipe(folder.path())?;
    recipe.stop.max_steps = 25;
    train_eagle3(&recipe, &mut Silent)?;
    let log = std::fs::read_to_string(recipe.work.join("log.csv")).unwrap();
    let mut rows = log.lines().map(|row| row.split(','));
    let column = rows
        .next()
        .and_then(|mut names| names.position(|n| n == "loss"));
    let column = column.expect("the log names its columns");
    let losses: Vec<f64> = rows
        .filter_map(|mut row| row.nth(column)?.parse().ok())
        .collect();
    assert_eq!(losses.len(), 25);
    assert!(losses[24] < 0.9 * losses[0], "{losses:?}");

    let facts = baselines::TargetFacts {
        id: "tiny".to_owned(),
        hidden: 16,
        vocab: 270,
        n_layers: 4,
    };
    let source = models::Source::Dir(recipe.out.clone());
    let load = baselines::Load {
        source: Some(&source),
        target: &facts,
        slots: 1,
        capacity: 64,
        precision: models::Precision::F32,
        max_draft: None,
        options: &baselines::Options::default(),
    };
    let drafter = baselines::Eagle3::load(&load).expect("the exported folder is complete");
    let taps = decode::Drafter::taps(&drafter).iter().map(|tap| tap.0);
    assert_eq!(taps.collect::<Vec<_>>(), [0, 1, 2]);
    Ok(())
}

#[test]
fn what_the_target_cannot_serve_is_an_error_that_names_recipe_and_key() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let recipe = tiny_recipe(folder.path())?;
    let refused = |recipe: &Eagle3Recipe, key: &str| {
        let error = train_eagle3(recipe, &mut Silent).unwrap_err().to_string();
        assert!(
            error.contains("recipe.toml") && error.contains(key),
            "{error}"
        );
    };
    let mut deep = recipe.clone();
    deep.drafter.target_layer_ids = vec![0, 4];
    refused(&deep, "drafter.target_layer_ids");
    let mut wide = recipe;
    wide.drafter.draft_vocab_size = 271;
    refused(&wide, "drafter.draft_vocab_size");
    Ok(())
}

#[test]
fn a_warm_start_takes_what_the_target_has() -> Result<()> {
    let lm = CausalLm::new(&target(), 3)?;
    let shape = shape();
    let vocab = DraftVocab::new(vec![0, 2, 3, 5, 7, 9], 10);
    let net = Eagle3Net::new(&shape, &target(), vocab, 4)?;
    let values = |params: &Params, name: &str| -> Result<Vec<Vec<f32>>> {
        Ok(params.get(name).unwrap().to_vec2()?)
    };
    let before = values(&net.params, "midlayer.self_attn.q_proj.weight")?;
    let copied = net.warm_start(&lm)?;
    assert!(
        !copied
            .iter()
            .any(|name| name.ends_with("input_layernorm.weight"))
    );
    assert_eq!(copied.len(), net.params.iter().count() - 2);
    let after = values(&net.params, "midlayer.self_attn.q_proj.weight")?;
    let theirs = values(&lm.params, "model.layers.5.self_attn.q_proj.weight")?;
    for ((after, before), theirs) in after.iter().zip(&before).zip(&theirs) {
        assert_eq!(after[..8], before[..8]);
        assert_eq!(after[8..], theirs[..]);
    }
    let head = values(&net.params, "lm_head.weight")?;
    assert_eq!(head[3], values(&lm.params, "lm_head.weight")?[5]);
    Ok(())
}
