//! A two-layer network over all pairs of neighbouring candidates.
#![allow(unsafe_code, reason = "tiles are read and written through pointers")]
#![allow(
    clippy::needless_range_loop,
    reason = "one index runs over operands and sums alike"
)]

#[cfg(test)]
mod tests;

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};

use crate::exp::silu;
use crate::input::{dense_f32, dims2, dims3, slice_f32};
use crate::parallel;
use crate::simd::{Isa, Kernel, Simd};

const OP: &str = "pair_scores";
/// Hidden units of one tile.
const UNITS: usize = 8;

/// Weights of [`pair_scores`]: the network's first layer, split by the part of its input that a weight multiplies.
#[derive(Clone, Debug)]
pub struct PairNet(Arc<Packed>);

/// What a [`PairNet`] is made of. F hidden units.
#[derive(Debug)]
pub struct PairWeights<'a> {
    /// `[F, A]` f32: on the candidate at the earlier slot.
    pub left: &'a Tensor,
    /// `[F, B]` f32: on the candidate at the later slot.
    pub right: &'a Tensor,
    /// `[F, P]` f32: on the products of the first P values of both; `None` without products.
    pub product: Option<&'a Tensor>,
    /// `[F]` f32: the second layer.
    pub out: &'a Tensor,
    /// Its bias.
    pub out_bias: f32,
}

#[derive(Debug)]
struct Packed {
    left: Panel,
    right: Panel,
    product: Panel,
    /// Second layer, zeros behind the last unit.
    out: Vec<f32>,
    out_bias: f32,
    units: usize,
    /// The weights as given, for the reference.
    given: [Tensor; 4],
}

/// `[F, inner]` weights in tiles of [`UNITS`] rows, each tile column by column; zeros behind the last row.
#[derive(Debug)]
struct Panel {
    inner: usize,
    values: Vec<f32>,
}

impl Panel {
    fn new(weights: &Tensor) -> Result<Self> {
        let (units, inner) = dims2(OP, "a weight", weights)?;
        let rows = weights.to_vec2::<f32>()?;
        let mut values = vec![0f32; units.next_multiple_of(UNITS) * inner];
        for (unit, row) in rows.iter().enumerate() {
            let tile = &mut values[unit / UNITS * UNITS * inner..];
            for (column, value) in row.iter().enumerate() {
                tile[column * UNITS + unit % UNITS] = *value;
            }
        }
        Ok(Self { inner, values })
    }

    /// The tile that starts at unit `first`.
    #[inline(always)]
    fn tile(&self, first: usize) -> &[f32] {
        &self.values[first * self.inner..][..UNITS * self.inner]
    }
}

impl PairNet {
    /// Packs the weights.
    ///
    /// # Errors
    /// If a tensor is not f32 or the shapes do not fit each other.
    pub fn new(weights: &PairWeights<'_>) -> Result<Self> {
        let out = dense_f32(OP, "out", weights.out)?;
        let [units] = *out.dims() else {
            bail!("{OP}: out has shape {:?}, must be one vector", out.dims());
        };
        let none = Tensor::zeros((units, 0), candle_core::DType::F32, out.device())?;
        let product = weights.product.unwrap_or(&none);
        let mut given = [weights.left, weights.right, product]
            .map(|w| dense_f32(OP, "a weight", w))
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        let inner: Vec<usize> = given
            .iter()
            .map(|w| match *w.dims() {
                [rows, inner] if rows == units => Ok(inner),
                _ => bail!("{OP}: a weight is {:?}, must have {units} rows", w.dims()),
            })
            .collect::<Result<_>>()?;
        if inner[2] > inner[0].min(inner[1]) {
            bail!(
                "{OP}: products of {} values of {} and {}",
                inner[2],
                inner[0],
                inner[1]
            );
        }
        given.push(out.clone());
        let mut out = out.to_vec1::<f32>()?;
        out.resize(units.next_multiple_of(UNITS), 0.0);
        let given: [Tensor; 4] = given
            .try_into()
            .expect("three weights and the second layer");
        Ok(Self(Arc::new(Packed {
            left: Panel::new(&given[0])?,
            right: Panel::new(&given[1])?,
            product: Panel::new(&given[2])?,
            out,
            out_bias: weights.out_bias,
            units,
            given,
        })))
    }

