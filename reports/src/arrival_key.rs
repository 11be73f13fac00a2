use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// When requests come, as spelled in records and on the command line.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub enum ArrivalKey {
    /// `closed`: the next when a slot is free.
    #[default]
    Closed,
    /// `poisson-N`: at random times, N a thousand seconds on average, whether or not a slot is free.
    Poisson(NonZeroU32),
}

impl ArrivalKey {
    /// Whether the next request waits for a free slot.
    pub fn is_closed(&self) -> bool {
        *self == Self::Closed
    }

    /// Requests a second on average; `None` in closed loop.
    pub fn per_sec(&self) -> Option<f64> {
        match self {
            Self::Closed => None,
            Self::Poisson(milli) => Some(f64::from(milli.get()) / 1000.0),
        }
    }
}

/// An arrival key that is neither `closed` nor `poisson-<thousandths>`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "arrivals {0:?} are unknown; use closed, or poisson- and requests a second in thousandths, such as poisson-2500 for 2.5 a second"
)]
pub struct ArrivalKeyError(pub String);

impl FromStr for ArrivalKey {
    type Err = ArrivalKeyError;

    fn from_str(text: &str) -> Result<Self, ArrivalKeyError> {
        if text == "closed" {
            return Ok(Self::Closed);
        }
        let digits = text
            .strip_prefix("poisson-")
            .filter(|d| d.starts_with(|c: char| ('1'..='9').contains(&c)));
        let milli = digits.and_then(|d| d.parse().ok());
        milli
            .map(Self::Poisson)
            .ok_or_else(|| ArrivalKeyError(text.to_owned()))
    }
}

impl fmt::Display for ArrivalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Poisson(milli) => write!(f, "poisson-{milli}"),
        }
    }
}

impl TryFrom<String> for ArrivalKey {
    type Error = ArrivalKeyError;

    fn try_from(text: String) -> Result<Self, ArrivalKeyError> {
        text.parse()
    }
}

impl From<ArrivalKey> for String {
    fn from(key: ArrivalKey) -> Self {
        key.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_as_it_is_written() {
        for text in ["closed", "poisson-1", "poisson-2500"] {
            assert_eq!(text.parse::<ArrivalKey>().unwrap().to_string(), text);
        }
        let rate = "poisson-2500".parse::<ArrivalKey>().unwrap().per_sec();
        assert_eq!(rate, Some(2.5));
    }

    #[test]
    fn a_rate_of_nothing_and_strange_spellings_are_refused() {
        for text in [
            "",
            "open",
            "poisson",
            "poisson-",
            "poisson-0",
            "poisson-2.5",
            "poisson--1",
        ] {
            let err = text.parse::<ArrivalKey>().unwrap_err();
            assert_eq!(err, ArrivalKeyError(text.to_owned()));
        }
    }
}
