//! Anchors, and the blocks of labels and loss weights that belong to them.

use crate::data::Pack;
pub use crate::trunk::BlockAt;
use baselines::Alignment;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

/// Texts a drafter is trained on, end to end, as target and drafter see them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftPack {
    /// Ids of all texts.
    pub ids: Vec<u32>,
    /// Rows of each text.
    pub texts: Vec<Range<usize>>,
    /// Whether an id was written by the target.
    pub is_answer: Vec<bool>,
}

impl DraftPack {
    /// Appends a prompt and the target's answer to it.
    pub fn push(&mut self, prompt: &[u32], answer: &[u32]) {
        let start = self.ids.len();
        self.ids.extend(prompt);
        self.ids.extend(answer);
        self.texts.push(start..self.ids.len());
        self.is_answer.extend(prompt.iter().map(|_| false));
        self.is_answer.extend(answer.iter().map(|_| true));
    }

    /// The same texts as a target is trained on them: a label of weight above 0 is the target's.
    pub(crate) fn of(pack: &Pack) -> Self {
        // A row's weight is that of the id after it; the first id of a text has no row before it.
        let mut is_answer = vec![false; pack.ids.len()];
        let labels = is_answer.iter_mut().skip(1);
        for (is_answer, weight) in labels.zip(&pack.weights) {
            *is_answer = *weight > 0.0;
        }
        Self {
            ids: pack.ids.clone(),
            texts: pack.texts.clone(),
            is_answer,
        }
    }

    /// Position of every row in its text.
    pub fn positions(&self) -> Vec<u32> {
        self.texts.iter().flat_map(|t| 0..t.len() as u32).collect()
    }

    /// Rows of a text that may be an anchor: the target wrote this token and the next.
    pub fn valid_anchors(&self, text: &Range<usize>) -> Vec<usize> {
        let rows = text.start..text.end.saturating_sub(1);
        rows.filter(|&row| self.is_answer[row] && self.is_answer[row + 1])
            .collect()
    }

    /// Up to `n` parts of the blocks at `anchors` (rows that rise): each with the texts that its anchors are in or
    /// between, and the anchors as rows of those. A text whose blocks are dealt to two parts is in both.
    pub(crate) fn deal(&self, anchors: &[usize], n: usize) -> Vec<(Self, Vec<usize>)> {
        let text_of = |row: usize| self.texts.partition_point(|text| text.end <= row);
        let part = |anchors: &[usize]| {
            let texts = text_of(anchors[0])..text_of(anchors[anchors.len() - 1]) + 1;
            let texts = &self.texts[texts];
            let rows = texts[0].start..texts[texts.len() - 1].end;
            let moved = |text: &Range<usize>| text.start - rows.start..text.end - rows.start;
            let pack = Self {
                ids: self.ids[rows.clone()].to_vec(),
                texts: texts.iter().map(moved).collect(),
                is_answer: self.is_answer[rows.clone()].to_vec(),
            };
            (pack, anchors.iter().map(|row| row - rows.start).collect())
        };
        let each = anchors.len().div_ceil(n).max(1);
        anchors.chunks(each).map(part).collect()
    }

    /// Up to `per_text` anchors of each text, drawn without replacement, in rising order.
    pub fn draw_anchors(&self, per_text: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
        let mut anchors = Vec::new();
        for text in &self.texts {
            let mut valid = self.valid_anchors(text);
            let count = per_text.min(valid.len());
            for i in 0..count {
                let other = rng.random_range(i as u64..valid.len() as u64) as usize;
                valid.swap(i, other);
            }
            valid.truncate(count);
            valid.sort_unstable();
            anchors.extend(valid);
        }
        anchors
    }
}

/// Shape of a block and how its slots are weighed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockShape {
    /// Input rows, the anchor's included.
    pub block_rows: usize,
    /// What a slot predicts.
    pub alignment: Alignment,
    /// Id of the mask token.
    pub mask: u32,
    /// Decay constant over the slots; `None` weighs all alike.
    pub decay: Option<f64>,
    /// Whether a slot counts although one before it does not.
    pub coverage: Coverage,
}

