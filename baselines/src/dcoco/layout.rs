//! Tensors of a corrector: three layouts that the published parameter counts allow.

use models::Weights;
use serde::Deserialize;

use crate::Error;

/// Prefix of every tensor of a corrector.
const PREFIX: &str = "corrector.";

/// How a corrector makes its inputs. Each has 2,229,505 parameters at H = 4096 and 1,443,073 at H = 2560 with widths
/// of 128 and 256 hidden units, which is what the released checkpoints count.
///
/// `E(v)` is the target's embedding of token v, `h_i` the trunk's state of slot i, `u_i(v)` the trunk's log-probability
/// of v at slot i. A pair is candidate `a` of slot i - 1 and candidate `b` of slot i. Source: the counts `512 H + 132,353`
/// of the model cards; which of the three the authors use is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Layout {
    /// `c = Wc [E(v); h_i] + bc` for both sides, `s = Ws [h_(i-1); h_i] + bs`; the network reads
    /// `[c_a; c_b; c_a * c_b; s; u_a; u_b]`.
    L1,
    /// `o = Wo E(v)`, `n = Wn E(v)`, `s = Ws [h_(i-1); h_i]` without biases; the network reads
    /// `[o_a; n_b; o_a * n_b; s; u_a; u_b; u]`. Assumption: the third score `u` is that of the slot's first candidate.
    L2,
    /// `o = Wo E(v) + bo`, `n = Wn E(v) + bn`, `l = Wl h_(i-1) + bl`, `r = Wr h_i + br`; the network reads
    /// `[o_a; n_b; l; r; u_b]`.
    L3,
}

/// Sizes of a corrector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorrectorSizes {
    /// Width of the trunk and of the target's embedding, H.
    pub hidden: usize,
    /// Width of a candidate's vector.
    pub candidate: usize,
    /// Width of a pair state, in [`Layout::L3`] of each half.
    pub pair: usize,
    /// Hidden units of the scoring network.
    pub units: usize,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Self; 3] = [Self::L1, Self::L2, Self::L3];

    /// Values the scoring network reads.
    pub fn inputs(self, sizes: &CorrectorSizes) -> usize {
        let (r, p) = (sizes.candidate, sizes.pair);
        match self {
            Self::L1 => 3 * r + p + 2,
            Self::L2 => 3 * r + p + 3,
            Self::L3 => 2 * r + 2 * p + 1,
        }
    }

    /// Names and shapes of all tensors, as they lie in the checkpoint. Assumption: the authors' names are not known.
    pub fn tensors(self, sizes: &CorrectorSizes) -> Vec<(String, Vec<usize>)> {
        let CorrectorSizes {
            hidden: h,
            candidate: r,
            pair: p,
            units: f,
        } = *sizes;
        let projections: &[(&str, [usize; 2], bool)] = match self {
            Self::L1 => &[("candidate", [r, 2 * h], true), ("pair", [p, 2 * h], true)],
            Self::L2 => &[
                ("candidate_out", [r, h], false),
                ("candidate_in", [r, h], false),
                ("pair", [p, 2 * h], false),
            ],
            Self::L3 => &[
                ("candidate_out", [r, h], true),
                ("candidate_in", [r, h], true),
                ("pair_left", [p, h], true),
                ("pair_right", [p, h], true),
            ],
        };
        let mlp = [
            ("mlp.0", [f, self.inputs(sizes)], true),
            ("mlp.2", [1, f], true),
        ];
        let mut tensors = Vec::new();
        for (name, shape, has_bias) in projections.iter().copied().chain(mlp) {
            tensors.push((format!("{PREFIX}{name}.weight"), shape.to_vec()));
            if has_bias {
                tensors.push((format!("{PREFIX}{name}.bias"), vec![shape[0]]));
            }
        }
        tensors
    }

    /// How many values those are.
    pub fn parameters(self, sizes: &CorrectorSizes) -> usize {
        let tensors = self.tensors(sizes);
        tensors
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum()
    }

    /// The layout all of whose tensors the checkpoint has in the shape that the sizes want, L1 of random weights; `file` is
    /// what the error names.
    ///
    /// # Errors
    /// [`Error::Config`] if there is none, with what each layout lacks.
    pub(crate) fn of(weights: &Weights, sizes: &CorrectorSizes, file: &str) -> crate::Result<Self> {
        if weights.is_random() {
            return Ok(Self::L1);
        }
        let mut why = "the corrector's tensors fit no layout".to_owned();
        for layout in Self::ALL {
            let is_wrong = |(name, shape): &(String, Vec<usize>)| {
                weights.shape(name) != Some(shape.as_slice())
            };
            let Some((name, want)) = layout.tensors(sizes).into_iter().find(is_wrong) else {
                return Ok(layout);
            };
            let got = match weights.shape(&name) {
                Some(shape) => format!("is {shape:?}"),
                None => "is missing".to_owned(),
            };
            why.push_str(&format!("; {layout:?}: {name:?} {got}, wanted {want:?}"));
        }
        let file = file.to_owned();
        Err(Error::Config { file, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_has_the_published_number_of_parameters() {
        for (hidden, want) in [(4096, 2_229_505), (2560, 1_443_073), (2048, 1_180_929)] {
            let sizes = CorrectorSizes {
                hidden,
                candidate: 128,
                pair: 128,
                units: 256,
            };
            for layout in Layout::ALL {
                assert_eq!(layout.parameters(&sizes), want, "{layout:?} at {hidden}");
            }
        }
    }
}
