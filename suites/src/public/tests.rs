use super::*;
use datasets::public::Reference;
use std::collections::BTreeSet;
use std::fs;

/// A suite of two rows, one of them left out, and a stand-in of one row. The pins are `sha256sum`'s of the files.
fn tiny() -> (Public, [&'static str; 2]) {
    let rows = [
        "{\"turns\": [\"a\", \"b\"]}\n{\"turns\": [\"c\"]}\n",
        "{\"turns\": [\"c\"]}\n",
    ];
    let [whole, part] = rows.map(|text| datasets::sha256_bytes(text.as_bytes()));
    let text = format!(
        "id = \"tiny\"\ntitle = \"T\"\ndomain = \"chat\"\nupstream = \"mt-bench\"\nrepository = \"o/r\"\nrevision = \"main\"\n\
         split = \"test\"\nfiles = [\"data/one.jsonl\", \"two.jsonl\"]\ntransform = 1\nlicence = \"MIT\"\nrows = 2\n\
         sha256 = \"{whole}\"\nleave_out = [0]\n[[stand_in]]\nfile = \"part.jsonl\"\nabout = \"a part\"\nrows = 1\nsha256 = \"{part}\"\n"
    );
    (parse("tiny", &text).unwrap(), rows)
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

#[test]
fn every_definition_is_read_and_all_but_one_are_pinned() {
    let unpinned: Vec<&str> = public_ids()
        .into_iter()
        .filter(|id| public(id).unwrap().sha256.is_none())
        .collect();
    assert_eq!(unpinned, ["alpaca"]);
    let ids: BTreeSet<&str> = public_ids().into_iter().chain(crate::ids()).collect();
    assert_eq!(ids.len(), public_ids().len() + crate::ids().len());
}

#[test]
fn raw_rows_and_converted_ones_are_the_same_suite() {
    let (tiny, [converted, _]) = tiny();
    let raw = [
        "{\"prompt_id\": 81, \"prompt\": [\"a\", \"b\"]}\n",
        "{\"prompt_id\": 82, \"prompt\": [\"c\"]}\n",
    ];
    for files in [
        vec![("tiny.jsonl", converted)],
        vec![("eval/tiny.jsonl", converted)],
        vec![("tiny/data/one.jsonl", raw[0]), ("tiny/two.jsonl", raw[1])],
        vec![("tiny/one.jsonl", raw[0]), ("tiny/two.jsonl", raw[1])],
    ] {
        let dir = folder(&files);
        let content = tiny.read(dir.path()).unwrap().unwrap();
        assert_eq!(Some(&content.sha256), tiny.sha256.as_ref());
        assert_eq!((content.rows.len(), content.remark), (2, None));
        // Row 0 is left out; ids are row numbers all the same.
        let asked: Vec<u32> = content.suite.prompts.iter().map(|p| p.id).collect();
        assert_eq!(asked, [1]);
    }
    assert_eq!(tiny.read(folder(&[]).path()).unwrap(), None);
}

#[test]
fn a_stand_in_is_taken_if_nothing_else_is_there_and_says_so() {
    let (tiny, [converted, part]) = tiny();
    let dir = folder(&[("part.jsonl", part)]);
    let content = tiny.read(dir.path()).unwrap().unwrap();
    assert_eq!(content.remark.as_deref(), Some("a part"));
    fs::write(dir.path().join("tiny.jsonl"), converted).unwrap();
    assert_eq!(tiny.read(dir.path()).unwrap().unwrap().remark, None);
}

#[test]
fn another_content_is_an_error_with_both_hashes_and_the_remedy() {
    let (tiny, [converted, _]) = tiny();
    let other = converted.replace("\"c\"", "\"d\"");
    let dir = folder(&[("tiny.jsonl", &other)]);
    let error = tiny.read(dir.path()).unwrap_err().to_string();
    let got = datasets::sha256_bytes(other.as_bytes());
    for part in [
        "tiny.jsonl",
        &got,
        tiny.sha256.as_ref().unwrap(),
        "draftbench data pull tiny",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn references_come_from_the_row_or_from_the_folder_beside() {
    let (mut tiny, [converted, _]) = tiny();
    tiny.leave_out.clear();
    let answer = |answer: &str| {
        Some(Reference::Answer {
            answer: answer.into(),
        })
    };
    let own = converted.replace("[\"c\"]", "[\"c\"], \"reference\": {\"answer\": \"own\"}");
    let refs = "{\"i\": 0, \"answer\": \"4\"}\n{\"i\": 1, \"answer\": \"5\"}\n";
    for files in [
        [("tiny.jsonl", own.as_str()), ("refs/tiny.jsonl", refs)],
        [("eval/tiny.jsonl", own.as_str()), ("refs/tiny.jsonl", refs)],
    ] {
        let dir = folder(&files);
        let prompts = tiny.read(dir.path()).unwrap().unwrap().suite.prompts;
        let got: Vec<_> = prompts.into_iter().map(|p| p.reference).collect();
        assert_eq!(got, [answer("4"), answer("own")]);
        let eval = dir.path().join("eval");
        if eval.is_dir() {
            let prompts = tiny.read(&eval).unwrap().unwrap().suite.prompts;
            assert_eq!(prompts[0].reference, answer("4"));
        }
    }
}

#[test]
fn a_definition_with_an_unknown_key_or_a_bad_hash_is_refused() {
    let text = include_str!("../../gsm8k.toml");
    let error = parse("gsm8k", &format!("speed = 1\n{text}"))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("gsm8k.toml: ") && error.contains("`speed`"),
        "{error}"
    );
    let error = parse("gsm8k", &text.replace("sha256 = \"6333", "sha256 = \"")).unwrap_err();
    assert!(
        error.to_string().contains("not 64 hexadecimal digits"),
        "{error}"
    );
    let error = public("gsm9k").unwrap_err().to_string();
    assert!(
        error.contains("suite \"gsm9k\" is unknown; known: gsm8k, "),
        "{error}"
    );
}
