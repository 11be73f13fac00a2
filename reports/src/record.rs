use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ArrivalKey, SamplingKey};

/// Version of the record layout that is written. What 5 adds may be absent, so 4 is read too; a record of another
/// version is an error, never guessed at.
pub const SCHEMA: u32 = 5;

/// The oldest version that is read.
const OLDEST: u32 = 4;

/// One answer, or one reason why there is none: a line of `records.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// Id of the run that wrote it.
    pub run: String,
    /// Where in the matrix it belongs.
    pub cell: Cell,
    /// The prompt; absent if the whole cell was skipped or failed before its first prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PromptKey>,
    /// What came of it.
    pub outcome: Outcome,
}

/// Coordinates of one cell of the matrix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// Id of the target.
    pub target: String,
    /// Id of the suite.
    pub suite: String,
    /// How tokens are chosen.
    pub sampling: SamplingKey,
    /// Whether the chat template asks for a thinking section.
    pub thinking: Thinking,
    /// Sequences decoded at once, at least 1; in open loop the most.
    pub concurrency: u32,
    /// When requests come.
    #[serde(default, skip_serializing_if = "ArrivalKey::is_closed")]
    pub arrivals: ArrivalKey,
    /// Id of the method.
    pub method: String,
}

impl Cell {
    /// The vanilla cell that differs in the method alone.
    pub fn vanilla(&self) -> Self {
        Self {
            method: "vanilla".into(),
            ..self.clone()
        }
    }

    /// Whether how many drafts a round keeps was drawn and not found (`acceptance=synthetic-T`): such a cell measures
    /// costs and says nothing about its drafter.
    pub fn is_synthetic(&self) -> bool {
        let mut options = self.method.split(':').skip(1);
        options.any(|option| option.starts_with("acceptance=synthetic"))
    }

    /// Whether all answers of a pass are one batch, in which sequences may share the machine; otherwise every answer is a
    /// batch of its own.
    pub fn is_batched(&self) -> bool {
        self.concurrency > 1 || !self.arrivals.is_closed()
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} / {} / {} / {} / thinking {} / concurrency {}",
            self.target, self.method, self.suite, self.sampling, self.thinking, self.concurrency
        )?;
        match self.arrivals {
            ArrivalKey::Closed => Ok(()),
            open => write!(f, " / {open}"),
        }
    }
}

/// The thinking switch of a chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Thinking {
    /// Answers come at once.
    Off,
    /// A thinking section comes first.
    On,
}

impl fmt::Display for Thinking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::On => "on",
        })
    }
}

/// Which prompt was answered, for which time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptKey {
    /// Id of the prompt within its suite.
    pub id: String,
    /// Number of the sampled answer, from 0; greedy has only 0.
    pub sample: u32,
    /// Number of the measuring pass, from 0; the passes differ in time alone.
    pub pass: u32,
    /// Number of the turn of the conversation, from 0; a later turn is asked after the arm's own answer to the one
    /// before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub turn: u32,
    /// SHA-256 of the rendered prompt, hexadecimal.
    pub sha256: String,
    /// Prompt length in tokens.
    pub n_tokens: u32,
}

/// In the shape that serde asks for.
fn is_zero(turn: &u32) -> bool {
    *turn == 0
}

impl PromptKey {
    /// The prompt as a message names it: its id, and the turn if that is not the first.
    pub fn name(&self) -> String {
        match self.turn {
            0 => self.id.clone(),
            turn => format!("{} turn {}", self.id, turn + 1),
        }
    }
}

/// What came of a prompt or a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// Answered.
    Ok(Box<Answer>),
    /// Went wrong while decoding.
    Failed {
        /// The error.
        why: String,
    },
    /// Never tried, since it could not work.
    Skipped {
        /// The reason.
        why: String,
    },
    /// A cell's method was warmed up; a cell that several processes worked on has one a process.
    Started(Startup),
}

/// What was spent before the first measured answer of a cell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Startup {
    /// Batches of every shape that the cell can come to.
    pub cover_ns: u64,
    /// Batches that were repeated until their steps took equally long.
    pub settle_ns: u64,
    /// Median step of each of these, in order.
    pub step_ns: Vec<u64>,
    /// Whether they became equally long.
    pub settled: bool,
}

