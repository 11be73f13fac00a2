//! L2: acceptance length against the reference, paired by prompt.

use super::lossless::Moved;
use super::policy::Drafters;
use super::{Check, Policy, Verdict};
use crate::bootstrap::Draws;
use crate::paired::{DrafterRule, Effect, Figure, Pairs, mismatch, percent};
use crate::rank::least_values;
use crate::record::Cell;
use crate::run_data::{PoolKey, RunData};

/// One check a drafting method's pool of the reference.
pub(super) fn checks(old: &RunData, new: &RunData, policy: &Policy) -> Vec<Check> {
    let methods = &policy.acceptance.methods;
    let is_judged = |pool: &PoolKey| {
        pool.method != "vanilla" && (methods.is_empty() || methods.contains(&pool.method))
    };
    let pools = old.pools().into_iter().filter(is_judged);
    let paired: Vec<(PoolKey, Result<Pairs, String>)> = pools
        .map(|pool| {
            let pairs = pair(old, new, &pool, policy);
            (pool, pairs)
        })
        .collect();
    // A pool whose rounds are all the reference's leaves nothing to chance.
    let can_err = |p: &&(PoolKey, Result<Pairs, String>)| matches!(&p.1, Ok(p) if !p.same_rounds);
    let n_tests = paired.iter().filter(can_err).count();
    let missing = methods
        .iter()
        .filter(|m| paired.iter().all(|(p, _)| p.method != **m));
    let missing = missing.map(|method| {
        let why = "acceptance.methods names it, and the reference has no answer of it";
        Check::new(method, Verdict::Incomparable, why)
    });
    let judged = paired.iter().map(|(pool, pairs)| match pairs {
        Err(why) => Check::new(pool.to_string(), Verdict::Incomparable, why),
        Ok(pairs) => check(pool, pairs, family(policy.confidence, n_tests), policy),
    });
    judged.chain(missing).collect()
}

/// The confidence of each of `n` intervals that hold together.
pub(super) fn family(confidence: f64, n: usize) -> f64 {
    1.0 - (1.0 - confidence) / n.max(1) as f64
}

/// The answers of a pool, or why the two runs are no pair.
pub(super) fn pair(
    old: &RunData,
    new: &RunData,
    pool: &PoolKey,
    policy: &Policy,
) -> Result<Pairs, String> {
    let rule = match policy.acceptance.drafters {
        Drafters::Same => DrafterRule::Same,
        Drafters::Any => DrafterRule::Any,
    };
    let cells: Vec<_> = old.of_pool(pool).map(|(cell, _)| cell).collect();
    for cell in &cells {
        let now = new.cells.get(cell).filter(|data| !data.answers.is_empty());
        if now.is_none() {
            let data = new.cells.get(cell);
            let why = data
                .and_then(|d| d.trouble.as_deref())
                .unwrap_or("it was not measured");
            return Err(format!(
                "suite {}: the candidate has no answer: {why}",
                cell.suite
            ));
        }
        if let Some(why) = mismatch(old, new, cell, rule) {
            return Err(why);
        }
    }
    // Tau of another text is another figure; vanilla's own is 1 whatever it writes.
    let moved = match pool.method.as_str() {
        "vanilla" => Moved::default(),
        _ => Moved::between(old, new),
    };
    let is_left = |cell: &Cell, id: &str| !moved.holds(cell, id);
    let pairs = Pairs::of_prompts(old, new, cells.iter().copied(), &is_left);
    // Later turns depend on what was answered before.
    let n = pairs.n_lost_prompts;
    match n {
        0 if pairs.n_pairs == 0 => Err(
            "vanilla's greedy text is the reference's in no prompt: record a new reference".into(),
        ),
        0 => Ok(pairs),
        n => Err(format!(
            "suite: {n} answers of the reference are missing; ask the same prompts, samples and passes"
        )),
    }
}

