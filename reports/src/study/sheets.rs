//! The tables of the study, each from one set of arms.

mod cells;
mod cost;
mod cover;
mod model;
mod peers;
mod signs;
mod suites;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::Elsewhere;
use super::pool::{ArmKey, Pool};
use super::sheet::Sheet;
use crate::coverage::{self, CoverageRecord};
use crate::{Calibration, SamplingKey, Share};
use cells::{dash, gain_cells, tau_cells, text, two};
pub(crate) use cost::{COSTED, CostParts};
pub(crate) use cover::Coverage;

/// Published values are those of DCOCO's authors; none was measured here.
const PUBLISHED: &str = "published";

/// All pools of one target.
pub(crate) type Pools = BTreeMap<ArmKey, Pool>;

/// An arm held against another, with what was published about the same change.
struct Pairing {
    what: &'static str,
    arm: &'static str,
    reference: &'static str,
    published: &'static str,
}

/// Learns a corrector on DFlash's trained trunk, which it leaves alone.
const FROZEN: &str = "dcoco:checkpoint=dcoco-frozen";

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
    Pairing {
        what: "trained with both, blind to the pair state",
        arm: "dcoco:channels=no_pair_state",
        reference: "dcoco",
        published: "",
    },
    Pairing {
        what: "trained with both, blind to the candidate vectors",
        arm: "dcoco:channels=no_candidate",
        reference: "dcoco",
        published: "",
    },
];

