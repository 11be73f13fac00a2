//! L3: time against the reference, in blocks that were timed interleaved.
//!
//! A drafting method is judged by its speedup, so that a machine that is slower as a whole cancels out; vanilla, whose
//! speedup is 1, by its throughput, so that a slower target does not hide behind it.

use super::acceptance::{family, judge, left_out, pair};
use super::{Check, GateError, GateInput, Policy, Verdict};
use crate::paired::{Effect, Figure, Pairs, other_machine, percent};
use crate::rank::{hodges_lehmann, least_values};
use crate::run_data::{PoolKey, RunData};

/// Two runs of one program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Control<'a> {
    base: &'a RunData,
    null: &'a RunData,
}

/// The run that the null control repeats: the one of the same program.
pub(super) fn control<'a>(
    input: GateInput<'a>,
    null: &'a RunData,
) -> Result<Control<'a>, GateError> {
    let bases = [input.reference, input.candidate];
    // As the control of the other one it would measure what is judged.
    if let Some(base) = bases
        .iter()
        .find(|run| run.identity.run == null.identity.run)
    {
        return Err(GateError::NullIsItself {
            label: null.label.clone(),
            base: base.label.clone(),
        });
    }
    let is_same = |run: &&RunData| run.identity.program == null.identity.program;
    match bases.into_iter().find(is_same) {
        Some(base) => Ok(Control { base, null }),
        None => Err(GateError::ForeignNull {
            label: null.label.clone(),
            program: null.identity.program.clone(),
        }),
    }
}

/// One check a pool of the reference.
pub(super) fn checks(
    old: &RunData,
    new: &RunData,
    control: Option<Control<'_>>,
    policy: &Policy,
) -> Vec<Check> {
    if let Some(why) = other_machine(old, new) {
        return vec![Check::new("machine", Verdict::Incomparable, why)];
    }
    let methods = &policy.acceptance.methods;
    let is_judged = |pool: &PoolKey| {
        pool.method == "vanilla" || methods.is_empty() || methods.contains(&pool.method)
    };
    let pools: Vec<PoolKey> = old.pools().into_iter().filter(is_judged).collect();
    let confidence = family(policy.confidence, pools.len());
    let check = |pool: &PoolKey| {
        let (verdict, detail, effect) = match pair(old, new, pool, policy) {
            Err(why) => (Verdict::Incomparable, why, None),
            Ok(pairs) => {
                let effect = effect(&pairs, pool, confidence);
                let (verdict, detail) = verdict(pool, &pairs, effect, control, policy, confidence);
                (verdict, detail, effect)
            }
        };
        Check {
            effect: effect.map(|e| (figure(pool), e)),
            ..Check::new(pool.to_string(), verdict, detail)
        }
    };
    pools.iter().map(check).collect()
}

fn figure(pool: &PoolKey) -> Figure {
    match pool.method.as_str() {
        "vanilla" => Figure::Throughput,
        _ => Figure::Speedup,
    }
}

fn effect(pairs: &Pairs, pool: &PoolKey, confidence: f64) -> Option<Effect> {
    let changes = pairs.blocks.values().filter_map(|b| b.change(figure(pool)));
    hodges_lehmann(&changes.collect::<Vec<f64>>(), confidence)
}

fn verdict(
    pool: &PoolKey,
    pairs: &Pairs,
    effect: Option<Effect>,
    control: Option<Control<'_>>,
    policy: &Policy,
    confidence: f64,
) -> (Verdict, String) {
    let of = &policy.throughput;
    let figure = figure(pool);
    // A block without vanilla's answers has no speedup.
    let of_figure = pairs.blocks.values().filter_map(|b| b.change(figure));
    let n = of_figure.count();
    let least = of.min_blocks.max(least_values(confidence));
    let Some(effect) = effect.filter(|_| n >= least) else {
        let why = format!(
            "{n} blocks, fewer than {least}, the most of min_blocks and of what the confidence needs for all pools together: take more prompts, or passes above concurrency 1"
        );
        return (Verdict::Inconclusive, why);
    };
    let (verdict, why) = judge(&effect, of.max_drop, of.excluded_drop, confidence);
    let left_out = left_out(pairs);
    let detail = format!("{figure} {effect} over {n} blocks{why}{left_out}");
    match control.map(|control| unclean(control, pool, policy, confidence)) {
        Some(Err(why)) => (Verdict::Inconclusive, format!("{detail}; {why}")),
        Some(Ok(clean)) => (verdict, format!("{detail}; {clean}")),
        None => (verdict, detail),
    }
}

/// What the null control of a pool says: that it is clean, or as an error why it is not.
fn unclean(
    control: Control<'_>,
    pool: &PoolKey,
    policy: &Policy,
    confidence: f64,
) -> Result<String, String> {
    let Control { base, null } = control;
    let not = |why: String| format!("the null control is not clean: {why}");
    if let Some(why) = other_machine(base, null) {
        return Err(not(why));
    }
    let pairs = pair(base, null, pool, policy).map_err(not)?;
    let effect =
        effect(&pairs, pool, confidence).ok_or_else(|| not("too few blocks".to_owned()))?;
    let moved = percent(effect.log_ratio);
    match effect.log_ratio.abs() <= policy.throughput.null_tolerance {
        true => Ok(format!("the null control moved by {moved} %")),
        false => Err(not(format!("the same program moved by {moved} %"))),
    }
}
