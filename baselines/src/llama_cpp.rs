//! A DFlash or DSpark drafter as the GGUF file that llama.cpp drafts with.
//!
//! Source: llama.cpp as PyPI's `llama-cpp-python` 0.3.36 carries it: `src/models/dflash.cpp` for tensors and the graph,
//! `common/speculative.cpp` for what a block is, `conversion/qwen.py` for keys.

use std::collections::BTreeSet;

use candle_core::quantized::gguf_file::Value;
use candle_core::{DType, Device, Tensor};
use models::{Fields, GgufTarget, GgufType, GgufWriter, MlpDims, RopeConfig, Source, Weights};
use serde_json::json;

use crate::dspark::{ConfidenceInput, HeadConfig, MarkovKind, has_calibration};
use crate::trunk::{CONFIG, HeadFields, no_head};
use crate::{Alignment, Error, Result, TargetFacts, TrunkConfig};

/// `general.architecture`, and the prefix of its keys.
const ARCHITECTURE: &str = "dflash";
const MASK: &str = "tokenizer.ggml.mask_token_id";

/// Which of llama.cpp's kinds of drafting (`--spec-type`) runs a drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecType {
    /// The anchor's slot predicts nothing.
    Dflash,
    /// The anchor's slot predicts the first draft token, and a Markov head corrects every slot.
    Dspark,
}

impl SpecType {
    /// As `--spec-type` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dflash => "draft-dflash",
            Self::Dspark => "draft-dspark",
        }
    }
}

/// A drafter that is ready to be written.
#[derive(Debug)]
pub struct LlamaCppDrafter {
    /// The file.
    pub file: GgufWriter,
    /// What runs it.
    pub spec_type: SpecType,
    /// Draft tokens of a round.
    pub gamma: usize,
    /// What is not in the file as it was in the checkpoint.
    pub notes: Vec<&'static str>,
}

/// What is known of a drafter before its tensors are read.
struct Plan {
    trunk: TrunkConfig,
    head: Option<HeadConfig>,
    /// Rows of a head of its own, if the vocabulary it drafts from is a part of the target's.
    draft_vocab: Option<usize>,
    label: String,
}

/// Reads a checkpoint of ours and puts the file together; matrices are stored as `matrices`, vectors as f32.
///
/// llama.cpp has shifted blocks only with a Markov head, so a shifted DFlash drafter gets one of rank 1 that is 0
/// everywhere: it adds 0 to every logit.
///
/// # Errors
/// If files are missing, wrong or made for another target, or hold what llama.cpp has no place for: another head than
/// DSpark's plain one, or a tap on the target's last layer.
pub fn to_llama_cpp(
    source: &Source,
    target: &GgufTarget,
    matrices: GgufType,
) -> Result<LlamaCppDrafter> {
    let plan = Plan::read(source)?;
    plan.check(target)?;
    let is_shifted = plan.trunk.alignment == Alignment::Shifted;
    let spec_type = match is_shifted {
        true => SpecType::Dspark,
        false => SpecType::Dflash,
    };
    let mut file = GgufWriter::default();
    plan.keys(&mut file, target, spec_type, matrices);
    let mut weights = Weights::open(source)?;
    plan.trunk_tensors(&mut file, &mut weights, matrices)?;
    plan.vocabulary(&mut file, &mut weights, matrices)?;
    let mut notes = Vec::new();
    match &plan.head {
        Some(head) => plan.markov(&mut file, &mut weights, head, matrices)?,
        None if is_shifted => {
            plan.zero_markov(&mut file)?;
            notes.push(
                "its first draft token is the anchor's slot, so it has a Markov head of zeros",
            );
        }
        None => {}
    }
    weights.finish()?;
    if has_calibration(source) {
        notes.push("calibration.json has no place in the file; its confidences are as trained");
    }
    Ok(LlamaCppDrafter {
        file,
        spec_type,
        gamma: plan.trunk.gamma(),
        notes,
    })
}

