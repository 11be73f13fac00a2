//! Which rows of a suite are asked where it has more than are wanted. A rule is a function of the two numbers and a seed.

mod numpy;
mod python;

use std::fmt;
use std::str::FromStr;

/// A rule, by the name it has on the command line and in `run.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subset {
    /// The first rows, in file order.
    First,
    /// DFlash's and DDTree's: the first of numpy's `default_rng(0).permutation(n)`, which is what `shuffle(seed=0)` of
    /// the `datasets` library gives.
    DFlash,
    /// DeepSpec's, which DSpark uses: the first of a list shuffled by Python's `random.Random(980406)`.
    DeepSpec,
    /// The rows whose SHA-256 of `<seed>:<row number>` is lowest. A row stays or goes whatever is asked beside it.
    Hash,
}

impl Subset {
    /// Every rule.
    pub const ALL: [Subset; 4] = [
        Subset::First,
        Subset::DFlash,
        Subset::DeepSpec,
        Subset::Hash,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Subset::First => "first",
            Subset::DFlash => "dflash",
            Subset::DeepSpec => "deepspec",
            Subset::Hash => "hash",
        }
    }

    /// Numbers of the rows that are asked, in the order they are asked: all `n_rows` in file order if no more than
    /// `wanted`, as the papers do, else `wanted` of them by the rule. `seed` is read by [`Subset::Hash`] alone.
    pub fn rows(self, n_rows: usize, wanted: usize, seed: u64) -> Vec<usize> {
        if n_rows <= wanted {
            return (0..n_rows).collect();
        }
        let mut order: Vec<usize> = match self {
            Subset::First => (0..n_rows).collect(),
            Subset::DFlash => numpy::permutation(0, n_rows),
            Subset::DeepSpec => python::shuffled(980_406, n_rows),
            Subset::Hash => by_hash(n_rows, seed),
        };
        order.truncate(wanted);
        order
    }
}

impl fmt::Display for Subset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Subset {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Subset::ALL.map(Subset::name).join(", ");
        let found = Subset::ALL.into_iter().find(|rule| rule.name() == name);
        found.ok_or_else(|| format!("{name:?} is unknown; known: {known}"))
    }
}

fn by_hash(n_rows: usize, seed: u64) -> Vec<usize> {
    let key = |row: &usize| datasets::sha256_bytes(format!("{seed}:{row}").as_bytes());
    let mut order: Vec<usize> = (0..n_rows).collect();
    order.sort_by_cached_key(key);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    // Rows of the papers' own subsets, computed with numpy and with Python.
    #[test]
    fn the_papers_rules_give_the_papers_rows() {
        for (rule, n_rows, wanted, first) in [
            (Subset::DFlash, 1319, 128, [264, 725, 996, 586, 1010, 12]),
            (Subset::DFlash, 500, 128, [221, 434, 109, 334, 375, 71]),
            (Subset::DeepSpec, 1319, 500, [435, 902, 303, 1168, 403, 611]),
            (Subset::DeepSpec, 257, 256, [94, 116, 115, 25, 150, 131]),
            (
                Subset::DFlash,
                52_002,
                128,
                [35925, 31064, 48165, 49117, 30750, 201],
            ),
        ] {
            let rows = rule.rows(n_rows, wanted, 7);
            assert_eq!(
                (rows.len(), &rows[..6]),
                (wanted, &first[..]),
                "{rule} of {n_rows}"
            );
        }
    }

    #[test]
    fn every_rule_gives_distinct_rows_and_file_order_if_all_fit() {
        for rule in Subset::ALL {
            let mut rows = rule.rows(300, 128, 0);
            assert!(rows.iter().all(|row| *row < 300));
            rows.sort_unstable();
            rows.dedup();
            assert_eq!(rows.len(), 128, "{rule}");
            assert_eq!(rule.rows(30, 30, 0), (0..30).collect::<Vec<_>>());
            assert_eq!(rule.rows(30, 128, 0).len(), 30);
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
        let error = "paper".parse::<Subset>().unwrap_err();
        assert_eq!(
            error,
            "\"paper\" is unknown; known: first, dflash, deepspec, hash"
        );
    }

    #[test]
    fn a_row_chosen_by_hash_stays_chosen_when_more_are_wanted() {
        let few = Subset::Hash.rows(1000, 10, 3);
        assert_eq!(Subset::Hash.rows(1000, 50, 3)[..10], few);
        assert_ne!(Subset::Hash.rows(1000, 10, 4), few);
    }
}
