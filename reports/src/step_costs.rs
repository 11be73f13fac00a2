//! What steps of a target cost by their rows, as `draftbench cost` measured them.

/// Medians by size; between two sizes the cost is on their line, beyond the last it is not known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepCosts {
    /// What they were measured on and with, for a note.
    pub what: String,
    /// Rows of one sequence and nanoseconds: a verify pass.
    pub rows: Vec<(usize, u64)>,
    /// Sequences of a row each and nanoseconds: a step of vanilla.
    pub sequences: Vec<(usize, u64)>,
}

impl StepCosts {
    /// Cost of a verify pass of so many rows in steps of vanilla with so many sequences; `None` outside the sizes that
    /// were measured. Rows of several sequences are taken to cost what as many rows of one do.
    pub fn of_pass(&self, rows: f64, sequences: f64) -> Option<f64> {
        let step = match self.sequences.is_empty() {
            // Without a table of its own one sequence is one row.
            true if sequences == 1.0 => at(&self.rows, 1.0)?,
            _ => at(&self.sequences, sequences)?,
        };
        Some(at(&self.rows, rows)? / step)
    }
}

/// The cost of a size, on the line between its neighbours.
fn at(points: &[(usize, u64)], size: f64) -> Option<f64> {
    let mut points: Vec<(f64, f64)> = points.iter().map(|p| (p.0 as f64, p.1 as f64)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let above = points.iter().position(|p| p.0 >= size)?;
    let high = points[above];
    if high.0 == size {
        return Some(high.1);
    }
    let low = points[above.checked_sub(1)?];
    let part = (size - low.0) / (high.0 - low.0);
    Some(low.1 + part * (high.1 - low.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_costs_what_lies_between_measured_sizes_and_nothing_is_made_up_beyond() {
        let costs = StepCosts {
            what: String::new(),
            rows: vec![(8, 300), (1, 100)],
            sequences: vec![(1, 100), (4, 150)],
        };
        assert_eq!(costs.of_pass(8.0, 1.0), Some(3.0));
        assert_eq!(costs.of_pass(4.5, 1.0), Some(2.0));
        assert_eq!(costs.of_pass(8.0, 4.0), Some(2.0));
        assert_eq!(costs.of_pass(9.0, 4.0), None);
        assert_eq!(costs.of_pass(8.0, 8.0), None);
        assert_eq!(costs.of_pass(0.5, 1.0), None);
        let rows_alone = StepCosts {
            sequences: Vec::new(),
            ..costs
        };
        assert_eq!(rows_alone.of_pass(8.0, 1.0), Some(3.0));
        assert_eq!(rows_alone.of_pass(8.0, 2.0), None);
    }
}
