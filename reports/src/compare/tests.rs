use super::*;
use crate::record::tests::{answer, record};
use crate::record::{Outcome, Record};
use crate::run_data::{GroupIdentity, Identity, Setting};

/// `n` prompts answered by vanilla and by dflash, whose rounds for prompt `i` are `rounds(i)`.
fn records(n: usize, rounds: impl Fn(usize) -> Vec<(u32, u32)>) -> Vec<Record> {
    let prompts = 0..n;
    let both = prompts.flat_map(|i| {
        let drafted = answer(&rounds(i));
        let single = vec![(0, 1); drafted.n_tokens as usize - 1];
        let mut vanilla = answer(&single);
        vanilla.rounds.drafted = vec![0; single.len()];
        vanilla.rounds.verified = vec![0; single.len()];
        vanilla.decode_ns *= 2;
        [("vanilla", vanilla), ("dflash", drafted)].map(|(m, a)| record(m, &format!("p{i}"), a))
    });
    both.collect()
}

fn identity() -> Identity {
    Identity {
        run: "r".into(),
        program: "1 abc".into(),
        hardware: Some("cpu, 2 cores".into()),
        dtype: Some("f32".into()),
        groups: vec![GroupIdentity {
            setting: Setting::of(&crate::record::tests::cell("x")),
            suite_sha256: "s".into(),
            target_sha256: "t".into(),
            drafters_sha256: [("dflash".to_owned(), Some("d".to_owned()))].into(),
            max_new: 128,
            seed: 0,
        }],
    }
}

fn run(label: &str, records: &[Record]) -> RunData {
    RunData::new(label, identity(), records).unwrap()
}

/// The word on each figure of dflash.
fn words(comparison: &Comparison) -> Vec<Word> {
    let rows = &comparison.others[0].rows;
    let row = rows.iter().find(|r| r.pool.method == "dflash").unwrap();
    row.findings.iter().map(|f| f.word).collect()
}

fn good(i: usize) -> Vec<(u32, u32)> {
    vec![(3, 4), (2, 3), ((i % 3) as u32, (i % 3) as u32 + 1), (3, 4)]
}

fn bad(i: usize) -> Vec<(u32, u32)> {
    [good(i), vec![(0, 1); 2 + i % 2]].concat()
}

fn rename(records: &mut [Record], edit: impl Fn(&mut crate::PromptKey)) {
    records
        .iter_mut()
        .for_each(|r| edit(r.prompt.as_mut().unwrap()));
}

#[test]
fn a_run_is_no_different_from_itself() {
    let run = run("a", &records(8, good));
    let got = compare(&[run.clone(), run]);
    assert_eq!(words(&got), [Word::NoDifference; 3]);
    let row = &got.others[0].rows[1];
    assert_eq!((row.n_prompts, row.equal), (8, Some((8, 8))));
    let effect = row.findings[0].effect.unwrap();
    assert_eq!((effect.low, effect.high), (0.0, 0.0));
    let notes = &got.others[0].notes;
    assert_eq!(*notes, ["both are the run r"]);
    let (text, page) = (got.text(), got.markdown());
    assert!(
        text.contains("a against a\n") && text.contains("no difference"),
        "{text}"
    );
    assert!(page.contains("| dflash | mini | 8 | 3."), "{page}");
    let json: serde_json::Value = serde_json::from_str(&got.json()).unwrap();
    assert_eq!(
        json["others"][0]["rows"][1]["findings"][0]["word"],
        "no_difference"
    );
}

#[test]
fn fewer_accepted_drafts_are_worse_one_way_and_better_the_other() {
    let (a, b) = (run("a", &records(12, good)), run("b", &records(12, bad)));
    let got = compare(&[a.clone(), b.clone(), a.clone()]);
    assert_eq!(words(&got)[0], Word::Worse);
    assert_eq!(got.others[1].rows[1].findings[0].word, Word::NoDifference);
    assert_eq!(words(&compare(&[b, a]))[0], Word::Better);
}

#[test]
fn four_prompts_are_inconclusive_and_five_that_differ_by_one_factor_too() {
    let compared = |n: usize| {
        let same = |_| vec![(3, 4), (3, 4)];
        let less = |_| vec![(3, 4), (1, 2), (1, 2)];
        compare(&[run("a", &records(n, same)), run("b", &records(n, less))])
    };
    for (n, want, why) in [
        (4, Word::Inconclusive, "4 prompts in common, fewer than 5"),
        (5, Word::Inconclusive, "all prompts differ by one factor"),
        (6, Word::Worse, ""),
    ] {
        let got = compared(n);
        assert_eq!(words(&got)[0], want, "{n}");
        assert!(got.text().contains(why), "{}", got.text());
    }
}

