//! The losses of the fixture's cases.

use super::*;
use crate::vocab::DraftVocab;

fn size(case: &Value, key: &str) -> usize {
    case[key].as_u64().expect(key) as usize
}

/// The case's corrector.
fn head(case: &Value) -> Result<DcocoHead> {
    let size = |key: &str| size(case, key);
    let (v, h, b) = (size("V"), size("h"), size("B"));
    let head_config = DcocoRecipeHead {
        layout: serde_json::from_value(case["layout"].clone()).expect("a layout"),
        candidates: size("K"),
        candidate_width: size("r"),
        pair_width: size("r"),
        hidden_width: size("f"),
        ..DcocoRecipeHead::default()
    };
    let dims = HeadDims {
        hidden: h,
        vocab: v,
        draft_vocab: v,
        block_rows: b,
        alignment: Alignment::Shifted,
    };
    let mut params = Params::default();
    let head = DcocoHead::new(&head_config, dims, &mut params, 0)?;
    let order: &[(&str, &str)] = match head_config.layout {
        Layout::L1 => &[("Wc", "candidate"), ("Ws", "pair")],
        _ => &[
            ("Wo", "candidate_out"),
            ("Wn", "candidate_in"),
            ("Wl", "pair_left"),
            ("Wr", "pair_right"),
        ],
    };
    let layers = [("W1", "mlp.0"), ("w2", "mlp.2")];
    for (theirs, ours) in order.iter().copied().chain(layers) {
        let bias = format!("b{}", &theirs[1..]);
        for (theirs, ours) in [
            (theirs, format!("{ours}.weight")),
            (&bias, format!("{ours}.bias")),
        ] {
            let var = params
                .get(&format!("corrector.{ours}"))
                .expect("of the layout");
            let seed = case["tensor_seeds"][theirs].as_u64().expect(theirs);
            var.set(&hashed(var.dims(), seed, 2.0)?)?;
        }
    }
    Ok(head)
}

/// The case's one block.
fn blocks(case: &Value) -> Blocks {
    let b = size(case, "B");
    let decay = case["decay"].as_f64().expect("has one");
    let labels = case["labels"].as_array().expect("has them");
    let labels: Vec<u32> = labels
        .iter()
        .map(|l| l.as_u64().expect("an id") as u32)
        .collect();
    let weights: Vec<f32> = (0..b).map(|i| (-(i as f64) / decay).exp() as f32).collect();
    Blocks {
        rated: weights.clone(),
        classes: labels.clone(),
        ids: vec![0; b],
        at: vec![BlockAt {
            context: 0..0,
            position: 0,
        }],
        labels,
        target_rows: vec![0; b],
        weights,
    }
}

#[test]
fn both_losses_are_the_goldens() -> Result<()> {
    let text = include_str!("../../../../tests/tests/fixtures/dcoco.json");
    let file: Value = serde_json::from_str(text).expect("the fixture is JSON");
    let cases = file["cases"].as_array().expect("it lists cases");
    assert_eq!(cases.len(), 3);
    for case in cases {
        let size = |key: &str| size(case, key);
        let (v, h, b, seed) = (size("V"), size("h"), size("B"), size("seed") as u64);
        let lm = target(v, h)?;
        let embedding = lm.params.get("model.embed_tokens.weight").expect("has one");
        embedding.set(&hashed(&[v, h], seed, 2.0)?)?;
        let (head, blocks) = (head(case)?, blocks(case));
        let hidden = hashed(&[b, h], seed + 1, 2.0)?;
        let parts = head.parts(&BlockOut {
            hidden: &hidden,
            logits: &hashed(&[b, v], seed + 2, 6.0)?,
            lm_head: &lm.head_weight(),
            vocab: &DraftVocab::whole(v),
            target_hidden: &hidden,
            target: &lm,
            pack: &DraftPack::default(),
            blocks: &blocks,
            total: blocks.weight(),
            progress: 0.0,
        })?;
        for (part, key) in [(&parts.base, "loss_base"), (&parts.pair, "loss_pair")] {
            let (got, want) = (scalar(part)?, case[key].as_f64().expect(key));
            assert!(
                (got - want).abs() < 2e-5,
                "{} {key}: {got} for {want}",
                case["name"]
            );
        }
    }
    Ok(())
}
