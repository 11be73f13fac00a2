//! The corrector's weights, and the one batched pass that scores all pairs of neighbouring candidates.

use candle_core::{Device, Tensor};
use decode::TokenIo;
use kernels::{PairNet, PairWeights};
use models::Weights;

use super::layout::{CorrectorSizes, Layout};

/// Which inputs the scoring network sees; what it does not see is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Candidates' vectors and their products.
    pub candidate: Seen,
    /// Pair states.
    pub pair_state: Seen,
}

/// Whether an input is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// As computed.
    Yes,
    /// Zeros in its place.
    No,
}

impl Channels {
    /// Everything is seen.
    pub const ALL: Self = Self {
        candidate: Seen::Yes,
        pair_state: Seen::Yes,
    };

    /// What both see.
    pub(crate) fn and(self, other: Self) -> Self {
        let both = |a, b| match (a, b) {
            (Seen::Yes, Seen::Yes) => Seen::Yes,
            _ => Seen::No,
        };
        Self {
            candidate: both(self.candidate, other.candidate),
            pair_state: both(self.pair_state, other.pair_state),
        }
    }
}

impl std::str::FromStr for Channels {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "all" => Ok(Self::ALL),
            "no_pair_state" => Ok(Self {
                pair_state: Seen::No,
                ..Self::ALL
            }),
            "no_candidate" => Ok(Self {
                candidate: Seen::No,
                ..Self::ALL
            }),
            _ => Err(()),
        }
    }
}

/// The best K tokens of every slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidates {
    /// Candidates a slot, K.
    pub k: usize,
    /// `[N, K]` token ids, best first; of equal ones the lower id first.
    pub ids: Vec<u32>,
    /// `[N, K]` log-probabilities over all that can be drafted.
    pub log_probs: Vec<f32>,
}

impl Candidates {
    /// Takes them from `[N, V]` logits; ids count columns.
    ///
    /// # Errors
    /// If K exceeds V or a logit is NaN.
    pub fn of(logits: &Tensor, k: usize) -> candle_core::Result<Self> {
        let (ids, best) = kernels::topk_rows(logits, k)?;
        let totals = kernels::log_sum_exp_rows(logits)?.to_vec1::<f32>()?;
        let mut log_probs = best.flatten_all()?.to_vec1::<f32>()?;
        for (row, total) in log_probs.chunks_exact_mut(k).zip(totals) {
            row.iter_mut().for_each(|value| *value -= total);
        }
        Ok(Self {
            k,
            ids: ids.flatten_all()?.to_vec1()?,
            log_probs,
        })
    }

    /// `[N, K]` scores of slot `slot`.
    pub(crate) fn unary(&self, slot: usize) -> &[f32] {
        &self.log_probs[slot * self.k..][..self.k]
    }
}

/// The scoring network and what feeds it.
#[derive(Debug)]
pub struct Corrector {
    layout: Layout,
    sizes: CorrectorSizes,
    channels: Channels,
    /// `[(r) + 2 p, H]`: what a slot's state gives to its candidates (L1 alone), to the pair it ends and to the pair
    /// it begins, in this order: candidates, later, earlier.
    by_slot: Tensor,
    /// `[r]` of L1, else empty.
    candidate_bias: Vec<f32>,
    /// `[p]` of L1 and L2, `[2 p]` of L3.
    pair_bias: Vec<f32>,
    /// `[F, p]`, of L3 `[F, 2 p]`: the first layer's part for pair states.
    state_weight: Tensor,
    /// `[F]`: the first layer's bias.
    first_bias: Vec<f32>,
    net: PairNet,
    tokens: TokenRows,
}

