//! What a drafter's slots hold when the text before the block is the target's own: where the right token ranks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bootstrap::{interval, ratio_interval};

/// Version of the layout of a [`CoverageRecord`].
pub const COVERAGE_SCHEMA: u32 = 1;

/// Candidates a slot that coverage speaks of, unless it says another number.
pub const COVERAGE_K: u32 = 16;

/// Ranks over one greedy answer, with a block drafted at each of its positions: a line of `coverage.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoverageRecord {
    /// [`COVERAGE_SCHEMA`] of the writer.
    pub schema: u32,
    /// Id of the target.
    pub target: String,
    /// Suffix of the drafter's folder.
    pub checkpoint: String,
    /// Id of the suite.
    pub suite: String,
    /// Id of the prompt within its suite.
    pub prompt: String,
    /// Answer length in tokens.
    pub n_tokens: u32,
    /// For each answer position but the last, taken as anchor: the rank, from 0, that each draft slot gives the token
    /// that really follows, or [`u32::MAX`] if it cannot be drafted. As many slots as the drafter has and the answer
    /// still has tokens.
    pub ranks: Vec<Vec<u32>>,
}

impl CoverageRecord {
    /// Says what is inconsistent about the record, if anything.
    pub fn fault(&self) -> Option<String> {
        if self.schema != COVERAGE_SCHEMA {
            return Some(format!(
                "schema is {}, this program reads {COVERAGE_SCHEMA}",
                self.schema
            ));
        }
        let n = self.ranks.len() as u32;
        if n + 1 != self.n_tokens.max(1) {
            return Some(format!("{n} anchors for {} tokens", self.n_tokens));
        }
        let gamma = self.ranks.iter().map(Vec::len).max().unwrap_or(0);
        let short =
            |(at, slots): (usize, &Vec<u32>)| slots.len() != gamma.min(self.ranks.len() - at);
        let at = self.ranks.iter().enumerate().position(short)?;
        Some(format!("anchor {at} has {} slots", self.ranks[at].len()))
    }

    /// Rounds and committed tokens if every round accepted each leading slot whose right token ranks below `k`.
    fn oracle(&self, k: u32) -> (u64, u64) {
        let (mut at, mut rounds) = (0, 0);
        while at < self.ranks.len() {
            let accepted = self.ranks[at].iter().take_while(|rank| **rank < k).count();
            at += accepted + 1;
            rounds += 1;
        }
        (self.ranks.len() as u64, rounds)
    }
}

/// A share with the 95 % interval that resampling whole prompts gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Pooled over all anchors.
    pub value: f64,
    /// Needs 2 prompts.
    pub interval: Option<(f64, f64)>,
}

/// What one draft slot holds, over all anchors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotCoverage {
    /// Anchors whose answer reaches this slot.
    pub n_anchors: u64,
    /// The right token is the first choice.
    pub top1: Share,
    /// The right token is among the first [`COVERAGE_K`].
    pub covered: Share,
    /// Covered and not the first choice; `covered - top1`.
    pub gap: Share,
    /// Covered, of the anchors where the first choice is wrong; `None` if it never is.
    pub rescued: Option<Share>,
}

/// Coverage of each slot, first slot first, pooled over the records.
pub fn slot_coverage(records: &[&CoverageRecord]) -> Vec<SlotCoverage> {
    let gamma = records
        .iter()
        .flat_map(|r| r.ranks.iter().map(Vec::len))
        .max()
        .unwrap_or(0);
    (0..gamma).map(|slot| one_slot(records, slot)).collect()
}

/// Anchors, first choices, covered.
type Hits = (u64, u64, u64);

