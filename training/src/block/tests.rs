//! A drafter that knows a part of the target's ids.

use super::*;
use crate::anchors::Coverage;
use crate::dflash::NoHead;
use crate::ops::cross_entropy;
use crate::ops::testing::difference;
use crate::testing::golden::{self, ANCHORS, drafter, pack};
use baselines::Alignment;

const SHAPE: BlockShape = BlockShape {
    block_rows: 4,
    alignment: Alignment::Shifted,
    mask: 39,
    decay: Some(4.0),
    coverage: Coverage::EachLabel,
};

fn net(kept: Vec<u32>) -> Result<DraftNet<NoHead>> {
    let mut config = drafter(Alignment::Shifted);
    config.draft_vocab_size = Some(kept.len());
    let target = golden::target()?;
    let trunk = Trunk::new(&config, target.config(), 0)?;
    golden::fill(&trunk.params, 2000, &[])?;
    let vocab = DraftVocab::new(kept, target.config().vocab_size);
    DraftNet::new(target, States::Live, trunk, NoHead, vocab)
}

/// All ids but 0, 5 and the label of the first anchor's second slot.
fn kept() -> (Vec<u32>, u32) {
    let left_out = pack().ids[ANCHORS[0] + 2];
    let kept = (0..40).filter(|id| ![0, 5, left_out].contains(id));
    (kept.collect(), left_out)
}

#[test]
fn what_is_kept_is_scored_as_if_nothing_were_left_out() -> Result<()> {
    let (kept, _) = kept();
    let (whole, part) = (net((0..40).collect())?, net(kept.clone())?);
    let blocks = Blocks::new(&pack(), &ANCHORS, &SHAPE);
    let index = Tensor::new(kept.as_slice(), &Device::Cpu)?;
    let want = whole.logits(&pack(), &blocks)?.index_select(&index, 1)?;
    let got = part.logits(&pack(), &blocks)?;
    assert!(difference(&got, &want)? < 1e-6);
    let drafts = |logits: &Tensor| -> Result<Vec<u32>> {
        Ok(part.vocab.target_ids(logits.argmax(1)?.to_vec1()?))
    };
    let states = part.states(&pack(), &blocks)?;
    let seen = (&states.hidden, &states.target_hidden);
    let drafted = part.with_out(&pack(), &blocks, seen, Place::end(1.0), |out| {
        part.head.drafts(out)
    })?;
    assert_eq!(drafted, drafts(&want)?);
    Ok(())
}

#[test]
fn a_label_that_is_left_out_carries_no_loss_and_ends_its_chain() -> Result<()> {
    let (kept, left_out) = kept();
    let part = net(kept.clone())?;
    let mut blocks = Blocks::new(&pack(), &ANCHORS, &SHAPE);
    let before = blocks.clone();
    part.vocab.classify(&mut blocks);
    assert_eq!(blocks.labels, before.labels);
    assert_eq!(blocks.labels[1], left_out);
    for (slot, label) in blocks.labels.iter().enumerate() {
        match kept.iter().position(|id| id == label) {
            Some(class) => assert_eq!(blocks.classes[slot], class as u32),
            None => assert_eq!(blocks.weights[slot], 0.0),
        }
    }
    assert!(blocks.weight() < before.weight());
    assert_eq!(blocks.rated, before.weights, "confidences see it");
    let loss = part.loss(&pack(), &blocks, Place::end(blocks.weight()))?;
    let want = cross_entropy(
        &part.logits(&pack(), &blocks)?,
        &blocks.classes,
        &blocks
            .weights
            .iter()
            .map(|w| w / blocks.weight() as f32)
            .collect::<Vec<_>>(),
    )?;
    assert!(difference(&loss, &want)? < 1e-6);
    // One block: at most its first slot can be kept.
    let first = blocks.slice(0..1);
    let length = part.acceptance_length(&pack(), &first)?;
    assert!((1.0..=2.0).contains(&length), "{length}");
    Ok(())
}

#[test]
fn the_folder_of_such_a_drafter_tells_its_ids_and_has_its_own_head() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let (kept, _) = kept();
    let part = net(kept.clone())?;
    part.save(folder.path(), &SHAPE)?;
    let config = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["draft_vocab_size"], kept.len());
    let tensors = safetensors::load(folder.path().join("model.safetensors"), &Device::Cpu)?;
    let offsets = tensors["d2t"].to_vec1::<i64>()?;
    let ids = (0..).zip(offsets).map(|(j, d)| (j + d) as u32);
    assert_eq!(ids.collect::<Vec<_>>(), kept);
    assert_eq!(tensors["lm_head.weight"].dims(), [kept.len(), 16]);
    assert_eq!(tensors["t2d"].dims(), [40]);

    let whole = net((0..40).collect())?;
    whole.save(folder.path(), &SHAPE)?;
    let config = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    assert!(!config.contains("draft_vocab_size"), "{config}");
    let tensors = safetensors::load(folder.path().join("model.safetensors"), &Device::Cpu)?;
    assert!(!tensors.contains_key("d2t") && !tensors.contains_key("lm_head.weight"));
    Ok(())
}

#[test]
fn a_batch_teaches_the_same_in_one_part_and_in_many() -> Result<()> {
    let net = net(kept().0)?;
    let mut text = pack();
    let ids: Vec<u32> = text.ids.iter().rev().copied().collect();
    text.push(&ids[..3], &ids[3..]);
    let anchors = text.draw_anchors(8, &mut ChaCha8Rng::seed_from_u64(4));
    let learn = |n: usize| -> Result<(f64, Gradients)> {
        let parts: Vec<(DraftPack, Blocks)> = text
            .deal(&anchors, n)
            .into_iter()
            .map(|(part, at)| {
                let mut blocks = Blocks::new(&part, &at, &SHAPE);
                net.vocab.classify(&mut blocks);
                (part, blocks)
            })
            .collect();
        assert_eq!(parts.len(), n);
        let at = Place::end(parts.iter().map(|(_, b)| b.weight()).sum());
        let chunk = Chunk {
            blocks: 2,
            frozen_trunk: false,
        };
        let mut gradients = Gradients::default();
        let loss = net.learn(&parts, at, chunk, &Workers::of(2)?, &mut gradients)?;
        Ok((loss, gradients))
    };
    let (want_loss, want) = learn(1)?;
    for n in [2, 3] {
        let (loss, got) = learn(n)?;
        assert!((loss - want_loss).abs() < 1e-6, "{n}: {loss} {want_loss}");
        for (name, _) in net.trunk.params.iter() {
            let (got, want) = (got.of(name).unwrap(), want.of(name).unwrap());
            let largest = want.iter().fold(0f32, |top, w| top.max(w.abs()));
            let apart = got.iter().zip(want).map(|(g, w)| (g - w).abs());
            assert!(largest > 0.0, "{name} learns nothing");
            assert!(apart.fold(0.0, f32::max) < 1e-5 * largest, "{n}: {name}");
        }
    }
    Ok(())
}
