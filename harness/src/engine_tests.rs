//! The engine over decode's toy target, whose text is known.

use anyhow::Result;
use decode::toy::{Oracle, ToyTarget, Wrong};
use decode::{Anchor, Committed, Drafter, LayerId, Probe, Proposal, Sampling, Slot, TokenIo};
use reports::{ArrivalKey, Cell, Equality, Outcome, PromptKey, Record, SamplingKey, Thinking};

use crate::engine::{Arm, Ask, Job, Next, Sink, Talk, Tokens, measure};
use crate::equality::Ledger;
use crate::schedule::Schedule;
use crate::synthetic::Acceptance;

const VOCAB: usize = 11;
const SLOTS: usize = 4;

/// Keeps what it is handed.
#[derive(Default)]
struct Kept {
    records: Vec<Record>,
    startups: Vec<Record>,
    ledger: Ledger,
}

impl Sink for Kept {
    fn take(&mut self, record: Record, tokens: &[u32]) -> Result<()> {
        if let Some(prompt) = &record.prompt {
            self.ledger.add(&record.cell, prompt, tokens);
        }
        match record.outcome {
            Outcome::Started(_) => self.startups.push(record),
            _ => self.records.push(record),
        }
        Ok(())
    }
}

impl Kept {
    /// Method and prompt of every answer, in order.
    fn order(&self) -> Vec<String> {
        let name = |r: &Record| {
            let prompt = r.prompt.as_ref().map_or("-", |p| &p.id);
            format!("{}{prompt}", &r.cell.method[..1])
        };
        self.records.iter().map(name).collect()
    }
}

/// Proposes nothing, and errs over a prompt that begins with a token.
struct Breaks {
    at: Option<u32>,
    is_broken: bool,
}

impl Breaks {
    fn at(token: Option<u32>) -> Box<Self> {
        Box::new(Self {
            at: token,
            is_broken: false,
        })
    }
}

impl Drafter for Breaks {
    fn taps(&self) -> &[LayerId] {
        &[]
    }
    fn max_draft(&self) -> usize {
        1
    }
    fn start(&mut self, prompt: Committed<'_>) -> decode::Result<()> {
        self.is_broken = self.at == Some(prompt.fed[0]);
        Ok(())
    }
    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        _io: &dyn TokenIo,
        _sampling: Sampling,
        _probe: &mut dyn Probe,
    ) -> decode::Result<Vec<Proposal>> {
        if self.is_broken {
            return Err(decode::Error::Model("the drafter broke".into()));
        }
        Ok(rows.iter().map(|_| Proposal::none()).collect())
    }
    fn commit(&mut self, _rows: Vec<Committed<'_>>) -> decode::Result<()> {
        Ok(())
    }
    fn finish(&mut self, _slot: Slot) {}
}

/// Every prompt is one turn.
struct Alone;

impl Talk for Alone {
    fn next(&self, _ask: &Ask, _answer: &[u32]) -> Next {
        Next::Over
    }

    fn judge(&self, _ask: &Ask, _answer: &[u32]) -> Option<bool> {
        None
    }
}

fn vanilla() -> Arm {
    Arm {
        method: "vanilla".into(),
        schedule: Schedule::All,
        acceptance: Acceptance::Real,
        drafter: Breaks::at(None),
    }
}

fn oracle(method: &str, wrong: Wrong) -> Arm {
    Arm {
        method: method.into(),
        schedule: Schedule::All,
        acceptance: Acceptance::Real,
        drafter: Box::new(Oracle::new(3, wrong, SLOTS)),
    }
}

/// Prompts of these lengths.
pub(crate) fn asks_of(lengths: &[usize]) -> Vec<Ask> {
    let ask = |(i, len): (usize, &usize)| Ask {
        tokens: vec![1; *len],
        ..asks(i as u32 + 1).remove(i)
    };
    lengths.iter().enumerate().map(ask).collect()
}

fn asks(n: u32) -> Vec<Ask> {
    let ask = |i: u32| Ask {
        id: u64::from(i),
        prompt: PromptKey {
            id: i.to_string(),
            sample: 0,
            pass: 0,
            turn: 0,
            sha256: String::new(),
            n_tokens: 2,
        },
        tokens: vec![i % VOCAB as u32, 5],
        turns: Vec::new(),
        later: Vec::new(),
        room: 64,
        reference: None,
    };
    (0..n).map(ask).collect()
}

