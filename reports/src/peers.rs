//! What another program accepted of the same drafters, as `tests/peers/llama_accept.py` prints it.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Share;
use crate::bootstrap::interval;

/// Acceptance of one drafter in llama.cpp, beside draftbench's on the same prompts.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Peer {
    /// The arm that drafts with the same weights here.
    #[serde(skip)]
    pub method: String,
    /// tau of pools of prompts: domains, and `all`.
    pub tau: BTreeMap<String, PeerTau>,
    /// One a prompt.
    answers: Vec<Answer>,
}

/// tau of one pool, tokens / (tokens - accepted), by both programs.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct PeerTau {
    /// Answers in the pool.
    pub prompts: usize,
    /// `None` if every token was a draft.
    pub llama_cpp: Option<f64>,
    /// Absent if the prompts were not paired with records.
    #[serde(default)]
    pub draftbench: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Answer {
    #[serde(flatten)]
    theirs: Counts,
    /// Of the records.
    #[serde(default)]
    draftbench: Option<Counts>,
    #[serde(default)]
    same_text: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
struct Counts {
    n_tokens: u64,
    n_accepted: u64,
}

impl Peer {
    /// Reads what the script printed about the drafter of an arm.
    ///
    /// # Errors
    /// If the text is of another form.
    pub fn parse(method: &str, text: &str) -> Result<Self, serde_json::Error> {
        let found: Self = serde_json::from_str(text)?;
        Ok(Self {
            method: method.to_owned(),
            ..found
        })
    }

    /// Answers of equal text, of those that were paired with a record.
    pub(crate) fn same_text(&self) -> (usize, usize) {
        let paired = || self.answers.iter().filter_map(|a| a.same_text);
        (paired().filter(|same| *same).count(), paired().count())
    }

    /// draftbench's tau over llama.cpp's, minus 1, over paired prompts, which are resampled as pairs.
    pub(crate) fn gain(&self) -> Option<Share> {
        let pair = |a: &Answer| Some((a.draftbench?, a.theirs));
        let pairs: Vec<(Counts, Counts)> = self.answers.iter().filter_map(pair).collect();
        let gain = |drawn: &[(Counts, Counts)]| {
            let ours = tau(drawn.iter().map(|pair| pair.0))?;
            Some(ours / tau(drawn.iter().map(|pair| pair.1))? - 1.0)
        };
        Some(Share {
            value: gain(&pairs)?,
            interval: interval(&pairs, gain),
        })
    }
}

/// The script's formula.
fn tau(counts: impl Iterator<Item = Counts>) -> Option<f64> {
    let (tokens, accepted) =
        counts.fold((0, 0), |sum, c| (sum.0 + c.n_tokens, sum.1 + c.n_accepted));
    (tokens > accepted).then(|| tokens as f64 / (tokens - accepted) as f64)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// As the script prints it: one paired prompt, and one that draftbench did not answer.
    pub(crate) const PRINTED: &str = r#"{
        "tau": {"chat": {"prompts": 1, "llama_cpp": 1.5}, "all": {"prompts": 2, "llama_cpp": 2.0, "draftbench": 2.5}},
        "answers": [
            {"id": "1", "tau": 2.0, "n_prompt": 9, "n_tokens": 10, "n_drafted": 30, "n_accepted": 5, "tokens": [], "text": "x",
             "draftbench": {"tau": 2.5, "n_prompt": 9, "n_tokens": 10, "n_drafted": 28, "n_accepted": 6, "tokens": []},
             "n_common": 10, "same_text": true},
            {"id": "2", "tau": 1.5, "n_prompt": 9, "n_tokens": 6, "n_drafted": 9, "n_accepted": 2, "tokens": [], "text": "y"}
        ]
    }"#;

    #[test]
    fn what_the_script_printed_is_read_and_only_pairs_are_compared() {
        let peer = Peer::parse("dflash", PRINTED).unwrap();
        assert_eq!((peer.method.as_str(), peer.same_text()), ("dflash", (1, 1)));
        assert_eq!(peer.tau["chat"].draftbench, None);
        let gain = peer.gain().unwrap();
        assert!((gain.value - 0.25).abs() < 1e-12 && gain.interval.is_none());
        assert!(Peer::parse("dflash", "{\"tau\": {}}").is_err());
    }
}
