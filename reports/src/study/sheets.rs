//! The tables of the study, each from one set of arms.

use std::collections::BTreeMap;

use super::pool::{ArmKey, Pool};
use super::sheet::Sheet;
use crate::coverage::{self, CoverageRecord};
use crate::{SamplingKey, Share};

/// Published values are those of DCOCO's authors on Qwen3-8B unless a note says otherwise; none was measured here.
const PUBLISHED: &str = "published (Qwen3-8B)";

/// All pools of one target.
pub(crate) type Pools = BTreeMap<ArmKey, Pool>;

/// An arm held against another, with what was published about the same change.
struct Pairing {
    what: &'static str,
    arm: &'static str,
    reference: &'static str,
    published: &'static str,
}

const CHANNELS: &[Pairing] = &[
    Pairing {
        what: "without the pair state",
        arm: "dcoco:checkpoint=dcoco-no-pair",
        reference: "dcoco",
        published: "-7.3 %",
    },
    Pairing {
        what: "without the candidate vectors",
        arm: "dcoco:checkpoint=dcoco-no-candidate",
        reference: "dcoco",
        published: "-4.8 %",
    },
];

const TRAINING: &[Pairing] = &[
    Pairing {
        what: "corrector on a frozen drafter, over DFlash",
        arm: "dcoco:checkpoint=dcoco-frozen",
        reference: "dflash",
        published: "+4.4 %",
    },
    Pairing {
        what: "trained jointly, over the frozen drafter",
        arm: "dcoco",
        reference: "dcoco:checkpoint=dcoco-frozen",
        published: "about +15 % (a)",
    },
    Pairing {
        what: "trained jointly, over DFlash",
        arm: "dcoco",
        reference: "dflash",
        published: "about +15 % (a)",
    },
    Pairing {
        what: "the joint drafter's trunk alone, over DFlash",
        arm: "dcoco:select=first",
        reference: "dflash",
        published: "",
    },
];

const SELECTION: &[Pairing] = &[
    Pairing {
        what: "global sum (Viterbi) against the walk",
        arm: "dcoco:select=global_sum",
        reference: "dcoco",
        published: "below the walk on every suite",
    },
    Pairing {
        what: "global sum of row-normalised log-probabilities against the walk",
        arm: "dcoco:select=global_logprob",
        reference: "dcoco",
        published: "",
    },
    Pairing {
        what: "first choice of every slot against the walk",
        arm: "dcoco:select=first",
        reference: "dcoco",
        published: "",
    },
];

/// Values of K in the study.
pub(crate) const KS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// Drafters whose rounds are cut, with the arm that drafts `gamma`.
pub(crate) const CUTS: [(&str, &[(u32, &str)]); 4] = [
    (
        "DFlash, trained at 7",
        &[
            (3, "dflash:max_draft=3"),
            (5, "dflash:max_draft=5"),
            (7, "dflash"),
        ],
    ),
    (
        "DCOCO, trained at 7",
        &[
            (3, "dcoco:max_draft=3"),
            (5, "dcoco:max_draft=5"),
            (7, "dcoco"),
        ],
    ),
    (
        "DFlash, trained at 15",
        &[
            (3, "dflash:checkpoint=dflash-15:max_draft=3"),
            (5, "dflash:checkpoint=dflash-15:max_draft=5"),
            (7, "dflash:checkpoint=dflash-15:max_draft=7"),
            (11, "dflash:checkpoint=dflash-15:max_draft=11"),
            (15, "dflash:checkpoint=dflash-15"),
        ],
    ),
    (
        "DCOCO, trained at 15",
        &[
            (3, "dcoco:checkpoint=dcoco-15:max_draft=3"),
            (5, "dcoco:checkpoint=dcoco-15:max_draft=5"),
            (7, "dcoco:checkpoint=dcoco-15:max_draft=7"),
            (11, "dcoco:checkpoint=dcoco-15:max_draft=11"),
            (15, "dcoco:checkpoint=dcoco-15"),
        ],
    ),
];

/// Every table that the pools and coverage records have something for.
pub(crate) fn sheets(pools: &Pools, coverage: &[CoverageRecord]) -> Vec<Sheet> {
    let cover = Coverage::of(coverage);
    let all = [
        Some(arms(
            "methods",
            "Greedy, one sequence: tau of every arm",
            pools,
            SamplingKey::Greedy,
        )),
        Some(arms(
            "sampled",
            "Temperature 1, one sequence: tau of every arm",
            pools,
            SamplingKey::Temperature(1000),
        )),
        cover.as_ref().map(Coverage::by_slot),
        Some(pairings(
            "channels",
            "What each channel of the corrector is worth",
            CHANNELS,
            pools,
        )),
        Some(training(pools)),
        Some(selection(pools, cover.as_ref())),
        Some(by_k(pools, cover.as_ref())),
        Some(by_gamma(pools)),
        Some(cost(pools)),
        Some(schedules(pools)),
        Some(positions(pools)),
    ];
    let filled = |sheet: &Sheet| !sheet.rows.is_empty();
    all.into_iter().flatten().filter(filled).collect()
}

