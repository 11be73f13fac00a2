//! The smallest target, whose law is known exactly, and drafters that guess well, badly or on purpose wrong.
//! They exist so that the loop and the acceptance rule can be proven right without weights.

use candle_core::{Device, Tensor};

use crate::drafter::{Anchor, Committed, DraftLaw, Drafter, Proposal};
use crate::error::{Error, Result};
use crate::probe::Probe;
use crate::sampling::{Draws, Law, Sampling, laws};
use crate::target::{Feed, Forward, Keep, LayerId, Slot, Target, TokenId, TokenIo};

/// An order-2 Markov chain over V tokens: the next token's logits are a hash of the last two tokens.
///
/// Its hidden state is `[second last, last]`, so H is 2 and every layer's tap is the same.
#[derive(Debug)]
pub struct ToyTarget {
    vocab: usize,
    capacity: usize,
    stop: Vec<TokenId>,
    cache: Vec<Vec<TokenId>>,
    /// Cache length before the last feed of each slot, to resolve tree paths.
    base: Vec<usize>,
    n_forwards: usize,
}

impl ToyTarget {
    /// `stop` may be empty; `capacity` positions a slot.
    pub fn new(vocab: usize, slots: usize, capacity: usize, stop: &[TokenId]) -> Self {
        Self {
            vocab,
            capacity,
            stop: stop.to_vec(),
            cache: vec![Vec::new(); slots],
            base: vec![0; slots],
            n_forwards: 0,
        }
    }

    /// `[V]` logits after tokens `a`, `b`; `a` is 0 at the start of a sequence.
    pub fn logits(vocab: usize, a: TokenId, b: TokenId) -> Vec<f32> {
        hashed(vocab, u64::from(a) * 1_000_003 + u64::from(b) * 10_007)
    }

    /// `[V]` probabilities after `a`, `b`.
    pub fn law(vocab: usize, a: TokenId, b: TokenId, sampling: Sampling) -> Vec<f32> {
        match crate::sampling::law(&Self::logits(vocab, a, b), sampling) {
            Some(Law::Weights(w)) => w,
            Some(Law::Point(t)) => (0..vocab as u32)
                .map(|i| f32::from(u8::from(i == t)))
                .collect(),
            None => Vec::new(),
        }
    }

    /// How often [`Target::forward`] ran.
    pub fn n_forwards(&self) -> usize {
        self.n_forwards
    }

    /// Tokens a slot's cache holds.
    pub fn cached(&self, slot: Slot) -> &[TokenId] {
        &self.cache[slot.0]
    }
}

/// Logits in `[-2.5, 2.5)`.
fn hashed(vocab: usize, key: u64) -> Vec<f32> {
    (0..vocab as u64)
        .map(|t| {
            let mut z = (key + t * 101 + 7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            z ^= z >> 29;
            z = z.wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z ^= z >> 32;
            (z % 1000) as f32 / 200.0 - 2.5
        })
        .collect()
}

impl TokenIo for ToyTarget {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        let ids = ids.to_vec1::<u32>()?;
        let rows: Vec<f32> = ids.iter().flat_map(|t| [0.0, *t as f32]).collect();
        Ok(Tensor::from_vec(rows, (ids.len(), 2), &Device::Cpu)?)
    }

    fn lm_head(&self, hidden: &Tensor) -> Result<Tensor> {
        let rows = hidden.to_vec2::<f32>()?;
        let flat: Vec<f32> = rows
            .iter()
            .flat_map(|h| Self::logits(self.vocab, h[0] as u32, h[1] as u32))
            .collect();
        Ok(Tensor::from_vec(
            flat,
            (rows.len(), self.vocab),
            &Device::Cpu,
        )?)
    }
}

