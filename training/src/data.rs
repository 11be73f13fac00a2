//! From examples to packed batches of token ids.

use crate::check::{ABOVE_0, Check, NOT_BELOW_0, is_not_negative};
use crate::error::{Error, Result};
use crate::params::fnv1a;
use crate::tokenizer::TextCodec;
use datasets::{Domain, Example};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The `[batch]` table of a recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchConfig {
    /// Most tokens that go through the network at once; whole texts are packed into them.
    pub micro_tokens: usize,
    /// Packs whose gradients make one step.
    pub packs_per_step: usize,
    /// Longer texts are left out.
    pub max_text_tokens: usize,
    /// Loss weight of the user's part; the answer's is 1.
    pub prompt_weight: f32,
    /// Reserved texts of each domain that the held-out loss is measured on.
    pub held_out: usize,
}

impl BatchConfig {
    /// What the `[batch]` table must fulfil.
    pub(crate) fn checks(&self) -> Vec<Check> {
        vec![
            ("batch.micro_tokens", self.micro_tokens > 0, ABOVE_0),
            ("batch.packs_per_step", self.packs_per_step > 0, ABOVE_0),
            ("batch.max_text_tokens", self.max_text_tokens > 0, ABOVE_0),
            (
                "batch.prompt_weight",
                is_not_negative(f64::from(self.prompt_weight)),
                NOT_BELOW_0,
            ),
        ]
    }
}

/// One tokenized example.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Text {
    /// Which domain it counts under.
    pub domain: Domain,
    /// Token ids of the whole chat text.
    pub ids: Vec<u32>,
    /// Loss weight of each id as a label.
    pub weights: Vec<f32>,
}

/// Whole texts laid end to end; each sees itself only.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pack {
    /// Ids of all texts.
    pub ids: Vec<u32>,
    /// Rows of each text.
    pub texts: Vec<Range<usize>>,
    /// The id that follows each row.
    pub labels: Vec<u32>,
    /// Loss weight of each row; 0 for a text's last.
    pub weights: Vec<f32>,
}

impl Pack {
    /// Appends a text.
    pub(crate) fn push(&mut self, text: &Text) {
        let start = self.ids.len();
        self.ids.extend(&text.ids);
        self.texts.push(start..self.ids.len());
        self.labels.extend(text.ids.iter().skip(1));
        self.weights.extend(text.weights.iter().skip(1));
        self.labels.push(0);
        self.weights.push(0.0);
    }

    /// Sum of the rows' weights.
    pub(crate) fn weight(&self) -> f64 {
        self.weights.iter().map(|w| f64::from(*w)).sum()
    }

    /// Some of the texts, by number; at least one.
    pub(crate) fn slice(&self, texts: Range<usize>) -> Self {
        let texts = &self.texts[texts];
        let rows = texts[0].start..texts[texts.len() - 1].end;
        let moved = |text: &Range<usize>| text.start - rows.start..text.end - rows.start;
        Self {
            ids: self.ids[rows.clone()].to_vec(),
            texts: texts.iter().map(moved).collect(),
            labels: self.labels[rows.clone()].to_vec(),
            weights: self.weights[rows.clone()].to_vec(),
        }
    }

    /// Up to `n` packs of about as many rows, which hold the same texts in the same order.
    pub(crate) fn parts(&self, n: usize) -> Vec<Self> {
        let mut parts = Vec::with_capacity(n);
        let mut first = 0;
        for part in 1..=n {
            let rows = self.ids.len() * part / n;
            // A text goes where its middle lies.
            let is_in = |text: &&Range<usize>| text.start + text.end <= 2 * rows;
            let end = first + self.texts[first..].iter().take_while(is_in).count();
            if end > first {
                parts.push(self.slice(first..end));
                first = end;
            }
        }
        parts
    }
}

/// Training texts in an order that (seed, epoch) fixes, and the held-out ones.
pub(crate) struct Texts {
    train: Vec<Text>,
    /// Never trained on, a pack for each domain.
    pub held_out: Vec<(Domain, Pack)>,
    /// Examples left out because they were too long.
    pub too_long: usize,
    /// Examples left out because their prompt is held back.
    pub held_back: usize,
    order: Vec<u32>,
    cursor: Cursor,
    seed: u64,
}

/// Where in the endless stream of texts the next batch starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// Passes over all texts that are complete.
    pub epoch: u64,
    /// Texts of the present pass that are used up.
    pub next: usize,
}

/// Whether a prompt belongs to the sixteenth of all prompts that no target or drafter is trained on, whatever the
/// seeds of a recipe, so that held-out figures of all of them can be compared. Prompts that differ in case and white
/// space only share their fate.
pub(crate) fn is_held_back(user: &str) -> bool {
    fnv1a(datasets::same_prompt_key(user).as_bytes()).is_multiple_of(16)
}