fn arms(id: &'static str, title: &str, pools: &Pools, sampling: SamplingKey) -> Sheet {
    let its: Vec<(&ArmKey, &Pool)> = pools
        .iter()
        .filter(|(k, _)| k.sampling == sampling && k.concurrency == 1)
        .collect();
    let mut suites: Vec<&str> = its.iter().flat_map(|(_, pool)| pool.suites()).collect();
    suites.sort_unstable();
    suites.dedup();
    let fixed = [
        "arm",
        "tau",
        "95 % interval",
        "over dflash",
        "95 % interval",
        "drafts accepted",
        "speedup",
    ];
    let mut sheet = Sheet::new(id, title, &[&fixed[..], &suites].concat());
    let find = |method: &str| {
        its.iter()
            .find(|(k, _)| k.method == method)
            .map(|(_, pool)| *pool)
    };
    let (dflash, vanilla) = (find("dflash"), find("vanilla"));
    for (key, pool) in its.iter().filter(|(k, _)| k.method != "vanilla") {
        let total = pool.total();
        let gain = dflash
            .filter(|_| key.method != "dflash")
            .and_then(|d| pool.tau_gain(d));
        let accepted = (total.verified > 0).then(|| total.accepted as f64 / total.verified as f64);
        let speedup = vanilla
            .and_then(|v| pool.throughput_gain(v))
            .map(|g| g.value + 1.0);
        let mut row = vec![key.method.clone()];
        row.extend(tau_cells(pool.tau()));
        row.extend(gain_cells(gain));
        row.push(text(accepted, |v| format!("{:.1} %", v * 100.0)));
        row.push(text(speedup, |v| format!("{v:.2}x")));
        row.extend(suites.iter().map(|suite| text(pool.tau_on(suite), two)));
        sheet.rows.push(row);
    }
    sheet.notes = vec![
        "tau: tokens committed a round, pooled over all rounds of the suites. Intervals resample whole prompts; over dflash is paired by prompt. The columns of suites give tau there.".into(),
    ];
    sheet
}

fn pairings(id: &'static str, title: &str, list: &[Pairing], pools: &Pools) -> Sheet {
    let mut sheet = Sheet::new(
        id,
        title,
        &[
            "change",
            "tau",
            "reference tau",
            "difference",
            "95 % interval",
            PUBLISHED,
        ],
    );
    for pairing in list {
        let of = |method: &str| pools.get(&ArmKey::greedy(method));
        let (Some(arm), Some(reference)) = (of(pairing.arm), of(pairing.reference)) else {
            continue;
        };
        let mut row = vec![pairing.what.to_owned()];
        row.extend([arm, reference].map(|pool| text(pool.tau().map(|t| t.value), two)));
        row.extend(gain_cells(arm.tau_gain(reference)));
        row.push(dash(pairing.published));
        sheet.rows.push(row);
    }
    sheet.notes = vec!["Greedy, one sequence. The difference is that of tau, paired by prompt; intervals resample whole prompts.".into()];
    sheet
}

fn training(pools: &Pools) -> Sheet {
    let mut sheet = pairings(
        "training",
        "What training the drafter with its corrector is worth",
        TRAINING,
        pools,
    );
    sheet.notes.push("(a) The source says that joint training adds about 15 % and leaves open over which of the two. Its +4.4 % names no metric.".into());
    sheet
}

fn selection(pools: &Pools, cover: Option<&Coverage<'_>>) -> Sheet {
    let mut sheet = pairings("selection", "How a path is chosen", SELECTION, pools);
    let dflash = pools.get(&ArmKey::greedy("dflash")).and_then(Pool::tau);
    if let (Some(cover), false) = (cover, sheet.rows.is_empty()) {
        let oracle = coverage::oracle_tau(&cover.main, coverage::COVERAGE_K);
        let gain = oracle.zip(dflash).map(|(o, d)| o.value / d.value - 1.0);
        sheet.rows.push(vec![
            format!(
                "oracle path in the top {} of {}, against it",
                coverage::COVERAGE_K,
                cover.checkpoint
            ),
            text(oracle.map(|o| o.value), two),
            text(dflash.map(|d| d.value), two),
            text(gain, percent),
            "-".into(),
            "+59 % (b)".into(),
        ]);
        sheet
            .notes
            .push("(b) DFlash2's blog, Qwen3-4B on GSM8K: 4.27 to 6.79.".into());
    }
    sheet
}

