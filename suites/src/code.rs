//! The Python program that finds out whether an answer's code is right. Nothing is run here.

use crate::Reference;

/// Runs what [`Program::source`] hands it.
const DRIVER: &str = include_str!("code_driver.py");

/// An answer's code and the tests of its reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Run first: the prompt's code, which has the imports and the helpers that tests count on.
    header: String,
    /// The answer's.
    code: String,
    /// Run behind it.
    imports: String,
    /// Run one after the other.
    tests: Vec<String>,
    /// The function that `check` is called with; empty if tests call what they need.
    entry_point: String,
}

impl Program {
    /// The program for an answer to `asked`, the user's turn; `None` if the reference has no tests.
    ///
    /// The code is the last fenced Python block that defines what is tested, else the last that defines any function,
    /// else the last; blocks of any language where none is Python's; the whole text where there is no block. A thinking
    /// section that ends in `</think>` is no part of the text. A block that is not closed ends with the text.
    ///
    /// A function may be answered by its body alone, which then continues the prompt's code.
    pub fn new(answer: &str, asked: &str, reference: &Reference) -> Option<Self> {
        let answer = answer.rsplit("</think>").next().unwrap_or(answer);
        match reference {
            Reference::Answer { .. } => None,
            Reference::Function { entry_point, test } => {
                let header = code_of(asked, |_| false);
                let code = code_of(answer, |name| name == entry_point);
                let is_whole = functions(&code).any(|name| name == entry_point);
                let (header, code) = match is_whole {
                    true => (header, code),
                    false => (String::new(), format!("{header}\n{}", indented(&code))),
                };
                Some(Self {
                    header,
                    code,
                    imports: String::new(),
                    tests: vec![test.clone()],
                    entry_point: entry_point.clone(),
                })
            }
            Reference::Asserts {
                test_imports,
                test_list,
            } => {
                let is_called = |name: &str| {
                    let call = format!("{name}(");
                    test_list.iter().any(|test| test.contains(&call))
                };
                Some(Self {
                    header: String::new(),
                    code: code_of(answer, is_called),
                    imports: test_imports.join("\n"),
                    tests: test_list.clone(),
                    entry_point: String::new(),
                })
            }
        }
    }

    /// The source text. It writes `proof` as its last line if every test has passed, and never else, unless the
    /// answer knows `proof`; so make it a number that nobody can guess.
    ///
    /// The prompts of mbpp do not name the function that its asserts call. Where an answer lacks it, its last function
    /// stands in, and modules that asserts name are imported.
    pub fn source(&self, proof: &str) -> String {
        let list = |items: &[String]| {
            let items: Vec<String> = items.iter().map(|item| literal(item)).collect();
            format!("[{}]", items.join(", "))
        };
        format!(
            "{DRIVER}\n\nrun(\n    {},\n    {},\n    {},\n    {},\n    {},\n    {},\n)\n",
            literal(&self.header),
            literal(&self.code),
            literal(&self.imports),
            list(&self.tests),
            literal(&self.entry_point),
            literal(proof),
        )
    }
}

/// A Python string literal, which JSON's are.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The code of a text, where `is_wanted` knows the functions that are looked for.
fn code_of(text: &str, is_wanted: impl Fn(&str) -> bool) -> String {
    let mut blocks = blocks(text);
    if blocks.iter().any(|block| block.is_python) {
        blocks.retain(|block| block.is_python);
    }
    let last = |has: &dyn Fn(&Block) -> bool| blocks.iter().rev().find(|block| has(block));
    let found = last(&|block| functions(&block.code).any(&is_wanted))
        .or_else(|| last(&|block| functions(&block.code).next().is_some()))
        .or_else(|| blocks.last());
    found.map_or_else(|| text.to_owned(), |block| block.code.clone())
}

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    is_python: bool,
    code: String,
}

/// The fenced blocks of a text, without the indentation of their fences.
fn blocks(text: &str) -> Vec<Block> {
    let mut out = Vec::new();
    // The block that is open, and its fence's indentation.
    let mut open: Option<(Block, usize)> = None;
    for line in text.lines() {
        let fence = line.trim_start().strip_prefix("```").map(str::trim);
        open = match (open, fence) {
            (None, None) => None,
            (None, Some(language)) => {
                let language = language.to_ascii_lowercase();
                let is_python = ["python", "python3", "py"].contains(&language.as_str());
                let code = String::new();
                let indent = line.len() - line.trim_start().len();
                Some((Block { is_python, code }, indent))
            }
            (Some((block, _)), Some("")) => {
                out.push(block);
                None
            }
            (Some((mut block, indent)), _) => {
                let blank = line.len() - line.trim_start().len();
                block.code.push_str(&line[blank.min(indent)..]);
                block.code.push('\n');
                Some((block, indent))
            }
        };
    }
    out.extend(open.map(|(block, _)| block));
    out
}

