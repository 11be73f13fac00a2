//! `train eagle3`: a one-layer drafter that is trained on its own outputs, step after step, as it will be used.
//!
//! Source: EAGLE-3 (arXiv 2503.01840), "training-time test", and the authors' code.

mod net;
mod recipe;
mod walk;

use crate::answers::{answers, check_kept, dependence, states_of, texts};
use crate::data::{Cursor, Pack, Texts};
use crate::error::{Error, Result};
use crate::files::{save_drafter, write_json};
use crate::lm::CausalLm;
use crate::optim::Gradients;
use crate::params::Params;
use crate::parts::Workers;
use crate::progress::Progress;
use crate::run::{Batch, Job, Plan, run};
use crate::states::States;
use crate::vocab::DraftVocab;
use candle_core::{DType, Tensor};
use datasets::Domain;
use net::Eagle3Net;
pub use net::Eagle3Shape;
pub use recipe::{Eagle3Batch, Eagle3Recipe};
use std::path::Path;
use walk::{Teacher, Walk};

/// Trains, or goes on training, the EAGLE-3 drafter of a recipe and exports it to the recipe's `out` folder.
///
/// # Errors
/// If the target, a file or the corpus fails; a checkpoint of another recipe is refused.
pub fn train_eagle3(recipe: &Eagle3Recipe, progress: &mut dyn Progress) -> Result<()> {
    let target = CausalLm::load(&recipe.target)?;
    check_fit(recipe, &target)?;
    let (answers, file) = answers(&recipe.target, &recipe.work, &recipe.answers, progress)?;
    let states = states_of(&recipe.target, &recipe.work, &recipe.answers, &answers)?;
    let texts = texts(&answers, recipe.seed)?;
    let size = recipe.drafter.draft_vocab_size;
    let vocab = DraftVocab::of(&answers, target.config().vocab_size, size);
    let net = Eagle3Net::new(&recipe.drafter, target.config(), vocab, recipe.seed)?;
    let copied = net.warm_start(&target)?;
    progress.note(&format!(
        "{} training texts, {} tokens a pass; {} trained values, {} tensors start as the target's",
        texts.len(),
        texts.tokens(),
        net.params.count(),
        copied.len()
    ));
    let mut job = Eagle3Job {
        workers: Workers::new()?,
        recipe,
        target,
        states,
        net,
        texts,
    };
    let plan = Plan {
        fingerprint: recipe.fingerprint(&dependence(&file, &recipe.answers)),
        work: &recipe.work,
        optimizer: &recipe.optimizer,
        stop: &recipe.stop,
        report: &recipe.report,
    };
    run(&plan, &mut job, progress)
}

fn check_fit(recipe: &Eagle3Recipe, target: &CausalLm) -> Result<()> {
    let refuse = |key: &'static str, problem: String| {
        Err(Error::RecipeValue {
            file: recipe.file.clone(),
            key,
            problem,
        })
    };
    let (depth, vocab) = (
        target.config().num_hidden_layers,
        target.config().vocab_size,
    );
    let shape = &recipe.drafter;
    if let Some(id) = shape.target_layer_ids.iter().find(|id| **id >= depth) {
        let problem = format!("names layer {id}, the target has 0..{depth}");
        return refuse("drafter.target_layer_ids", problem);
    }
    if shape.draft_vocab_size > vocab {
        let problem = format!("must not exceed the target's {vocab} tokens");
        return refuse("drafter.draft_vocab_size", problem);
    }
    let taps = &shape.target_layer_ids;
    check_kept(&recipe.answers, taps, depth).or_else(|p| refuse("answers.keep_states", p))
}

/// Writes the drafter's folder: `config.json` and `model.safetensors`, bf16 but for the two lists of the vocabulary.
fn export(net: &Eagle3Net, folder: &Path) -> Result<()> {
    let mut tensors = net.params.snapshot(DType::BF16)?;
    tensors.extend(net.vocab.tensors()?);
    save_drafter(&folder.join("model.safetensors"), &tensors)?;
    write_json(&folder.join("config.json"), &net.config_json())
}

struct Eagle3Job<'a> {
    recipe: &'a Eagle3Recipe,
    target: CausalLm,
    states: States,
    net: Eagle3Net,
    texts: Texts,
    workers: Workers,
}

/// What the drafter says about a pack, and what it should say.
struct Unrolled {
    walk: Walk,
    teacher: Teacher,
    /// `[asking rows, draft vocabulary]` of every step.
    logits: Vec<Tensor>,
}

/// A part's share of a batch.
#[derive(Default)]
struct Learnt {
    loss: f64,
    predicted: usize,
    gradients: Gradients,
}

