//! A causal language model in differentiable form.

use crate::config::NetConfig;
use crate::error::Result;
use crate::files::{save_weights, write_json};
use crate::layer::{Layer, Maker, Rows};
use crate::ops::{RopeTable, Segment, linear, rms_norm};
use crate::params::{Init, Params};
use candle_core::{Device, Tensor};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A target under training: Qwen3, Qwen3-MoE or Llama by its config.
pub(crate) struct CausalLm {
    /// The trained tensors under Hugging Face names.
    pub params: Params,
    config: NetConfig,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    /// Absent if the embedding is the head.
    head: Option<Tensor>,
    table: Arc<RopeTable>,
}

/// What a pass over packed texts returns.
pub(crate) struct LmOutput {
    /// `[N, V]`.
    pub logits: Tensor,
    /// Mean balance loss of the routed layers; absent without experts.
    pub balance: Option<Tensor>,
}

impl CausalLm {
    /// A new model with weights drawn from `seed`.
    ///
    /// # Errors
    /// If a tensor cannot be made.
    pub(crate) fn new(config: &NetConfig, seed: u64) -> Result<Self> {
        let mut params = Params::default();
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let std = Init::Normal(0.02);
        let embedding = params.add("model.embed_tokens.weight", &[vocab, hidden], std, seed)?;
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(params.add("lm_head.weight", &[vocab, hidden], std, seed)?),
        };
        let norm = params.add("model.norm.weight", &[hidden], Init::One, seed)?;
        let layers = (0..config.num_hidden_layers)
            .map(|i| {
                let mut maker = Maker {
                    params: &mut params,
                    prefix: format!("model.layers.{i}."),
                    seed,
                };
                Layer::new(config, &mut maker)
            })
            .collect::<Result<_>>()?;
        let table = RopeTable::new(
            config.head_dim,
            config.max_position_embeddings,
            config.rope_theta,
        );
        Ok(Self {
            params,
            config: config.clone(),
            embedding,
            layers,
            norm,
            head,
            table: Arc::new(table),
        })
    }

    /// A trained model from its folder: `config.json` and `model.safetensors`.
    ///
    /// # Errors
    /// If a file is missing or does not fit the config.
    pub(crate) fn load(folder: &Path) -> Result<Self> {
        let config = NetConfig::from_hugging_face(&folder.join("config.json"))?;
        let lm = Self::new(&config, 0)?;
        lm.params.load(&folder.join("model.safetensors"))?;
        Ok(lm)
    }

    /// Writes what [`Self::load`] and other tools read: `config.json` and bf16 `model.safetensors`. `stop` is the
    /// end-of-turn token, `pad` the padding token.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(crate) fn save(&self, folder: &Path, stop: u32, pad: u32) -> Result<()> {
        save_weights(&folder.join("model.safetensors"), &self.params)?;
        write_json(
            &folder.join("config.json"),
            &self.config.to_hugging_face(stop, pad),
        )
    }

    /// The sizes it was made with.
    pub(crate) fn config(&self) -> &NetConfig {
        &self.config
    }

    /// Logits of every row of packed texts. `texts`: the row range of each text; a text's first token is at position 0.
    ///
    /// # Errors
    /// If a range is outside `ids` or longer than the position table.
    pub(crate) fn forward(&self, ids: &[u32], texts: &[Range<usize>]) -> Result<LmOutput> {
        let (hidden, _, balance) = self.run(ids, texts, &[])?;
        Ok(LmOutput {
            logits: self.logits(&hidden)?,
            balance,
        })
    }

    /// Final normed states `[N, H]` and the outputs `[N, H]` of the layers in `taps`, in that order, without gradient.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub(crate) fn states(
        &self,
        ids: &[u32],
        texts: &[Range<usize>],
        taps: &[usize],
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let (hidden, taps, _) = self.run(ids, texts, taps)?;
        Ok((hidden.detach(), taps.iter().map(Tensor::detach).collect()))
    }

    /// The last layer's output `[N, H]` to final normed states `[N, H]`.
    ///
    /// # Errors
    /// If the width differs.
    pub(crate) fn normed(&self, x: &Tensor) -> Result<Tensor> {
        Ok(rms_norm(x, &self.norm, self.config.rms_norm_eps)?)
    }

    /// `[N, H]` final normed states to `[N, V]` logits.
    ///
    /// # Errors
    /// If the width differs.
    pub(crate) fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(linear(
            hidden,
            self.head.as_ref().unwrap_or(&self.embedding),
        )?)
    }

    /// The head's matrix `[V, H]`, without gradient.
    pub(crate) fn head_weight(&self) -> Tensor {
        self.head.as_ref().unwrap_or(&self.embedding).detach()
    }

    /// The embedding table `[V, H]`, without gradient.
    pub(crate) fn embedding(&self) -> Tensor {
        self.embedding.detach()
    }

    /// `[N]` ids to `[N, H]` rows of the embedding table.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    pub(crate) fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        Ok(self
            .embedding
            .index_select(&Tensor::new(ids, &Device::Cpu)?, 0)?)
    }

    fn run(
        &self,
        ids: &[u32],
        texts: &[Range<usize>],
        taps: &[usize],
    ) -> Result<(Tensor, Vec<Tensor>, Option<Tensor>)> {
        let mut positions = vec![0u32; ids.len()];
        for text in texts {
            for (position, row) in text.clone().enumerate() {
                positions[row] = position as u32;
            }
        }
        let positions: Arc<[u32]> = positions.into();
        let rows = Rows {
            segments: texts.iter().cloned().map(Segment::text).collect(),
            key_positions: positions.clone(),
            positions,
        };
        let mut x = self.embed(ids)?;
        let mut outputs = Vec::with_capacity(self.layers.len());
        let mut balance: Option<Tensor> = None;
        for layer in &self.layers {
            let (next, term) = layer.forward(&x, None, &rows, &self.table)?;
            x = next;
            outputs.push(x.clone());
            balance = match (balance, term) {
                (Some(sum), Some(term)) => Some((sum + term)?),
                (sum, term) => sum.or(term),
            };
        }
        let balance = balance
            .map(|sum| sum / self.layers.len() as f64)
            .transpose()?;
        let hidden = self.normed(&x)?;
        let taps = taps.iter().map(|&t| outputs[t].clone()).collect();
        Ok((hidden, taps, balance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Experts, Family};
    use crate::ops::cross_entropy;
    use crate::ops::testing::{assert_is_alive, difference, relative_difference};
    use crate::optim::Gradients;
    use crate::testing::{SMALL, small};

    #[test]
    fn every_trained_tensor_receives_a_gradient_in_each_family() -> Result<()> {
        for family in SMALL {
            let lm = CausalLm::new(&small(family), 3)?;
            let ids = [1u32, 5, 2, 7, 7, 0, 3, 9, 4];
            let out = lm.forward(&ids, &[0..4, 4..9])?;
            let mut loss = cross_entropy(&out.logits, &[5, 2, 7, 0, 0, 3, 9, 4, 0], &[1.0; 9])?;
            if let Some(balance) = out.balance {
                loss = (loss + balance)?;
            }
            let mut gradients = Gradients::default();
            gradients.add(&lm.params, &loss)?;
            for (name, _) in lm.params.iter() {
                assert_is_alive(gradients.of(name), &format!("{family:?}: {name}"));
            }
        }
        Ok(())
    }

    #[test]
    fn a_text_reads_the_same_alone_and_in_a_pack() -> Result<()> {
        for family in SMALL {
            let lm = CausalLm::new(&small(family), 4)?;
            let (first, second) = ([1u32, 5, 2, 7], [7u32, 0, 3, 9, 4]);
            let packed = lm
                .forward(&[first.as_slice(), &second].concat(), &[0..4, 4..9])?
                .logits;
            let whole = 0..5;
            let alone = lm.forward(&second, std::slice::from_ref(&whole))?.logits;
            let apart = difference(&packed.narrow(0, 4, 5)?, &alone)?;
            // Rows are computed one by one; only the blocking of a matmul may differ.
            assert!(apart < 1e-6, "{family:?}: {apart}");
        }
        Ok(())
    }

    #[test]
    fn families_differ_in_their_tensors_only_where_they_should() -> Result<()> {
        let names = |family| -> Result<Vec<String>> {
            let lm = CausalLm::new(&small(family), 1)?;
            Ok(lm
                .params
                .iter()
                .map(|(n, _)| n.to_owned())
                .filter(|n| n.contains("layers.0"))
                .collect())
        };
        let qwen = names(Family::Qwen3ForCausalLM)?;
        let llama = names(Family::LlamaForCausalLM)?;
        let only_qwen: Vec<&String> = qwen.iter().filter(|n| !llama.contains(n)).collect();
        assert_eq!(
            only_qwen,
            [
                "model.layers.0.self_attn.k_norm.weight",
                "model.layers.0.self_attn.q_norm.weight"
            ]
        );
        let moe = names(Family::Qwen3MoeForCausalLM)?;
        let Experts { num_experts, .. } = small(Family::Qwen3MoeForCausalLM)
            .experts
            .expect("has experts");
        assert_eq!(moe.len(), qwen.len() - 3 + 1 + 3 * num_experts);
        Ok(())
    }

    #[test]
    fn a_saved_target_gives_its_logits_in_the_decoder_that_runs_it() -> Result<()> {
        for family in SMALL {
            let folder = tempfile::tempdir().unwrap();
            CausalLm::new(&small(family), 5)?.save(folder.path(), 2, 0)?;
            // Both sides read the bf16 file.
            let lm = CausalLm::load(folder.path())?;
            let ids = [1u32, 5, 2, 7, 7, 0, 3, 9];
            let whole = 0..ids.len();
            let want = lm.forward(&ids, std::slice::from_ref(&whole))?.logits;

            let source = models::Source::Dir(folder.path().to_owned());
            let options = models::DecoderOptions {
                slots: 1,
                capacity: 16,
                precision: models::Precision::F32,
            };
            let mut decoder = models::Decoder::load(&source, options)?;
            let feed = decode::Feed {
                slot: decode::Slot(0),
                tokens: &ids,
                parents: None,
                logits: decode::Keep::All,
            };
            let got = decode::Target::forward(&mut decoder, &[feed], &[])?.logits;
            let apart = relative_difference(&got, &want)?;
            // Two independent implementations, f32 sums in another order.
            assert!(apart < 1e-5, "{family:?}: {apart}");
        }
        Ok(())
    }
}
