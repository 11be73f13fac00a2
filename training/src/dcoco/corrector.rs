//! The scoring network in differentiable form, after one predecessor a slot.

use crate::error::Result;
use crate::ops::{linear, swiglu};
use crate::params::{Init, Params};
use baselines::dcoco::{Channels, CorrectorSizes, Layout, Seen};
use candle_core::{Device, Tensor};
use std::collections::BTreeMap;

/// Trained tensors of a corrector.
pub(super) struct PairNet {
    layout: Layout,
    sizes: CorrectorSizes,
    channels: Channels,
    tensors: BTreeMap<String, Tensor>,
}

/// T pairs of slots, each with one predecessor and K candidates.
pub(super) struct Sides<'a> {
    /// `[N, H]` states of all slots.
    pub(super) hidden: &'a Tensor,
    /// `[V, H]`: the target's embeddings, without gradient.
    pub(super) embedding: &'a Tensor,
    /// `[T]`: the slots before and after.
    pub(super) earlier: &'a [u32],
    pub(super) later: &'a [u32],
    /// `[T]`: the token at the earlier slot.
    pub(super) predecessors: &'a [u32],
    /// `[T * K]`: tokens at the later slot.
    pub(super) candidates: &'a [u32],
    /// `[N, K + 1]` log-probabilities of a slot's candidates and, last, of the token that stands there.
    pub(super) log_probs: &'a Tensor,
}

/// Inputs of the first layer and the column of its weight where each begins.
type Inputs = Vec<(usize, Tensor)>;

impl PairNet {
    /// Adds the tensors of a layout to `params`: the second layer is zero, so that a new corrector changes nothing.
    pub(super) fn new(
        layout: Layout,
        sizes: CorrectorSizes,
        channels: Channels,
        params: &mut Params,
        seed: u64,
    ) -> Result<Self> {
        let mut tensors = BTreeMap::new();
        for (name, shape) in layout.tensors(&sizes) {
            let init = match shape.as_slice() {
                [_, inner] if !name.contains("mlp.2") => {
                    Init::Normal((*inner as f64).sqrt().recip())
                }
                _ => Init::Normal(0.0),
            };
            tensors.insert(name.clone(), params.add(&name, &shape, init, seed)?);
        }
        Ok(Self {
            layout,
            sizes,
            channels,
            tensors,
        })
    }

    pub(super) fn sizes(&self) -> &CorrectorSizes {
        &self.sizes
    }

    /// All tensors as they are now, under checkpoint names.
    pub(super) fn snapshot(&self) -> BTreeMap<String, Tensor> {
        let tensors = self.tensors.iter();
        tensors
            .map(|(name, t)| (name.clone(), t.detach()))
            .collect()
    }

    fn get(&self, name: &str) -> &Tensor {
        let tensor = self.tensors.get(&format!("corrector.{name}"));
        tensor.expect("only names of the layout are asked for")
    }

    /// `[T, K]` scores: the candidates' log-probabilities and the correction.
    pub(super) fn scores(&self, sides: &Sides<'_>) -> Result<Tensor> {
        let (t, k) = (
            sides.later.len(),
            sides.candidates.len() / sides.later.len().max(1),
        );
        let (f, first) = (self.sizes.units, self.get("mlp.0.weight"));
        let unary = rows(sides.log_probs, sides.later)?
            .narrow(1, 0, k)?
            .contiguous()?;
        let mut by_pair = self.states(sides)?;
        let mut by_candidate = Inputs::new();
        if self.channels.candidate == Seen::Yes {
            let (earlier, later) = self.candidates(sides)?;
            let r = self.sizes.candidate;
            let flat = later.reshape((t * k, r))?;
            if self.layout != Layout::L3 {
                let products = later.broadcast_mul(&earlier.unsqueeze(1)?)?;
                by_candidate.push((2 * r, products.reshape((t * k, r))?));
            }
            by_candidate.push((r, flat));
            by_pair.push((0, earlier));
        }
        let (r, p) = (self.sizes.candidate, self.sizes.pair);
        let scores = match self.layout {
            Layout::L1 | Layout::L2 => {
                let u = rows(sides.log_probs, sides.earlier)?.narrow(1, k, 1)?;
                by_pair.push((3 * r + p, u.contiguous()?));
                3 * r + p + 1
            }
            Layout::L3 => 2 * r + 2 * p,
        };
        by_candidate.push((scores, unary.reshape((t * k, 1))?));
        if self.layout == Layout::L2 {
            by_pair.push((scores + 1, unary.narrow(1, 0, 1)?.contiguous()?));
        }
        // [T * K, F] and [T, F] -> [T, K, F]
        let mut units = apply(first, by_candidate)?.reshape((t, k, f))?;
        let bias = self.get("mlp.0.bias").reshape((1, f))?;
        units = match by_pair.is_empty() {
            true => units.broadcast_add(&bias)?,
            false => {
                let shared = apply(first, by_pair)?.broadcast_add(&bias)?;
                units.broadcast_add(&shared.unsqueeze(1)?)?
            }
        };
        let units = units.reshape((t * k, f))?;
        let active = swiglu(&units, &units.ones_like()?)?;
        let corrections = linear(&active, self.get("mlp.2.weight"))?;
        let corrections = corrections.broadcast_add(self.get("mlp.2.bias"))?;
        Ok((corrections.reshape((t, k))? + unary)?)
    }