    /// Scores of K later candidates after one earlier candidate: a row of [`pair_scores`], bit for bit.
    ///
    /// `left`: `[A]`, `right`: `[K, B]`, `state`: `[F]`; `out`: `[K]`.
    ///
    /// # Errors
    /// If the lengths do not fit.
    pub fn row(&self, left: &[f32], right: &[f32], state: &[f32], out: &mut [f32]) -> Result<()> {
        let net = &*self.0;
        let wanted = (net.left.inner, out.len() * net.right.inner, net.units);
        if (left.len(), right.len(), state.len()) != wanted || out.is_empty() {
            bail!(
                "{OP}: {} values before, {} after and a state of {} do not give {} scores",
                left.len(),
                right.len(),
                state.len(),
                out.len()
            );
        }
        let one = Pair { left, right, state };
        Isa::detect().run(Row { net, one, out });
        Ok(())
    }

    /// Left, right, product and second-layer weights and the last bias, as given.
    pub(crate) fn given(&self) -> (&[Tensor; 4], f32) {
        (&self.0.given, self.0.out_bias)
    }
}

/// Scores every pair of neighbouring candidates of all rows in one call; what is K by K wide never leaves a tile.
///
/// `left`: `[N, K, A]` and `right`: `[N, K, B]` f32, what the network reads of each candidate as the earlier and as the
/// later one; N = rows * `gamma` slots. `states`: `[rows * (gamma - 1), F]` f32, the first layer's part that a pair of
/// slots has in common, its bias included. Returns `[rows * (gamma - 1), K, K]` f32: entry `[t, a, b]` is
///
/// `out . silu(L left_a + R right_b + P (left_a * right_b) + states_t) + out_bias`
///
/// for candidate `a` at the earlier and `b` at the later slot of pair t. An entry depends on its own inputs alone.
///
/// # Errors
/// If an input is not f32, or shapes and `gamma` do not fit.
pub fn pair_scores(
    net: &PairNet,
    left: &Tensor,
    right: &Tensor,
    states: &Tensor,
    gamma: usize,
) -> Result<Tensor> {
    let shape = shape(net, left, right, states, gamma)?;
    let op = PairScores {
        isa: Isa::detect(),
        net: net.0.clone(),
        shape,
    };
    let (left, right) = (dense_f32(OP, "left", left)?, dense_f32(OP, "right", right)?);
    left.apply_op3(&right, &dense_f32(OP, "states", states)?, op)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PairShape {
    /// Pairs of slots.
    pub(crate) n_pairs: usize,
    pub(crate) gamma: usize,
    pub(crate) k: usize,
}

impl PairShape {
    /// The earlier slot of pair `pair`.
    pub(crate) fn slot(&self, pair: usize) -> usize {
        pair / (self.gamma - 1) * self.gamma + pair % (self.gamma - 1)
    }
}

pub(crate) fn shape(
    net: &PairNet,
    left: &Tensor,
    right: &Tensor,
    states: &Tensor,
    gamma: usize,
) -> Result<PairShape> {
    let (n, k, a) = dims3(OP, "left", left)?;
    let (right_n, right_k, b) = dims3(OP, "right", right)?;
    let (n_pairs, units) = dims2(OP, "states", states)?;
    if gamma < 2 || n % gamma != 0 || n_pairs != n / gamma * (gamma - 1) {
        bail!("{OP}: {n} slots in blocks of {gamma} do not make {n_pairs} pairs");
    }
    let packed = &net.0;
    let is_fit = (right_n, right_k) == (n, k)
        && (a, b, units) == (packed.left.inner, packed.right.inner, packed.units);
    if !is_fit {
        bail!(
            "{OP}: left {:?}, right {:?} and states {:?} do not fit a network of {} units that reads {} and {} values",
            left.dims(),
            right.dims(),
            states.dims(),
            packed.units,
            packed.left.inner,
            packed.right.inner
        );
    }
    Ok(PairShape { n_pairs, gamma, k })
}

struct PairScores {
    isa: Isa,
    net: Arc<Packed>,
    shape: PairShape,
}

impl CustomOp3 for PairScores {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        left: &CpuStorage,
        left_at: &Layout,
        right: &CpuStorage,
        right_at: &Layout,
        states: &CpuStorage,
        states_at: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inputs = Inputs {
            left: slice_f32(OP, left, left_at)?,
            right: slice_f32(OP, right, right_at)?,
            states: slice_f32(OP, states, states_at)?,
        };
        let out = scores(self.isa, &self.net, self.shape, inputs);
        let PairShape { n_pairs, k, .. } = self.shape;
        Ok((CpuStorage::F32(out), Shape::from((n_pairs, k, k))))
    }
}