/// One answer in counts and nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Answer length in tokens, a stop token and the token from prefill included.
    pub n_tokens: u32,
    /// SHA-256 over the token ids, four little-endian bytes each, hexadecimal.
    pub tokens_sha256: String,
    /// The token ids, kept on demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
    /// What each round did.
    pub rounds: Rounds,
    /// Why the answer ended.
    pub ended: Ended,
    /// From entering a slot to the first token.
    pub prefill_ns: u64,
    /// From the first token to the last, the drafter's own start included, the prefills of other requests that
    /// fell in between taken out.
    pub decode_ns: u64,
    /// Wall time of the batch that the answer was decoded in, prefills included; answers of one cell and pass share
    /// it at concurrency above 1 and in open loop, else it is the answer's own.
    pub batch_ns: u64,
    /// When what happened.
    pub timeline: Timeline,
    /// Where the time went. A phase that several sequences share is divided evenly among them.
    pub phases: Phases,
    /// How repetitive the text is.
    pub grams: Grams,
    /// Whether the final answer is the known one or the code passes the known tests; absent if none is known or it
    /// was not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correct: Option<bool>,
}

/// When things happened to one request, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// From the batch's begin to the moment the request came, in open loop; in closed loop it came when it was admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrived_ns: Option<u64>,
    /// From the batch's begin to the request's entering a slot.
    pub admitted_ns: u64,
    /// From the batch's begin to the first token.
    pub first_ns: u64,
    /// From the tokens before to those of each round, waiting for other requests included; as many as rounds.
    pub step_ns: Vec<u64>,
}

impl Timeline {
    /// From the batch's begin to the moment from which a client waits.
    pub fn began_ns(&self) -> u64 {
        self.arrived_ns.unwrap_or(self.admitted_ns)
    }

    /// From the batch's begin to the last token.
    pub fn finished_ns(&self) -> u64 {
        self.first_ns + self.step_ns.iter().sum::<u64>()
    }
}

/// Lists of equal length, one entry a round. Identity: `n_tokens == 1 + sum(committed)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rounds {
    /// Drafts proposed.
    pub drafted: Vec<u32>,
    /// Drafts verified, after the scheduler's cut.
    pub verified: Vec<u32>,
    /// Drafts kept by the acceptance rule.
    pub accepted: Vec<u32>,
    /// Tokens added to the answer: accepted + bonus, cut at a stop token or at the length limit.
    pub committed: Vec<u32>,
    /// The drafter's confidence in each drafted token, in millionths; absent if it gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence_ppm: Option<Vec<Vec<u32>>>,
}

/// Nanoseconds by phase of the decode loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phases {
    /// The target reads the prompt.
    pub prefill_ns: u64,
    /// The drafter takes over the prompt.
    pub start_ns: u64,
    /// The drafter proposes, `head_ns` left out.
    pub draft_ns: u64,
    /// A head chooses tokens once the drafter's trunk has run.
    pub head_ns: u64,
    /// The scheduler cuts.
    pub schedule_ns: u64,
    /// The target verifies.
    pub verify_ns: u64,
    /// The acceptance rule decides.
    pub judge_ns: u64,
    /// Roll-back and hand-over to the drafter.
    pub commit_ns: u64,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// Its last token is a stop token.
    Stop,
    /// It reached the length limit.
    Length,
}

/// Runs of 8 tokens in one answer. Looping text is easy to draft, so a tau comes with this share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grams {
    /// All runs: `n_tokens - 7`, or 0.
    pub total: u32,
    /// Runs that occurred before in the same answer.
    pub repeated: u32,
}

/// Percentage of repeated runs above which an answer is a loop.
const LOOP_PERCENT: u64 = 30;

impl Grams {
    /// Whether over 30 % of the runs occurred before, so that the answer says little about drafting other text.
    pub fn is_loop(&self) -> bool {
        u64::from(self.repeated) * 100 > u64::from(self.total) * LOOP_PERCENT
    }

    /// Counts the runs of 8 in an answer.
    pub fn of(tokens: &[u32]) -> Self {
        let distinct: BTreeSet<&[u32]> = tokens.windows(8).collect();
        let total = tokens.len().saturating_sub(7);
        Self {
            total: total as u32,
            repeated: (total - distinct.len()) as u32,
        }
    }
}