impl Corrector {
    /// Takes the corrector's tensors; `file` is what errors name.
    ///
    /// # Errors
    /// [`crate::Error::Config`] if the tensors fit no layout.
    pub fn new(
        sizes: CorrectorSizes,
        channels: Channels,
        weights: &mut Weights,
        file: &str,
    ) -> crate::Result<Self> {
        let layout = Layout::of(weights, &sizes, file)?;
        let mut tensors = Taken {
            shapes: layout.tensors(&sizes),
            weights,
        };
        let first = tensors.take("mlp.0.weight")?;
        let first_bias = tensors.take("mlp.0.bias")?.to_vec1()?;
        let out = tensors.take("mlp.2.weight")?.squeeze(0)?;
        let out_bias = tensors.take("mlp.2.bias")?.to_vec1::<f32>()?[0];
        let parts = Projections::take(layout, &sizes, &mut tensors)?;
        let [left, right, product, states] = split_first(layout, &sizes, &first)?;
        let net = PairNet::new(&PairWeights {
            left: &left,
            right: &right,
            product: (layout != Layout::L3).then_some(&product),
            out: &out,
            out_bias,
        })?;
        Ok(Self {
            layout,
            sizes,
            channels,
            by_slot: Tensor::cat(&parts.by_slot, 0)?,
            candidate_bias: parts.candidate_bias,
            pair_bias: parts.pair_bias,
            state_weight: states,
            first_bias,
            net,
            tokens: TokenRows::new(Tensor::cat(&parts.by_token, 0)?, parts.token_bias),
        })
    }

    /// The layout that the tensors have.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Forgets the projected embeddings that are kept from call to call, for measurements.
    pub fn forget_tokens(&mut self) {
        self.tokens.forget();
    }

    /// `[R * (gamma - 1), K, K]` scores S of all pairs: the later candidate's log-probability and the correction.
    ///
    /// `hidden`: `[R * gamma, H]` f32 states of the draft slots.
    ///
    /// # Errors
    /// If shapes do not fit or the target refuses to embed a candidate.
    pub fn scores(
        &mut self,
        hidden: &Tensor,
        candidates: &Candidates,
        gamma: usize,
        io: &dyn TokenIo,
    ) -> decode::Result<Vec<f32>> {
        if gamma < 2 {
            return Ok(Vec::new());
        }
        let Inputs {
            left,
            right,
            states,
            ..
        } = self.inputs(hidden, candidates, gamma, io)?;
        let k = candidates.k;
        let side = |values: Vec<f32>| {
            let n = candidates.ids.len() / k;
            let width = values.len() / candidates.ids.len().max(1);
            Tensor::from_vec(values, (n, k, width), &Device::Cpu)
        };
        let left = side(left)?;
        let right = right.map(side).transpose()?;
        let n_pairs = states.len() / self.sizes.units;
        let states = Tensor::from_vec(states, (n_pairs, self.sizes.units), &Device::Cpu)?;
        let right = right.as_ref().unwrap_or(&left);
        let scores = kernels::pair_scores(&self.net, &left, right, &states, gamma)?;
        let mut scores = scores.flatten_all()?.to_vec1::<f32>()?;
        for (pair, square) in scores.chunks_exact_mut(k * k).enumerate() {
            let later = pair / (gamma - 1) * gamma + pair % (gamma - 1) + 1;
            for row in square.chunks_exact_mut(k) {
                for (score, unary) in row.iter_mut().zip(candidates.unary(later)) {
                    *score += unary;
                }
            }
        }
        Ok(scores)
    }