const TRAINING: &[Pairing] = &[
    Pairing {
        what: "corrector alone, on DFlash's frozen trunk, over DFlash",
        arm: FROZEN,
        reference: "dflash",
        published: "+4.4 %",
    },
    Pairing {
        what: "jointly from the start, over DFlash",
        arm: "dcoco",
        reference: "dflash",
        published: "about +15 % (a)",
    },
    Pairing {
        what: "jointly from the start, over the frozen one",
        arm: "dcoco",
        reference: FROZEN,
        published: "about +15 % (a)",
    },
    Pairing {
        what: "jointly, 0.3 of the corrector's loss, over DFlash",
        arm: "dcoco:checkpoint=dcoco-light",
        reference: "dflash",
        published: "",
    },
    Pairing {
        what: "jointly, the published widths, over DFlash",
        arm: "dcoco:checkpoint=dcoco-wide",
        reference: "dflash",
        published: "",
    },
    Pairing {
        what: "jointly, both trained for 15 drafts, over DFlash",
        arm: "dcoco:checkpoint=dcoco-15",
        reference: "dflash:checkpoint=dflash-15",
        published: "",
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

const ORACLE: &str = "The oracle path takes the right token wherever it is among K; it is simulated over real rounds of the target's answers.";

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

/// Every table that the pools, coverage records and measurements elsewhere have something for.
pub(crate) fn sheets(
    pools: &Pools,
    coverage: &[CoverageRecord],
    elsewhere: &Elsewhere,
) -> Vec<Sheet> {
    let cover = Coverage::of(coverage);
    let by_suite = suites::by_suite(pools).map(Some);
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
            SamplingKey::at(1000),
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
        Some(cost::cost(pools)),
        Some(cost::schedules(pools)),
        Some(positions(pools)),
        Some(calibration(pools)),
        Some(suites::by_concurrency(pools)),
        Some(suites::repetition(pools)),
        Some(model::model(pools, elsewhere.costs.as_ref())),
        Some(signs::signs(pools, cover.as_ref())),
        Some(peers::peers(&elsewhere.peers)),
    ];
    let filled = |sheet: &Sheet| !sheet.rows.is_empty();
    all.into_iter()
        .chain(by_suite)
        .flatten()
        .filter(filled)
        .collect()
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
    sheet.notes.push("(a) The source says that joint training adds about 15 % and leaves open over which of the two. Its +4.4 % names no metric, and no target is named for any of these.".into());
    sheet
}

fn selection(pools: &Pools, cover: Option<&Coverage<'_>>) -> Sheet {
    let mut sheet = pairings("selection", "How a path is chosen", SELECTION, pools);
    if let (Some(cover), false) = (cover, sheet.rows.is_empty()) {
        let tau = |k| coverage::oracle_tau(&cover.main, k).map(|t| t.value);
        let mut row = vec![format!(
            "oracle path in the top {} of {} against its first choices",
            coverage::COVERAGE_K,
            cover.checkpoint
        )];
        row.extend([coverage::COVERAGE_K, 1].map(|k| text(tau(k), two)));
        row.extend(gain_cells(coverage::oracle_gain(
            &cover.main,
            coverage::COVERAGE_K,
        )));
        row.push("+59 % (b)".into());
        sheet.rows.push(row);
        sheet
            .notes
            .push("(b) DFlash2's blog, Qwen3-4B on GSM8K: 4.27 to 6.79.".into());
    }
    sheet
}

fn by_k(pools: &Pools, cover: Option<&Coverage<'_>>) -> Sheet {
    let oracle_of = format!(
        "oracle path of {}",
        cover.map_or("dflash", |c| c.checkpoint)
    );
    let mut sheet = Sheet::new(
        "k",
        "tau by candidates a slot",
        &[
            "K",
            "DCOCO, walk",
            "95 % interval",
            "over K = 16",
            "95 % interval",
            &oracle_of,
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
    sheet.notes =
        vec!["Greedy, one sequence. K = 1 is the trunk's own first choice. ".to_owned() + ORACLE];
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
            Some(match tau.interval {
                Some((low, high)) => format!("{:.2} ({low:.2} to {high:.2})", tau.value),
                None => format!("{:.2}", tau.value),
            })
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

/// Arms whose acceptance is shown slot by slot.
pub(crate) const BY_SLOT: [&str; 6] = [
    "draft_model",
    "eagle3-chain-7",
    "dflash",
    "dspark",
    "domino",
    "dcoco",
];

/// Further arms of the table by slot, which would crowd its plot.
const ALSO_BY_SLOT: [&str; 3] = [
    FROZEN,
    "dcoco:checkpoint=dcoco-light",
    "dcoco:checkpoint=dcoco-wide",
];

fn positions(pools: &Pools) -> Sheet {
    let its: Vec<(&str, Vec<Share>)> = BY_SLOT
        .iter()
        .chain(&ALSO_BY_SLOT)
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

fn calibration(pools: &Pools) -> Sheet {
    let header = [
        "arm",
        "sampling",
        "position",
        "judged",
        "mean confidence",
        "accepted",
        "ECE",
        "AUROC",
        "Brier",
    ];
    let mut sheet = Sheet::new(
        "calibration",
        "How far confidences can be believed",
        &header,
    );
    // Other options change what is drafted, not what a confidence says.
    let whole = |k: &ArmKey| {
        let option = k.method.split_once(':').map(|(_, option)| option);
        let alone = |o: &str| o.starts_with("calibration=") && !o.contains(':');
        k.concurrency == 1 && option.is_none_or(alone)
    };
    for (key, pool) in pools.iter().filter(|(k, _)| whole(k)) {
        for (slot, got) in Calibration::by_slot(&pool.rated()).iter().enumerate() {
            let Some(got) = got else { continue };
            let three = |v: f64| format!("{v:.3}");
            sheet.rows.push(vec![
                key.method.clone(),
                key.sampling.to_string(),
                (slot + 1).to_string(),
                got.n.to_string(),
                three(got.claimed),
                three(got.accepted),
                three(got.ece),
                text(got.auroc, three),
                three(got.brier),
            ]);
        }
    }
    sheet.notes = vec!["One sequence, every draft verified. A position is judged where all drafts before it were accepted. ECE: expected calibration error over 20 bins of equal width; AUROC: chance that an accepted draft was rated above a refused one; Brier: mean squared difference of confidence and outcome.".into()];
    sheet
}

/// The tables of coverage records alone.
pub(crate) fn coverage_sheets(records: &[CoverageRecord]) -> Vec<Sheet> {
    let Some(cover) = Coverage::of(records) else {
        return Vec::new();
    };
    let title = format!("tau of the oracle path of {}", cover.checkpoint);
    let mut oracle = Sheet::new("oracle", &title, &["K", "tau", "95 % interval"]);
    for k in KS {
        let mut row = vec![k.to_string()];
        row.extend(tau_cells(coverage::oracle_tau(&cover.main, k)));
        oracle.rows.push(row);
    }
    oracle.notes = vec![ORACLE.into()];
    vec![cover.by_slot(), oracle]
}
