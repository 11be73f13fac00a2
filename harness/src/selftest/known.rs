//! Drafters that know the answer, or know how to miss it: their acceptance is arithmetic.

use anyhow::Result;
use decode::toy::{Oracle, ToyTarget, Wrong};
use decode::{
    Drafter, Ended, Generation, Parts, Request, Sampling, Settings, Silent, StepCost, VerifyAll,
};

use super::Check;

/// Drafts a round.
const GAMMA: usize = 7;
const PROMPTS: u64 = 6;
const MAX_NEW: usize = 61;
const CONCURRENCY: [usize; 2] = [1, 4];

/// Holds acceptance and text of drafters of known quality against what they must be.
///
/// # Errors
/// If the loop refuses them.
pub(super) fn answers() -> Result<Vec<Check>> {
    let cases = [
        ("right", Wrong::Never, GAMMA),
        ("wrong at slot 4", Wrong::Slot(4), 3),
        ("always wrong", Wrong::Always, 0),
    ];
    let mut checks = Vec::new();
    for slots in CONCURRENCY {
        let want = decode(&mut baselines::Vanilla, slots)?;
        for (name, wrong, accepted) in cases {
            let got = decode(&mut Oracle::new(GAMMA, wrong, slots), slots)?;
            checks.push(judge(name, slots, &got, &want, accepted as u32));
        }
    }
    Ok(checks)
}

fn decode(drafter: &mut dyn Drafter, slots: usize) -> Result<Vec<Generation>> {
    let mut target = ToyTarget::new(64, slots, 256, &[]);
    let requests = (0..PROMPTS).map(|id| Request {
        id,
        prompt: vec![id as u32 + 1, 2, 3],
        max_new: MAX_NEW,
    });
    let parts = Parts {
        target: &mut target,
        drafter,
        scheduler: &mut VerifyAll,
        probe: &mut Silent,
    };
    let settings = Settings {
        slots,
        sampling: Sampling::Greedy,
        seed: 0,
        cost: StepCost::flat(),
    };
    let mut done = decode::decode(parts, requests.collect(), &settings)?;
    done.sort_by_key(|g| g.id);
    Ok(done)
}

fn judge(
    name: &str,
    slots: usize,
    got: &[Generation],
    want: &[Generation],
    accepted: u32,
) -> Check {
    let texts =
        |all: &[Generation]| -> Vec<Vec<u32>> { all.iter().map(|g| g.tokens.clone()).collect() };
    // The last round of an answer is cut where the answer ends.
    let whole = |g: &Generation| g.rounds.len().saturating_sub(1);
    let rounds = got.iter().flat_map(|g| &g.rounds[..whole(g)]);
    let off = rounds.clone().filter(|r| r.accepted != accepted).count();
    let n_rounds = rounds.count();
    let wrong = if got.len() as u64 != PROMPTS || got.iter().any(|g| g.ended != Ended::Length) {
        Some("answers are missing or end early: this build decodes wrongly".to_owned())
    } else if texts(got) != texts(want) {
        Some("the text is not the target's: this build decodes wrongly".to_owned())
    } else if off > 0 || n_rounds == 0 {
        Some(format!(
            "{off} of {n_rounds} rounds accepted another number than {accepted}: this build counts wrongly"
        ))
    } else {
        None
    };
    Check::new(
        format!("a drafter that is {name}, {slots} at once"),
        format!("accepts {accepted} of {GAMMA} in each of {n_rounds} rounds"),
        wrong,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_count_and_a_wrong_text_are_seen() {
        let right = decode(&mut Oracle::new(GAMMA, Wrong::Never, 1), 1).unwrap();
        assert!(judge("right", 1, &right, &right, 7).wrong.is_none());
        let miscounted = judge("right", 1, &right, &right, 6).wrong;
        assert!(miscounted.unwrap().contains("another number than 6"));
        let mut other = right.clone();
        other[2].tokens[5] ^= 1;
        assert!(
            judge("right", 1, &right, &other, 7)
                .wrong
                .unwrap()
                .contains("text")
        );
        assert!(judge("right", 1, &right[1..], &right, 7).wrong.is_some());
        assert_eq!(answers().unwrap().len(), 6);
    }
}