/// Names of the functions that code defines at its outermost level.
fn functions(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter_map(|line| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        let (name, _) = line.strip_prefix("def ")?.split_once('(')?;
        Some(name.trim())
    })
}

/// Code that can stand in a function: as it is if its first line is indented, else one level further in.
fn indented(code: &str) -> String {
    let first = code.lines().find(|line| !line.trim().is_empty());
    if first.is_some_and(|line| line.starts_with([' ', '\t'])) {
        return code.to_owned();
    }
    code.lines().map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: &str = "Solve:\n```python\nfrom typing import List\n\n\ndef add(a: int, b: int) -> int:\n    \"\"\" The sum. \"\"\"\n\n```";

    fn function() -> Reference {
        Reference::Function {
            entry_point: "add".into(),
            test: "def check(candidate):\n    assert candidate(1, 2) == 3\n".into(),
        }
    }

    fn asserts() -> Reference {
        Reference::Asserts {
            test_imports: vec!["import math".into()],
            test_list: vec![
                "assert add(1, 2) == 3".into(),
                "assert add(\"a\", \"b\") == 'ab'".into(),
            ],
        }
    }

    fn code(answer: &str, reference: &Reference) -> String {
        Program::new(answer, ASKED, reference).unwrap().code
    }

    #[test]
    fn the_code_is_the_last_block_that_defines_what_is_tested() {
        let add = "def add(a, b):\n    return a + b\n";
        for answer in [
            format!("```python\n{add}```"),
            format!("<think>```python\ndef add(a, b): pass\n```</think>\n```py\n{add}```\nDone."),
            format!("```Python\n{add}```\nUse it so:\n```python\nprint(add(1, 2))\n```"),
            format!("```python\ndef helper(): pass\n```\nbetter:\n```python3\n{add}```"),
            format!("```\n{add}```\n"),
            format!("```bash\npip install\n```\n```python\n{add}```"),
            format!("Cut off:\n```python\n{add}"),
            "1. So:\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n".to_owned(),
        ] {
            for reference in [function(), asserts()] {
                assert_eq!(code(&answer, &reference), add, "{answer}");
            }
        }
        assert_eq!(code(add, &asserts()), add);
        let other = "```python\ndef plus(a, b):\n    return a + b\n```\n```python\nprint(1)\n```";
        assert_eq!(
            code(other, &asserts()),
            "def plus(a, b):\n    return a + b\n"
        );
        assert_eq!(
            code("```python\nx = 1\n```\n```\ny\n```", &asserts()),
            "x = 1\n"
        );
    }

    #[test]
    fn a_whole_function_follows_the_prompts_code_and_a_body_continues_it() {
        let header = "from typing import List\n\n\ndef add(a: int, b: int) -> int:\n    \"\"\" The sum. \"\"\"\n\n";
        let of = |answer: &str| Program::new(answer, ASKED, &function()).unwrap();
        let whole = of("def add(a, b):\n    return a + b\n");
        assert_eq!(whole.header, header);
        for body in [
            "    return a + b\n",
            "return a + b\n",
            "```python\nreturn a + b\n```",
        ] {
            let program = of(body);
            let want = format!("{header}\n    return a + b\n");
            assert_eq!(
                (program.header.as_str(), program.code),
                ("", want),
                "{body}"
            );
        }
        assert_eq!(of("```python\n```").code, format!("{header}\n"));
    }

    #[test]
    fn the_source_hands_every_part_over_as_a_literal() {
        let answer = "def add(a, b):\n    return \"\\n\" '''\u{1}\u{e9}\n";
        let program = Program::new(answer, ASKED, &asserts()).unwrap();
        let source = program.source("p1");
        assert!(source.starts_with(DRIVER));
        let call = source.rsplit_once("\nrun(\n").unwrap().1;
        let want = [
            "\"\"",
            "\"def add(a, b):\\n    return \\\"\\\\n\\\" '''\\u0001\u{e9}\\n\"",
            "\"import math\"",
            "[\"assert add(1, 2) == 3\", \"assert add(\\\"a\\\", \\\"b\\\") == 'ab'\"]",
            "\"\"",
            "\"p1\"",
        ];
        assert_eq!(call, format!("    {},\n)\n", want.join(",\n    ")));
    }

    #[test]
    fn a_final_answer_has_no_program() {
        let reference = Reference::Answer { answer: "1".into() };
        assert_eq!(Program::new("def add(): pass", ASKED, &reference), None);
    }
}
