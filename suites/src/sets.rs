//! Named lists of suites, each with the number of prompts and the rule that a paper took them by.

use crate::{Subset, public_ids};

/// A named list.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// The name used on the command line.
    pub id: &'static str,
    /// What it is for.
    pub title: &'static str,
    /// Suites, each with the most prompts that are asked; `None` is as many as the preset says.
    pub members: &'static [(&'static str, Option<usize>)],
    /// How a suite that is longer is cut.
    pub subset: Subset,
    /// Which turns are asked.
    pub turns: Turns,
}

/// Which turns of a conversation are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// All, each after the answer to the one before.
    All,
    /// The first alone.
    First,
}

/// Every set.
pub const SETS: [Set; 4] = [
    Set {
        id: "embedded",
        title: "the suites inside the binary",
        members: &[
            ("mini-maths", None),
            ("mini-code", None),
            ("mini-chat", None),
        ],
        subset: Subset::First,
        turns: Turns::All,
    },
    Set {
        id: "dflash10",
        title: "the ten suites of DFlash's first release and of DDTree",
        members: &[
            ("gsm8k", Some(128)),
            ("math500", Some(128)),
            ("aime24", Some(30)),
            ("aime25", Some(30)),
            ("humaneval", Some(164)),
            ("mbpp", Some(128)),
            ("livecodebench", Some(128)),
            ("swe-bench", Some(128)),
            ("mt-bench", Some(80)),
            ("alpaca", Some(128)),
        ],
        subset: Subset::DFlash,
        turns: Turns::All,
    },
    Set {
        id: "dflash7",
        title: "the seven suites of table 1 of DFlash's paper",
        members: &[
            ("gsm8k", Some(128)),
            ("math500", Some(128)),
            ("aime25", Some(30)),
            ("humaneval", Some(164)),
            ("mbpp", Some(128)),
            ("livecodebench", Some(128)),
            ("mt-bench", Some(80)),
        ],
        subset: Subset::DFlash,
        turns: Turns::All,
    },
    Set {
        id: "dspark9",
        title: "the nine suites of DSpark's paper, first turns alone",
        members: &[
            ("gsm8k", Some(500)),
            ("math500", Some(500)),
            ("aime25", Some(30)),
            ("mbpp", Some(256)),
            ("humaneval", Some(164)),
            ("livecodebench", Some(500)),
            ("mt-bench", Some(80)),
            ("alpaca", Some(500)),
            ("arena-hard-v2", Some(500)),
        ],
        subset: Subset::DeepSpec,
        turns: Turns::First,
    },
];

/// A suite as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Suite.
    pub id: &'static str,
    /// Most prompts, where a set says so.
    pub most: Option<usize>,
    /// How it is cut.
    pub subset: Subset,
    /// Which turns are asked.
    pub turns: Turns,
}

/// What a name of a suite or of a set stands for; `None` for a name that is neither. A public suite that is named by
/// itself is cut by [`Subset::DFlash`], an embedded one to its first prompts.
pub fn wanted(name: &str) -> Option<Vec<Wanted>> {
    if let Some(set) = SETS.iter().find(|set| set.id == name) {
        let of_set = |&(id, most): &(&'static str, Option<usize>)| Wanted {
            id,
            most,
            subset: set.subset,
            turns: set.turns,
        };
        return Some(set.members.iter().map(of_set).collect());
    }
    let alone = |subset: Subset| {
        move |id: &'static str| Wanted {
            id,
            most: None,
            subset,
            turns: Turns::All,
        }
    };
    let embedded = crate::ids().into_iter().map(alone(Subset::First));
    let public = public_ids().into_iter().map(alone(Subset::DFlash));
    embedded
        .chain(public)
        .find(|one| one.id == name)
        .map(|one| vec![one])
}

/// Every name that [`wanted`] knows, comma separated, for messages.
pub fn known_names() -> String {
    let sets = SETS.iter().map(|set| set.id);
    let names = crate::ids().into_iter().chain(public_ids()).chain(sets);
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sets_have_the_papers_sizes() {
        let total = |name: &str| {
            let members = wanted(name).unwrap();
            (
                members.len(),
                members.iter().filter_map(|m| m.most).sum::<usize>(),
            )
        };
        assert_eq!(total("dflash10"), (10, 1072));
        assert_eq!(total("dflash7"), (7, 786));
        assert_eq!(total("dspark9"), (9, 3030));
        assert_eq!(total("embedded"), (3, 0));
    }

    #[test]
    fn every_name_is_known_and_stands_for_suites_that_are_defined() {
        for name in known_names().split(", ") {
            for one in wanted(name).unwrap() {
                let is_embedded = crate::ids().contains(&one.id);
                assert!(
                    is_embedded || crate::public(one.id).is_ok(),
                    "{name}: {}",
                    one.id
                );
            }
        }
        assert_eq!(wanted("dflash"), None);
    }
}
