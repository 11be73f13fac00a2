//! What the page is about: cells by setting, arms and suites in the order of the run, means over suites.

use std::collections::{BTreeMap, BTreeSet};

use super::svg::Look;
use super::{PageInput, mean};
use crate::metrics::{CellStats, Group, cells, groups};
use crate::places::Unranked;
use crate::record::{Cell, Thinking};
use crate::study::pool::{ArmKey, Pool, pools_of};
use crate::{ArrivalKey, SamplingKey, Share};

/// Cells that differ in suite, method and concurrency alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Family {
    pub(crate) target: String,
    pub(crate) thinking: Thinking,
    pub(crate) sampling: SamplingKey,
    pub(crate) arrivals: ArrivalKey,
}

/// Cells that differ in suite and method alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Setting {
    pub(crate) family: Family,
    pub(crate) concurrency: u32,
}

impl Family {
    pub(crate) fn title(&self) -> String {
        let title = format!(
            "{}, {}, thinking {}",
            self.target, self.sampling, self.thinking
        );
        match self.arrivals {
            ArrivalKey::Closed => title,
            open => format!("{title}, {open}"),
        }
    }

    /// What filters read.
    pub(crate) fn attrs(&self) -> String {
        use super::html::attr;
        attr("data-target", &self.target)
            + &attr("data-sampling", &self.sampling.to_string())
            + &attr("data-thinking", &self.thinking.to_string())
            + &attr("data-arrivals", &self.arrivals.to_string())
    }
}

impl Setting {
    pub(crate) fn of(cell: &Cell) -> Self {
        Self {
            family: Family {
                target: cell.target.clone(),
                thinking: cell.thinking,
                sampling: cell.sampling,
                arrivals: cell.arrivals,
            },
            concurrency: cell.concurrency,
        }
    }

    pub(crate) fn title(&self) -> String {
        format!("{}, concurrency {}", self.family.title(), self.concurrency)
    }

    pub(crate) fn attrs(&self) -> String {
        let concurrency = self.concurrency.to_string();
        self.family.attrs() + &super::html::attr("data-concurrency", &concurrency)
    }

    pub(crate) fn cell(&self, suite: &str, method: &str) -> Cell {
        Cell {
            target: self.family.target.clone(),
            suite: suite.to_owned(),
            sampling: self.family.sampling,
            thinking: self.family.thinking,
            concurrency: self.concurrency,
            arrivals: self.family.arrivals,
            method: method.to_owned(),
        }
    }
}

/// An arm over all suites of its setting.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) tau: Option<Share>,
    pub(crate) speedup: Option<Share>,
}

/// Everything that the parts of the page are made of.
pub(crate) struct Data<'a> {
    pub(crate) stats: BTreeMap<Cell, CellStats>,
    pub(crate) groups: BTreeMap<&'a Cell, Group<'a>>,
    /// In the order of the page.
    pub(crate) settings: Vec<Setting>,
    /// Vanilla first, then as the runs were asked for them, then by name.
    pub(crate) arms: Vec<String>,
    pub(crate) suites: Vec<String>,
    /// Arms that answered every suite of their setting.
    pub(crate) pools: BTreeMap<Setting, BTreeMap<String, Pool>>,
    standings: BTreeMap<(Setting, String), Standing>,
}

impl<'a> Data<'a> {
    pub(crate) fn new(input: &PageInput<'a>) -> Self {
        let groups = groups(input.records);
        let stats = cells(input.records);
        let settings: BTreeSet<Setting> = stats.keys().map(Setting::of).collect();
        let mut pools: BTreeMap<Setting, BTreeMap<String, Pool>> = BTreeMap::new();
        let places: BTreeSet<(String, Thinking)> = stats
            .keys()
            .map(|cell| (cell.target.clone(), cell.thinking))
            .collect();
        for (target, thinking) in places {
            for (key, pool) in pools_of(&groups, &target, thinking) {
                let setting = setting_of(&key, &target, thinking);
                pools.entry(setting).or_default().insert(key.method, pool);
            }
        }
        let asked = |key: &str| asked(input.runs, key);
        let mut arms = ordered(stats.keys().map(|c| c.method.as_str()), &asked("methods"));
        arms.sort_by_key(|arm| arm != "vanilla");
        let suites = ordered(stats.keys().map(|c| c.suite.as_str()), &asked("suites"));
        let mut data = Self {
            stats,
            groups,
            settings: settings.into_iter().collect(),
            arms,
            suites,
            pools,
            standings: BTreeMap::new(),
        };
        data.standings = data.all_standings();
        data
    }

    fn all_standings(&self) -> BTreeMap<(Setting, String), Standing> {
        let mut standings = BTreeMap::new();
        for (setting, pools) in &self.pools {
            let n_suites = self.suites_of(setting).len();
            let whole = |pool: &&Pool| pool.suites().len() == n_suites;
            for (arm, pool) in pools.iter().filter(|(_, pool)| whole(pool)) {
                let vanilla = pools.get("vanilla").filter(whole);
                let own = Standing {
                    tau: mean::tau(pool),
                    speedup: vanilla.and_then(|vanilla| mean::speedup(pool, vanilla)),
                };
                // Vanilla's numbers are 1 by definition.
                let sure = |share: Share| Share {
                    interval: share.interval.filter(|_| arm != "vanilla"),
                    ..share
                };
                let standing = Standing {
                    tau: own.tau.map(sure),
                    speedup: own.speedup.map(sure),
                };
                standings.insert((setting.clone(), arm.clone()), standing);
            }
        }
        standings
    }

