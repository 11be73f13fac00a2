//! Golden values of the loss (f64, plain loops over the formulas), and the trained corrector against the method that
//! runs it.

mod short;

use super::*;
use crate::anchors::{BlockAt, BlockShape, Blocks, DraftPack};
use crate::block::{DraftNet, Place};
use crate::config::{Family, NetConfig};
use crate::ops::testing::{assert_is_alive, difference};
use crate::optim::{AdamW, Gradients, OptimizerConfig};
use crate::trunk::{Trunk, TrunkConfig};
use baselines::Alignment;

mod golden;

/// Prompt of 7, answer on rows 7..=13.
const SEQUENCE: [u32; 14] = [3, 17, 5, 9, 22, 11, 7, 0, 28, 13, 30, 2, 19, 6];
const ANCHORS: [usize; 3] = [7, 8, 10];
const VOCAB: usize = 40;
const WIDTH: usize = 16;

/// The fixtures' integer hash: the same values in any language.
fn hashed(dims: &[usize], seed: u64, scale: f64) -> Result<Tensor> {
    const MASK32: u64 = 0xffff_ffff;
    let value = |i: u64| {
        let mut x = (i * 2_654_435_761 + seed * 40_503 + 12_345) & MASK32;
        x ^= x >> 16;
        x = (x * 2_246_822_519) & MASK32;
        x ^= x >> 13;
        x = (x * 3_266_489_917) & MASK32;
        x ^= x >> 16;
        (scale * (x as f64 / 4_294_967_296.0 - 0.5)) as f32
    };
    let values: Vec<f32> = (0..dims.iter().product::<usize>() as u64)
        .map(value)
        .collect();
    Ok(Tensor::from_vec(values, dims, &Device::Cpu)?)
}

fn target(vocab: usize, hidden: usize) -> Result<CausalLm> {
    let config = NetConfig {
        architecture: Family::Qwen3ForCausalLM,
        vocab_size: vocab,
        hidden_size: hidden,
        intermediate_size: 24,
        num_hidden_layers: 6,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 8,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        max_position_embeddings: 64,
        tie_word_embeddings: false,
        experts: None,
    };
    CausalLm::new(&config, 3)
}

fn config(layout: Layout) -> DcocoRecipeHead {
    DcocoRecipeHead {
        layout,
        candidates: 8,
        candidate_width: 5,
        pair_width: 4,
        hidden_width: 7,
        ..DcocoRecipeHead::default()
    }
}

fn trunk_config(alignment: Alignment) -> TrunkConfig {
    TrunkConfig {
        num_hidden_layers: 2,
        intermediate_size: 24,
        block_rows: 4,
        alignment,
        target_layer_ids: vec![1, 3],
        draft_vocab_size: None,
    }
}

/// An untrained trunk with a corrector; `out` scales the second layer, which is 0 in a new one.
fn net(config: &DcocoRecipeHead, alignment: Alignment, out: f64) -> Result<DraftNet<DcocoHead>> {
    let trunk_config = trunk_config(alignment);
    let target = target(VOCAB, WIDTH)?;
    // Larger than a new target's, so that tokens differ.
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        let var = target.params.get(name).expect("a target has it");
        var.set(&hashed(&[VOCAB, WIDTH], 5, 2.0)?)?;
    }
    let mut trunk = Trunk::new(&trunk_config, target.config(), 4)?;
    let dims = HeadDims {
        hidden: WIDTH,
        vocab: VOCAB,
        draft_vocab: VOCAB,
        block_rows: 4,
        alignment,
    };
    let head = DcocoHead::new(config, dims, &mut trunk.params, 4)?;
    for (i, name) in ["corrector.mlp.2.weight", "corrector.mlp.2.bias"]
        .iter()
        .enumerate()
    {
        let var = trunk.params.get(name).expect("every layout has it");
        assert_eq!(
            var.abs()?.sum_all()?.to_scalar::<f32>()?,
            0.0,
            "{name} starts at 0"
        );
        var.set(&hashed(var.dims(), 6 + i as u64, out)?)?;
    }
    DraftNet::live(target, trunk, head)
}

fn pack() -> DraftPack {
    let mut pack = DraftPack::default();
    pack.push(&SEQUENCE[..7], &SEQUENCE[7..]);
    pack
}

fn blocks(alignment: Alignment) -> Blocks {
    let shape = BlockShape {
        block_rows: 4,
        alignment,
        mask: 39,
        decay: Some(4.0),
        coverage: Coverage::EachLabel,
    };
    Blocks::new(&pack(), &ANCHORS, &shape)
}

