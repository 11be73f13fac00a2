//! The clock: a [`decode::Probe`] that turns what the loop says into nanoseconds.

use std::collections::BTreeMap;
use std::time::Instant;

use decode::{Generation, Phase, Probe, Proposal, RequestId, Round, TokenId};
use reports::{Phases, Timeline};

/// What was measured of one finished request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// From entering a slot to the first token.
    pub(crate) prefill_ns: u64,
    /// From the first token to the end, prefills of other requests taken out.
    pub(crate) decode_ns: u64,
    /// When what happened; the batch began when the stopwatch was made.
    pub(crate) timeline: Timeline,
    /// Where the time went; a shared phase is divided evenly among the live sequences.
    pub(crate) phases: Phases,
    /// Confidences of each round's drafts, in millionths; `None` if a round had none.
    pub(crate) confidence_ppm: Option<Vec<Vec<u32>>>,
}

#[derive(Debug, Default)]
struct Live {
    /// One entry a round.
    confidences: Vec<Option<Vec<u32>>>,
    admitted_ns: u64,
    first_ns: Option<u64>,
    /// When its last tokens came.
    last_ns: u64,
    /// One entry a round.
    step_ns: Vec<u64>,
    /// Time since the first token that went into prefills of other requests.
    stalled_ns: u64,
    phases: Phases,
}

/// A phase that runs.
#[derive(Clone, Copy, Debug)]
struct Open {
    since_ns: u64,
    /// Time that phases inside it took.
    inner_ns: u64,
}

/// Measures every request of one call of [`decode::decode`].
pub(crate) struct Stopwatch<C> {
    clock: C,
    live: BTreeMap<RequestId, Live>,
    /// The request that `Prefill` and `Start` are about.
    entering: RequestId,
    /// Phases entered and not left, outermost first.
    open: Vec<Open>,
    done: BTreeMap<RequestId, Times>,
}

/// A stopwatch that reads the machine's clock, from now on.
pub(crate) fn stopwatch() -> Stopwatch<impl FnMut() -> u64> {
    stopwatch_from(Instant::now())
}

