//! Golden values of the Domino loss (PyTorch, f64), and the head under training against the one that runs it.

use super::*;
use crate::anchors::{BlockShape, Blocks, DraftPack};
use crate::block::{DraftNet, Place};
use crate::config::{Family, NetConfig};
use crate::lm::CausalLm;
use crate::ops::testing::assert_is_alive;
use crate::optim::{AdamW, Gradients, OptimizerConfig};
use crate::trunk::{Trunk, TrunkConfig};
use crate::vocab::DraftVocab;
use baselines::{Alignment, DominoHead, DominoShape};
use candle_core::Var;
use decode::{Committed, Drafter, Feed, Keep, Slot, Target};

/// f32 against goldens printed to six digits.
const CLOSE: f64 = 2e-5;

/// `[rows, columns]` of `0.5 * sin(0.7 i + c)`, i counted row by row.
fn wave(c: f64, rows: usize, columns: usize) -> Result<Tensor> {
    let value = |i: usize| (0.5 * (0.7 * i as f64 + c).sin()) as f32;
    let values: Vec<f32> = (0..rows * columns).map(value).collect();
    Ok(Tensor::from_vec(values, (rows, columns), &Device::Cpu)?)
}

fn table(gru: usize, rank: usize, prefix: usize) -> DominoTable {
    DominoTable {
        gru_hidden_dim: gru,
        emb_dim: rank,
        pure_draft_prefix_len: prefix,
        base_weight: 1.0,
        base_until: 1.0,
        learn: Learn::EverySlot,
    }
}

fn net_config(vocab_size: usize, hidden_size: usize, layers: usize) -> NetConfig {
    NetConfig {
        architecture: Family::Qwen3ForCausalLM,
        vocab_size,
        hidden_size,
        intermediate_size: 24,
        num_hidden_layers: layers,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 8,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        max_position_embeddings: 64,
        tie_word_embeddings: false,
        experts: None,
    }
}

/// The goldens' block of 4 (H 4, G 3, rank 2, V 7) over the text 3 1 5 0 2.
struct Golden {
    target: CausalLm,
    params: Params,
    head: Recurrent,
    hidden: Var,
    lm_head: Tensor,
    blocks: Blocks,
    pack: DraftPack,
}

impl Golden {
    fn new(alignment: Alignment, prefix: usize) -> Result<Self> {
        let dims = HeadDims {
            hidden: 4,
            vocab: 7,
            draft_vocab: 7,
            block_rows: 4,
            alignment,
        };
        let mut params = Params::default();
        let head = Recurrent::new(&table(3, 2, prefix), dims, &mut params, 0)?;
        let set = |params: &Params, name: &str, c: f64| -> Result<()> {
            let var = params.get(name).expect("a tensor of the head");
            let (rows, columns) = var.dims2()?;
            Ok(var.set(&wave(c, rows, columns)?)?)
        };
        set(&params, "prefix_gru.weight_ih_l0", 0.3)?;
        set(&params, "prefix_gru.weight_hh_l0", 0.4)?;
        set(&params, "embed_proj.0.weight", 0.5)?;
        set(&params, "embed_proj.2.weight", 0.6)?;
        let target = CausalLm::new(&net_config(7, 4, 1), 0)?;
        set(&target.params, "model.embed_tokens.weight", 0.1)?;
        let mut pack = DraftPack::default();
        pack.push(&[], &[3, 1, 5, 0, 2]);
        let shape = BlockShape {
            block_rows: 4,
            alignment,
            mask: 6,
            decay: Some(7.0),
            coverage: Recurrent::COVERAGE,
        };
        Ok(Self {
            target,
            params,
            head,
            hidden: Var::from_tensor(&wave(0.7, 4, 4)?)?,
            lm_head: wave(0.2, 7, 4)?,
            blocks: Blocks::new(&pack, &[0], &shape),
            pack,
        })
    }

    fn with_out<T>(
        &self,
        progress: f64,
        see: impl FnOnce(&BlockOut<'_>) -> Result<T>,
    ) -> Result<T> {
        let logits = linear(self.hidden.as_tensor(), &self.lm_head)?;
        see(&BlockOut {
            hidden: self.hidden.as_tensor(),
            logits: &logits,
            lm_head: &self.target.head_weight(),
            vocab: &DraftVocab::whole(7),
            target_hidden: &self.hidden.detach(),
            target: &self.target,
            pack: &self.pack,
            blocks: &self.blocks,
            total: self.blocks.weight(),
            progress,
        })
    }

    fn loss(&self, progress: f64) -> Result<f64> {
        let loss = self.with_out(progress, |out| self.head.loss(out))?;
        Ok(f64::from(loss.to_scalar::<f32>()?))
    }

    /// Corrected logits of every row.
    fn corrected(&self) -> Result<Vec<Vec<f32>>> {
        self.with_out(0.0, |out| {
            Ok((out.logits + self.head.correction(out)?)?.to_vec2()?)
        })
    }
}

fn near(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        let off = (f64::from(*got) - want).abs();
        assert!(off < tolerance, "{got} for {want}");
    }
}