fn by_k(pools: &Pools, cover: Option<&Coverage<'_>>) -> Sheet {
    let mut sheet = Sheet::new(
        "k",
        "tau by candidates a slot",
        &[
            "K",
            "DCOCO, walk",
            "95 % interval",
            "over K = 16",
            "95 % interval",
            "oracle path of DFlash",
            "95 % interval",
        ],
    );
    let of = |k: u32| pools.get(&ArmKey::greedy(&format!("dcoco:k={k}")));
    for k in KS {
        let pool = of(k);
        let oracle = cover.and_then(|c| coverage::oracle_tau(&c.main, k));
        if pool.is_none() && oracle.is_none() {
            continue;
        }
        let gain = pool
            .zip(of(16))
            .filter(|_| k != 16)
            .and_then(|(a, b)| a.tau_gain(b));
        let mut row = vec![k.to_string()];
        row.extend(tau_cells(pool.and_then(Pool::tau)));
        row.extend(gain_cells(gain));
        row.extend(tau_cells(oracle));
        sheet.rows.push(row);
    }
    sheet.notes = vec!["Greedy, one sequence. K = 1 is the trunk's own first choice. The oracle path takes the right token wherever it is among K; it is simulated over real rounds of the target's answers.".into()];
    sheet
}

fn by_gamma(pools: &Pools) -> Sheet {
    let names: Vec<&str> = CUTS.iter().map(|(name, _)| *name).collect();
    let mut sheet = Sheet::new(
        "gamma",
        "tau by drafts a round",
        &[&["gamma"], names.as_slice()].concat(),
    );
    for gamma in [3, 5, 7, 11, 15] {
        let cell = |cuts: &[(u32, &str)]| {
            let arm = cuts.iter().find(|(g, _)| *g == gamma)?.1;
            let tau = pools.get(&ArmKey::greedy(arm))?.tau()?;
            let (low, high) = tau.interval?;
            Some(format!("{:.2} ({low:.2} to {high:.2})", tau.value))
        };
        let cells: Vec<Option<String>> = CUTS.iter().map(|(_, cuts)| cell(cuts)).collect();
        if cells.iter().any(Option::is_some) {
            let mut row = vec![gamma.to_string()];
            row.extend(cells.into_iter().map(|c| c.unwrap_or_else(|| "-".into())));
            sheet.rows.push(row);
        }
    }
    sheet.notes = vec!["Greedy, one sequence; intervals resample whole prompts. A drafter cut to fewer drafts still runs its trained block and hands on the first ones.".into()];
    sheet
}

/// Arms of the cost table, in its order.
pub(crate) const COSTED: [&str; 4] = ["dflash", "dspark", "domino", "dcoco"];

fn cost(pools: &Pools) -> Sheet {
    let mut sheet = Sheet::new(
        "cost",
        "Time of a round by part, and throughput",
        &[
            "sequences",
            "arm",
            "trunk, us",
            "head, us",
            "verify, us",
            "hand-over, us",
            "rest, us",
            "head's share",
            "tau",
            "tokens/s, all sequences",
            "over dflash",
            "95 % interval",
            "speedup",
        ],
    );
    for concurrency in [1, 4, 8, 16, 32] {
        let of = |method: &str| {
            pools.get(&ArmKey {
                concurrency,
                ..ArmKey::greedy(method)
            })
        };
        for method in COSTED {
            let Some(pool) = of(method) else { continue };
            let parts = CostParts::of(pool);
            let mut row = vec![concurrency.to_string(), method.to_owned()];
            row.extend(parts.each().map(|us| format!("{us:.1}")));
            row.push(format!("{:.1} %", parts.head_share() * 100.0));
            row.push(text(pool.total().tau(), two));
            row.push(text(pool.total().throughput(), |v| format!("{v:.0}")));
            let gain = of("dflash")
                .filter(|_| method != "dflash")
                .and_then(|d| pool.throughput_gain(d));
            row.extend(gain_cells(gain));
            let speedup = of("vanilla").and_then(|v| pool.throughput_gain(v));
            row.push(text(speedup, |g| format!("{:.2}x", g.value + 1.0)));
            sheet.rows.push(row);
        }
    }
    sheet.notes = vec!["Greedy. Microseconds a round of one sequence: a part that several sequences share is divided among them, so a column falls where a batch pays. Trunk: the drafter without its head. Hand-over: roll-back and the drafter's own cache. Rest: schedule and acceptance. Speedup and over dflash: tokens a second of all sequences, prefills out.".into()];
    sheet
}

