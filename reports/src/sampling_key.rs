use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How an answer's tokens were chosen, as spelled in records and on the command line: `greedy`, or `t` and the
/// temperature in thousandths (`t1000` is temperature 1), with `-k20` for the 20 likeliest tokens alone and `-p950` for
/// the likeliest that together have a probability of 0.95.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SamplingKey {
    /// The largest logit.
    Greedy,
    /// A draw.
    Sampled {
        /// Temperature in thousandths, at least 1.
        temperature_milli: u32,
        /// Only so many of the likeliest tokens.
        top_k: Option<NonZeroU32>,
        /// Then only the likeliest tokens that have this probability together, in thousandths, 1 to 999.
        top_p_milli: Option<NonZeroU32>,
    },
}

impl SamplingKey {
    /// A draw from all tokens at a temperature in thousandths.
    pub const fn at(temperature_milli: u32) -> Self {
        Self::Sampled {
            temperature_milli,
            top_k: None,
            top_p_milli: None,
        }
    }
}

/// A sampling key that is not spelled as [`SamplingKey`] says.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "sampling {0:?} is unknown; use greedy, or t and the temperature in thousandths, such as t1000 or t600 (temperature 0 is greedy), with -k and a number for top-k and -p and thousandths below 1000 for top-p behind it, such as t600-k20-p950"
)]
pub struct SamplingKeyError(pub String);

impl FromStr for SamplingKey {
    type Err = SamplingKeyError;

    fn from_str(text: &str) -> Result<Self, SamplingKeyError> {
        if text == "greedy" {
            return Ok(Self::Greedy);
        }
        sampled(text).ok_or_else(|| SamplingKeyError(text.to_owned()))
    }
}

fn sampled(text: &str) -> Option<SamplingKey> {
    let mut parts = text.split('-').peekable();
    let mut number = |letter: char| {
        let digits = parts.next_if(|part| part.starts_with(letter))?;
        Some(natural(&digits[1..]))
    };
    let temperature_milli = number('t')??.get();
    let top_k = number('k');
    let top_p_milli = number('p');
    let left = parts.next();
    // A part that is there has to be a number.
    if left.is_some() || top_k == Some(None) || top_p_milli == Some(None) {
        return None;
    }
    let top_p_milli = top_p_milli.flatten();
    if top_p_milli.is_some_and(|milli| milli.get() >= 1000) {
        return None;
    }
    Some(SamplingKey::Sampled {
        temperature_milli,
        top_k: top_k.flatten(),
        top_p_milli,
    })
}

/// Digits without sign and leading zero.
fn natural(digits: &str) -> Option<NonZeroU32> {
    let is_plain = digits.starts_with(|c: char| ('1'..='9').contains(&c));
    is_plain.then(|| digits.parse().ok())?
}

impl fmt::Display for SamplingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Sampled {
            temperature_milli,
            top_k,
            top_p_milli,
        } = self
        else {
            return f.write_str("greedy");
        };
        write!(f, "t{temperature_milli}")?;
        if let Some(k) = top_k {
            write!(f, "-k{k}")?;
        }
        if let Some(milli) = top_p_milli {
            write!(f, "-p{milli}")?;
        }
        Ok(())
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
        for text in [
            "greedy",
            "t1",
            "t600",
            "t1000",
            "t600-k20",
            "t600-p950",
            "t600-k20-p950",
        ] {
            assert_eq!(text.parse::<SamplingKey>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_zero_temperature_and_strange_spellings_are_refused() {
        for text in [
            "t0",
            "t",
            "",
            "t+5",
            "T1000",
            "t1.0",
            "warm",
            "t007",
            "greedy ",
            "k20",
            "t600-",
            "t600-k0",
            "t600-p1000",
            "t600-p0",
            "t600-p950-k20",
            "t600-k20-k30",
            "t600-k",
            "t600-p.9",
        ] {
            let err = text.parse::<SamplingKey>().unwrap_err();
            assert_eq!(err, SamplingKeyError(text.to_owned()));
        }
    }
}
