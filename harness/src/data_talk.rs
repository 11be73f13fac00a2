//! Conversations of more than one turn: the next user turn follows the arm's own answer to the one before.

use decode::{RequestId, TokenId};
use reports::PromptKey;
use suites::Renderer;

use crate::engine::{Ask, Next, Talk};
use crate::stage::Fit;
use crate::verdicts::Judge;

/// Bits of a request's id that hold the turn; the prompt's index is below, the sample above.
const TURN_SHIFT: u32 = 24;

/// Renders later turns for one target and thinking switch.
pub(crate) struct Conversation<'a> {
    /// The target's tokenizer and template.
    pub(crate) renderer: &'a Renderer,
    /// Thinking switch.
    pub(crate) thinking: suites::Thinking,
    /// Tokens that end an answer and are no part of its text.
    pub(crate) stop_tokens: &'a [TokenId],
    /// What a slot holds.
    pub(crate) fit: &'a Fit,
    /// Judges answers.
    pub(crate) judge: &'a Judge<'a>,
}

impl Talk for Conversation<'_> {
    fn next(&self, ask: &Ask, answer: &[TokenId]) -> Next {
        let Some((turn, later)) = ask.later.split_first() else {
            return Next::Over;
        };
        let prompt = PromptKey {
            turn: ask.prompt.turn + 1,
            ..ask.prompt.clone()
        };
        let (turns, rendered) = match self.follow(ask, answer, turn) {
            Ok(followed) => followed,
            Err(why) => return Next::Skip(prompt, format!("turn {}: {why}", prompt_turn(ask))),
        };
        let prompt = PromptKey {
            sha256: rendered.sha256,
            n_tokens: rendered.token_ids.len() as u32,
            ..prompt
        };
        if let Some(why) = self.fit.lacks_turn(rendered.token_ids.len(), ask.room) {
            return Next::Skip(prompt, why);
        }
        Next::Ask(Ask {
            id: ask.id + (1 << TURN_SHIFT) as RequestId,
            prompt,
            tokens: rendered.token_ids,
            turns,
            later: later.to_vec(),
            room: ask.room,
            reference: None,
        })
    }

    fn judge(&self, ask: &Ask, answer: &[TokenId]) -> Option<bool> {
        let reference = ask.reference.as_ref()?;
        let asked = ask.turns.last()?;
        self.judge
            .is_right(&self.text(answer).ok()?, asked, reference)
    }
}

impl Conversation<'_> {
    /// The conversation up to the next user turn, and its rendering.
    fn follow(
        &self,
        ask: &Ask,
        answer: &[TokenId],
        turn: &str,
    ) -> suites::Result<(Vec<String>, suites::Rendered)> {
        let mut turns = ask.turns.clone();
        turns.extend([self.text(answer)?, turn.to_owned()]);
        let rendered = self.renderer.render(&turns, self.thinking)?;
        Ok((turns, rendered))
    }

    /// The answer without the token that ended it.
    fn text(&self, answer: &[TokenId]) -> suites::Result<String> {
        let text = match answer.split_last() {
            Some((last, before)) if self.stop_tokens.contains(last) => before,
            _ => answer,
        };
        self.renderer.decode(text)
    }
}

/// Number of the turn after that of `ask`, from 1.
fn prompt_turn(ask: &Ask) -> u32 {
    ask.prompt.turn + 2
}
