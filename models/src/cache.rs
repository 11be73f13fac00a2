//! Keys and values of all slots, and the plan that says which rows a forward writes and sees.

use candle_core::{DType, Device, Tensor};
use decode::{Error, Feed, Result, Slot};
use kernels::Visible;

use crate::error::LoadError;

/// Keys and values of L layers, `[slots * capacity, Hkv * D]` f32 each; slot s owns rows `s * capacity` onwards.
#[derive(Debug)]
pub struct SlotCache {
    layers: Vec<(Tensor, Tensor)>,
    capacity: usize,
    slots: Vec<SlotState>,
}

/// Sizes of a [`SlotCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheDims {
    /// Layers that keep keys and values.
    pub n_layers: usize,
    /// Sequences at once.
    pub slots: usize,
    /// Positions a slot.
    pub capacity: usize,
    /// Width of one row, `Hkv * D`.
    pub width: usize,
}

#[derive(Clone, Debug, Default)]
struct SlotState {
    /// Rows in use.
    len: usize,
    /// Where the last feed starts.
    last_start: usize,
    /// Parents of the last feed's rows; `None` for a chain.
    last_parents: Option<Vec<u32>>,
}

/// Rows of one slot in a forward: a [`Feed`] without its tokens.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The slot that is continued.
    pub slot: Slot,
    /// How many rows, at least one.
    pub n_rows: usize,
    /// As in [`Feed::parents`].
    pub parents: Option<&'a [u32]>,
}

impl<'a> From<&Feed<'a>> for Rows<'a> {
    fn from(feed: &Feed<'a>) -> Self {
        Self {
            slot: feed.slot,
            n_rows: feed.tokens.len(),
            parents: feed.parents,
        }
    }
}

/// Scratch rows of one slot that stand at one position, as one step of a drafter's chain or tree.
#[derive(Clone, Copy, Debug)]
pub struct Level<'a> {
    /// The slot they stand behind.
    pub slot: Slot,
    /// Distance of their position from the first one that the slot does not hold.
    pub depth: usize,
    /// Distance of the first row from the end of what the slot holds; the others follow it.
    pub first: usize,
    /// For each row the scratch rows it sees, counted like `first`, its own included.
    pub seen: &'a [Vec<u32>],
}

/// What a forward over packed rows writes and sees; one entry of each list a row.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Cache rows to write.
    pub dst: Vec<u32>,
    /// Positions for the rotary tables.
    pub positions: Vec<u32>,
    /// Cache rows seen.
    pub visible: Vec<Visible>,
    /// What [`SlotCache::advance`] will count as held; empty for scratch rows.
    appended: Vec<Appended>,
}

#[derive(Clone, Debug)]
struct Appended {
    slot: usize,
    n_rows: usize,
    parents: Option<Vec<u32>>,
}

impl SlotCache {
    /// Allocates zeros for every row.
    ///
    /// # Errors
    /// [`LoadError::Cache`] if a size is 0 or the row numbers exceed u32.
    pub fn new(dims: CacheDims) -> std::result::Result<Self, LoadError> {
        let CacheDims {
            n_layers,
            slots,
            capacity,
            width,
        } = dims;
        let refuse = |why: &str| LoadError::Cache {
            slots,
            capacity,
            why: why.to_owned(),
        };
        if slots == 0 || capacity == 0 {
            return Err(refuse("both must be at least 1"));
        }
        let n_rows = slots
            .checked_mul(capacity)
            .filter(|rows| u32::try_from(*rows).is_ok())
            .ok_or_else(|| refuse("row numbers must fit into 32 bits"))?;
        let zeros = || Tensor::zeros((n_rows, width), DType::F32, &Device::Cpu);
        let layers = (0..n_layers)
            .map(|_| Ok((zeros()?, zeros()?)))
            .collect::<candle_core::Result<_>>()?;
        Ok(Self {
            layers,
            capacity,
            slots: vec![SlotState::default(); slots],
        })
    }