/// Microseconds a round of one sequence.
pub(crate) struct CostParts {
    trunk: f64,
    head: f64,
    verify: f64,
    commit: f64,
    rest: f64,
}

impl CostParts {
    pub(crate) fn of(pool: &Pool) -> Self {
        let total = pool.total();
        let us = |ns: u64| ns as f64 / 1000.0 / total.rounds.max(1) as f64;
        let phases = total.phases;
        Self {
            trunk: us(phases.draft_ns),
            head: us(phases.head_ns),
            verify: us(phases.verify_ns),
            commit: us(phases.commit_ns),
            rest: us(phases.schedule_ns + phases.judge_ns),
        }
    }

    /// Trunk, head, verify, hand-over, rest.
    pub(crate) fn each(&self) -> [f64; 5] {
        [self.trunk, self.head, self.verify, self.commit, self.rest]
    }

    fn head_share(&self) -> f64 {
        let whole: f64 = self.each().iter().sum();
        if whole > 0.0 { self.head / whole } else { 0.0 }
    }
}

fn schedules(pools: &Pools) -> Sheet {
    let mut sheet = Sheet::new(
        "schedules",
        "Verify lengths by confidence",
        &[
            "sequences",
            "arm",
            "drafted a round",
            "verified a round",
            "tau",
            "tokens/s, all sequences",
            "over verifying all",
            "95 % interval",
        ],
    );
    for (key, pool) in pools
        .iter()
        .filter(|(k, _)| k.sampling == SamplingKey::Greedy)
    {
        let whole = match key.method.split_once(":schedule=") {
            Some((whole, _)) => whole,
            None if pools.keys().any(|k| is_scheduled(k, key)) => key.method.as_str(),
            None => continue,
        };
        let reference = pools.get(&ArmKey {
            method: whole.to_owned(),
            ..key.clone()
        });
        let total = pool.total();
        let a_round = |n: u64| format!("{:.2}", n as f64 / total.rounds.max(1) as f64);
        let gain = reference
            .filter(|_| whole != key.method)
            .and_then(|r| pool.throughput_gain(r));
        let mut row = vec![
            key.concurrency.to_string(),
            key.method.clone(),
            a_round(total.drafted),
            a_round(total.verified),
            text(total.tau(), two),
            text(total.throughput(), |v| format!("{v:.0}")),
        ];
        row.extend(gain_cells(gain));
        sheet.rows.push(row);
    }
    sheet.notes = vec!["Greedy. A schedule that cuts what would have been refused keeps tau and saves rows of the verify pass; the cost of a step is measured at the start of the run and stored in run.json.".into()];
    sheet
}

/// Whether `scheduled` is `whole` with a schedule.
fn is_scheduled(scheduled: &ArmKey, whole: &ArmKey) -> bool {
    let plain = scheduled.method.split_once(":schedule=").map(|(m, _)| m);
    (scheduled.sampling, scheduled.concurrency) == (whole.sampling, whole.concurrency)
        && plain == Some(whole.method.as_str())
}

/// Arms whose acceptance is shown slot by slot.
pub(crate) const BY_SLOT: [&str; 6] = [
    "draft_model",
    "eagle3-chain-7",
    "dflash",
    "dspark",
    "domino",
    "dcoco",
];

fn positions(pools: &Pools) -> Sheet {
    let its: Vec<(&str, Vec<Share>)> = BY_SLOT
        .iter()
        .filter_map(|m| Some((*m, pools.get(&ArmKey::greedy(m))?.conditional_acceptance())))
        .collect();
    let n_slots = its.iter().map(|(_, s)| s.len()).max().unwrap_or(0);
    let slots: Vec<String> = (1..=n_slots).map(|i| i.to_string()).collect();
    let header: Vec<&str> = std::iter::once("arm")
        .chain(slots.iter().map(String::as_str))
        .collect();
    let mut sheet = Sheet::new(
        "positions",
        "Conditional acceptance by draft position",
        &header,
    );
    for (method, slots) in its {
        let mut row = vec![method.to_owned()];
        row.extend((0..n_slots).map(|i| {
            let share = slots.get(i);
            text(share.copied(), |s| match s.interval {
                Some((low, high)) => format!("{:.3} ({low:.3} to {high:.3})", s.value),
                None => format!("{:.3}", s.value),
            })
        }));
        sheet.rows.push(row);
    }
    sheet.notes = vec!["Greedy, one sequence. Share of a position's drafts that were accepted, of those judged: all drafts before them were accepted. Intervals resample whole prompts.".into()];
    sheet
}

