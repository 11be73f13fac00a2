//! `train target`: a language model from random weights to an exported checkpoint.

use crate::checkpoint::{self, RunState};
use crate::data::{Pack, Texts, reserved_for_suites};
use crate::error::{Error, Result};
use crate::files::save_tensors;
use crate::lm::CausalLm;
use crate::log::Log;
use crate::ops::cross_entropy;
use crate::optim::{AdamW, Gradients};
use crate::progress::{Progress, StepReport};
use crate::recipe::TargetRecipe;
use crate::sample::greedy;
use crate::tokenizer::{END_OF_TEXT, TURN_END, TextCodec, write_json};
use candle_core::DType;
use datasets::{Domain, Example};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// Examples a new tokenizer is trained on, at most.
const TOKENIZER_EXAMPLES: usize = 12_000;
/// Tokens of the sample written with each checkpoint.
const SAMPLE_TOKENS: usize = 96;

/// Trains, or goes on training, the target of a recipe and exports it to the recipe's `out` folder.
///
/// # Errors
/// If the corpus, a file or the model fails; a checkpoint of another recipe is refused.
pub fn train_target(recipe: &TargetRecipe, progress: &mut dyn Progress) -> Result<()> {
    let examples = datasets::corpus(&recipe.corpus)?;
    let codec = tokenizer_of(recipe, &examples, progress)?;
    let texts = Texts::new(&examples, &codec, &recipe.batch, recipe.seed)?;
    progress.note(&format!(
        "{} training texts, {} tokens a pass; left out: {} too long, {} reserved for suites",
        texts.len(),
        texts.tokens(),
        texts.too_long,
        texts.reserved
    ));
    let lm = CausalLm::new(&recipe.model, recipe.seed)?;
    progress.note(&format!("{} trained values", lm.params.count()));
    let mut run = Run::new(recipe, lm, texts, codec)?;
    run.prompts = sample_prompts(&examples);
    if run.state.step > 0 {
        progress.note(&format!("goes on after step {}", run.state.step));
    }
    run.go(progress)
}

/// The recipe's tokenizer: the named one, the one an earlier part of this run trained, or a new one.
fn tokenizer_of(
    recipe: &TargetRecipe,
    examples: &[Example],
    progress: &mut dyn Progress,
) -> Result<TextCodec> {
    let own = recipe.work.join("tokenizer.json");
    let codec = match &recipe.tokenizer {
        Some(path) => TextCodec::load(path)?,
        None if own.exists() => TextCodec::load(&own)?,
        None => {
            progress.note("training the tokenizer");
            // Spread over the corpus, whatever its order.
            let stride = examples.len().div_ceil(TOKENIZER_EXAMPLES).max(1);
            let texts: Vec<String> = examples
                .iter()
                .step_by(stride)
                .flat_map(plain_texts)
                .collect();
            let codec = TextCodec::train(texts.into_iter(), recipe.model.vocab_size)?;
            codec.save(&recipe.work, "")?;
            codec
        }
    };
    if codec.vocab_size() != recipe.model.vocab_size {
        return Err(Error::Tokenizer {
            path: recipe.tokenizer.clone().unwrap_or(own),
            message: format!(
                "has {} tokens, model.vocab_size is {}",
                codec.vocab_size(),
                recipe.model.vocab_size
            ),
        });
    }
    Ok(codec)
}

/// An example's texts as they stand between special tokens.
fn plain_texts(example: &Example) -> Vec<String> {
    let mut texts = vec![
        format!("user\n{}", example.user),
        format!("assistant\n{}", example.answer),
    ];
    texts.extend(example.think.iter().map(|t| format!("\n{t}\n")));
    texts
}

/// One reserved prompt of each domain.
fn sample_prompts(examples: &[Example]) -> Vec<String> {
    let of = |domain: Domain| {
        let mut matching = examples.iter().filter(|e| e.domain == domain);
        matching.find(|e| reserved_for_suites(&e.user))
    };
    Domain::ALL
        .iter()
        .filter_map(|d| of(*d))
        .map(Example::prompt_text)
        .collect()
}

