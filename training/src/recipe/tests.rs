//! What a recipe refuses, and which of its keys tell one run from another.

use super::*;
use crate::{load_dflash_recipe, load_domino_recipe, load_dspark_recipe};

fn folder() -> PathBuf {
    crate::testing::recipes()
}

#[test]
fn every_recipe_that_ships_is_valid() {
    let mut found = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.contains("-dflash") {
            load_dflash_recipe(&path).unwrap();
            found += 1;
        } else if name.contains("-domino") {
            load_domino_recipe(&path).unwrap();
            found += 1;
        } else if name.contains("-dspark") {
            load_dspark_recipe(&path).unwrap();
            found += 1;
        } else if name.contains("-dcoco") {
            crate::load_dcoco_recipe(&path).unwrap();
            found += 1;
        } else if name.ends_with("-answers.toml") {
            AnswersRecipe::load(&path).unwrap();
            found += 1;
        } else if name.ends_with("-eagle3.toml") {
            Eagle3Recipe::load(&path).unwrap();
            found += 1;
        } else if name.ends_with(".toml") {
            TargetRecipe::load(&path).unwrap();
            found += 1;
        }
    }
    assert!(found >= 7, "{found}");
}

const TARGET: &str = "tiny-qwen3.toml";
const DFLASH: &str = "tiny-qwen3-dflash.toml";

/// Loads a recipe with one text replaced by another.
fn changed<T>(load: fn(&Path) -> Result<T>, name: &str, (from, to): (&str, &str)) -> Result<T> {
    let text = fs::read_to_string(folder().join(name)).unwrap();
    assert!(text.contains(from), "{from}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.toml");
    fs::write(&path, text.replacen(from, to, 1)).unwrap();
    load(&path)
}

fn assert_refused<T>(read: fn(&Path) -> Result<T>, name: &str, cases: &[[&str; 3]]) {
    for &[from, to, key] in cases {
        let message = match changed(read, name, (from, to)) {
            Ok(_) => panic!("{to:?} was accepted"),
            Err(error) => error.to_string(),
        };
        assert!(
            message.contains("changed.toml") && message.contains(key),
            "{key}: {message}"
        );
    }
}

