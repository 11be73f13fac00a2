//! Classic speculative decoding: a small model of the same vocabulary drafts token by token.
//!
//! Source: Leviathan et al. 2023 and Chen et al. 2023. Drafts are drawn from the small model's own law (argmax when
//! greedy), so acceptance is by ratio.

use decode::{
    Anchor, Committed, Drafter, Feed, Keep, LayerId, Probe, Proposal, Result, Sampling, Slot,
    Target, TokenId, TokenIo, laws,
};
use models::{Decoder, DecoderConfig, DecoderOptions};

use crate::draft_vocab::{DraftVocab, Drafts};
use crate::{Load, Method};

/// Draft tokens a round unless asked otherwise; the same as the block methods draft on the embedded targets.
const GAMMA: usize = 7;

pub(crate) const METHOD: Method = Method {
    id: "draft_model",
    title: "draft model",
    checkpoint: Some("draft"),
    options: &[],
    load: |load| Ok(Box::new(DraftModel::load(load)?)),
};

/// A second decoder, with a cache of its own, as drafter.
#[derive(Debug)]
pub struct DraftModel {
    model: Decoder,
    gamma: usize,
    /// Per slot: committed tokens that the model's cache does not hold yet, the anchor excluded.
    unfed: Vec<Vec<TokenId>>,
}

impl DraftModel {
    /// Keys and values the small model holds, for tests that rebuild them.
    pub fn cache(&self) -> &models::SlotCache {
        self.model.cache()
    }

    /// Loads the small model and checks that its vocabulary is the target's.
    ///
    /// # Errors
    /// If its files are missing or wrong, or its vocabulary differs.
    pub fn load(load: &Load<'_>) -> crate::Result<Self> {
        let source = load.files(METHOD.id)?;
        // It drafts one token after another, so only the cache limits how many.
        let gamma = match load.max_draft {
            None => GAMMA,
            Some(_) => load.gamma(load.capacity)?,
        };
        load.check_positions(source, DecoderConfig::load(source)?.max_positions)?;
        let options = DecoderOptions {
            slots: load.slots,
            capacity: load.capacity,
            precision: load.precision,
        };
        let model = Decoder::load(source, options)?;
        if model.vocab() != load.target.vocab {
            return Err(crate::Error::OtherTarget {
                file: source.label("config.json"),
                what: "vocab_size",
                got: model.vocab(),
                target: load.target.id.clone(),
                want: load.target.vocab,
            });
        }
        Ok(Self {
            model,
            gamma,
            unfed: vec![Vec::new(); load.slots],
        })
    }

    /// Feeds each row its tokens and draws one token a row; sampled laws are kept for the proposal.
    fn step(
        &mut self,
        rows: &mut [Anchor<'_>],
        fed: &[Vec<TokenId>],
        sampling: Sampling,
        drafts: &mut [Drafts],
    ) -> Result<()> {
        let feeds: Vec<Feed<'_>> = rows
            .iter()
            .zip(fed)
            .map(|(row, tokens)| Feed {
                slot: row.slot,
                tokens,
                parents: None,
                logits: Keep::Last,
            })
            .collect();
        let forward = self.model.forward(&feeds, &[])?;
        let laws = laws(&forward.logits, sampling)?;
        let vocab = DraftVocab::all(self.model.vocab());
        for ((row, law), drafts) in rows.iter_mut().zip(laws).zip(drafts) {
            drafts.draw(law, row.draws, &vocab);
        }
        Ok(())
    }
}

impl Drafter for DraftModel {
    fn taps(&self) -> &[LayerId] {
        &[]
    }

    fn max_draft(&self) -> usize {
        self.gamma
    }

    fn start(&mut self, prompt: Committed<'_>) -> Result<()> {
        let feed = Feed {
            slot: prompt.slot,
            tokens: prompt.fed,
            parents: None,
            logits: Keep::Last,
        };
        self.model.forward(&[feed], &[])?;
        self.unfed[prompt.slot.0].clear();
        Ok(())
    }

    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        _io: &dyn TokenIo,
        sampling: Sampling,
        _probe: &mut dyn Probe,
    ) -> Result<Vec<Proposal>> {
        let mut drafts: Vec<Drafts> = rows.iter().map(|_| Drafts::default()).collect();
        let mut fed: Vec<Vec<TokenId>> = rows
            .iter()
            .map(|row| {
                let mut tokens = std::mem::take(&mut self.unfed[row.slot.0]);
                tokens.push(row.token);
                tokens
            })
            .collect();
        for _ in 0..self.gamma {
            self.step(rows, &fed, sampling, &mut drafts)?;
            for (fed, drafts) in fed.iter_mut().zip(&drafts) {
                fed.clear();
                fed.extend(drafts.last());
            }
        }
        let vocab = DraftVocab::all(self.model.vocab());
        drafts.into_iter().map(|d| d.proposal(&vocab)).collect()
    }

    fn commit(&mut self, rows: Vec<Committed<'_>>) -> Result<()> {
        for row in rows {
            // The cache holds the anchor and all drafts but the last, which was drawn and never fed.
            let held = row.fed.len().min(self.gamma);
            self.model.keep(row.slot, row.position + held, &[])?;
            self.unfed[row.slot.0] = row.fed[held..].to_vec();
        }
        Ok(())
    }

    fn finish(&mut self, slot: Slot) {
        self.unfed[slot.0].clear();
        self.model
            .keep(slot, 0, &[])
            .expect("freeing a slot that was started cannot fail");
    }
}