    /// Positions a slot holds at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Memory of all keys and values.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|(k, v)| bytes(k) + bytes(v)).sum()
    }

    /// Rows the slot holds.
    ///
    /// # Errors
    /// If the slot is unknown.
    pub fn len(&self, slot: Slot) -> Result<usize> {
        Ok(self.state(slot)?.len)
    }

    /// Whether the slot holds nothing.
    ///
    /// # Errors
    /// If the slot is unknown.
    pub fn is_empty(&self, slot: Slot) -> Result<bool> {
        Ok(self.len(slot)? == 0)
    }

    /// Plans rows that continue their slots: a chain row sees the slot and the rows up to itself, a tree row sees the
    /// slot, its ancestors and itself, root first; positions are slot length plus depth.
    ///
    /// # Errors
    /// If a slot is unknown, full, named twice or still holds an unpruned tree, there is no row, or parents do not
    /// come before their children.
    pub fn plan(&self, feeds: &[Rows<'_>]) -> Result<Plan> {
        let mut plan = Plan::default();
        for feed in feeds {
            let base = self.room(&plan.appended, feed.slot, feed.n_rows)?;
            let len = self.slots[feed.slot.0].len;
            let paths = match feed.parents {
                None => None,
                Some(parents) => Some(paths(feed, parents)?),
            };
            for row in 0..feed.n_rows {
                let (depth, prefix, extra) = match &paths {
                    None => (row, len + row + 1, Vec::new()),
                    Some(paths) => {
                        let extra = paths[row].iter().map(|r| (base + len) as u32 + r);
                        (paths[row].len() - 1, len, extra.collect())
                    }
                };
                plan.dst.push((base + len + row) as u32);
                plan.positions.push((len + depth) as u32);
                plan.visible.push(Visible {
                    start: base as u32,
                    prefix: prefix as u32,
                    extra,
                });
            }
            plan.appended.push(Appended {
                slot: feed.slot.0,
                n_rows: feed.n_rows,
                parents: feed.parents.map(<[u32]>::to_vec),
            });
        }
        Ok(plan)
    }

    /// Plans a block of scratch rows after each slot: every row sees the slot and the whole block, and
    /// [`SlotCache::advance`] does not count them. The next append overwrites them.
    ///
    /// # Errors
    /// If a slot is unknown or named twice, or the block does not fit behind it.
    pub fn plan_block(&self, slots: &[Slot], block_len: usize) -> Result<Plan> {
        let mut plan = Plan::default();
        for slot in slots {
            let base = self.room(&plan.appended, *slot, block_len)?;
            let len = self.slots[slot.0].len;
            for row in 0..block_len {
                plan.dst.push((base + len + row) as u32);
                plan.positions.push((len + row) as u32);
                plan.visible.push(Visible {
                    start: base as u32,
                    prefix: (len + block_len) as u32,
                    extra: Vec::new(),
                });
            }
            plan.appended.push(Appended {
                slot: slot.0,
                n_rows: block_len,
                parents: None,
            });
        }
        plan.appended.clear();
        Ok(plan)
    }

    /// Plans one step of a chain or tree that is thrown away again: every row sees the slot and the scratch rows that
    /// its level lists, which earlier steps wrote. [`SlotCache::advance`] does not count them, and the next append
    /// overwrites them.
    ///
    /// # Errors
    /// If a slot is unknown or named twice, or the rows do not fit behind it.
    pub fn plan_levels(&self, levels: &[Level<'_>]) -> Result<Plan> {
        let mut plan = Plan::default();
        for level in levels {
            let n_rows = level.seen.len();
            let base = self.room(&plan.appended, level.slot, level.first + n_rows)?;
            let len = self.slots[level.slot.0].len;
            for (row, seen) in level.seen.iter().enumerate() {
                plan.dst.push((base + len + level.first + row) as u32);
                plan.positions.push((len + level.depth) as u32);
                plan.visible.push(Visible {
                    start: base as u32,
                    prefix: len as u32,
                    extra: seen.iter().map(|r| (base + len) as u32 + r).collect(),
                });
            }
            plan.appended.push(Appended {
                slot: level.slot.0,
                n_rows,
                parents: None,
            });
        }
        plan.appended.clear();
        Ok(plan)
    }

    /// Writes keys and values `[N, Hkv * D]` to cache rows `dst` of one layer.
    ///
    /// # Errors
    /// If shapes do not fit or a row is outside the cache.
    pub fn append(
        &mut self,
        layer: usize,
        k: &Tensor,
        v: &Tensor,
        dst: &[u32],
    ) -> candle_core::Result<()> {
        let (k_cache, v_cache) = &self.layers[layer];
        kernels::write_rows(k_cache, k, dst)?;
        kernels::write_rows(v_cache, v, dst)
    }

    /// Counts the planned rows as held, once all layers have written them.
    pub fn advance(&mut self, plan: &Plan) {
        for appended in &plan.appended {
            let state = &mut self.slots[appended.slot];
            state.last_start = state.len;
            state.len += appended.n_rows;
            state.last_parents.clone_from(&appended.parents);
        }
    }

    /// Keeps the first `len` rows of the slot, then the rows of its last feed listed in `path`, moved up to follow
    /// them. `len == 0` with an empty path frees the slot.
    ///
    /// # Errors
    /// If the slot is unknown, rows are not held, or the kept rows are not one path through the last feed: their keys
    /// are rotated to their depth, so they can serve no other position.
    pub fn keep(&mut self, slot: Slot, len: usize, path: &[u32]) -> Result<()> {
        let state = self.state(slot)?;
        let held = state.len;
        if len > held {
            return Err(Error::Model(format!(
                "slot {}: cannot keep {len} positions, it holds {held}",
                slot.0
            )));
        }
        let start = state.last_start;
        let in_place = (0..len.saturating_sub(start) as u32).collect::<Vec<_>>();
        let kept = [&in_place, path].concat();
        let joined = path.is_empty() || len >= start;
        let is_path = kept.iter().enumerate().all(|(depth, row)| {
            let row = *row as usize;
            let parent = match &state.last_parents {
                None => row.checked_sub(1),
                Some(parents) => parents.get(row).map(|parent| *parent as usize),
            };
            row < held - start
                && if depth == 0 {
                    row == 0
                } else {
                    parent == Some(kept[depth - 1] as usize)
                }
        });
        if !joined || !is_path {
            return Err(Error::Model(format!(
                "slot {}: {len} positions and then rows {path:?} of the last feed are not one path from position {start} through its {} rows",
                slot.0,
                held - start
            )));
        }
        let base = slot.0 * self.capacity;
        let src: Vec<u32> = path.iter().map(|row| (base + start) as u32 + row).collect();
        let dst: Vec<u32> = (0..path.len()).map(|i| (base + len + i) as u32).collect();
        if src != dst {
            for (k, v) in &self.layers {
                kernels::move_rows(k, &src, &dst)?;
                kernels::move_rows(v, &src, &dst)?;
            }
        }
        let len = len + path.len();
        self.slots[slot.0] = SlotState {
            len,
            last_start: start.min(len),
            last_parents: None,
        };
        Ok(())
    }

    /// Copies of the keys and values a slot holds in one layer, `[len, Hkv * D]` each.
    ///
    /// # Errors
    /// If the slot or the layer is unknown, or a tensor operation fails.
    pub fn rows(&self, layer: usize, slot: Slot) -> Result<(Tensor, Tensor)> {
        let len = self.state(slot)?.len;
        let Some((k, v)) = self.layers.get(layer) else {
            return Err(Error::Model(format!(
                "layer {layer} keeps no cache, the layers are 0..{}",
                self.layers.len()
            )));
        };
        let copy = |t: &Tensor| {
            let rows = t.narrow(0, slot.0 * self.capacity, len)?;
            rows.force_contiguous()
        };
        Ok((copy(k)?, copy(v)?))
    }

    /// Keys and values of all slots in one layer, `[slots * capacity, Hkv * D]` each.
    pub(crate) fn tensors(&self, layer: usize) -> (&Tensor, &Tensor) {
        let (k, v) = &self.layers[layer];
        (k, v)
    }

    /// First row of a slot that has room for `n_rows` more.
    fn room(&self, planned: &[Appended], slot: Slot, n_rows: usize) -> Result<usize> {
        let state = self.state(slot)?;
        let refuse = |why: String| Err(Error::Model(format!("slot {}: {why}", slot.0)));
        if n_rows == 0 {
            return refuse("a feed needs at least one row".into());
        }
        if planned.iter().any(|appended| appended.slot == slot.0) {
            return refuse("is fed twice in one forward".into());
        }
        if state.last_parents.is_some() {
            return refuse("holds a draft tree; keep one of its paths before feeding more".into());
        }
        if state.len + n_rows > self.capacity {
            return refuse(format!(
                "holds {} of {} positions, {n_rows} more do not fit",
                state.len, self.capacity
            ));
        }
        Ok(slot.0 * self.capacity)
    }

    fn state(&self, slot: Slot) -> Result<&SlotState> {
        self.slots.get(slot.0).ok_or_else(|| {
            Error::Model(format!(
                "slot {} is unknown, the slots are 0..{}",
                slot.0,
                self.slots.len()
            ))
        })
    }
}

/// Memory of a tensor's elements.
pub(crate) fn bytes(t: &Tensor) -> usize {
    t.elem_count() * t.dtype().size_in_bytes()
}

/// For each row of a tree the rows from the root to itself.
fn paths(feed: &Rows<'_>, parents: &[u32]) -> Result<Vec<Vec<u32>>> {
    let refuse = |what: String| Error::Contract {
        who: "drafter",
        what,
    };
    if parents.len() != feed.n_rows {
        return Err(refuse(format!(
            "a tree of {} rows needs as many parents, got {}",
            feed.n_rows,
            parents.len()
        )));
    }
    let mut paths: Vec<Vec<u32>> = vec![vec![0]];
    for (row, parent) in parents.iter().enumerate().skip(1) {
        if *parent as usize >= row {
            return Err(refuse(format!(
                "tree row {row} hangs from row {parent}, which does not come before it"
            )));
        }
        let mut path = paths[*parent as usize].clone();
        path.push(row as u32);
        paths.push(path);
    }
    Ok(paths)
}