/// Coverage records of one drafter.
pub(crate) struct Coverage<'a> {
    checkpoint: &'a str,
    pub(crate) main: Vec<&'a CoverageRecord>,
}

impl<'a> Coverage<'a> {
    /// The plain DFlash drafter's records, or those of the first drafter there is.
    pub(crate) fn of(records: &'a [CoverageRecord]) -> Option<Self> {
        let dflash = records.iter().find(|r| r.checkpoint == "dflash");
        let checkpoint = dflash.or(records.first())?.checkpoint.as_str();
        let main = records
            .iter()
            .filter(|r| r.checkpoint == checkpoint)
            .collect();
        Some(Self { checkpoint, main })
    }

    /// Of each slot.
    pub(crate) fn slots(&self) -> Vec<coverage::SlotCoverage> {
        coverage::slot_coverage(&self.main)
    }

    /// The table that `analyse coverage` prints.
    pub(crate) fn by_slot(&self) -> Sheet {
        let mut sheet = Sheet::new(
            "coverage",
            &format!(
                "What each slot of {} holds, given the true text before the block",
                self.checkpoint
            ),
            &[
                "position",
                "anchors",
                "first choice right",
                "95 % interval",
                "right token in the top 16",
                "95 % interval",
                "gap, points",
                "95 % interval",
                "misses with it in the top 16",
                "95 % interval",
                "gap published (Qwen3-8B)",
            ],
        );
        let slots = self.slots();
        for (i, slot) in slots.iter().enumerate() {
            let mut row = vec![(i + 1).to_string(), slot.n_anchors.to_string()];
            row.extend(share_cells(Some(slot.top1)));
            row.extend(share_cells(Some(slot.covered)));
            row.extend(share_cells(Some(slot.gap)));
            row.extend(share_cells(slot.rescued));
            row.push(match i {
                0 => "12 to 14".into(),
                _ if i + 1 == slots.len() => "38 to 45 (a)".into(),
                _ => "-".into(),
            });
            sheet.rows.push(row);
        }
        let all = coverage::rescued_overall(&self.main);
        sheet.notes = vec![format!(
            "Of all wrong first choices, {} have the right token in the top 16 (95 % interval {}); published: 59 % (Qwen3-8B).",
            text(all.map(|s| s.value), plain_percent),
            range(all, plain_percent),
        )];
        if let Some(widening) = coverage::gap_between(&self.main, 0, slots.len().saturating_sub(1))
        {
            sheet.notes.push(format!(
                "From the first position to the last the gap widens by {} points (95 % interval {}).",
                points(widening.value),
                range(Some(widening), points),
            ));
        }
        sheet.notes.push("Teacher-forced: a block is drafted at every position of the target's own greedy answers. Intervals resample whole prompts. (a) The published last position is the fifteenth.".into());
        sheet
    }
}

/// The tables of coverage records alone.
pub(crate) fn coverage_sheets(records: &[CoverageRecord]) -> Vec<Sheet> {
    let Some(cover) = Coverage::of(records) else {
        return Vec::new();
    };
    let oracle = Sheet {
        title: format!("tau of the oracle path of {}", cover.checkpoint),
        ..by_k(&Pools::new(), Some(&cover))
    };
    vec![cover.by_slot(), oracle]
}

fn tau_cells(tau: Option<Share>) -> [String; 2] {
    [text(tau.map(|t| t.value), two), range(tau, two)]
}

fn gain_cells(gain: Option<Share>) -> [String; 2] {
    [text(gain.map(|g| g.value), percent), range(gain, percent)]
}

fn share_cells(share: Option<Share>) -> [String; 2] {
    [text(share.map(|s| s.value), points), range(share, points)]
}

fn range(share: Option<Share>, form: fn(f64) -> String) -> String {
    text(share.and_then(|s| s.interval), |(low, high)| {
        format!("{} to {}", form(low), form(high))
    })
}

fn text<T>(value: Option<T>, form: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".into(), form)
}

fn dash(text: &str) -> String {
    match text.is_empty() {
        true => "-".into(),
        false => text.to_owned(),
    }
}

fn two(value: f64) -> String {
    format!("{value:.2}")
}

/// A change, with its sign.
fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

fn plain_percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn points(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}
