//! The speedup that a cost model predicts, beside the measured one.

use super::Pools;
use super::cells::{percent, plain_percent, text, times, two};
use super::suites::{concurrencies, plain_arms, samplings, vanilla_of};
use crate::StepCosts;
use crate::predict::{Prediction, Spent};
use crate::study::pool::{Pool, Tally};
use crate::study::sheet::Sheet;

/// tau / (c(rows) + drafting), by the records' own phases and by costs that were measured apart.
pub(super) fn model(pools: &Pools, costs: Option<&StepCosts>) -> Sheet {
    let mut header = vec![
        "sampling",
        "sequences",
        "arm",
        "tau",
        "rows of a sequence",
        "drafting, steps",
        "c, of the records",
        "predicted",
        "measured",
        "error",
    ];
    if costs.is_some() {
        header.extend(["c, measured apart", "predicted by it", "error"]);
    }
    let mut sheet = Sheet::new("model", "Cost model against measurement", &header);
    let mut errors = Vec::new();
    for sampling in samplings(pools) {
        for concurrency in concurrencies(pools, sampling) {
            for (key, pool) in plain_arms(pools, sampling, concurrency) {
                let found = vanilla_of(pools, key).and_then(|v| Modelled::of(pool, v));
                let Some(found) = found else { continue };
                let mut row = vec![
                    sampling.to_string(),
                    concurrency.to_string(),
                    key.method.clone(),
                ];
                row.extend(found.cells());
                errors.push([found.by_phases.error(), None]);
                if let Some(costs) = costs {
                    let (c, predicted) = found.by_costs(costs, concurrency).unzip();
                    let error = predicted.and_then(|p| found.error(p));
                    row.extend([text(c, two), text(predicted, times), text(error, percent)]);
                    if let Some(last) = errors.last_mut() {
                        last[1] = error;
                    }
                }
                sheet.rows.push(row);
            }
        }
    }
    sheet.notes = vec!["Predicted: tau / (c + drafting), both in steps of vanilla with as many sequences. c: a verify pass of those rows; drafting: everything else of a round, trunk, head, acceptance and hand-over, of the records. Rows: what one sequence has verified a round, the anchor among them. Error: predicted over measured, minus 1.".into()];
    if let Some(costs) = costs {
        sheet.notes.push(format!("Measured apart: `draftbench cost`, {}; rows of several sequences are taken to cost what as many rows of one do. A dash: no size that large was measured.", costs.what));
    }
    let names = ["of the records", "measured apart"];
    for (idx, name) in names.iter().enumerate() {
        let mut sizes: Vec<f64> = errors.iter().filter_map(|e| Some(e[idx]?.abs())).collect();
        sizes.sort_by(f64::total_cmp);
        if let (Some(median), Some(most)) = (sizes.get(sizes.len() / 2), sizes.last()) {
            sheet.notes.push(format!(
                "With c {name}, half of the {} predictions are off by at most {}, all by at most {}.",
                sizes.len(),
                plain_percent(*median),
                plain_percent(*most)
            ));
        }
    }
    sheet
}

/// What the model says of one arm in one setting.
struct Modelled {
    by_phases: Prediction,
    /// Rows that one sequence has verified a round, on average.
    rows: f64,
}

impl Modelled {
    /// Over the prompts that both answered.
    fn of(pool: &Pool, vanilla: &Pool) -> Option<Self> {
        let (mut mine, mut theirs) = (Spent::default(), Spent::default());
        let (mut rounds, mut verified) = (0, 0);
        for (at, tally) in pool.prompts() {
            if let Some(other) = vanilla.prompts().get(at) {
                add(&mut mine, tally);
                add(&mut theirs, other);
                rounds += tally.rounds;
                verified += tally.verified;
            }
        }
        let measured = pool.speedup(vanilla).map(|s| s.value);
        Some(Self {
            by_phases: Prediction::of(&mine, &theirs, measured)?,
            rows: 1.0 + verified as f64 / rounds as f64,
        })
    }

    /// Everything of a round but the verify pass, in steps of vanilla.
    fn drafting(&self) -> f64 {
        let round = self.by_phases.round;
        (round.total_ns() - round.verify_ns) / self.by_phases.vanilla_step_ns
    }

    fn cells(&self) -> [String; 7] {
        let its = &self.by_phases;
        [
            two(its.tau),
            format!("{:.1}", self.rows),
            two(self.drafting()),
            two(its.round.verify_ns / its.vanilla_step_ns),
            times(its.predicted),
            text(its.measured, times),
            text(its.error(), percent),
        ]
    }

    /// Cost of the pass and the speedup that follows.
    fn by_costs(&self, costs: &StepCosts, concurrency: u32) -> Option<(f64, f64)> {
        let sequences = f64::from(concurrency);
        let c = costs.of_pass(self.rows * sequences, sequences)?;
        Some((c, self.by_phases.tau / (c + self.drafting())))
    }

    fn error(&self, predicted: f64) -> Option<f64> {
        Some(predicted / self.by_phases.measured? - 1.0)
    }
}

fn add(spent: &mut Spent, tally: &Tally) {
    spent.add(&tally.phases, tally.rounds, tally.committed);
}
