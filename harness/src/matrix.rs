//! The one file format that says what to run: `matrix.toml`, and the presets inside the binary. A matrix is a list of
//! blocks, each a full product of its lists, so that a study need not be one; exclusions take cells out again.

use anyhow::{Result, anyhow, bail, ensure};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most edits between a key and the known one that an error suggests for it.
const MAX_EDITS: usize = 3;

/// A file as it is written: what is absent comes from `extends`, or is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "matrix.toml of draftbench")]
pub(crate) struct MatrixFile {
    /// What it is for.
    pub(crate) title: Option<String>,
    /// A preset, or a file relative to this one, whose keys hold where this file has none. A list given at the top of
    /// this file takes the place of that list in every inherited block; exclusions add up.
    pub(crate) extends: Option<String>,
    /// What decodes.
    pub(crate) engine: Option<Engine>,
    /// Targets of blocks that name none; default: tiny-qwen3.
    pub(crate) targets: Option<Vec<String>>,
    /// Methods with options, such as "dcoco:k=8", of blocks that name none. Vanilla is always measured too.
    pub(crate) methods: Option<Vec<String>>,
    /// Suites, or sets of them, of blocks that name none.
    pub(crate) suites: Option<Vec<String>>,
    /// "greedy", or "t" and the temperature in thousandths ("t1000", "t600-k20-p950"), for blocks that name none; default: greedy.
    pub(crate) sampling: Option<Vec<String>>,
    /// Thinking switches of blocks that name none; default: off.
    pub(crate) thinking: Option<Vec<Switch>>,
    /// Sequences decoded at once, 1 to 64, of blocks that name none; default: 1.
    pub(crate) concurrency: Option<Vec<u32>>,
    /// When requests come, of blocks that name none: "closed", or in open loop "poisson-" and requests a second in
    /// thousandths ("poisson-2500"); default: closed.
    pub(crate) arrivals: Option<Vec<String>>,
    /// Answers to each prompt where decoding is greedy, to fill a batch; where tokens are sampled, times `samples`.
    pub(crate) repeat: Option<u32>,
    /// At most so many prompts of each suite; default: as many as a set says, and all of other suites.
    pub(crate) prompts: Option<u32>,
    /// How a suite that is too long is cut: "first", "dflash", "deepspec" or "hash"; default: the set's own rule, dflash
    /// for a public suite named by itself, first for the suites inside the binary.
    pub(crate) subset: Option<String>,
    /// Seed of the rule hash; default: 0.
    pub(crate) subset_seed: Option<u64>,
    /// Answers to a prompt where tokens are sampled; default: 1.
    pub(crate) samples: Option<u32>,
    /// Most tokens of an answer; no default.
    pub(crate) max_new: Option<u32>,
    /// Seed of every random stream; default: 0.
    pub(crate) seed: Option<u64>,
    /// What is printed at the end.
    pub(crate) report: Option<Report>,
    /// Matrices of their own; without any, the lists above are one.
    #[serde(rename = "block")]
    pub(crate) blocks: Option<Vec<BlockFile>>,
    /// Cells that are not run.
    #[serde(default, rename = "exclude")]
    pub(crate) excludes: Vec<Exclude>,
}

/// A block: lists that take the place of those above.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BlockFile {
    /// Targets.
    pub(crate) targets: Option<Vec<String>>,
    /// Methods with options.
    pub(crate) methods: Option<Vec<String>>,
    /// Suites.
    pub(crate) suites: Option<Vec<String>>,
    /// "greedy", or "t" and the temperature in thousandths, with top-k and top-p behind it ("t600-k20-p950").
    pub(crate) sampling: Option<Vec<String>>,
    /// Thinking switches.
    pub(crate) thinking: Option<Vec<Switch>>,
    /// Sequences decoded at once, 1 to 64.
    pub(crate) concurrency: Option<Vec<u32>>,
    /// "closed", or "poisson-" and requests a second in thousandths.
    pub(crate) arrivals: Option<Vec<String>>,
    /// Answers to each prompt where decoding is greedy; where tokens are sampled, times `samples`.
    pub(crate) repeat: Option<u32>,
}

/// Cells to leave out: those that every given list names. An absent list means all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exclude {
    /// Targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) targets: Option<Vec<String>>,
    /// Methods as spelled above; vanilla cannot be left out alone. Without this list whole groups are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) methods: Option<Vec<String>>,
    /// Suites.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) suites: Option<Vec<String>>,
    /// Sampling keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sampling: Option<Vec<String>>,
    /// Thinking switches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thinking: Option<Vec<Switch>>,
    /// Numbers of sequences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) concurrency: Option<Vec<u32>>,
    /// Arrival keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) arrivals: Option<Vec<String>>,
    /// The reason, shown by `plan`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