    /// What the network reads, for scoring one row at a time.
    ///
    /// # Errors
    /// As [`Corrector::scores`].
    pub fn inputs<'a>(
        &'a mut self,
        hidden: &Tensor,
        candidates: &'a Candidates,
        gamma: usize,
        io: &dyn TokenIo,
    ) -> decode::Result<Inputs<'a>> {
        if self.channels.candidate == Seen::Yes {
            self.tokens.learn(&candidates.ids, io)?;
        }
        let slots = kernels::linear(hidden, &self.by_slot)?;
        let slots = slots.flatten_all()?.to_vec1::<f32>()?;
        let states = self.states(&slots, gamma)?;
        let (left, right) = self.sides(&slots, candidates);
        Ok(Inputs {
            net: &self.net,
            candidates,
            gamma,
            left,
            right,
            states,
        })
    }

    /// Width of a row of `by_slot`, and where the later and the earlier pair parts begin in it.
    fn slot_parts(&self) -> (usize, usize, usize) {
        let r = self.candidate_bias.len();
        (r + 2 * self.sizes.pair, r, r + self.sizes.pair)
    }

    /// `[R * (gamma - 1), F]`: what a pair of slots gives to the first layer.
    fn states(&self, slots: &[f32], gamma: usize) -> candle_core::Result<Vec<f32>> {
        let (width, later, earlier) = self.slot_parts();
        let (p, units) = (self.sizes.pair, self.sizes.units);
        let n = slots.len() / width / gamma * (gamma - 1);
        let mut sums: Vec<f32> = match self.channels.pair_state {
            Seen::No => vec![0.0; n * units],
            Seen::Yes => {
                let mut states = Vec::with_capacity(n * self.pair_bias.len());
                for rows in slots.chunks_exact(width * gamma) {
                    for pair in rows.windows(2 * width).step_by(width) {
                        let (before, after) = pair.split_at(width);
                        let (before, after) = (&before[earlier..][..p], &after[later..][..p]);
                        let bias = &self.pair_bias;
                        if self.layout == Layout::L3 {
                            states.extend(before.iter().chain(after).zip(bias).map(|(x, b)| x + b));
                        } else {
                            let sum = before.iter().zip(after).zip(bias);
                            states.extend(sum.map(|((x, y), b)| x + y + b));
                        }
                    }
                }
                let states = Tensor::from_vec(states, (n, self.pair_bias.len()), &Device::Cpu)?;
                kernels::linear(&states, &self.state_weight)?
                    .flatten_all()?
                    .to_vec1()?
            }
        };
        for row in sums.chunks_exact_mut(units) {
            row.iter_mut()
                .zip(&self.first_bias)
                .for_each(|(x, b)| *x += b);
        }
        Ok(sums)
    }

    /// `[N, K, ..]`: what the network reads of each candidate as the earlier and as the later one; `None` if that is
    /// the same.
    fn sides(&self, slots: &[f32], candidates: &Candidates) -> (Vec<f32>, Option<Vec<f32>>) {
        let (k, r) = (candidates.k, self.sizes.candidate);
        let (width, ..) = self.slot_parts();
        let n = slots.len() / width;
        let (mut left, mut right) = (Vec::new(), Vec::new());
        left.reserve(n * k * (r + 1));
        for slot in 0..n {
            let unary = candidates.unary(slot);
            let own = &slots[slot * width..][..self.candidate_bias.len()];
            for (id, u) in candidates.ids[slot * k..][..k].iter().zip(unary) {
                let token = match self.channels.candidate {
                    Seen::Yes => Some(self.tokens.row(*id)),
                    Seen::No => None,
                };
                match (self.layout, token) {
                    (Layout::L1, Some(token)) => {
                        let sum = token.iter().zip(own).zip(&self.candidate_bias);
                        left.extend(sum.map(|((t, s), b)| t + s + b));
                    }
                    (Layout::L1, None) => left.resize(left.len() + r, 0.0),
                    (_, Some(token)) => {
                        left.extend_from_slice(&token[..r]);
                        right.extend_from_slice(&token[r..]);
                    }
                    (_, None) => {
                        left.resize(left.len() + r, 0.0);
                        right.resize(right.len() + r, 0.0);
                    }
                }
                match self.layout {
                    Layout::L1 => left.push(*u),
                    Layout::L2 => {
                        left.push(*u);
                        right.extend([*u, unary[0]]);
                    }
                    Layout::L3 => right.push(*u),
                }
            }
        }
        let right = match self.layout {
            Layout::L1 => None,
            Layout::L2 | Layout::L3 => Some(right),
        };
        (left, right)
    }
}

