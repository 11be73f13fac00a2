//! The target's own answers to training prompts: what a drafter is trained on.

use crate::check::{ABOVE_0, Check};
use crate::data::{Pack, Text, Texts, is_held_back};
use crate::error::{Error, Result};
use crate::params::fnv1a;
use crate::progress::Progress;
use crate::recipe::AnswersRecipe;
use crate::states::{KeptStates, States};
use crate::tokenizer::TextCodec;
use baselines::Vanilla;
use datasets::{CorpusSpec, Domain, Example};
use decode::{Parts, Request, Sampling, Settings, Silent, StepCost, VerifyAll};
use models::{Decoder, DecoderOptions, Precision, Source};
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The `[answers]` table of a drafter's recipe.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswersConfig {
    /// Where the prompts come from; the examples' own answers are not used.
    pub corpus: CorpusSpec,
    /// Longest answer, in tokens.
    pub max_new: usize,
    /// Sequences decoded at once.
    pub slots: usize,
    /// Draws answers at this temperature (in thousandths) instead of taking the most likely tokens.
    #[serde(default)]
    pub sampled_temperature_milli: Option<u32>,
    /// Of so many lots of questions one is answered at that temperature, the others greedily; without it, all.
    #[serde(default)]
    pub sampled_every: Option<usize>,
    /// Prompts of each domain, of those that nothing is trained on, whose answers measure the drafter.
    pub held_out: usize,
    /// Where the answers are kept, so that recipes with the same questions share them; without it, in `work`.
    #[serde(default)]
    pub folder: Option<PathBuf>,
    /// Only so many of the questions, the first ones; the answers' file is the same.
    #[serde(default)]
    pub first: Option<usize>,
    /// Layers whose outputs are kept, with the last one's, in a file beside the answers (bf16, computed at `dtype`), so
    /// that a text costs one pass of the target for all epochs and drafters; without it, a pass every time.
    #[serde(default)]
    pub keep_states: Option<Vec<usize>>,
    /// How the target wants to be spoken to; without it, as the tiny targets.
    #[serde(default)]
    pub chat: Option<ChatText>,
    /// How the target's weight matrices are kept while it answers.
    #[serde(default)]
    pub dtype: Precision,
}

/// What stands around a user's words: the chat template of one turn, written out.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatText {
    /// Before them.
    pub before: String,
    /// Behind them, up to where the target starts to write.
    pub after: String,
    /// Directly behind the words of a maths prompt, as maths suites do.
    #[serde(default)]
    pub maths_suffix: String,
}

impl ChatText {
    fn prompt(&self, example: &Example) -> String {
        let suffix = match example.domain {
            Domain::Maths => self.maths_suffix.as_str(),
            _ => "",
        };
        [&self.before, example.user.as_str(), suffix, &self.after].concat()
    }
}

impl AnswersConfig {
    /// What the `[answers]` table must fulfil.
    pub(crate) fn checks(&self) -> Vec<Check> {
        vec![
            ("answers.max_new", self.max_new > 0, ABOVE_0),
            ("answers.slots", self.slots > 0, ABOVE_0),
            (
                "answers.sampled_temperature_milli",
                self.sampled_temperature_milli != Some(0),
                "must be above 0; leave it out for the most likely tokens",
            ),
            (
                "answers.sampled_every",
                self.sampled_every
                    .is_none_or(|n| n > 0 && self.sampled_temperature_milli.is_some()),
                "must be above 0 and stand beside sampled_temperature_milli",
            ),
            ("answers.first", self.first != Some(0), ABOVE_0),
            (
                "answers.keep_states",
                self.keep_states
                    .as_ref()
                    .is_none_or(|layers| layers.is_sorted_by(|a, b| a < b)),
                "must rise",
            ),
        ]
    }
}

/// One line of an answers file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Answer {
    /// The rendered prompt.
    pub prompt_ids: Vec<u32>,
    /// What the target wrote, a stop token included.
    pub answer_ids: Vec<u32>,
    /// The prompt's domain.
    pub domain: Domain,
    /// Whether the prompt leaves the think block to the target.
    pub thinking: bool,
    /// Whether the prompt is one of those that nothing is trained on.
    pub held_back: bool,
}

/// Requests decoded between two writes.
const CHUNK: usize = 128;

/// Has a target answer a recipe's questions, or the rest of them.
///
/// # Errors
/// If the target or a file fails.
pub fn answer(recipe: &AnswersRecipe, progress: &mut dyn Progress) -> Result<()> {
    let (answers, file) = answers(&recipe.target, Path::new("."), &recipe.answers, progress)?;
    let tokens: usize = answers.iter().map(|a| a.answer_ids.len()).sum();
    progress.note(&format!(
        "{} answers of {tokens} tokens in {}",
        answers.len(),
        file.display()
    ));
    Ok(())
}