/// Tokenizes one example.
///
/// # Errors
/// If the tokenizer refuses it.
pub(crate) fn tokenize(example: &Example, codec: &TextCodec, prompt_weight: f32) -> Result<Text> {
    let answer_start = example.prompt_text().len();
    let (ids, starts) = codec.encode_with_offsets(&example.full_text())?;
    let weigh = |start: &usize| {
        if *start < answer_start {
            prompt_weight
        } else {
            1.0
        }
    };
    Ok(Text {
        domain: example.domain,
        weights: starts.iter().map(weigh).collect(),
        ids,
    })
}

impl Texts {
    /// Tokenizes and drops what is too long or held back; some of the texts held back become the held-out ones.
    ///
    /// # Errors
    /// [`Error::NoData`] if nothing is left to train on.
    pub(crate) fn new(
        examples: &[Example],
        codec: &TextCodec,
        config: &BatchConfig,
        seed: u64,
    ) -> Result<Self> {
        let limit = config.max_text_tokens.min(config.micro_tokens);
        let mut train = Vec::with_capacity(examples.len());
        let mut held: Vec<(Domain, usize, Pack)> = Domain::ALL
            .iter()
            .map(|d| (*d, 0, Pack::default()))
            .collect();
        let (mut too_long, mut held_back) = (0, 0);
        for example in examples {
            let text = tokenize(example, codec, config.prompt_weight)?;
            if text.ids.len() > limit {
                too_long += 1;
            } else if is_held_back(&example.user) {
                held_back += 1;
                let open = held
                    .iter_mut()
                    .find(|(d, n, _)| *d == text.domain && *n < config.held_out);
                if let Some((_, n, pack)) = open {
                    pack.push(&text);
                    *n += 1;
                }
            } else {
                train.push(text);
            }
        }
        if train.is_empty() {
            let why = format!(
                "{} examples, {too_long} longer than {limit} tokens",
                examples.len()
            );
            return Err(Error::NoData { why });
        }
        let held_out = held.into_iter().filter(|(_, n, _)| *n > 0);
        let held_out = held_out.map(|(domain, _, pack)| (domain, pack)).collect();
        let mut texts = Self::of(train, held_out, seed);
        texts.too_long = too_long;
        texts.held_back = held_back;
        Ok(texts)
    }

    /// Texts that are ready to be trained on; `train` is not empty.
    pub(crate) fn of(train: Vec<Text>, held_out: Vec<(Domain, Pack)>, seed: u64) -> Self {
        let mut texts = Self {
            train,
            held_out,
            too_long: 0,
            held_back: 0,
            order: Vec::new(),
            cursor: Cursor::default(),
            seed,
        };
        texts.seek(Cursor::default());
        texts
    }

    /// How many texts are trained on.
    pub(crate) fn len(&self) -> usize {
        self.train.len()
    }

    /// Tokens of one pass over the training texts.
    pub(crate) fn tokens(&self) -> usize {
        self.train.iter().map(|t| t.ids.len()).sum()
    }

    /// Where the next pack starts.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Goes on from a stored place.
    pub(crate) fn seek(&mut self, cursor: Cursor) {
        self.cursor = cursor;
        self.order = (0..self.train.len() as u32).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed.wrapping_add(1 + cursor.epoch));
        self.order.shuffle(&mut rng);
    }

    /// The next texts that fit into `max_tokens`; at least one.
    pub(crate) fn next_pack(&mut self, max_tokens: usize) -> Pack {
        let mut pack = Pack::default();
        loop {
            if self.cursor.next == self.train.len() {
                let epoch = self.cursor.epoch + 1;
                self.seek(Cursor { epoch, next: 0 });
            }
            let text = &self.train[self.order[self.cursor.next] as usize];
            if !pack.ids.is_empty() && pack.ids.len() + text.ids.len() > max_tokens {
                return pack;
            }
            pack.push(text);
            self.cursor.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of 3, 1 and 4 ids.
    fn pack() -> Pack {
        let mut pack = Pack::default();
        for ids in [vec![1, 2, 3], vec![4], vec![5, 6, 7, 8]] {
            let weights = ids.iter().map(|id| *id as f32).collect();
            pack.push(&Text {
                domain: Domain::Maths,
                ids,
                weights,
            });
        }
        pack
    }

    #[test]
    fn parts_hold_the_same_texts_in_the_same_order() {
        for n in 1..6 {
            let parts = pack().parts(n);
            let ids: Vec<u32> = parts.iter().flat_map(|p| p.ids.clone()).collect();
            let weights: Vec<f32> = parts.iter().flat_map(|p| p.weights.clone()).collect();
            assert_eq!(ids, pack().ids, "{n}");
            assert_eq!(weights, pack().weights, "{n}");
            assert!(parts.len() <= n && parts.iter().all(|p| p.texts[0].start == 0));
        }
        let halves = pack().parts(2);
        assert_eq!(halves[0].texts, [0..3, 3..4]);
        assert_eq!(halves[1].texts.as_slice(), std::slice::from_ref(&(0..4)));
    }
}
