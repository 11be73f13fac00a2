//! One converter an upstream source: from a row as its owner publishes it to turns and a reference.

use super::{PublicRow, Reference};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Closes every maths prompt; one line feed goes before it.
const STEP_BY_STEP: &str =
    "Please reason step by step, and put your final answer within \\boxed{}.";

/// A source of rows, by the shape of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Upstream {
    /// `question`, `answer` whose last line is `#### ` and the result.
    Gsm8k,
    /// `problem`, `answer`, `unique_id`.
    Math500,
    /// `id`, `problem`, `answer` as text.
    Aime24,
    /// `problem_idx`, `problem`, `answer` as a number.
    Aime25,
    /// `task_id`, `prompt`, `entry_point`, `test`.
    Humaneval,
    /// `task_id`, `prompt`, `test_imports`, `test_list`: the sanitized part.
    Mbpp,
    /// `question_id`, `question_content`, `starter_code`, which may be empty.
    Livecodebench,
    /// `instance_id`, `problem_statement`.
    SweBench,
    /// `prompt_id`, `prompt` as a list of turns.
    MtBench,
    /// `instruction`, `input`, which may be empty.
    Alpaca,
    /// `task_id`, `instruction`.
    Lbpp,
    /// `uid`, `prompt`.
    ArenaHard,
}

/// A row before it has an id: upstream's own, the turns, the reference.
type Parts = (Option<String>, Vec<String>, Option<Reference>);

impl Upstream {
    /// Converts one row; keys that are not needed are passed over, since upstream rows have many.
    ///
    /// # Errors
    /// What is wrong with the row, in words: a key that is missing or of another type, a result that is not there.
    pub fn convert(self, row_idx: usize, row: Value) -> Result<PublicRow, String> {
        let (id, turns, reference) = match self {
            Upstream::Gsm8k => gsm8k(parse(row)?)?,
            Upstream::Math500 | Upstream::Aime24 | Upstream::Aime25 => maths(parse(row)?)?,
            Upstream::Humaneval => humaneval(parse(row)?),
            Upstream::Mbpp => mbpp(parse(row)?)?,
            Upstream::Livecodebench => livecodebench(&parse(row)?),
            Upstream::SweBench => swe_bench(parse(row)?),
            Upstream::MtBench => mt_bench(parse(row)?)?,
            Upstream::Alpaca => alpaca(&parse(row)?),
            Upstream::Lbpp => lbpp(parse(row)?),
            Upstream::ArenaHard => arena_hard(parse(row)?),
        };
        if turns.is_empty() || turns.iter().any(|turn| turn.trim().is_empty()) {
            return Err("a turn is empty".into());
        }
        Ok(PublicRow {
            id: id.unwrap_or_else(|| row_idx.to_string()),
            turns,
            reference,
        })
    }
}

fn parse<Row: for<'de> Deserialize<'de>>(row: Value) -> Result<Row, String> {
    serde_json::from_value(row).map_err(|error| error.to_string())
}

/// The text of a string or a number.
fn plain(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(format!("{other} is neither text nor a number")),
    }
}

fn step_by_step(problem: &str) -> Vec<String> {
    vec![format!("{problem}\n{STEP_BY_STEP}")]
}

#[derive(Deserialize)]
struct Gsm8k {
    question: String,
    answer: String,
}

fn gsm8k(row: Gsm8k) -> Result<Parts, String> {
    let last = row.answer.trim_end().lines().last().unwrap_or_default();
    let result = last
        .strip_prefix("#### ")
        .ok_or("`answer` does not end in a `#### ` line")?;
    let answer = result.trim().replace(',', "");
    let reference = Reference::Answer { answer };
    Ok((None, step_by_step(&row.question), Some(reference)))
}

#[derive(Deserialize)]
struct Maths {
    #[serde(alias = "unique_id", alias = "problem_idx")]
    id: Option<Value>,
    problem: String,
    answer: Value,
}

fn maths(row: Maths) -> Result<Parts, String> {
    let id = row.id.as_ref().map(plain).transpose()?;
    let answer = plain(&row.answer)?;
    let reference = Reference::Answer { answer };
    Ok((id, step_by_step(&row.problem), Some(reference)))
}

#[derive(Deserialize)]
struct Humaneval {
    task_id: String,
    prompt: String,
    entry_point: String,
    test: String,
}

fn humaneval(row: Humaneval) -> Parts {
    let turn = format!(
        "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{}\n```",
        row.prompt
    );
    let reference = Reference::Function {
        entry_point: row.entry_point,
        test: row.test,
    };
    (Some(row.task_id), vec![turn], Some(reference))
}

#[derive(Deserialize)]
struct Mbpp {
    task_id: Value,
    prompt: String,
    #[serde(default)]
    test_imports: Vec<String>,
    test_list: Vec<String>,
}

fn mbpp(row: Mbpp) -> Result<Parts, String> {
    let reference = Reference::Asserts {
        test_imports: row.test_imports,
        test_list: row.test_list,
    };
    Ok((
        Some(plain(&row.task_id)?),
        vec![row.prompt],
        Some(reference),
    ))
}

#[derive(Deserialize)]
struct Livecodebench {
    question_id: String,
    question_content: String,
    starter_code: String,
}

fn livecodebench(row: &Livecodebench) -> Parts {
    let (format, code) = match row.starter_code.is_empty() {
        true => (
            "Write your code in the following format:",
            "# YOUR CODE HERE",
        ),
        false => (
            "Use the following code structure:",
            row.starter_code.as_str(),
        ),
    };
    let turn = format!(
        "You are an expert Python programmer. You will be given a question (problem specification) and will generate a \
         correct Python program that matches the specification and passes all tests. You will NOT return anything \
         except for the program\n\n### Question:\n{}\n\n### Format: {format}\n```python\n{code}\n```\n\n\
         ### Answer: (use the provided format with backticks)",
        row.question_content
    );
    (Some(row.question_id.clone()), vec![turn], None)
}

#[derive(Deserialize)]
struct SweBench {
    instance_id: String,
    problem_statement: String,
}

fn swe_bench(row: SweBench) -> Parts {
    let turn = format!(
        "Problem Statement:\n{}\nPlease fix the issue described above.",
        row.problem_statement
    );
    (Some(row.instance_id), vec![turn], None)
}

#[derive(Deserialize)]
struct MtBench {
    prompt_id: Option<Value>,
    prompt: Vec<String>,
}

fn mt_bench(row: MtBench) -> Result<Parts, String> {
    let id = row.prompt_id.as_ref().map(plain).transpose()?;
    Ok((id, row.prompt, None))
}

#[derive(Deserialize)]
struct Alpaca {
    instruction: String,
    #[serde(default)]
    input: String,
}

fn alpaca(row: &Alpaca) -> Parts {
    let turn = match row.input.is_empty() {
        true => row.instruction.clone(),
        false => format!("{}\n\nInput:\n{}", row.instruction, row.input),
    };
    (None, vec![turn], None)
}

#[derive(Deserialize)]
struct Lbpp {
    task_id: Option<String>,
    instruction: String,
}

fn lbpp(row: Lbpp) -> Parts {
    (row.task_id, vec![row.instruction], None)
}

#[derive(Deserialize)]
struct ArenaHard {
    uid: Option<String>,
    prompt: String,
}

fn arena_hard(row: ArenaHard) -> Parts {
    (row.uid, vec![row.prompt], None)
}
