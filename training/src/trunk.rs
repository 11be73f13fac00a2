//! The DFlash trunk in differentiable form: a few Qwen3 layers that read projected target taps as keys and values and
//! fill a block of masked slots in one pass.
//!
//! Source: DFlash (arXiv 2602.06036) and the z-lab and DeepSpec code; tensor names as in their checkpoints.

use crate::check::{ABOVE_0, Check};
use crate::config::{Family, NetConfig};
use crate::error::Result;
use crate::layer::{Layer, Maker, Rows};
use crate::lm::CausalLm;
use crate::ops::{KeySpan, RopeTable, Segment, linear, rms_norm};
use crate::params::{Init, Params};
use baselines::Alignment;
use candle_core::{D, DType, Device, Tensor};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// Shape of a trunk, as a recipe's `[drafter]` table gives it; widths are the target's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrunkConfig {
    /// Draft layers.
    pub num_hidden_layers: usize,
    /// Width of their feed-forward blocks; the target's, if these are to be copied from it.
    pub intermediate_size: usize,
    /// Input rows of a block, the anchor's included; how many of them draft follows from `alignment`.
    #[serde(rename = "block_size")]
    pub block_rows: usize,
    /// What a slot predicts.
    pub alignment: Alignment,
    /// Target layers that are read, rising, 0-based.
    pub target_layer_ids: Vec<usize>,
    /// Token ids that are drafted, the answers' most frequent ones; without it, all.
    #[serde(default)]
    pub draft_vocab_size: Option<usize>,
}

impl TrunkConfig {
    /// What the `[drafter]` table must fulfil.
    pub(crate) fn checks(&self) -> Vec<Check> {
        let taps = &self.target_layer_ids;
        vec![
            (
                "drafter.num_hidden_layers",
                self.num_hidden_layers > 0,
                ABOVE_0,
            ),
            (
                "drafter.intermediate_size",
                self.intermediate_size > 0,
                ABOVE_0,
            ),
            ("drafter.block_size", self.block_rows > 1, "must be above 1"),
            (
                "drafter.draft_vocab_size",
                self.draft_vocab_size != Some(0),
                ABOVE_0,
            ),
            (
                "drafter.target_layer_ids",
                !taps.is_empty() && taps.is_sorted_by(|a, b| a < b),
                "must rise and not be empty",
            ),
        ]
    }
}

/// A trunk under training.
pub(crate) struct Trunk {
    /// The trained tensors under checkpoint names.
    pub params: Params,
    config: TrunkConfig,
    net: NetConfig,
    fc: Tensor,
    hidden_norm: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    table: Arc<RopeTable>,
}

/// One block: the context it reads and where it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockAt {
    /// Rows of the taps it sees.
    pub context: Range<usize>,
    /// Position of the anchor, slot 0.
    pub position: usize,
}

impl Trunk {
    /// A new trunk for a target of shape `target`, with weights drawn from `seed`.
    ///
    /// # Errors
    /// If a tensor cannot be made.
    pub(crate) fn new(config: &TrunkConfig, target: &NetConfig, seed: u64) -> Result<Self> {
        // Qwen3-shaped whatever the target.
        let net = NetConfig {
            architecture: Family::Qwen3ForCausalLM,
            num_hidden_layers: config.num_hidden_layers,
            intermediate_size: config.intermediate_size,
            tie_word_embeddings: false,
            experts: None,
            ..target.clone()
        };
        let hidden = net.hidden_size;
        let mut params = Params::default();
        let fused = config.target_layer_ids.len() * hidden;
        let std = Init::Normal((fused as f64).sqrt().recip());
        let fc = params.add("fc.weight", &[hidden, fused], std, seed)?;
        let hidden_norm = params.add("hidden_norm.weight", &[hidden], Init::One, seed)?;
        let norm = params.add("norm.weight", &[hidden], Init::One, seed)?;
        let layers = (0..net.num_hidden_layers)
            .map(|i| {
                let prefix = format!("layers.{i}.");
                let params = &mut params;
                Layer::new(
                    &net,
                    &mut Maker {
                        params,
                        prefix,
                        seed,
                    },
                )
            })
            .collect::<Result<_>>()?;
        let n_positions = net.max_position_embeddings + config.block_rows;
        let table = RopeTable::new(net.head_dim, n_positions, net.rope_theta);
        Ok(Self {
            params,
            config: config.clone(),
            net,
            fc,
            hidden_norm,
            layers,
            norm,
            table: Arc::new(table),
        })
    }