#[derive(Clone, Copy)]
struct Inputs<'a> {
    left: &'a [f32],
    right: &'a [f32],
    states: &'a [f32],
}

fn scores(isa: Isa, net: &Packed, shape: PairShape, inputs: Inputs<'_>) -> Vec<f32> {
    let PairShape { n_pairs, k, .. } = shape;
    let mut out = vec![0f32; n_pairs * k * k];
    // About 50 multiply-adds and one activation a nanosecond.
    let inner = net.product.inner + 50;
    let cost_ns = n_pairs * k * k * net.units * inner / 50;
    parallel::for_chunks(&mut out, (k * k).max(1), cost_ns, |first, out| {
        isa.run(Pairs {
            net,
            shape,
            inputs,
            first,
            out,
        });
    });
    out
}

/// Some pairs of slots, from `first` on.
struct Pairs<'a> {
    net: &'a Packed,
    shape: PairShape,
    inputs: Inputs<'a>,
    first: usize,
    out: &'a mut [f32],
}

/// One pair of slots, or one candidate of its earlier slot.
struct Pair<'a> {
    /// `[J, A]`, J up to K.
    left: &'a [f32],
    /// `[K, B]`.
    right: &'a [f32],
    /// `[F]`.
    state: &'a [f32],
}

/// Scores after one earlier candidate.
struct Row<'a> {
    net: &'a Packed,
    one: Pair<'a>,
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut scratch = Scratch::new(self.net, (1, self.out.len()), S::WIDTH);
        pair(simd, self.net, self.one, &mut scratch, self.out);
    }
}

/// Values of one pair of slots; the candidates lie in the lanes, so that no sum crosses them.
struct Scratch {
    /// Earlier candidates, and how many lanes they are padded to.
    n_left: usize,
    left_lanes: usize,
    /// Later candidates, and how many lanes they are padded to.
    k: usize,
    lanes: usize,
    /// `[A, left_lanes]` and `[B, lanes]`: inputs by value.
    left: Vec<f32>,
    right: Vec<f32>,
    /// `[units, left_lanes]` and `[units, lanes]`: the first layer's part of each candidate; that of the pair of slots
    /// is in `by_left`.
    by_left: Vec<f32>,
    by_right: Vec<f32>,
    /// `[n_left, lanes]`.
    scores: Vec<f32>,
}

impl Scratch {
    #[inline(always)]
    fn new(net: &Packed, (n_left, k): (usize, usize), width: usize) -> Self {
        let (left_lanes, lanes) = (n_left.next_multiple_of(width), k.next_multiple_of(width));
        let units = net.out.len();
        Self {
            n_left,
            left_lanes,
            k,
            lanes,
            left: vec![0.0; net.left.inner * left_lanes],
            right: vec![0.0; net.right.inner * lanes],
            by_left: vec![0.0; units * left_lanes],
            by_right: vec![0.0; units * lanes],
            scores: vec![0.0; n_left * lanes],
        }
    }
}

