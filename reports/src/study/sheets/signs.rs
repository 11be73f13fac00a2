//! Which published orderings hold: the sign of a difference, never its size, since targets, training and machines differ.

use super::cells::{gain_cells, range, share_cells, times};
use super::{Coverage, Pools};
use crate::coverage;
use crate::study::pool::{ArmKey, Pool};
use crate::study::sheet::Sheet;
use crate::{SamplingKey, Share};

/// A published ordering of two arms.
struct Claim {
    what: &'static str,
    published: &'static str,
    arm: &'static str,
    reference: &'static str,
    of: Measure,
    sampling: SamplingKey,
    concurrency: u32,
    is_above: bool,
}

#[derive(Clone, Copy)]
enum Measure {
    Tau,
    /// Tokens a second of all sequences.
    Speed,
}

const GREEDY: Claim = Claim {
    what: "",
    published: "",
    arm: "",
    reference: "dflash",
    of: Measure::Tau,
    sampling: SamplingKey::Greedy,
    concurrency: 1,
    is_above: true,
};

const CLAIMS: &[Claim] = &[
    Claim {
        what: "DCOCO's tau is above DFlash's",
        published: "about +15 % (a)",
        arm: "dcoco",
        ..GREEDY
    },
    Claim {
        what: "Domino's tau is above DFlash's",
        published: "+14.0 % (b)",
        arm: "domino",
        ..GREEDY
    },
    Claim {
        what: "DSpark's tau is above DFlash's",
        published: "+10.8 % (b)",
        arm: "dspark",
        ..GREEDY
    },
    Claim {
        what: "DSpark's tau is above DFlash's",
        published: "+16.3 to +18.4 % (c)",
        arm: "dspark",
        sampling: SamplingKey::at(1000),
        ..GREEDY
    },
    Claim {
        what: "DSpark's tau is above a chain of EAGLE-3's",
        published: "+26.7 to +30.9 % (c)",
        arm: "dspark",
        reference: "eagle3-chain-7",
        sampling: SamplingKey::at(1000),
        ..GREEDY
    },
    Claim {
        what: "DCOCO is faster than Domino",
        published: "+14.3 % (a)",
        arm: "dcoco",
        reference: "domino",
        of: Measure::Speed,
        ..GREEDY
    },
    Claim {
        what: "DCOCO is faster than DFlash",
        published: "+19 to +23 % (a)",
        arm: "dcoco",
        of: Measure::Speed,
        concurrency: 32,
        ..GREEDY
    },
    Claim {
        what: "Domino is slower than DFlash",
        published: "slower (a)",
        arm: "domino",
        of: Measure::Speed,
        concurrency: 32,
        is_above: false,
        ..GREEDY
    },
    Claim {
        what: "DSpark is slower than DFlash",
        published: "slower (a)",
        arm: "dspark",
        of: Measure::Speed,
        concurrency: 32,
        is_above: false,
        ..GREEDY
    },
    Claim {
        what: "the global sum's tau is below the walk's",
        published: "below on every suite (a)",
        arm: "dcoco:select=global_sum",
        reference: "dcoco",
        is_above: false,
        ..GREEDY
    },
    Claim {
        what: "without the pair state DCOCO's tau falls",
        published: "-7.3 % (a)",
        arm: "dcoco:checkpoint=dcoco-no-pair",
        reference: "dcoco",
        is_above: false,
        ..GREEDY
    },
    Claim {
        what: "without the candidate vectors DCOCO's tau falls",
        published: "-4.8 % (a)",
        arm: "dcoco:checkpoint=dcoco-no-candidate",
        reference: "dcoco",
        is_above: false,
        ..GREEDY
    },
    Claim {
        what: "blind to the pair state DCOCO's tau falls",
        published: "(d)",
        arm: "dcoco:channels=no_pair_state",
        reference: "dcoco",
        is_above: false,
        ..GREEDY
    },
    Claim {
        what: "blind to the candidate vectors DCOCO's tau falls",
        published: "(d)",
        arm: "dcoco:channels=no_candidate",
        reference: "dcoco",
        is_above: false,
        ..GREEDY
    },
];

