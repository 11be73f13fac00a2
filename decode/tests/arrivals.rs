//! Open loop: when requests come changes when they are answered, never what.

mod common;

use common::{SAMPLED, chain, prompts, run_on, settings};
use decode::toy::{ToyLaw, ToyTarget};
use decode::{Arrivals, Error, Generation, Parts, Probe, RequestId, Silent, VerifyAll};

const VOCAB: usize = 24;
const SLOTS: usize = 3;

fn target() -> ToyTarget {
    ToyTarget::new(VOCAB, SLOTS, 256, &[0])
}

fn run(arrivals: &mut dyn Arrivals, probe: &mut dyn Probe) -> decode::Result<Vec<Generation>> {
    let parts = Parts {
        target: &mut target(),
        drafter: &mut chain(VOCAB, ToyLaw::Full),
        scheduler: &mut VerifyAll,
        probe,
    };
    decode::decode_arriving(
        parts,
        prompts(VOCAB as u32, 20),
        &settings(SLOTS, SAMPLED, 3),
        arrivals,
    )
}

/// One more request every few times it is asked, or at once where nothing is decoded.
struct Trickle {
    asked: usize,
    come: usize,
}

impl Arrivals for Trickle {
    fn arrived(&mut self, taken: usize, idle: bool) -> usize {
        self.asked += 1;
        if self.asked.is_multiple_of(4) {
            self.come += 1;
        }
        if idle {
            self.come = self.come.max(taken + 1);
        }
        self.come
    }
}

/// The order of admissions, and how many sequences were live.
#[derive(Default)]
struct Watch {
    admitted: Vec<RequestId>,
    live: Vec<usize>,
}

impl Probe for Watch {
    fn admitted(&mut self, id: RequestId) {
        self.admitted.push(id);
    }

    fn enter(&mut self, phase: decode::Phase, rows: usize) {
        if phase == decode::Phase::Verify {
            self.live.push(rows);
        }
    }
}

#[test]
fn requests_that_trickle_in_get_the_text_of_requests_that_come_together() {
    let mut watch = Watch::default();
    let mut trickle = Trickle { asked: 0, come: 0 };
    let mut got = run(&mut trickle, &mut watch).unwrap();
    got.sort_by_key(|g| g.id);
    let requests = prompts(VOCAB as u32, 20);
    let want = run_on(
        &mut target(),
        &mut chain(VOCAB, ToyLaw::Full),
        requests,
        &settings(SLOTS, SAMPLED, 3),
    );
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(&want) {
        assert_eq!((got.id, &got.tokens), (want.id, &want.tokens));
        assert_eq!(got.rounds, want.rounds);
    }
    assert!(watch.admitted.is_sorted(), "in their order");
    let fewest = watch.live.iter().min();
    assert!(fewest < Some(&SLOTS), "slots stay free until requests come");
}

/// Never waits.
struct Deaf;

impl Arrivals for Deaf {
    fn arrived(&mut self, _taken: usize, _idle: bool) -> usize {
        2
    }
}

#[test]
fn arrivals_that_do_not_wait_while_nothing_is_decoded_are_an_error_and_no_endless_loop() {
    let err = run(&mut Deaf, &mut Silent).unwrap_err();
    let Error::Contract { who, what } = err else {
        panic!("{err}");
    };
    assert_eq!(who, "arrivals");
    assert!(what.contains("38 requests are left"), "{what}");
}
