use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::looping::Request;

/// Says when requests come, in open loop: at their own times, whether or not the ones before are answered.
pub trait Arrivals {
    /// How many requests have come so far, of those handed to [`crate::decode_arriving`], in their order; never
    /// fewer than before. `taken` of them have entered a slot. If `idle`, nothing is being decoded: the answer must
    /// wait until it is above `taken`.
    fn arrived(&mut self, taken: usize, idle: bool) -> usize;
}

/// All requests are there from the begin: closed loop.
pub(crate) struct Together;

impl Arrivals for Together {
    fn arrived(&mut self, _taken: usize, _idle: bool) -> usize {
        usize::MAX
    }
}

/// Requests on their way into a slot.
pub(crate) struct Entry<'a> {
    waiting: VecDeque<Request>,
    taken: usize,
    arrivals: &'a mut dyn Arrivals,
}

impl<'a> Entry<'a> {
    pub(crate) fn new(requests: Vec<Request>, arrivals: &'a mut dyn Arrivals) -> Self {
        Self {
            waiting: requests.into(),
            taken: 0,
            arrivals,
        }
    }

    /// Whether every request has entered a slot.
    pub(crate) fn is_over(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next request, if it has come.
    pub(crate) fn next(&mut self, idle: bool) -> Result<Option<Request>> {
        if self.waiting.is_empty() {
            return Ok(None);
        }
        let arrived = self.arrivals.arrived(self.taken, idle);
        if arrived <= self.taken {
            if idle {
                return Err(Error::Contract {
                    who: "arrivals",
                    what: format!(
                        "nothing is decoded and {} requests are left, yet it did not wait for the next",
                        self.waiting.len()
                    ),
                });
            }
            return Ok(None);
        }
        self.taken += 1;
        Ok(self.waiting.pop_front())
    }
}
