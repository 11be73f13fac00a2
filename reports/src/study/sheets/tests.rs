//! Tables from a handful of records.

use super::*;
use crate::coverage::tests::record as ranks;
use crate::record::tests::{answer, record};
use crate::record::{Outcome, Record};
use crate::study::pool::pools;

/// Two prompts an arm: one of tau `tau`, one of tau 1.
fn arm(method: &str, tau: u32) -> [Record; 2] {
    [
        record(method, "1", answer(&[(tau - 1, tau); 2])),
        record(method, "2", answer(&[(0, 1); 2])),
    ]
}

fn sheet(records: &[Record], id: &str) -> Sheet {
    let coverage = [ranks("1", &[&[0, 3], &[20]]), ranks("2", &[&[2, 0], &[0]])];
    let all = sheets(&pools(records, "toy"), &coverage, &Elsewhere::default());
    all.into_iter().find(|s| s.id == id).unwrap()
}

#[test]
fn an_arm_is_held_against_dflash_and_vanilla_on_the_same_prompts() {
    let records = [arm("vanilla", 1), arm("dflash", 2), arm("dcoco", 3)].concat();
    let methods = sheet(&records, "methods");
    assert_eq!(methods.header[..3], ["arm", "tau", "95 % interval"]);
    let all = crate::study(
        &records,
        &[ranks("1", &[&[0]])],
        "toy",
        &Elsewhere::default(),
    );
    let sheets = all.sheets.iter().map(|s| s.id);
    let unnamed = sheets
        .chain(all.plots.iter().map(|p| p.id))
        .find(|id| !crate::STUDY_IDS.contains(id));
    assert_eq!(unnamed, None);
    let row = |arm: &str| methods.rows.iter().find(|r| r[0] == arm).unwrap().clone();
    // Eight tokens in four rounds against six in four; both at 1 us a token.
    let want = [
        "dcoco",
        "2.00",
        "1.00 to 3.00",
        "+33.3 %",
        "+0.0 % to +50.0 %",
        "33.3 %",
        "1.00x",
        "2.00",
    ];
    assert_eq!(row("dcoco"), want);
    assert_eq!(row("dflash")[3..5], ["-", "-"]);
    assert_eq!(
        methods.rows.len(),
        2,
        "vanilla is the reference of the speedups"
    );
}

#[test]
fn a_published_value_stands_beside_ours_and_pairings_without_arms_are_left_out() {
    let full = [
        arm("dflash", 2),
        arm("dcoco", 3),
        arm("dcoco:checkpoint=dcoco-no-pair", 2),
        arm("dcoco:checkpoint=dcoco-frozen", 2),
    ];
    let channels = sheet(&full.concat(), "channels");
    assert_eq!(channels.rows.len(), 1);
    let want = [
        "without the pair state",
        "1.50",
        "2.00",
        "-25.0 %",
        "-33.3 % to +0.0 %",
        "-7.3 %",
    ];
    assert_eq!(channels.rows[0], want);
    let training = sheet(&full.concat(), "training");
    assert_eq!(training.rows.len(), 3, "{:?}", training.rows);
    assert!(training.rows[0][0].starts_with("corrector alone"));
    assert!(training.rows[2][0].ends_with("over the frozen one"));
}

#[test]
fn k_gamma_and_slots_find_their_arms() {
    let records = [
        arm("dcoco:k=1", 2),
        arm("dcoco:k=16", 3),
        arm("dflash", 2),
        arm("dflash:max_draft=3", 2),
    ];
    let records = records.concat();
    let by_k = sheet(&records, "k");
    let row = by_k.rows.iter().find(|r| r[0] == "1").unwrap();
    assert_eq!(
        row[1..5],
        ["1.50", "1.00 to 2.00", "-25.0 %", "-33.3 % to +0.0 %"]
    );
    assert_eq!(by_k.rows.len(), 6, "the oracle has every K");
    let gamma = sheet(&records, "gamma");
    assert_eq!(gamma.rows[0][..2], ["3", "1.50 (1.00 to 2.00)"]);
    assert_eq!(gamma.rows[1][0], "7", "no arm drafts 5");
    let positions = sheet(&records, "positions");
    assert_eq!(positions.rows[0][..2], ["dflash", "0.500 (0.000 to 1.000)"]);
}

#[test]
fn a_round_is_split_into_its_parts() {
    let mut records = arm("dflash", 2);
    for record in &mut records {
        if let Outcome::Ok(answer) = &mut record.outcome {
            let phases = &mut answer.phases;
            (phases.draft_ns, phases.head_ns, phases.verify_ns) = (6000, 2000, 10_000);
            (phases.commit_ns, phases.judge_ns) = (1000, 1000);
        }
    }
    // Two rounds an answer.
    let want = [
        "1", "dflash", "3.0", "1.0", "5.0", "0.5", "0.5", "10.0 %", "1.50",
    ];
    assert_eq!(sheet(&records, "cost").rows[0][..9], want);
}

