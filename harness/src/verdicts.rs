//! Whether answers are right: final answers by their text, code by the tests of its reference.

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::Result;
use suites::{Program, Reference};

use crate::execute::Sandbox;

/// Runs programs.
pub(crate) trait Runs {
    /// Whether all tests of a program pass.
    ///
    /// # Errors
    /// If that could not be found out.
    fn passes(&self, program: &Program) -> Result<bool>;
}

impl Runs for Sandbox {
    fn passes(&self, program: &Program) -> Result<bool> {
        Sandbox::passes(self, |proof| program.source(proof))
    }
}

/// Judges the answers of one group. A program is run once however many arms give it, which under greedy decoding all
/// do.
pub(crate) struct Judge<'a> {
    /// Nothing if code must not be run.
    runs: Option<&'a dyn Runs>,
    /// Verdicts by the hash of the program.
    known: RefCell<BTreeMap<String, Option<bool>>>,
    /// Why programs were not run to their end: how many, and the first reason.
    trouble: RefCell<Option<(usize, String)>>,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(runs: Option<&'a dyn Runs>) -> Self {
        Self {
            runs,
            known: RefCell::default(),
            trouble: RefCell::default(),
        }
    }

    /// Whether a text answers `asked`, the user's turn, as the reference wants; `None` if that is not known.
    pub(crate) fn is_right(&self, text: &str, asked: &str, reference: &Reference) -> Option<bool> {
        let Some(runs) = self.runs else {
            return suites::is_right(text, reference);
        };
        let Some(program) = Program::new(text, asked, reference) else {
            return suites::is_right(text, reference);
        };
        // The proof is another one each time, and no part of what is run.
        let key = datasets::sha256_bytes(program.source("").as_bytes());
        let known = self.known.borrow().get(&key).copied();
        known.unwrap_or_else(|| {
            let verdict = runs.passes(&program);
            let verdict = verdict.inspect_err(|err| self.note(err)).ok();
            self.known.borrow_mut().insert(key, verdict);
            verdict
        })
    }

    fn note(&self, err: &anyhow::Error) {
        let mut trouble = self.trouble.borrow_mut();
        let (n, _) = trouble.get_or_insert_with(|| (0, crate::chain(err)));
        *n += 1;
    }

    /// What a person should know of programs without a verdict.
    pub(crate) fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.borrow();
        let (n, why) = trouble.as_ref()?;
        Some(format!(
            "the code of {n} answers could not be run and is not judged, the first since {why}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::bail;

    use super::*;

    /// Finds every program right but the n-th, which breaks.
    struct Counts {
        n: Cell<usize>,
        breaks_at: usize,
    }

    impl Runs for Counts {
        fn passes(&self, _program: &Program) -> Result<bool> {
            self.n.set(self.n.get() + 1);
            if self.n.get() == self.breaks_at {
                bail!("no room");
            }
            Ok(true)
        }
    }

    fn asserts(assert: &str) -> Reference {
        Reference::Asserts {
            test_imports: Vec::new(),
            test_list: vec![assert.to_owned()],
        }
    }

    #[test]
    fn a_program_is_run_once_whoever_gives_it() {
        let counts = Counts {
            n: Cell::new(0),
            breaks_at: 3,
        };
        let judge = Judge::new(Some(&counts));
        let (one, two) = (asserts("assert f() == 1"), asserts("assert f() == 2"));
        let is_right = |text: &str, reference: &Reference| judge.is_right(text, "f", reference);
        for _ in 0..7 {
            assert_eq!(is_right("def f(): return 1", &one), Some(true));
        }
        assert_eq!(counts.n.get(), 1);
        assert_eq!(is_right("def f(): return 1", &two), Some(true));
        assert_eq!(judge.trouble(), None);
        for _ in 0..2 {
            assert_eq!(is_right("def f(): return 2", &two), None);
        }
        assert_eq!(counts.n.get(), 3);
        let trouble = judge.trouble().unwrap();
        assert!(
            trouble.starts_with("the code of 1 answers") && trouble.ends_with("no room"),
            "{trouble}"
        );
    }

    #[test]
    fn without_a_sandbox_only_final_answers_are_judged() {
        let judge = Judge::new(None);
        let code = "def f(): return 1";
        assert_eq!(judge.is_right(code, "f", &asserts("assert f()")), None);
        let answer = Reference::Answer { answer: "1".into() };
        assert_eq!(judge.is_right("It is 1.", "f", &answer), Some(true));
    }
}