#[test]
fn recurrent_states_and_losses_are_the_references() -> Result<()> {
    let golden = Golden::new(Alignment::Shifted, 1)?;
    let states: Vec<Vec<f32>> =
        golden.with_out(0.0, |out| Ok(golden.head.states(out)?.to_vec2()?))?;
    for (got, want) in states.iter().zip([
        [-0.109203, 0.094455, -0.004617],
        [-0.050489, -0.087213, 0.153405],
        [-0.214524, 0.204117, -0.030049],
        [-0.190835, 0.259852, -0.224482],
    ]) {
        near(got, &want, CLOSE);
    }
    assert_eq!(golden.blocks.labels, [1, 5, 0, 2]);
    near(
        &golden.blocks.weights,
        &[1.0, 0.866878, 0.751477, 0.651439],
        CLOSE,
    );
    for (progress, want) in [(0.0, 2.144433863), (1.0, 2.134528524), (0.65, 2.137995392)] {
        let got = golden.loss(progress)?;
        assert!((got - want).abs() < CLOSE, "{got} for {want}");
    }
    // One row at a time: its cross-entropy before and after the correction.
    let mut one = Golden::new(Alignment::Shifted, 1)?;
    for (row, [base, corrected]) in [
        [2.394907, 2.394907],
        [2.178947, 2.300913],
        [1.491922, 1.398537],
        [2.466733, 2.362438],
    ]
    .into_iter()
    .enumerate()
    {
        one.blocks.weights = (0..4).map(|i| if i == row { 1.0 } else { 0.0 }).collect();
        for (progress, want) in [(0.0, base), (1.0, corrected)] {
            let got = one.loss(progress)?;
            assert!((got - want).abs() < CLOSE, "row {row}: {got} for {want}");
        }
    }
    Ok(())
}

#[test]
fn gradients_are_the_references() -> Result<()> {
    // Printed to six digits.
    const CLOSE: f64 = 2e-6;
    let golden = Golden::new(Alignment::Shifted, 1)?;
    let grads = golden
        .with_out(0.65, |out| golden.head.loss(out))?
        .backward()?;
    let of = |var: &Var| -> Result<Vec<Vec<f32>>> {
        Ok(grads.get(var).expect("it has a gradient").to_vec2()?)
    };
    let param = |name: &str| of(golden.params.get(name).expect("a tensor of the head"));
    let fc1 = param("embed_proj.0.weight")?;
    near(
        &fc1[0],
        &[
            0.003899, -0.000078, -0.004018, -0.006068, 0.002364, 0.000464, -0.003806,
        ],
        CLOSE,
    );
    near(
        &fc1[1],
        &[
            0.007592, -0.001219, -0.009456, -0.013246, 0.004899, 0.000606, -0.007423,
        ],
        CLOSE,
    );
    near(
        &param("embed_proj.2.weight")?[1],
        &[-0.007652, -0.005854],
        CLOSE,
    );
    let hidden = of(&golden.hidden)?;
    near(
        &hidden[0],
        &[-0.011363, 0.108788, 0.177775, 0.163151],
        CLOSE,
    );
    near(
        &hidden[3],
        &[0.049582, -0.026427, -0.090007, -0.111256],
        CLOSE,
    );
    // Printed to nine digits; sums of up to 36 values of about 1e-3.
    for (name, want) in [
        ("prefix_gru.weight_ih_l0", 0.007917051),
        ("prefix_gru.weight_hh_l0", 0.000021752),
    ] {
        let rows = param(name)?;
        let sum: f64 = rows.iter().flatten().map(|g| f64::from(*g)).sum();
        assert!((sum - want).abs() < 1e-8, "{name}: {sum} for {want}");
    }
    Ok(())
}

#[test]
fn an_in_place_block_reads_the_state_one_token_earlier() -> Result<()> {
    let golden = Golden::new(Alignment::InPlace, 1)?;
    assert_eq!(golden.blocks.labels, [3, 1, 5, 0]);
    let logits = golden.corrected()?;
    near(
        &logits[2],
        &[
            0.677066, -0.363910, 0.354385, -0.500739, 0.176637, 0.224450, -0.167778,
        ],
        CLOSE,
    );
    near(
        &logits[3],
        &[
            -0.587577, 0.382857, -0.384937, 0.544771, -0.321866, -0.031761, 0.030136,
        ],
        CLOSE,
    );
    assert_eq!(
        [0, 1, 2, 3].map(|row| golden.head.is_corrected(row)),
        [false, false, true, true]
    );
    Ok(())
}

