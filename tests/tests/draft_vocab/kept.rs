//! What is drafted where ids were left out, held against full drafters whose logits of those ids are masked.

use std::collections::BTreeSet;

use baselines::dcoco::{Channels, DcocoConfig, DcocoHead};
use baselines::{Arm, DFlash, DSpark, DominoHead, DominoShape, Load};
use candle_core::{Device, Tensor};
use decode::{DraftLaw, Draws, Proposal, Sampling, TokenId};
use models::{Precision, Weights};

use crate::golden::{self, H, V};
use crate::{
    ANCHOR, Files, KEPT, SAMPLED, anchor, drafted, facts, golden_head, golden_prompts, propose,
    recorded, started,
};

/// Hidden states and logits that the full trunk gives after P0, ids outside [`KEPT`] at minus infinity.
fn masked(mut trunk: DFlash) -> (Tensor, Tensor) {
    let target = started(&mut trunk);
    let draws = &mut Draws::new(0, 0);
    let (hidden, logits) = trunk.draft(&[anchor(draws)], &target).unwrap();
    let kept = |id: usize| KEPT.contains(&(id as u32));
    let mask = (0..V).map(|id| if kept(id) { 0.0 } else { f32::NEG_INFINITY });
    let mask = Tensor::from_iter(mask, &Device::Cpu).unwrap();
    (hidden, logits.broadcast_add(&mask).unwrap())
}

/// The trunk of a golden drafter as DFlash.
fn trunk(files: &Files) -> DFlash {
    let mut bare = files.clone();
    let is_head = |name: &str| {
        [
            "markov",
            "confidence",
            "prefix_gru",
            "embed_proj",
            "corrector",
        ]
        .iter()
        .any(|part| name.starts_with(part))
    };
    bare.weights.retain(|name, _| !is_head(name));
    match files.method {
        "dspark" => {
            bare.config["markov_rank"] = 0.into();
            bare.config["enable_confidence_head"] = false.into();
            let outer = bare.config.as_object_mut().unwrap();
            outer.remove("markov_head_type");
            outer.remove("confidence_head_with_markov");
        }
        _ => {
            let inner = bare.config["dflash_config"].as_object_mut().unwrap();
            inner.retain(|key, _| {
                ["mask_token_id", "target_layer_ids", "shift_label"].contains(&key.as_str())
            });
        }
    }
    let load = |_: &Arm, load: &Load<'_>| DFlash::load(load);
    let with = (&facts(), Precision::F32);
    bare.load("dflash", with, load).unwrap()
}

fn argmax(logits: &Tensor) -> decode::Result<Vec<TokenId>> {
    Ok(kernels::argmax_rows(logits)?.to_vec1::<u32>()?)
}

/// The golden DCOCO head with all of the vocabulary.
fn dcoco_head(files: &Files, arm: &str) -> DcocoHead {
    let config = DcocoConfig {
        file: "golden".into(),
        candidates: 6,
        candidate_width: 5,
        pair_width: 3,
        hidden_width: 6,
        channels: Channels::ALL,
        has_confidence: false,
    };
    let options = Arm::parse(arm).unwrap().options;
    let mut weights = Weights::from_tensors("golden", files.weights.clone());
    DcocoHead::new(&config, (H, V), &mut weights, &options).unwrap()
}

/// What the full head drafts where ids outside [`KEPT`] have no chance.
fn want(files: &Files, sampling: Sampling, seed: u64) -> Proposal {
    let (hidden, logits) = masked(trunk(files));
    let target = golden::target(1);
    let draws = &mut Draws::new(seed, 0);
    let gamma = logits.dim(0).unwrap();
    match files.method {
        "dflash" => Proposal::chain(argmax(&logits).unwrap()),
        "dspark" => {
            let load = |_: &Arm, load: &Load<'_>| DSpark::load(load);
            let with = (&facts(), Precision::F32);
            let full = files.load("dspark", with, load).unwrap();
            let run = full.head().run(&hidden, &logits, &[ANCHOR], argmax);
            Proposal::chain(run.unwrap().tokens.remove(0))
        }
        "domino" => {
            let shape = DominoShape {
                hidden: H,
                vocab: V,
                draft_vocab: V,
                gru: 5,
                rank: 6,
                prefix: 1,
            };
            let mut weights = Weights::from_tensors("golden", files.weights.clone());
            let mut head = DominoHead::new(shape, &mut weights).unwrap();
            let mut tokens = Vec::new();
            let roll = head.roll(&hidden, &logits, &[ANCHOR], &target, |step| {
                let best = argmax(step.logits)?;
                tokens.extend(&best);
                Ok(best)
            });
            roll.unwrap();
            Proposal::chain(tokens)
        }
        _ => {
            let rows = &mut [anchor(draws)];
            let states = (&hidden, &logits);
            let mut head = dcoco_head(files, files.method);
            let proposals = head.propose(states, gamma, rows, &target, sampling);
            proposals.unwrap().remove(0)
        }
    }
}