/// A stopwatch that counts from `origin`.
pub(crate) fn stopwatch_from(origin: Instant) -> Stopwatch<impl FnMut() -> u64> {
    Stopwatch::new(move || u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

impl<C: FnMut() -> u64> Stopwatch<C> {
    /// `clock` gives nanoseconds that never fall.
    pub(crate) fn new(clock: C) -> Self {
        Self {
            clock,
            live: BTreeMap::new(),
            entering: 0,
            open: Vec::new(),
            done: BTreeMap::new(),
        }
    }

    /// Times of a request that has finished.
    pub(crate) fn times(&self, id: RequestId) -> Times {
        self.done.get(&id).cloned().unwrap_or_default()
    }

    /// What the clock says.
    pub(crate) fn now(&mut self) -> u64 {
        (self.clock)()
    }

    /// Takes the time since `began_ns` out of every live request's decode time: it went into something else.
    pub(crate) fn leave_out_since(&mut self, began_ns: u64) {
        let spent_ns = self.now().saturating_sub(began_ns);
        for live in self.live.values_mut() {
            live.stalled_ns += spent_ns;
        }
    }

    /// The part of a round that belongs to one sequence.
    fn share(&mut self, phase: Phase, spent_ns: u64) {
        let n_live = self.live.len().max(1) as u64;
        for live in self.live.values_mut() {
            *part(&mut live.phases, phase) += spent_ns / n_live;
        }
    }

    /// A prefill is one request's own; everyone else waits.
    fn charge(&mut self, phase: Phase, spent_ns: u64) {
        for (id, live) in &mut self.live {
            if *id == self.entering {
                *part(&mut live.phases, phase) += spent_ns;
            } else {
                live.stalled_ns += spent_ns;
            }
        }
    }
}

fn part(phases: &mut Phases, phase: Phase) -> &mut u64 {
    match phase {
        Phase::Prefill => &mut phases.prefill_ns,
        Phase::Start => &mut phases.start_ns,
        Phase::Draft => &mut phases.draft_ns,
        Phase::Head => &mut phases.head_ns,
        Phase::Schedule => &mut phases.schedule_ns,
        Phase::Verify => &mut phases.verify_ns,
        Phase::Judge => &mut phases.judge_ns,
        Phase::Commit => &mut phases.commit_ns,
    }
}

impl<C: FnMut() -> u64> Probe for Stopwatch<C> {
    fn enter(&mut self, _phase: Phase, _rows: usize) {
        self.open.push(Open {
            since_ns: (self.clock)(),
            inner_ns: 0,
        });
    }

    fn leave(&mut self, phase: Phase) {
        let now = (self.clock)();
        let Some(open) = self.open.pop() else {
            return;
        };
        let whole_ns = now.saturating_sub(open.since_ns);
        if let Some(outer) = self.open.last_mut() {
            outer.inner_ns += whole_ns;
        }
        let spent_ns = whole_ns.saturating_sub(open.inner_ns);
        match phase {
            Phase::Prefill | Phase::Start => self.charge(phase, spent_ns),
            _ => self.share(phase, spent_ns),
        }
    }

    fn admitted(&mut self, id: RequestId) {
        self.entering = id;
        let live = Live {
            admitted_ns: (self.clock)(),
            ..Live::default()
        };
        self.live.insert(id, live);
    }

    fn first_token(&mut self, id: RequestId, _token: TokenId) {
        let now = (self.clock)();
        if let Some(live) = self.live.get_mut(&id) {
            live.first_ns = Some(now);
            live.last_ns = now;
        }
    }

    fn proposed(&mut self, id: RequestId, proposal: &Proposal) {
        if let Some(live) = self.live.get_mut(&id) {
            let ppm = |c: &f32| (f64::from(c.clamp(0.0, 1.0)) * 1e6).round() as u32;
            let confidence = proposal.confidence.as_ref();
            live.confidences
                .push(confidence.map(|c| c.iter().map(ppm).collect()));
        }
    }

    fn round(&mut self, id: RequestId, _round: &Round, _committed: &[TokenId]) {
        let now = (self.clock)();
        if let Some(live) = self.live.get_mut(&id) {
            live.step_ns.push(now.saturating_sub(live.last_ns));
            live.last_ns = now;
        }
    }

    fn finished(&mut self, generation: &Generation) {
        let now = (self.clock)();
        let Some(live) = self.live.remove(&generation.id) else {
            return;
        };
        let first_ns = live.first_ns.unwrap_or(now);
        let times = Times {
            prefill_ns: first_ns.saturating_sub(live.admitted_ns),
            decode_ns: now.saturating_sub(first_ns + live.stalled_ns),
            timeline: Timeline {
                arrived_ns: None,
                admitted_ns: live.admitted_ns,
                first_ns,
                step_ns: live.step_ns,
            },
            phases: live.phases,
            confidence_ppm: live
                .confidences
                .into_iter()
                .collect::<Option<_>>()
                .filter(|rounds: &Vec<_>| !rounds.is_empty()),
        };
        self.done.insert(generation.id, times);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use decode::Ended;

    use super::*;

    /// A stopwatch and the hand that moves its clock.
    fn by_hand() -> (Stopwatch<impl FnMut() -> u64>, impl Fn(u64)) {
        let now = Rc::new(Cell::new(0));
        let hand = Rc::clone(&now);
        (Stopwatch::new(move || now.get()), move |ns| {
            hand.set(hand.get() + ns)
        })
    }

    fn end(watch: &mut impl Probe, id: RequestId) {
        watch.finished(&Generation {
            id,
            tokens: vec![1],
            rounds: Vec::new(),
            ended: Ended::Stop,
        });
    }

    fn spend(watch: &mut impl Probe, pass: &impl Fn(u64), phase: Phase, ns: u64) {
        watch.enter(phase, 1);
        pass(ns);
        watch.leave(phase);
    }

    #[test]
    fn decode_time_begins_at_the_first_token_and_holds_the_drafters_start() {
        let (mut watch, pass) = by_hand();
        watch.admitted(7);
        spend(&mut watch, &pass, Phase::Prefill, 100);
        watch.first_token(7, 1);
        spend(&mut watch, &pass, Phase::Start, 10);
        spend(&mut watch, &pass, Phase::Draft, 3);
        spend(&mut watch, &pass, Phase::Verify, 20);
        end(&mut watch, 7);
        let times = watch.times(7);
        assert_eq!((times.prefill_ns, times.decode_ns), (100, 33));
        let phases = Phases {
            prefill_ns: 100,
            start_ns: 10,
            draft_ns: 3,
            verify_ns: 20,
            ..Phases::default()
        };
        assert_eq!(times.phases, phases);
    }

    #[test]
    fn a_head_is_not_counted_as_drafting_twice() {
        let (mut watch, pass) = by_hand();
        watch.admitted(7);
        watch.first_token(7, 1);
        watch.enter(Phase::Draft, 1);
        pass(30);
        spend(&mut watch, &pass, Phase::Head, 4);
        pass(1);
        watch.leave(Phase::Draft);
        end(&mut watch, 7);
        let phases = watch.times(7).phases;
        assert_eq!((phases.draft_ns, phases.head_ns), (31, 4));
    }

    #[test]
    fn confidences_are_kept_if_every_round_has_them() {
        let of = |second: Option<Vec<f32>>| {
            let (mut watch, _) = by_hand();
            watch.admitted(7);
            for confidence in [Some(vec![0.25, 1.0]), second] {
                let proposal = Proposal {
                    confidence,
                    ..Proposal::chain(vec![1, 2])
                };
                watch.proposed(7, &proposal);
            }
            end(&mut watch, 7);
            watch.times(7).confidence_ppm
        };
        let want = vec![vec![250_000, 1_000_000], vec![500_000, 0]];
        assert_eq!(of(Some(vec![0.5, 0.0])), Some(want));
        assert_eq!(of(None), None);
    }

    #[test]
    fn steps_are_timed_from_token_to_token() {
        let (mut watch, pass) = by_hand();
        let round = Round {
            drafted: 0,
            verified: 0,
            accepted: 0,
            committed: 1,
        };
        pass(3);
        watch.admitted(7);
        pass(10);
        watch.first_token(7, 1);
        for ns in [20, 5] {
            pass(ns);
            watch.round(7, &round, &[1]);
        }
        end(&mut watch, 7);
        let timeline = watch.times(7).timeline;
        assert_eq!((timeline.admitted_ns, timeline.first_ns), (3, 13));
        assert_eq!(
            (timeline.step_ns.as_slice(), timeline.finished_ns()),
            (&[20, 5][..], 38)
        );
    }

    #[test]
    fn time_that_is_left_out_is_not_decode_time() {
        let (mut watch, pass) = by_hand();
        watch.admitted(7);
        watch.first_token(7, 1);
        pass(5);
        let began_ns = watch.now();
        pass(1000);
        watch.leave_out_since(began_ns);
        pass(6);
        end(&mut watch, 7);
        assert_eq!(watch.times(7).decode_ns, 11);
    }

    #[test]
    fn the_prefill_of_another_request_is_nobody_elses_decode_time() {
        let (mut watch, pass) = by_hand();
        for id in [1, 2] {
            watch.admitted(id);
            spend(&mut watch, &pass, Phase::Prefill, 100);
            watch.first_token(id, 1);
            spend(&mut watch, &pass, Phase::Start, 10);
        }
        spend(&mut watch, &pass, Phase::Verify, 40);
        end(&mut watch, 1);
        spend(&mut watch, &pass, Phase::Verify, 30);
        end(&mut watch, 2);
        // Request 1 waited 110 ns for request 2 to come in; both shared the first verify pass.
        assert_eq!(watch.times(1).decode_ns, 10 + 40);
        assert_eq!(watch.times(1).phases.verify_ns, 20);
        assert_eq!(watch.times(2).decode_ns, 10 + 40 + 30);
        assert_eq!(watch.times(2).phases.verify_ns, 20 + 30);
        assert_eq!(watch.times(2).prefill_ns, 100);
    }
}
