//! How far a drafter's confidences can be believed, and the temperatures that make them more so.

/// Bins of equal width over 0 to 1 in a reported calibration error.
const REPORT_BINS: usize = 20;
/// Bins of the error that a fit makes small.
const FIT_BINS: usize = 15;
/// Temperatures a fit tries: `10^(i / 20)` for i of -20 to 20.
const FIT_STEPS: i32 = 20;
/// A confidence is moved this far away from 0 and 1, where it has no logit.
const EDGE: f64 = 1e-8;

/// One round of one answer, as its record holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatedRound<'a> {
    /// Chance of each slot, given that those before it are accepted; one for each draft, cut or not.
    pub confidence: &'a [f32],
    /// Drafts verified: those behind were cut and nothing is known about them.
    pub verified: usize,
    /// Drafts accepted.
    pub accepted: usize,
}

/// A claim and what became of it.
pub type Claim = (f64, bool);

/// How well a set of claims fits what became of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Claims.
    pub n: usize,
    /// Mean of the claims.
    pub claimed: f64,
    /// Share that came true.
    pub accepted: f64,
    /// Expected calibration error: mean over claims of |mean claim - share accepted| of the claim's bin; 20 bins of
    /// equal width.
    pub ece: f64,
    /// Chance that a claim which came true is above one which did not, equal ones counting half; `None` if all came
    /// true or none.
    pub auroc: Option<f64>,
    /// Mean of (claim - outcome)^2.
    pub brier: f64,
}

impl Calibration {
    /// `None` without claims.
    pub fn of(claims: &[Claim]) -> Option<Self> {
        if claims.is_empty() {
            return None;
        }
        let mean = |value: &dyn Fn(&Claim) -> f64| {
            claims.iter().map(value).sum::<f64>() / claims.len() as f64
        };
        Some(Self {
            n: claims.len(),
            claimed: mean(&|c| c.0),
            accepted: mean(&|c| outcome(c.1)),
            ece: ece(claims, REPORT_BINS),
            auroc: auroc(claims),
            brier: mean(&|c| (c.0 - outcome(c.1)).powi(2)),
        })
    }

