//! `train target`: a language model from random weights to an exported checkpoint.

use crate::data::{Cursor, Pack, Texts, is_held_back};
use crate::error::{Error, Result};
use crate::lm::CausalLm;
use crate::ops::cross_entropy;
use crate::optim::Gradients;
use crate::params::Params;
use crate::progress::Progress;
use crate::recipe::TargetRecipe;
use crate::run::{Batch, Job, Plan, run};
use crate::sample::greedy;
use crate::tokenizer::{END_OF_TEXT, TURN_END, TextCodec};
use datasets::{Domain, Example};
use std::fs;
use std::path::Path;

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
        "{} training texts, {} tokens a pass; left out: {} too long, {} held back",
        texts.len(),
        texts.tokens(),
        texts.too_long,
        texts.held_back
    ));
    let lm = CausalLm::new(&recipe.model, recipe.seed)?;
    progress.note(&format!("{} trained values", lm.params.count()));
    let mut job = TargetJob {
        prompts: sample_prompts(&examples),
        recipe,
        lm,
        texts,
        codec,
    };
    let plan = Plan {
        fingerprint: recipe.fingerprint(),
        work: &recipe.work,
        optimizer: &recipe.optimizer,
        stop: &recipe.stop,
        report: &recipe.report,
    };
    run(&plan, &mut job, progress)
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

/// One prompt of each domain that is held back.
fn sample_prompts(examples: &[Example]) -> Vec<String> {
    let of = |domain: Domain| {
        let mut matching = examples.iter().filter(|e| e.domain == domain);
        matching.find(|e| is_held_back(&e.user))
    };
    Domain::ALL
        .iter()
        .filter_map(|d| of(*d))
        .map(Example::prompt_text)
        .collect()
}

struct TargetJob<'a> {
    recipe: &'a TargetRecipe,
    lm: CausalLm,
    texts: Texts,
    codec: TextCodec,
    prompts: Vec<String>,
}

impl Job for TargetJob<'_> {
    fn params(&self) -> &Params {
        &self.lm.params
    }

    fn batch(&mut self, _progress: f64, gradients: &mut Gradients) -> Result<Batch> {
        let config = &self.recipe.batch;
        let packs: Vec<Pack> = (0..config.packs_per_step)
            .map(|_| self.texts.next_pack(config.micro_tokens))
            .collect();
        let total = packs.iter().map(Pack::weight).sum::<f64>();
        let mut loss = 0.0;
        for pack in &packs {
            let share = |w: &f32| (f64::from(*w) / total) as f32;
            let weights: Vec<f32> = pack.weights.iter().map(share).collect();
            let out = self.lm.forward(&pack.ids, &pack.texts)?;
            let mut term = cross_entropy(&out.logits, &pack.labels, &weights)?;
            loss += f64::from(term.to_scalar::<f32>()?);
            if let Some(balance) = out.balance {
                let weight = self.recipe.balance_weight / packs.len() as f64;
                term = (term + (balance * weight)?)?;
            }
            gradients.add(&self.lm.params, &term)?;
        }
        let tokens = packs.iter().map(|p| p.ids.len()).sum();
        let weights = packs.iter().flat_map(|pack| &pack.weights);
        Ok(Batch {
            loss,
            tokens,
            predicted: weights.filter(|w| **w > 0.0).count(),
        })
    }

    fn cursor(&self) -> Cursor {
        self.texts.cursor()
    }

    fn seek(&mut self, cursor: Cursor) {
        self.texts.seek(cursor);
    }

    fn held_out(&self) -> Result<Vec<(Domain, f64)>> {
        let measure = |(domain, pack): &(Domain, Pack)| {
            let logits = self.lm.forward(&pack.ids, &pack.texts)?.logits;
            let loss = cross_entropy(&logits, &pack.labels, &pack.weights)?.to_scalar::<f32>()?;
            Ok((*domain, f64::from(loss) / pack.weight()))
        };
        self.texts.held_out.iter().map(measure).collect()
    }

    fn export(&self, progress: &mut dyn Progress) -> Result<()> {
        self.write_model(&self.recipe.out)?;
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
}

