use super::*;
use crate::public::{content_sha256, converted_text};
use ::parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use serde_json::json;
use std::sync::Arc;

const SUFFIX: &str = "\nPlease reason step by step, and put your final answer within \\boxed{}.";

fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

/// One row through a file of its own.
fn one(upstream: Upstream, row: Value) -> PublicRow {
    let (_dir, path) = file("raw.jsonl", &format!("{row}\n"));
    prompts(upstream, &[path]).unwrap().remove(0)
}

fn answer(answer: &str) -> Option<Reference> {
    let answer = answer.to_owned();
    Some(Reference::Answer { answer })
}

#[test]
fn maths_prompts_end_in_the_step_by_step_line_and_keep_their_result() {
    let gsm8k = json!({"question": "A box holds 1,200 pins. How many are half?",
        "answer": "Half is 1200/2 = <<1200/2=600>>600.\n#### 1,600"});
    let math = json!({"problem": "What is $\\frac{1}{2}+1$?", "solution": "...", "answer": "\\frac{3}{2}",
        "subject": "Algebra", "level": 1, "unique_id": "test/algebra/0.json"});
    let aime24 = json!({"id": 60, "problem": " Find $x$. ", "solution": "", "answer": "025", "url": "", "year": "2024"});
    let aime25 = json!({"problem_idx": 1, "problem": "Find $b$.", "answer": 70, "problem_type": ["Algebra"]});
    for (upstream, row, id, text, result) in [
        (
            Upstream::Gsm8k,
            gsm8k,
            "0",
            "A box holds 1,200 pins. How many are half?",
            "1600",
        ),
        (
            Upstream::Math500,
            math,
            "test/algebra/0.json",
            "What is $\\frac{1}{2}+1$?",
            "\\frac{3}{2}",
        ),
        (Upstream::Aime24, aime24, "60", " Find $x$. ", "025"),
        (Upstream::Aime25, aime25, "1", "Find $b$.", "70"),
    ] {
        let row = one(upstream, row);
        assert_eq!(
            (row.id.as_str(), &row.turns),
            (id, &vec![format!("{text}{SUFFIX}")])
        );
        assert_eq!(row.reference, answer(result));
    }
}

#[test]
fn code_prompts_have_their_fences_and_their_tests_beside_them() {
    let row = one(
        Upstream::Humaneval,
        json!({"task_id": "HumanEval/0", "prompt": "def one():\n    \"\"\" One. \"\"\"\n", "canonical_solution": "    return 1\n",
            "test": "def check(candidate):\n    assert candidate() == 1\n", "entry_point": "one"}),
    );
    let head = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n";
    let want = format!("{head}def one():\n    \"\"\" One. \"\"\"\n\n```");
    assert_eq!((row.id.as_str(), row.turns), ("HumanEval/0", vec![want]));
    let Some(Reference::Function { entry_point, .. }) = row.reference else {
        unreachable!("a function is known by its check");
    };
    assert_eq!(entry_point, "one");

    let row = one(
        Upstream::Mbpp,
        json!({"source_file": "x", "task_id": 11, "prompt": "Write a python function to add.", "code": "def add(): pass",
            "test_imports": ["import math"], "test_list": ["assert add(1, 2) == 3"]}),
    );
    assert_eq!(
        (row.id.as_str(), &row.turns[0][..]),
        ("11", "Write a python function to add.")
    );
    let asserts = Reference::Asserts {
        test_imports: vec!["import math".into()],
        test_list: vec!["assert add(1, 2) == 3".into()],
    };
    assert_eq!(row.reference, Some(asserts));

    let code = |starter: &str| {
        let row = json!({"question_title": "t", "question_content": "Read n.\n", "question_id": "1873_A", "starter_code": starter});
        one(Upstream::Livecodebench, row).turns.remove(0)
    };
    let head = "You are an expert Python programmer. You will be given a question (problem specification) and will generate \
        a correct Python program that matches the specification and passes all tests. You will NOT return anything except \
        for the program\n\n### Question:\nRead n.\n\n\n### Format: ";
    let tail = "\n```\n\n### Answer: (use the provided format with backticks)";
    let free = "Write your code in the following format:\n```python\n# YOUR CODE HERE";
    assert_eq!(code(""), format!("{head}{free}{tail}"));
    let started =
        "Use the following code structure:\n```python\nclass Solution:\n    def f(self):\n        ";
    let got = code("class Solution:\n    def f(self):\n        ");
    assert_eq!(got, format!("{head}{started}{tail}"));

    let row = one(
        Upstream::SweBench,
        json!({"repo": "a/b", "instance_id": "a__b-1", "problem_statement": "It fails.\r\n", "patch": ""}),
    );
    let want = "Problem Statement:\nIt fails.\r\n\nPlease fix the issue described above.";
    assert_eq!(
        (row.id.as_str(), &row.turns[0][..], row.reference),
        ("a__b-1", want, None)
    );
}