impl Plan {
    fn read(source: &Source) -> Result<Self> {
        let label = source.label(CONFIG);
        let mut fields = Fields::parse(&label, &source.read(CONFIG)?)?;
        check_method(&mut fields)?;
        let (trunk, head) = TrunkConfig::load_with(source, read_head)?;
        Ok(Self {
            draft_vocab: (trunk.draft_vocab < trunk.vocab).then_some(trunk.draft_vocab),
            trunk,
            head,
            label,
        })
    }

    fn check(&self, target: &GgufTarget) -> Result<()> {
        let facts = TargetFacts {
            id: target.file.clone(),
            hidden: target.hidden,
            vocab: target.vocab,
            n_layers: target.n_layers,
        };
        self.trunk.check_target(self.label.clone(), &facts)?;
        let last = self.trunk.n_target_layers - 1;
        if self.trunk.taps.iter().any(|tap| tap.0 == last) {
            return Err(self.refused(format!(
                "target_layer_ids names {last}, the target's last layer; llama.cpp hands on what enters a layer, so \
                 it cannot run this drafter"
            )));
        }
        let kind = self.head.map(|head| head.kind);
        match kind {
            None | Some(MarkovKind::Vanilla) => Ok(()),
            Some(MarkovKind::Gated | MarkovKind::Rnn) => Err(self.refused(
                "markov_head_type is gated or rnn, llama.cpp has vanilla alone and cannot run this drafter".into(),
            )),
        }
    }

    fn refused(&self, why: String) -> Error {
        Error::Config {
            file: self.label.clone(),
            why,
        }
    }

    fn keys(
        &self,
        file: &mut GgufWriter,
        target: &GgufTarget,
        spec_type: SpecType,
        matrices: GgufType,
    ) {
        let trunk = &self.trunk;
        let attention = trunk.layer.attention;
        let MlpDims::Dense { intermediate } = trunk.layer.mlp else {
            unreachable!("a trunk's config makes dense layers alone")
        };
        let (RopeConfig::Default { theta } | RopeConfig::Llama3 { theta, .. }) = trunk.rope;
        let name = match self.head {
            Some(_) => "DSpark drafter",
            None => "DFlash drafter",
        };
        file.set("general.architecture", Value::String(ARCHITECTURE.into()));
        file.set("general.name", Value::String(name.into()));
        file.set("general.file_type", Value::U32(matrices.file_type()));
        if matrices == GgufType::Q8_0 {
            file.set("general.quantization_version", Value::U32(2));
        }
        let mut own = |key: &str, value| file.set(format!("{ARCHITECTURE}.{key}"), value);
        let sizes = [
            ("context_length", trunk.max_positions),
            ("embedding_length", trunk.hidden),
            ("block_count", trunk.n_layers),
            ("feed_forward_length", intermediate),
            ("attention.head_count", attention.n_heads),
            ("attention.head_count_kv", attention.n_kv_heads),
            ("attention.key_length", attention.head_dim),
            ("attention.value_length", attention.head_dim),
            ("rope.dimension_count", attention.head_dim),
            ("vocab_size", trunk.vocab),
            ("block_size", trunk.block_rows),
        ];
        for (key, size) in sizes {
            own(key, Value::U32(size as u32));
        }
        own(
            "attention.layer_norm_rms_epsilon",
            Value::F32(attention.rms_eps),
        );
        own("rope.freq_base", Value::F32(theta as f32));
        own("attention.causal", Value::Bool(false));
        // What enters layer i + 1 is what leaves layer i.
        let taps = trunk.taps.iter().map(|tap| Value::I32(tap.0 as i32 + 1));
        own("target_layers", Value::Array(taps.collect()));
        if spec_type == SpecType::Dspark {
            own("sample_from_anchor", Value::Bool(true));
            let rated = self.head.is_some_and(|head| head.confidence.is_some());
            own("has_confidence_head", Value::Bool(rated));
        }
        for (key, value) in target.tokenizer.iter().filter(|(key, _)| key != MASK) {
            file.set(key, value.clone());
        }
        file.set(MASK, Value::U32(trunk.mask));
    }