/// The thinking switch of a chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Switch {
    /// Answers come at once.
    Off,
    /// A thinking section comes first.
    On,
}

/// What decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Engine {
    /// This program.
    #[default]
    Local,
}

/// What a run prints when it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// One table a setting, two methods abreast.
    #[default]
    Table,
    /// The tables of the study, which are also written to `study/` in the run's folder, with plots.
    Study,
}

/// What to run, with nothing left open; ids are not looked up yet. This is what `plan.json` keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Matrix {
    /// What it is for.
    pub(crate) title: String,
    /// What decodes.
    pub(crate) engine: Engine,
    /// Most prompts of a suite that no set counts; `None` is all.
    pub(crate) prompts: Option<u32>,
    /// Most prompts of a suite that a set counts, where that is more.
    pub(crate) prompts_of_sets: Option<u32>,
    /// The rule that cuts, in place of the sets' own.
    pub(crate) subset: Option<String>,
    /// Seed of the rule hash.
    pub(crate) subset_seed: u64,
    /// Answers to a prompt where tokens are sampled.
    pub(crate) samples: u32,
    /// Most tokens of an answer.
    pub(crate) max_new: u32,
    /// Seed of every random stream.
    pub(crate) seed: u64,
    /// What is printed at the end.
    pub(crate) report: Report,
    /// Full products.
    pub(crate) blocks: Vec<Block>,
    /// Cells to leave out.
    pub(crate) excludes: Vec<Exclude>,
}

/// One full product: every method on every suite of every target in every setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Block {
    /// Targets.
    pub(crate) targets: Vec<String>,
    /// Arms, as `--methods` takes them.
    pub(crate) methods: Vec<String>,
    /// Suites.
    pub(crate) suites: Vec<String>,
    /// As `--sampling` takes it.
    pub(crate) sampling: Vec<String>,
    /// Thinking switches.
    pub(crate) thinking: Vec<Switch>,
    /// Sequences at once.
    pub(crate) concurrency: Vec<u32>,
    /// As `--arrivals` takes it.
    #[serde(default = "closed")]
    pub(crate) arrivals: Vec<String>,
    /// Answers to each prompt where decoding is greedy.
    pub(crate) repeat: u32,
}

/// What plans that were stored before there was an open loop mean.
fn closed() -> Vec<String> {
    vec!["closed".into()]
}

/// Reads a matrix; `place` is how errors name the text.
///
/// # Errors
/// If it is no TOML, a key is unknown (the nearest known one is suggested) or a value has the wrong type.
pub(crate) fn parse(text: &str, place: &str) -> Result<MatrixFile> {
    from_toml(text, place)
}

/// Reads a TOML text; `place` is how errors name it.
///
/// # Errors
/// In one line, as those of [`parse`].
pub(crate) fn from_toml<T: DeserializeOwned>(text: &str, place: &str) -> Result<T> {
    toml::from_str(text).map_err(|err| {
        let line = err.span().map_or(1, |at| {
            1 + text.get(..at.start).unwrap_or(text).matches('\n').count()
        });
        anyhow!("{place} line {line}: {}", explain(err.message()))
    })
}

/// The parser's words in one line, with the known name nearest to an unknown one.
fn explain(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut names = line.split('`').skip(1).step_by(2);
    let is_unknown = line.starts_with("unknown field") || line.starts_with("unknown variant");
    let Some(wrong) = names.next().filter(|_| is_unknown) else {
        return line;
    };
    let by_edits = |known: &str| (strsim::damerau_levenshtein(wrong, known), known.to_owned());
    match names.map(by_edits).min() {
        Some((edits, known)) if edits <= MAX_EDITS.min(wrong.len()) => {
            format!("{line}; did you mean `{known}`?")
        }
        _ => line,
    }
}

/// The JSON schema of a file.
pub(crate) fn schema() -> String {
    let schema = schemars::schema_for!(MatrixFile);
    let mut text =
        serde_json::to_string_pretty(&schema).expect("a schema is made of maps with string keys");
    text.push('\n');
    text
}