#[test]
fn drafts_are_the_best_of_the_ids_that_are_kept() {
    for files in Files::golden() {
        let mut few = files.keeping(&KEPT, &golden_head()).drafter(&facts());
        let got = propose(&mut *few, Sampling::Greedy, 0).tokens;
        assert_eq!(
            got,
            want(&files, Sampling::Greedy, 0).tokens,
            "{}",
            files.method
        );
        assert!(got.iter().all(|id| KEPT.contains(id)));
        // Else the mask above did nothing.
        let full = files.drafter(&facts());
        let (_, drafts) = recorded(&mut golden::target(1), full, &golden_prompts());
        assert!(drafted(&drafts).iter().any(|id| !KEPT.contains(id)));
    }
}

/// Ids and probabilities of a law that lists them, `[gamma, width]` each.
fn listed(law: &DraftLaw) -> (Vec<Vec<u32>>, Vec<Vec<f32>>) {
    let DraftLaw::TopK { ids, probs } = law else {
        panic!("a law of few ids lists them, {law:?} does not");
    };
    (ids.to_vec2().unwrap(), probs.to_vec2().unwrap())
}

#[test]
fn laws_of_drafts_have_their_mass_on_the_ids_that_are_kept() {
    for files in Files::golden() {
        let arms: &[&str] = match files.method {
            "dspark" => &["dspark"],
            "domino" => &["domino:draft=sampled"],
            "dcoco" => &["dcoco", "dcoco:proposal=lattice", "dcoco:pairs=visited"],
            _ => continue,
        };
        let files = files.keeping(&KEPT, &golden_head());
        for arm in arms {
            let mut drafter = files.arm(arm, &facts());
            let mut seen = BTreeSet::new();
            for seed in 0..20 {
                let proposal = propose(&mut *drafter, SAMPLED, seed);
                let (ids, probs) = listed(&proposal.law);
                assert_eq!(ids.len(), proposal.tokens.len());
                for ((token, ids), probs) in proposal.tokens.iter().zip(&ids).zip(&probs) {
                    match files.method {
                        "dcoco" => assert!(ids.iter().all(|id| KEPT.contains(id)), "{ids:?}"),
                        _ => assert_eq!(ids, &KEPT),
                    }
                    let sum: f32 = probs.iter().sum();
                    assert!((sum - 1.0).abs() < 1e-5, "{arm}: {sum}");
                    let at = ids.iter().position(|id| id == token).unwrap();
                    assert!(probs[at] > 0.0, "{arm}");
                    seen.insert(*token);
                }
            }
            assert!(seen.len() > 3, "{arm} always drew {seen:?}");
        }
    }
}

#[test]
fn dcocos_scores_are_log_probabilities_among_the_ids_that_are_kept() {
    let files = Files::golden().remove(3);
    let got = propose(
        &mut *files.keeping(&KEPT, &golden_head()).drafter(&facts()),
        SAMPLED,
        7,
    );
    let want = want(&files, SAMPLED, 7);
    assert_eq!(got.tokens, want.tokens);
    let ((ids, probs), (want_ids, want_probs)) = (listed(&got.law), listed(&want.law));
    assert_eq!(ids, want_ids);
    for (p, want) in probs.iter().flatten().zip(want_probs.iter().flatten()) {
        assert!((p - want).abs() < 1e-6, "got {p}, want {want}");
    }
}
