//! Looking at what a half-trained target writes.

use crate::error::Result;
use crate::lm::CausalLm;

/// The most likely continuation of `prompt`, up to and with a token of `stop`. Every token costs a full pass, so this
/// is for a glance; use the decode loop for anything else.
///
/// # Errors
/// If the model refuses the ids.
pub(crate) fn greedy(
    lm: &CausalLm,
    prompt: &[u32],
    stop: &[u32],
    max_new: usize,
) -> Result<Vec<u32>> {
    let mut ids = prompt.to_vec();
    while ids.len() < prompt.len() + max_new {
        let whole = 0..ids.len();
        let (hidden, _) = lm.states(&ids, std::slice::from_ref(&whole), &[])?;
        let last = hidden.narrow(0, ids.len() - 1, 1)?;
        let logits: Vec<f32> = lm.logits(&last)?.flatten_all()?.to_vec1()?;
        let mut best = 0;
        for (id, logit) in logits.iter().enumerate() {
            if *logit > logits[best] {
                best = id;
            }
        }
        ids.push(best as u32);
        if stop.contains(&(best as u32)) {
            break;
        }
    }
    Ok(ids.split_off(prompt.len()))
}
