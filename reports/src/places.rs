//! Which numbers of a column may be called best, and which of them are: one rule for pages and papers.

use crate::metrics::{CellStats, Equality};

/// Place of a number; equal numbers share theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// The largest.
    Best,
    /// The largest of the rest.
    Second,
    /// Any other, and vanilla.
    Other,
}

/// Why a cell's numbers have no place among those of other methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unranked {
    /// Greedy text that is not vanilla's: its times and rounds are of other text.
    Differs,
    /// Text that repeats itself, which drafts easily.
    Loops,
}

impl Unranked {
    /// `None` if the cell may be ranked. Without a vanilla beside it a cell has no speedup, and no text to differ from.
    pub(crate) fn of(stat: &CellStats) -> Option<Self> {
        match stat.equality {
            Equality::Exact { equal, of } if equal < of && stat.speedup.is_some() => {
                Some(Self::Differs)
            }
            _ => stat.is_degenerate().then_some(Self::Loops),
        }
    }

    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Differs => "text differs from vanilla's: not ranked",
            Self::Loops => "looping text: not ranked",
        }
    }
}

/// The place of each number that may be ranked, the larger the better. Alone in its column a number is neither best
/// nor second.
pub(crate) fn places(values: &[Option<f64>]) -> Vec<Rank> {
    let mut places = vec![Rank::Other; values.len()];
    if values.iter().flatten().count() < 2 {
        return places;
    }
    for rank in [Rank::Best, Rank::Second] {
        let left = values.iter().zip(&places);
        let left = left.filter(|(_, place)| **place == Rank::Other);
        let most = left.filter_map(|(value, _)| *value).reduce(f64::max);
        for (value, place) in values.iter().zip(&mut places) {
            if *place == Rank::Other && value.is_some() && *value == most {
                *place = rank;
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_share_their_place_and_a_lone_one_has_none() {
        use Rank::{Best, Other, Second};
        let cases: [(&[Option<f64>], &[Rank]); 4] = [
            (&[Some(1.0), None, Some(2.0)], &[Second, Other, Best]),
            (&[Some(2.0), Some(2.0), Some(1.0)], &[Best, Best, Second]),
            (&[None, Some(2.0)], &[Other, Other]),
            (&[Some(3.0), Some(1.0), Some(2.0)], &[Best, Other, Second]),
        ];
        for (values, want) in cases {
            assert_eq!(places(values), want, "{values:?}");
        }
    }
}
