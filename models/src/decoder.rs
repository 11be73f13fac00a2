//! The one decoder that runs every target family.

use candle_core::{DType, Device, Tensor};
use decode::{Error, Feed, Forward, Keep, LayerId, Result, Slot, Target, TokenId, TokenIo};

use crate::cache::{CacheDims, Rows, SlotCache, bytes};
use crate::config::{DecoderConfig, HeadKind};
use crate::error::{self, LoadError};
use crate::layer::{CacheAt, Layer};
use crate::rope::Rope;
use crate::source::Source;
use crate::weights::{Precision, Weights};

/// How much cache a decoder gets, and how it keeps its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderOptions {
    /// Sequences at once.
    pub slots: usize,
    /// Positions a slot, at most what the model was trained for.
    pub capacity: usize,
    /// How [`Decoder::load`] keeps weight matrices.
    pub precision: Precision,
}

/// A causal language model with a cache of fixed size. Activations and sums are f32.
#[derive(Debug)]
pub struct Decoder {
    config: DecoderConfig,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
    rope: Rope,
    cache: SlotCache,
}

impl Decoder {
    /// Reads config and weights of a checkpoint.
    ///
    /// # Errors
    /// If a file is unreadable or does not describe one of the known families.
    pub fn load(source: &Source, options: DecoderOptions) -> error::Result<Self> {
        let config = DecoderConfig::load(source)?;
        let weights = Weights::open(source)?.kept_as(options.precision);
        Self::new(config, weights, options)
    }

    /// Builds a decoder from its parts.
    ///
    /// # Errors
    /// If a tensor is missing, left over or of another shape, or the cache is empty or longer than the model allows.
    pub fn new(
        config: DecoderConfig,
        mut weights: Weights,
        options: DecoderOptions,
    ) -> error::Result<Self> {
        if options.capacity > config.max_positions {
            return Err(LoadError::Cache {
                slots: options.slots,
                capacity: options.capacity,
                why: format!("the model ends at position {}", config.max_positions),
            });
        }
        let cache = SlotCache::new(CacheDims {
            n_layers: config.n_layers,
            slots: options.slots,
            capacity: options.capacity,
            width: config.n_kv_heads * config.head_dim,
        })?;
        let table = [config.vocab, config.hidden];
        let embedding = weights.take_matrix("model.embed_tokens.weight", table)?;
        let head = match config.head {
            HeadKind::Own => weights.take_matrix("lm_head.weight", table)?,
            HeadKind::Tied => {
                weights.ignore("lm_head.weight");
                embedding.clone()
            }
        };
        let layers = (0..config.n_layers)
            .map(|i| {
                Layer::load(
                    &mut weights,
                    &format!("model.layers.{i}."),
                    config.layer_dims(),
                )
            })
            .collect::<error::Result<_>>()?;
        let norm = weights.take("model.norm.weight", &[config.hidden])?;
        weights.finish()?;
        Ok(Self {
            rope: Rope::new(&config.rope, config.head_dim, options.capacity)?,
            config,
            embedding,
            layers,
            norm,
            head,
            cache,
        })
    }

    /// The decoder's shape.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Memory of the weight matrices, a table that serves as both embedding and head counted once; norms and routers left
    /// out.
    pub fn weight_bytes(&self) -> usize {
        let own_head = match self.config.head {
            HeadKind::Tied => 0,
            HeadKind::Own => bytes(&self.head),
        };
        let layers: usize = self.layers.iter().map(Layer::weight_bytes).sum();
        bytes(&self.embedding) + own_head + layers
    }

    /// Keys and values of all slots.
    pub fn cache(&self) -> &SlotCache {
        &self.cache
    }

    fn check_taps(&self, taps: &[LayerId]) -> Result<()> {
        match taps.iter().find(|tap| tap.0 >= self.layers.len()) {
            Some(tap) => Err(Error::Model(format!(
                "tap {} is unknown, the target's layers are 0..{}",
                tap.0,
                self.layers.len()
            ))),
            None => Ok(()),
        }
    }
}

impl TokenIo for Decoder {
    fn vocab(&self) -> usize {
        self.config.vocab
    }

    fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        let known = self.config.vocab;
        let values = ids.to_vec1::<u32>()?;
        match values.iter().find(|id| **id as usize >= known) {
            Some(id) => Err(Error::Model(format!(
                "token {id} is unknown, the vocabulary is 0..{known}"
            ))),
            None => Ok(self.embedding.index_select(ids, 0)?.to_dtype(DType::F32)?),
        }
    }

    fn lm_head(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(kernels::linear(hidden, &self.head)?)
    }
}

impl Target for Decoder {
    fn stop_tokens(&self) -> &[TokenId] {
        &self.config.stop_tokens
    }

    fn capacity(&self) -> usize {
        self.cache.capacity()
    }

    fn forward(&mut self, feeds: &[Feed<'_>], taps: &[LayerId]) -> Result<Forward> {
        self.check_taps(taps)?;
        let plan = self
            .cache
            .plan(&feeds.iter().map(Rows::from).collect::<Vec<_>>())?;
        let ids: Vec<TokenId> = feeds.iter().flat_map(|feed| feed.tokens).copied().collect();
        let n_rows = ids.len();
        if n_rows == 0 {
            return no_rows(&self.config, taps.len());
        }
        let mut x = self.embed(&Tensor::from_vec(ids, n_rows, &Device::Cpu)?)?;
        let mut seen: Vec<Option<Tensor>> = vec![None; taps.len()];
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(
                &x,
                &mut CacheAt {
                    cache: &mut self.cache,
                    layer: i,
                    plan: &plan,
                    rope: &self.rope,
                },
            )?;
            for (tap, seen) in taps.iter().zip(&mut seen) {
                if tap.0 == i {
                    *seen = Some(x.clone());
                }
            }
        }
        self.cache.advance(&plan);
        let asked = rows_with_logits(feeds);
        let n_asked = asked.len();
        if n_asked < n_rows {
            x = x.index_select(&Tensor::from_vec(asked, n_asked, &Device::Cpu)?, 0)?;
        }
        let normed = kernels::rms_norm(&x, &self.norm, self.config.rms_eps)?;
        Ok(Forward {
            logits: self.lm_head(&normed)?,
            taps: seen.into_iter().flatten().collect(),
        })
    }

    fn keep(&mut self, slot: Slot, len: usize, path: &[u32]) -> Result<()> {
        self.cache.keep(slot, len, path)
    }
}

/// Packed row numbers that get logits, in feed order.
fn rows_with_logits(feeds: &[Feed<'_>]) -> Vec<u32> {
    let mut rows = Vec::new();
    let mut end = 0;
    for feed in feeds {
        let start = end;
        end += feed.tokens.len() as u32;
        rows.extend(match feed.logits {
            Keep::Last => end - 1..end,
            Keep::All => start..end,
        });
    }
    rows
}

/// The result of feeding nothing.
fn no_rows(config: &DecoderConfig, n_taps: usize) -> Result<Forward> {
    let zeros = |width| Tensor::zeros((0, width), DType::F32, &Device::Cpu);
    Ok(Forward {
        logits: zeros(config.vocab)?,
        taps: vec![zeros(config.hidden)?; n_taps],
    })
}
