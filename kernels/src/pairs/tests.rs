use candle_core::{Device, Result, Tensor};

use super::{Inputs, PairNet, PairShape, PairWeights, pair_scores, scores};
use crate::reference;
use crate::testing::{
    assert_refused, assert_within, bits, on_every_device, on_every_path, random, values,
};

/// Sizes of one case.
#[derive(Clone, Copy)]
struct Case {
    rows: usize,
    gamma: usize,
    k: usize,
    a: usize,
    b: usize,
    p: usize,
    units: usize,
}

const fn case(rows: usize, gamma: usize, k: usize, abp: [usize; 3], units: usize) -> Case {
    let [a, b, p] = abp;
    Case {
        rows,
        gamma,
        k,
        a,
        b,
        p,
        units,
    }
}

const CASES: [Case; 6] = [
    case(1, 2, 1, [1, 1, 0], 1),
    case(2, 5, 4, [4, 4, 3], 5),
    case(3, 3, 7, [5, 6, 2], 9),
    case(1, 15, 16, [129, 129, 128], 256),
    case(2, 4, 17, [8, 9, 0], 24),
    case(2, 3, 32, [9, 9, 8], 16),
];

fn net(case: Case, dev: &Device) -> Result<PairNet> {
    let Case { a, b, p, units, .. } = case;
    let product = random(&[units, p], 3, dev)?;
    PairNet::new(&PairWeights {
        left: &random(&[units, a], 1, dev)?,
        right: &random(&[units, b], 2, dev)?,
        product: (p > 0).then_some(&product),
        out: &random(&[units], 4, dev)?,
        out_bias: 0.25,
    })
}

fn inputs(case: Case, dev: &Device) -> Result<[Tensor; 3]> {
    let slots = case.rows * case.gamma;
    let pairs = case.rows * (case.gamma - 1);
    Ok([
        random(&[slots, case.k, case.a], 5, dev)?,
        random(&[slots, case.k, case.b], 6, dev)?,
        random(&[pairs, case.units], 7, dev)?,
    ])
}

#[test]
fn the_op_agrees_with_the_reference() {
    on_every_device(|dev| {
        for case in CASES {
            let (net, [left, right, states]) = (net(case, dev)?, inputs(case, dev)?);
            let got = pair_scores(&net, &left, &right, &states, case.gamma)?;
            let want = reference::pair_scores(&net, &left, &right, &states, case.gamma)?;
            // Values below 1 and weights below 1: f32 sums of n terms are off by at most n of their roundings, and
            // the activation hands them on at most 1.1-fold, once for each hidden unit.
            let terms = (case.a + case.b + case.p + 8) as f64;
            let bound = case.units as f64 * 1.1 * terms * terms.sqrt() * 6e-8;
            assert_within(&got, &want, |_| bound)?;
        }
        Ok(())
    });
}

#[test]
fn neither_batch_nor_candidates_nor_threads_change_a_bit() {
    let dev = &Device::Cpu;
    for case in CASES {
        let net = net(case, dev).unwrap();
        let [left, right, states] = inputs(case, dev).unwrap();
        on_every_path(|isa| {
            let run = |rows: std::ops::Range<usize>, k: usize| -> Result<Vec<u32>> {
                let (gamma, n) = (case.gamma, rows.len());
                let cut = |t: &Tensor| {
                    let t = t.narrow(0, rows.start * gamma, n * gamma)?;
                    values(&t.narrow(1, 0, k)?.contiguous()?)
                };
                let states = states.narrow(0, rows.start * (gamma - 1), n * (gamma - 1))?;
                let shape = PairShape {
                    n_pairs: n * (gamma - 1),
                    gamma,
                    k,
                };
                let (left, right, states) = (cut(&left)?, cut(&right)?, values(&states)?);
                let inputs = Inputs {
                    left: &left,
                    right: &right,
                    states: &states,
                };
                let out = scores(isa, &net.0, shape, inputs);
                Ok(out.into_iter().map(f32::to_bits).collect())
            };
            let together = run(0..case.rows, case.k)?;
            let mut alone = Vec::new();
            for row in 0..case.rows {
                alone.extend(run(row..row + 1, case.k)?);
            }
            assert!(together == alone);
            // The pair of two first candidates does not know how many others there are.
            let k2 = case.k * case.k;
            let first: Vec<u32> = together.iter().step_by(k2).copied().collect();
            assert!(run(0..case.rows, 1)? == first);
            Ok(())
        });
    }
}

#[test]
fn a_row_alone_is_the_row_of_all_bit_for_bit() {
    let dev = &Device::Cpu;
    for case in CASES {
        let net = net(case, dev).unwrap();
        let [left, right, states] = inputs(case, dev).unwrap();
        let all = pair_scores(&net, &left, &right, &states, case.gamma).unwrap();
        let all = values(&all).unwrap();
        let [left, right, states] = [left, right, states].map(|t| values(&t).unwrap());
        let (k, a, b) = (case.k, case.a, case.b);
        let mut row = vec![0.0; k];
        for pair in 0..case.rows * (case.gamma - 1) {
            let slot = pair / (case.gamma - 1) * case.gamma + pair % (case.gamma - 1);
            let after = &right[(slot + 1) * k * b..][..k * b];
            let state = &states[pair * case.units..][..case.units];
            for earlier in 0..k {
                let before = &left[(slot * k + earlier) * a..][..a];
                net.row(before, after, state, &mut row).unwrap();
                let want = &all[(pair * k + earlier) * k..][..k];
                assert!(
                    row.iter()
                        .zip(want)
                        .all(|(x, y)| x.to_bits() == y.to_bits())
                );
            }
        }
        assert_refused(
            net.row(&left[..a], &right, &states, &mut row[..0]),
            "do not give 0 scores",
        );
    }
}

#[test]
fn an_output_layer_of_zeros_leaves_the_bias_alone() {
    on_every_device(|dev| {
        let case = CASES[1];
        let net = PairNet::new(&PairWeights {
            left: &random(&[5, 4], 1, dev)?,
            right: &random(&[5, 4], 2, dev)?,
            product: None,
            out: &Tensor::zeros(5, candle_core::DType::F32, dev)?,
            out_bias: 0.0,
        })?;
        let [left, right, states] = inputs(case, dev)?;
        let got = pair_scores(&net, &left, &right, &states, 5)?;
        assert_eq!(got.dims(), [8, 4, 4]);
        assert!(bits(&got)?.iter().all(|b| *b == 0));
        Ok(())
    });
}

#[test]
fn inputs_that_do_not_fit_are_refused_by_name() {
    on_every_device(|dev| {
        let case = CASES[1];
        let (net, [left, right, states]) = (net(case, dev)?, inputs(case, dev)?);
        assert_refused(
            pair_scores(&net, &left, &right, &states, 4),
            "10 slots in blocks of 4 do not make 8 pairs",
        );
        assert_refused(
            pair_scores(&net, &left.narrow(2, 0, 3)?, &right, &states, 5),
            "do not fit a network of 5 units",
        );
        let wide = random(&[5, 9], 1, dev)?;
        let made = PairNet::new(&PairWeights {
            left: &random(&[5, 4], 1, dev)?,
            right: &random(&[5, 4], 2, dev)?,
            product: Some(&wide),
            out: &random(&[5], 4, dev)?,
            out_bias: 0.0,
        });
        assert_refused(made, "products of 9 values");
        Ok(())
    });
}