impl Target for ToyTarget {
    fn stop_tokens(&self) -> &[TokenId] {
        &self.stop
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn forward(&mut self, feeds: &[Feed<'_>], taps: &[LayerId]) -> Result<Forward> {
        self.n_forwards += 1;
        let (mut logits, mut hidden) = (Vec::new(), Vec::new());
        for feed in feeds {
            let cache = &mut self.cache[feed.slot.0];
            let base = cache.len();
            self.base[feed.slot.0] = base;
            cache.extend_from_slice(feed.tokens);
            if cache.len() > self.capacity {
                return Err(Error::Model(format!("slot {} is full", feed.slot.0)));
            }
            for (row, token) in feed.tokens.iter().enumerate() {
                let before = match (row, feed.parents) {
                    (0, _) if base == 0 => 0,
                    (0, _) => cache[base - 1],
                    (_, None) => feed.tokens[row - 1],
                    (_, Some(parents)) => feed.tokens[parents[row] as usize],
                };
                hidden.extend([before as f32, *token as f32]);
                if feed.logits == Keep::All || row + 1 == feed.tokens.len() {
                    logits.extend(Self::logits(self.vocab, before, *token));
                }
            }
        }
        let n = logits.len() / self.vocab;
        let n_fed = feeds.iter().map(|f| f.tokens.len()).sum::<usize>();
        let hidden = Tensor::from_vec(hidden, (n_fed, 2), &Device::Cpu)?;
        Ok(Forward {
            logits: Tensor::from_vec(logits, (n, self.vocab), &Device::Cpu)?,
            taps: taps.iter().map(|_| hidden.clone()).collect(),
        })
    }

    fn keep(&mut self, slot: Slot, len: usize, path: &[u32]) -> Result<()> {
        let base = self.base[slot.0];
        let cache = &mut self.cache[slot.0];
        let moved: Option<Vec<TokenId>> = path
            .iter()
            .map(|r| cache.get(base + *r as usize).copied())
            .collect();
        match moved {
            Some(moved) if len <= cache.len() => {
                cache.truncate(len);
                cache.extend(moved);
                Ok(())
            }
            _ => Err(Error::Model(format!(
                "slot {}: nothing to keep at {len} + {path:?}",
                slot.0
            ))),
        }
    }
}

/// What a toy drafter puts into `Proposal::law`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToyLaw {
    /// Argmax drafts.
    Point,
    /// Drafts drawn from all tokens.
    Full,
    /// Drafts drawn from the best K.
    TopK(usize),
}

/// Draws from its own order-1 chain, which resembles the target's only by chance.
#[derive(Debug)]
pub struct ToyDrafter {
    /// Vocabulary of the target.
    pub vocab: usize,
    /// Length of a chain, or depth of a tree.
    pub gamma: usize,
    /// Children of every tree node; 1 proposes a chain without parents.
    pub width: usize,
    /// How drafts are drawn.
    pub law: ToyLaw,
    /// Reports a confidence for every draft, a hash of the draft token before it.
    pub confident: bool,
}

impl ToyDrafter {
    fn logits(&self, before: TokenId) -> Vec<f32> {
        hashed(self.vocab, u64::from(before) * 77_003 + 5)
    }

    /// Chance the drafter claims for the slot that follows `before`.
    pub fn confidence(before: TokenId) -> f32 {
        0.35 + 0.3 * (before % 3) as f32
    }

    /// The weights a draft after `before` is drawn from; `taken` are elder siblings.
    fn weights(&self, before: TokenId, taken: &[TokenId], sampling: Sampling) -> Vec<f32> {
        let logits = self.logits(before);
        let sampling = match sampling {
            Sampling::Greedy => Sampling::at(1000),
            Sampling::Sampled { .. } => sampling,
        };
        let drawn = crate::sampling::law(&logits, sampling);
        let Some(Law::Weights(mut weights)) = drawn else {
            return Vec::new();
        };
        if let ToyLaw::TopK(k) = self.law {
            let mut order: Vec<usize> = (0..weights.len()).collect();
            order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
            order[k..].iter().for_each(|i| weights[*i] = 0.0);
        }
        taken.iter().for_each(|t| weights[*t as usize] = 0.0);
        let total: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= total);
        weights
    }

    fn grow(&self, anchor: TokenId, sampling: Sampling, draws: &mut Draws) -> Result<Proposal> {
        let (mut tokens, mut parents, mut laws) = (Vec::new(), Vec::new(), Vec::new());
        let mut level = vec![(0u32, anchor)];
        for _ in 0..self.gamma {
            let mut next = Vec::new();
            for (row, before) in level {
                let mut taken: Vec<TokenId> = Vec::new();
                for _ in 0..self.width {
                    let weights = self.weights(before, &taken, sampling);
                    let token = match self.law {
                        ToyLaw::Point => best(&weights),
                        _ => draws.pick(&weights) as TokenId,
                    };
                    taken.push(token);
                    tokens.push(token);
                    parents.push(row);
                    laws.push(weights);
                    next.push((tokens.len() as u32, token));
                }
            }
            level = next;
        }
        let befores = parents.iter().map(|r| {
            if *r == 0 {
                anchor
            } else {
                tokens[*r as usize - 1]
            }
        });
        let confidence = self
            .confident
            .then(|| befores.map(Self::confidence).collect());
        let parents = (self.width > 1).then_some(parents);
        let law = self.draft_law(&laws)?;
        Ok(Proposal {
            tokens,
            parents,
            law,
            confidence,
        })
    }

