use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How an answer's tokens were chosen, as spelled in records and on the command line: `greedy`, or `t` and the
/// temperature in thousandths (`t1000` is temperature 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SamplingKey {
    /// The largest logit.
    Greedy,
    /// A draw at this temperature, in thousandths, at least 1.
    Temperature(u32),
}

/// A sampling key that is neither `greedy` nor `t<thousandths>`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "sampling {0:?} is unknown; use greedy, or t and the temperature in thousandths, such as t1000 or t600 (temperature 0 is greedy)"
)]
pub struct SamplingKeyError(pub String);

impl FromStr for SamplingKey {
    type Err = SamplingKeyError;

    fn from_str(text: &str) -> Result<Self, SamplingKeyError> {
        if text == "greedy" {
            return Ok(Self::Greedy);
        }
        let digits = text
            .strip_prefix('t')
            .filter(|d| d.starts_with(|c: char| ('1'..='9').contains(&c)));
        match digits.map(str::parse::<u32>) {
            Some(Ok(milli)) => Ok(Self::Temperature(milli)),
            _ => Err(SamplingKeyError(text.to_owned())),
        }
    }
}

impl fmt::Display for SamplingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Greedy => f.write_str("greedy"),
            Self::Temperature(milli) => write!(f, "t{milli}"),
        }
    }
}

impl TryFrom<String> for SamplingKey {
    type Error = SamplingKeyError;

    fn try_from(text: String) -> Result<Self, SamplingKeyError> {
        text.parse()
    }
}

impl From<SamplingKey> for String {
    fn from(key: SamplingKey) -> Self {
        key.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_as_it_is_written() {
        for text in ["greedy", "t1", "t600", "t1000"] {
            assert_eq!(text.parse::<SamplingKey>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_zero_temperature_and_strange_spellings_are_refused() {
        for text in [
            "t0", "t", "", "t+5", "T1000", "t1.0", "warm", "t007", "greedy ",
        ] {
            let err = text.parse::<SamplingKey>().unwrap_err();
            assert_eq!(err, SamplingKeyError(text.to_owned()));
        }
    }
}