const NOTES: [&str; 5] = [
    "Holds: the 95 % interval lies wholly on the published side; reversed: wholly on the other; open: it includes no difference. Paired by prompt, whole prompts resampled; intervals are of prompts, not of training runs. No row is corrected for the others.",
    "(a) Seeds 000 and 004 on DCOCO: Qwen3-8B unless its source is silent; its +15 % of joint training names neither metric nor target, its ordering at 32 sequences no sizes for Domino and DSpark.",
    "(b) NVIDIA Model-Optimizer pull request 1971, GSM8K after equal training: DFlash 5.72, Domino 6.52, DSpark 6.34.",
    "(c) DSpark, arXiv 2607.05147, means over its suites at temperature 1.",
    "(d) The published drop is of a drafter that was trained without the channel; here one that was trained with both is blinded.",
];

/// Every claim whose arms are there.
pub(super) fn signs(pools: &Pools, cover: Option<&Coverage<'_>>) -> Sheet {
    let header = [
        "claim",
        "where",
        "published",
        "ours",
        "95 % interval",
        "sign",
    ];
    let mut sheet = Sheet::new(
        "signs",
        "Published orderings, and whether they hold",
        &header,
    );
    for claim in CLAIMS {
        let Some(gain) = claim.gain(pools) else {
            continue;
        };
        let mut row = vec![
            claim.what.to_owned(),
            format!("{}, {}", claim.sampling, sequences(claim.concurrency)),
            claim.published.to_owned(),
        ];
        row.extend(gain_cells(Some(gain)));
        row.push(verdict(gain, claim.is_above).to_owned());
        sheet.rows.push(row);
    }
    sheet.rows.extend(shrinking(pools));
    sheet.rows.extend(cover.and_then(widening));
    if !sheet.rows.is_empty() {
        sheet.notes = NOTES.map(str::to_owned).to_vec();
    }
    sheet
}

fn sequences(n: u32) -> String {
    match n {
        1 => "one sequence".into(),
        n => format!("{n} sequences"),
    }
}

/// Whether a difference lies on the side that was published.
fn verdict(gain: Share, is_above: bool) -> &'static str {
    match (gain.interval, is_above) {
        (Some((low, _)), true) if low > 0.0 => "holds",
        (Some((_, high)), false) if high < 0.0 => "holds",
        (Some((_, high)), true) if high < 0.0 => "reversed",
        (Some((low, _)), false) if low > 0.0 => "reversed",
        _ => "open",
    }
}

impl Claim {
    fn gain(&self, pools: &Pools) -> Option<Share> {
        let of = |method: &str| {
            pools.get(&ArmKey {
                sampling: self.sampling,
                concurrency: self.concurrency,
                ..ArmKey::greedy(method)
            })
        };
        let (arm, reference) = (of(self.arm)?, of(self.reference)?);
        match self.of {
            Measure::Tau => arm.tau_gain(reference),
            Measure::Speed => arm.throughput_gain(reference),
        }
    }
}

/// DFlash's speedup at 4 and at 32 sequences, which are of answers of their own, so that only intervals apart count.
fn shrinking(pools: &Pools) -> Option<Vec<String>> {
    let speedup = |concurrency| {
        let of = |method| {
            pools.get(&ArmKey {
                concurrency,
                ..ArmKey::greedy(method)
            })
        };
        let (dflash, vanilla): (&Pool, &Pool) = (of("dflash")?, of("vanilla")?);
        dflash.speedup(vanilla)
    };
    let (few, many) = (speedup(4)?, speedup(32)?);
    let sign = match (few.interval, many.interval) {
        (Some((low, _)), Some((_, high))) if high < low => "holds",
        (Some((_, high)), Some((low, _))) if low > high => "reversed",
        _ => "open",
    };
    let each = |form: fn(Share) -> String| format!("{}; {}", form(few), form(many));
    Some(vec![
        "DFlash's speedup shrinks".into(),
        "greedy, 4 and 32 sequences".into(),
        "shrinks (a)".into(),
        each(|s| times(s.value)),
        each(|s| range(Some(s), times)),
        sign.into(),
    ])
}

/// Whether the gap that re-ranking can close grows along the block.
fn widening(cover: &Coverage<'_>) -> Option<Vec<String>> {
    let last = cover.slots().len().checked_sub(1)?;
    let gap = coverage::gap_between(&cover.main, 0, last)?;
    let [value, interval] = share_cells(Some(gap));
    Some(vec![
        "what lies between DFlash's first choice and its top 16 grows along the block".into(),
        "teacher-forced".into(),
        "12 to 14, then 38 to 45 points (a)".into(),
        format!("+{value} points"),
        interval,
        verdict(gap, true).into(),
    ])
}