    /// All but the head. Rows of queries and keys stay as they are: halves, as llama.cpp rotates them in this
    /// architecture.
    fn trunk_tensors(
        &self,
        file: &mut GgufWriter,
        weights: &mut Weights,
        matrices: GgufType,
    ) -> Result<()> {
        let trunk = &self.trunk;
        let hidden = trunk.hidden;
        let mut copy = |to: String, from: String, shape: &[usize]| -> Result<()> {
            let tensor = weights.take(&from, shape)?;
            Ok(file.push(&to, &tensor, matrices)?)
        };
        for (to, from, shape) in [
            ("fc", "fc", vec![hidden, trunk.taps.len() * hidden]),
            ("enc.output_norm", "hidden_norm", vec![hidden]),
            ("output_norm", "norm", vec![hidden]),
        ] {
            copy(format!("{to}.weight"), format!("{from}.weight"), &shape)?;
        }
        for i in 0..trunk.n_layers {
            for (to, from, shape) in layer(trunk) {
                let to = format!("blk.{i}.{to}.weight");
                copy(to, format!("layers.{i}.{from}.weight"), &shape)?;
            }
        }
        if let RopeConfig::Llama3 { theta, .. } = trunk.rope {
            let head_dim = trunk.layer.attention.head_dim;
            let plain = RopeConfig::Default { theta }.frequencies(head_dim);
            let scaled = trunk.rope.frequencies(head_dim);
            let divisors: Vec<f32> = plain.iter().zip(scaled).map(|(p, s)| p / s).collect();
            let divisors = Tensor::new(divisors, &Device::Cpu)?;
            file.push("rope_freqs.weight", &divisors, GgufType::F32)?;
        }
        Ok(())
    }

    /// The head of a reduced vocabulary and the target's id of each of its rows; a whole one is the target's own, which
    /// llama.cpp borrows, as it does the embedding.
    fn vocabulary(
        &self,
        file: &mut GgufWriter,
        weights: &mut Weights,
        matrices: GgufType,
    ) -> Result<()> {
        weights.ignore("embed_tokens.weight");
        let Some(n_rows) = self.draft_vocab else {
            for name in ["lm_head.weight", "d2t", "t2d"] {
                weights.ignore(name);
            }
            return Ok(());
        };
        weights.ignore("t2d");
        let head = weights.take("lm_head.weight", &[n_rows, self.trunk.hidden])?;
        file.push("output.weight", &head, matrices)?;
        let offsets = weights.take_integers("d2t", n_rows)?;
        let ids = (0i64..)
            .zip(offsets)
            .map(|(row, offset)| row.saturating_add(offset));
        let ids: Vec<i64> = ids.collect();
        let vocab = self.trunk.vocab;
        let outside = |id: &&i64| usize::try_from(**id).map_or(true, |id| id >= vocab);
        if let Some(id) = ids.iter().find(outside) {
            return Err(self.refused(format!(
                "tensor \"d2t\" leads to token {id}, vocab_size is {vocab}; it holds the distance from a row to its token"
            )));
        }
        if ids.iter().collect::<BTreeSet<_>>().len() < ids.len() {
            return Err(self.refused(
                "tensor \"d2t\" leads to one token from two rows; it holds the distance from a row to its token".into(),
            ));
        }
        file.push_integers("d2t", &ids);
        Ok(())
    }

    fn markov(
        &self,
        file: &mut GgufWriter,
        weights: &mut Weights,
        head: &HeadConfig,
        matrices: GgufType,
    ) -> Result<()> {
        let hidden = self.trunk.hidden;
        for (name, n_rows) in [
            ("markov_w1", self.trunk.vocab),
            ("markov_w2", self.n_drafted()),
        ] {
            let table =
                weights.take(&format!("markov_head.{name}.weight"), &[n_rows, head.rank])?;
            file.push(&format!("{name}.weight"), &table, matrices)?;
        }
        let Some(input) = head.confidence else {
            return Ok(());
        };
        let width = match input {
            ConfidenceInput::Hidden => hidden,
            ConfidenceInput::HiddenAndMarkov => hidden + head.rank,
        };
        let weight = weights.take("confidence_head.proj.weight", &[1, width])?;
        // One that does not read the Markov embedding multiplies it by 0.
        let weight = weight.pad_with_zeros(1, 0, hidden + head.rank - width)?;
        file.push("conf_proj.weight", &weight, GgufType::F32)?;
        let bias = weights.take("confidence_head.proj.bias", &[1])?;
        Ok(file.push("conf_proj.bias", &bias, GgufType::F32)?)
    }