/// All answers of a recipe: those in `work`, which an earlier run wrote, and the rest from the target now.
/// Returns them with their file, whose name changes with target and questions.
///
/// # Errors
/// If the target or a file fails.
pub(crate) fn answers(
    target: &Path,
    work: &Path,
    config: &AnswersConfig,
    progress: &mut dyn Progress,
) -> Result<(Vec<Answer>, PathBuf)> {
    let codec = TextCodec::load(&target.join("tokenizer.json"))?;
    let source = Source::Dir(target.to_owned());
    let positions = models::DecoderConfig::load(&source)?.max_positions;
    let mut asked = questions(config, &codec)?;
    let most = positions.saturating_sub(config.max_new + 1);
    asked.retain(|q| q.prompt_ids.len() <= most);
    asked.truncate(config.first.unwrap_or(asked.len()));
    let longest = asked.iter().map(|q| q.prompt_ids.len()).max();
    let folder = config.folder.as_deref().unwrap_or(work);
    let path = folder.join(file_name(target, config)?);
    let mut known = read(&path)?;
    let options = DecoderOptions {
        slots: config.slots,
        capacity: longest.unwrap_or(0) + config.max_new + 1,
        precision: config.dtype,
    };
    if known.len() < asked.len() {
        let mut decoder = Decoder::load(&source, options)?;
        while known.len() < asked.len() {
            let end = asked.len().min(known.len() + CHUNK);
            let part = &asked[known.len()..end];
            let new = decode_chunk(&mut decoder, part, known.len(), config)?;
            append(&path, &new)?;
            known.extend(new);
            progress.note(&format!("{} of {} answers", known.len(), asked.len()));
        }
    }
    known.truncate(asked.len());
    Ok((known, path))
}

/// Prompts in corpus order without answers; of those held back only those that measure.
fn questions(config: &AnswersConfig, codec: &TextCodec) -> Result<Vec<Answer>> {
    let mut held = Domain::ALL.map(|domain| (domain, 0));
    let mut asked = Vec::new();
    for example in datasets::corpus(&config.corpus)? {
        let held_back = is_held_back(&example.user);
        if held_back {
            let open = held
                .iter_mut()
                .find(|(d, n)| *d == example.domain && *n < config.held_out);
            match open {
                Some((_, n)) => *n += 1,
                None => continue,
            }
        }
        asked.push(Answer {
            prompt_ids: codec.encode(&match &config.chat {
                Some(chat) => chat.prompt(&example),
                None => example.prompt_text(),
            })?,
            answer_ids: Vec::new(),
            domain: example.domain,
            thinking: example.think.is_some(),
            held_back,
        });
    }
    Ok(asked)
}

/// One name for each (weights, questions), so that answers of another target are never mixed in.
fn file_name(target: &Path, config: &AnswersConfig) -> Result<String> {
    let weights = datasets::sha256_file(&target.join("model.safetensors"))?;
    let AnswersConfig {
        corpus,
        max_new,
        slots,
        sampled_temperature_milli,
        sampled_every,
        held_out,
        folder: _,
        first: _,
        keep_states: _,
        chat,
        dtype,
    } = config;
    // Spelled so that a recipe without the later keys has the name that it always had.
    let mut asked = format!(
        "AnswersConfig {{ corpus: {corpus:?}, max_new: {max_new:?}, slots: {slots:?}, sampled_temperature_milli: {sampled_temperature_milli:?}, held_out: {held_out:?} }}"
    );
    if sampled_every.is_some() || chat.is_some() || *dtype != Precision::F32 {
        asked.push_str(&format!(" {sampled_every:?} {chat:?} {dtype:?}"));
    }
    let hash = fnv1a(format!("{weights} {asked}").as_bytes());
    Ok(format!("answers-{hash:016x}.jsonl"))
}

fn decode_chunk(
    decoder: &mut Decoder,
    asked: &[Answer],
    first: usize,
    config: &AnswersConfig,
) -> Result<Vec<Answer>> {
    let request = |(i, question): (usize, &Answer)| Request {
        id: (first + i) as u64,
        prompt: question.prompt_ids.clone(),
        max_new: config.max_new,
    };
    let is_sampled = (first / CHUNK).is_multiple_of(config.sampled_every.unwrap_or(1));
    let settings = Settings {
        slots: config.slots,
        sampling: match config.sampled_temperature_milli {
            Some(temperature_milli) if is_sampled => Sampling::at(temperature_milli),
            _ => Sampling::Greedy,
        },
        seed: config.corpus.seed,
        cost: StepCost::flat(),
    };
    let parts = Parts {
        target: decoder,
        drafter: &mut Vanilla,
        scheduler: &mut VerifyAll,
        probe: &mut Silent,
    };
    let mut new = asked.to_vec();
    for generation in decode::decode(
        parts,
        asked.iter().enumerate().map(request).collect(),
        &settings,
    )? {
        new[generation.id as usize - first].answer_ids = generation.tokens;
    }
    Ok(new)
}

/// Complete lines of the file; a line that a kill cut short is dropped from it.
fn read(path: &PathBuf) -> Result<Vec<Answer>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(path).map_err(Error::io(path))?;
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    if whole < text.len() {
        fs::write(path, &text[..whole]).map_err(Error::io(path))?;
    }
    text[..whole]
        .lines()
        .map(|line| serde_json::from_str(line).map_err(Error::json(path)))
        .collect()
}

