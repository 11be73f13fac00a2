//! Each op in plain loops, to read and to check the fast paths against.
//!
//! Same arguments, results and errors as the ops of the same name at the crate root, but sums are taken in f64 and
//! rounded to f32 once, so that what a fast path differs by is the fast path's own rounding.

use candle_core::{Result, Tensor};

use crate::input::dense_f32;
use crate::{PairNet, Visible, select};

/// See [`crate::linear()`].
///
/// # Errors
/// As the fast op.
pub fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let size = crate::linear::shape(x, w)?;
    let (xs, ws) = (values("linear", x)?, values("linear", w)?);
    let mut out = Vec::with_capacity(size.n * size.o);
    for n in 0..size.n {
        for o in 0..size.o {
            let sum: f64 = (0..size.k)
                .map(|k| f64::from(xs[n * size.k + k]) * f64::from(ws[o * size.k + k]))
                .sum();
            out.push(sum as f32);
        }
    }
    Tensor::from_vec(out, (size.n, size.o), x.device())
}

/// See [`crate::rms_norm()`].
///
/// # Errors
/// As the fast op.
pub fn rms_norm(x: &Tensor, w: &Tensor, eps: f32) -> Result<Tensor> {
    let hidden = crate::rms_norm::row_len(x, w)?;
    let (mut xs, ws) = (values("rms_norm", x)?, values("rms_norm", w)?);
    for row in xs.chunks_exact_mut(hidden.max(1)) {
        let squares: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let scale = 1.0 / (squares / hidden as f64 + f64::from(eps)).sqrt();
        for (v, &weight) in row.iter_mut().zip(&ws) {
            *v = (f64::from(*v) * scale * f64::from(weight)) as f32;
        }
    }
    Tensor::from_vec(xs, x.dims(), x.device())
}

/// See [`crate::rope()`].
///
/// # Errors
/// As the fast op.
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor, positions: &[u32]) -> Result<Tensor> {
    let (heads, d) = crate::rope::shape(x, cos, sin, positions)?;
    let (mut xs, cos, sin) = (
        values("rope", x)?,
        values("rope", cos)?,
        values("rope", sin)?,
    );
    let half = d / 2;
    for (n, &position) in positions.iter().enumerate() {
        for head in 0..heads {
            for i in 0..half {
                let first = (n * heads + head) * d + i;
                let angle = position as usize * half + i;
                let (a, b) = (f64::from(xs[first]), f64::from(xs[first + half]));
                let (c, s) = (f64::from(cos[angle]), f64::from(sin[angle]));
                xs[first] = (a * c - b * s) as f32;
                xs[first + half] = (b * c + a * s) as f32;
            }
        }
    }
    Tensor::from_vec(xs, x.dims(), x.device())
}

/// See [`crate::swiglu()`].
///
/// # Errors
/// As the fast op.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    crate::swiglu::check(gate, up)?;
    let (gates, ups) = (values("swiglu", gate)?, values("swiglu", up)?);
    let out = gates.iter().zip(&ups).map(|(&g, &u)| {
        let g = f64::from(g);
        (g / (1.0 + (-g).exp()) * f64::from(u)) as f32
    });
    Tensor::from_vec(out.collect::<Vec<f32>>(), gate.dims(), gate.device())
}

