//! EAGLE-3: one layer beside the target drafts token by token, as a chain or as a dynamic tree.
//!
//! Source: EAGLE-3 (arXiv 2503.01840), EAGLE-2 (arXiv 2406.16858) for the tree; checkpoints of the authors' code,
//! SpecForge, AngelSlim, speculators and DeepSpec.

mod config;
mod net;
mod options;
mod tree;

use candle_core::{Device, Tensor};
use decode::{
    Anchor, Committed, Drafter, LayerId, Probe, Proposal, Result, Sampling, Slot, TokenId, TokenIo,
    laws,
};
use models::{CacheAt, CacheDims, Level, Plan, Rope, Rows, SlotCache, Weights};

pub use config::{Eagle3Config, FusionNorm, StateForm};
use net::Net;
pub use options::Drafting;
pub use tree::DraftTree;

use crate::draft_vocab::Drafts;
use crate::{Load, Method};

pub(crate) const METHOD: Method = Method {
    id: "eagle3",
    title: "EAGLE-3",
    checkpoint: Some("eagle3"),
    options: options::OPTIONS,
    load: |load| Ok(Box::new(Eagle3::load(load)?)),
};

/// The drafter with its weights and one cache of keys and values.
///
/// A pair joins the target's state at one position with the token of the next. Pairs of committed tokens stay in the
/// cache; what drafting appends is scratch behind them.
#[derive(Debug)]
pub struct Eagle3 {
    net: Net,
    taps: Vec<LayerId>,
    drafting: Drafting,
    rope: Rope,
    cache: SlotCache,
    /// Per slot: pairs of committed tokens that the cache does not hold yet. They wait for the next draft, which has
    /// the target's embeddings at hand.
    waiting: Vec<Vec<Pairs>>,
}

#[derive(Debug)]
struct Pairs {
    tokens: Vec<TokenId>,
    /// `[tokens.len(), H]`: the fused taps of the position before each token.
    states: Tensor,
}

impl Eagle3 {
    /// Loads a checkpoint and checks that it fits the target.
    ///
    /// # Errors
    /// If files are missing or wrong, or made for another target, or an option is out of range.
    pub fn load(load: &Load<'_>) -> crate::Result<Self> {
        let source = load.files(METHOD.id)?;
        let mut config = Eagle3Config::load(source)?;
        let file = source.label("config.json");
        config.check_target(&file, load.target)?;
        config.taps = Some(config.taps_in(&file, load.target.n_layers)?);
        options::read_theta(load.options, &mut config)?;
        let drafting = Drafting::read(load, config.draft_vocab)?;
        let weights = Weights::open(source)?.kept_as(load.precision);
        Self::new(config, weights, drafting, (load.slots, load.capacity))
    }

    /// Builds the drafter from its parts; the config names its taps. `room`: slots, and committed positions in each.
    ///
    /// # Errors
    /// If the config names no taps, or a tensor is missing, left over or of another shape.
    pub fn new(
        config: Eagle3Config,
        mut weights: Weights,
        drafting: Drafting,
        room: (usize, usize),
    ) -> crate::Result<Self> {
        let (slots, capacity) = room;
        let taps = config.taps.clone().unwrap_or_default();
        if taps.is_empty() {
            return Err(crate::Error::Config {
                file: weights.place().to_owned(),
                why: "the config of an EAGLE-3 drafter must name the layers it reads".to_owned(),
            });
        }
        let net = Net::load(config, &mut weights, &taps)?;
        weights.finish()?;
        let dims = net.attention_dims;
        let capacity = capacity + drafting.scratch_rows();
        Ok(Self {
            rope: Rope::new(&net.config.rope, dims.head_dim, capacity)?,
            cache: SlotCache::new(CacheDims {
                n_layers: 1,
                slots,
                capacity,
                width: dims.n_kv_heads * dims.head_dim,
            })?,
            net,
            taps,
            drafting,
            waiting: (0..slots).map(|_| Vec::new()).collect(),
        })
    }

    /// Keys and values of committed pairs, for tests that rebuild them.
    pub fn cache(&self) -> &SlotCache {
        &self.cache
    }