    /// One entry a slot, over the rounds that reached it: all drafts before it were accepted and it was verified.
    /// `None` for a slot that no round reached.
    pub fn by_slot(rounds: &[RatedRound<'_>]) -> Vec<Option<Self>> {
        (0..n_slots(rounds))
            .map(|slot| {
                let reached = rounds.iter().filter(|r| {
                    slot <= r.accepted && slot < r.verified && slot < r.confidence.len()
                });
                let claims: Vec<Claim> = reached
                    .map(|r| (f64::from(r.confidence[slot]), slot < r.accepted))
                    .collect();
                Self::of(&claims)
            })
            .collect()
    }
}

/// Sequential temperature scaling: one temperature a slot, from left to right. Each is the one among 41 from 0.1 to 10
/// that leaves the least calibration error (15 bins) in the running product of confidences up to its slot, those
/// before it scaled already; of equals the one nearest to 1. A slot that no round verified gets 1.
///
/// `rounds` must hold confidences as trained, at best of a run that verified every draft: rounds whose slot was cut do
/// not count for it. The scaled confidence is `sigmoid(logit(confidence) / temperature)`.
///
/// Source: DSpark (arXiv 2607.05147), sequential temperature scaling; grid and bins of SGLang's fit.
pub fn fit_temperatures(rounds: &[RatedRound<'_>]) -> Vec<f64> {
    // Running products up to the slot before, all temperatures known.
    let mut before = vec![1.0; rounds.len()];
    let mut temperatures = Vec::new();
    for slot in 0..n_slots(rounds) {
        let error = |temperature: f64| {
            let products = products(rounds, &before, slot, temperature);
            let known = rounds.iter().zip(products);
            let claims: Vec<Claim> = known
                .filter(|(r, _)| slot < r.verified)
                .filter_map(|(r, product)| Some((product?, slot < r.accepted)))
                .collect();
            ece(&claims, FIT_BINS)
        };
        let mut best = (1.0, error(1.0));
        for step in (1..=FIT_STEPS).flat_map(|i| [i, -i]) {
            let temperature = 10f64.powf(f64::from(step) / f64::from(FIT_STEPS));
            let error = error(temperature);
            if error < best.1 {
                best = (temperature, error);
            }
        }
        let best_products = products(rounds, &before, slot, best.0);
        for (before, product) in before.iter_mut().zip(best_products) {
            *before = product.unwrap_or(*before);
        }
        temperatures.push(best.0);
    }
    temperatures
}

/// `before` times each round's confidence in `slot` at a temperature; `None` for a round that drafted less.
fn products(
    rounds: &[RatedRound<'_>],
    before: &[f64],
    slot: usize,
    temperature: f64,
) -> Vec<Option<f64>> {
    let product = |(round, before): (&RatedRound<'_>, &f64)| {
        let own = f64::from(*round.confidence.get(slot)?);
        Some(before * scale(own, temperature))
    };
    rounds.iter().zip(before).map(product).collect()
}

/// A confidence at a temperature; 1 leaves it as it is, up to rounding.
fn scale(confidence: f64, temperature: f64) -> f64 {
    let inside = confidence.clamp(EDGE, 1.0 - EDGE);
    let logit = (inside / (1.0 - inside)).ln();
    1.0 / (1.0 + (-logit / temperature).exp())
}

fn n_slots(rounds: &[RatedRound<'_>]) -> usize {
    rounds.iter().map(|r| r.confidence.len()).max().unwrap_or(0)
}

fn outcome(accepted: bool) -> f64 {
    f64::from(u8::from(accepted))
}

/// 0 without claims.
fn ece(claims: &[Claim], n_bins: usize) -> f64 {
    // Claim minus outcome, summed: |sum of a bin| is its share of claims times the gap of its means.
    let mut gaps = vec![0.0; n_bins];
    for (claim, accepted) in claims {
        let bin = (claim * n_bins as f64) as usize;
        gaps[bin.min(n_bins - 1)] += claim - outcome(*accepted);
    }
    let total: f64 = gaps.iter().map(|gap: &f64| gap.abs()).sum();
    total / claims.len().max(1) as f64
}

fn auroc(claims: &[Claim]) -> Option<f64> {
    let mut sorted: Vec<&Claim> = claims.iter().collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut wins, mut refused_below, mut n_accepted) = (0.0, 0.0, 0.0);
    for equal in sorted.chunk_by(|a, b| a.0 == b.0) {
        let accepted = equal.iter().filter(|c| c.1).count() as f64;
        let refused = equal.len() as f64 - accepted;
        wins += accepted * (refused_below + refused / 2.0);
        refused_below += refused;
        n_accepted += accepted;
    }
    let pairs = n_accepted * refused_below;
    (pairs > 0.0).then(|| wins / pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-12, "got {got}, want {want}");
    }

    fn round(confidence: &[f32], verified: usize, accepted: usize) -> RatedRound<'_> {
        RatedRound {
            confidence,
            verified,
            accepted,
        }
    }

    #[test]
    fn claims_are_scored_as_by_hand() {
        // Bins of 0.05: the two claims of 0.8 share one, with half of them true; 0.3 and 0.6 stand alone.
        let claims = [(0.8, true), (0.8, false), (0.3, false), (0.6, true)];
        let scored = Calibration::of(&claims).unwrap();
        assert_eq!(scored.n, 4);
        near(scored.claimed, 0.625);
        near(scored.accepted, 0.5);
        near(scored.ece, (2.0 * 0.3 + 0.3 + 0.4) / 4.0);
        near(scored.brier, (0.04 + 0.64 + 0.09 + 0.16) / 4.0);
        // Accepted 0.8 beats 0.3 and ties 0.8; accepted 0.6 beats 0.3 and loses to 0.8.
        near(scored.auroc.unwrap(), (1.0 + 0.5 + 1.0 + 0.0) / 4.0);
    }

    #[test]
    fn ranking_is_whole_where_outcomes_are_apart_and_missing_where_they_are_one() {
        let auroc = |claims: &[Claim]| Calibration::of(claims).unwrap().auroc;
        assert_eq!(auroc(&[(0.1, false), (0.2, false), (0.9, true)]), Some(1.0));
        assert_eq!(auroc(&[(0.1, true), (0.9, false)]), Some(0.0));
        assert_eq!(auroc(&[(0.5, true), (0.5, false)]), Some(0.5));
        assert_eq!(auroc(&[(0.5, true), (0.7, true)]), None);
        assert_eq!(Calibration::of(&[]), None);
    }

    #[test]
    fn the_last_bin_holds_a_claim_of_one() {
        near(ece(&[(1.0, true), (0.96, false)], 20), 0.48);
    }

    #[test]
    fn only_rounds_that_reach_a_slot_speak_about_it() {
        let rounds = [
            round(&[0.9, 0.8, 0.7], 3, 3),
            round(&[0.6, 0.5, 0.4], 3, 1),
            round(&[0.3, 0.2, 0.1], 3, 0),
            // Cut after its first draft, which was accepted.
            round(&[0.7, 0.5, 0.5], 1, 1),
        ];
        let slots = Calibration::by_slot(&rounds);
        let seen: Vec<(usize, f64)> = slots.iter().flatten().map(|c| (c.n, c.accepted)).collect();
        assert_eq!(seen, [(4, 0.75), (2, 0.5), (1, 1.0)]);
        near(slots[1].unwrap().claimed, (f64::from(0.8f32) + 0.5) / 2.0);
        let unreached = Calibration::by_slot(&[round(&[0.5, 0.5], 2, 0)]);
        assert!(unreached[0].is_some() && unreached[1].is_none());
        assert!(Calibration::by_slot(&[]).is_empty());
    }

    /// Rounds whose slots are accepted as often as two claims a slot say, the logits then multiplied by `sharper`.
    fn overconfident(sharper: [f64; 3]) -> (Vec<[f32; 3]>, Vec<usize>) {
        let claim = |high: bool| if high { 0.8 } else { 0.6 };
        let shown = |high: bool, slot: usize| scale(claim(high), 1.0 / sharper[slot]) as f32;
        let (mut confidences, mut accepted) = (Vec::new(), Vec::new());
        for kind in 0..8 {
            let high = [kind & 1 > 0, kind & 2 > 0, kind & 4 > 0];
            let confidence = [0, 1, 2].map(|slot| shown(high[slot], slot));
            // 1000 rounds, the exact shares of them ending at each slot.
            let mut survivors = 1000.0;
            for (slot, high) in high.into_iter().enumerate() {
                let next = survivors * claim(high);
                let n_ending = (survivors - next).round() as usize;
                accepted.extend(vec![slot; n_ending]);
                survivors = next.round();
            }
            accepted.extend(vec![3; survivors as usize]);
            confidences.resize(accepted.len(), confidence);
        }
        (confidences, accepted)
    }

    #[test]
    fn fitted_temperatures_undo_known_ones() {
        let sharper = [2, -6, 5].map(|step| 10f64.powf(f64::from(step) / 20.0));
        let (confidences, accepted) = overconfident(sharper);
        let rounds: Vec<RatedRound<'_>> = confidences
            .iter()
            .zip(accepted)
            .map(|(confidence, accepted)| round(confidence, 3, accepted))
            .collect();
        let fitted = fit_temperatures(&rounds);
        for (fitted, sharper) in fitted.iter().zip(sharper) {
            near(*fitted, sharper);
        }
    }

    #[test]
    fn what_says_nothing_leaves_a_temperature_at_one() {
        assert!(fit_temperatures(&[]).is_empty());
        assert_eq!(fit_temperatures(&[round(&[0.5, 0.9], 0, 0)]), [1.0, 1.0]);
        // Half of the claims of 0.5 come true: no temperature moves them.
        let rounds = [round(&[0.5], 1, 1), round(&[0.5], 1, 0)];
        assert_eq!(fit_temperatures(&rounds), [1.0]);
    }
}