impl TargetJob<'_> {
    /// The folder that `models` and other tools read: bf16 weights, config, tokenizer.
    fn write_model(&self, folder: &Path) -> Result<()> {
        let (stop, pad) = (
            self.codec.special(TURN_END)?,
            self.codec.special(END_OF_TEXT)?,
        );
        self.lm.save(folder, stop, pad)?;
        let template = &self.recipe.chat_template;
        let template = fs::read_to_string(template).map_err(Error::io(template))?;
        self.codec.save(folder, &template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::BatchConfig;
    use crate::optim::OptimizerConfig;
    use crate::progress::{Silent, StepReport};
    use crate::recipe::{ReportConfig, StopConfig};
    use crate::testing::{CutAfter, assert_same_checkpoints, small};

    /// A minute model on a little synthetic text, in `folder`.
    fn recipe(folder: &Path, max_steps: u64) -> TargetRecipe {
        let mut model = small(crate::config::Family::Qwen3ForCausalLM);
        model.vocab_size = 400;
        model.max_position_embeddings = 512;
        TargetRecipe {
            seed: 3,
            out: folder.join("out"),
            work: folder.join("work"),
            tokenizer: None,
            chat_template: crate::testing::recipes().join("chat_template.jinja"),
            balance_weight: 0.0,
            model,
            corpus: datasets::CorpusSpec {
                seed: 1,
                maths: 16,
                code: 16,
                chat: 16,
                sources: Vec::new(),
            },
            batch: BatchConfig {
                micro_tokens: 512,
                packs_per_step: 2,
                max_text_tokens: 512,
                prompt_weight: 0.3,
                held_out: 1,
            },
            optimizer: OptimizerConfig {
                lr: 1e-2,
                final_fraction: 0.1,
                warmup_steps: 2,
                betas: [0.9, 0.95],
                eps: 1e-8,
                weight_decay: 0.1,
                clip: 1.0,
            },
            stop: StopConfig {
                max_steps,
                max_minutes: None,
            },
            report: ReportConfig {
                checkpoint_minutes: 1e9,
                peak_mib: None,
                held_out_every_steps: 4,
            },
        }
    }

    struct Losses(Vec<f64>);

    impl Progress for Losses {
        fn step(&mut self, report: &StepReport) {
            self.0.push(report.loss);
        }
        fn note(&mut self, _text: &str) {}
    }

    #[test]
    fn a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one() -> Result<()> {
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut losses = Losses(Vec::new());
        train_target(&recipe(whole.path(), 6), &mut losses)?;
        assert!(losses.0[5] < losses.0[0], "{:?}", losses.0);

        // The schedule follows max_steps, so the first part must be cut short, not planned short.
        let mut first = recipe(parts.path(), 6);
        first.report.checkpoint_minutes = 0.0;
        let mut cut = CutAfter {
            steps: 3,
            work: first.work.clone(),
        };
        train_target(&first, &mut cut)?;
        cut.restore();
        train_target(&first, &mut Silent)?;

        assert_same_checkpoints(&whole.path().join("work"), &first.work)
    }

    #[test]
    fn a_checkpoint_of_another_recipe_is_refused() -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        train_target(&recipe(folder.path(), 1), &mut Silent)?;
        let mut other = recipe(folder.path(), 2);
        other.seed += 1;
        let error = train_target(&other, &mut Silent).unwrap_err();
        assert!(matches!(error, Error::ForeignCheckpoint { .. }), "{error}");
        Ok(())
    }

    #[test]
    fn a_loss_that_is_no_number_ends_the_run_and_exports_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut wild = recipe(folder.path(), 8);
        wild.optimizer.lr = 1e30;
        let error = train_target(&wild, &mut Silent).unwrap_err();
        assert!(matches!(error, Error::Diverged { .. }), "{error}");
        assert!(!wild.out.join("model.safetensors").exists());
    }
}
