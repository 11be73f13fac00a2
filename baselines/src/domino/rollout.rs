//! The head itself: its tensors and the walk along a block.

use candle_core::{DType, Device, Tensor};
use decode::{Result, TokenId, TokenIo};
use kernels::linear;
use models::Weights;

/// Where older checkpoints keep the head's tensors.
const LEGACY: &str = "logit_head.";

/// A table of this many bytes is made without asking; a released checkpoint's would take 1.9 GB in f32.
const TABLE_BYTES: usize = 16 << 20;

/// Sizes of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DominoShape {
    /// Width of trunk states and of the target's embeddings, H.
    pub hidden: usize,
    /// Vocabulary, V.
    pub vocab: usize,
    /// Tokens that can be drafted, V_d.
    pub draft_vocab: usize,
    /// Width of the recurrent state, G.
    pub gru: usize,
    /// Inner width of the correction, D.
    pub rank: usize,
    /// Drafts at the start of a block that are not corrected, P.
    pub prefix: usize,
}

/// A recurrent network over the anchor and the drafts so far, and a correction of low rank to each slot's logits.
///
/// Draft j of a block, 0-based, gets `fc2(silu(fc1([z_j; s_j])))` added to its logits if `j >= P`; `z_j` is the trunk's
/// state of its slot and `s_j` the recurrent state after the anchor and drafts `0..j`. Counted in drafts this reads the
/// same for in-place and shifted trunks.
///
/// Computed are the same sums in another arrangement: fc1 is split at the seam of `[z; s]`, so that the trunk's part is
/// one product for all slots; its other part and the recurrent weights read the same `s` and are one matrix; and a small
/// vocabulary's recurrent inputs are a table. Serving code also fuses fc2, the sum and the argmax; on a CPU that argmax
/// takes 2 % of a round (`benches/heads`, h 4096, 32 sequences), so they stay apart.
#[derive(Debug)]
pub struct DominoHead {
    shape: DominoShape,
    /// `[D, H]`: the columns of fc1 that read trunk states.
    from_hidden: Tensor,
    /// `[D + 3G, G]`: the columns of fc1 that read the recurrent state, then the recurrent weights.
    from_state: Tensor,
    /// `[3G, H]`: weights of the recurrent input.
    from_token: Tensor,
    /// `[V_d, D]`.
    fc2: Tensor,
    /// Most bytes of a table.
    table_bytes: usize,
    /// `[V, 3G]`: `from_token` times every embedding; made at the first draft.
    table: Option<Tensor>,
}

/// One draft position of all rows, before its tokens are chosen.
#[derive(Debug)]
pub struct DraftStep<'a> {
    /// Draft number, from 0.
    pub slot: usize,
    /// `[R, V_d]` f32, corrected.
    pub logits: &'a Tensor,
    /// `[R, G]` f32: the recurrent state after the anchor and the drafts before this one.
    pub state: &'a Tensor,
}

impl DominoHead {
    /// Takes `prefix_gru.weight_ih_l0` `[3G, H]`, `prefix_gru.weight_hh_l0` `[3G, G]` (rows in the order reset, update,
    /// new), `embed_proj.0.weight` `[D, H + G]` and `embed_proj.2.weight` `[V_d, D]`; all may be under `logit_head.`.
    ///
    /// # Errors
    /// If one is missing or has another shape.
    pub fn new(shape: DominoShape, weights: &mut Weights) -> crate::Result<Self> {
        let DominoShape {
            hidden,
            draft_vocab,
            gru,
            rank,
            ..
        } = shape;
        let prefix = match weights.has(&format!("{LEGACY}embed_proj.0.weight")) {
            true => LEGACY,
            false => "",
        };
        let mut take = |name: &str, dims: &[usize]| weights.take(&format!("{prefix}{name}"), dims);
        let from_token = take("prefix_gru.weight_ih_l0", &[3 * gru, hidden])?;
        let recurrent = take("prefix_gru.weight_hh_l0", &[3 * gru, gru])?;
        let fc1 = take("embed_proj.0.weight", &[rank, hidden + gru])?;
        let fc2 = take("embed_proj.2.weight", &[draft_vocab, rank])?;
        let fc1_state = fc1.narrow(1, hidden, gru)?;
        Ok(Self {
            shape,
            from_hidden: fc1.narrow(1, 0, hidden)?.contiguous()?,
            from_state: Tensor::cat(&[&fc1_state, &recurrent], 0)?.contiguous()?,
            from_token,
            fc2,
            table_bytes: TABLE_BYTES,
            table: None,
        })
    }