    /// What the pair states give to the first layer.
    fn states(&self, sides: &Sides<'_>) -> Result<Inputs> {
        if self.channels.pair_state == Seen::No {
            return Ok(Inputs::new());
        }
        let (h, r, p) = (self.sizes.hidden, self.sizes.candidate, self.sizes.pair);
        let project = |weight: &Tensor, slots: &[u32]| -> Result<Tensor> {
            rows(&linear(sides.hidden, &weight.contiguous()?)?, slots)
        };
        if self.layout == Layout::L3 {
            let left = project(self.get("pair_left.weight"), sides.earlier)?;
            let right = project(self.get("pair_right.weight"), sides.later)?;
            return Ok(vec![
                (2 * r, left.broadcast_add(self.get("pair_left.bias"))?),
                (2 * r + p, right.broadcast_add(self.get("pair_right.bias"))?),
            ]);
        }
        let weight = self.get("pair.weight");
        let before = project(&weight.narrow(1, 0, h)?, sides.earlier)?;
        let after = project(&weight.narrow(1, h, h)?, sides.later)?;
        let state = (before + after)?;
        Ok(vec![(
            3 * r,
            match self.layout {
                Layout::L1 => state.broadcast_add(self.get("pair.bias"))?,
                _ => state,
            },
        )])
    }

    /// Vectors of the predecessors `[T, r]` and of the candidates `[T, K, r]`.
    fn candidates(&self, sides: &Sides<'_>) -> Result<(Tensor, Tensor)> {
        let (h, r, t) = (self.sizes.hidden, self.sizes.candidate, sides.later.len());
        // One row for each token of the vocabulary, which is less work than one for each candidate.
        let table = |weight: &Tensor| linear(sides.embedding, &weight.contiguous()?);
        let square = |flat: Tensor| flat.reshape((t, sides.candidates.len() / t.max(1), r));
        if self.layout == Layout::L1 {
            let weight = self.get("candidate.weight");
            let tokens = table(&weight.narrow(1, 0, h)?)?;
            let slots = linear(sides.hidden, &weight.narrow(1, h, h)?.contiguous()?)?;
            let slots = slots.broadcast_add(self.get("candidate.bias"))?;
            let earlier = (rows(&tokens, sides.predecessors)? + rows(&slots, sides.earlier)?)?;
            let later = square(rows(&tokens, sides.candidates)?)?;
            let later = later.broadcast_add(&rows(&slots, sides.later)?.unsqueeze(1)?)?;
            return Ok((earlier, later));
        }
        let side = |name: &str, ids: &[u32]| -> Result<Tensor> {
            let out = rows(&table(self.get(&format!("{name}.weight")))?, ids)?;
            Ok(match self.layout {
                Layout::L3 => out.broadcast_add(self.get(&format!("{name}.bias")))?,
                _ => out,
            })
        };
        let earlier = side("candidate_out", sides.predecessors)?;
        Ok((earlier, square(side("candidate_in", sides.candidates)?)?))
    }
}

fn rows(of: &Tensor, index: &[u32]) -> Result<Tensor> {
    Ok(of.index_select(&Tensor::new(index, &Device::Cpu)?, 0)?)
}

/// The columns of `first` that read these inputs, times the inputs.
fn apply(first: &Tensor, inputs: Inputs) -> Result<Tensor> {
    let mut columns = Vec::with_capacity(inputs.len());
    let mut values = Vec::with_capacity(inputs.len());
    for (column, input) in inputs {
        columns.push(first.narrow(1, column, input.dim(1)?)?);
        values.push(input);
    }
    let (values, columns) = (Tensor::cat(&values, 1)?, Tensor::cat(&columns, 1)?);
    Ok(linear(&values.contiguous()?, &columns.contiguous()?)?)
}