struct Case {
    sampling: SamplingKey,
    concurrency: u32,
    arrivals: ArrivalKey,
    n_prompts: u32,
    n_done: usize,
    /// Whether prompts have a reference.
    is_checked: bool,
}

const GREEDY: Case = Case {
    sampling: SamplingKey::Greedy,
    concurrency: 1,
    arrivals: ArrivalKey::Closed,
    n_prompts: 3,
    n_done: 0,
    is_checked: false,
};

fn ran(case: &Case, arms: &mut [Arm]) -> Kept {
    ran_on(case, arms, &Alone)
}

fn ran_on(case: &Case, arms: &mut [Arm], talk: &dyn Talk) -> Kept {
    let mut target = ToyTarget::new(VOCAB, SLOTS, 64, &[]);
    let mut asks = asks(case.n_prompts);
    for ask in asks.iter_mut().filter(|_| case.is_checked) {
        let answer = "4".to_owned();
        ask.reference = Some(suites::Reference::Answer { answer });
    }
    let job = Job {
        run: "r",
        cell: Cell {
            target: "toy".into(),
            suite: "mini".into(),
            sampling: case.sampling,
            thinking: Thinking::Off,
            concurrency: case.concurrency,
            arrivals: case.arrivals,
            method: String::new(),
        },
        asks: &asks,
        talk,
        max_new: 13,
        seed: 1,
        tokens: Tokens::Kept,
        cost: None,
        n_done: case.n_done,
        lost: &[],
    };
    let mut kept = Kept::default();
    let mut arms: Vec<&mut Arm> = arms.iter_mut().collect();
    measure(&mut target, &mut arms, &job, &mut kept).unwrap();
    for slot in 0..SLOTS {
        assert!(
            target.cached(Slot(slot)).is_empty(),
            "slot {slot} is free again"
        );
    }
    kept
}

#[test]
fn arms_alternate_prompt_by_prompt_and_turn_round_each_time() {
    let mut arms = [vanilla(), oracle("dflash", Wrong::Never)];
    let kept = ran(&GREEDY, &mut arms);
    assert_eq!(kept.order(), ["v0", "d0", "d1", "v1", "v2", "d2"]);
}

/// Prompts 0 and 1 have a second turn, which holds the answer to the first; that of prompt 1 does not fit.
struct Twice;

impl Talk for Twice {
    fn next(&self, ask: &Ask, answer: &[u32]) -> Next {
        let prompt = PromptKey {
            turn: 1,
            ..ask.prompt.clone()
        };
        match (ask.prompt.id.as_str(), ask.prompt.turn) {
            ("0", 0) => Next::Ask(Ask {
                id: ask.id + 100,
                prompt,
                tokens: [&ask.tokens, answer].concat(),
                ..ask.clone()
            }),
            ("1", 0) => Next::Skip(prompt, "too long".into()),
            _ => Next::Over,
        }
    }

    fn judge(&self, ask: &Ask, _answer: &[u32]) -> Option<bool> {
        Some(ask.prompt.turn == 1)
    }
}

#[test]
fn a_later_turn_follows_the_arms_own_answer_and_is_equal_to_vanillas() {
    for concurrency in [1, 2] {
        let case = Case {
            concurrency,
            is_checked: true,
            ..GREEDY
        };
        let mut arms = [vanilla(), oracle("dflash", Wrong::Slot(2))];
        let kept = ran_on(&case, &mut arms, &Twice);
        let turns = |method: &str| -> Vec<(String, u32, bool)> {
            let its = kept.records.iter().filter(|r| r.cell.method == method);
            let mut turns: Vec<_> = its
                .filter_map(|r| {
                    let prompt = r.prompt.as_ref().filter(|p| p.pass == 0)?;
                    let is_ok = matches!(r.outcome, Outcome::Ok(_));
                    Some((prompt.id.clone(), prompt.turn, is_ok))
                })
                .collect();
            turns.sort();
            turns
        };
        let want = [
            ("0", 0, true),
            ("0", 1, true),
            ("1", 0, true),
            ("1", 1, false),
            ("2", 0, true),
        ]
        .map(|(id, turn, is_ok)| (id.to_owned(), turn, is_ok));
        assert_eq!(turns("vanilla"), want);
        assert_eq!(turns("dflash"), want);
        let answers = kept.records.iter().filter_map(|r| match &r.outcome {
            Outcome::Ok(answer) => Some((r.prompt.as_ref()?.turn, answer.correct)),
            _ => None,
        });
        for (turn, correct) in answers {
            assert_eq!(correct, Some(turn == 1));
        }
        assert!(kept.ledger.n_compared() >= 4);
        assert_eq!(kept.ledger.differences().len(), 0);
    }
}