/// The ends of the goldens' target.
struct Ends {
    embedding: Tensor,
    lm_head: Tensor,
}

impl decode::TokenIo for Ends {
    fn vocab(&self) -> usize {
        7
    }

    fn embed(&self, ids: &Tensor) -> decode::Result<Tensor> {
        Ok(self.embedding.index_select(ids, 0)?)
    }

    fn lm_head(&self, hidden: &Tensor) -> decode::Result<Tensor> {
        Ok(kernels::linear(hidden, &self.lm_head)?)
    }
}

#[test]
fn training_and_drafting_give_the_same_logits_for_the_same_tokens() -> Result<()> {
    for alignment in [Alignment::Shifted, Alignment::InPlace] {
        for prefix in 0..3 {
            let golden = Golden::new(alignment, prefix)?;
            let trained = golden.corrected()?;
            let base = linear(golden.hidden.as_tensor(), &golden.lm_head)?.detach();
            let base_rows: Vec<Vec<f32>> = base.to_vec2()?;
            let tensors = golden.params.snapshot(DType::F32)?;
            let shape = DominoShape {
                hidden: 4,
                vocab: 7,
                draft_vocab: 7,
                gru: 3,
                rank: 2,
                prefix,
            };
            let mut weights = models::Weights::from_tensors("trained", tensors);
            let mut head = DominoHead::new(shape, &mut weights).expect("the names are the same");
            let ends = Ends {
                embedding: wave(0.1, 7, 4)?,
                lm_head: golden.lm_head.clone(),
            };
            let first = alignment.first_slot();
            let drafts = |t: &Tensor| t.narrow(0, first, 4 - first);
            let hidden = drafts(&golden.hidden.detach())?;
            head.roll(&hidden, &drafts(&base)?, &[3], &ends, |step| {
                let row = first + step.slot;
                let want = match golden.head.is_corrected(row) {
                    true => &trained[row],
                    false => &base_rows[row],
                };
                let want: Vec<f64> = want.iter().map(|x| f64::from(*x)).collect();
                near(&step.logits.to_vec2::<f32>()?[0], &want, 1e-5);
                Ok(vec![golden.blocks.labels[row]])
            })?;
        }
    }
    Ok(())
}

#[test]
fn the_base_weight_falls_to_nothing() -> Result<()> {
    let mut golden = Golden::new(Alignment::Shifted, 1)?;
    golden.head.table.base_until = 0.5;
    for step in 0..10 {
        let want = (1.0 - 0.2 * f64::from(step)).max(0.0);
        let got = golden.head.base_weight(f64::from(step) / 10.0);
        assert!((got - want).abs() < 1e-12, "step {step}: {got} for {want}");
    }
    golden.head.table.base_until = 0.0;
    assert_eq!(golden.head.base_weight(0.0), 0.0);
    Ok(())
}

#[test]
fn a_block_may_be_cut_behind_its_first_wrong_slot() -> Result<()> {
    let mut shares = [0.4f32, 0.3, 0.2, 0.1, 0.0, 0.3, 0.2, 0.1];
    let right = [true, false, true, true, false, true, true, true];
    cut_behind_the_first_wrong(&mut shares, &right, 4, 1);
    assert_eq!(shares, [0.4, 0.3, 0.0, 0.0, 0.0, 0.3, 0.2, 0.1]);
    // The second label cannot be drafted.
    let mut shares = [0.4f32, 0.0, 0.2, 0.1];
    cut_behind_the_first_wrong(&mut shares, &[true; 4], 4, 0);
    assert_eq!(shares, [0.4, 0.0, 0.0, 0.0]);
    // The trunk's first choice is wrong already: one term is left of the golden mean.
    let mut golden = Golden::new(Alignment::Shifted, 1)?;
    golden.head.table.learn = Learn::UntilWrong;
    let want = 2.394907 / golden.blocks.weight();
    for progress in [0.0, 0.5, 1.0] {
        let got = golden.loss(progress)?;
        assert!((got - want).abs() < CLOSE, "{got} for {want}");
    }
    Ok(())
}

/// Prompt of 7, answer on rows 7..=13; what follows 28 depends on what stands before it.
const SEQUENCE: [u32; 14] = [3, 17, 5, 9, 22, 11, 7, 0, 28, 13, 28, 2, 19, 6];

fn trunk_config(alignment: Alignment) -> TrunkConfig {
    TrunkConfig {
        num_hidden_layers: 2,
        intermediate_size: 24,
        block_rows: 4,
        alignment,
        target_layer_ids: vec![1, 3],
        draft_vocab_size: None,
    }
}