impl MatrixFile {
    /// This file's keys, and those of `base` where it has none.
    pub(crate) fn over(self, mut base: Self) -> Self {
        let axes = self.axes();
        let blocks = self.blocks.or_else(|| {
            let blocks = base.blocks.as_mut()?;
            blocks.iter_mut().for_each(|b| b.give_way_to(&axes));
            base.blocks.take()
        });
        base.excludes.extend(self.excludes);
        Self {
            title: self.title.or(base.title),
            extends: self.extends,
            engine: self.engine.or(base.engine),
            targets: self.targets.or(base.targets),
            methods: self.methods.or(base.methods),
            suites: self.suites.or(base.suites),
            sampling: self.sampling.or(base.sampling),
            thinking: self.thinking.or(base.thinking),
            concurrency: self.concurrency.or(base.concurrency),
            arrivals: self.arrivals.or(base.arrivals),
            repeat: self.repeat.or(base.repeat),
            prompts: self.prompts.or(base.prompts),
            subset: self.subset.or(base.subset),
            subset_seed: self.subset_seed.or(base.subset_seed),
            samples: self.samples.or(base.samples),
            max_new: self.max_new.or(base.max_new),
            seed: self.seed.or(base.seed),
            report: self.report.or(base.report),
            blocks,
            excludes: base.excludes,
        }
    }

    /// The lists at the top.
    fn axes(&self) -> BlockFile {
        BlockFile {
            targets: self.targets.clone(),
            methods: self.methods.clone(),
            suites: self.suites.clone(),
            sampling: self.sampling.clone(),
            thinking: self.thinking.clone(),
            concurrency: self.concurrency.clone(),
            arrivals: self.arrivals.clone(),
            repeat: self.repeat,
        }
    }

    /// The matrix, defaults filled in; `place` is how errors name the file.
    ///
    /// # Errors
    /// If a list that has no default is absent or one is empty, or an exclusion names nothing or vanilla.
    pub(crate) fn resolve(self, place: &str) -> Result<Matrix> {
        let top = self.axes();
        let blocks = match self.blocks {
            None => vec![top.resolve(&BlockFile::default(), place)?],
            Some(blocks) => blocks
                .into_iter()
                .map(|block| block.resolve(&top, place))
                .collect::<Result<_>>()?,
        };
        ensure!(
            !blocks.is_empty(),
            "{place}: block is an empty list; leave it out or name what to run"
        );
        self.excludes
            .iter()
            .try_for_each(|exclude| exclude.check(place))?;
        let Some(max_new) = self.max_new else {
            bail!("{place}: max_new is missing; write max_new = 2048 or another number of tokens");
        };
        Ok(Matrix {
            title: self.title.unwrap_or_default(),
            engine: self.engine.unwrap_or_default(),
            prompts: self.prompts,
            prompts_of_sets: self.prompts,
            subset: self.subset,
            subset_seed: self.subset_seed.unwrap_or(0),
            samples: self.samples.unwrap_or(1),
            max_new,
            seed: self.seed.unwrap_or(0),
            report: self.report.unwrap_or_default(),
            blocks,
            excludes: self.excludes,
        })
    }
}

impl BlockFile {
    /// Drops the lists that `axes` has.
    fn give_way_to(&mut self, axes: &Self) {
        fn drop_if<T, U>(own: &mut Option<T>, other: &Option<U>) {
            if other.is_some() {
                *own = None;
            }
        }
        drop_if(&mut self.targets, &axes.targets);
        drop_if(&mut self.methods, &axes.methods);
        drop_if(&mut self.suites, &axes.suites);
        drop_if(&mut self.sampling, &axes.sampling);
        drop_if(&mut self.thinking, &axes.thinking);
        drop_if(&mut self.concurrency, &axes.concurrency);
        drop_if(&mut self.arrivals, &axes.arrivals);
        drop_if(&mut self.repeat, &axes.repeat);
    }

    fn resolve(self, top: &Self, place: &str) -> Result<Block> {
        let own = |own: Option<Vec<String>>, top: &Option<Vec<String>>| own.or_else(|| top.clone());
        let needed = |list: Option<Vec<String>>, name: &str| match list {
            Some(list) => Ok(list),
            None => bail!("{place}: {name} is missing"),
        };
        let block = Block {
            targets: own(self.targets, &top.targets).unwrap_or_else(|| vec!["tiny-qwen3".into()]),
            methods: needed(own(self.methods, &top.methods), "methods")?,
            suites: needed(own(self.suites, &top.suites), "suites")?,
            sampling: own(self.sampling, &top.sampling).unwrap_or_else(|| vec!["greedy".into()]),
            thinking: self
                .thinking
                .or_else(|| top.thinking.clone())
                .unwrap_or_else(|| vec![Switch::Off]),
            concurrency: self
                .concurrency
                .or_else(|| top.concurrency.clone())
                .unwrap_or_else(|| vec![1]),
            arrivals: own(self.arrivals, &top.arrivals).unwrap_or_else(closed),
            repeat: self.repeat.or(top.repeat).unwrap_or(1),
        };
        for (name, is_empty) in [
            ("targets", block.targets.is_empty()),
            ("methods", block.methods.is_empty()),
            ("suites", block.suites.is_empty()),
            ("sampling", block.sampling.is_empty()),
            ("thinking", block.thinking.is_empty()),
            ("concurrency", block.concurrency.is_empty()),
            ("arrivals", block.arrivals.is_empty()),
        ] {
            ensure!(
                !is_empty,
                "{place}: {name} is an empty list, so nothing would run"
            );
        }
        ensure!(block.repeat >= 1, "{place}: repeat 0: must be at least 1");
        Ok(block)
    }
}