/// What no recipe of a target may hold, unknown keys and the `[model]` table first: text, its replacement, and what the error names.
const MODEL: &[[&str; 3]] = &[
    ["clip = 1.0", "clip = 1.0\nmomentum = 0.9", "momentum"],
    ["hidden_size = 192\n", "", "hidden_size"],
    ["kind = \"gsm8k\"", "kind = \"gsm9k\"", "gsm9k"],
    [
        "seed = 1\n",
        "seed = 1\nbalance_weight = nan\n",
        "balance_weight",
    ],
    ["vocab_size = 2048", "vocab_size = 0", "model.vocab_size"],
    ["hidden_size = 192", "hidden_size = 0", "model.hidden_size"],
    [
        "intermediate_size = 640",
        "intermediate_size = 0",
        "model.intermediate_size",
    ],
    [
        "num_hidden_layers = 6",
        "num_hidden_layers = 0",
        "model.num_hidden_layers",
    ],
    [
        "num_attention_heads = 6",
        "num_attention_heads = 0",
        "model.num_attention_heads",
    ],
    [
        "num_key_value_heads = 2",
        "num_key_value_heads = 0",
        "model.num_key_value_heads",
    ],
    [
        "num_key_value_heads = 2",
        "num_key_value_heads = 4",
        "model.num_key_value_heads",
    ],
    ["head_dim = 32", "head_dim = 33", "model.head_dim"],
    ["head_dim = 32", "head_dim = 0", "model.head_dim"],
    [
        "rms_norm_eps = 1e-6",
        "rms_norm_eps = 0.0",
        "model.rms_norm_eps",
    ],
    [
        "rope_theta = 10000.0",
        "rope_theta = inf",
        "model.rope_theta",
    ],
    [
        "max_position_embeddings = 1024",
        "max_position_embeddings = 511",
        "model.max_position_embeddings",
    ],
    ["Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "model.experts"],
];

/// The same for its other tables.
const REST: &[[&str; 3]] = &[
    [
        "micro_tokens = 1024",
        "micro_tokens = 0",
        "batch.micro_tokens",
    ],
    [
        "packs_per_step = 4",
        "packs_per_step = 0",
        "batch.packs_per_step",
    ],
    [
        "max_text_tokens = 512",
        "max_text_tokens = 0",
        "batch.max_text_tokens",
    ],
    [
        "prompt_weight = 0.3",
        "prompt_weight = -0.3",
        "batch.prompt_weight",
    ],
    ["lr = 3e-3", "lr = 0.0", "optimizer.lr"],
    ["lr = 3e-3", "lr = nan", "optimizer.lr"],
    [
        "final_fraction = 0.1",
        "final_fraction = 1.1",
        "optimizer.final_fraction",
    ],
    [
        "betas = [0.9, 0.95]",
        "betas = [0.9, 1.0]",
        "optimizer.betas",
    ],
    [
        "betas = [0.9, 0.95]",
        "betas = [-0.1, 0.95]",
        "optimizer.betas",
    ],
    ["eps = 1e-8", "eps = 0.0", "optimizer.eps"],
    [
        "weight_decay = 0.1",
        "weight_decay = -0.1",
        "optimizer.weight_decay",
    ],
    ["clip = 1.0", "clip = inf", "optimizer.clip"],
    ["max_steps = 4000", "max_steps = 0", "stop.max_steps"],
    [
        "max_minutes = 45.0",
        "max_minutes = 0.0",
        "stop.max_minutes",
    ],
    [
        "checkpoint_minutes = 3.0",
        "checkpoint_minutes = nan",
        "report.checkpoint_minutes",
    ],
    [
        "held_out_every_steps = 50",
        "held_out_every_steps = 0",
        "report.held_out_every_steps",
    ],
    ["peak_mib = 768", "peak_mib = 0", "report.peak_mib"],
];

/// The same for a mixture.
const EXPERTS: &[[&str; 3]] = &[
    [
        "moe_intermediate_size = 128",
        "moe_intermediate_size = 0",
        "model.experts.moe_intermediate_size",
    ],
    [
        "num_experts_per_tok = 2",
        "num_experts_per_tok = 5",
        "model.experts.num_experts_per_tok",
    ],
    ["Qwen3MoeForCausalLM", "Qwen3ForCausalLM", "model.experts"],
];

/// The same for a drafter.
const DRAFTER: &[[&str; 3]] = &[
    [
        "num_hidden_layers = 2",
        "num_hidden_layers = 0",
        "drafter.num_hidden_layers",
    ],
    [
        "intermediate_size = 640",
        "intermediate_size = 0",
        "drafter.intermediate_size",
    ],
    ["block_size = 7", "block_size = 1", "drafter.block_size"],
    ["block_size = 7", "block_rows = 7", "block_rows"],
    ["[1, 3, 4]", "[]", "drafter.target_layer_ids"],
    ["[1, 3, 4]", "[1, 4, 3]", "drafter.target_layer_ids"],
    ["max_new = 200", "max_new = 0", "answers.max_new"],
    ["slots = 16", "slots = 0", "answers.slots"],
    [
        "slots = 16",
        "slots = 16\nsampled_temperature_milli = 0",
        "answers.sampled_temperature_milli",
    ],
    [
        "micro_tokens = 1024",
        "micro_tokens = 0",
        "batch.micro_tokens",
    ],
    [
        "packs_per_step = 2",
        "packs_per_step = 0",
        "batch.packs_per_step",
    ],
    [
        "anchors_per_text = 16",
        "anchors_per_text = 0",
        "batch.anchors_per_text",
    ],
    ["seed = 1", "seed = 1\nfrozen_trunk = true", "frozen_trunk"],
    [
        "decay = 4.0",
        "decay = 4.0\nblocks_per_chunk = 0",
        "blocks_per_chunk",
    ],
    ["seed = 1", "seed = 1\nhead = { rank = 3 }", "rank"],
    ["decay = 4.0", "decay = nan", "batch.decay"],
    ["decay = 4.0", "decay = 0.0", "batch.decay"],
    ["lr = 2e-3", "lr = -2e-3", "optimizer.lr"],
    ["max_steps = 1600", "max_steps = 0", "stop.max_steps"],
    [
        "held_out_every_steps = 50",
        "held_out_every_steps = 0",
        "report.held_out_every_steps",
    ],
];

/// The same for the head of a Domino drafter.
const DOMINO: &[[&str; 3]] = &[
    [
        "gru_hidden_dim = 96",
        "gru_hidden_dim = 0",
        "head.gru_hidden_dim",
    ],
    ["emb_dim = 64", "emb_dim = 0", "head.emb_dim"],
    ["emb_dim = 64\n", "", "emb_dim"],
    [
        "pure_draft_prefix_len = 1",
        "pure_draft_prefix_len = 7",
        "head.pure_draft_prefix_len",
    ],
    ["base_weight = 1.0", "base_weight = 1.5", "head.base_weight"],
    ["base_until = 1.0", "base_until = nan", "head.base_until"],
    [
        "base_until = 1.0",
        "base_until = 1.0\nlearn = \"some\"",
        "some",
    ],
    [
        "base_until = 1.0",
        "base_until = 1.0\nmarkov_rank = 3",
        "markov_rank",
    ],
];

#[test]
fn a_wrong_key_or_value_is_an_error_that_names_file_and_key() {
    assert_refused(TargetRecipe::load, TARGET, MODEL);
    assert_refused(TargetRecipe::load, TARGET, REST);
    assert_refused(TargetRecipe::load, "tiny-moe.toml", EXPERTS);
    assert_refused(load_dflash_recipe, DFLASH, DRAFTER);
    assert_refused(load_domino_recipe, "tiny-qwen3-domino.toml", DOMINO);
    assert_refused(Eagle3Recipe::load, EAGLE3, UNROLLED);
}

const EAGLE3: &str = "tiny-qwen3-eagle3.toml";

/// What no recipe of an EAGLE-3 drafter may hold.
const UNROLLED: &[[&str; 3]] = &[
    ["ttt_steps = 7", "ttt_steps = 0", "drafter.ttt_steps"],
    ["ttt_steps = 7", "", "ttt_steps"],
    [
        "step_decay = 0.8",
        "step_decay = -0.8",
        "drafter.step_decay",
    ],
    [
        "step_decay = 0.8",
        "step_decay = 0.8\nblock_size = 7",
        "block_size",
    ],
    [
        "draft_vocab_size = 1536",
        "draft_vocab_size = 0",
        "drafter.draft_vocab_size",
    ],
    ["[1, 3, 4]", "[3, 1]", "drafter.target_layer_ids"],
    [
        "intermediate_size = 640",
        "intermediate_size = 0",
        "drafter.intermediate_size",
    ],
    [
        "micro_tokens = 384",
        "micro_tokens = 0",
        "batch.micro_tokens",
    ],
    [
        "packs_per_step = 2",
        "packs_per_step = 0",
        "batch.packs_per_step",
    ],
    ["lr = 2e-3", "lr = -1.0", "optimizer.lr"],
];

#[test]
fn an_eagle3_fingerprint_follows_what_is_trained_and_not_when_it_ends() -> Result<()> {
    let of = |change| -> Result<String> {
        Ok(changed(Eagle3Recipe::load, EAGLE3, change)?.fingerprint("answers-1"))
    };
    let own = of(("seed = 1", "seed = 1"))?;
    for change in [
        ("seed = 1", "seed = 2"),
        ("ttt_steps = 7", "ttt_steps = 5"),
        (
            "step_decay = 0.8",
            "step_decay = 0.8\nfeedback = \"normed\"",
        ),
        ("micro_tokens = 384", "micro_tokens = 512"),
        ("lr = 2e-3", "lr = 1e-3"),
    ] {
        assert_ne!(of(change)?, own, "{change:?}");
    }
    assert_eq!(of(("max_steps = 1600", "max_steps = 900"))?, own);
    let recipe = Eagle3Recipe::load(&folder().join(EAGLE3))?;
    assert_ne!(recipe.fingerprint("answers-2"), own);
    Ok(())
}

#[test]
fn a_targets_fingerprint_follows_what_is_trained_and_not_when_it_ends() -> Result<()> {
    let of = |change| -> Result<String> {
        Ok(changed(TargetRecipe::load, TARGET, change)?.fingerprint())
    };
    let own = of(("seed = 1", "seed = 1"))?;
    for change in [
        ("seed = 1", "seed = 2"),
        ("seed = 1\n", "seed = 1\ntokenizer = \"tokenizer.json\"\n"),
        ("seed = 1\n", "seed = 1\nbalance_weight = 0.01\n"),
        ("chat_template.jinja", "other.jinja"),
        ("intermediate_size = 640", "intermediate_size = 320"),
        ("maths = 12000", "maths = 12001"),
        ("prompt_weight = 0.3", "prompt_weight = 0.4"),
        ("lr = 3e-3", "lr = 2e-3"),
    ] {
        assert_ne!(of(change)?, own, "{change:?}");
    }
    for change in [
        ("max_steps = 4000", "max_steps = 5000"),
        ("checkpoint_minutes = 3.0", "checkpoint_minutes = 4.0"),
        ("peak_mib = 768", "peak_mib = 9"),
        ("out = \"assets", "out = \"elsewhere"),
    ] {
        assert_eq!(of(change)?, own, "{change:?}");
    }
    Ok(())
}

#[test]
fn a_drafters_fingerprint_follows_what_is_trained_and_not_when_it_ends() -> Result<()> {
    let of = |change| -> Result<String> {
        Ok(changed(load_dflash_recipe, DFLASH, change)?.fingerprint("answers-1"))
    };
    let own = of(("seed = 1", "seed = 1"))?;
    for change in [
        ("seed = 1", "seed = 2"),
        ("block_size = 7", "block_size = 8"),
        ("\"shifted\"", "\"in_place\""),
        ("seed = 1", "seed = 1\ninit = \"other\""),
        ("decay = 4.0", "decay = 5.0"),
        ("lr = 2e-3", "lr = 1e-3"),
    ] {
        assert_ne!(of(change)?, own, "{change:?}");
    }
    assert_eq!(of(("max_steps = 1600", "max_steps = 900"))?, own);
    let recipe = load_dflash_recipe(&folder().join(DFLASH))?;
    assert_ne!(recipe.fingerprint("answers-2"), own);
    Ok(())
}

#[test]
fn progress_follows_whichever_limit_is_nearer() {
    let stop = StopConfig {
        max_steps: 100,
        max_minutes: Some(2.0),
    };
    assert_eq!(stop.progress(50, 30.0), 0.5);
    assert_eq!(stop.progress(50, 90.0), 0.75);
    assert_eq!(stop.progress(1, 500.0), 1.0);
}