/// Which slots of a block carry loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Every slot whose label the target wrote (DFlash).
    EachLabel,
    /// Only up to the first slot whose label it did not write (DSpark).
    Prefix,
}

/// Blocks of one pack, slot by slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocks {
    /// `[blocks * block_rows]`: anchor, then masks.
    pub ids: Vec<u32>,
    /// Context and position of each block.
    pub at: Vec<BlockAt>,
    /// `[blocks * block_rows]`: the token each slot should predict; past the end the text's last.
    pub labels: Vec<u32>,
    /// `[blocks * block_rows]`: draft id of each label; meaningless where the weight is 0.
    pub classes: Vec<u32>,
    /// `[blocks * block_rows]`: row of the pack after which the target chose the label; meaningless where the weight
    /// is 0.
    pub target_rows: Vec<u32>,
    /// `[blocks * block_rows]`: 0 where there is nothing to learn.
    pub weights: Vec<f32>,
    /// `[blocks * block_rows]`: the weights before labels that cannot be drafted lost theirs. A confidence is learnt with
    /// these, since such a label is refused for certain.
    pub rated: Vec<f32>,
}

impl Blocks {
    /// The blocks that start at `anchors` (rows of `pack`).
    pub fn new(pack: &DraftPack, anchors: &[usize], shape: &BlockShape) -> Self {
        let mut blocks = Self {
            ids: Vec::new(),
            at: Vec::new(),
            labels: Vec::new(),
            classes: Vec::new(),
            target_rows: Vec::new(),
            weights: Vec::new(),
            rated: Vec::new(),
        };
        for text in &pack.texts {
            for &anchor in anchors.iter().filter(|a| text.contains(a)) {
                blocks.push(pack, text, anchor, shape);
            }
        }
        blocks
    }

    fn push(&mut self, pack: &DraftPack, text: &Range<usize>, anchor: usize, shape: &BlockShape) {
        self.at.push(BlockAt {
            context: text.start..anchor,
            position: anchor - text.start,
        });
        self.ids.push(pack.ids[anchor]);
        self.ids
            .resize(self.ids.len() + shape.block_rows - 1, shape.mask);
        let mut is_open = true;
        for slot in 0..shape.block_rows {
            let offset = shape.alignment.label_offset(slot);
            let label = anchor + offset.unwrap_or(0);
            let is_written = offset.is_some() && label < text.end && pack.is_answer[label];
            is_open &= is_written || offset.is_none();
            let counts = match shape.coverage {
                Coverage::EachLabel => is_written,
                Coverage::Prefix => is_written && is_open,
            };
            let from_first = slot.saturating_sub(shape.alignment.first_slot());
            let weight = shape
                .decay
                .map_or(1.0, |d| (-(from_first as f64) / d).exp());
            let label = label.min(text.end - 1);
            self.labels.push(pack.ids[label]);
            self.classes.push(pack.ids[label]);
            self.target_rows.push(label.saturating_sub(1) as u32);
            let weight = if counts { weight as f32 } else { 0.0 };
            self.weights.push(weight);
            self.rated.push(weight);
        }
    }

    /// Some of the blocks.
    pub fn slice(&self, blocks: Range<usize>) -> Self {
        let block_rows = self.ids.len() / self.at.len().max(1);
        let rows = blocks.start * block_rows..blocks.end * block_rows;
        Self {
            ids: self.ids[rows.clone()].to_vec(),
            at: self.at[blocks].to_vec(),
            labels: self.labels[rows.clone()].to_vec(),
            classes: self.classes[rows.clone()].to_vec(),
            target_rows: self.target_rows[rows.clone()].to_vec(),
            weights: self.weights[rows.clone()].to_vec(),
            rated: self.rated[rows].to_vec(),
        }
    }

