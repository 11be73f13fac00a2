//! A training text: synthetic examples, optional sources, one shuffle.

use crate::{Domain, Example, Pinned, Result, sources, synth};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What goes into a training text. Unknown keys are errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorpusSpec {
    /// Decides the synthetic examples, the choice within sources, and the order.
    pub seed: u64,
    /// Synthetic word problems to draw, before exclusion.
    pub maths: u64,
    /// Synthetic Python tasks to draw, before exclusion.
    pub code: u64,
    /// Synthetic everyday questions to draw, before exclusion.
    pub chat: u64,
    /// `[[source]]` tables: files of the user's.
    #[serde(default, rename = "source", skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceSpec>,
}

/// One raw source and how much of it to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSpec {
    /// Which reader.
    pub kind: SourceKind,
    /// A file; for `python` a folder.
    pub path: PathBuf,
    /// Hash of the file as it lies there (compressed if it is); a folder cannot be pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Examples to use, chosen by the seed, before exclusion.
    pub take: usize,
}

/// The readers of [`sources`] by the name used in TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// [`sources::gsm8k`].
    Gsm8k,
    /// [`sources::mbpp`].
    Mbpp,
    /// [`sources::python`].
    Python,
    /// [`sources::wordnet`].
    Wordnet,
}

/// Builds the training text, in the order a trainer should read it. Deterministic.
///
/// # Errors
/// [`crate::Error`] of the source that cannot be read, is not the pinned one or yields too little.
pub fn corpus(spec: &CorpusSpec) -> Result<Vec<Example>> {
    corpus_without(spec, &[])
}

/// [`corpus`] without the prompts of `exclude`.
///
/// An example whose user turn equals an entry of `exclude` up to case and white space is left
/// out and not replaced, so that no suite prompt is trained on.
///
/// # Errors
/// [`crate::Error`] of the source that cannot be read, is not the pinned one or yields too little.
pub fn corpus_without(spec: &CorpusSpec, exclude: &[String]) -> Result<Vec<Example>> {
    let mut examples = Vec::new();
    let counts = [
        (Domain::Maths, spec.maths),
        (Domain::Code, spec.code),
        (Domain::Chat, spec.chat),
    ];
    for (domain, count) in counts {
        examples.extend((0..count).map(|index| synth::example(spec.seed, domain, index)));
    }
    let mut rng = ChaCha8Rng::seed_from_u64(spec.seed);
    for source in &spec.sources {
        examples.extend(taken(source, &mut rng)?);
    }
    let excluded: BTreeSet<String> = exclude
        .iter()
        .map(|prompt| same_prompt_key(prompt))
        .collect();
    examples.retain(|example| !excluded.contains(&same_prompt_key(&example.user)));
    shuffle(&mut examples, &mut rng);
    Ok(examples)
}

/// Two prompts count as the same text if their keys are equal: lower case, single spaces.
pub fn same_prompt_key(prompt: &str) -> String {
    prompt
        .split_whitespace()
        .map(str::to_lowercase)
        .collect::<Vec<_>>()
        .join(" ")
}

fn taken(source: &SourceSpec, rng: &mut ChaCha8Rng) -> Result<Vec<Example>> {
    if let Some(sha256) = &source.sha256 {
        Pinned {
            path: source.path.clone(),
            sha256: sha256.clone(),
        }
        .check()?;
    }
    let mut examples = match source.kind {
        SourceKind::Gsm8k => sources::gsm8k(&source.path),
        SourceKind::Mbpp => sources::mbpp(&source.path),
        SourceKind::Python => sources::python(&source.path),
        SourceKind::Wordnet => sources::wordnet(&source.path),
    }?;
    if examples.len() < source.take {
        let (path, got, want) = (source.path.clone(), examples.len(), source.take);
        return Err(crate::Error::TooFew { path, got, want });
    }
    shuffle(&mut examples, rng);
    examples.truncate(source.take);
    Ok(examples)
}

/// Fisher-Yates with 64-bit draws, so that the order is the same on every machine.
fn shuffle(examples: &mut [Example], rng: &mut ChaCha8Rng) {
    for last in (1..examples.len()).rev() {
        let other = rng.random_range(0..=last as u64) as usize;
        examples.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, sha256_bytes};

    const ROWS: &str = "{\"question\": \"How many?\", \"answer\": \"2.\\n#### 2\"}\n\
                        {\"question\": \"How long?\", \"answer\": \"3.\\n#### 3\"}\n";

    fn spec(sources: Vec<SourceSpec>) -> CorpusSpec {
        CorpusSpec {
            seed: 5,
            maths: 30,
            code: 20,
            chat: 10,
            sources,
        }
    }

    fn gsm8k_file(dir: &tempfile::TempDir) -> SourceSpec {
        let path = dir.path().join("train.jsonl");
        std::fs::write(&path, ROWS).unwrap();
        let sha256 = Some(sha256_bytes(ROWS.as_bytes()));
        SourceSpec {
            kind: SourceKind::Gsm8k,
            path,
            sha256,
            take: 1,
        }
    }

    #[test]
    fn a_corpus_is_deterministic_mixed_and_has_the_asked_counts() {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec(vec![gsm8k_file(&dir)]);
        let examples = corpus(&spec).unwrap();
        assert_eq!(examples, corpus(&spec).unwrap());
        let count = |domain| examples.iter().filter(|e| e.domain == domain).count();
        assert_eq!(
            [Domain::Maths, Domain::Code, Domain::Chat].map(count),
            [31, 20, 10]
        );
        let in_blocks = examples
            .windows(2)
            .filter(|w| w[0].domain != w[1].domain)
            .count();
        assert!(in_blocks > 10, "{in_blocks} changes of domain");
    }

    #[test]
    fn an_excluded_prompt_is_dropped_whatever_its_case_and_spaces() {
        let all = corpus(&spec(vec![])).unwrap();
        let prompt = &all[7].user;
        let shouted = prompt.to_uppercase().replace(' ', "  \n");
        let kept = corpus_without(&spec(vec![]), &[shouted]).unwrap();
        let want: Vec<_> = all.iter().filter(|e| &e.user != prompt).collect();
        assert!(kept.len() == want.len() && kept.len() < all.len());
        assert!(kept.iter().all(|e| &e.user != prompt));
    }

    #[test]
    fn a_changed_file_and_a_too_large_take_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let mut source = gsm8k_file(&dir);
        source.take = 3;
        let error = corpus(&spec(vec![source.clone()])).unwrap_err();
        assert!(
            matches!(
                error,
                Error::TooFew {
                    got: 2,
                    want: 3,
                    ..
                }
            ),
            "{error}"
        );
        source.sha256 = Some("00".repeat(32));
        let error = corpus(&spec(vec![source])).unwrap_err();
        assert!(matches!(error, Error::Hash { .. }), "{error}");
    }

    #[test]
    fn unknown_keys_and_kinds_are_refused() {
        let good = serde_json::json!({"seed": 1, "maths": 1, "code": 1, "chat": 1,
            "source": [{"kind": "gsm8k", "path": "x", "take": 1}]});
        serde_json::from_value::<CorpusSpec>(good.clone()).unwrap();
        for (at, key, value) in [
            ("", "speed", "1"),
            ("/source/0", "kind", "gsm9k"),
            ("/source/0", "shar", "1"),
        ] {
            let mut bad = good.clone();
            bad.pointer_mut(at).unwrap()[key] = value.into();
            assert!(serde_json::from_value::<CorpusSpec>(bad).is_err(), "{key}");
        }
    }
}