fn one_slot(records: &[&CoverageRecord], slot: usize) -> SlotCoverage {
    let hits = |records: &mut dyn Iterator<Item = &u32>| -> Hits {
        records.fold((0, 0, 0), |sum, rank| {
            (
                sum.0 + 1,
                sum.1 + u64::from(*rank == 0),
                sum.2 + u64::from(*rank < COVERAGE_K),
            )
        })
    };
    let mut prompts: BTreeMap<(&str, &str), Hits> = BTreeMap::new();
    for record in records {
        let got = hits(&mut record.ranks.iter().filter_map(|slots| slots.get(slot)));
        let sum = prompts.entry((&record.suite, &record.prompt)).or_default();
        *sum = (sum.0 + got.0, sum.1 + got.1, sum.2 + got.2);
    }
    let prompts: Vec<Hits> = prompts.into_values().collect();
    let share = |num: fn(&Hits) -> u64, den: fn(&Hits) -> u64| {
        let clusters: Vec<(u64, u64)> = prompts.iter().map(|h| (num(h), den(h))).collect();
        ratio(&clusters)
    };
    let none = Share {
        value: 0.0,
        interval: None,
    };
    SlotCoverage {
        n_anchors: prompts.iter().map(|h| h.0).sum(),
        top1: share(|h| h.1, |h| h.0).unwrap_or(none),
        covered: share(|h| h.2, |h| h.0).unwrap_or(none),
        gap: share(|h| h.2 - h.1, |h| h.0).unwrap_or(none),
        rescued: share(|h| h.2 - h.1, |h| h.0 - h.1),
    }
}

/// Share, over all slots together, of wrong first choices whose right token is covered.
pub fn rescued_overall(records: &[&CoverageRecord]) -> Option<Share> {
    let mut prompts: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for record in records {
        let sum = prompts.entry((&record.suite, &record.prompt)).or_default();
        for rank in record.ranks.iter().flatten().filter(|rank| **rank > 0) {
            *sum = (sum.0 + u64::from(*rank < COVERAGE_K), sum.1 + 1);
        }
    }
    ratio(&prompts.into_values().collect::<Vec<_>>())
}

/// Acceptance length of a drafter that always took the right token where it ranks below `k`.
pub fn oracle_tau(records: &[&CoverageRecord], k: u32) -> Option<Share> {
    let mut prompts: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for record in records {
        let (committed, rounds) = record.oracle(k);
        let sum = prompts.entry((&record.suite, &record.prompt)).or_default();
        *sum = (sum.0 + committed, sum.1 + rounds);
    }
    ratio(&prompts.into_values().collect::<Vec<_>>())
}

/// The oracle path's acceptance length among `k` candidates over that of first choices, minus 1, on the same answers.
pub(crate) fn oracle_gain(records: &[&CoverageRecord], k: u32) -> Option<Share> {
    let mut prompts: BTreeMap<(&str, &str), [(u64, u64); 2]> = BTreeMap::new();
    for record in records {
        let sums = prompts.entry((&record.suite, &record.prompt)).or_default();
        for (sum, k) in sums.iter_mut().zip([1, k]) {
            let (committed, rounds) = record.oracle(k);
            *sum = (sum.0 + committed, sum.1 + rounds);
        }
    }
    let clusters: Vec<[(u64, u64); 2]> = prompts.into_values().collect();
    let gain = |drawn: &[[(u64, u64); 2]]| {
        let of = |i: usize| {
            let sums = drawn.iter();
            let (num, den) = sums.fold((0, 0), |s, c| (s.0 + c[i].0, s.1 + c[i].1));
            (num > 0 && den > 0).then(|| num as f64 / den as f64)
        };
        Some(of(1)? / of(0)? - 1.0)
    };
    Some(Share {
        value: gain(&clusters)?,
        interval: interval(&clusters, gain),
    })
}

/// Gap of one slot minus the gap of another, with its interval over prompts.
pub fn gap_between(records: &[&CoverageRecord], from: usize, to: usize) -> Option<Share> {
    let mut prompts: BTreeMap<(&str, &str), [(u64, u64); 2]> = BTreeMap::new();
    for record in records {
        let sums = prompts.entry((&record.suite, &record.prompt)).or_default();
        for (sum, slot) in sums.iter_mut().zip([from, to]) {
            for rank in record.ranks.iter().filter_map(|slots| slots.get(slot)) {
                let in_gap = *rank > 0 && *rank < COVERAGE_K;
                *sum = (sum.0 + u64::from(in_gap), sum.1 + 1);
            }
        }
    }
    let clusters: Vec<[(u64, u64); 2]> = prompts.into_values().collect();
    let widening = |drawn: &[[(u64, u64); 2]]| {
        let of = |i: usize| {
            let (num, den) = drawn
                .iter()
                .fold((0, 0), |s, c| (s.0 + c[i].0, s.1 + c[i].1));
            (den > 0).then(|| num as f64 / den as f64)
        };
        Some(of(1)? - of(0)?)
    };
    Some(Share {
        value: widening(&clusters)?,
        interval: interval(&clusters, widening),
    })
}

