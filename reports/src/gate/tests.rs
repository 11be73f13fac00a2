use super::trial::{Asked, BUSY, Injection, Process, QUIET};
use super::*;
use crate::SamplingKey;

type Edit = fn(&mut RunData);

fn process(id: u64) -> Process {
    Process {
        world: 7,
        id,
        machine: QUIET,
        sampling: SamplingKey::Greedy,
        injection: Injection::Nothing,
        asked: Asked::single(12),
    }
}

fn policy() -> Policy {
    Policy {
        resamples: 1000,
        ..Policy::default()
    }
}

fn said(reference: &RunData, candidate: &RunData) -> Report {
    let input = GateInput {
        reference,
        candidate,
        null: None,
    };
    gate(input, &policy()).unwrap()
}

fn verdicts(report: &Report) -> Vec<Verdict> {
    report.layers.iter().map(|l| l.verdict).collect()
}

#[test]
fn a_run_passes_against_itself_and_says_that_it_is_itself() {
    let run = process(1).run();
    let report = said(&run, &run);
    assert_eq!(verdicts(&report), [Verdict::Pass; 4]);
    assert_eq!(
        (report.verdict, report.verdict.exit_code()),
        (Verdict::Pass, 0)
    );
    let text = report.text();
    assert!(text.contains("every round is the reference's"), "{text}");
    assert!(
        text.contains("note: the candidate is the reference's own run, 1\n"),
        "{text}"
    );
    assert!(text.ends_with("verdict: pass (exit code 0)\n"), "{text}");
}

#[test]
fn a_corrupted_slot_fails_and_is_named_in_every_output() {
    let candidate = Process {
        injection: Injection::Corrupted(4),
        ..process(2)
    };
    let report = said(&process(1).run(), &candidate.run());
    assert_eq!(
        (report.verdict, report.verdict.exit_code()),
        (Verdict::Fail, 1)
    );
    assert_eq!(report.layers[2].verdict, Verdict::Fail);
    let want = "most is lost at draft 4 of a round";
    for text in [
        report.text(),
        report.markdown(),
        report.junit(),
        report.annotations(),
        report.json(),
    ] {
        assert!(text.contains(want), "{text}");
    }
    let annotations = report.annotations();
    assert!(
        annotations.contains("::error title=gate L2 acceptance%3A fail::toy / dflash / greedy"),
        "{annotations}"
    );
    assert!(
        report.junit().contains(
            "<testsuites name=\"draftbench gate\" tests=\"10\" failures=\"1\" errors=\"0\""
        ),
        "{}",
        report.junit()
    );
}

#[test]
fn a_delay_fails_with_a_clean_null_control_alone() {
    let reference = process(1).run();
    let slow = Process {
        injection: Injection::Delay(0.2),
        ..process(2)
    };
    let candidate = slow.run();
    let told = said(&reference, &candidate);
    assert_eq!(
        (told.verdict, told.layers[3].verdict),
        (Verdict::Pass, Verdict::Fail)
    );
    assert_eq!(told.layers[3].weight, Weight::Advisory);
    let with = |null: &RunData| {
        let input = GateInput {
            reference: &reference,
            candidate: &candidate,
            null: Some(null),
        };
        gate(input, &policy())
    };
    assert_eq!(with(&process(3).run()).unwrap().verdict, Verdict::Fail);
    let noisy = Process {
        machine: BUSY,
        injection: Injection::Delay(0.1),
        ..process(3)
    };
    let report = with(&noisy.run()).unwrap();
    assert_eq!(
        (report.verdict, report.verdict.exit_code()),
        (Verdict::Inconclusive, 3)
    );
    assert!(
        report.text().contains("the null control is not clean"),
        "{}",
        report.text()
    );
    let err = with(&candidate).unwrap_err().to_string();
    assert!(err.contains("is the same run as"), "{err}");
    let err = with(&reference).unwrap_err().to_string();
    assert!(
        err.contains("--null run 1: is the same run as run 1"),
        "{err}"
    );
    let mut foreign = process(3).run();
    foreign.identity.program = "third".into();
    let err = with(&foreign).unwrap_err().to_string();
    assert!(
        err.contains("neither the reference's nor the candidate's"),
        "{err}"
    );
}