/// See [`crate::attend()`].
///
/// # Errors
/// As the fast op.
pub fn attend(
    q: &Tensor,
    k_cache: &Tensor,
    v_cache: &Tensor,
    visible: &[Visible],
    scale: f32,
) -> Result<Tensor> {
    let heads = crate::attend::heads(q, k_cache, v_cache, visible)?;
    let (qs, ks, vs) = (
        values("attend", q)?,
        values("attend", k_cache)?,
        values("attend", v_cache)?,
    );
    let (d, columns) = (heads.d, heads.kv * heads.d);
    let mut out = Vec::with_capacity(qs.len());
    for (n, seen) in visible.iter().enumerate() {
        for head in 0..heads.query {
            let query = &qs[(n * heads.query + head) * d..][..d];
            let first_column = head / (heads.query / heads.kv) * d;
            let dot = |row: usize| -> f64 {
                let key = &ks[row * columns + first_column..][..d];
                query
                    .iter()
                    .zip(key)
                    .map(|(&a, &b)| f64::from(a) * f64::from(b))
                    .sum()
            };
            let scores: Vec<f64> = seen.rows().map(|row| f64::from(scale) * dot(row)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            for column in first_column..first_column + d {
                let sum: f64 = seen
                    .rows()
                    .zip(&weights)
                    .map(|(row, weight)| weight * f64::from(vs[row * columns + column]))
                    .sum();
                out.push((sum / total) as f32);
            }
        }
    }
    Tensor::from_vec(out, (visible.len(), heads.query * d), q.device())
}

/// See [`crate::argmax_rows`].
///
/// # Errors
/// As the fast op.
pub fn argmax_rows(x: &Tensor) -> Result<Tensor> {
    select::check("argmax_rows", x, 1)?;
    topk_rows(x, 1)?.0.flatten_all()
}

/// See [`crate::topk_rows`].
///
/// # Errors
/// As the fast op.
pub fn topk_rows(x: &Tensor, k: usize) -> Result<(Tensor, Tensor)> {
    let (n, v) = select::check("topk_rows", x, k)?;
    let xs = values("topk_rows", x)?;
    let (mut ids, mut best) = (Vec::with_capacity(n * k), Vec::with_capacity(n * k));
    for (row_idx, row) in xs.chunks_exact(v.max(1)).enumerate() {
        if let Some(column) = row.iter().position(|value| value.is_nan()) {
            return Err(select::not_a_number("topk_rows", row_idx, column));
        }
        let mut order: Vec<u32> = (0..v as u32).collect();
        // A stable sort leaves equal values lowest column first; 0.0 and -0.0 are equal.
        order.sort_by(|&a, &b| {
            row[b as usize]
                .partial_cmp(&row[a as usize])
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        ids.extend_from_slice(&order[..k]);
        best.extend(order[..k].iter().map(|&column| row[column as usize]));
    }
    Ok((
        Tensor::from_vec(ids, (n, k), x.device())?,
        Tensor::from_vec(best, (n, k), x.device())?,
    ))
}

/// See [`crate::log_sum_exp_rows`].
///
/// # Errors
/// As the fast op.
pub fn log_sum_exp_rows(x: &Tensor) -> Result<Tensor> {
    let (n, v) = crate::log_sum_exp::check(x)?;
    let xs = values("log_sum_exp_rows", x)?;
    let out = xs.chunks_exact(v).map(|row| {
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = row.iter().map(|x| f64::from(x - top).exp()).sum();
        (f64::from(top) + total.ln()) as f32
    });
    Tensor::from_vec(out.collect::<Vec<f32>>(), n, x.device())
}

/// See [`crate::pair_scores`].
///
/// # Errors
/// As the fast op.
pub fn pair_scores(
    net: &PairNet,
    left: &Tensor,
    right: &Tensor,
    states: &Tensor,
    gamma: usize,
) -> Result<Tensor> {
    let shape = crate::pairs::shape(net, left, right, states, gamma)?;
    let (weights, out_bias) = net.given();
    let dims = |t: &Tensor| t.dims().last().copied().unwrap_or(0);
    let (a, b, p) = (dims(&weights[0]), dims(&weights[1]), dims(&weights[2]));
    let weights: Vec<Vec<f32>> = weights
        .iter()
        .map(|w| values("pair_scores", w))
        .collect::<Result<_>>()?;
    let (lefts, rights, states) = (
        values("pair_scores", left)?,
        values("pair_scores", right)?,
        values("pair_scores", states)?,
    );
    let (k, units) = (shape.k, weights[3].len());
    let dot = |w: &[f32], x: &[f32]| -> f64 {
        w.iter()
            .zip(x)
            .map(|(&w, &x)| f64::from(w) * f64::from(x))
            .sum()
    };
    let mut out = Vec::with_capacity(shape.n_pairs * k * k);
    for pair in 0..shape.n_pairs {
        let slot = shape.slot(pair);
        for (earlier, later) in (0..k * k).map(|i| (slot * k + i / k, (slot + 1) * k + i % k)) {
            let (left, right) = (&lefts[earlier * a..][..a], &rights[later * b..][..b]);
            let mut score = f64::from(out_bias);
            for unit in 0..units {
                let products: f64 = (0..p)
                    .map(|i| {
                        f64::from(weights[2][unit * p + i])
                            * f64::from(left[i])
                            * f64::from(right[i])
                    })
                    .sum();
                let x = dot(&weights[0][unit * a..][..a], left)
                    + dot(&weights[1][unit * b..][..b], right)
                    + products
                    + f64::from(states[pair * units + unit]);
                score += f64::from(weights[3][unit]) * x / (1.0 + (-x).exp());
            }
            out.push(score as f32);
        }
    }
    Tensor::from_vec(out, (shape.n_pairs, k, k), left.device())
}

fn values(op: &str, t: &Tensor) -> Result<Vec<f32>> {
    dense_f32(op, "an input", t)?.flatten_all()?.to_vec1()
}