#[test]
fn a_trained_drafter_drafts_its_text_in_the_method_that_runs_it() -> Result<()> {
    for alignment in [Alignment::Shifted, Alignment::InPlace] {
        let config = trunk_config(alignment);
        let lm = CausalLm::new(&net_config(40, 16, 6), 3)?;
        // A new target's ends are so small that its logits could hardly differ.
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            let var = lm.params.get(name).expect("a tensor of the target");
            var.set(&(var.as_tensor().detach() * 10.0)?)?;
        }
        let mut trunk = Trunk::new(&config, lm.config(), 4)?;
        let dims = HeadDims {
            hidden: 16,
            vocab: 40,
            draft_vocab: 40,
            block_rows: 4,
            alignment,
        };
        let head = Recurrent::new(&table(6, 5, 1), dims, &mut trunk.params, 5)?;
        let net = DraftNet::live(lm, trunk, head)?;
        let shape = BlockShape {
            block_rows: 4,
            alignment,
            mask: 39,
            decay: Some(7.0),
            coverage: Recurrent::COVERAGE,
        };
        let mut pack = DraftPack::default();
        pack.push(&SEQUENCE[..7], &SEQUENCE[7..]);
        let blocks = Blocks::new(&pack, &[7, 8, 9], &shape);
        learn(&net, &pack, &blocks)?;
        let labelled = blocks.weights.iter().filter(|w| **w > 0.0).count();
        let want = 1.0 + labelled as f64 / 3.0;
        assert_eq!(net.acceptance_length(&pack, &blocks)?, want);

        let folder = tempfile::tempdir().unwrap();
        net.target.save(&folder.path().join("t"), 1, 0)?;
        net.save(&folder.path().join("d"), &shape)?;
        let gamma = 4 - alignment.first_slot();
        assert_eq!(proposed(folder.path())?, SEQUENCE[8..8 + gamma]);
    }
    Ok(())
}

/// Trains on three blocks while the base weight falls.
fn learn(net: &DraftNet<Recurrent>, pack: &DraftPack, blocks: &Blocks) -> Result<()> {
    const STEPS: usize = 300;
    let config = OptimizerConfig {
        lr: 0.02,
        final_fraction: 1.0,
        warmup_steps: 1,
        betas: [0.9, 0.95],
        eps: 1e-8,
        weight_decay: 0.0,
        clip: 1.0,
    };
    let mut optimizer = AdamW::default();
    let params = &net.trunk.params;
    let at = |progress| Place {
        total: blocks.weight(),
        progress,
    };
    for step in 0..STEPS {
        let loss = net.loss(pack, blocks, at(step as f64 / STEPS as f64))?;
        let mut gradients = Gradients::default();
        gradients.add(params, &loss)?;
        // At the very start only the trunk learns.
        if step == 1 {
            for (name, _) in params.iter() {
                assert_is_alive(gradients.of(name), name);
            }
        }
        optimizer.update(params, &gradients, &config, config.lr)?;
    }
    let left = net.loss(pack, blocks, at(1.0))?.to_scalar::<f32>()?;
    assert!(left < 0.05, "{left}");
    Ok(())
}

/// What `domino` drafts from the folder `d` for the target in `t` after the prompt and one token.
fn proposed(folder: &Path) -> Result<Vec<u32>> {
    let source = |name: &str| models::Source::Dir(folder.join(name));
    let options = models::DecoderOptions {
        slots: 1,
        capacity: 32,
        precision: models::Precision::F32,
    };
    let mut decoder = models::Decoder::load(&source("t"), options)?;
    let load = baselines::Load {
        source: Some(&source("d")),
        target: &baselines::TargetFacts {
            id: "golden".to_owned(),
            hidden: 16,
            vocab: 40,
            n_layers: 6,
        },
        slots: 1,
        capacity: 32,
        precision: models::Precision::F32,
        max_draft: None,
        options: &baselines::Options::default(),
    };
    let mut method = baselines::Domino::load(&load).expect("the saved folder is complete");
    let slot = Slot(0);
    let feed = Feed {
        slot,
        tokens: &SEQUENCE[..7],
        parents: None,
        logits: Keep::Last,
    };
    let taps = method.taps().to_vec();
    let taps = decoder.forward(&[feed], &taps)?.taps;
    method.start(Committed {
        slot,
        position: 0,
        fed: &SEQUENCE[..7],
        next_anchor: SEQUENCE[7],
        taps,
    })?;
    let anchor = decode::Anchor {
        slot,
        token: SEQUENCE[7],
        position: 7,
        draws: &mut decode::Draws::new(0, 0),
    };
    let (greedy, silent) = (decode::Sampling::Greedy, &mut decode::Silent);
    let mut proposals = method.propose(&mut [anchor], &decoder, greedy, silent)?;
    Ok(proposals.remove(0).tokens)
}
