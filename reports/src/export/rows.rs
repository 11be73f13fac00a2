//! Which columns levels and answers have.

use super::columns::{Builder, Columns};
use crate::acceptance::Convention;
use crate::levels::{Averages, Domain, Estimate, LevelRow};
use crate::metrics::Equality;
use crate::record::{Answer, Ended, Outcome, Phases, PromptKey, Record};

/// One line a row of [`crate::levels()`]. Intervals are the columns ending in `_low` and `_high`, averages of cells those
/// in `_arithmetic_mean` and `_geometric_mean`; `length_*` is acceptance length by convention.
pub fn level_columns(rows: &[LevelRow]) -> Columns {
    let mut out = Builder::new(rows);
    out.text("level", |r| Some(r.key.level.to_string()))
        .text("target", |r| r.key.target.clone())
        .text("domain", |r| r.key.domain.map(|d| d.to_string()))
        .text("suite", |r| r.key.suite.clone())
        .text("sampling", |r| Some(r.key.sampling.to_string()))
        .text("thinking", |r| Some(r.key.thinking.to_string()))
        .count("concurrency", |r| Some(r.key.concurrency.into()))
        .text("arrivals", |r| Some(r.key.arrivals.to_string()))
        .text("method", |r| Some(r.key.method.clone()))
        .count("n_cells", |r| Some(r.n_cells as u64))
        .count("n_answers", |r| Some(r.n_answers))
        .count("n_prompts", |r| Some(r.n_prompts))
        .count("n_rounds", |r| Some(r.n_rounds));
    estimate(&mut out, "tau", |r| r.tau);
    averages(&mut out, "tau", |r| r.tau_averages);
    estimate(&mut out, "speedup_decode", |r| r.speedup_decode);
    averages(&mut out, "speedup_decode", |r| r.speedup_decode_averages);
    estimate(&mut out, "speedup_end_to_end", |r| r.speedup_end_to_end);
    averages(&mut out, "speedup_end_to_end", |r| {
        r.speedup_end_to_end_averages
    });
    estimate(&mut out, "throughput_ratio", |r| r.throughput_ratio);
    averages(&mut out, "throughput_ratio", |r| {
        r.throughput_ratio_averages
    });
    for convention in Convention::ALL {
        let name = format!("length_{}", convention.name());
        out.real(&name, |r| r.conventions.length(convention));
    }
    out.real("length_least", |r| r.conventions.spread().map(|s| s.0))
        .real("length_most", |r| r.conventions.spread().map(|s| s.1));
    for quarter in 0..4 {
        let name = format!("tau_quarter_{}", quarter + 1);
        out.real(&name, |r| r.tau_quarters[quarter]);
    }
    out.real("tokens_per_sec", |r| r.tokens_per_sec)
        .real("throughput_tokens_per_sec", |r| r.throughput)
        .real("accepted_share", |r| r.accepted_share)
        .real("repeated_share", |r| r.repeated_share)
        .count("n_loops", |r| Some(r.n_loops))
        .real("tau_without_loops", |r| r.tau_without_loops)
        .count("n_correct", |r| r.correct.map(|c| c.0 as u64))
        .count("n_checked", |r| r.correct.map(|c| c.1 as u64))
        .real("correct_low", |r| Some(r.correct_interval()?.0))
        .real("correct_high", |r| Some(r.correct_interval()?.1))
        .text("equality", |r| Some(verdict(r.equality).to_owned()))
        .count("n_equal", |r| compared(r.equality).map(|c| c.0))
        .count("n_compared", |r| compared(r.equality).map(|c| c.1))
        .text("trouble", |r| r.trouble.clone());
    out.finish()
}

fn estimate(
    out: &mut Builder<'_, LevelRow>,
    name: &str,
    of: impl Fn(&LevelRow) -> Option<Estimate>,
) {
    out.real(name, |r| of(r).map(|e| e.value))
        .real(&format!("{name}_low"), |r| Some(of(r)?.interval?.0))
        .real(&format!("{name}_high"), |r| Some(of(r)?.interval?.1));
}