#[test]
fn a_schedule_is_held_against_verifying_all() {
    let mut cut = arm("dspark:schedule=adaptive", 3);
    for record in &mut cut {
        if let Outcome::Ok(answer) = &mut record.outcome {
            answer.rounds.verified = vec![2; answer.rounds.verified.len()];
            answer.decode_ns /= 2;
        }
    }
    let records = [arm("dspark", 3), cut, arm("dflash", 2)].concat();
    let schedules = sheet(&records, "schedules");
    assert_eq!(schedules.rows.len(), 2, "{:?}", schedules.rows);
    let row = &schedules.rows[1];
    assert_eq!(
        row[..5],
        ["1", "dspark:schedule=adaptive", "3.00", "2.00", "2.00"]
    );
    assert_eq!(row[6], "+100.0 %");
}

#[test]
fn confidences_are_held_against_what_became_of_the_drafts() {
    let mut records = arm("dspark", 3);
    for record in &mut records {
        if let Outcome::Ok(answer) = &mut record.outcome {
            answer.rounds.confidence_ppm = Some(vec![vec![500_000, 250_000, 100_000]; 2]);
        }
    }
    let calibration = sheet(&records, "calibration");
    // Four rounds are judged at the first position, two of them accept; those two at the second, both accept.
    let want = [
        "dspark", "greedy", "1", "4", "0.500", "0.500", "0.000", "0.500", "0.250",
    ];
    assert_eq!(calibration.rows[0], want);
    assert_eq!(calibration.rows[1][2..6], ["2", "2", "0.250", "1.000"]);
    assert_eq!(calibration.rows[2][5], "0.000");
}

#[test]
fn coverage_is_told_by_position_with_the_published_gap() {
    let coverage = sheet(&arm("dflash", 2), "coverage");
    // First slots: ranks 0, 20, 2, 0.
    assert_eq!(coverage.rows[0][..2], ["1", "4"]);
    assert_eq!(
        (
            &coverage.rows[0][2],
            &coverage.rows[0][4],
            &coverage.rows[0][6]
        ),
        (&"50.0".into(), &"75.0".into(), &"25.0".into())
    );
    assert_eq!(coverage.rows[0].last().unwrap(), "12 to 14");
    assert!(coverage.rows[1].last().unwrap().starts_with("38 to 45"));
    // Wrong first choices: 20, 3, 2.
    assert!(
        coverage.notes[0].contains("66.7 % have the right token"),
        "{}",
        coverage.notes[0]
    );
}

#[test]
fn what_was_asked_for_and_gave_nothing_is_listed_with_its_reason() {
    let mut records = arm("dflash", 2).to_vec();
    let mut skipped = records[0].clone();
    skipped.cell.method = "dspark".into();
    skipped.prompt = None;
    skipped.outcome = Outcome::Skipped {
        why: "no drafter".into(),
    };
    assert!(
        crate::study(&records, &[], "toy", &Elsewhere::default())
            .sheets
            .iter()
            .all(|s| s.id != "missing")
    );
    records.push(skipped);
    let study = crate::study(&records, &[], "toy", &Elsewhere::default());
    let missing = study.sheets.iter().find(|s| s.id == "missing").unwrap();
    assert_eq!(missing.rows, [["dspark", "no drafter"]]);
}

#[test]
fn prompts_that_were_left_out_are_counted_and_their_arm_stays() {
    let mut records = arm("dflash", 2).to_vec();
    for id in ["x", "y"] {
        let mut skipped = records[0].clone();
        skipped.prompt.as_mut().unwrap().id = id.into();
        skipped.outcome = Outcome::Skipped {
            why: format!("{id} needs 9 cache positions"),
        };
        records.push(skipped);
    }
    let study = crate::study(&records, &[], "toy", &Elsewhere::default());
    let missing = study.sheets.iter().find(|s| s.id == "missing").unwrap();
    let why = "mini: 2 prompts or turns left out, too long for the target";
    assert_eq!(missing.rows, [["dflash", why]]);
    assert!(study.sheets.len() > 1);
}

#[test]
fn suites_stand_in_rows_and_methods_without_options_in_columns() {
    let records = [
        arm("vanilla", 1),
        arm("dcoco", 3),
        arm("dflash", 2),
        arm("dcoco:k=1", 2),
    ];
    let mut records = records.concat();
    let mut other = record("dflash", "1", answer(&[(3, 4)]));
    other.cell.suite = "other".into();
    records.push(other);
    let tau = sheet(&records, "suite-tau");
    assert_eq!(tau.header, ["suite", "prompts", "dflash", "dcoco"]);
    let both = "1.50 (1.00 to 2.00)";
    assert_eq!(tau.rows[0], ["mini", "2", both, "2.00 (1.00 to 3.00)"]);
    assert_eq!(tau.rows[1], ["other", "1", "4.00", "-"]);
    assert_eq!(tau.rows[2][..2], ["all", "3"]);
    let speedup = sheet(&records, "suite-speedup");
    assert_eq!(speedup.rows[0][2], "1.00x (1.00x to 1.00x)");
    let by_concurrency = sheet(&records, "concurrency");
    assert_eq!(by_concurrency.rows.len(), 2);
    assert_eq!(by_concurrency.rows[1][..4], ["greedy", "1", "dcoco", "2"]);
}