#[test]
fn what_is_no_pair_is_incomparable() {
    let reference = process(1).run();
    let edited = |edit: Edit| {
        let mut candidate = process(2).run();
        edit(&mut candidate);
        said(&reference, &candidate)
    };
    let cases: [(Edit, &str); 5] = [
        (
            |r| r.identity.groups[0].target_sha256 = "u".into(),
            "checkpoint of target toy was t and is u",
        ),
        (
            |r| r.identity.groups.clear(),
            "it is not known which checkpoints were measured",
        ),
        (
            |r| {
                drop(
                    r.identity.groups[1]
                        .drafters_sha256
                        .insert("dflash".into(), Some("e".into())),
                )
            },
            "checkpoint of drafter dflash was d and is e",
        ),
        (
            |r| r.cells.retain(|c, _| c.suite == "one"),
            "suite two: the candidate has no answer: it was not measured",
        ),
        (
            |r| {
                r.cells
                    .values_mut()
                    .for_each(|d| drop(d.answers.pop_first()))
            },
            "suite: 2 answers of the reference are missing",
        ),
    ];
    for (edit, want) in cases {
        let report = edited(edit);
        assert_eq!(report.layers[2].verdict, Verdict::Incomparable, "{want}");
        assert_eq!(report.verdict.exit_code(), 2, "{want}");
        assert!(report.text().contains(want), "{want}: {}", report.text());
        assert!(
            report
                .annotations()
                .contains("::warning title=gate L2 acceptance%3A incomparable")
        );
    }
    let report = edited(|r| r.identity.hardware = None);
    assert_eq!(
        (report.layers[2].verdict, report.layers[3].verdict),
        (Verdict::Pass, Verdict::Incomparable)
    );
}

#[test]
fn a_text_that_is_not_vanillas_fails_and_a_run_without_greedy_text_is_inconclusive() {
    let reference = process(1).run();
    let mut candidate = process(2).run();
    let (_, data) = candidate
        .cells
        .iter_mut()
        .find(|(c, _)| c.method == "dflash")
        .unwrap();
    data.answers.values_mut().last().unwrap().text = "other".into();
    let report = said(&reference, &candidate);
    assert_eq!(
        (report.verdict, report.layers[1].verdict),
        (Verdict::Fail, Verdict::Fail)
    );
    assert!(
        report
            .text()
            .contains("1 of 24 answers are not vanilla's; the first is of suite one, prompt 9"),
        "{}",
        report.text()
    );
    let warm = |id| {
        let process = Process {
            sampling: SamplingKey::at(1000),
            asked: Asked::single(4),
            ..process(id)
        };
        process.run()
    };
    let report = said(&warm(1), &warm(1));
    assert_eq!(report.layers[1].verdict, Verdict::Inconclusive);
    // 8 prompts with other draws exclude nothing.
    assert_eq!(
        said(&warm(1), &warm(2)).layers[2].verdict,
        Verdict::Inconclusive
    );
}

#[test]
fn a_target_that_writes_another_text_is_inconclusive_unless_the_policy_lets_it() {
    let reference = process(1).run();
    let altered = |every: usize| {
        let candidate = Process {
            injection: Injection::Altered(every),
            ..process(2)
        };
        candidate.run()
    };
    let report = said(&reference, &altered(3));
    assert_eq!(
        verdicts(&report)[..3],
        [Verdict::Pass, Verdict::Inconclusive, Verdict::Pass]
    );
    assert_eq!(report.verdict, Verdict::Inconclusive);
    let text = report.text();
    for want in [
        "vanilla's own greedy text is not the reference's in 8 of 24 answers: the target has changed; look at it, and \
         record a new reference, or set losslessness.vanilla_text = \"any\"",
        "every round is the reference's; 8 answers are left out",
    ] {
        assert!(text.contains(want), "{text}");
    }
    let mut any = policy();
    any.losslessness.vanilla_text = VanillaText::Any;
    let candidate = altered(3);
    let input = GateInput {
        reference: &reference,
        candidate: &candidate,
        null: None,
    };
    assert_eq!(gate(input, &any).unwrap().verdict, Verdict::Pass);
    let report = said(&reference, &altered(1));
    assert_eq!(report.layers[2].verdict, Verdict::Incomparable);
    let want = "the reference's in no prompt: record a new reference";
    assert!(report.text().contains(want), "{}", report.text());
    // Another dtype is another experiment, and said so by L2 alone.
    let mut other = altered(3);
    other.identity.dtype = Some("bf16".into());
    let report = said(&reference, &other);
    assert_eq!(
        verdicts(&report)[1..3],
        [Verdict::Pass, Verdict::Incomparable]
    );
}

#[test]
fn right_answers_that_become_fewer_fail_and_some_either_way_do_not() {
    let graded = |id: u64, wrong: std::ops::Range<usize>| {
        let mut run = process(id).run();
        for data in run.cells.values_mut() {
            for (i, brief) in data.answers.values_mut().enumerate() {
                brief.correct = Some(!wrong.contains(&i));
            }
        }
        run
    };
    let reference = graded(1, 0..2);
    let saved = parse_reference("run 1", &reference_lines(&reference).unwrap()).unwrap();
    // Of two suites and two methods: 8 prompts fewer, of each pool.
    let report = said(&saved, &graded(2, 0..6));
    assert_eq!(report.layers[1].verdict, Verdict::Fail);
    let want = "right answers of toy / dflash / greedy / thinking off / concurrency 1: 20 > 12 of 24 answers: 8 prompts have fewer right answers, 0 have more; that is no chance";
    assert!(report.text().contains(want), "{}", report.text());
    // Four fewer are chance, and so are as many more.
    for wrong in [0..4, 2..4, 0..2] {
        let report = said(&saved, &graded(2, wrong.clone()));
        assert_eq!(report.layers[1].verdict, Verdict::Pass, "{wrong:?}");
    }
    let report = said(&saved, &process(2).run());
    assert_eq!(report.layers[1].verdict, Verdict::Inconclusive);
    assert!(
        report
            .text()
            .contains("24 of the reference are checked and none of the candidate")
    );
}