    /// Changes up to which size, in bytes, the recurrent inputs of all V tokens are computed once and looked up.
    #[must_use]
    pub fn with_table_of(mut self, bytes: usize) -> Self {
        self.table_bytes = bytes;
        self
    }

    /// Its sizes.
    pub fn shape(&self) -> DominoShape {
        self.shape
    }

    /// Walks along the blocks of R rows, all rows together. `pick` is shown each position and says the R tokens drafted
    /// there, by their target ids.
    ///
    /// `hidden` `[R * gamma, H]` and `logits` `[R * gamma, V_d]` f32: the trunk's draft slots, row after row; `anchors`:
    /// R tokens.
    ///
    /// # Errors
    /// If shapes do not fit, or `pick` fails.
    pub fn roll(
        &mut self,
        hidden: &Tensor,
        logits: &Tensor,
        anchors: &[TokenId],
        io: &dyn TokenIo,
        mut pick: impl FnMut(&DraftStep<'_>) -> Result<Vec<TokenId>>,
    ) -> Result<()> {
        let DominoShape {
            draft_vocab,
            gru,
            rank,
            ..
        } = self.shape;
        let n_rows = anchors.len();
        let gamma = logits.dim(0)? / n_rows.max(1);
        let logits = logits.reshape((n_rows, gamma, draft_vocab))?;
        let by_hidden = linear(hidden, &self.from_hidden)?.reshape((n_rows, gamma, rank))?;
        let mut tokens = anchors.to_vec();
        let mut state = Tensor::zeros((n_rows, gru), DType::F32, &Device::Cpu)?;
        // What the zero state gives.
        let mut by_state = Tensor::zeros((n_rows, rank + 3 * gru), DType::F32, &Device::Cpu)?;
        for slot in 0..gamma {
            let given = self.given(&tokens, io)?;
            state = gru_cell(&given, &by_state.narrow(1, rank, 3 * gru)?, &state)?;
            by_state = linear(&state, &self.from_state)?;
            // [R, gamma, V_d] -> [R, V_d]
            let base = logits.narrow(1, slot, 1)?.squeeze(1)?.contiguous()?;
            let corrected = match slot < self.shape.prefix {
                true => base,
                false => {
                    let by_hidden = by_hidden.narrow(1, slot, 1)?.squeeze(1)?;
                    let inner = (by_hidden + by_state.narrow(1, 0, rank)?)?.silu()?;
                    (base + linear(&inner, &self.fc2)?)?
                }
            };
            tokens = pick(&DraftStep {
                slot,
                logits: &corrected,
                state: &state,
            })?;
        }
        Ok(())
    }

    /// `[R]` tokens to `[R, 3G]`, the recurrent input of each.
    fn given(&mut self, tokens: &[TokenId], io: &dyn TokenIo) -> Result<Tensor> {
        let DominoShape { vocab, gru, .. } = self.shape;
        let ids = Tensor::new(tokens, &Device::Cpu)?;
        if vocab * 3 * gru * DType::F32.size_in_bytes() > self.table_bytes {
            return Ok(linear(&io.embed(&ids)?, &self.from_token)?);
        }
        let table = match &self.table {
            Some(table) => table,
            None => {
                let all = Tensor::arange(0, vocab as u32, &Device::Cpu)?;
                self.table
                    .insert(linear(&io.embed(&all)?, &self.from_token)?)
            }
        };
        Ok(table.index_select(&ids, 0)?)
    }
}

/// One step of a GRU without biases: `given` and `recurrent` `[R, 3G]` (reset, update, new), `state` `[R, G]`.
///
/// The reset gate multiplies what the recurrent weights made of the state, as in PyTorch and cuDNN.
fn gru_cell(given: &Tensor, recurrent: &Tensor, state: &Tensor) -> Result<Tensor> {
    let (n_rows, gru) = state.dims2()?;
    let values = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
    let (given, recurrent) = (values(given)?, values(recurrent)?);
    let mut next = values(state)?;
    let rows = given.chunks(3 * gru).zip(recurrent.chunks(3 * gru));
    for (state, (given, recurrent)) in next.chunks_mut(gru).zip(rows) {
        for (i, value) in state.iter_mut().enumerate() {
            let reset = sigmoid(given[i] + recurrent[i]);
            let update = sigmoid(given[gru + i] + recurrent[gru + i]);
            let new = (given[2 * gru + i] + reset * recurrent[2 * gru + i]).tanh();
            *value = (1.0 - update) * new + update * *value;
        }
    }
    Ok(Tensor::from_vec(next, (n_rows, gru), &Device::Cpu)?)
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