#[test]
fn looping_answers_are_counted_and_left_out_of_the_second_tau() {
    let mut records = [arm("vanilla", 1), arm("dflash", 2)].concat();
    if let Outcome::Ok(answer) = &mut records[2].outcome {
        answer.grams.repeated = 9;
    }
    let found = sheet(&records, "repetition");
    assert_eq!(
        found.rows[0][..5],
        ["greedy", "vanilla", "2", "10.0 %", "0"]
    );
    assert_eq!(found.rows[0][5..], ["-"; 5]);
    let want = [
        "greedy",
        "dflash",
        "2",
        "50.0 %",
        "1",
        "1.50",
        "1.00 to 2.00",
        "1.00",
        "-",
        "-33.3 %",
    ];
    assert_eq!(found.rows[1], want);
}

#[test]
fn the_cost_model_stands_beside_what_was_measured() {
    let mut records = [arm("vanilla", 1), arm("dflash", 2)].concat();
    for record in &mut records {
        let is_vanilla = record.cell.method == "vanilla";
        if let Outcome::Ok(answer) = &mut record.outcome {
            let phases = &mut answer.phases;
            // Two rounds an answer; steps of 1 us, rounds of 1.5 us for the pass and 0.5 us for drafts.
            (phases.verify_ns, phases.draft_ns) = match is_vanilla {
                true => (2000, 0),
                false => (3000, 1000),
            };
        }
    }
    let costs = crate::StepCosts {
        what: "bf16, behind 256 positions".to_owned(),
        rows: vec![(1, 10), (4, 20)],
        sequences: vec![(1, 10)],
    };
    let elsewhere = Elsewhere {
        costs: Some(costs),
        ..Elsewhere::default()
    };
    let all = crate::study(&records, &[], "toy", &elsewhere);
    let found = all.sheets.iter().find(|s| s.id == "model").unwrap();
    let want = [
        "greedy", "1", "dflash", "1.50", "4.0", "0.50", "1.50", "0.75x", "1.00x", "-25.0 %",
        "2.00", "0.60x", "-40.0 %",
    ];
    assert_eq!(found.rows, [want]);
    assert_eq!(found.header.len(), want.len());
    let alone = sheet(&records, "model");
    assert_eq!(alone.rows[0].len(), alone.header.len());
    assert!(alone.notes[1].contains("half of the 1 predictions are off by at most 25.0 %"));
}

#[test]
fn an_ordering_holds_where_its_interval_is_on_the_published_side() {
    let records = [arm("dflash", 2), arm("dcoco", 3), arm("domino", 2)];
    let found = sheet(&records.concat(), "signs");
    let sign = |what: &str| {
        let row = found.rows.iter().find(|r| r[0].starts_with(what));
        row.map(|r| (r[3].as_str(), r[5].as_str()))
    };
    // One prompt gains, the other does not: the interval begins at no difference.
    assert_eq!(sign("DCOCO's tau"), Some(("+33.3 %", "open")));
    assert_eq!(sign("Domino's tau"), Some(("+0.0 %", "open")));
    assert_eq!(sign("DSpark"), None);
    assert!(sign("what lies between").is_some());
    let both = |method: &str, tau: u32| {
        let rounds = [(tau - 1, tau); 2];
        ["1", "2"].map(|prompt| record(method, prompt, answer(&rounds)))
    };
    let records = [both("dflash", 2), both("dcoco", 3), both("domino", 1)].concat();
    let found = sheet(&records, "signs");
    let signs: Vec<&str> = found.rows.iter().map(|r| r[5].as_str()).collect();
    assert_eq!(signs[..3], ["holds", "reversed", "open"]);
}

#[test]
fn the_same_drafters_in_another_program_stand_beside_ours() {
    let peer = crate::Peer::parse("dflash", crate::peers::tests::PRINTED).unwrap();
    let elsewhere = Elsewhere {
        peers: vec![peer],
        ..Elsewhere::default()
    };
    let all = crate::study(&arm("dflash", 2), &[], "toy", &elsewhere);
    let found = all.sheets.iter().find(|s| s.id == "llama").unwrap();
    assert_eq!(
        found.rows[0],
        ["dflash", "chat", "1", "1.50", "-", "-", "-", "-"]
    );
    let want = [
        "dflash", "all", "2", "2.00", "2.50", "+25.0 %", "-", "1 of 1",
    ];
    assert_eq!(found.rows[1], want);
}