impl Exclude {
    fn check(&self, place: &str) -> Result<()> {
        let unbound = Self {
            why: self.why.clone(),
            ..Self::default()
        };
        ensure!(
            *self != unbound,
            "{place}: an [[exclude]] without a list would leave everything out; name targets, methods, suites, sampling, thinking, concurrency or arrivals"
        );
        let names_vanilla = self.methods.iter().flatten().any(|m| m == "vanilla");
        ensure!(
            !names_vanilla,
            "{place}: an [[exclude]] names vanilla, which every speedup is relative to; leave methods out to exclude whole groups"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let read = parse(text, "m.toml").and_then(|file| file.resolve("m.toml"));
        read.unwrap_err().to_string()
    }

    const SMALL: &str = "methods = [\"dflash\"]\nsuites = [\"mini-chat\"]\nmax_new = 8\n";

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
        let error = refused("title = \"x\"\nmetods = [\"dflash\"]\n");
        assert!(
            error.starts_with("m.toml line 2: unknown field `metods`"),
            "{error}"
        );
        assert!(error.ends_with("; did you mean `methods`?"), "{error}");
        let error = refused(&format!("{SMALL}[[block]]\nconcurency = [1]\n"));
        assert!(
            error.contains("line 5") && error.ends_with("did you mean `concurrency`?"),
            "{error}"
        );
        let error = refused(&format!("{SMALL}[[exclude]]\nqqqqqqqqqqqq = [1]\n"));
        assert!(
            error.contains("unknown field") && !error.contains("did you mean"),
            "{error}"
        );
        let error = refused(&format!("{SMALL}thinking = [\"of\"]\n"));
        assert!(error.ends_with("did you mean `off`?"), "{error}");
        let error = refused(&format!("{SMALL}top_p = 0.9\n"));
        assert!(error.contains("unknown field `top_p`"), "{error}");
    }

    #[test]
    fn what_is_missing_or_empty_is_named() {
        for (text, want) in [
            ("methods = [\"dflash\"]\nmax_new = 8\n", "suites is missing"),
            (
                "methods = [\"dflash\"]\nsuites = [\"mini-chat\"]\n",
                "max_new is missing",
            ),
            (
                &format!("{SMALL}sampling = []\n"),
                "sampling is an empty list",
            ),
            (&format!("{SMALL}[[exclude]]\n"), "without a list"),
            (
                &format!("{SMALL}[[exclude]]\nmethods = [\"vanilla\"]\n"),
                "names vanilla",
            ),
            (&format!("{SMALL}repeat = 0\n"), "repeat 0"),
        ] {
            let error = refused(text);
            assert!(
                error.starts_with("m.toml: ") && error.contains(want),
                "{error}"
            );
        }
    }

    #[test]
    fn a_block_has_the_lists_at_the_top_where_it_has_none() {
        let text = format!(
            "{SMALL}concurrency = [4]\n[[block]]\n[[block]]\nconcurrency = [1, 2]\nthinking = [\"on\"]\n"
        );
        let matrix = parse(&text, "m").unwrap().resolve("m").unwrap();
        let got: Vec<(&[u32], &[Switch])> = matrix
            .blocks
            .iter()
            .map(|b| (b.concurrency.as_slice(), b.thinking.as_slice()))
            .collect();
        assert_eq!(
            got,
            [(&[4][..], &[Switch::Off][..]), (&[1, 2], &[Switch::On])]
        );
    }

    #[test]
    fn a_list_over_a_file_takes_the_place_of_that_list_in_every_block() {
        let base = parse(
            &format!(
                "{SMALL}[[block]]\nmethods = [\"dspark\"]\nconcurrency = [8]\n[[exclude]]\nsuites = [\"mini-code\"]\n"
            ),
            "base",
        )
        .unwrap();
        let over = parse(
            "methods = [\"dcoco\"]\nmax_new = 9\n[[exclude]]\nconcurrency = [2]\n",
            "over",
        )
        .unwrap();
        let matrix = over.over(base).resolve("over").unwrap();
        assert_eq!((matrix.max_new, matrix.excludes.len()), (9, 2));
        assert_eq!(
            (
                matrix.blocks[0].methods.as_slice(),
                matrix.blocks[0].concurrency.as_slice()
            ),
            (&["dcoco".to_owned()][..], &[8][..])
        );
    }
}