impl Phases {
    /// Everything but the prompt's prefill: what one answer took of the machine's time while it was decoded.
    pub fn decoding_ns(&self) -> u64 {
        self.start_ns
            + self.draft_ns
            + self.head_ns
            + self.schedule_ns
            + self.verify_ns
            + self.judge_ns
            + self.commit_ns
    }
}

/// What a reader of a record of this schema is told, if it is not [`SCHEMA`].
pub(crate) fn other_version(schema: u32) -> Option<String> {
    (!(OLDEST..=SCHEMA).contains(&schema)).then(|| {
        format!(
            "schema is {schema}, this program reads {OLDEST} to {SCHEMA}; read the run with the version that wrote it"
        )
    })
}

impl Record {
    /// Says what is inconsistent about the record, if anything.
    pub fn fault(&self) -> Option<String> {
        if let Some(why) = other_version(self.schema) {
            return Some(why);
        }
        let Outcome::Ok(answer) = &self.outcome else {
            return None;
        };
        if self.prompt.is_none() {
            return Some("an answer without a prompt".into());
        }
        answer.fault()
    }
}

impl Answer {
    fn fault(&self) -> Option<String> {
        let Rounds {
            drafted,
            verified,
            accepted,
            committed,
            confidence_ppm,
        } = &self.rounds;
        let n = committed.len();
        if let Some(rounds) = confidence_ppm {
            let fits = |(list, d): (&Vec<u32>, &u32)| {
                list.len() == *d as usize && list.iter().all(|c| *c <= 1_000_000)
            };
            if rounds.len() != n || !rounds.iter().zip(drafted).all(fits) {
                return Some("confidences do not fit the drafts, or exceed 1,000,000".into());
            }
        }
        if [drafted.len(), verified.len(), accepted.len()] != [n; 3] {
            return Some("the four round lists differ in length".into());
        }
        if self.timeline.step_ns.len() != n {
            let steps = self.timeline.step_ns.len();
            return Some(format!("{steps} step times for {n} rounds"));
        }
        if self.timeline.admitted_ns < self.timeline.began_ns() {
            return Some("the request was admitted before it came".into());
        }
        if self.timeline.first_ns < self.timeline.admitted_ns {
            return Some("the first token came before the request".into());
        }
        let total = 1 + committed.iter().map(|c| u64::from(*c)).sum::<u64>();
        if total != u64::from(self.n_tokens) {
            return Some(format!(
                "n_tokens is {}, the first token and the committed ones make {total}",
                self.n_tokens
            ));
        }
        if let Some(tokens) = self.tokens.as_ref().filter(|t| t.len() as u64 != total) {
            return Some(format!("{} token ids for {total} tokens", tokens.len()));
        }
        (0..n)
            .find(|i| {
                let [d, v, a, c] = [drafted[*i], verified[*i], accepted[*i], committed[*i]];
                v > d || a > v || c > a.saturating_add(1) || c == 0
            })
            .map(|i| {
                format!(
                    "round {i} breaks accepted <= verified <= drafted or 1 <= committed <= accepted + 1"
                )
            })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An answer whose rounds are `(accepted, committed)` of 3 drafts each, at 1 us a token.
    pub(crate) fn answer(rounds: &[(u32, u32)]) -> Answer {
        let n_tokens = 1 + rounds.iter().map(|r| r.1).sum::<u32>();
        Answer {
            n_tokens,
            tokens_sha256: format!("hash of {n_tokens}"),
            tokens: None,
            rounds: Rounds {
                drafted: vec![3; rounds.len()],
                verified: vec![3; rounds.len()],
                accepted: rounds.iter().map(|r| r.0).collect(),
                committed: rounds.iter().map(|r| r.1).collect(),
                confidence_ppm: None,
            },
            ended: Ended::Stop,
            prefill_ns: 50,
            decode_ns: u64::from(n_tokens - 1) * 1000,
            batch_ns: 50 + u64::from(n_tokens - 1) * 1000,
            timeline: Timeline {
                arrived_ns: None,
                admitted_ns: 0,
                first_ns: 50,
                step_ns: rounds.iter().map(|r| u64::from(r.1) * 1000).collect(),
            },
            phases: Phases::default(),
            grams: Grams {
                total: 10,
                repeated: 1,
            },
            correct: None,
        }
    }

    pub(crate) fn record(method: &str, prompt: &str, answer: Answer) -> Record {
        Record {
            schema: SCHEMA,
            run: "r".into(),
            cell: cell(method),
            prompt: Some(PromptKey {
                id: prompt.into(),
                sample: 0,
                pass: 0,
                turn: 0,
                sha256: "p".into(),
                n_tokens: 4,
            }),
            outcome: Outcome::Ok(Box::new(answer)),
        }
    }

    pub(crate) fn cell(method: &str) -> Cell {
        Cell {
            target: "toy".into(),
            suite: "mini".into(),
            sampling: SamplingKey::Greedy,
            thinking: Thinking::Off,
            concurrency: 1,
            arrivals: ArrivalKey::Closed,
            method: method.into(),
        }
    }

    #[test]
    fn repeated_runs_of_eight_are_counted_from_their_second_occurrence() {
        assert_eq!(Grams::of(&[]), Grams::default());
        assert_eq!(Grams::of(&[1; 7]), Grams::default());
        let all_equal = Grams::of(&[1; 10]);
        assert_eq!((all_equal.total, all_equal.repeated), (3, 2));
        let rising: Vec<u32> = (0..20).collect();
        let once = Grams::of(&rising);
        assert_eq!((once.total, once.repeated), (13, 0));
        let twice = Grams::of(&[rising.clone(), rising].concat());
        assert_eq!((twice.total, twice.repeated), (33, 13));
        let is_loop = |repeated, total| Grams { total, repeated }.is_loop();
        assert_eq!(
            [is_loop(0, 0), is_loop(3, 10), is_loop(4, 10)],
            [false, false, true]
        );
    }

    #[test]
    fn a_record_reads_back_from_json_unchanged() {
        let mut skipped = record("dflash", "p1", answer(&[]));
        skipped.prompt = None;
        skipped.outcome = Outcome::Skipped {
            why: "no drafter".into(),
        };
        let answered = record("dflash", "p1", answer(&[(2, 3), (0, 1)]));
        for rec in [answered, skipped] {
            let text = serde_json::to_string(&rec).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), rec);
            assert_eq!(rec.fault(), None);
        }
    }

    #[test]
    fn records_that_contradict_themselves_are_found() {
        let good = record("dflash", "p1", answer(&[(2, 3), (0, 1)]));
        let spoil = |change: fn(&mut Answer)| {
            let mut rec = good.clone();
            if let Outcome::Ok(a) = &mut rec.outcome {
                change(a);
            }
            rec.fault().unwrap_or_default()
        };
        assert!(spoil(|a| a.n_tokens = 9).contains("n_tokens is 9"));
        assert!(spoil(|a| a.rounds.drafted.truncate(1)).contains("differ in length"));
        assert!(spoil(|a| a.timeline.step_ns.truncate(1)).contains("1 step times for 2"));
        assert!(spoil(|a| a.timeline.arrived_ns = Some(1)).contains("before it came"));
        assert!(spoil(|a| a.timeline.admitted_ns = 60).contains("before the request"));
        assert!(spoil(|a| a.rounds.accepted[1] = 4).contains("round 1 breaks"));
        assert!(spoil(|a| a.rounds.verified[0] = 1).contains("round 0 breaks"));
        let confidences = |lists: &[&[u32]]| Some(lists.iter().map(|l| l.to_vec()).collect());
        let mut sure = good.clone();
        if let Outcome::Ok(a) = &mut sure.outcome {
            a.rounds.confidence_ppm = confidences(&[&[9, 8, 7], &[0, 1_000_000, 2]]);
        }
        assert_eq!(sure.fault(), None);
        let text = serde_json::to_string(&sure).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), sure);
        assert!(spoil(|a| a.rounds.confidence_ppm = Some(vec![])).contains("confidences"));
        let above = |a: &mut Answer| a.rounds.confidence_ppm = Some(vec![vec![1_000_001; 3]; 2]);
        assert!(spoil(above).contains("confidences"));
        assert!(spoil(|a| a.tokens = Some(vec![1, 2])).contains("2 token ids for 5"));
        let older = Record {
            schema: 4,
            ..good.clone()
        };
        assert_eq!(older.fault(), None);
        let other = Record { schema: 7, ..good };
        assert!(other.fault().unwrap_or_default().contains("schema is 7"));
    }
}