    /// Feeds the pairs that became final since the last call. Returns the state `[R, H]` after each row's last pair,
    /// from which its next draft follows.
    ///
    /// # Errors
    /// If a row's context does not end at its anchor, or a tensor operation fails.
    pub fn extend(&mut self, rows: &[Anchor<'_>], io: &dyn TokenIo) -> Result<Tensor> {
        let mut tokens = Vec::new();
        let (mut states, mut fed, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let pairs = std::mem::take(&mut self.waiting[row.slot.0]);
            let before = tokens.len();
            for pair in pairs {
                tokens.extend(pair.tokens);
                states.push(pair.states);
            }
            let n_rows = tokens.len() - before;
            let held = self.cache.len(row.slot)? + n_rows;
            if n_rows == 0 || held != row.position || tokens.last() != Some(&row.token) {
                return Err(decode::Error::Contract {
                    who: "drafter",
                    what: format!(
                        "its context holds {held} pairs, {n_rows} of them new, the anchor stands at {}",
                        row.position
                    ),
                });
            }
            last.push(tokens.len() as u32 - 1);
            fed.push(Rows {
                slot: row.slot,
                n_rows,
                parents: None,
            });
        }
        let plan = self.cache.plan(&fed)?;
        let y = self.forward(&tokens, &Tensor::cat(&states, 0)?, io, &plan)?;
        self.cache.advance(&plan);
        Ok(y.index_select(&Tensor::new(last, &Device::Cpu)?, 0)?)
    }

    /// One draft step behind the committed pairs: `tokens` and the states before them `[N, H]`, packed over `levels`,
    /// to the states after them `[N, H]`.
    ///
    /// # Errors
    /// If the rows do not fit the cache, or a tensor operation fails.
    pub fn step(
        &mut self,
        levels: &[Level<'_>],
        tokens: &[TokenId],
        states: &Tensor,
        io: &dyn TokenIo,
    ) -> Result<Tensor> {
        let plan = self.cache.plan_levels(levels)?;
        let states = self.net.feedback(states)?;
        self.forward(tokens, &states, io, &plan)
    }

    /// `[N, draft vocabulary]` logits after states `[N, H]`.
    ///
    /// # Errors
    /// If a tensor operation fails.
    pub fn logits(&self, states: &Tensor, io: &dyn TokenIo) -> Result<Tensor> {
        self.net.logits(states, io)
    }

    fn forward(
        &mut self,
        tokens: &[TokenId],
        states: &Tensor,
        io: &dyn TokenIo,
        plan: &Plan,
    ) -> Result<Tensor> {
        let mut at = CacheAt {
            cache: &mut self.cache,
            layer: 0,
            plan,
            rope: &self.rope,
        };
        self.net.forward(tokens, states, io, &mut at)
    }

    fn wait(&mut self, row: &Committed<'_>) -> Result<()> {
        let next = row.fed[1..].iter().copied().chain([row.next_anchor]);
        let pairs = Pairs {
            tokens: next.collect(),
            states: self.net.fuse(&row.taps)?,
        };
        self.waiting[row.slot.0].push(pairs);
        Ok(())
    }

    /// Drafts token by token from the states after the anchors, all rows together.
    fn chains(
        &mut self,
        rows: &mut [Anchor<'_>],
        mut y: Tensor,
        io: &dyn TokenIo,
        sampling: Sampling,
        n_drafts: usize,
    ) -> Result<Vec<Proposal>> {
        let mut drafts = vec![Drafts::default(); rows.len()];
        for depth in 0..n_drafts {
            if depth > 0 {
                let seen = [(0..depth as u32).collect::<Vec<u32>>()];
                let levels: Vec<Level<'_>> = rows
                    .iter()
                    .map(|row| Level {
                        slot: row.slot,
                        depth: depth - 1,
                        first: depth - 1,
                        seen: &seen,
                    })
                    .collect();
                let tokens: Vec<TokenId> = drafts.iter().filter_map(Drafts::last).collect();
                y = self.step(&levels, &tokens, &y, io)?;
            }
            let laws = laws(&self.logits(&y, io)?, sampling)?;
            for ((row, draft), law) in rows.iter_mut().zip(&mut drafts).zip(laws) {
                draft.draw(law, row.draws, &self.net.vocab);
            }
        }
        let vocab = &self.net.vocab;
        drafts.into_iter().map(|d| d.proposal(vocab)).collect()
    }

    /// Grows one tree a row, all rows together. The candidates follow from the context alone, so each is a point of
    /// the draft law, also when the target samples.
    fn trees(
        &mut self,
        rows: &[Anchor<'_>],
        mut y: Tensor,
        io: &dyn TokenIo,
        shape: TreeShape,
    ) -> Result<Vec<Proposal>> {
        let first = self.candidates(&y, io, shape.width)?;
        let mut trees: Vec<DraftTree> = first.chunks(shape.width).map(DraftTree::new).collect();
        // At first every node of a frontier hangs from its row's anchor.
        let mut hang: Vec<u32> = (0..rows.len() as u32)
            .flat_map(|row| std::iter::repeat_n(row, shape.width))
            .collect();
        for depth in 0..shape.steps {
            y = y.index_select(&Tensor::new(hang, &Device::Cpu)?, 0)?;
            let levels: Vec<Level<'_>> = rows
                .iter()
                .zip(&trees)
                .map(|(row, tree)| Level {
                    slot: row.slot,
                    depth,
                    first: depth * shape.width,
                    seen: tree.paths(),
                })
                .collect();
            let tokens: Vec<TokenId> = trees.iter().flat_map(DraftTree::frontier).collect();
            y = self.step(&levels, &tokens, &y, io)?;
            let found = self.candidates(&y, io, shape.width)?;
            hang = Vec::with_capacity(tokens.len());
            let groups = found.chunks(shape.width * shape.width);
            for (i, (tree, found)) in trees.iter_mut().zip(groups).enumerate() {
                let base = (i * shape.width) as u32;
                hang.extend(tree.grow(found).iter().map(|row| base + row));
            }
        }
        let propose = |tree: &DraftTree| {
            let (tokens, parents) = tree.select(shape.nodes);
            Proposal {
                parents: Some(parents),
                ..Proposal::chain(tokens)
            }
        };
        Ok(trees.iter().map(propose).collect())
    }

    /// The `width` most likely tokens after each state `[N, H]`, with log-probabilities at temperature 1 whatever
    /// the target's is; packed over states, best first.
    fn candidates(
        &self,
        y: &Tensor,
        io: &dyn TokenIo,
        width: usize,
    ) -> Result<Vec<(TokenId, f32)>> {
        let logits = self.logits(y, io)?;
        let (ids, best) = kernels::topk_rows(&logits, width)?;
        let (ids, best) = (ids.to_vec2::<u32>()?, best.to_vec2::<f32>()?);
        let logits = logits.to_vec2::<f32>()?;
        let mut found = Vec::with_capacity(ids.len() * width);
        for ((ids, best), logits) in ids.iter().zip(&best).zip(&logits) {
            let top = best[0];
            let sum: f64 = logits.iter().map(|l| f64::from((l - top).exp())).sum();
            let log_sum = sum.ln() as f32;
            let named = ids.iter().map(|id| self.net.vocab.target_id(*id));
            found.extend(named.zip(best.iter().map(|l| (l - top) - log_sum)));
        }
        Ok(found)
    }
}

/// A tree as it is grown.
#[derive(Clone, Copy, Debug)]
struct TreeShape {
    width: usize,
    steps: usize,
    nodes: usize,
}

impl Drafter for Eagle3 {
    fn taps(&self) -> &[LayerId] {
        &self.taps
    }

    fn max_draft(&self) -> usize {
        self.drafting.max_draft()
    }

    fn drafts_trees(&self) -> bool {
        matches!(self.drafting, Drafting::Tree { .. })
    }

    fn start(&mut self, prompt: Committed<'_>) -> Result<()> {
        self.wait(&prompt)
    }

    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
        _probe: &mut dyn Probe,
    ) -> Result<Vec<Proposal>> {
        let y = self.extend(rows, io)?;
        match self.drafting {
            Drafting::Chain { n_drafts } => self.chains(rows, y, io, sampling, n_drafts),
            Drafting::Tree {
                width,
                steps,
                nodes,
            } => {
                let shape = TreeShape {
                    width,
                    steps,
                    nodes,
                };
                self.trees(rows, y, io, shape)
            }
        }
    }

    fn commit(&mut self, rows: Vec<Committed<'_>>) -> Result<()> {
        rows.iter().try_for_each(|row| self.wait(row))
    }

    fn finish(&mut self, slot: Slot) {
        self.waiting[slot.0].clear();
        self.cache
            .keep(slot, 0, &[])
            .expect("freeing a slot that was started cannot fail");
    }
}