fn averages(out: &mut Builder<'_, LevelRow>, name: &str, of: impl Fn(&LevelRow) -> Averages) {
    out.real(&format!("{name}_arithmetic_mean"), |r| of(r).arithmetic)
        .real(&format!("{name}_geometric_mean"), |r| of(r).geometric);
}

fn verdict(equality: Equality) -> &'static str {
    match equality {
        Equality::Reference => "reference",
        Equality::Exact { .. } => "exact",
        Equality::Law => "law",
        Equality::Unknown => "unknown",
    }
}

fn compared(equality: Equality) -> Option<(u64, u64)> {
    match equality {
        Equality::Exact { equal, of } => Some((equal as u64, of as u64)),
        _ => None,
    }
}

/// A column's name and what it reads.
type Field<T, V> = (&'static str, fn(&T) -> V);

/// One line a record: where it belongs, what came of it, and an answer's counts and times, rounds summed.
pub fn answer_columns(records: &[Record]) -> Columns {
    let mut out = Builder::new(records);
    out.text("run", |r| Some(r.run.clone()))
        .text("target", |r| Some(r.cell.target.clone()))
        .text("domain", |r| Some(Domain::of(&r.cell.suite).to_string()))
        .text("suite", |r| Some(r.cell.suite.clone()))
        .text("sampling", |r| Some(r.cell.sampling.to_string()))
        .text("thinking", |r| Some(r.cell.thinking.to_string()))
        .count("concurrency", |r| Some(r.cell.concurrency.into()))
        .text("arrivals", |r| Some(r.cell.arrivals.to_string()))
        .text("method", |r| Some(r.cell.method.clone()))
        .text("prompt", |r| Some(r.prompt.as_ref()?.id.clone()))
        .text("prompt_sha256", |r| Some(r.prompt.as_ref()?.sha256.clone()));
    let of_prompt: [Field<PromptKey, u32>; 4] = [
        ("sample", |p| p.sample),
        ("pass", |p| p.pass),
        ("turn", |p| p.turn),
        ("prompt_tokens", |p| p.n_tokens),
    ];
    for (name, of) in of_prompt {
        out.count(name, |r| Some(of(r.prompt.as_ref()?).into()));
    }
    out.text("outcome", |r| Some(outcome(&r.outcome).0.to_owned()))
        .text("why", |r| outcome(&r.outcome).1.map(str::to_owned))
        .text("tokens_sha256", |r| Some(answer(r)?.tokens_sha256.clone()))
        .text("ended", |r| Some(ended(answer(r)?.ended).to_owned()))
        .text("correct", |r| Some(answer(r)?.correct?.to_string()));
    let of_answer: [Field<Answer, u64>; 12] = [
        ("tokens", |a| a.n_tokens.into()),
        ("rounds", |a| a.rounds.committed.len() as u64),
        ("drafted", |a| sum(&a.rounds.drafted)),
        ("verified", |a| sum(&a.rounds.verified)),
        ("accepted", |a| sum(&a.rounds.accepted)),
        ("committed", |a| sum(&a.rounds.committed)),
        ("prefill_ns", |a| a.prefill_ns),
        ("decode_ns", |a| a.decode_ns),
        ("batch_ns", |a| a.batch_ns),
        ("admitted_ns", |a| a.timeline.admitted_ns),
        ("first_ns", |a| a.timeline.first_ns),
        ("finished_ns", |a| a.timeline.finished_ns()),
    ];
    for (name, of) in of_answer {
        out.count(name, |r| answer(r).map(of));
    }
    let of_phases: [Field<Phases, u64>; 8] = [
        ("phase_prefill_ns", |p| p.prefill_ns),
        ("phase_start_ns", |p| p.start_ns),
        ("phase_draft_ns", |p| p.draft_ns),
        ("phase_head_ns", |p| p.head_ns),
        ("phase_schedule_ns", |p| p.schedule_ns),
        ("phase_verify_ns", |p| p.verify_ns),
        ("phase_judge_ns", |p| p.judge_ns),
        ("phase_commit_ns", |p| p.commit_ns),
    ];
    for (name, of) in of_phases {
        out.count(name, |r| Some(of(&answer(r)?.phases)));
    }
    out.count("grams", |r| Some(answer(r)?.grams.total.into()))
        .count("repeated_grams", |r| Some(answer(r)?.grams.repeated.into()));
    out.finish()
}

fn answer(record: &Record) -> Option<&Answer> {
    match &record.outcome {
        Outcome::Ok(answer) => Some(answer),
        Outcome::Failed { .. } | Outcome::Skipped { .. } | Outcome::Started(_) => None,
    }
}

fn outcome(outcome: &Outcome) -> (&'static str, Option<&str>) {
    match outcome {
        Outcome::Ok(_) => ("ok", None),
        Outcome::Failed { why } => ("failed", Some(why)),
        Outcome::Skipped { why } => ("skipped", Some(why)),
        Outcome::Started(_) => ("started", None),
    }
}

fn ended(ended: Ended) -> &'static str {
    match ended {
        Ended::Stop => "stop",
        Ended::Length => "length",
    }
}