impl Eagle3Job<'_> {
    /// `None` if the pack holds nothing to learn from.
    fn unroll(&self, pack: &Pack) -> Result<Option<Unrolled>> {
        let walk = Walk::new(pack, self.net.shape.ttt_steps);
        if walk.asking.is_empty() {
            return Ok(None);
        }
        let layers = &self.net.shape.target_layer_ids;
        let (hidden, taps) = self
            .states
            .of(&self.target, &walk.ids, &walk.texts, layers)?;
        let logits = self.target.logits(&hidden)?.detach();
        let teacher = Teacher::new(&logits, &self.net.vocab)?;
        let embed = |ids: &[u32]| Ok(self.target.embed(ids)?.detach());
        let logits = self.net.steps(&walk, &taps, &embed)?;
        Ok(Some(Unrolled {
            walk,
            teacher,
            logits,
        }))
    }

    /// What a part of a batch of `tokens` tokens teaches.
    fn learn(&self, part: &Pack, tokens: usize) -> Result<Learnt> {
        let mut learnt = Learnt::default();
        let Some(unrolled) = self.unroll(part)? else {
            return Ok(learnt);
        };
        for step in 0..unrolled.logits.len() {
            let rows = unrolled.teacher.rows(&unrolled.walk, step);
            learnt.predicted += rows.iter().filter(|(_, counts)| *counts).count();
        }
        let term = self.loss(&unrolled, tokens as f64)?;
        learnt.loss = f64::from(term.to_scalar::<f32>()?);
        learnt.gradients.add(&self.net.params, &term)?;
        Ok(learnt)
    }

    fn loss(&self, unrolled: &Unrolled, total: f64) -> Result<Tensor> {
        let Unrolled {
            walk,
            teacher,
            logits,
        } = unrolled;
        Ok(self.net.loss(walk, teacher, logits, total)?.0)
    }

    /// Held-out texts one by one: unrolling a whole pack of them would keep its activations.
    fn held_out_texts(&self) -> impl Iterator<Item = (Domain, Vec<Pack>)> {
        let packs = self.texts.held_out.iter();
        packs.map(|(domain, pack)| {
            let one = |text| pack.slice(text..text + 1);
            (*domain, (0..pack.texts.len()).map(one).collect())
        })
    }

    /// Anchors in the answers of a text, and the tokens that chains of first choices commit from them: each anchor's
    /// bonus and the drafts that equal the target's tokens before the first that does not.
    fn committed(&self, unrolled: &Unrolled) -> Result<(usize, usize)> {
        let walk = &unrolled.walk;
        let drafts = unrolled.logits.iter().map(|logits| {
            let best: Vec<u32> = logits.argmax(1)?.to_vec1()?;
            Ok(best
                .iter()
                .map(|id| self.net.vocab.ids[*id as usize])
                .collect())
        });
        let drafts: Vec<Vec<u32>> = drafts.collect::<Result<_>>()?;
        let (mut anchors, mut committed) = (0, 0);
        for (i, (row, end)) in walk.asking.iter().enumerate() {
            // The anchor is the token at row + 1: one that the target wrote and wrote more after.
            let anchor = row + 1;
            if anchor + 1 >= *end || !walk.counts[anchor] {
                continue;
            }
            let wanted = &walk.ids[anchor + 1..*end];
            let kept = drafts.iter().zip(wanted).take_while(|(d, id)| d[i] == **id);
            anchors += 1;
            committed += 1 + kept.count();
        }
        Ok((anchors, committed))
    }
}

impl Job for Eagle3Job<'_> {
    fn params(&self) -> &Params {
        &self.net.params
    }

    fn batch(&mut self, _progress: f64, gradients: &mut Gradients) -> Result<Batch> {
        let config = &self.recipe.batch;
        let mut parts: Vec<Pack> = Vec::new();
        for _ in 0..config.packs_per_step {
            let pack = self.texts.next_pack(config.micro_tokens);
            self.states.prepare(&pack.ids, &pack.texts)?;
            parts.extend(pack.parts(self.workers.count()));
        }
        let tokens: usize = parts.iter().map(|pack| pack.ids.len()).sum();
        let (mut loss, mut predicted) = (0.0, 0);
        let job = &*self;
        let learn = |part: &Pack| job.learn(part, tokens);
        self.workers.run(&parts, learn, |learnt| {
            loss += learnt.loss;
            predicted += learnt.predicted;
            gradients.merge(learnt.gradients);
        })?;
        Ok(Batch {
            loss,
            tokens,
            predicted,
        })
    }

    fn cursor(&self) -> Cursor {
        self.texts.cursor()
    }

    fn seek(&mut self, cursor: Cursor) {
        self.texts.seek(cursor);
    }

    fn held_out(&self) -> Result<Vec<(Domain, f64)>> {
        let measure = |(domain, packs): (Domain, Vec<Pack>)| {
            let total: usize = packs.iter().map(|pack| pack.ids.len()).sum();
            let mut loss = 0.0;
            for pack in &packs {
                if let Some(unrolled) = self.unroll(pack)? {
                    let term = self.loss(&unrolled, total as f64)?;
                    loss += f64::from(term.to_scalar::<f32>()?);
                }
            }
            Ok((domain, loss))
        };
        self.held_out_texts().map(measure).collect()
    }

    fn export(&self, progress: &mut dyn Progress) -> Result<()> {
        export(&self.net, &self.recipe.out)?;
        for (domain, packs) in self.held_out_texts() {
            let (mut anchors, mut committed) = (0, 0);
            for pack in &packs {
                if let Some(unrolled) = self.unroll(pack)? {
                    let (more, tokens) = self.committed(&unrolled)?;
                    anchors += more;
                    committed += tokens;
                }
            }
            let tau = committed as f64 / anchors.max(1) as f64;
            progress.note(&format!(
                "held-out {domain}: acceptance length about {tau:.2} in chains of {}",
                self.net.shape.ttt_steps
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
