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
    let all = sheets(&pools(records, "toy"), &coverage);
    all.into_iter().find(|s| s.id == id).unwrap()
}

#[test]
fn an_arm_is_held_against_dflash_and_vanilla_on_the_same_prompts() {
    let records = [arm("vanilla", 1), arm("dflash", 2), arm("dcoco", 3)].concat();
    let methods = sheet(&records, "methods");
    assert_eq!(methods.header[..3], ["arm", "tau", "95 % interval"]);
    let all = crate::study(&records, &[ranks("1", &[&[0]])], "toy");
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
        crate::study(&records, &[], "toy")
            .sheets
            .iter()
            .all(|s| s.id != "missing")
    );
    records.push(skipped);
    let study = crate::study(&records, &[], "toy");
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
    let study = crate::study(&records, &[], "toy");
    let missing = study.sheets.iter().find(|s| s.id == "missing").unwrap();
    let why = "mini: 2 prompts or turns left out, too long for the target";
    assert_eq!(missing.rows, [["dflash", why]]);
    assert!(study.sheets.len() > 1);
}