#[test]
fn what_is_no_pair_is_incomparable_and_says_why() {
    let a = run("a", &records(8, good));
    let mut other_template = records(8, good);
    rename(&mut other_template, |p| p.sha256 = "other".into());
    let b = run("b", &other_template);
    let reason = |b: RunData| {
        let got = compare(&[a.clone(), b]);
        assert_eq!(words(&got), [Word::Incomparable; 3], "{}", got.text());
        got.others[0].incomparable.clone().unwrap()
    };
    assert_eq!(
        reason(b.clone()),
        "chat template: prompt p0 of suite mini is rendered otherwise"
    );
    let edited = |edit: fn(&mut Identity)| {
        let mut run = a.clone();
        edit(&mut run.identity);
        run
    };
    let mut other_suite = b;
    other_suite.identity.groups[0].suite_sha256 = "s2".into();
    assert_eq!(
        reason(other_suite),
        "suite: prompt p0 of mini is another text"
    );
    assert_eq!(
        reason(edited(|i| i.groups[0].target_sha256 = "u".into())),
        "checkpoint of target toy was t and is u"
    );
    assert_eq!(
        reason(edited(|i| i.dtype = Some("bf16".into()))),
        "dtype was f32 and is bf16"
    );
    assert_eq!(
        reason(edited(|i| i.groups[0].max_new = 64)),
        "sampling: most tokens of an answer were 128 and are 64"
    );
    let mut warm = records(8, good);
    warm.iter_mut()
        .for_each(|r| r.cell.sampling = crate::SamplingKey::at(600));
    let got = compare(&[a.clone(), run("b", &warm)]);
    let why = got.others[0].incomparable.as_deref();
    assert_eq!(
        why,
        Some("no cell in common: sampling was greedy and is t600")
    );
    assert!(got.markdown().contains("- incomparable: no cell in common"));
}

#[test]
fn another_machine_makes_times_alone_incomparable_and_another_drafter_is_what_is_compared() {
    let a = run("a", &records(8, good));
    let mut b = a.clone();
    b.identity.hardware = Some("gpu".into());
    b.identity.groups[0]
        .drafters_sha256
        .insert("dflash".into(), Some("new".into()));
    let got = compare(&[a, b]);
    assert_eq!(
        words(&got),
        [Word::NoDifference, Word::Incomparable, Word::Incomparable]
    );
    assert_eq!(got.others[0].incomparable, None);
    let text = got.text();
    assert!(
        text.contains("note: drafter of dflash: another checkpoint"),
        "{text}"
    );
    assert!(
        text.contains("times are incomparable: hardware class was \"cpu, 2 cores\" and is \"gpu\""),
        "{text}"
    );
}

#[test]
fn suites_are_pooled_above_their_cells() {
    let mut both = records(6, good);
    let mut more = records(6, bad);
    more.iter_mut().for_each(|r| r.cell.suite = "other".into());
    both.extend(more);
    let mut id = identity();
    let mut group = id.groups[0].clone();
    group.setting.suite = "other".into();
    id.groups.push(group);
    let run = RunData::new("a", id, &both).unwrap();
    let got = compare(&[run.clone(), run.clone()]);
    let rows = &got.others[0].rows;
    let suites: Vec<(&str, Option<&str>, usize)> = rows
        .iter()
        .map(|r| (r.pool.method.as_str(), r.suite.as_deref(), r.n_prompts))
        .collect();
    let want = [
        ("dflash", None, 12),
        ("dflash", Some("mini"), 6),
        ("dflash", Some("other"), 6),
    ];
    assert_eq!(suites[..3], want);
    let mut slow = both.clone();
    for record in &mut slow {
        if let (Outcome::Ok(answer), "vanilla") = (&mut record.outcome, record.cell.method.as_str())
        {
            answer.decode_ns *= 2;
        }
    }
    let mut other = RunData::new("b", run.identity.clone(), &slow).unwrap();
    other.identity.run = "another".into();
    let notes = compare(&[run, other]).others[0].notes.join("\n");
    assert!(
        notes.contains("both are of program 1 abc: what differs in time")
            && notes.contains("toy, greedy: vanilla's own throughput is another, -50.0 %"),
        "{notes}"
    );
}

#[test]
fn arms_of_given_acceptance_are_left_out_and_counted() {
    let mut records = records(6, good);
    let drawn = records
        .clone()
        .into_iter()
        .filter(|r| r.cell.method == "dflash");
    let drawn = drawn.map(|mut r| {
        r.cell.method = "dflash:acceptance=synthetic-3".into();
        r
    });
    let drawn: Vec<Record> = drawn.collect();
    let vanilla = records.iter().filter(|r| r.cell.method == "vanilla");
    let alone: Vec<Record> = vanilla.chain(&drawn).cloned().collect();
    let measured = run("a", &records);
    records.extend(drawn);
    let both = run("b", &records);
    assert_eq!((both.cells.len(), both.synthetic.len()), (2, 1));
    let comparison = compare(&[measured, both]);
    let text = comparison.text();
    assert!(
        text.contains("b: left out 1 with synthetic acceptance"),
        "{text}"
    );
    assert!(!text.contains("synthetic-3"), "{text}");
    let error = RunData::new("c", identity(), &alone)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("c: holds answers of synthetic acceptance alone"),
        "{error}"
    );
}
