//! The proof that a drafter changes speed, never text.

use std::collections::BTreeMap;
use std::fmt;

use reports::{Cell, Outcome, PromptKey, Record, SamplingKey, Thinking};

use crate::engine::sha256_of;

/// Greedy answers waiting for vanilla's, and vanilla's waiting for them.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// By target, suite, thinking, name of the prompt.
    prompts: BTreeMap<(String, String, Thinking, String), Page>,
    n_compared: usize,
    differences: Vec<Difference>,
}

#[derive(Debug, Default)]
struct Page {
    /// Vanilla's first answer; all others, vanilla's own at another concurrency included, must equal it.
    reference: Option<Text>,
    waiting: Vec<(Cell, Text)>,
}

/// An answer: its hash as records hold it, and its tokens unless it was read from a record.
#[derive(Clone, Debug)]
struct Text {
    sha256: String,
    tokens: Option<Vec<u32>>,
}

/// Where an answer leaves vanilla's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    cell: Cell,
    prompt: String,
    /// 0-based, of generated tokens; unknown of an answer that an earlier process decoded.
    position: Option<usize>,
    got: Option<u32>,
    want: Option<u32>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = |t: Option<u32>| t.map_or("the end".into(), |t| format!("token {t}"));
        let Some(position) = self.position else {
            let (cell, prompt) = (&self.cell, &self.prompt);
            return write!(
                f,
                "{cell}: prompt {prompt} differs from vanilla's, by its hash"
            );
        };
        write!(
            f,
            "{}: prompt {} differs at position {position} of the answer: {}, vanilla has {}",
            self.cell,
            self.prompt,
            token(self.got),
            token(self.want)
        )
    }
}

impl Ledger {
    /// Takes down an answer; sampled ones are nobody's equal and are passed over.
    pub(crate) fn add(&mut self, cell: &Cell, prompt: &PromptKey, tokens: &[u32]) {
        let text = Text {
            sha256: sha256_of(tokens),
            tokens: Some(tokens.to_vec()),
        };
        self.add_text(cell, prompt, text);
    }

    /// Takes down an answer that an earlier process decoded.
    pub(crate) fn add_stored(&mut self, record: &Record) {
        if let (Some(prompt), Outcome::Ok(answer)) = (&record.prompt, &record.outcome) {
            let text = Text {
                sha256: answer.tokens_sha256.clone(),
                tokens: answer.tokens.clone(),
            };
            self.add_text(&record.cell, prompt, text);
        }
    }

    fn add_text(&mut self, cell: &Cell, prompt: &PromptKey, text: Text) {
        if cell.sampling != SamplingKey::Greedy {
            return;
        }
        let key = (
            cell.target.clone(),
            cell.suite.clone(),
            cell.thinking,
            prompt.name(),
        );
        let page = self.prompts.entry(key).or_default();
        if page.reference.is_none() && cell.method == "vanilla" {
            page.reference = Some(text);
        } else {
            page.waiting.push((cell.clone(), text));
        }
        let Some(reference) = &page.reference else {
            return;
        };
        for (cell, text) in page.waiting.drain(..) {
            self.n_compared += 1;
            if text.sha256 != reference.sha256 {
                self.differences
                    .push(text.difference(reference, cell, &prompt.name()));
            }
        }
    }

    /// Answers held against vanilla's.
    pub(crate) fn n_compared(&self) -> usize {
        self.n_compared
    }

    /// Answers that are not vanilla's.
    pub(crate) fn differences(&self) -> &[Difference] {
        &self.differences
    }
}

impl Text {
    fn difference(&self, reference: &Self, cell: Cell, prompt: &str) -> Difference {
        let both = self.tokens.as_ref().zip(reference.tokens.as_ref());
        let position = both.and_then(|(own, other)| first_difference(own, other));
        let token = |text: &Self| position.and_then(|p| text.tokens.as_ref()?.get(p).copied());
        Difference {
            cell,
            prompt: prompt.to_owned(),
            position,
            got: token(self),
            want: token(reference),
        }
    }
}

fn first_difference(a: &[u32], b: &[u32]) -> Option<usize> {
    let common = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    (common < a.len().max(b.len())).then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(method: &str, concurrency: u32) -> Cell {
        Cell {
            target: "toy".into(),
            suite: "mini".into(),
            sampling: SamplingKey::Greedy,
            thinking: Thinking::Off,
            concurrency,
            arrivals: reports::ArrivalKey::Closed,
            method: method.into(),
        }
    }

    fn prompt(id: &str) -> PromptKey {
        PromptKey {
            id: id.into(),
            sample: 0,
            pass: 0,
            turn: 0,
            sha256: String::new(),
            n_tokens: 1,
        }
    }

    #[test]
    fn answers_are_compared_whichever_arm_comes_first() {
        let mut ledger = Ledger::default();
        ledger.add(&cell("dflash", 1), &prompt("a"), &[1, 2, 3]);
        assert_eq!(ledger.n_compared(), 0);
        ledger.add(&cell("vanilla", 1), &prompt("a"), &[1, 2, 3]);
        ledger.add(&cell("draft_model", 1), &prompt("a"), &[1, 2, 3]);
        assert_eq!((ledger.n_compared(), ledger.differences().len()), (2, 0));
    }

    #[test]
    fn a_difference_names_prompt_position_and_both_tokens() {
        let mut ledger = Ledger::default();
        ledger.add(&cell("vanilla", 1), &prompt("a"), &[1, 2, 3]);
        ledger.add(&cell("dflash", 1), &prompt("a"), &[1, 9, 3]);
        ledger.add(&cell("dflash", 1), &prompt("a"), &[1, 2]);
        let said: Vec<String> = ledger
            .differences()
            .iter()
            .map(ToString::to_string)
            .collect();
        let cell = "toy / dflash / mini / greedy / thinking off / concurrency 1";
        let want = [
            format!(
                "{cell}: prompt a differs at position 1 of the answer: token 9, vanilla has token 2"
            ),
            format!(
                "{cell}: prompt a differs at position 2 of the answer: the end, vanilla has token 3"
            ),
        ];
        assert_eq!(said, want);
    }

    #[test]
    fn vanilla_at_another_concurrency_must_be_equal_too() {
        let mut ledger = Ledger::default();
        ledger.add(&cell("vanilla", 1), &prompt("a"), &[1, 2]);
        ledger.add(&cell("vanilla", 8), &prompt("a"), &[1, 3]);
        assert_eq!(ledger.differences().len(), 1);
    }

    #[test]
    fn sampled_answers_are_not_compared() {
        let mut ledger = Ledger::default();
        for (method, token) in [("vanilla", 1), ("dflash", 2)] {
            let mut cell = cell(method, 1);
            cell.sampling = SamplingKey::at(1000);
            ledger.add(&cell, &prompt("a"), &[token]);
        }
        assert_eq!((ledger.n_compared(), ledger.differences().len()), (0, 0));
    }
}
