//! How many drafts of a proposal are verified: the value of an arm's `schedule` option.

use std::str::FromStr;

use decode::{Scheduler, VerifyAll};

/// Spelled `all`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Schedule {
    /// Every draft.
    #[default]
    All,
}

impl Schedule {
    /// What a user may type.
    pub(crate) const SPELLINGS: &str = "all";

    /// A scheduler with no history.
    pub(crate) fn scheduler(self) -> Box<dyn Scheduler> {
        match self {
            Self::All => Box::new(VerifyAll),
        }
    }
}

impl FromStr for Schedule {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "all" => Ok(Self::All),
            _ => Err(()),
        }
    }
}