fn ratio(clusters: &[(u64, u64)]) -> Option<Share> {
    let (num, den) = clusters
        .iter()
        .fold((0, 0), |sum, c| (sum.0 + c.0, sum.1 + c.1));
    (den > 0).then(|| Share {
        value: num as f64 / den as f64,
        interval: ratio_interval(clusters),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(prompt: &str, ranks: &[&[u32]]) -> CoverageRecord {
        CoverageRecord {
            schema: COVERAGE_SCHEMA,
            target: "toy".into(),
            checkpoint: "dflash".into(),
            suite: "mini".into(),
            prompt: prompt.into(),
            n_tokens: ranks.len() as u32 + 1,
            ranks: ranks.iter().map(|slots| slots.to_vec()).collect(),
        }
    }

    #[test]
    fn shares_count_anchors_of_every_prompt() {
        // Slot 1: ranks 0, 3, 99, 0 over both prompts; slot 2: 1, 0, 16.
        let a = record("a", &[&[0, 1], &[3, 0], &[99]]);
        let b = record("b", &[&[0]]);
        let c = record("c", &[&[20, 16], &[0]]);
        let got = slot_coverage(&[&a, &b, &c]);
        assert_eq!(got.len(), 2);
        assert_eq!((got[0].n_anchors, got[1].n_anchors), (6, 3));
        assert_eq!(
            (got[0].top1.value, got[0].covered.value),
            (3.0 / 6.0, 4.0 / 6.0)
        );
        assert_eq!(got[0].gap.value, 1.0 / 6.0);
        assert_eq!(got[0].rescued.map(|s| s.value), Some(1.0 / 3.0));
        assert_eq!(got[1].rescued.map(|s| s.value), Some(0.5));
        let (low, high) = got[0].top1.interval.unwrap();
        assert!(low < 0.5 && high > 0.5, "{low} {high}");
        // Wrong first choices: 3, 99, 20 in slot 1 and 1, 16 in slot 2; 3 and 1 are covered.
        assert_eq!(
            rescued_overall(&[&a, &b, &c]).map(|s| s.value),
            Some(2.0 / 5.0)
        );
        let widening = gap_between(&[&a, &b, &c], 0, 1).unwrap();
        assert!((widening.value - (1.0 / 3.0 - 1.0 / 6.0)).abs() < 1e-12);
    }

    #[test]
    fn the_oracle_walks_real_rounds() {
        let rec = record(
            "a",
            &[
                &[0, 4, 0],
                &[0, 0, 0],
                &[9, 0, 0],
                &[0, 0, 0],
                &[0, 0],
                &[0],
            ],
        );
        assert_eq!(rec.fault(), None);
        let tau = |k| oracle_tau(&[&rec], k).unwrap().value;
        // k = 1: anchor 0 accepts 1, anchor 2 none, anchor 3 three and ends.
        assert_eq!(tau(1), 6.0 / 3.0);
        let gain = |k| oracle_gain(&[&rec], k).unwrap().value;
        assert_eq!((gain(1), gain(8)), (0.0, tau(8) / tau(1) - 1.0));
        // k = 8: anchor 0 accepts 3, anchor 4 two and ends.
        assert_eq!(tau(8), 6.0 / 2.0);
        assert_eq!(rec.oracle(0), (6, 6));
    }

    #[test]
    fn records_that_contradict_themselves_are_found() {
        let good = record("a", &[&[0, 4], &[7]]);
        assert_eq!(good.fault(), None);
        let text = serde_json::to_string(&good).unwrap();
        assert_eq!(serde_json::from_str::<CoverageRecord>(&text).unwrap(), good);
        let spoil = |change: fn(&mut CoverageRecord)| {
            let mut bad = good.clone();
            change(&mut bad);
            bad.fault().unwrap_or_default()
        };
        assert!(spoil(|r| r.schema = 9).contains("schema is 9"));
        assert!(spoil(|r| r.n_tokens = 9).contains("2 anchors for 9 tokens"));
        assert!(spoil(|r| r.ranks[1] = vec![1, 2]).contains("anchor 1 has 2 slots"));
    }
}