    fn draft_law(&self, laws: &[Vec<f32>]) -> Result<DraftLaw> {
        let n = laws.len();
        match self.law {
            ToyLaw::Point => Ok(DraftLaw::Point),
            ToyLaw::Full => Ok(DraftLaw::Full(Tensor::from_vec(
                laws.concat(),
                (n, self.vocab),
                &Device::Cpu,
            )?)),
            ToyLaw::TopK(k) => {
                let (mut ids, mut probs) = (Vec::new(), Vec::new());
                for law in laws {
                    let mut order: Vec<u32> = (0..self.vocab as u32).collect();
                    order.sort_by(|a, b| law[*b as usize].total_cmp(&law[*a as usize]));
                    order.truncate(k);
                    probs.extend(order.iter().map(|i| law[*i as usize]));
                    ids.extend(order);
                }
                Ok(DraftLaw::TopK {
                    ids: Tensor::from_vec(ids, (n, k), &Device::Cpu)?,
                    probs: Tensor::from_vec(probs, (n, k), &Device::Cpu)?,
                })
            }
        }
    }
}

fn best(weights: &[f32]) -> TokenId {
    (0..weights.len()).fold(0, |b, i| if weights[i] > weights[b] { i } else { b }) as TokenId
}

impl Drafter for ToyDrafter {
    fn taps(&self) -> &[LayerId] {
        &[]
    }

    fn max_draft(&self) -> usize {
        (1..=self.gamma)
            .map(|depth| self.width.pow(depth as u32))
            .sum()
    }

    fn drafts_trees(&self) -> bool {
        self.width > 1
    }

    fn start(&mut self, _prompt: Committed<'_>) -> Result<()> {
        Ok(())
    }

    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        _io: &dyn TokenIo,
        sampling: Sampling,
        _probe: &mut dyn Probe,
    ) -> Result<Vec<Proposal>> {
        rows.iter_mut()
            .map(|row| self.grow(row.token, sampling, row.draws))
            .collect()
    }

    fn commit(&mut self, _rows: Vec<Committed<'_>>) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self, _slot: Slot) {}
}

/// Which slot of its block an [`Oracle`] gets wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// None: every draft is the target's greedy choice.
    Never,
    /// Slot j, counted from 1.
    Slot(usize),
    /// Every slot.
    Always,
}

/// Knows the toy target's greedy continuation, read from its taps, and spoils it where asked.
#[derive(Debug)]
pub struct Oracle {
    /// Drafts a round.
    pub gamma: usize,
    /// Where to be wrong.
    pub wrong: Wrong,
    before: Vec<TokenId>,
}

impl Oracle {
    /// For `slots` sequences.
    pub fn new(gamma: usize, wrong: Wrong, slots: usize) -> Self {
        Self {
            gamma,
            wrong,
            before: vec![0; slots],
        }
    }

    fn remember(&mut self, row: &Committed<'_>) -> Result<()> {
        let last = row.taps[0]
            .narrow(0, row.fed.len() - 1, 1)?
            .to_vec2::<f32>()?;
        self.before[row.slot.0] = last[0][1] as TokenId;
        Ok(())
    }
}

impl Drafter for Oracle {
    fn taps(&self) -> &[LayerId] {
        &[LayerId(0)]
    }

    fn max_draft(&self) -> usize {
        self.gamma
    }

    fn start(&mut self, prompt: Committed<'_>) -> Result<()> {
        self.remember(&prompt)
    }

    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        _sampling: Sampling,
        _probe: &mut dyn Probe,
    ) -> Result<Vec<Proposal>> {
        let mut out = Vec::with_capacity(rows.len());
        for row in rows {
            let (mut a, mut b) = (self.before[row.slot.0], row.token);
            let mut tokens = Vec::with_capacity(self.gamma);
            for slot in 1..=self.gamma {
                let hidden = Tensor::new(&[[a as f32, b as f32]], &Device::Cpu)?;
                let Some(Law::Point(right)) = laws(&io.lm_head(&hidden)?, Sampling::Greedy)?.pop()
                else {
                    return Err(Error::Model("the greedy law is a point".into()));
                };
                let spoil = self.wrong == Wrong::Always || self.wrong == Wrong::Slot(slot);
                let token = if spoil {
                    (right + 1) % io.vocab() as u32
                } else {
                    right
                };
                tokens.push(token);
                (a, b) = (b, token);
            }
            out.push(Proposal::chain(tokens));
        }
        Ok(out)
    }

    fn commit(&mut self, rows: Vec<Committed<'_>>) -> Result<()> {
        rows.iter().try_for_each(|row| self.remember(row))
    }

    fn finish(&mut self, slot: Slot) {
        self.before[slot.0] = 0;
    }
}
