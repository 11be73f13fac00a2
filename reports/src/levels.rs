//! One row of numbers for each suite, domain, target and all targets together.

use std::collections::BTreeMap;
use std::fmt;

use rayon::prelude::*;

use crate::acceptance::AcceptanceSums;
use crate::bootstrap::ratio_interval;
use crate::metrics::{Equality, Group, groups};
use crate::record::{Cell, Record, Rounds, Thinking};
use crate::stats::wilson;
use crate::sums::{Clock, Sums, ratio, speedup_intervals};
use crate::{ArrivalKey, SamplingKey};

/// What a suite asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Domain {
    /// Word problems and competitions.
    Maths,
    /// Programs.
    Code,
    /// Conversation and instructions.
    Chat,
    /// A suite that the table does not know.
    Other,
}

impl Domain {
    /// The domain of a suite's id.
    pub fn of(suite: &str) -> Self {
        match suite {
            "mini-maths" | "gsm8k" | "math500" | "aime24" | "aime25" => Self::Maths,
            "mini-code" | "humaneval" | "mbpp" | "livecodebench" | "swe-bench" | "lbpp" => {
                Self::Code
            }
            "mini-chat" | "mt-bench" | "alpaca" | "arena-hard-v2" => Self::Chat,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Maths => "maths",
            Self::Code => "code",
            Self::Chat => "chat",
            Self::Other => "other",
        })
    }
}

/// What a row pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// One cell.
    Suite,
    /// The suites of one domain, one target.
    Domain,
    /// All suites of one target.
    Target,
    /// All suites of all targets.
    Overall,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Suite => "suite",
            Self::Domain => "domain",
            Self::Target => "target",
            Self::Overall => "overall",
        })
    }
}

/// Which cells a row pools; a coordinate that the level pools over is `None`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LevelKey {
    /// What is pooled.
    pub level: Level,
    /// Id of the target; `None` overall.
    pub target: Option<String>,
    /// Domain of the suites; `None` from the target up.
    pub domain: Option<Domain>,
    /// Id of the suite; `None` from the domain up.
    pub suite: Option<String>,
    /// How tokens are chosen.
    pub sampling: SamplingKey,
    /// Whether the chat template asks for a thinking section.
    pub thinking: Thinking,
    /// Sequences decoded at once, at least 1.
    pub concurrency: u32,
    /// When requests come.
    pub arrivals: ArrivalKey,
    /// Id of the method.
    pub method: String,
}

impl LevelKey {
    /// Whether sequences share the machine at the pace of the method, so that a throughput is the method's own.
    fn has_throughput(&self) -> bool {
        self.concurrency > 1 && self.arrivals.is_closed()
    }

    /// The row of `level` that a cell belongs to.
    pub fn of(level: Level, cell: &Cell) -> Self {
        let upto = |last: Level| level <= last;
        Self {
            level,
            target: upto(Level::Target).then(|| cell.target.clone()),
            domain: upto(Level::Domain).then(|| Domain::of(&cell.suite)),
            suite: upto(Level::Suite).then(|| cell.suite.clone()),
            sampling: cell.sampling,
            thinking: cell.thinking,
            concurrency: cell.concurrency,
            arrivals: cell.arrivals,
            method: cell.method.clone(),
        }
    }
}

/// A number with its 95 % interval, whole prompts resampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Pooled: a ratio of sums.
    pub value: f64,
    /// Needs 2 prompts; vanilla's speedup has none, since it is 1 by definition.
    pub interval: Option<(f64, f64)>,
}

/// Two averages of one value a cell, which say different things: 4 and 1 average to 2.5 and to 2.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Averages {
    /// Sum over count; `None` if a cell has no value.
    pub arithmetic: Option<f64>,
    /// Root of the product, as ratios average; `None` if a cell has no value above 0.
    pub geometric: Option<f64>,
}

impl Averages {
    /// Of one value a cell.
    pub fn of(values: &[Option<f64>]) -> Self {
        let values: Option<Vec<f64>> = values.iter().copied().collect();
        let Some(values) = values.filter(|v| !v.is_empty()) else {
            return Self::default();
        };
        let n = values.len() as f64;
        let logs: f64 = values.iter().map(|v| v.ln()).sum();
        Self {
            arithmetic: Some(values.iter().sum::<f64>() / n),
            geometric: Some((logs / n).exp()).filter(|_| values.iter().all(|v| *v > 0.0)),
        }
    }
}