fn sum(list: &[u32]) -> u64 {
    list.iter().map(|x| u64::from(*x)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levels;
    use crate::record::tests::{answer, record};

    /// Names and the fields of line `row` of a CSV without quotes.
    fn fields(csv: &str, row: usize) -> Vec<(&str, &str)> {
        let line = |n| csv.lines().nth(n).unwrap().split(',');
        line(0).zip(line(row + 1)).collect()
    }

    #[test]
    fn a_level_has_its_numbers_in_named_columns() {
        let records = [
            record("vanilla", "a", answer(&[(0, 1); 6])),
            record("dflash", "a", answer(&[(2, 3), (2, 3)])),
        ];
        let columns = level_columns(&levels(&records));
        assert_eq!(columns.n_rows(), 8);
        let csv = columns.csv();
        let row = fields(&csv, 0);
        for want in [
            ("level", "suite"),
            ("target", "toy"),
            ("domain", "other"),
            ("suite", "mini"),
            ("sampling", "greedy"),
            ("thinking", "off"),
            ("concurrency", "1"),
            ("method", "dflash"),
            ("n_rounds", "2"),
            ("tau", "3"),
            ("tau_low", ""),
            ("speedup_decode", "1"),
            ("throughput_ratio", ""),
            ("length_completion_pooled", "3.5"),
            ("equality", "exact"),
            ("n_compared", "1"),
            ("trouble", ""),
        ] {
            assert!(row.contains(&want), "{want:?} in {row:?}");
        }
    }

    #[test]
    fn every_record_is_a_line_with_its_counts_and_times() {
        let mut failed = record("dflash", "b", answer(&[]));
        failed.outcome = Outcome::Failed { why: "nan".into() };
        failed.prompt = None;
        let csv = answer_columns(&[record("dflash", "a", answer(&[(2, 3), (1, 2)])), failed]).csv();
        assert_eq!(csv.lines().count(), 3);
        let row = fields(&csv, 0);
        for want in [
            ("prompt", "a"),
            ("prompt_tokens", "4"),
            ("outcome", "ok"),
            ("tokens", "6"),
            ("rounds", "2"),
            ("drafted", "6"),
            ("accepted", "3"),
            ("committed", "5"),
            ("prefill_ns", "50"),
            ("finished_ns", "5050"),
            ("ended", "stop"),
            ("correct", ""),
            ("grams", "10"),
        ] {
            assert!(row.contains(&want), "{want:?} in {row:?}");
        }
        let row = fields(&csv, 1);
        for want in [
            ("outcome", "failed"),
            ("why", "nan"),
            ("tokens", ""),
            ("prompt", ""),
        ] {
            assert!(row.contains(&want), "{want:?} in {row:?}");
        }
    }
}
