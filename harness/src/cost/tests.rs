use models::Precision;

use super::*;
use crate::assets::ModelPaths;

fn timed(work: Work, times_ns: &[u64]) -> Timed {
    Timed {
        work,
        times_ns: times_ns.to_vec(),
    }
}

#[test]
fn costs_are_in_units_of_one_row_and_rates_in_those_of_the_matrices() {
    let report = Report {
        target: "T".to_owned(),
        weights: "w".to_owned(),
        dtype: "f32",
        machine: Machine::look(),
        read_gb_s: 20.0,
        gflop_s: 100.0,
        context: 256,
        weights_per_row: 1_000_000,
        weight_bytes: 4_000_000,
        cache_bytes: 0,
        peak_bytes: Some(7_000_000),
        timed: vec![
            timed(Work::Rows(1), &[900_000, 1_000_000, 5_000_000]),
            timed(Work::Rows(8), &[2_000_000]),
            timed(Work::Sequences(8), &[4_000_000]),
            timed(Work::Prompt(100), &[50_000_000]),
        ],
    };
    let text = report.text();
    let fields = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line[27..].split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(
        fields("1 rows"),
        ["1.00", "0.90", "1.00", "1000.0", "4.0", "2"]
    );
    assert_eq!(
        fields("8 rows"),
        ["2.00", "2.00", "2.00", "4000.0", "2.0", "8"]
    );
    assert_eq!(fields("8 sequences")[2], "8.00");
    assert_eq!(fields("prompt")[2], "2000.0");
    assert!(text.contains("7 MB at the peak"));
}

#[test]
fn costs_are_read_back_and_those_of_another_target_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cost.json");
    let title = models::target("tiny-qwen3").unwrap().title;
    let timed = r#"[{"work": {"rows": 8}, "times_ns": [3, 1, 2]}, {"work": {"sequences": 1}, "times_ns": [5]}]"#;
    let text =
        format!(r#"{{"target": "{title}", "dtype": "f32", "context": 256, "timed": {timed}}}"#);
    std::fs::write(&path, text).unwrap();
    let costs = read(&path, "tiny-qwen3").unwrap();
    assert_eq!((costs.rows, costs.sequences), (vec![(8, 2)], vec![(1, 5)]));
    let error = read(&path, "tiny-llama").unwrap_err().to_string();
    assert!(error.contains("holds the costs of"), "{error}");
    std::fs::write(&path, "{}").unwrap();
    let error = read(&path, "tiny-qwen3").unwrap_err().to_string();
    assert!(error.contains("draftbench cost --json"), "{error}");
}

#[test]
fn work_leaves_every_sequence_as_it_was() {
    let shelf = Shelf::new(&ModelPaths::default()).unwrap();
    let target = arms::target_plan("tiny-qwen3", &[], &shelf).unwrap();
    let options = DecoderOptions {
        slots: 3,
        capacity: 40,
        precision: Precision::Bf16,
    };
    let mut decoder = Decoder::load(&target.source, options).unwrap();
    let text: Vec<u32> = (0..64).collect();
    for slot in 0..3 {
        feed(&mut decoder, slot, &text[..20], Keep::Last).unwrap();
    }
    for work in [Work::Rows(8), Work::Sequences(3), Work::Prompt(30)] {
        assert!(one(&mut decoder, work, 20, &text).unwrap() > 0);
        for slot in 0..3 {
            assert_eq!(decoder.cache().len(Slot(slot)).unwrap(), 20);
        }
    }
}