/// Numbers of one row. A row with `trouble` has counts alone: what it lacks would flatter or spoil the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelRow {
    /// What is pooled.
    pub key: LevelKey,
    /// Cells pooled. Rows of two methods compare only if both have the same cells.
    pub n_cells: usize,
    /// Answers, every pass and turn counted.
    pub n_answers: u64,
    /// Prompts of suites, one asked of two targets counted once.
    pub n_prompts: u64,
    /// Rounds of all answers.
    pub n_rounds: u64,
    /// Tokens committed a round.
    pub tau: Option<Estimate>,
    /// Acceptance length by every convention.
    pub conventions: AcceptanceSums,
    /// Vanilla's decode time a token over the method's, of one sequence, over prompts that both answered. Prefill is
    /// out, the drafter's own start in.
    pub speedup_decode: Option<Estimate>,
    /// Vanilla's time a token from entering a slot to the last token over the method's, prefill in, waiting for others
    /// out; for equal texts the ratio of latencies of the same answers.
    pub speedup_end_to_end: Option<Estimate>,
    /// The method's tokens a second of all sequences over vanilla's; `None` at concurrency 1 and in open loop.
    pub throughput_ratio: Option<Estimate>,
    /// Decode tokens a second of one sequence.
    pub tokens_per_sec: Option<f64>,
    /// Tokens a second of all sequences, prefills out.
    pub throughput: Option<f64>,
    /// Tokens committed a round by rounds that begin in the first to fourth quarter of their answer's decode tokens.
    pub tau_quarters: [Option<f64>; 4],
    /// Of the cells' tau.
    pub tau_averages: Averages,
    /// Of the cells' speedup in decoding.
    pub speedup_decode_averages: Averages,
    /// Of the cells' speedup end to end.
    pub speedup_end_to_end_averages: Averages,
    /// Of the cells' ratio of throughputs; `None` at concurrency 1 and in open loop.
    pub throughput_ratio_averages: Averages,
    /// Drafts accepted over drafts verified, from 0 to 1.
    pub accepted_share: Option<f64>,
    /// 8-grams that occurred before in the same answer over all, from 0 to 1.
    pub repeated_share: Option<f64>,
    /// Answers of which over 30 % of the 8-grams occurred before.
    pub n_loops: u64,
    /// Tokens committed a round over the other answers.
    pub tau_without_loops: Option<f64>,
    /// Right answers, and answers that could be checked; `None` if none could.
    pub correct: Option<(usize, usize)>,
    /// Whether the text is vanilla's, over all cells.
    pub equality: Equality,
    /// The first cell's trouble.
    pub trouble: Option<String>,
}

impl LevelRow {
    /// The speedup of a headline, as [`crate::CellStats::speedup`] has it: of decoding at concurrency 1 and in open loop, else
    /// of throughput.
    pub fn speedup(&self) -> Option<Estimate> {
        match self.key.has_throughput() {
            false => self.speedup_decode,
            true => self.throughput_ratio,
        }
    }

    /// [`wilson`]'s 95 % interval of the share of right answers, each answer a trial; `None` if none could be checked.
    pub fn correct_interval(&self) -> Option<(f64, f64)> {
        let (hits, of) = self.correct?;
        wilson(hits as u64, of as u64)
    }

    /// The averages of [`Self::speedup`] over cells.
    pub fn speedup_averages(&self) -> Averages {
        match self.key.has_throughput() {
            false => self.speedup_decode_averages,
            true => self.throughput_ratio_averages,
        }
    }
}

/// Rows of all levels: suites first, then domains, targets and overall, each by target, suite, setting and method.
pub fn levels(records: &[Record]) -> Vec<LevelRow> {
    let groups = groups(records);
    let none = Group::default();
    let mut rows: BTreeMap<LevelKey, Vec<Part<'_>>> = BTreeMap::new();
    for (cell, group) in &groups {
        let vanilla = groups.get(&cell.vanilla()).unwrap_or(&none);
        let part = Part::of(cell, group, vanilla);
        for level in [Level::Domain, Level::Target, Level::Overall] {
            let own = rows.entry(LevelKey::of(level, cell)).or_default();
            own.push(part.clone());
        }
        rows.insert(LevelKey::of(Level::Suite, cell), vec![part]);
    }
    let rows: Vec<(LevelKey, Vec<Part<'_>>)> = rows.into_iter().collect();
    rows.into_par_iter()
        .map(|(key, parts)| row(key, &parts))
        .collect()
}

/// A suite and a prompt of it: what intervals resample.
type PromptAt<'a> = (&'a str, &'a str);

/// What one cell adds to a row.
#[derive(Clone)]
struct Part<'a> {
    cell: &'a Cell,
    prompts: BTreeMap<PromptAt<'a>, Sums>,
    /// The method's sums and vanilla's.
    pairs: BTreeMap<PromptAt<'a>, (Sums, Sums)>,
    conventions: AcceptanceSums,
    quarters: [(u64, u64); 4],
    correct: Option<(usize, usize)>,
    equality: Equality,
    trouble: Option<&'a str>,
}

