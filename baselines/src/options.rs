//! How a method is asked for: `dflash`, `dcoco:select=global_sum:k=8`, or the name of a preset.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::{Error, METHODS, Method, Result};

/// Options every method with a drafter takes; read by whoever loads it.
pub const COMMON_OPTIONS: &[(&str, &str)] = &[
    (
        "checkpoint",
        "suffix of the drafter's folder, <target>-<suffix>, instead of the method's own",
    ),
    (
        "max_draft",
        "draft tokens a round, at most what the drafter was trained for",
    ),
    (
        "schedule",
        "how many drafts are verified: all, threshold-P, adaptive or capacity-N; all but the first need confidences",
    ),
    (
        "acceptance",
        "real, or synthetic-T: drafts are replaced so that T tokens are committed a round, to measure costs alone",
    ),
    (
        "weights",
        "stored, or random: made up for the config.json in the drafter's folder; needs acceptance=synthetic-T",
    ),
];

/// Names that stand for a method with options.
pub static PRESETS: &[(&str, &str)] = &[
    ("eagle3-chain-7", "eagle3:mode=chain:depth=7"),
    (
        "eagle3-tree-7-10-16",
        "eagle3:mode=tree:depth=7:topk=10:total=16",
    ),
    (
        "eagle3-tree-7-10-60",
        "eagle3:mode=tree:depth=7:topk=10:total=60",
    ),
    // As many drafts as the authors' own loop has of a released block of 16, and one less, as servers have.
    ("domino-hf-k16", "domino:max_draft=16"),
    ("domino-serve-k15", "domino:max_draft=15"),
    // DCOCO's ablations: what was trained differently, then what is chosen differently.
    ("dcoco-frozen", "dcoco:checkpoint=dcoco-frozen"),
    ("dcoco-no-pair", "dcoco:checkpoint=dcoco-no-pair"),
    ("dcoco-no-candidate", "dcoco:checkpoint=dcoco-no-candidate"),
    ("dcoco-global-sum", "dcoco:select=global_sum"),
    ("dcoco-global-logprob", "dcoco:select=global_logprob"),
    ("dcoco-first", "dcoco:select=first"),
];

/// A method with its options, as one column of a table.
#[derive(Clone, Debug)]
pub struct Arm {
    /// What it was asked for as; names it in records and tables.
    pub key: String,
    /// The method.
    pub method: &'static Method,
    /// Its options.
    pub options: Options,
}

impl Arm {
    /// Parses a method id, a preset, or `id:key=value:key=value`.
    ///
    /// # Errors
    /// [`Error::UnknownMethod`], or [`Error::Option`] for an option the method does not have, a repeated one or one
    /// without a value.
    pub fn parse(key: &str) -> Result<Self> {
        let (name, own) = key
            .split_once(':')
            .map_or((key, None), |(n, o)| (n, Some(o)));
        let spelled = PRESETS.iter().find(|p| p.0 == name).map_or(name, |p| p.1);
        let (id, preset) = spelled
            .split_once(':')
            .map_or((spelled, None), |(n, o)| (n, Some(o)));
        let method = crate::method(id)?;
        let mut options = Options {
            method: method.id,
            values: BTreeMap::new(),
        };
        // What is typed wins over what a preset says.
        for list in [preset, own].into_iter().flatten() {
            options.add(method, list)?;
        }
        Ok(Self {
            key: key.to_owned(),
            method,
            options,
        })
    }
}

/// The options of one [`Arm`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    method: &'static str,
    values: BTreeMap<String, String>,
}

impl Options {
    fn add(&mut self, method: &'static Method, list: &str) -> Result<()> {
        let mut new = BTreeMap::new();
        for item in list.split(':') {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            if key.is_empty() || value.is_empty() {
                return Err(self.bad(item, "must read key=value"));
            }
            let common = COMMON_OPTIONS
                .iter()
                .filter(|_| method.checkpoint.is_some());
            let known: Vec<&str> = common.chain(method.options).map(|o| o.0).collect();
            if !known.contains(&key) {
                let known = match known.is_empty() {
                    true => "the method has no options".to_owned(),
                    false => format!("known: {}", known.join(", ")),
                };
                return Err(self.bad(item, &format!("is unknown; {known}")));
            }
            if new.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(self.bad(item, "is given twice"));
            }
        }
        self.values.extend(new);
        Ok(())
    }

    /// The value of an option, parsed; `None` if it was not given.
    ///
    /// # Errors
    /// [`Error::Option`] if it does not parse; `expected` says what would.
    pub fn get<T: FromStr>(&self, key: &str, expected: &str) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        match value.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.bad(&format!("{key}={value}"), &format!("expected {expected}"))),
        }
    }

    /// The error for an option whose value cannot be used.
    pub fn bad(&self, item: &str, why: &str) -> Error {
        Error::Option {
            method: self.method,
            item: item.to_owned(),
            why: why.to_owned(),
        }
    }
}

/// Names `--methods` takes: ids, then presets.
pub fn method_names() -> impl Iterator<Item = &'static str> {
    METHODS
        .iter()
        .map(|m| m.id)
        .chain(PRESETS.iter().map(|p| p.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(key: &str) -> String {
        Arm::parse(key).unwrap_err().to_string()
    }

    #[test]
    fn options_are_read_back_as_what_they_are() {
        let arm = Arm::parse("dflash:max_draft=3:checkpoint=dflash-15").unwrap();
        assert_eq!(arm.method.id, "dflash");
        assert_eq!(
            arm.options.get("max_draft", "a number").unwrap(),
            Some(3usize)
        );
        assert_eq!(
            arm.options
                .get::<String>("checkpoint", "")
                .unwrap()
                .as_deref(),
            Some("dflash-15")
        );
        assert_eq!(arm.options.get::<u32>("schedule", "").unwrap(), None);
    }

    #[test]
    fn what_cannot_be_an_option_is_refused_by_name() {
        assert!(refused("dflsh").contains("dflash"));
        assert!(refused("dflash:gamma=3").contains("known: checkpoint, max_draft"));
        assert!(refused("dflash:max_draft").contains("key=value"));
        assert!(refused("dflash:max_draft=1:max_draft=2").contains("twice"));
        assert!(refused("vanilla:max_draft=1").contains("no options"));
        let arm = Arm::parse("dflash:max_draft=x").unwrap();
        let error = arm
            .options
            .get::<usize>("max_draft", "a number")
            .unwrap_err();
        assert!(error.to_string().contains("max_draft=x"), "{error}");
    }
}
