//! Plans of the slot cache: what is written where and who sees what.

#![allow(
    clippy::unwrap_used,
    reason = "a panic in a helper fails the test that called it"
)]

mod common;

use candle_core::{Device, Tensor};
use common::{configs, parse, tensors};
use decode::Slot;
use kernels::Visible;
use models::{CacheAt, CacheDims, Layer, Level, Rope, Rows, SlotCache, Weights};

fn cache(n_layers: usize, width: usize) -> SlotCache {
    let dims = CacheDims {
        n_layers,
        slots: 3,
        capacity: 10,
        width,
    };
    SlotCache::new(dims).unwrap()
}

fn rows(slot: usize, n_rows: usize, parents: Option<&[u32]>) -> Rows<'_> {
    Rows {
        slot: Slot(slot),
        n_rows,
        parents,
    }
}

fn sees(start: u32, prefix: u32, extra: &[u32]) -> Visible {
    Visible {
        start,
        prefix,
        extra: extra.to_vec(),
    }
}

#[test]
fn chain_rows_see_up_to_themselves_and_tree_rows_their_ancestors() {
    let mut cache = cache(1, 2);
    let plan = cache.plan(&[rows(1, 2, None), rows(0, 1, None)]).unwrap();
    assert_eq!(plan.dst, [10, 11, 0]);
    assert_eq!(plan.positions, [0, 1, 0]);
    assert_eq!(
        plan.visible,
        [sees(10, 1, &[]), sees(10, 2, &[]), sees(0, 1, &[])]
    );
    cache.advance(&plan);
    assert_eq!(
        [0, 1, 2].map(|slot| cache.len(Slot(slot)).unwrap()),
        [1, 2, 0]
    );
    let tree = cache
        .plan(&[rows(1, 4, Some(&[0, 0, 0, 2])), rows(0, 1, None)])
        .unwrap();
    assert_eq!(tree.dst, [12, 13, 14, 15, 1]);
    assert_eq!(tree.positions, [2, 3, 3, 4, 1]);
    let extras = [&[12][..], &[12, 13], &[12, 14], &[12, 14, 15]];
    for (row, extra) in extras.into_iter().enumerate() {
        assert_eq!(tree.visible[row], sees(10, 2, extra));
    }
    assert_eq!(tree.visible[4], sees(0, 2, &[]));
}

#[test]
fn block_rows_see_the_slot_and_the_whole_block_and_are_not_counted() {
    let mut cache = cache(1, 2);
    let held = cache.plan(&[rows(2, 3, None)]).unwrap();
    cache.advance(&held);
    let block = cache.plan_block(&[Slot(2), Slot(0)], 2).unwrap();
    assert_eq!(block.dst, [23, 24, 0, 1]);
    assert_eq!(block.positions, [3, 4, 0, 1]);
    let seen = [
        sees(20, 5, &[]),
        sees(20, 5, &[]),
        sees(0, 2, &[]),
        sees(0, 2, &[]),
    ];
    assert_eq!(block.visible, seen);
    cache.advance(&block);
    assert_eq!(
        [0, 1, 2].map(|slot| cache.len(Slot(slot)).unwrap()),
        [0, 0, 3]
    );
    assert!(cache.plan_block(&[Slot(2)], 7).is_ok());
    let full = cache.plan_block(&[Slot(2)], 8).unwrap_err().to_string();
    assert!(full.contains("holds 3 of 10 positions, 8 more"), "{full}");
    assert!(cache.plan_block(&[Slot(0), Slot(0)], 1).is_err());
}

#[test]
fn appended_rows_come_back_as_copies() {
    let mut cache = cache(2, 2);
    let plan = cache.plan(&[rows(1, 2, None)]).unwrap();
    let k = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu).unwrap();
    let v = Tensor::new(&[[5f32, 6.], [7., 8.]], &Device::Cpu).unwrap();
    cache.append(1, &k, &v, &plan.dst).unwrap();
    cache.advance(&plan);
    let (got_k, got_v) = cache.rows(1, Slot(1)).unwrap();
    cache.append(1, &v, &k, &plan.dst).unwrap();
    assert_eq!(got_k.to_vec2::<f32>().unwrap(), [[1., 2.], [3., 4.]]);
    assert_eq!(got_v.to_vec2::<f32>().unwrap(), [[5., 6.], [7., 8.]]);
    let (untouched, _) = cache.rows(0, Slot(1)).unwrap();
    assert_eq!(untouched.to_vec2::<f32>().unwrap(), [[0.; 2]; 2]);
    assert!(cache.rows(2, Slot(1)).is_err() && cache.rows(0, Slot(3)).is_err());
}

#[test]
fn a_level_sees_the_slot_and_the_scratch_rows_it_lists() {
    let mut cache = cache(1, 2);
    let held = cache.plan(&[rows(1, 4, None), rows(2, 2, None)]).unwrap();
    cache.advance(&held);
    let level = |slot, first, seen| Level {
        slot: Slot(slot),
        depth: 1,
        first,
        seen,
    };
    let seen = [vec![1, 2], vec![0, 3]];
    let plan = cache
        .plan_levels(&[level(1, 2, &seen), level(2, 2, &seen[..1])])
        .unwrap();
    assert_eq!(plan.dst, [16, 17, 24]);
    assert_eq!(plan.positions, [5, 5, 3]);
    let want = [
        sees(10, 4, &[15, 16]),
        sees(10, 4, &[14, 17]),
        sees(20, 2, &[23, 24]),
    ];
    assert_eq!(plan.visible, want);
    cache.advance(&plan);
    assert_eq!(cache.len(Slot(1)).unwrap(), 4);
    let refused = |levels: &[Level<'_>]| cache.plan_levels(levels).unwrap_err().to_string();
    assert!(refused(&[level(1, 5, &seen)]).contains("7 more do not fit"));
    assert!(refused(&[level(1, 0, &seen), level(1, 2, &seen)]).contains("twice"));
}

#[test]
fn a_block_row_is_changed_by_a_later_row_and_a_chain_row_is_not() {
    let config = parse(&configs()[0].1);
    let mut weights = Weights::from_tensors("seeded", tensors(&config));
    let layer = Layer::load(&mut weights, "layers.0.", config.layer_dims()).unwrap();
    let rope = Rope::new(&config.rope, config.head_dim, 10).unwrap();
    let input = |last: f32| {
        let rows = (0..48).map(|i| {
            if i < 24 {
                0.1 * i as f32
            } else {
                last * i as f32
            }
        });
        Tensor::from_vec(rows.collect::<Vec<f32>>(), (2, 24), &Device::Cpu).unwrap()
    };
    let mut cache = cache(1, config.n_kv_heads * config.head_dim);
    let block = cache.plan_block(&[Slot(1)], 2).unwrap();
    let chain = cache.plan(&[rows(1, 2, None)]).unwrap();
    let mut first_row = |plan, last| {
        let mut at = CacheAt {
            cache: &mut cache,
            layer: 0,
            plan,
            rope: &rope,
        };
        let out = layer.forward(&input(last), &mut at).unwrap();
        out.to_vec2::<f32>().unwrap().swap_remove(0)
    };
    assert_ne!(first_row(&block, 0.1), first_row(&block, -0.2));
    assert_eq!(first_row(&chain, 0.1), first_row(&chain, -0.2));
}