/// What the scoring network reads in one call.
#[derive(Debug)]
pub struct Inputs<'a> {
    net: &'a PairNet,
    candidates: &'a Candidates,
    gamma: usize,
    /// `[N, K, A]`: candidates as the earlier one.
    left: Vec<f32>,
    /// `[N, K, B]`: as the later one; `None` if that is the same.
    right: Option<Vec<f32>>,
    /// `[R * (gamma - 1), F]`.
    states: Vec<f32>,
}

impl Inputs<'_> {
    /// Draft slots of a block.
    pub fn gamma(&self) -> usize {
        self.gamma
    }

    /// `[K]` scores at slot `slot` of block `block` after candidate `before` of the slot before; the log-probabilities
    /// if there is none. Bit for bit a row of [`Corrector::scores`].
    pub fn row(&self, block: usize, slot: usize, before: Option<usize>) -> Vec<f32> {
        let (k, n) = (self.candidates.k, self.candidates.ids.len());
        let at = block * self.gamma + slot;
        let unary = self.candidates.unary(at);
        let Some(before) = before else {
            return unary.to_vec();
        };
        let right = self.right.as_ref().unwrap_or(&self.left);
        let (a, b) = (self.left.len() / n, right.len() / n);
        let pair = block * (self.gamma - 1) + slot - 1;
        let units = self.states.len() / (n / k / self.gamma * (self.gamma - 1));
        let mut row = vec![0.0; k];
        let left = &self.left[((at - 1) * k + before) * a..][..a];
        let (right, state) = (
            &right[at * k * b..][..k * b],
            &self.states[pair * units..][..units],
        );
        let fits = self.net.row(left, right, state, &mut row);
        fits.expect("the inputs were made for this network");
        row.iter_mut().zip(unary).for_each(|(score, u)| *score += u);
        row
    }
}

/// Tensors of one layout.
struct Taken<'a> {
    shapes: Vec<(String, Vec<usize>)>,
    weights: &'a mut Weights,
}

impl Taken<'_> {
    fn take(&mut self, name: &str) -> crate::Result<Tensor> {
        let name = format!("corrector.{name}");
        let found = self.shapes.iter().find(|(known, _)| *known == name);
        let (name, shape) = found.expect("only names of the layout are asked for");
        Ok(self.weights.take(name, shape)?)
    }

    fn vector(&mut self, name: &str) -> crate::Result<Vec<f32>> {
        Ok(self.take(name)?.to_vec1()?)
    }
}

/// The projections, sorted by what they read.
struct Projections {
    /// On a token's embedding: one part, or that of the earlier and that of the later candidate.
    by_token: Vec<Tensor>,
    token_bias: Vec<f32>,
    /// On a slot's state, in the order of [`Corrector::by_slot`].
    by_slot: Vec<Tensor>,
    candidate_bias: Vec<f32>,
    pair_bias: Vec<f32>,
}

impl Projections {
    fn take(
        layout: Layout,
        sizes: &CorrectorSizes,
        tensors: &mut Taken<'_>,
    ) -> crate::Result<Self> {
        let (h, r, p) = (sizes.hidden, sizes.candidate, sizes.pair);
        Ok(match layout {
            Layout::L1 => {
                let (c, s) = (
                    tensors.take("candidate.weight")?,
                    tensors.take("pair.weight")?,
                );
                Self {
                    by_token: vec![c.narrow(1, 0, h)?],
                    token_bias: vec![0.0; r],
                    by_slot: vec![c.narrow(1, h, h)?, s.narrow(1, h, h)?, s.narrow(1, 0, h)?],
                    candidate_bias: tensors.vector("candidate.bias")?,
                    pair_bias: tensors.vector("pair.bias")?,
                }
            }
            Layout::L2 => {
                let s = tensors.take("pair.weight")?;
                Self {
                    by_token: vec![
                        tensors.take("candidate_out.weight")?,
                        tensors.take("candidate_in.weight")?,
                    ],
                    token_bias: vec![0.0; 2 * r],
                    by_slot: vec![s.narrow(1, h, h)?, s.narrow(1, 0, h)?],
                    candidate_bias: Vec::new(),
                    pair_bias: vec![0.0; p],
                }
            }
            Layout::L3 => {
                let mut token_bias = tensors.vector("candidate_out.bias")?;
                token_bias.extend(tensors.vector("candidate_in.bias")?);
                let mut pair_bias = tensors.vector("pair_left.bias")?;
                pair_bias.extend(tensors.vector("pair_right.bias")?);
                Self {
                    by_token: vec![
                        tensors.take("candidate_out.weight")?,
                        tensors.take("candidate_in.weight")?,
                    ],
                    token_bias,
                    by_slot: vec![
                        tensors.take("pair_right.weight")?,
                        tensors.take("pair_left.weight")?,
                    ],
                    candidate_bias: Vec::new(),
                    pair_bias,
                }
            }
        })
    }
}