/// What the head sees of all blocks.
fn see<T>(
    net: &DraftNet<DcocoHead>,
    blocks: &Blocks,
    look: impl FnOnce(&BlockOut<'_>) -> Result<T>,
) -> Result<T> {
    let pack = pack();
    let states = net.states(&pack, blocks)?;
    let logits = linear(&states.hidden, &net.target.head_weight())?;
    look(&BlockOut {
        hidden: &states.hidden,
        logits: &logits,
        lm_head: &net.lm_head,
        vocab: &net.vocab,
        target_hidden: &states.target_hidden,
        target: &net.target,
        pack: &pack,
        blocks,
        total: blocks.weight(),
        progress: 0.0,
    })
}

fn scalar(t: &Tensor) -> Result<f64> {
    Ok(f64::from(t.to_scalar::<f32>()?))
}

#[test]
fn scores_in_training_are_those_of_the_method() -> Result<()> {
    let both = [
        ChannelNames::All,
        ChannelNames::NoPairState,
        ChannelNames::NoCandidate,
    ];
    for (layout, channels) in Layout::ALL.iter().flat_map(|l| both.map(|c| (*l, c))) {
        for alignment in [Alignment::InPlace, Alignment::Shifted] {
            let config = DcocoRecipeHead {
                channels,
                ..config(layout)
            };
            let (net, blocks) = (net(&config, alignment, 2.0)?, blocks(alignment));
            let head = &net.head;
            let (first, k) = (alignment.first_slot(), config.candidates);
            let gamma = 4 - first;
            let slots: Vec<u32> = (0..12).filter(|s| *s as usize % 4 >= first).collect();
            let slots = Tensor::new(slots.as_slice(), &Device::Cpu)?;
            see(&net, &blocks, |out| {
                let hidden = out.hidden.index_select(&slots, 0)?.detach();
                let logits = out.logits.index_select(&slots, 0)?.detach();
                let candidates = Candidates::of(&logits, k)?;
                let mut weights = Weights::from_tensors("trained", head.net.snapshot());
                let sizes = *head.net.sizes();
                let mut method =
                    Corrector::new(sizes, channels.channels(), &mut weights, "trained")
                        .expect("fits");
                assert_eq!(method.layout(), layout);
                let io = FrozenEnds(out.target);
                let all = method.scores(&hidden, &candidates, gamma, &io)?;
                // The same pairs one predecessor at a time: the third candidate of every earlier slot.
                let later = head.later_slots(12);
                let drafted = |slot: u32| (slot as usize / 4) * gamma + slot as usize % 4 - first;
                let ids_of = |slot: u32| &candidates.ids[drafted(slot) * k..][..k];
                let every: Vec<u32> = (0..12)
                    .flat_map(|slot| match slot as usize % 4 < first {
                        true => vec![0; k + 1],
                        false => [ids_of(slot), &[ids_of(slot)[2]]].concat(),
                    })
                    .collect();
                let got = head.net.scores(&Sides {
                    hidden: out.hidden,
                    embedding: &out.target.embedding(),
                    earlier: &later.iter().map(|s| s - 1).collect::<Vec<_>>(),
                    later: &later,
                    predecessors: &later.iter().map(|s| ids_of(s - 1)[2]).collect::<Vec<_>>(),
                    candidates: &later
                        .iter()
                        .flat_map(|s| ids_of(*s))
                        .copied()
                        .collect::<Vec<_>>(),
                    log_probs: &log_probs_at(out.logits, &every)?,
                })?;
                let want: Vec<f32> = all
                    .chunks_exact(k * k)
                    .flat_map(|square| square[2 * k..3 * k].to_vec())
                    .collect();
                let want = Tensor::from_vec(want, got.dims(), &Device::Cpu)?;
                // Two implementations in f32; scores are of order 10.
                let apart = difference(&got, &want)?;
                assert!(
                    apart < 2e-5,
                    "{layout:?}, {channels:?}, {alignment:?}: {apart}"
                );
                Ok(())
            })?;
        }
    }
    Ok(())
}

#[test]
fn a_new_corrector_drafts_the_trunks_first_choices() -> Result<()> {
    for alignment in [Alignment::InPlace, Alignment::Shifted] {
        let (net, blocks) = (net(&config(Layout::L1), alignment, 0.0)?, blocks(alignment));
        see(&net, &blocks, |out| {
            let best = out.logits.argmax(1)?.to_vec1::<u32>()?;
            let drafts = net.head.drafts(out)?;
            assert_eq!(drafts.len(), best.len());
            for slot in (0..12).filter(|slot| slot % 4 >= alignment.first_slot()) {
                assert_eq!(drafts[slot], best[slot], "{alignment:?}, {slot}");
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn every_tensor_learns_and_a_confidence_disturbs_none() -> Result<()> {
    let gradients = |config: &DcocoRecipeHead| -> Result<(Gradients, Vec<String>)> {
        let (net, blocks) = (
            net(config, Alignment::Shifted, 2.0)?,
            blocks(Alignment::Shifted),
        );
        let mut gradients = Gradients::default();
        let loss = net.loss(&pack(), &blocks, Place::end(blocks.weight()))?;
        gradients.add(&net.trunk.params, &loss)?;
        let names = net.trunk.params.iter().map(|(name, _)| name.to_owned());
        Ok((gradients, names.collect()))
    };
    for layout in Layout::ALL {
        let plain = DcocoRecipeHead {
            kl: 0.3,
            tv: 0.2,
            ..config(layout)
        };
        let (without, _) = gradients(&plain)?;
        let (with, names) = gradients(&DcocoRecipeHead {
            confidence: 0.5,
            ..plain
        })?;
        for name in names {
            if name == "corrector.mlp.2.bias" {
                // It moves all candidates of a slot alike, so that no loss depends on it.
                let left = with.of(&name).map_or(0.0, |g| g[0].abs());
                assert!(left < 1e-6, "{layout:?}: {left}");
            } else if name.starts_with("confidence_head.") {
                assert_is_alive(with.of(&name), &name);
            } else {
                assert_is_alive(with.of(&name), &format!("{layout:?}: {name}"));
                assert_eq!(with.of(&name), without.of(&name), "{layout:?}: {name}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_slope_agrees_with_the_loss_around_it() -> Result<()> {
    let config = DcocoRecipeHead {
        kl: 0.3,
        tv: 0.2,
        force_label: true,
        ..config(Layout::L1)
    };
    let (net, blocks) = (
        net(&config, Alignment::Shifted, 2.0)?,
        blocks(Alignment::Shifted),
    );
    let loss = || net.loss(&pack(), &blocks, Place::end(blocks.weight()));
    let mut gradients = Gradients::default();
    gradients.add(&net.trunk.params, &loss()?)?;
    for name in [
        "corrector.candidate.weight",
        "corrector.pair.weight",
        "corrector.mlp.0.weight",
        "corrector.mlp.2.weight",
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
        let above = scalar(&loss()?)?;
        var.set(&(&start - (&direction * step)?)?)?;
        let below = scalar(&loss()?)?;
        var.set(&start)?;
        let measured = (above - below) / (2.0 * step);
        assert!(
            (measured - slope).abs() < 0.02 * slope,
            "{name}: {measured} for {slope}"
        );
    }
    Ok(())
}

#[test]
fn losses_against_the_targets_law_are_their_formulas() -> Result<()> {
    let alignment = Alignment::Shifted;
    let loss = |kl: f64, tv: f64, ce: f64| -> Result<f64> {
        let config = DcocoRecipeHead {
            kl,
            tv,
            ce,
            ..config(Layout::L1)
        };
        let (net, blocks) = (net(&config, alignment, 2.0)?, blocks(alignment));
        see(&net, &blocks, |out| scalar(&net.head.parts(out)?.pair))
    };
    let (net, blocks) = (net(&config(Layout::L1), alignment, 2.0)?, blocks(alignment));
    let (mut kl, mut tv) = (0.0, 0.0);
    see(&net, &blocks, |out| {
        let softmax = |t: &Tensor| -> Result<Vec<Vec<f64>>> {
            let rows = t.detach().to_vec2::<f32>()?;
            Ok(rows
                .into_iter()
                .map(|row| {
                    let powers: Vec<f64> = row.iter().map(|x| f64::from(*x).exp()).collect();
                    let total: f64 = powers.iter().sum();
                    powers.into_iter().map(|p| p / total).collect()
                })
                .collect())
        };
        let head = &net.head;
        let (labels, k) = (&out.blocks.labels, head.config.candidates);
        let candidates = head.candidates(out)?;
        let later = head.later_slots(12);
        let ids: Vec<u32> = (0..12)
            .flat_map(|s| [&candidates[s * k..][..k], &[labels[s]]].concat())
            .collect();
        let q = softmax(
            &head.net.scores(&Sides {
                hidden: out.hidden,
                embedding: &out.target.embedding(),
                earlier: &later.iter().map(|s| s - 1).collect::<Vec<_>>(),
                later: &later,
                predecessors: &later
                    .iter()
                    .map(|s| labels[*s as usize - 1])
                    .collect::<Vec<_>>(),
                candidates: &later
                    .iter()
                    .flat_map(|s| &candidates[*s as usize * k..][..k])
                    .copied()
                    .collect::<Vec<_>>(),
                log_probs: &log_probs_at(out.logits, &ids)?,
            })?,
        )?;
        let p = softmax(&out.target.logits(out.target_hidden)?)?;
        for (slot, q) in later.iter().zip(q) {
            let slot = *slot as usize;
            let share = f64::from(blocks.weights[slot]) / blocks.weight();
            if share == 0.0 {
                continue;
            }
            // Shifted slots: slot i of an anchor on row a is labelled with row a + i + 1, which row a + i predicts.
            let p = &p[ANCHORS[slot / 4] + slot % 4];
            let mut missed = 1.0;
            for (id, q) in candidates[slot * k..][..k].iter().zip(q) {
                let p = p[*id as usize];
                kl += share * p * (p / q).ln();
                missed += (p - q).abs() - p;
            }
            tv += share * 0.5 * missed;
        }
        Ok(())
    })?;
    for (got, want) in [(loss(1.0, 0.0, 0.0)?, kl), (loss(0.0, 1.0, 0.0)?, tv)] {
        assert!((got - want).abs() < 2e-5, "{got} for {want}");
    }
    Ok(())
}

#[test]
fn the_corrector_alone_learns_what_a_frozen_trunk_cannot_say() -> Result<()> {
    let config = DcocoRecipeHead {
        force_label: true,
        ..config(Layout::L1)
    };
    let (net, blocks) = (
        net(&config, Alignment::Shifted, 0.0)?,
        blocks(Alignment::Shifted),
    );
    let pair = || see(&net, &blocks, |out| scalar(&net.head.parts(out)?.pair));
    let before = pair()?;
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
    let chunk = crate::block::Chunk {
        blocks: 2,
        frozen_trunk: true,
    };
    let fc = |net: &DraftNet<DcocoHead>| -> Result<Tensor> {
        Ok(net.trunk.params.get("fc.weight").expect("has one").copy()?)
    };
    let trunk = fc(&net)?;
    for _ in 0..200 {
        let mut gradients = Gradients::default();
        let at = Place::end(blocks.weight());
        net.accumulate(&pack(), &blocks, at, chunk, &mut gradients)?;
        optimizer.update(&net.trunk.params, &gradients, &optimizer_config, 0.02)?;
    }
    let after = pair()?;
    assert!(after < 0.05 && before > 1.0, "{before} to {after}");
    assert_eq!(difference(&trunk, &fc(&net)?)?, 0.0);
    Ok(())
}

#[test]
fn a_saved_drafter_drafts_the_same_in_the_method_that_runs_it() -> Result<()> {
    for alignment in [Alignment::InPlace, Alignment::Shifted] {
        let config = DcocoRecipeHead {
            confidence: 0.01,
            ..config(Layout::L1)
        };
        let trained = net(&config, alignment, 8.0)?;
        let folder = tempfile::tempdir().unwrap();
        let shape = BlockShape {
            block_rows: 4,
            alignment,
            mask: 39,
            decay: None,
            coverage: Coverage::EachLabel,
        };
        trained.save(folder.path(), &shape)?;
        // Both sides read the bf16 file.
        let path = folder.path().join("model.safetensors");
        trained.trunk.params.load(&path)?;
        let mut short = DraftPack::default();
        short.push(&SEQUENCE[..7], &SEQUENCE[7..9]);
        let blocks = Blocks::new(&short, &[7], &shape);
        let states = trained.states(&short, &blocks)?;
        let logits = linear(&states.hidden, &trained.target.head_weight())?;
        let drafts = trained.head.drafts(&BlockOut {
            hidden: &states.hidden,
            logits: &logits,
            lm_head: &trained.lm_head,
            vocab: &trained.vocab,
            target_hidden: &states.target_hidden,
            target: &trained.target,
            pack: &short,
            blocks: &blocks,
            total: 1.0,
            progress: 1.0,
        })?;
        let source = models::Source::Dir(folder.path().to_owned());
        let facts = baselines::TargetFacts {
            id: "golden".to_owned(),
            hidden: WIDTH,
            vocab: VOCAB,
            n_layers: 6,
        };
        let mut method = baselines::Dcoco::load(&baselines::Load {
            source: Some(&source),
            target: &facts,
            slots: 1,
            capacity: 32,
            precision: models::Precision::F32,
            max_draft: None,
            options: &baselines::Options::default(),
        })
        .expect("the saved folder is complete");
        let prompt = 0..7;
        let texts = std::slice::from_ref(&prompt);
        let (_, taps) = trained.target.states(&SEQUENCE[..7], texts, &[1, 3])?;
        let prompt = decode::Committed {
            slot: decode::Slot(0),
            position: 0,
            fed: &SEQUENCE[..7],
            next_anchor: SEQUENCE[7],
            taps,
        };
        decode::Drafter::start(&mut method, prompt)?;
        let mut anchors = [decode::Anchor {
            slot: decode::Slot(0),
            token: SEQUENCE[7],
            position: 7,
            draws: &mut decode::Draws::new(0, 0),
        }];
        let (io, greedy) = (FrozenEnds(&trained.target), decode::Sampling::Greedy);
        let silent = &mut decode::Silent;
        let got = decode::Drafter::propose(&mut method, &mut anchors, &io, greedy, silent)?;
        assert_eq!(got[0].tokens, drafts[alignment.first_slot()..]);
        let confidence = got[0].confidence.as_ref().map(Vec::len);
        assert_eq!(confidence, Some(got[0].tokens.len()));
    }
    Ok(())
}

#[test]
fn recipes_differ_from_dflash_in_their_head_alone() {
    let folder = crate::testing::recipes();
    let path = |name: &str| folder.join(format!("tiny-qwen3-{name}.toml"));
    let theirs = crate::load_dflash_recipe(&path("dflash")).unwrap();
    for name in [
        "dcoco",
        "dcoco-light",
        "dcoco-wide",
        "dcoco-frozen",
        "dcoco-no-pair",
        "dcoco-no-candidate",
    ] {
        let ours = load_dcoco_recipe(&path(name)).unwrap();
        let shared = |r: &dyn std::fmt::Debug| format!("{r:?}");
        assert_eq!(ours.seed, theirs.seed, "{name}");
        assert_eq!(shared(&ours.drafter), shared(&theirs.drafter), "{name}");
        assert_eq!(shared(&ours.answers), shared(&theirs.answers), "{name}");
        // How much is in memory at once changes no gradient.
        let batch = crate::recipe::DraftBatchConfig {
            blocks_per_chunk: theirs.batch.blocks_per_chunk,
            ..ours.batch.clone()
        };
        assert_eq!(batch, theirs.batch, "{name}");
        assert_eq!(shared(&ours.optimizer), shared(&theirs.optimizer), "{name}");
        assert_eq!(shared(&ours.stop), shared(&theirs.stop), "{name}");
        let init = (name == "dcoco-frozen").then_some(&theirs.out);
        assert_eq!(ours.init.as_ref(), init, "{name}");
        assert_eq!(ours.frozen_trunk, name == "dcoco-frozen");
        assert!(ours.out.ends_with(format!("tiny-qwen3-{name}")));
        assert!(ours.work.ends_with(format!("tiny-qwen3-{name}")));
    }
    let text = std::fs::read_to_string(folder.join("tiny-qwen3-dcoco.toml")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (to, says) in [
        ("candidates = 33", "head.candidates"),
        ("candidates = 16\nlambda = -1.0", "head.lambda"),
        ("candidates = 16\nmomentum = 1.0", "momentum"),
        ("candidates = 16\nlayout = \"L4\"", "L4"),
    ] {
        let path = dir.path().join("changed.toml");
        std::fs::write(&path, text.replacen("candidates = 16", to, 1)).unwrap();
        let error = load_dcoco_recipe(&path).unwrap_err().to_string();
        assert!(
            error.contains(says) && error.contains("changed.toml"),
            "{error}"
        );
    }
}

#[test]
fn nothing_is_learnt_from_a_predecessor_that_cannot_be_drafted() -> Result<()> {
    let net = net(&DcocoRecipeHead::default(), Alignment::Shifted, 1.0)?;
    let pair = |left_out: &[usize]| -> Result<f64> {
        let mut blocks = blocks(Alignment::Shifted);
        left_out.iter().for_each(|slot| blocks.weights[*slot] = 0.0);
        let term = see(&net, &blocks, |out| Ok(net.head.parts(out)?.pair))?;
        Ok(f64::from(term.to_scalar::<f32>()?) * blocks.weight())
    };
    assert!((pair(&[1])? - pair(&[1, 2])?).abs() < 1e-5);
    assert!(pair(&[2])? - pair(&[1, 2])? > 1e-3);
    Ok(())
}
