//! Which token ids a drafter's head knows.

use crate::anchors::Blocks;
use crate::answers::Answer;
use candle_core::{Device, Result, Tensor};

/// The kept ids and their place among all ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DraftVocab {
    /// Target id of each draft id, rising.
    pub(crate) ids: Vec<u32>,
    /// Whether each target id is kept.
    pub(crate) kept: Vec<bool>,
}

impl DraftVocab {
    /// The `size` ids that answers to prompts which are trained on hold most often; of equally frequent ones the lower.
    pub(crate) fn of(answers: &[Answer], vocab: usize, size: usize) -> Self {
        let mut counts = vec![0u64; vocab];
        let trained = answers.iter().filter(|answer| !answer.held_back);
        for id in trained.flat_map(|answer| &answer.answer_ids) {
            counts[*id as usize] += 1;
        }
        let mut ids: Vec<u32> = (0..vocab as u32).collect();
        ids.sort_by_key(|id| std::cmp::Reverse(counts[*id as usize]));
        ids.truncate(size);
        Self::new(ids, vocab)
    }

    /// A vocabulary of these ids, in any order and without repeats.
    pub(crate) fn new(mut ids: Vec<u32>, vocab: usize) -> Self {
        ids.sort_unstable();
        let mut kept = vec![false; vocab];
        ids.iter().for_each(|id| kept[*id as usize] = true);
        Self { ids, kept }
    }

    /// All ids.
    pub(crate) fn whole(vocab: usize) -> Self {
        Self::new((0..vocab as u32).collect(), vocab)
    }

    /// Whether no id is left out.
    pub(crate) fn is_whole(&self) -> bool {
        self.ids.len() == self.kept.len()
    }

    /// Target ids of draft ids.
    pub(crate) fn target_ids(&self, mut draft_ids: Vec<u32>) -> Vec<u32> {
        draft_ids
            .iter_mut()
            .for_each(|id| *id = self.ids[*id as usize]);
        draft_ids
    }

    /// Gives the blocks' labels their draft ids; a label that is left out carries no loss.
    pub(crate) fn classify(&self, blocks: &mut Blocks) {
        let slots = blocks.labels.iter().zip(&mut blocks.classes);
        for ((label, class), weight) in slots.zip(&mut blocks.weights) {
            match self.ids.binary_search(label) {
                Ok(draft) => *class = draft as u32,
                Err(_) => (*class, *weight) = (0, 0.0),
            }
        }
    }

    /// Draft ids.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The tensors `d2t` (distance from draft id to target id) and `t2d` (1 for a kept target id).
    pub(crate) fn tensors(&self) -> Result<[(String, Tensor); 2]> {
        let offsets: Vec<i64> = (0..)
            .zip(&self.ids)
            .map(|(draft, id)| i64::from(*id) - draft)
            .collect();
        let kept: Vec<u8> = self.kept.iter().map(|kept| u8::from(*kept)).collect();
        Ok([
            ("d2t".to_owned(), Tensor::new(offsets, &Device::Cpu)?),
            ("t2d".to_owned(), Tensor::new(kept, &Device::Cpu)?),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datasets::Domain;

    #[test]
    fn the_most_frequent_ids_of_trained_answers_are_kept() -> Result<()> {
        let answer = |ids: &[u32], held_back| Answer {
            prompt_ids: vec![1, 1, 1, 1],
            answer_ids: ids.to_vec(),
            domain: Domain::ALL[0],
            thinking: false,
            held_back,
        };
        let answers = [answer(&[5, 5, 3, 2], false), answer(&[4, 4, 4], true)];
        let vocab = DraftVocab::of(&answers, 7, 4);
        // 0 is the lowest of those that never occur.
        assert_eq!(vocab.ids, [0, 2, 3, 5]);
        let [(_, d2t), (_, t2d)] = vocab.tensors()?;
        assert_eq!(d2t.to_vec1::<i64>()?, [0, 1, 1, 2]);
        assert_eq!(t2d.to_vec1::<u8>()?, [1, 0, 1, 1, 0, 1, 0]);
        Ok(())
    }
}
