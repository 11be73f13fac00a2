//! What a client of the engine sees: waiting times by percentile, and throughput over a whole cell and over its full
//! part.

use std::collections::BTreeMap;

use crate::metrics::Group;
use crate::record::{Answer, Cell};

/// Part of the concurrency that must be in flight for a moment to belong to the plateau.
const FULL: f64 = 0.9;
/// Answers that a plateau needs, for each sequence at once.
const WAVES: usize = 10;

/// One cell's times, in nanoseconds, exact and not binned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latency {
    /// From a request's coming to its entering a slot, rising; all 0 in closed loop.
    pub queue: Vec<u64>,
    /// From a request's coming to the first token, rising; in closed loop it comes when it enters a slot.
    pub first_token: Vec<u64>,
    /// From first token to last over the tokens between, rising; answers of one token have none.
    pub per_token: Vec<u64>,
    /// From a request's coming to the last token, rising.
    pub answer: Vec<u64>,
    /// Between the tokens of one round and the next, rising.
    pub step: Vec<u64>,
    /// Tokens of all answers over the wall time of the batches that gave them, prefills included.
    pub makespan_tokens_per_sec: Option<f64>,
    /// Answers over the same wall time.
    pub answers_per_sec: Option<f64>,
    /// Tokens over the moments when nearly all slots were taken; none in open loop.
    pub plateau: Option<Plateau>,
}

/// The longest span of each batch with at least 0.9 of the concurrency in flight, all batches together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    /// Tokens that came in it a second.
    pub tokens_per_sec: f64,
    /// Length in nanoseconds.
    pub ns: u64,
    /// Part of all tokens that came in it.
    pub share: f64,
}

impl Latency {
    /// Of all answers of one cell.
    pub(crate) fn of(group: &Group<'_>, cell: &Cell) -> Self {
        let passes = passes(group);
        let answers = || passes.values().flatten().copied();
        let list = |of: fn(&Answer) -> Option<u64>| rising(answers().filter_map(of).collect());
        let batches: Vec<&Vec<&Answer>> = passes.values().collect();
        let wall_ns = wall_ns(&batches, cell);
        let rate = |n: u64| (wall_ns > 0).then(|| n as f64 * 1e9 / wall_ns as f64);
        Self {
            queue: list(|a| Some(a.timeline.admitted_ns - a.timeline.began_ns())),
            first_token: list(|a| Some(a.timeline.first_ns - a.timeline.began_ns())),
            per_token: list(|a| {
                let ns = a.timeline.finished_ns() - a.timeline.first_ns;
                ns.checked_div(u64::from(a.n_tokens.saturating_sub(1)))
            }),
            answer: list(|a| Some(a.timeline.finished_ns() - a.timeline.began_ns())),
            step: rising(answers().flat_map(|a| a.timeline.step_ns.clone()).collect()),
            makespan_tokens_per_sec: rate(answers().map(|a| u64::from(a.n_tokens)).sum()),
            answers_per_sec: rate(answers().count() as u64),
            plateau: match cell.arrivals.is_closed() {
                true => plateau(&batches, cell.concurrency),
                false => None,
            },
        }
    }
}

/// Answers by pass and turn: a later turn is a batch of its own.
fn passes<'a>(group: &Group<'a>) -> BTreeMap<(u32, u32), Vec<&'a Answer>> {
    let mut passes: BTreeMap<(u32, u32), Vec<&Answer>> = BTreeMap::new();
    for ((_, _, pass, turn), timed) in &group.answers {
        let batch = passes.entry((*pass, *turn)).or_default();
        batch.push(timed.answer);
    }
    passes
}

fn rising(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    values
}

/// Answer tokens of a cell, and the wall time in nanoseconds of the batches that gave them.
pub(crate) fn wall(group: &Group<'_>, cell: &Cell) -> (u64, u64) {
    let passes = passes(group);
    let answers = passes.values().flatten();
    let tokens = answers.map(|a| u64::from(a.n_tokens)).sum();
    (tokens, wall_ns(&passes.values().collect::<Vec<_>>(), cell))
}

/// Wall time of all batches.
fn wall_ns(passes: &[&Vec<&Answer>], cell: &Cell) -> u64 {
    let of_pass = |answers: &&Vec<&Answer>| {
        let each = answers.iter().map(|a| a.batch_ns);
        match cell.is_batched() {
            true => each.max().unwrap_or(0),
            false => each.sum(),
        }
    };
    passes.iter().map(of_pass).sum()
}

fn plateau(passes: &[&Vec<&Answer>], concurrency: u32) -> Option<Plateau> {
    if concurrency == 1 || passes.is_empty() {
        return None;
    }
    let (mut inside, mut all, mut ns) = (0, 0, 0);
    for answers in passes {
        if answers.len() < WAVES * concurrency as usize {
            return None;
        }
        let (from, to) = span(answers, concurrency)?;
        ns += to - from;
        for answer in *answers {
            all += u64::from(answer.n_tokens);
            inside += tokens_between(answer, from, to);
        }
    }
    (ns > 0 && all > 0).then(|| Plateau {
        tokens_per_sec: inside as f64 * 1e9 / ns as f64,
        ns,
        share: inside as f64 / all as f64,
    })
}