impl<'a> Part<'a> {
    fn of(cell: &'a Cell, group: &Group<'a>, vanilla: &Group<'a>) -> Self {
        let suite = cell.suite.as_str();
        let mut prompts: BTreeMap<PromptAt<'a>, Sums> = BTreeMap::new();
        let mut conventions = AcceptanceSums::default();
        let mut quarters = [(0, 0); 4];
        for ((id, ..), timed) in &group.answers {
            prompts.entry((suite, id)).or_default().add(*timed);
            conventions.add(timed.answer);
            add_quarters(&mut quarters, &timed.answer.rounds);
        }
        let pairs = group.paired(vanilla).into_iter();
        Self {
            cell,
            prompts,
            pairs: pairs.map(|(id, pair)| ((suite, id), pair)).collect(),
            conventions,
            quarters,
            correct: group.correct(),
            equality: group.equality(cell, vanilla),
            trouble: group.trouble,
        }
    }

    fn total(&self) -> Sums {
        let mut total = Sums::default();
        self.prompts.values().for_each(|s| total.merge(s));
        total
    }

    fn speedup(&self, clock: Clock) -> Option<f64> {
        let pairs: Vec<(Sums, Sums)> = self.pairs.values().copied().collect();
        clock.speedup(&pairs)
    }
}

/// Adds each round's `(committed, 1)` to the quarter of the answer in which it begins.
fn add_quarters(quarters: &mut [(u64, u64); 4], rounds: &Rounds) {
    let total: u64 = rounds.committed.iter().map(|c| u64::from(*c)).sum();
    let mut before = 0;
    for committed in &rounds.committed {
        let quarter = &mut quarters[(4 * before / total) as usize];
        *quarter = (quarter.0 + u64::from(*committed), quarter.1 + 1);
        before += u64::from(*committed);
    }
}