    /// What its recipe says.
    pub(crate) fn config(&self) -> &TrunkConfig {
        &self.config
    }

    /// The shape of its layers.
    pub(crate) fn net(&self) -> &NetConfig {
        &self.net
    }

    /// Starts from the target: its last layers, its final norm, and a projection that passes the last tap on.
    /// Tensors that the target does not have in this shape (experts, a Llama's head norms) stay as they are.
    /// Returns the names that were copied.
    ///
    /// # Errors
    /// If a tensor cannot be copied.
    pub(crate) fn warm_start(&self, target: &CausalLm) -> Result<Vec<String>> {
        let source = target.params.snapshot(DType::F32)?;
        let depth = target.config().num_hidden_layers;
        let first = depth - self.net.num_hidden_layers.min(depth);
        let mut copied = Vec::new();
        for (name, var) in self.params.iter() {
            let from = match name
                .strip_prefix("layers.")
                .and_then(|rest| rest.split_once('.'))
            {
                Some((index, rest)) => {
                    let index: usize = index.parse().expect("trunk tensors are numbered");
                    format!("model.layers.{}.{rest}", first + index)
                }
                None if name == "norm.weight" => "model.norm.weight".to_owned(),
                // Keys and values of the target come from inputs that went through this norm.
                None if name == "hidden_norm.weight" => {
                    format!("model.layers.{first}.input_layernorm.weight")
                }
                None => continue,
            };
            if let Some(tensor) = source.get(&from).filter(|t| t.dims() == var.dims()) {
                var.set(tensor)?;
                copied.push(name.to_owned());
            }
        }
        if let Some(fc) = self.params.get("fc.weight") {
            fc.set(&passes_last_tap(&self.fc)?)?;
        }
        Ok(copied)
    }

    /// Final normed states `[blocks * block_rows, H]` of all blocks at once.
    ///
    /// `taps`: one `[C, H]` a tapped layer, rows of all texts end to end; `positions`: where each of them stands;
    /// `slots`: `[blocks * block_rows, H]` embeddings of anchors and masks. A block sees its context rows and itself.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub(crate) fn forward(
        &self,
        taps: &[Tensor],
        positions: &[u32],
        slots: &Tensor,
        blocks: &[BlockAt],
    ) -> Result<Tensor> {
        let fused = linear(&Tensor::cat(taps, D::Minus1)?.contiguous()?, &self.fc)?;
        let context = rms_norm(&fused, &self.hidden_norm, self.net.rms_norm_eps)?;
        let rows = rows_of_blocks(positions, slots.dim(0)?, blocks);
        let mut x = slots.clone();
        for layer in &self.layers {
            x = layer.forward(&x, Some(&context), &rows, &self.table)?.0;
        }
        Ok(rms_norm(&x, &self.norm, self.net.rms_norm_eps)?)
    }
}

/// A projection `[H, taps * H]` that hands the last tap on, with a tenth of the values drawn for the others to start from.
pub(crate) fn passes_last_tap(fc: &Tensor) -> Result<Tensor> {
    let (hidden, fused) = fc.dims2()?;
    let mut values: Vec<f32> = (fc.detach() * 0.1)?.flatten_all()?.to_vec1()?;
    for i in 0..hidden {
        values[i * fused + fused - hidden + i] += 1.0;
    }
    Ok(Tensor::from_vec(values, (hidden, fused), &Device::Cpu)?)
}

/// Who sees whom: context rows are keys `0..C`, block rows follow them.
fn rows_of_blocks(context: &[u32], n_slots: usize, blocks: &[BlockAt]) -> Rows {
    let block_rows = n_slots / blocks.len().max(1);
    let n_context = context.len();
    let mut positions = Vec::with_capacity(n_slots);
    let mut segments = Vec::with_capacity(blocks.len());
    for (i, block) in blocks.iter().enumerate() {
        let queries = i * block_rows..(i + 1) * block_rows;
        positions.extend((0..block_rows).map(|slot| (block.position + slot) as u32));
        segments.push(Segment {
            keys: [
                block.context.clone(),
                n_context + queries.start..n_context + queries.end,
            ],
            queries,
            span: KeySpan::Full,
        });
    }
    Rows {
        segments: segments.into(),
        key_positions: [context, &positions].concat().into(),
        positions: positions.into(),
    }
}