fn append(path: &PathBuf, new: &[Answer]) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Error::io(parent))?;
    }
    let mut text = String::new();
    for answer in new {
        text.push_str(&serde_json::to_string(answer).map_err(Error::json(path))?);
        text.push('\n');
    }
    let file = OpenOptions::new().create(true).append(true).open(path);
    let mut file = file.map_err(Error::io(path))?;
    file.write_all(text.as_bytes()).map_err(Error::io(path))
}

/// What a drafter's checkpoint depends on: the file of answers, how many of them, and what its states are rounded to.
pub(crate) fn dependence(file: &Path, config: &AnswersConfig) -> String {
    let file = file.display();
    match (config.first, &config.keep_states) {
        (None, None) => file.to_string(),
        (first, kept) => {
            let rounded = kept.as_ref().map(|_| config.dtype);
            format!("{file} {first:?} {rounded:?}")
        }
    }
}

/// Where a run over `answers` takes the target's states from.
///
/// # Errors
/// If the file of kept states fails.
pub(crate) fn states_of(
    target: &Path,
    work: &Path,
    config: &AnswersConfig,
    answers: &[Answer],
) -> Result<States> {
    let Some(layers) = &config.keep_states else {
        return Ok(States::Live);
    };
    let lengths = answers
        .iter()
        .map(|a| a.prompt_ids.len() + a.answer_ids.len());
    States::kept(&KeptStates {
        target,
        folder: config.folder.as_deref().unwrap_or(work),
        layers,
        precision: config.dtype,
        longest: lengths.max().unwrap_or(1),
    })
}

/// What is wrong with `answers.keep_states` for a drafter with these taps.
pub(crate) fn check_kept(
    config: &AnswersConfig,
    taps: &[usize],
    depth: usize,
) -> std::result::Result<(), String> {
    let Some(kept) = &config.keep_states else {
        return Ok(());
    };
    if let Some(id) = kept.iter().find(|id| **id >= depth) {
        return Err(format!("names layer {id}, the target has 0..{depth}"));
    }
    let is_there = |tap: &&usize| kept.contains(tap) || **tap + 1 == depth;
    match taps.iter().find(|tap| !is_there(tap)) {
        Some(tap) => Err(format!(
            "lacks layer {tap}, which drafter.target_layer_ids names"
        )),
        None => Ok(()),
    }
}

/// Texts whose labels are the target's tokens; those to prompts held back become the held-out packs.
///
/// # Errors
/// [`Error::NoData`] if nothing is left to train on.
pub(crate) fn texts(answers: &[Answer], seed: u64) -> Result<Texts> {
    let mut train = Vec::new();
    let mut held: Vec<(Domain, Pack)> = Vec::new();
    for answer in answers {
        let prompt = answer.prompt_ids.iter().map(|_| 0.0);
        let text = Text {
            domain: answer.domain,
            ids: [answer.prompt_ids.as_slice(), &answer.answer_ids].concat(),
            weights: prompt
                .chain(answer.answer_ids.iter().map(|_| 1.0))
                .collect(),
        };
        if !answer.held_back {
            train.push(text);
        } else if let Some((_, pack)) = held.iter_mut().find(|(d, _)| *d == answer.domain) {
            pack.push(&text);
        } else {
            let mut pack = Pack::default();
            pack.push(&text);
            held.push((answer.domain, pack));
        }
    }
    match train.is_empty() {
        true => Err(Error::NoData {
            why: format!("{} answers, all to prompts held back", answers.len()),
        }),
        false => Ok(Texts::of(train, held, seed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_dflash_recipe;

    #[test]
    fn answers_go_by_what_was_asked_of_whom_and_not_by_where_they_lie() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("model.safetensors"), b"weights").unwrap();
        let file = Path::new("../training/recipes/tiny-qwen3-dflash.toml");
        let plain = load_dflash_recipe(file).unwrap().answers;
        let name = |config: &AnswersConfig| file_name(dir.path(), config).unwrap();
        let mut other = plain.clone();
        other.folder = Some("elsewhere".into());
        assert_eq!(name(&other), name(&plain));
        other.chat = Some(ChatText {
            before: "<".into(),
            after: ">".into(),
            maths_suffix: "!".into(),
        });
        assert_ne!(name(&other), name(&plain));
        other = plain.clone();
        other.dtype = Precision::Bf16;
        assert_ne!(name(&other), name(&plain));
        // The name that the tiny targets' answers have had from the start.
        let known = "assets/tiny/tiny-qwen3";
        let first = file_name(&Path::new("..").join(known), &plain).unwrap();
        assert_eq!(first, "answers-7def28fc9a8d361c.jsonl");
    }

    #[test]
    fn a_chat_text_stands_around_the_users_words() {
        let chat = ChatText {
            before: "<".into(),
            after: ">".into(),
            maths_suffix: "!".into(),
        };
        let example = |domain| Example {
            domain,
            user: "2 + 2".into(),
            think: None,
            answer: String::new(),
        };
        assert_eq!(chat.prompt(&example(Domain::Maths)), "<2 + 2!>");
        assert_eq!(chat.prompt(&example(Domain::Chat)), "<2 + 2>");
    }
}
