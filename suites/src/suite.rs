//! Suites are TOML files beside this crate's manifest, embedded in the binary.

use crate::{Error, Result};
use datasets::Domain;
use datasets::public::Reference;
use serde::Deserialize;
use std::collections::BTreeSet;

/// Adding a suite is adding a line here and the file it names.
const FILES: [(&str, &str); 3] = [
    ("mini-maths", include_str!("../mini-maths.toml")),
    ("mini-code", include_str!("../mini-code.toml")),
    ("mini-chat", include_str!("../mini-chat.toml")),
];

/// A fixed list of prompts, measured together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// The name used on the command line and in records; equals the file name.
    pub id: String,
    /// The name used in tables.
    pub title: String,
    /// Which training domain the prompts resemble.
    pub domain: Domain,
    /// In file order; not empty.
    #[serde(rename = "prompt")]
    pub prompts: Vec<Prompt>,
}

/// One conversation to be answered.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// Unique within its suite; records refer to it.
    pub id: u32,
    /// User turns, asked one after the other; not empty, none blank.
    pub turns: Vec<String>,
    /// What a right answer is known by; suites of this crate's own have none.
    #[serde(skip)]
    pub reference: Option<Reference>,
}

/// Ids of all suites, in the order they are listed and run.
pub fn ids() -> Vec<&'static str> {
    FILES.iter().map(|(id, _)| *id).collect()
}

/// Reads an embedded suite.
///
/// # Errors
/// [`Error::UnknownSuite`] with the known ids; the rest would be a mistake in the embedded file.
pub fn load(id: &str) -> Result<Suite> {
    let (id, text) = FILES
        .iter()
        .find(|(known, _)| *known == id)
        .ok_or_else(|| Error::UnknownSuite {
            id: id.into(),
            known: ids().join(", "),
        })?;
    parse(id, text)
}

fn parse(id: &str, text: &str) -> Result<Suite> {
    let file = format!("{id}.toml");
    let suite: Suite = toml::from_str(text).map_err(|e| Error::SuiteToml {
        file: file.clone(),
        source: Box::new(e),
    })?;
    match problem(id, &suite) {
        None => Ok(suite),
        Some(why) => Err(Error::Suite { file, why }),
    }
}

fn problem(id: &str, suite: &Suite) -> Option<String> {
    if suite.id != id {
        return Some(format!(
            "`id` is {:?}, the file name wants {id:?}",
            suite.id
        ));
    }
    if suite.title.trim().is_empty() {
        return Some("`title` is empty".into());
    }
    if suite.prompts.is_empty() {
        return Some("no [[prompt]]".into());
    }
    let mut seen = BTreeSet::new();
    for prompt in &suite.prompts {
        if !seen.insert(prompt.id) {
            return Some(format!("prompt id {} appears twice", prompt.id));
        }
        if prompt.turns.is_empty() || prompt.turns.iter().any(|turn| turn.trim().is_empty()) {
            return Some(format!(
                "prompt {} is empty or has an empty turn",
                prompt.id
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "id = \"s\"\ntitle = \"S\"\ndomain = \"chat\"\n";

    #[test]
    fn each_embedded_suite_has_24_distinct_prompts_of_its_domain() {
        let domains: Vec<Domain> = ids().iter().map(|id| load(id).unwrap().domain).collect();
        assert_eq!(domains, Domain::ALL);
        for id in ids() {
            let suite = load(id).unwrap();
            let texts: BTreeSet<_> = suite.prompts.iter().map(|p| &p.turns).collect();
            assert_eq!((suite.prompts.len(), texts.len()), (24, 24), "{id}");
        }
    }

    #[test]
    fn no_suite_prompt_occurs_in_the_synthetic_training_text() {
        let suites = ids().into_iter().map(|id| load(id).unwrap());
        let prompts: BTreeSet<String> = suites
            .flat_map(|suite| suite.prompts)
            .map(|prompt| datasets::same_prompt_key(&prompt.turns[0]))
            .collect();
        // The seeds of the shipped recipes are below 8.
        for seed in [1, 7] {
            for domain in Domain::ALL {
                for index in 0..20_000 {
                    let user = datasets::synth::example(seed, domain, index).user;
                    let key = datasets::same_prompt_key(&user);
                    assert!(!prompts.contains(&key), "{domain} example {index}: {user}");
                }
            }
        }
    }

    #[test]
    fn an_unknown_id_is_answered_with_the_known_ones() {
        let error = load("mini-math").unwrap_err().to_string();
        let known = "known: mini-maths, mini-code, mini-chat";
        assert_eq!(error, format!("suite \"mini-math\" is unknown; {known}"));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_file() {
        let prompt = "[[prompt]]\nid = 1\nturns = [\"Hi\"]\n";
        parse("s", &format!("{GOOD}{prompt}")).unwrap();
        for bad in [
            format!("{GOOD}speed = 1\n{prompt}"),
            format!("{GOOD}{prompt}speed = 1\n"),
        ] {
            let error = parse("s", &bad).unwrap_err().to_string();
            assert!(
                error.starts_with("s.toml: ") && error.contains("`speed`"),
                "{error}"
            );
        }
    }

    #[test]
    fn empty_and_duplicate_content_is_refused() {
        for (rest, why) in [
            ("prompt = []", "no [[prompt]]"),
            ("[[prompt]]\nid = 1\nturns = []", "prompt 1 is empty"),
            (
                "[[prompt]]\nid = 2\nturns = [\"Hi\", \" \"]",
                "prompt 2 is empty",
            ),
            (
                "[[prompt]]\nid = 3\nturns = [\"Hi\"]\n[[prompt]]\nid = 3\nturns = [\"Ho\"]",
                "prompt id 3 appears twice",
            ),
        ] {
            let error = parse("s", &format!("{GOOD}{rest}\n"))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(&format!("s.toml: {why}")), "{error}");
        }
        let other = parse(
            "t",
            &format!("{GOOD}[[prompt]]\nid = 1\nturns = [\"Hi\"]\n"),
        );
        assert!(
            other
                .unwrap_err()
                .to_string()
                .contains("the file name wants \"t\"")
        );
    }
}