#[test]
fn batches_run_in_both_orders() {
    let case = Case {
        concurrency: 4,
        n_prompts: 2,
        ..GREEDY
    };
    let mut arms = [vanilla(), oracle("dflash", Wrong::Never)];
    let kept = ran(&case, &mut arms);
    let want = ["v0", "v1", "d0", "d1", "d0", "d1", "v0", "v1"];
    assert_eq!(kept.order(), want);
    let passes: Vec<u32> = kept
        .records
        .iter()
        .filter_map(|r| Some(r.prompt.as_ref()?.pass))
        .collect();
    assert_eq!(passes, [0, 0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn records_are_sound_and_hold_the_oracles_tau() {
    for concurrency in [1, 3] {
        let case = Case {
            concurrency,
            n_prompts: 7,
            ..GREEDY
        };
        let mut arms = [
            vanilla(),
            oracle("dflash", Wrong::Never),
            oracle("eagle", Wrong::Always),
        ];
        let kept = ran(&case, &mut arms);
        assert!(kept.records.iter().all(|r| r.fault().is_none()));
        let stats = reports::cells(&kept.records);
        let taus: Vec<_> = stats
            .iter()
            .map(|(c, s)| (c.method.as_str(), s.tau))
            .collect();
        // 13 tokens: one from prefill, then 12 in rounds of 4 or of 1.
        assert_eq!(
            taus,
            [
                ("dflash", Some(4.0)),
                ("eagle", Some(1.0)),
                ("vanilla", Some(1.0))
            ]
        );
        for stat in stats.values() {
            assert!(stat.tokens_per_sec.is_some_and(|r| r > 0.0));
            assert!(stat.throughput.is_some_and(|r| r > 0.0));
            assert!(matches!(
                stat.equality,
                Equality::Reference | Equality::Exact { .. }
            ));
        }
        assert!(kept.ledger.n_compared() >= 14);
        assert_eq!(kept.ledger.differences(), []);
    }
}

#[test]
fn an_arm_that_errs_is_recorded_and_the_others_go_on() {
    let mut arms = [
        vanilla(),
        Arm {
            method: "broken".into(),
            schedule: Schedule::All,
            acceptance: Acceptance::Real,
            // Warm-up takes prompts 0 and 2.
            drafter: Breaks::at(Some(1)),
        },
        oracle("dflash", Wrong::Never),
    ];
    let kept = ran(&GREEDY, &mut arms);
    let failed: Vec<_> = kept
        .records
        .iter()
        .filter_map(|r| match &r.outcome {
            Outcome::Failed { why } => Some((r.prompt.as_ref()?.id.as_str(), why.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(failed, [("1", "the drafter broke")]);
    assert_eq!(
        kept.order(),
        ["v0", "b0", "d0", "d1", "b1", "v1", "v2", "d2"]
    );
}

#[test]
fn an_arm_that_errs_while_warming_up_gets_one_record_for_the_cell() {
    let mut arms = [
        vanilla(),
        Arm {
            method: "broken".into(),
            schedule: Schedule::All,
            acceptance: Acceptance::Real,
            drafter: Breaks::at(Some(0)),
        },
    ];
    let kept = ran(&GREEDY, &mut arms);
    assert_eq!(kept.order(), ["b-", "v0", "v1", "v2"]);
}

#[test]
fn sampled_text_does_not_depend_on_the_batch_around_it() {
    let of = |concurrency| {
        let case = Case {
            sampling: SamplingKey::at(1000),
            concurrency,
            n_prompts: 6,
            ..GREEDY
        };
        let kept = ran(&case, &mut [vanilla()]);
        let mut answers: Vec<_> = kept
            .records
            .iter()
            .filter_map(|r| match (&r.outcome, &r.prompt) {
                (Outcome::Ok(a), Some(p)) if p.pass == 0 => Some((p.id.clone(), a.tokens.clone()?)),
                _ => None,
            })
            .collect();
        answers.sort();
        answers
    };
    assert_eq!(of(1), of(4));
    assert_eq!(of(1).len(), 6);
}

#[test]
fn batches_that_are_done_are_left_out_and_the_rest_is_as_it_would_have_been() {
    for concurrency in [1, 2] {
        let order = |n_done| {
            let case = Case {
                n_done,
                concurrency,
                ..GREEDY
            };
            let mut arms = [vanilla(), oracle("right", Wrong::Never)];
            ran(&case, &mut arms).order()
        };
        let whole = order(0);
        let batch_len = if concurrency == 1 { 2 } else { 6 };
        for n_done in 0..=whole.len() / batch_len {
            assert_eq!(order(n_done), whole[n_done * batch_len..], "{n_done} done");
        }
    }
}

#[test]
fn every_arm_is_warmed_up_once_and_a_record_tells_what_that_took() {
    let case = Case {
        concurrency: 3,
        ..GREEDY
    };
    let mut arms = [vanilla(), oracle("dflash", Wrong::Never)];
    let kept = ran(&case, &mut arms);
    let methods: Vec<&str> = kept
        .startups
        .iter()
        .map(|r| r.cell.method.as_str())
        .collect();
    assert_eq!(methods, ["vanilla", "dflash"]);
    for record in &kept.startups {
        let Outcome::Started(startup) = &record.outcome else {
            panic!("{record:?}");
        };
        assert!(record.prompt.is_none() && record.fault().is_none());
        assert!(startup.cover_ns > 0 && startup.settle_ns > 0);
        // The cell has 2 passes of 39 tokens, which are 2 batches: the least that settling takes is 3.
        assert_eq!(startup.step_ns.len(), 3, "{startup:?}");
    }
}

#[test]
fn in_open_loop_every_arm_meets_the_same_arrivals_and_gives_the_same_text() {
    let case = Case {
        concurrency: 2,
        // A thousandth of a second apart on average.
        arrivals: "poisson-1000000".parse().unwrap(),
        n_prompts: 7,
        ..GREEDY
    };
    let mut arms = [vanilla(), oracle("dflash", Wrong::Never)];
    let kept = ran(&case, &mut arms);
    let times = |method: &str, pass: u32| -> Vec<(String, u64)> {
        let its = kept.records.iter().filter(|r| r.cell.method == method);
        let mut times: Vec<_> = its
            .filter_map(|r| match (&r.outcome, &r.prompt) {
                (Outcome::Ok(a), Some(p)) if p.pass == pass => {
                    Some((p.id.clone(), a.timeline.arrived_ns?))
                }
                _ => None,
            })
            .collect();
        times.sort();
        times
    };
    assert_eq!(times("vanilla", 0).len(), 7);
    assert!(times("vanilla", 0).is_sorted_by_key(|t| t.1));
    assert_eq!(times("vanilla", 0), times("dflash", 0));
    assert_eq!(times("vanilla", 1), times("dflash", 1));
    assert_ne!(times("vanilla", 0), times("vanilla", 1));
    assert!(kept.records.iter().all(|r| r.fault().is_none()));
    let stats = reports::cells(&kept.records);
    for (cell, stat) in &stats {
        // The last request of a pass comes at its time, so no method is faster than requests are.
        let last_ns = (0..2)
            .map(|pass| times(&cell.method, pass)[6].1)
            .sum::<u64>();
        let rate = stat.latency.answers_per_sec.unwrap();
        assert!(
            rate > 0.0 && rate <= 14e9 / last_ns as f64,
            "{cell}: {rate}"
        );
        assert!(stat.speedup.is_some() && stat.throughput.is_none());
    }
    assert_eq!(kept.ledger.differences(), []);
}