#[test]
fn chat_prompts_are_taken_as_they_are() {
    let row = one(
        Upstream::MtBench,
        json!({"prompt": ["Say hello.", "Again, louder."], "reference": [], "category": "writing", "prompt_id": 81}),
    );
    assert_eq!(
        (row.id.as_str(), row.turns),
        ("81", vec!["Say hello.".into(), "Again, louder.".into()])
    );
    for (input, want) in [
        ("", "Sort the list."),
        ("3, 1", "Sort the list.\n\nInput:\n3, 1"),
    ] {
        let row =
            json!({"instruction": "Sort the list.", "input": input, "output": "1, 3", "text": ""});
        assert_eq!(one(Upstream::Alpaca, row).turns, [want]);
    }
    let row = one(
        Upstream::ArenaHard,
        json!({"uid": "u1", "category": "c", "subcategory": "s", "prompt": "Why?"}),
    );
    assert_eq!((row.id.as_str(), &row.turns[0][..]), ("u1", "Why?"));
    let row = one(
        Upstream::Lbpp,
        json!({"task_id": "lbpp/0", "instruction": "Write f.", "completion": ""}),
    );
    assert_eq!((row.id.as_str(), &row.turns[0][..]), ("lbpp/0", "Write f."));
}

#[test]
fn a_converted_file_reads_back_and_turns_alone_are_enough() {
    let raw = json!({"question": "2+2?", "answer": "#### 4"});
    let rows = vec![one(Upstream::Gsm8k, raw)];
    let (_dir, path) = file("gsm8k.jsonl", &converted_text(&rows));
    assert_eq!(prompts(Upstream::Gsm8k, &[path]).unwrap(), rows);
    let (_dir, bare) = file(
        "gsm8k.jsonl",
        &format!("{}\n", json!({"turns": rows[0].turns})),
    );
    let bare = prompts(Upstream::Gsm8k, &[bare]).unwrap();
    assert_eq!(content_sha256(&bare), content_sha256(&rows));
    assert_eq!((bare[0].id.as_str(), &bare[0].reference), ("0", &None));
}

#[test]
fn rows_of_several_files_and_of_an_array_are_numbered_through() {
    let row = |text: &str| json!({"instruction": text, "input": ""});
    let (_a, first) = file("a.json", &json!([row("a"), row("b\u{2028}c")]).to_string());
    let (_b, second) = file("b.jsonl", &format!("{}\n\n{}", row("d\u{85}"), row("e")));
    let rows = prompts(Upstream::Alpaca, &[first, second]).unwrap();
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids, ["0", "1", "2", "3"]);
    assert_eq!(rows[1].turns, ["b\u{2028}c"]);
}

#[test]
fn a_row_that_fits_no_shape_is_named_with_file_and_line() {
    let good = json!({"turns": ["a"]});
    for (bad, why) in [
        (json!({"question": "a"}), "missing field `answer`"),
        (
            json!({"question": "a", "answer": "4"}),
            "does not end in a `#### ` line",
        ),
        (json!({"turns": []}), "a turn is empty"),
        (json!({"turns": ["a"], "speed": 1}), "unknown field `speed`"),
        (
            json!({"turns": ["a"], "reference": {"b": 1}}),
            "`reference`: ",
        ),
    ] {
        let (_dir, path) = file("bad.jsonl", &format!("{good}\n{bad}\n"));
        let error = prompts(Upstream::Gsm8k, &[path]).unwrap_err().to_string();
        assert!(
            error.contains("bad.jsonl\":2: ") && error.contains(why),
            "{error}"
        );
    }
}

