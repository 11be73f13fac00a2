//! The decoder against itself, fed differently. The kernels promise equal bits, so nothing is tolerated.

#![allow(
    clippy::unwrap_used,
    reason = "a panic in a helper fails the test that called it"
)]

mod common;

use candle_core::{Device, Tensor};
use common::{all_taps, build, chain, configs, logits, prompt};
use decode::{Feed, Forward, Keep, LayerId, Slot, Target, TokenId};
use models::Decoder;

#[test]
fn feeding_a_prompt_in_pieces_gives_the_bits_of_feeding_it_whole() {
    for (name, config) in configs() {
        let ids = &prompt(40);
        let whole = logits(&mut build(&config, 1), ids);
        let mut decoder = build(&config, 1);
        let mut pieces = Vec::new();
        for piece in [&ids[..1], &ids[1..4], &ids[4..20], &ids[20..]] {
            pieces.extend(logits(&mut decoder, piece));
        }
        assert_eq!(pieces, whole, "{}", name);
    }
}

#[test]
fn a_ragged_batch_gives_the_bits_of_single_feeds() {
    for (name, config) in configs() {
        let mut batched = build(&config, 4);
        let taps = all_taps(&batched);
        let prompts = [1, 5, 17, 40].map(prompt);
        let mut feeds: Vec<Feed<'_>> = prompts
            .iter()
            .enumerate()
            .map(|(slot, ids)| chain(slot, ids))
            .collect();
        feeds[2].logits = Keep::Last;
        feeds.swap(0, 3);
        let together = batched.forward(&feeds, &taps).unwrap();
        let (mut row, mut logits_row) = (0, 0);
        for feed in &feeds {
            let alone = Feed {
                slot: Slot(0),
                ..*feed
            };
            let alone = build(&config, 1).forward(&[alone], &taps).unwrap();
            let n_logits = alone.logits.dims()[0];
            assert_eq!(
                together
                    .logits
                    .narrow(0, logits_row, n_logits)
                    .unwrap()
                    .to_vec2::<f32>()
                    .unwrap(),
                alone.logits.to_vec2::<f32>().unwrap(),
                "{}",
                name
            );
            for (together, alone) in together.taps.iter().zip(&alone.taps) {
                assert_eq!(
                    together
                        .narrow(0, row, feed.tokens.len())
                        .unwrap()
                        .to_vec2::<f32>()
                        .unwrap(),
                    alone.to_vec2::<f32>().unwrap(),
                    "{}",
                    name
                );
            }
            row += feed.tokens.len();
            logits_row += n_logits;
        }
        assert_eq!(together.logits.dims()[0], logits_row);
    }
}

/// Anchor, two children, three grandchildren of which two are siblings, and a leaf.
const TREE: [TokenId; 7] = [9, 4, 30, 12, 13, 4, 60];
const PARENTS: [u32; 7] = [0, 0, 0, 1, 1, 2, 5];
const PATHS: [&[u32]; 4] = [&[0, 1, 3], &[0, 1, 4], &[0, 2, 5, 6], &[0, 2]];

fn tree_forward(decoder: &mut Decoder, taps: &[LayerId]) -> Forward {
    let feed = Feed {
        slot: Slot(0),
        tokens: &TREE,
        parents: Some(&PARENTS),
        logits: Keep::All,
    };
    decoder.forward(&[feed], taps).unwrap()
}

fn tokens_of(path: &[u32]) -> Vec<TokenId> {
    path.iter().map(|row| TREE[*row as usize]).collect()
}

#[test]
fn a_tree_gives_each_path_the_bits_of_a_chain() {
    for (name, config) in configs() {
        let prompt = &prompt(17);
        let mut decoder = build(&config, 1);
        let taps = all_taps(&decoder);
        logits(&mut decoder, prompt);
        let tree = tree_forward(&mut decoder, &taps);
        for path in PATHS {
            let mut decoder = build(&config, 1);
            logits(&mut decoder, prompt);
            let path_tokens = tokens_of(path);
            let alone = decoder.forward(&[chain(0, &path_tokens)], &taps).unwrap();
            let rows = Tensor::new(path, &Device::Cpu).unwrap();
            let pick = |t: &Tensor| t.index_select(&rows, 0).unwrap().to_vec2::<f32>().unwrap();
            assert_eq!(
                pick(&tree.logits),
                alone.logits.to_vec2::<f32>().unwrap(),
                "{name} {path:?}"
            );
            for (tree, alone) in tree.taps.iter().zip(&alone.taps) {
                assert_eq!(
                    pick(tree),
                    alone.to_vec2::<f32>().unwrap(),
                    "{name} {path:?}"
                );
            }
        }
    }
}

/// Keys and values of every layer of slot 0.
fn dump(decoder: &Decoder) -> Vec<Vec<Vec<f32>>> {
    let layers = 0..decoder.config().n_layers;
    layers
        .flat_map(|layer| {
            let (k, v) = decoder.cache().rows(layer, Slot(0)).unwrap();
            [k.to_vec2().unwrap(), v.to_vec2().unwrap()]
        })
        .collect()
}

