//! The one shape every source is brought to, and the chat text a tiny target is trained on.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What an example is about; each domain has its own templates and its own suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Domain {
    /// Word problems whose answer ends in a `#### <integer>` line.
    Maths,
    /// Small Python functions inside a fence.
    Code,
    /// How-to lists, explanations, letters, comparisons, advice and stories.
    Chat,
}

impl Domain {
    /// Every domain, in the order corpora and suites list them.
    pub const ALL: [Domain; 3] = [Domain::Maths, Domain::Code, Domain::Chat];

    /// The lower-case name used in TOML and JSONL.
    pub fn name(self) -> &'static str {
        match self {
            Domain::Maths => "maths",
            Domain::Code => "code",
            Domain::Chat => "chat",
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One supervised example: a user turn, an optional short thinking text, an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// Which mix the example is counted under.
    pub domain: Domain,
    /// The user turn, without chat markers.
    pub user: String,
    /// The text between the think markers; `None` makes this a thinking-off example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub think: Option<String>,
    /// The text after the think block, without the end marker.
    pub answer: String,
}

impl Example {
    /// The chat text up to where a target starts to write: an open assistant turn, which holds an
    /// empty think block already if the example is a thinking-off one.
    pub fn prompt_text(&self) -> String {
        let open = format!(
            "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
            self.user
        );
        match self.think {
            Some(_) => open,
            None => open + "<think>\n\n</think>\n\n",
        }
    }

    /// The exact text a target is trained on: [`Self::prompt_text`], then what it should write,
    /// closed by `<|im_end|>` and a newline.
    pub fn full_text(&self) -> String {
        let mut text = self.prompt_text();
        if let Some(think) = &self.think {
            text.push_str(&format!("<think>\n{think}\n</think>\n\n"));
        }
        text.push_str(&self.answer);
        text.push_str("<|im_end|>\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(think: Option<&str>) -> Example {
        Example {
            domain: Domain::Chat,
            user: "Hi".into(),
            think: think.map(String::from),
            answer: "Hello.".into(),
        }
    }

    #[test]
    fn a_thinking_off_example_carries_an_empty_think_block_in_its_prompt() {
        let off = example(None);
        let prompt =
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
        assert_eq!(off.prompt_text(), prompt);
        assert_eq!(off.full_text(), format!("{prompt}Hello.<|im_end|>\n"));
    }

    #[test]
    fn a_thinking_on_example_writes_its_think_block_itself() {
        let on = example(Some("Greet back."));
        let prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(on.prompt_text(), prompt);
        let full = format!("{prompt}<think>\nGreet back.\n</think>\n\nHello.<|im_end|>\n");
        assert_eq!(on.full_text(), full);
    }
}