#[test]
fn references_beside_a_file_are_found_by_row_number() {
    let text = [
        json!({"i": 1, "answer": "3", "level": "Level 2", "type": "Algebra"}),
        json!({"i": 0, "task_id": "t", "entry_point": "f", "test": "def check(candidate): pass"}),
        json!({"i": 2, "task_id": 4, "test_list": ["assert True"]}),
    ]
    .map(|row| row.to_string())
    .join("\n");
    let (_dir, path) = file("refs.jsonl", &text);
    let all = references(&path).unwrap();
    assert_eq!(all.len(), 3);
    assert_eq!(all.get(&1), answer("3").as_ref());
    assert!(matches!(all.get(&0), Some(Reference::Function { .. })));
    assert!(matches!(all.get(&2), Some(Reference::Asserts { .. })));
    let (_dir, path) = file("refs.jsonl", "{\"answer\": \"3\"}");
    assert!(
        references(&path)
            .unwrap_err()
            .to_string()
            .contains("missing field `i`")
    );
}

/// Writes rows of one text column, one number column and one column of lists.
fn parquet_file(path: &Path, rows: &[(&str, i64, &[&str])]) {
    let schema = "message schema {
        optional binary problem (UTF8);
        optional int64 answer;
        optional group prompt (LIST) { repeated group list { optional binary element (UTF8); } }
    }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let out = std::fs::File::create(path).unwrap();
    let properties = WriterProperties::builder()
        .set_compression(::parquet::basic::Compression::SNAPPY)
        .build();
    let mut writer = SerializedFileWriter::new(out, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let ones = vec![1i16; rows.len()];
    let mut column = group.next_column().unwrap().unwrap();
    let texts: Vec<ByteArray> = rows.iter().map(|row| row.0.into()).collect();
    column
        .typed::<ByteArrayType>()
        .write_batch(&texts, Some(&ones), None)
        .unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let numbers: Vec<i64> = rows.iter().map(|row| row.1).collect();
    column
        .typed::<Int64Type>()
        .write_batch(&numbers, Some(&ones), None)
        .unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let lists: Vec<ByteArray> = rows.iter().flat_map(|r| r.2).map(|t| (*t).into()).collect();
    let repeats: Vec<i16> = rows
        .iter()
        .flat_map(|r| (0..r.2.len()).map(|i| i16::from(i > 0)))
        .collect();
    let defined = vec![3i16; lists.len()];
    column
        .typed::<ByteArrayType>()
        .write_batch(&lists, Some(&defined), Some(&repeats))
        .unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn a_parquet_file_reads_like_the_same_rows_as_lines() {
    let dir = tempfile::tempdir().unwrap();
    let packed = dir.path().join("test-00000-of-00001.parquet");
    parquet_file(
        &packed,
        &[("Find é.", 70, &["a", "b"]), ("Find y.", 3, &["c"])],
    );
    let lines = [
        json!({"problem": "Find é.", "answer": 70, "prompt": ["a", "b"]}),
        json!({"problem": "Find y.", "answer": 3, "prompt": ["c"]}),
    ]
    .map(|row| row.to_string())
    .join("\n");
    let (_dir, plain) = file("test.jsonl", &lines);
    for upstream in [Upstream::Aime25, Upstream::MtBench] {
        let both = [&packed, &plain].map(|p| prompts(upstream, std::slice::from_ref(p)).unwrap());
        assert_eq!(both[0], both[1]);
        assert_eq!(both[0].len(), 2);
    }
    std::fs::write(&packed, "not parquet").unwrap();
    let error = prompts(Upstream::Aime25, &[packed])
        .unwrap_err()
        .to_string();
    assert!(error.contains("not readable as Parquet"), "{error}");
}