#[test]
fn a_pruned_tree_leaves_the_cache_of_a_chain() {
    for (name, config) in configs() {
        let prompt = &prompt(5);
        for path in PATHS {
            let mut pruned = build(&config, 1);
            logits(&mut pruned, prompt);
            tree_forward(&mut pruned, &[]);
            pruned.keep(Slot(0), prompt.len(), path).unwrap();
            let mut fresh = build(&config, 1);
            logits(&mut fresh, &[prompt.as_slice(), &tokens_of(path)].concat());
            assert_eq!(dump(&pruned), dump(&fresh), "{} {path:?}", name);
            assert_eq!(logits(&mut pruned, &[1, 2]), logits(&mut fresh, &[1, 2]));
        }
    }
}

#[test]
fn a_cut_chain_leaves_the_cache_of_a_shorter_chain() {
    let (_, config) = &configs()[2];
    let ids = &prompt(17);
    for kept in [0, 1, 9, 10, 12, 17] {
        let mut cut = build(config, 1);
        logits(&mut cut, &ids[..9]);
        logits(&mut cut, &ids[9..]);
        cut.keep(Slot(0), kept, &[]).unwrap();
        let mut fresh = build(config, 1);
        if kept > 0 {
            logits(&mut fresh, &ids[..kept]);
        }
        assert_eq!(dump(&cut), dump(&fresh), "{kept}");
        assert_eq!(
            logits(&mut cut, &[7, 8]),
            logits(&mut fresh, &[7, 8]),
            "{kept}"
        );
    }
}

#[test]
fn a_freed_slot_remembers_nothing_and_its_neighbour_everything() {
    let (_, config) = &configs()[0];
    let (old, new) = (&prompt(40), &prompt(17));
    let mut used = build(config, 2);
    used.forward(&[chain(0, old), chain(1, old)], &[]).unwrap();
    used.keep(Slot(0), 0, &[]).unwrap();
    assert_eq!(logits(&mut used, new), logits(&mut build(config, 1), new));
    let neighbour = used.forward(&[chain(1, &[5])], &[]).unwrap();
    let mut alone = build(config, 1);
    logits(&mut alone, old);
    assert_eq!(
        neighbour.logits.to_vec2::<f32>().unwrap(),
        logits(&mut alone, &[5])
    );
}

#[test]
fn wrong_feeds_are_refused_with_a_reason_and_change_nothing() {
    let (_, config) = &configs()[0];
    let mut decoder = build(config, 2);
    logits(&mut decoder, &[1, 2, 3]);
    let before = dump(&decoder);
    let long = [0; 78];
    let tree = |parents| Feed {
        parents: Some(parents),
        ..chain(0, &[1, 2, 3])
    };
    let refused: [(&[Feed<'_>], &[LayerId], &str); 8] = [
        (
            &[chain(2, &[1])],
            &[],
            "slot 2 is unknown, the slots are 0..2",
        ),
        (
            &[chain(0, &long)],
            &[],
            "holds 3 of 80 positions, 78 more do not fit",
        ),
        (
            &[chain(0, &[1])],
            &[LayerId(3)],
            "tap 3 is unknown, the target's layers are 0..3",
        ),
        (&[chain(1, &[1]), chain(1, &[2])], &[], "is fed twice"),
        (&[chain(0, &[])], &[], "at least one row"),
        (
            &[chain(0, &[61])],
            &[],
            "token 61 is unknown, the vocabulary is 0..61",
        ),
        (&[tree(&[0, 0])], &[], "needs as many parents, got 2"),
        (&[tree(&[0, 2, 1])], &[], "tree row 1 hangs from row 2"),
    ];
    for (feeds, taps, why) in refused {
        let message = decoder.forward(feeds, taps).unwrap_err().to_string();
        assert!(message.contains(why), "{message}");
    }
    assert_eq!(dump(&decoder), before);
    assert!(decoder.cache().is_empty(Slot(1)).unwrap());
}

#[test]
fn keeping_what_is_not_one_path_is_refused() {
    let (_, config) = &configs()[0];
    let mut decoder = build(config, 1);
    logits(&mut decoder, &[1, 2, 3]);
    tree_forward(&mut decoder, &[]);
    // Too long; a child without its parent; siblings in a row; a path after rows that were cut; a row that is not there.
    let refused: [(usize, &[u32]); 5] =
        [(11, &[]), (3, &[1, 3]), (5, &[5]), (2, &[0]), (3, &[0, 7])];
    for (len, path) in refused {
        assert!(decoder.keep(Slot(0), len, path).is_err(), "{len} {path:?}");
    }
    let unpruned = decoder.forward(&[chain(0, &[1])], &[]).unwrap_err();
    assert!(
        unpruned.to_string().contains("keep one of its paths"),
        "{unpruned}"
    );
    decoder.keep(Slot(0), 4, &[2, 5]).unwrap();
    assert_eq!(decoder.cache().len(Slot(0)).unwrap(), 6);
}