/// Columns of the first layer that read the earlier candidate, the later one, their product and the pair state. The
/// score of a side stands behind its vector.
fn split_first(
    layout: Layout,
    sizes: &CorrectorSizes,
    first: &Tensor,
) -> candle_core::Result<[Tensor; 4]> {
    let (r, p) = (sizes.candidate, sizes.pair);
    let columns = |spans: &[(usize, usize)]| {
        let parts = spans.iter().map(|(from, n)| first.narrow(1, *from, *n));
        Tensor::cat(&parts.collect::<candle_core::Result<Vec<_>>>()?, 1)?.contiguous()
    };
    let n_right = match layout {
        Layout::L1 | Layout::L3 => 1,
        Layout::L2 => 2,
    };
    Ok(match layout {
        Layout::L1 | Layout::L2 => {
            let scores = 3 * r + p;
            [
                columns(&[(0, r), (scores, 1)])?,
                columns(&[(r, r), (scores + 1, n_right)])?,
                columns(&[(2 * r, r)])?,
                columns(&[(3 * r, p)])?,
            ]
        }
        Layout::L3 => [
            columns(&[(0, r)])?,
            columns(&[(r, r), (2 * r + 2 * p, n_right)])?,
            columns(&[(r, 0)])?,
            columns(&[(2 * r, 2 * p)])?,
        ],
    })
}

/// Projections of the target's embeddings, made when a token is first a candidate and kept: `[V, width]` f32.
#[derive(Debug)]
struct TokenRows {
    /// `[width, H]`.
    weight: Tensor,
    /// `[width]`.
    bias: Vec<f32>,
    rows: Vec<f32>,
    is_known: Vec<bool>,
}

impl TokenRows {
    fn new(weight: Tensor, bias: Vec<f32>) -> Self {
        Self {
            weight,
            bias,
            rows: Vec::new(),
            is_known: Vec::new(),
        }
    }

    fn forget(&mut self) {
        self.is_known.fill(false);
    }

    /// Projects the tokens that are new.
    fn learn(&mut self, ids: &[u32], io: &dyn TokenIo) -> decode::Result<()> {
        let width = self.bias.len();
        if self.is_known.len() < io.vocab() {
            // The system hands out zeroed pages when they are first written, so an unseen token costs nothing.
            self.rows = vec![0.0; io.vocab() * width];
            self.is_known = vec![false; io.vocab()];
        }
        let mut new = Vec::new();
        for id in ids {
            if !std::mem::replace(&mut self.is_known[*id as usize], true) {
                new.push(*id);
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let embedded = io.embed(&Tensor::new(new.as_slice(), &Device::Cpu)?)?;
        let rows = kernels::linear(&embedded, &self.weight)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        for (id, row) in new.iter().zip(rows.chunks_exact(width)) {
            let to = self.rows[*id as usize * width..].iter_mut();
            to.zip(row.iter().zip(&self.bias))
                .for_each(|(to, (x, b))| *to = x + b);
        }
        Ok(())
    }

    fn row(&self, id: u32) -> &[f32] {
        &self.rows[id as usize * self.bias.len()..][..self.bias.len()]
    }
}