fn row(key: LevelKey, parts: &[Part<'_>]) -> LevelRow {
    let mut prompts: BTreeMap<PromptAt<'_>, Sums> = BTreeMap::new();
    let mut pairs: BTreeMap<PromptAt<'_>, (Sums, Sums)> = BTreeMap::new();
    let mut row = empty(key, parts);
    let mut quarters = [(0, 0); 4];
    for part in parts {
        for (at, sums) in &part.prompts {
            prompts.entry(*at).or_default().merge(sums);
        }
        for (at, (mine, theirs)) in &part.pairs {
            let pair = pairs.entry(*at).or_default();
            pair.0.merge(mine);
            pair.1.merge(theirs);
        }
        for (sum, own) in quarters.iter_mut().zip(&part.quarters) {
            *sum = (sum.0 + own.0, sum.1 + own.1);
        }
        row.conventions.merge(&part.conventions);
    }
    let mut total = Sums::default();
    prompts.values().for_each(|s| total.merge(s));
    row.n_answers = total.answers;
    row.n_prompts = prompts.len() as u64;
    row.n_rounds = total.rounds;
    if row.trouble.is_some() {
        row.conventions = AcceptanceSums::default();
        return row;
    }
    let clusters: Vec<(u64, u64)> = prompts.values().map(|s| (s.committed, s.rounds)).collect();
    row.tau = total.tau().map(|value| Estimate {
        value,
        interval: ratio_interval(&clusters),
    });
    let pairs: Vec<(Sums, Sums)> = pairs.into_values().collect();
    let [decode, end_to_end, busy] = match row.key.method.as_str() {
        "vanilla" => [None; 3],
        _ => speedup_intervals(&pairs),
    };
    let estimate = |clock: Clock, interval| {
        let value = clock.speedup(&pairs)?;
        Some(Estimate { value, interval })
    };
    let of_cells = |of: &dyn Fn(&Part<'_>) -> Option<f64>| {
        Averages::of(&parts.iter().map(of).collect::<Vec<_>>())
    };
    row.speedup_decode = estimate(Clock::Decode, decode);
    row.speedup_end_to_end = estimate(Clock::EndToEnd, end_to_end);
    row.tau_averages = of_cells(&|p| p.total().tau());
    row.speedup_decode_averages = of_cells(&|p| p.speedup(Clock::Decode));
    row.speedup_end_to_end_averages = of_cells(&|p| p.speedup(Clock::EndToEnd));
    if row.key.has_throughput() {
        row.throughput_ratio = estimate(Clock::Busy, busy);
        row.throughput_ratio_averages = of_cells(&|p| p.speedup(Clock::Busy));
    }
    row.tokens_per_sec = total.tokens_per_sec();
    if row.key.arrivals.is_closed() {
        row.throughput = ratio(total.committed, total.busy_ns).map(|per_ns| per_ns * 1e9);
    }
    row.tau_quarters = quarters.map(|(committed, rounds)| ratio(committed, rounds));
    row.accepted_share = ratio(total.accepted, total.verified);
    row.repeated_share = ratio(total.repeated, total.grams);
    row.n_loops = total.loops;
    row.tau_without_loops = total.tau_without_loops();
    row
}

/// A row without numbers.
fn empty(key: LevelKey, parts: &[Part<'_>]) -> LevelRow {
    let correct = parts.iter().filter_map(|p| p.correct);
    let trouble = parts.iter().find_map(|p| Some((p.cell, p.trouble?)));
    LevelRow {
        n_cells: parts.len(),
        correct: correct.reduce(|a, b| (a.0 + b.0, a.1 + b.1)),
        equality: parts
            .iter()
            .map(|p| p.equality)
            .reduce(Equality::and)
            .unwrap_or(Equality::Unknown),
        trouble: trouble.map(|(cell, why)| match key.level {
            Level::Suite => why.to_owned(),
            _ => format!("{} on {}: {why}", cell.target, cell.suite),
        }),
        key,
        n_answers: 0,
        n_prompts: 0,
        n_rounds: 0,
        tau: None,
        conventions: AcceptanceSums::default(),
        speedup_decode: None,
        speedup_end_to_end: None,
        throughput_ratio: None,
        tokens_per_sec: None,
        throughput: None,
        tau_quarters: [None; 4],
        tau_averages: Averages::default(),
        speedup_decode_averages: Averages::default(),
        speedup_end_to_end_averages: Averages::default(),
        throughput_ratio_averages: Averages::default(),
        accepted_share: None,
        repeated_share: None,
        n_loops: 0,
        tau_without_loops: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acceptance::Convention;
    use crate::cells;
    use crate::record::Outcome;
    use crate::record::tests::{answer, record};

    /// An answer on a target and suite whose every token takes `ns`, after 100 ns of prefill.
    fn on(at: (&str, &str), method: &str, prompt: &str, rounds: &[(u32, u32)], ns: u64) -> Record {
        let mut a = answer(rounds);
        a.prefill_ns = 100;
        a.decode_ns = ns * u64::from(a.n_tokens - 1);
        let mut rec = record(method, prompt, a);
        rec.cell.target = at.0.into();
        rec.cell.suite = at.1.into();
        rec
    }

    /// Two targets, three suites; dflash is 4 and 1 times as fast on the maths suites of the first.
    fn matrix() -> Vec<Record> {
        let mut records = Vec::new();
        for (target, suite, ns) in [
            ("t", "gsm8k", 100),
            ("t", "math500", 400),
            ("t", "mbpp", 200),
            ("u", "gsm8k", 400),
        ] {
            for prompt in ["1", "2"] {
                let at = (target, suite);
                records.push(on(at, "vanilla", prompt, &[(0, 1); 6], 400));
                records.push(on(at, "dflash", prompt, &[(2, 3), (2, 3)], ns));
            }
        }
        records
    }

    fn find<'a>(rows: &'a [LevelRow], level: Level, method: &str, of: &str) -> &'a LevelRow {
        let is = |row: &&LevelRow| {
            let key = &row.key;
            let domain = key.domain.map(|d| d.to_string());
            let names = [key.target.clone(), domain, key.suite.clone()];
            let name: Vec<String> = names.into_iter().flatten().collect();
            key.level == level && key.method == method && name.join("/") == of
        };
        rows.iter().find(is).unwrap()
    }

    #[test]
    fn a_suites_row_says_what_its_cell_says() {
        let records = matrix();
        let cells = cells(&records);
        for row in levels(&records)
            .iter()
            .filter(|r| r.key.level == Level::Suite)
        {
            let at = cells
                .iter()
                .find(|(cell, _)| LevelKey::of(Level::Suite, cell) == row.key);
            let stats = at.unwrap().1;
            assert_eq!(row.tau.map(|t| t.value), stats.tau);
            assert_eq!(row.tau.unwrap().interval, stats.tau_interval);
            assert_eq!(row.speedup().map(|s| s.value), stats.speedup);
            assert_eq!(row.speedup().unwrap().interval, stats.speedup_interval);
            assert_eq!(row.tokens_per_sec, stats.tokens_per_sec);
            assert_eq!(row.throughput, stats.throughput);
            assert_eq!(row.equality, stats.equality);
            assert_eq!(row.repeated_share, stats.repeated_share);
            assert_eq!(row.tau_without_loops, stats.tau_without_loops);
            assert_eq!(row.conventions.length(Convention::Tau), stats.tau);
            assert_eq!((row.n_cells, row.n_answers), (1, stats.n_answers as u64));
        }
    }

    #[test]
    fn a_domain_pools_its_suites_and_averages_them_in_two_ways() {
        let rows = levels(&matrix());
        let maths = find(&rows, Level::Domain, "dflash", "t/maths");
        assert_eq!((maths.n_cells, maths.n_prompts, maths.n_rounds), (2, 4, 8));
        // 800 ns of vanilla against 100 + 400.
        assert_eq!(maths.speedup_decode.unwrap().value, 1.6);
        let averages = maths.speedup_decode_averages;
        assert_eq!(averages.arithmetic, Some(2.5));
        assert!((averages.geometric.unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(maths.tau_averages.arithmetic, Some(3.0));
        assert_eq!(maths.throughput_ratio, None);
        // (100 + 6 * 400) of vanilla four times, against 700 twice and 2500 twice.
        let end_to_end = maths.speedup_end_to_end.unwrap();
        assert!((end_to_end.value - 10_000.0 / 6_400.0).abs() < 1e-12);
        let (low, high) = end_to_end.interval.unwrap();
        assert!(low < end_to_end.value && end_to_end.value < high);
        assert_eq!(maths.speedup_averages(), averages);
    }

    #[test]
    fn a_prompt_asked_of_two_targets_is_one_prompt() {
        let rows = levels(&matrix());
        let target = find(&rows, Level::Target, "dflash", "t");
        assert_eq!((target.n_cells, target.n_prompts), (3, 6));
        let overall = find(&rows, Level::Overall, "dflash", "");
        let counts = (overall.n_cells, overall.n_prompts, overall.n_answers);
        assert_eq!(counts, (4, 6, 8));
        let vanilla = find(&rows, Level::Overall, "vanilla", "");
        let speedup = vanilla.speedup().unwrap();
        assert_eq!((speedup.value, speedup.interval), (1.0, None));
        assert_eq!(vanilla.equality, Equality::Reference);
    }

    #[test]
    fn a_row_with_trouble_below_has_no_numbers() {
        let mut records = matrix();
        let failed = records
            .iter_mut()
            .find(|r| r.cell.suite == "mbpp" && r.cell.method == "dflash");
        failed.unwrap().outcome = Outcome::Failed { why: "nan".into() };
        let rows = levels(&records);
        let target = find(&rows, Level::Target, "dflash", "t");
        assert_eq!(target.trouble.as_deref(), Some("t on mbpp: nan"));
        assert_eq!((target.tau, target.speedup_decode), (None, None));
        assert_eq!(target.conventions.spread(), None);
        assert_eq!(target.n_answers, 5);
        assert!(
            find(&rows, Level::Domain, "dflash", "t/maths")
                .tau
                .is_some()
        );
    }

    #[test]
    fn tau_is_followed_over_the_answer() {
        // 8 tokens: rounds begin at 0, 4, 6 and 7.
        let rec = on(
            ("t", "x"),
            "dflash",
            "1",
            &[(3, 4), (1, 2), (0, 1), (0, 1)],
            10,
        );
        let rows = levels(std::slice::from_ref(&rec));
        let want = [Some(4.0), None, Some(2.0), Some(1.0)];
        assert_eq!(rows[0].tau_quarters, want);
        assert_eq!(rows[0].key.domain, Some(Domain::Other));
        let at_once = on(("t", "x"), "dflash", "1", &[], 10);
        let rows = levels(std::slice::from_ref(&at_once));
        assert_eq!((rows[0].tau_quarters, rows[0].tau), ([None; 4], None));
    }

    #[test]
    fn an_average_lacks_what_a_cell_lacks() {
        assert_eq!(Averages::of(&[]), Averages::default());
        assert_eq!(Averages::of(&[Some(1.0), None]), Averages::default());
        assert_eq!(Averages::of(&[Some(0.0), Some(2.0)]).geometric, None);
        assert_eq!(Averages::of(&[Some(0.0), Some(2.0)]).arithmetic, Some(1.0));
    }
}
