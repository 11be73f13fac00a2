//! The rows of a pack that a drafter is unrolled from, and what each step should predict.

use crate::data::Pack;
use crate::ops::{Laws, Segment};
use candle_core::{Device, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;

use crate::vocab::DraftVocab;

/// Packed texts as the drafter walks over them.
///
/// Row i pairs the target's state at position i with the token at i + 1 and predicts the token at i + 2; after k steps
/// it predicts the token at i + 2 + k. All rows are keys of the first step, but only those near the answer ask: the
/// others would carry no loss at any step.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// Ids of all texts.
    pub(crate) ids: Vec<u32>,
    /// Rows of each text.
    pub(crate) texts: Vec<Range<usize>>,
    /// Whether the loss looks at a row: the target wrote its token, and it is not its text's last.
    pub(crate) counts: Vec<bool>,
    /// Rows that ask, with the end of their text.
    pub(crate) asking: Vec<(usize, usize)>,
    /// Who sees whom in the first step.
    pub(crate) segments: Arc<[Segment]>,
}

impl Walk {
    /// The rows that matter to `steps` steps.
    pub(crate) fn new(pack: &Pack, steps: usize) -> Self {
        // A row's weight is that of the id after it; the first id of a text has no row before it.
        let mut counts = vec![false; pack.ids.len()];
        for (counts, weight) in counts.iter_mut().skip(1).zip(&pack.weights) {
            *counts = *weight > 0.0;
        }
        for text in &pack.texts {
            counts[text.end - 1] = false;
        }
        Self::of(pack.ids.clone(), pack.texts.clone(), counts, steps)
    }

    pub(crate) fn of(
        ids: Vec<u32>,
        texts: Vec<Range<usize>>,
        counts: Vec<bool>,
        steps: usize,
    ) -> Self {
        let (mut asking, mut segments) = (Vec::new(), Vec::new());
        for text in &texts {
            let Some(first) = text.clone().find(|row| counts[*row]) else {
                continue;
            };
            // Step k of a row is gated by the row k further on.
            let start = text.start.max((first + 1).saturating_sub(steps));
            let before = asking.len();
            asking.extend((start..text.end).map(|row| (row, text.end)));
            segments.push(Segment {
                queries: before..asking.len(),
                keys: [0..0, text.clone()],
                span: crate::ops::KeySpan::Causal,
            });
        }
        Self {
            ids,
            texts,
            counts,
            asking,
            segments: segments.into(),
        }
    }

    /// Ids that step `step` reads in the asking rows, 0 beyond a text's end.
    pub(crate) fn ids_at(&self, step: usize) -> Vec<u32> {
        let id = |(row, end): &(usize, usize)| match row + 1 + step < *end {
            true => self.ids[row + 1 + step],
            false => 0,
        };
        self.asking.iter().map(id).collect()
    }

    /// Ids that the first step reads in all rows, 0 for a text's last.
    pub(crate) fn next_ids(&self) -> Vec<u32> {
        let next = |text: &Range<usize>| {
            let rest = self.ids[text.start + 1..text.end].to_vec();
            rest.into_iter().chain([0])
        };
        self.texts.iter().flat_map(next).collect()
    }

    /// Position of every row in its text.
    pub(crate) fn positions(&self) -> Vec<u32> {
        self.texts.iter().flat_map(|t| 0..t.len() as u32).collect()
    }

    /// Numbers of the asking rows.
    pub(crate) fn asking_rows(&self) -> Vec<u32> {
        self.asking.iter().map(|(row, _)| *row as u32).collect()
    }
}

/// What the target says about each row, seen through the draft vocabulary.
pub(crate) struct Teacher {
    laws: Laws,
    /// Whether the target's first choice of each row is one that the drafter can name.
    nameable: Vec<bool>,
}

impl Teacher {
    /// From the target's logits `[N, V]`; laws are renormalised over the kept ids.
    pub(crate) fn new(logits: &Tensor, vocab: &DraftVocab) -> Result<Self> {
        let best: Vec<u32> = logits.argmax(1)?.to_vec1()?;
        let ids = Tensor::new(vocab.ids.as_slice(), &Device::Cpu)?;
        let kept = logits.index_select(&ids, 1)?;
        let laws = candle_nn::ops::softmax(&kept, 1)?;
        Ok(Self {
            laws: Laws {
                width: vocab.len(),
                values: laws.flatten_all()?.to_vec1::<f32>()?.into(),
            },
            nameable: best.iter().map(|id| vocab.kept[*id as usize]).collect(),
        })
    }

    pub(crate) fn laws(&self) -> &Laws {
        &self.laws
    }

    /// For each asking row the law that step `step` should give, and whether it counts. Both move one row a step; what
    /// lies beyond the text does not count.
    pub(crate) fn rows(&self, walk: &Walk, step: usize) -> Vec<(usize, bool)> {
        let row = |(row, end): &(usize, usize)| {
            let law = row + 1 + step;
            let counts = law < *end && walk.counts[row + step] && self.nameable[law];
            (law, counts)
        };
        walk.asking.iter().map(row).collect()
    }
}