impl Kernel for Pairs<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            net,
            shape,
            inputs,
            first,
            out,
        } = self;
        let k = shape.k;
        let (a, b) = (net.left.inner, net.right.inner);
        let mut scratch = Scratch::new(net, (k, k), S::WIDTH);
        for (i, out) in out.chunks_exact_mut(k * k).enumerate() {
            let slot = shape.slot(first + i);
            let one = Pair {
                left: &inputs.left[slot * k * a..][..k * a],
                right: &inputs.right[(slot + 1) * k * b..][..k * b],
                state: &inputs.states[(first + i) * net.units..][..net.units],
            };
            pair(simd, net, one, &mut scratch, out);
        }
    }
}

/// Scores of all later candidates after each earlier one, row by row into `out`.
#[inline(always)]
fn pair<S: Simd>(simd: S, net: &Packed, one: Pair<'_>, scratch: &mut Scratch, out: &mut [f32]) {
    let (lanes, left_lanes, n_left) = (scratch.lanes, scratch.left_lanes, scratch.n_left);
    by_value(one.left, net.left.inner, left_lanes, &mut scratch.left);
    by_value(one.right, net.right.inner, lanes, &mut scratch.right);
    let (left, right) = (&scratch.left, &scratch.right);
    let state = Some(one.state);
    project(
        simd,
        &net.left,
        state,
        left,
        left_lanes,
        &mut scratch.by_left,
    );
    project(simd, &net.right, None, right, lanes, &mut scratch.by_right);
    scratch.scores.fill(net.out_bias);
    for unit in (0..net.out.len()).step_by(UNITS) {
        let mut a = 0;
        // The widest instruction set has the registers for two rows.
        while S::WIDTH >= 16 && a + 2 <= n_left {
            tile::<S, 2>(simd, net, scratch, unit, a);
            a += 2;
        }
        while a < n_left {
            tile::<S, 1>(simd, net, scratch, unit, a);
            a += 1;
        }
    }
    let rows = scratch.scores.chunks_exact(lanes);
    for (out, row) in out.chunks_exact_mut(scratch.k).zip(rows) {
        out.copy_from_slice(&row[..scratch.k]);
    }
}

/// `[K, inner]` to `[inner, lanes]`; what lies behind K stays zero.
#[inline(always)]
fn by_value(rows: &[f32], inner: usize, lanes: usize, out: &mut [f32]) {
    for (candidate, row) in rows.chunks_exact(inner.max(1)).enumerate() {
        for (value, out) in row.iter().zip(out.chunks_exact_mut(lanes)) {
            out[candidate] = *value;
        }
    }
}

/// `[units, lanes]`: `weights` times `inputs` `[inner, lanes]`, plus one value a unit.
#[inline(always)]
fn project<S: Simd>(
    simd: S,
    weights: &Panel,
    start: Option<&[f32]>,
    inputs: &[f32],
    lanes: usize,
    out: &mut [f32],
) {
    assert!(inputs.len() == weights.inner * lanes && lanes.is_multiple_of(S::WIDTH));
    for unit in (0..out.len() / lanes).step_by(UNITS) {
        let tile = weights.tile(unit);
        for lane in (0..lanes).step_by(S::WIDTH) {
            let mut sums = [simd.splat(0.0); UNITS];
            for u in 0..UNITS {
                // Units behind the last one have no state.
                let at = start.and_then(|s| s.get(unit + u)).copied();
                sums[u] = simd.splat(at.unwrap_or(0.0));
            }
            for (column, weights) in tile.chunks_exact(UNITS).enumerate() {
                // SAFETY: column < inner, lane + WIDTH <= lanes, and the inputs are inner * lanes values.
                let x = unsafe { simd.load(inputs.as_ptr().add(column * lanes + lane)) };
                for u in 0..UNITS {
                    sums[u] = simd.mul_add(simd.splat(weights[u]), x, sums[u]);
                }
            }
            for u in 0..UNITS {
                let to = &mut out[(unit + u) * lanes + lane..][..S::WIDTH];
                // SAFETY: the slice is one vector long.
                unsafe { simd.store(to.as_mut_ptr(), sums[u]) };
            }
        }
    }
}