/// The longest span with enough requests in flight; of equals the first.
fn span(answers: &[&Answer], concurrency: u32) -> Option<(u64, u64)> {
    let needed = (FULL * f64::from(concurrency)).ceil() as i64;
    // An end before a begin at the same moment: the slot changes hands, and a span may not be cut there.
    let mut events: Vec<(u64, i64)> = Vec::with_capacity(2 * answers.len());
    for answer in answers {
        events.push((answer.timeline.admitted_ns, 1));
        events.push((answer.timeline.finished_ns(), -1));
    }
    events.sort_unstable_by_key(|(at, change)| (*at, -change));
    let (mut in_flight, mut since, mut best) = (0, None, None);
    for (at, change) in events {
        in_flight += change;
        match (in_flight >= needed, since) {
            (true, None) => since = Some(at),
            (false, Some(from)) => {
                let longer = |(a, b): (u64, u64)| at - from > b - a;
                if best.is_none_or(longer) {
                    best = Some((from, at));
                }
                since = None;
            }
            _ => {}
        }
    }
    best
}

/// Tokens of an answer that came after `from` and not after `to`.
fn tokens_between(answer: &Answer, from: u64, to: u64) -> u64 {
    let mut at = answer.timeline.first_ns;
    let within = |at: u64| at > from && at <= to;
    let mut tokens = u64::from(within(at));
    for (step, committed) in answer.timeline.step_ns.iter().zip(&answer.rounds.committed) {
        at += step;
        if within(at) {
            tokens += u64::from(*committed);
        }
    }
    tokens
}

/// A percentile (`p` from 0 to 100) of rising values, interpolated between neighbours (type 7). `None` if the sample is
/// too small to bound it: with less than 95 % probability does its largest value lie above.
pub fn percentile(rising: &[u64], p: f64) -> Option<f64> {
    let n = rising.len();
    // The chance that all n values lie below the percentile.
    if n == 0 || (p / 100.0).powi(n as i32) > 0.05 {
        return None;
    }
    let at = p / 100.0 * (n - 1) as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(n - 1);
    let (low, high) = (rising[below] as f64, rising[above] as f64);
    Some(low + (at - below as f64) * (high - low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::groups;
    use crate::record::tests::{answer, record};
    use crate::record::{Outcome, Record, Timeline};

    #[test]
    fn a_percentile_needs_a_sample_that_bounds_it() {
        let upto = |n: u64| (1..=n).collect::<Vec<u64>>();
        for (p, needed) in [(50.0, 5), (90.0, 29), (95.0, 59), (99.0, 299)] {
            assert_eq!(percentile(&upto(needed - 1), p), None, "p{p}");
            assert!(percentile(&upto(needed), p).is_some(), "p{p}");
        }
        // numpy.percentile(range(1, 31), 90) and of 50.
        assert!((percentile(&upto(30), 90.0).unwrap() - 27.1).abs() < 1e-9);
        assert!((percentile(&upto(30), 50.0).unwrap() - 15.5).abs() < 1e-9);
    }

    /// One request a slot and wave: 3 tokens in 2 rounds of 10 ns, the first token after 5.
    fn waves(n: u64, slots: u64) -> Vec<Record> {
        (0..n)
            .map(|i| {
                let mut record = record("dflash", &i.to_string(), answer(&[(0, 1), (0, 1)]));
                record.cell.concurrency = slots as u32;
                if let Outcome::Ok(answer) = &mut record.outcome {
                    let begin = i / slots * 25;
                    answer.timeline = Timeline {
                        arrived_ns: None,
                        admitted_ns: begin,
                        first_ns: begin + 5,
                        step_ns: vec![10, 10],
                    };
                    answer.batch_ns = n.div_ceil(slots) * 25;
                }
                record
            })
            .collect()
    }

    fn of(records: &[Record]) -> Latency {
        let groups = groups(records);
        let (cell, group) = groups.iter().next().unwrap();
        Latency::of(group, cell)
    }

    #[test]
    fn waiting_is_counted_from_the_slot_and_throughput_from_the_batch() {
        let got = of(&waves(40, 2));
        assert_eq!((got.first_token[0], got.answer[39]), (5, 25));
        assert_eq!((got.per_token[0], got.step.len()), (10, 80));
        // 40 answers of 3 tokens in 20 waves of 25 ns.
        assert_eq!(got.makespan_tokens_per_sec, Some(120.0 * 1e9 / 500.0));
    }

    #[test]
    fn in_open_loop_a_client_waits_from_the_moment_its_request_came() {
        let mut records = waves(4, 2);
        for record in &mut records {
            record.cell.arrivals = "poisson-1000".parse().unwrap();
            if let Outcome::Ok(answer) = &mut record.outcome {
                answer.timeline.arrived_ns = Some(0);
            }
        }
        let got = of(&records);
        assert_eq!(got.queue, [0, 0, 25, 25]);
        assert_eq!(got.first_token, [5, 5, 30, 30]);
        assert_eq!(got.answer, [25, 25, 50, 50]);
        assert_eq!(got.answers_per_sec, Some(4.0 * 1e9 / 50.0));
        assert_eq!(got.plateau, None);
        let stats = crate::cells(&records);
        let stat = stats.values().next().unwrap();
        assert_eq!((stat.throughput, stat.latency.queue.len()), (None, 4));
    }

    #[test]
    fn the_plateau_is_where_slots_are_full_and_needs_ten_waves() {
        let plateau = of(&waves(40, 2)).plateau.unwrap();
        assert_eq!((plateau.ns, plateau.share), (500, 1.0));
        assert_eq!(of(&waves(19, 2)).plateau, None);
        assert_eq!(of(&waves(19, 1)).plateau, None);
        // The last wave is half empty: its request's 3 tokens lie outside.
        let plateau = of(&waves(41, 2)).plateau.unwrap();
        assert_eq!(plateau.ns, 500);
        assert!((plateau.share - 120.0 / 123.0).abs() < 1e-12);
        assert!((plateau.tokens_per_sec - 120.0 * 1e9 / 500.0).abs() < 1e-3);
    }
}