    /// Sum of the slots' weights.
    pub fn weight(&self) -> f64 {
        self.weights.iter().map(|w| f64::from(*w)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    /// The sequence of the goldens: prompt of 7, answer on rows 7..=12, one id behind it that does not count.
    fn pack() -> DraftPack {
        let mut pack = DraftPack::default();
        pack.push(&[3, 17, 5, 9, 22, 11, 7], &[0, 28, 13, 30, 2, 19, 6]);
        pack.is_answer[13] = false;
        pack
    }

    fn shape(alignment: Alignment, coverage: Coverage) -> BlockShape {
        BlockShape {
            block_rows: 4,
            alignment,
            mask: 39,
            decay: None,
            coverage,
        }
    }

    #[test]
    fn dealt_blocks_are_those_of_the_whole() {
        let mut pack = pack();
        pack.push(&[1, 2], &[4, 5, 6]);
        pack.push(&[8], &[9, 3, 3, 1]);
        let shape = shape(Alignment::Shifted, Coverage::EachLabel);
        let anchors = [7, 9, 11, 20, 21, 22];
        let whole = Blocks::new(&pack, &anchors, &shape);
        for n in 1..9 {
            let parts = pack.deal(&anchors, n);
            assert!(parts.len() <= n);
            let blocks = parts.iter().map(|(part, at)| Blocks::new(part, at, &shape));
            let blocks: Vec<Blocks> = blocks.collect();
            let labels: Vec<u32> = blocks.iter().flat_map(|b| b.labels.clone()).collect();
            let weights: Vec<f32> = blocks.iter().flat_map(|b| b.weights.clone()).collect();
            assert_eq!(
                (labels, weights),
                (whole.labels.clone(), whole.weights.clone())
            );
        }
        let halves = pack.deal(&anchors, 2);
        assert_eq!(halves[0].0.texts, pack.texts[..1]);
        assert_eq!(
            halves[1].1,
            [1, 2, 3],
            "the text without an anchor is left out"
        );
        assert!(pack.deal(&[], 2).is_empty());
    }

    #[test]
    fn in_place_slots_are_labelled_with_their_own_position() {
        let blocks = Blocks::new(
            &pack(),
            &[7, 9, 11],
            &shape(Alignment::InPlace, Coverage::EachLabel),
        );
        assert_eq!(blocks.ids, [0, 39, 39, 39, 13, 39, 39, 39, 2, 39, 39, 39]);
        assert_eq!(blocks.labels, [0, 28, 13, 30, 13, 30, 2, 19, 2, 19, 6, 6]);
        assert_eq!(
            blocks.weights,
            [0., 1., 1., 1., 0., 1., 1., 1., 0., 1., 0., 0.]
        );
        assert_eq!(
            blocks.at[2],
            BlockAt {
                context: 0..11,
                position: 11
            }
        );
    }

    #[test]
    fn shifted_slots_are_labelled_with_the_next_position_and_end_at_the_first_gap() {
        let blocks = Blocks::new(
            &pack(),
            &[7, 9, 11],
            &shape(Alignment::Shifted, Coverage::Prefix),
        );
        assert_eq!(blocks.labels, [28, 13, 30, 2, 30, 2, 19, 6, 19, 6, 6, 6]);
        assert_eq!(
            blocks.weights,
            [1., 1., 1., 1., 1., 1., 1., 0., 1., 0., 0., 0.]
        );
    }

    #[test]
    fn slots_decay_from_the_first_that_predicts() {
        for alignment in [Alignment::InPlace, Alignment::Shifted] {
            let mut shape = shape(alignment, Coverage::EachLabel);
            shape.decay = Some(4.0);
            let blocks = Blocks::new(&pack(), &[7], &shape);
            let first = alignment.first_slot();
            assert_eq!(blocks.weights[first], 1.0);
            assert!((blocks.weights[first + 1] - (-0.25f32).exp()).abs() < 1e-7);
        }
    }

    #[test]
    fn anchors_are_drawn_among_answer_tokens_that_have_a_successor() {
        let mut pack = pack();
        pack.push(&[1, 2], &[4, 5, 6]);
        assert_eq!(pack.valid_anchors(&pack.texts[0]), [7, 8, 9, 10, 11]);
        assert_eq!(pack.valid_anchors(&pack.texts[1]), [16, 17]);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let drawn = pack.draw_anchors(3, &mut rng);
        assert_eq!(drawn.len(), 5);
        assert_eq!(drawn[3..], [16, 17]);
        assert!(
            drawn.windows(2).all(|w| w[0] < w[1]) && drawn[..3].iter().all(|a| (7..12).contains(a))
        );
        assert_eq!(pack.positions()[14..], [0, 1, 2, 3, 4]);
    }
}