fn check(pool: &PoolKey, pairs: &Pairs, confidence: f64, policy: &Policy) -> Check {
    let of = &policy.acceptance;
    let total = pairs.total();
    let (Some(before), Some(now)) = (total.old.tau(), total.new.tau()) else {
        return Check::new(
            pool.to_string(),
            Verdict::Inconclusive,
            "no round in any answer",
        );
    };
    let draws = Draws {
        resamples: policy.resamples,
        confidence,
    };
    let n = pairs.prompts.len();
    let effect = pairs.effect(Figure::Tau, draws);
    let taus = format!("tau {before:.3} > {now:.3}");
    let (verdict, detail) = match effect {
        _ if pairs.same_rounds => (
            Verdict::Pass,
            format!("{taus}, every round is the reference's"),
        ),
        _ if n < of.min_prompts => {
            let why = format!(
                "{taus}: {n} prompts, fewer than {}: take more",
                of.min_prompts
            );
            (Verdict::Inconclusive, why)
        }
        None => (Verdict::Inconclusive, format!("{taus}: no interval")),
        Some(effect) => {
            let (verdict, why) = judge(&effect, of.max_drop, of.excluded_drop, confidence);
            (verdict, format!("{taus}, {effect} over {n} prompts{why}"))
        }
    };
    let share = pairs.grams.0 as f64 / pairs.grams.1.max(1) as f64;
    let (verdict, mut detail) = match share > of.max_repeated && verdict == Verdict::Pass {
        true => (
            Verdict::Inconclusive,
            format!(
                "{detail}; {:.0} % of 8-grams are repeated, and loops are easy to draft",
                share * 100.0
            ),
        ),
        false => (verdict, detail),
    };
    if verdict == Verdict::Fail
        && let Some((slot, before, now)) = pairs.worst_slot()
    {
        detail.push_str(&format!(
            "; most is lost at draft {slot} of a round, accepted {before:.3} > {now:.3}"
        ));
    }
    detail.push_str(&left_out(pairs));
    Check {
        effect: effect.map(|e| (Figure::Tau, e)),
        ..Check::new(pool.to_string(), verdict, detail)
    }
}

/// What to add to a line where answers are not compared.
pub(super) fn left_out(pairs: &Pairs) -> String {
    match pairs.n_left_out {
        0 => String::new(),
        n => format!("; {n} answers are left out, since vanilla's text is another there"),
    }
}

/// The verdict on an interval, and what to add to its line. To pass it must exclude `excluded_drop`, and be no drop
/// without doubt whose estimate is beyond `max_drop`.
pub(super) fn judge(
    effect: &Effect,
    max_drop: f64,
    excluded_drop: f64,
    confidence: f64,
) -> (Verdict, String) {
    let bound = |drop: f64| (-drop).ln_1p();
    let is_down = effect.high < bound(max_drop);
    if is_down && effect.is_degenerate() && effect.n < least_values(confidence) {
        let why = ": all differ by one factor, and so few may do so by chance";
        return (Verdict::Inconclusive, why.to_owned());
    }
    if is_down {
        let why = format!(", wholly below {} %", percent(bound(max_drop)));
        return (Verdict::Fail, why);
    }
    if effect.low < bound(excluded_drop) {
        let drop = percent(bound(excluded_drop));
        let why = format!(", which does not exclude {drop} %: take more prompts");
        return (Verdict::Inconclusive, why);
    }
    if effect.high < 0.0 && effect.log_ratio < bound(max_drop) {
        let drop = percent(bound(max_drop));
        let why = format!(", a drop, and likely of more than {drop} %: take more prompts");
        return (Verdict::Inconclusive, why);
    }
    (Verdict::Pass, String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_that_is_certain_and_likely_beyond_what_is_allowed_does_not_pass() {
        let said = |percents: [f64; 3]| {
            let [low, log_ratio, high] = percents.map(|p| (p / 100.0).ln_1p());
            let effect = Effect {
                log_ratio,
                low,
                high,
                n: 100,
            };
            judge(&effect, 0.01, 0.05, 0.95).0
        };
        for (percents, want) in [
            ([-4.9, -2.9, -1.1], Verdict::Fail),
            ([-4.9, -2.9, -0.9], Verdict::Inconclusive),
            ([-4.9, -1.1, -0.1], Verdict::Inconclusive),
            // As small as is allowed, or no drop for sure.
            ([-1.5, -0.9, -0.1], Verdict::Pass),
            ([-4.9, -2.0, 0.1], Verdict::Pass),
            ([-5.1, -0.5, 3.0], Verdict::Inconclusive),
            ([0.5, 2.0, 3.0], Verdict::Pass),
        ] {
            assert_eq!(said(percents), want, "{percents:?}");
        }
    }
}
