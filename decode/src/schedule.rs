/// Time of one step as a function of the rows it verifies, measured on the running engine.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCost {
    /// `(rows, nanoseconds)`, rows rising.
    points: Vec<(usize, f64)>,
}

impl StepCost {
    /// From measured `(rows, nanoseconds)` points in any order; of equal rows the first is kept.
    pub fn new(mut points: Vec<(usize, f64)>) -> Self {
        points.sort_by_key(|p| p.0);
        points.dedup_by_key(|p| p.0);
        Self { points }
    }

    /// Nothing measured: every step costs the same.
    pub fn flat() -> Self {
        Self { points: Vec::new() }
    }

    /// Steps a second at `rows` rows: the last measured point not above `rows`, or the first one.
    pub fn steps_per_sec(&self, rows: usize) -> f64 {
        let at = self.points.partition_point(|p| p.0 <= rows);
        match self.points.get(at.saturating_sub(1)) {
            Some((_, ns)) if *ns > 0.0 => 1e9 / ns,
            _ => 1.0,
        }
    }
}

/// Chance that slot k and all before it are accepted: the running product of the confidences.
pub fn survival(confidence: &[f32]) -> Vec<f32> {
    confidence
        .iter()
        .scan(1.0, |product, c| {
            *product *= c;
            Some(*product)
        })
        .collect()
}

/// Decides how many drafts of each row are verified.
pub trait Scheduler {
    /// `survival[r][k]`: chance that slots `0..=k` of row r are all accepted; 1 for a method without confidences.
    /// Returns one length a row, at most `survival[r].len()`.
    ///
    /// The decision about slot k may use only what was known before slot k's token was drawn, which is
    /// `survival[r][..=k]` and other rows; otherwise the law of the text bends.
    fn lengths(&mut self, survival: &[Vec<f32>], cost: &StepCost) -> Vec<usize>;
}

/// Verifies every draft.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerifyAll;

impl Scheduler for VerifyAll {
    fn lengths(&mut self, survival: &[Vec<f32>], _cost: &StepCost) -> Vec<usize> {
        survival.iter().map(Vec::len).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_costs_what_the_last_point_below_cost() {
        let cost = StepCost::new(vec![(8, 2e9), (1, 1e9), (4, 1.25e9)]);
        let got: Vec<f64> = [0, 1, 3, 4, 7, 8, 99]
            .iter()
            .map(|n| cost.steps_per_sec(*n))
            .collect();
        assert_eq!(got, [1.0, 1.0, 1.0, 0.8, 0.8, 0.5, 0.5]);
        assert_eq!(StepCost::flat().steps_per_sec(5), 1.0);
    }

    #[test]
    fn survival_is_the_running_product() {
        assert_eq!(survival(&[0.5, 0.5, 0.5, 0.5]), [0.5, 0.25, 0.125, 0.0625]);
    }
}