struct Run<'a> {
    recipe: &'a TargetRecipe,
    lm: CausalLm,
    texts: Texts,
    codec: TextCodec,
    optimizer: AdamW,
    state: RunState,
    log: Log,
    prompts: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(
        recipe: &'a TargetRecipe,
        lm: CausalLm,
        mut texts: Texts,
        codec: TextCodec,
    ) -> Result<Self> {
        let fingerprint = recipe.fingerprint();
        let path = recipe.work.join("checkpoint.safetensors");
        let (optimizer, state) = match checkpoint::load(&path, &lm.params, &fingerprint)? {
            Some(found) => found,
            None => {
                let state = RunState {
                    fingerprint,
                    ..RunState::default()
                };
                (AdamW::default(), state)
            }
        };
        texts.seek(state.cursor);
        let log = Log::open(&recipe.work.join("log.csv"), state.step)?;
        Ok(Self {
            recipe,
            lm,
            texts,
            codec,
            optimizer,
            state,
            log,
            prompts: Vec::new(),
        })
    }

    fn go(&mut self, progress: &mut dyn Progress) -> Result<()> {
        let report = &self.recipe.report;
        let mut last_checkpoint = Instant::now();
        while self
            .recipe
            .stop
            .progress(self.state.step, self.state.seconds)
            < 1.0
        {
            let started = Instant::now();
            let (loss, lr, tokens) = self.step()?;
            let seconds = started.elapsed().as_secs_f64();
            self.state.step += 1;
            self.state.tokens += tokens as u64;
            self.state.seconds += seconds;
            self.state.cursor = self.texts.cursor();
            let step = StepReport {
                step: self.state.step,
                tokens: self.state.tokens,
                seconds: self.state.seconds,
                tokens_per_sec: tokens as f64 / seconds,
                lr,
                loss,
                progress: self
                    .recipe
                    .stop
                    .progress(self.state.step, self.state.seconds),
            };
            let due =
                self.state.step % report.held_out_every_steps.max(1) == 0 || step.progress >= 1.0;
            let held_out = if due { self.held_out()? } else { Vec::new() };
            self.log.step(&step, &held_out)?;
            progress.step(&step);
            if last_checkpoint.elapsed().as_secs_f64() >= 60.0 * report.checkpoint_minutes {
                self.checkpoint(progress)?;
                last_checkpoint = Instant::now();
            }
        }
        self.checkpoint(progress)
    }

    /// One optimiser step over `packs_per_step` packs; returns loss, rate and tokens.
    fn step(&mut self) -> Result<(f64, f64, usize)> {
        let batch = &self.recipe.batch;
        let packs: Vec<Pack> = (0..batch.packs_per_step)
            .map(|_| self.texts.next_pack(batch.micro_tokens))
            .collect();
        let total = packs.iter().map(Pack::weight).sum::<f64>();
        let mut gradients = Gradients::default();
        let mut loss = 0.0;
        for pack in &packs {
            let weights: Vec<f32> = pack
                .weights
                .iter()
                .map(|w| (f64::from(*w) / total) as f32)
                .collect();
            let out = self.lm.forward(&pack.ids, &pack.texts)?;
            let mut term = cross_entropy(&out.logits, &pack.labels, &weights)?;
            loss += f64::from(term.to_scalar::<f32>()?);
            if let Some(balance) = out.balance {
                let weight = self.recipe.balance_weight / packs.len() as f64;
                term = (term + (balance * weight)?)?;
            }
            gradients.add(&self.lm.params, &term)?;
        }
        let done = self
            .recipe
            .stop
            .progress(self.state.step, self.state.seconds);
        let lr = self.recipe.optimizer.rate(self.state.step, done);
        self.optimizer
            .update(&self.lm.params, &gradients, &self.recipe.optimizer, lr)?;
        Ok((loss, lr, packs.iter().map(|p| p.ids.len()).sum()))
    }

    /// Mean loss of each domain's held-out texts.
    fn held_out(&self) -> Result<Vec<(Domain, f64)>> {
        let measure = |(domain, pack): &(Domain, Pack)| {
            let logits = self.lm.forward(&pack.ids, &pack.texts)?.logits;
            let loss = cross_entropy(&logits, &pack.labels, &pack.weights)?.to_scalar::<f32>()?;
            Ok((*domain, f64::from(loss) / pack.weight()))
        };
        self.texts.held_out.iter().map(measure).collect()
    }

    fn checkpoint(&self, progress: &mut dyn Progress) -> Result<()> {
        let path = self.recipe.work.join("checkpoint.safetensors");
        checkpoint::save(&path, &self.lm.params, &self.optimizer, &self.state)?;
        self.export(&self.recipe.out)?;
        progress.note(&format!("checkpoint at step {}", self.state.step));
        let stop = [
            self.codec.special(TURN_END)?,
            self.codec.special(END_OF_TEXT)?,
        ];
        for prompt in &self.prompts {
            let prompt = self.codec.encode(prompt)?;
            let room = self
                .recipe
                .model
                .max_position_embeddings
                .saturating_sub(prompt.len());
            let ids = greedy(&self.lm, &prompt, &stop, SAMPLE_TOKENS.min(room))?;
            let (prompt, answer) = (self.codec.decode(&prompt)?, self.codec.decode(&ids)?);
            progress.note(&format!("sample: {prompt}[{answer}]"));
        }
        Ok(())
    }

    /// The checkpoint folder that `models` and other tools read: bf16 weights, config, tokenizer.
    fn export(&self, folder: &Path) -> Result<()> {
        let weights = self.lm.params.snapshot(DType::BF16)?;
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        save_tensors(&folder.join("model.safetensors"), &weights, format)?;
        let (stop, pad) = (
            self.codec.special(TURN_END)?,
            self.codec.special(END_OF_TEXT)?,
        );
        let config = self.recipe.model.to_hugging_face(stop, pad);
        write_json(&folder.join("config.json"), &config)?;
        let template = &self.recipe.chat_template;
        let template = fs::read_to_string(template).map_err(Error::io(template))?;
        self.codec.save(folder, &template)
    }
}