    /// Nothing for an arm that lacks a suite.
    pub(crate) fn standing(&self, setting: &Setting, arm: &str) -> Standing {
        let at = (setting.clone(), arm.to_owned());
        self.standings.get(&at).copied().unwrap_or_default()
    }

    pub(crate) fn stat(&self, setting: &Setting, suite: &str, arm: &str) -> Option<&CellStats> {
        self.stats.get(&setting.cell(suite, arm))
    }

    /// Whether an arm's number on a suite may be called best or second.
    pub(crate) fn is_ranked(&self, setting: &Setting, suite: &str, arm: &str) -> bool {
        let stat = self.stat(setting, suite, arm);
        arm != "vanilla" && stat.is_none_or(|s| Unranked::of(s).is_none())
    }

    /// Whether an arm's means may be: if all they are of may.
    pub(crate) fn is_ranked_throughout(&self, setting: &Setting, arm: &str) -> bool {
        let suites = self.suites_of(setting);
        suites
            .iter()
            .all(|suite| self.is_ranked(setting, suite, arm))
    }

    /// Suites that a setting has a cell of.
    pub(crate) fn suites_of(&self, setting: &Setting) -> Vec<&str> {
        let its = self.cells_of(setting);
        let its: BTreeSet<&str> = its.map(|(cell, _)| cell.suite.as_str()).collect();
        let all = self.suites.iter().map(String::as_str);
        all.filter(|suite| its.contains(suite)).collect()
    }

    /// Arms that a setting has a cell of.
    pub(crate) fn arms_of(&self, setting: &Setting) -> Vec<&str> {
        let its = self.cells_of(setting);
        let its: BTreeSet<&str> = its.map(|(cell, _)| cell.method.as_str()).collect();
        let all = self.arms.iter().map(String::as_str);
        all.filter(|arm| its.contains(arm)).collect()
    }

    fn cells_of<'s>(
        &'s self,
        setting: &'s Setting,
    ) -> impl Iterator<Item = (&'s Cell, &'s CellStats)> {
        let its = self.stats.iter();
        its.filter(move |(cell, _)| Setting::of(cell) == *setting)
    }

    /// Families in the order of the page, each with its concurrencies, rising.
    pub(crate) fn families(&self) -> Vec<(&Family, Vec<&Setting>)> {
        let chunks = self.settings.chunk_by(|a, b| a.family == b.family);
        chunks
            .map(|its| (&its[0].family, its.iter().collect()))
            .collect()
    }

    /// Arms without options first: the order in which plots take them, since a plot has no place for all.
    pub(crate) fn by_plainness<'s>(&self, mut arms: Vec<&'s str>) -> Vec<&'s str> {
        arms.sort_by_key(|arm| (*arm != "vanilla", arm.contains(':')));
        arms
    }

    /// How an arm is drawn, the same all over the page.
    pub(crate) fn look(&self, arm: &str) -> Look {
        if arm == "vanilla" {
            return Look::Vanilla;
        }
        let all = self.by_plainness(self.arms.iter().map(String::as_str).collect());
        let drafting = all.into_iter().filter(|a| *a != "vanilla");
        Look::Arm(drafting.take_while(|a| *a != arm).count())
    }

    /// Distinct prompts answered in a cell.
    pub(crate) fn n_prompts(&self, cell: &Cell) -> usize {
        let ids = self.groups.get(cell).map(|group| {
            let ids: BTreeSet<&str> = group.answers.keys().map(|at| at.0).collect();
            ids.len()
        });
        ids.unwrap_or(0)
    }
}

fn setting_of(key: &ArmKey, target: &str, thinking: Thinking) -> Setting {
    Setting {
        family: Family {
            target: target.to_owned(),
            thinking,
            sampling: key.sampling,
            arrivals: key.arrivals,
        },
        concurrency: key.concurrency,
    }
}

/// What the runs were asked for under a key, in their order.
fn asked(runs: &[serde_json::Value], key: &str) -> Vec<String> {
    let lists = runs.iter().filter_map(|run| run["asked"][key].as_array());
    let names = lists.flatten().filter_map(|name| name.as_str());
    names.map(str::to_owned).collect()
}

/// Ids in the given order; those it does not name follow by name.
fn ordered<'a>(ids: impl Iterator<Item = &'a str>, order: &[String]) -> Vec<String> {
    let mut ids: Vec<&str> = ids.collect::<BTreeSet<&str>>().into_iter().collect();
    ids.sort_by_key(|id| order.iter().position(|o| o == id).unwrap_or(order.len()));
    ids.into_iter().map(str::to_owned).collect()
}