#[test]
fn what_cannot_be_true_of_any_run_fails_at_once() {
    let reference = process(1).run();
    let edited = |edit: Edit| {
        let mut candidate = process(2).run();
        edit(&mut candidate);
        said(&reference, &candidate)
    };
    let cases: [(Edit, &str); 4] = [
        (|r| r.faults.push("x is wrong".into()), "x is wrong"),
        (
            |r| first_round(r, "dflash")[1] += 2,
            "rounds commit what they accept and one more: toy / dflash / one",
        ),
        (|r| first_round(r, "vanilla")[0] = 3, "toy / vanilla / one"),
        (
            |r| {
                let dflash = r.cells.iter_mut().find(|(c, _)| c.method == "dflash");
                dflash.unwrap().1.answers.pop_first();
            },
            "1 answers are not vanilla's prompts, the first to prompt 0",
        ),
    ];
    for (edit, want) in cases {
        let report = edited(edit);
        assert_eq!(
            (report.verdict, report.layers[0].verdict),
            (Verdict::Fail, Verdict::Fail),
            "{want}"
        );
        assert!(report.text().contains(want), "{want}: {}", report.text());
    }
    let unjudged = edited(|r| r.faults.push("x".into()));
    assert_eq!(verdicts(&unjudged)[1..], [Verdict::Inconclusive; 3]);
}

fn first_round<'a>(run: &'a mut RunData, method: &str) -> &'a mut [u32; 3] {
    let cell = run.cells.iter_mut().find(|(c, _)| c.method == method);
    let answer = cell.unwrap().1.answers.values_mut().next();
    &mut answer.unwrap().rounds[0]
}

#[test]
fn vanilla_that_is_missing_and_a_reference_with_a_fault_are_errors() {
    let good = process(1).run();
    let mut alone = good.clone();
    alone.cells.retain(|c, _| c.method != "vanilla");
    let judge = |reference, candidate| {
        let input = GateInput {
            reference,
            candidate,
            null: None,
        };
        gate(input, &policy()).unwrap_err().to_string()
    };
    let err = judge(&good, &alone);
    assert!(
        err.starts_with("run 1: toy / dflash / one") && err.contains("its vanilla cell has none"),
        "{err}"
    );
    let mut bad = good.clone();
    bad.faults.push("x".into());
    assert!(judge(&bad, &good).contains("run 1: is no reference"));
}

#[test]
fn a_reference_file_reads_back_and_says_what_is_wrong_with_it() {
    let run = process(1).run();
    let text = reference_lines(&run).unwrap();
    let read = parse_reference("run 1", &text).unwrap();
    let mut want = run.clone();
    for brief in want.cells.values_mut().flat_map(|d| d.answers.values_mut()) {
        brief.grams.total = brief.n_tokens.saturating_sub(7);
    }
    assert_eq!(read, want);
    // 48 answers of about 120 tokens.
    assert!(text.len() < 12_000, "{}", text.len());
    let err = |text: &str| parse_reference("r.jsonl", text).unwrap_err().to_string();
    let old = text.replacen("\"gate_reference\":2", "\"gate_reference\":9", 1);
    let want = "r.jsonl line 1: gate_reference is 9, this program reads 2; make the file again with `draftbench gate record RUN --out FILE`";
    // Cut at the end of a line, as a copy that was broken off may be.
    let n_lines = text.lines().count();
    let kept = text.lines().take(n_lines - 1);
    let cut: String = kept.flat_map(|l| [l, "\n"]).collect();
    assert!(err(&cut).contains("the file holds "), "{}", err(&cut));
    assert_eq!(err(&old), want);
    assert!(err("").contains("line 1: is no reference of a gate"));
    let header = text.lines().next().unwrap();
    assert!(err(header).contains("the file holds 0 of "));
    let huge = text.replacen("[[0,", "[[0,9", 1);
    assert!(
        err(&huge).contains("its rounds do not make"),
        "{}",
        err(&huge)
    );
    let twice = format!("{text}{}", text.lines().last().unwrap());
    assert!(err(&twice).contains("is there twice"));
    let mut faulty = run;
    first_round(&mut faulty, "dflash")[1] += 2;
    assert!(
        reference_lines(&faulty)
            .unwrap_err()
            .to_string()
            .contains("make no reference")
    );
}

#[test]
fn a_policy_out_of_range_is_named() {
    let mut policy = Policy::default();
    policy.throughput.max_drop = 3.0;
    let err = policy.checked().unwrap_err().to_string();
    assert_eq!(err, "throughput.max_drop = 3: must be above 0 and below 1");
    assert!(Policy::default().checked().is_ok());
}