/// Adds [`UNITS`] hidden units from `unit` on to the scores of `A` earlier candidates from `first` on.
#[inline(always)]
fn tile<S: Simd, const A: usize>(
    simd: S,
    net: &Packed,
    scratch: &mut Scratch,
    unit: usize,
    first: usize,
) {
    /// Lanes of the widest vector.
    const MOST: usize = 16;
    let Scratch {
        left_lanes,
        lanes,
        left,
        right,
        by_left,
        by_right,
        scores,
        ..
    } = scratch;
    let (lanes, left_lanes) = (*lanes, *left_lanes);
    let weights = net.product.tile(unit);
    let p = net.product.inner;
    assert!(left.len() >= p * left_lanes && right.len() >= p * lanes);
    assert!(first + A <= left_lanes && lanes.is_multiple_of(S::WIDTH));
    assert!(by_left.len() >= (unit + UNITS) * left_lanes);
    assert!(by_right.len() >= (unit + UNITS) * lanes);
    assert!(weights.len() == p * UNITS && S::WIDTH <= MOST);
    let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
    for lane in (0..lanes).step_by(S::WIDTH) {
        let mut sums = [[zero; UNITS]; A];
        // SAFETY: the assertions above hold for every unit below unit + UNITS, every candidate below first + A, every
        // column below p and every vector that starts at `lane`.
        unsafe {
            for u in 0..UNITS {
                let later = simd.load(by_right.as_ptr().add((unit + u) * lanes + lane));
                for a in 0..A {
                    let earlier = *by_left.get_unchecked((unit + u) * left_lanes + first + a);
                    sums[a][u] = simd.mul_add(one, later, simd.splat(earlier));
                }
            }
            for column in 0..p {
                let later = simd.load(right.as_ptr().add(column * lanes + lane));
                let mut products = [zero; A];
                for a in 0..A {
                    let earlier = simd.splat(*left.get_unchecked(column * left_lanes + first + a));
                    products[a] = simd.mul_add(earlier, later, zero);
                }
                for u in 0..UNITS {
                    let weight = simd.splat(*weights.get_unchecked(column * UNITS + u));
                    for a in 0..A {
                        sums[a][u] = simd.mul_add(weight, products[a], sums[a][u]);
                    }
                }
            }
        }
        let mut hidden = [[0f32; MOST * UNITS]; A];
        for a in 0..A {
            for u in 0..UNITS {
                // SAFETY: a vector has at most MOST lanes. Nothing else is done in this loop, so that it is unrolled and
                // the sums stay in registers.
                unsafe { simd.store(hidden[a].as_mut_ptr().add(u * S::WIDTH), sums[a][u]) };
            }
        }
        for a in 0..A {
            for value in &mut hidden[a][..UNITS * S::WIDTH] {
                *value = silu(*value);
            }
            let to = &mut scores[(first + a) * lanes + lane..][..S::WIDTH];
            // SAFETY: the slice is one vector long, and so is each row of `hidden`.
            unsafe {
                let mut sum = simd.load(to.as_ptr());
                for u in 0..UNITS {
                    let active = simd.load(hidden[a].as_ptr().add(u * S::WIDTH));
                    sum = simd.mul_add(simd.splat(net.out[unit + u]), active, sum);
                }
                simd.store(to.as_mut_ptr(), sum);
            }
        }
    }
}