    /// A Markov head that corrects nothing.
    fn zero_markov(&self, file: &mut GgufWriter) -> Result<()> {
        for (name, n_rows) in [
            ("markov_w1.weight", self.trunk.vocab),
            ("markov_w2.weight", self.n_drafted()),
        ] {
            let zeros = Tensor::zeros((n_rows, 1), DType::F32, &Device::Cpu)?;
            file.push(name, &zeros, GgufType::F32)?;
        }
        Ok(())
    }

    /// Tokens that can be drafted.
    fn n_drafted(&self) -> usize {
        self.draft_vocab.unwrap_or(self.trunk.vocab)
    }
}

/// Refuses drafters that llama.cpp has no head for.
fn check_method(fields: &mut Fields) -> Result<()> {
    const KEY: &str = "architectures";
    let architectures: Vec<String> = fields.required(KEY)?;
    let own_head = match architectures.join(" ").as_str() {
        "DominoDraftModel" => Some("Domino"),
        "DCOCODraftModel" => Some("DCOCO"),
        "DFlashDraftModel" | "Qwen3DSparkModel" => None,
        _ => {
            let known = "DFlashDraftModel, Qwen3DSparkModel";
            return Err(fields.unsupported(KEY, &json!(architectures), known).into());
        }
    };
    match own_head {
        None => Ok(()),
        Some(title) => Err(Error::Config {
            file: fields.file().to_owned(),
            why: format!(
                "llama.cpp has no head of {title}; drafters of DFlash and DSpark can be exported"
            ),
        }),
    }
}

/// Reads the keys of a DSpark head, or refuses those of any other.
fn read_head(fields: HeadFields<'_>) -> Result<Option<HeadConfig>> {
    let is_flat = fields.nested.is_none();
    if is_flat && fields.outer.has("markov_rank") {
        let rank: usize = fields.outer.required("markov_rank")?;
        if rank > 0 {
            return Ok(Some(HeadConfig::of_rank(rank, fields.outer)?));
        }
    }
    no_head(fields)?;
    Ok(None)
}

/// GGUF's name, ours and the shape of every tensor of a layer.
fn layer(trunk: &TrunkConfig) -> [(&'static str, &'static str, Vec<usize>); 11] {
    let hidden = trunk.hidden;
    let attention = trunk.layer.attention;
    let d = attention.head_dim;
    let (q, kv) = (attention.n_heads * d, attention.n_kv_heads * d);
    let MlpDims::Dense { intermediate } = trunk.layer.mlp else {
        unreachable!("a trunk's config makes dense layers alone")
    };
    [
        ("attn_norm", "input_layernorm", vec![hidden]),
        ("attn_q", "self_attn.q_proj", vec![q, hidden]),
        ("attn_k", "self_attn.k_proj", vec![kv, hidden]),
        ("attn_v", "self_attn.v_proj", vec![kv, hidden]),
        ("attn_output", "self_attn.o_proj", vec![hidden, q]),
        ("attn_q_norm", "self_attn.q_norm", vec![d]),
        ("attn_k_norm", "self_attn.k_norm", vec![d]),
        ("ffn_norm", "post_attention_layernorm", vec![hidden]),
        ("ffn_gate", "mlp.gate_proj", vec![intermediate, hidden]),
        ("ffn_up", "mlp.up_proj", vec![intermediate, hidden]),
        ("ffn_down", "mlp.down_proj", vec![hidden, intermediate]),
    ]
}
