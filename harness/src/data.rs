//! Suites as a run asks them: names of sets spelled out, rows read from a folder and held to their pins, long suites
//! cut by a rule.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use suites::{Prompt, Reference, Subset, Suite, Turns, Wanted};

use crate::cli::DirArgs;

/// The prompts of every suite of a run.
#[derive(Debug, Default)]
pub(crate) struct Library {
    suites: BTreeMap<&'static str, (Suite, Origin)>,
    /// Public suites that are not on this machine, and what to do about it.
    absent: BTreeMap<&'static str, String>,
}

/// Which prompts of a suite are asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// The rule, in place of the suites' own.
    pub(crate) subset: Option<Subset>,
    /// Seed of [`Subset::Hash`].
    pub(crate) seed: u64,
    /// How many.
    pub(crate) most: Most,
}

/// Where a suite's prompts come from, as `run.json` says it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Origin {
    suite: &'static str,
    /// Prompts that are asked.
    asked: usize,
    /// Prompts there are.
    of: usize,
    /// The rule that cut the suite.
    #[serde(skip_serializing_if = "Option::is_none")]
    subset: Option<&'static str>,
    /// Where the rows lie, and what they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Pin>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remark: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct Pin {
    from: PathBuf,
    sha256: String,
    transform: u32,
}

/// How many prompts of a suite are asked at most; `None` is no limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    /// Of a suite that no set counts.
    pub(crate) alone: Option<u32>,
    /// Of a suite that a set counts.
    pub(crate) of_sets: Option<u32>,
}

impl Most {
    fn of(self, wanted: &Wanted) -> usize {
        let limit = |most: Option<u32>| most.map_or(usize::MAX, |n| n as usize);
        match wanted.most {
            Some(most) => most.min(limit(self.of_sets)),
            None => limit(self.alone),
        }
    }
}

/// What names of suites and sets stand for, in order, each suite once.
///
/// # Errors
/// If a name is unknown; the message names those that are known.
pub(crate) fn expand<'a>(names: impl IntoIterator<Item = &'a String>) -> Result<Vec<Wanted>> {
    let mut out: Vec<Wanted> = Vec::new();
    for name in names {
        let Some(wanted) = suites::wanted(name) else {
            bail!(
                "suite {name:?} is unknown; known: {}",
                suites::known_names()
            );
        };
        for one in wanted {
            if !out.iter().any(|known| known.id == one.id) {
                out.push(one);
            }
        }
    }
    Ok(out)
}

/// Whether a list has the suite, by its own name or by that of a set; no list has all.
pub(crate) fn is_named(list: Option<&[String]>, id: &str) -> bool {
    let stands_for = |name: &String| {
        let wanted = suites::wanted(name);
        wanted.is_some_and(|wanted| wanted.iter().any(|one| one.id == id))
    };
    list.is_none_or(|list| list.iter().any(stands_for))
}

/// The rule of that name.
///
/// # Errors
/// If there is none; the message names those that are known.
pub(crate) fn rule(name: &str) -> Result<Subset> {
    let found = name.parse::<Subset>();
    found.map_err(|why| anyhow::anyhow!("--subset {why}"))
}

/// Refuses a folder that was typed and is not there.
///
/// # Errors
/// If it is no folder.
pub(crate) fn check(args: &DirArgs) -> Result<()> {
    if let Some(dir) = &args.data_dir {
        ensure!(dir.is_dir(), "--data-dir {}: no such folder", dir.display());
    }
    Ok(())
}

impl Library {
    /// Reads and cuts every suite that is wanted. Those that are not on this machine are noted.
    ///
    /// # Errors
    /// If a file cannot be read or its content is not the pinned one.
    pub(crate) fn open(wanted: &[Wanted], args: &DirArgs, cut: Cut) -> Result<Self> {
        let mut library = Self::default();
        for one in wanted {
            match take(one, args, cut)? {
                Ok(found) => drop(library.suites.insert(one.id, found)),
                Err(why) => drop(library.absent.insert(one.id, why)),
            }
        }
        Ok(library)
    }

    /// Why a suite cannot be asked on this machine; `None` if it can.
    pub(crate) fn lacks(&self, id: &str) -> Option<&str> {
        self.absent.get(id).map(String::as_str)
    }

    /// The prompts of a suite that [`Self::open`] was given, in the order they are asked.
    pub(crate) fn prompts(&self, id: &str) -> &[Prompt] {
        self.suites.get(id).map_or(&[], |(suite, _)| &suite.prompts)
    }

    /// Whether code that answers a suite can be tested.
    pub(crate) fn has_tests(&self, id: &str) -> bool {
        let is_test = |r: &Reference| !matches!(r, Reference::Answer { .. });
        let prompts = self.prompts(id).iter();
        prompts.filter_map(|p| p.reference.as_ref()).any(is_test)
    }

    /// Answers that all prompts of a suite ask for, once each.
    pub(crate) fn n_turns(&self, id: &str) -> usize {
        self.prompts(id)
            .iter()
            .map(|prompt| prompt.turns.len())
            .sum()
    }

    /// Where each suite comes from, by id.
    pub(crate) fn origins(&self) -> Vec<Origin> {
        self.suites
            .values()
            .map(|(_, origin)| origin.clone())
            .collect()
    }

    /// What a person should know of suites that are cut or that are not in the binary, a line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        let is_plain = |o: &&Origin| o.content.is_some() || o.subset.is_some();
        let origins = self.suites.values().map(|(_, origin)| origin);
        origins.filter(is_plain).map(Origin::line).collect()
    }

    /// Remarks on contents that are not the pinned set.
    pub(crate) fn notes(&self) -> impl Iterator<Item = String> {
        let remark = |o: &Origin| Some(format!("suite {}: {}", o.suite, o.remark.as_ref()?));
        self.suites
            .values()
            .filter_map(move |(_, origin)| remark(origin))
    }
}

impl Origin {
    fn line(&self) -> String {
        let mut line = format!("{}: {} of {} prompts", self.suite, self.asked, self.of);
        if let Some(rule) = self.subset {
            line.push_str(&format!(" by the rule {rule}"));
        }
        if let Some(pin) = &self.content {
            line.push_str(&format!(
                ", from {}, sha256 {}",
                pin.from.display(),
                &pin.sha256[..12]
            ));
        }
        line
    }
}

/// A suite's prompts, or why it is not there.
type Taken = std::result::Result<(Suite, Origin), String>;

fn take(wanted: &Wanted, args: &DirArgs, cut: Cut) -> Result<Taken> {
    let (mut suite, content, remark) = if suites::ids().contains(&wanted.id) {
        (suites::load(wanted.id)?, None, None)
    } else {
        let public = suites::public(wanted.id)?;
        let content = match read(&public, args)? {
            Ok(content) => content,
            Err(why) => return Ok(Err(why)),
        };
        let pin = Pin {
            from: content.from,
            sha256: content.sha256,
            transform: public.transform,
        };
        (content.suite, Some(pin), content.remark)
    };
    let of = suite.prompts.len();
    let rule = cut.subset.unwrap_or(wanted.subset);
    let rows = rule.rows(of, cut.most.of(wanted), cut.seed);
    suite.prompts = rows.iter().map(|row| suite.prompts[*row].clone()).collect();
    if wanted.turns == Turns::First {
        suite
            .prompts
            .iter_mut()
            .for_each(|prompt| prompt.turns.truncate(1));
    }
    let asked = suite.prompts.len();
    let origin = Origin {
        suite: wanted.id,
        asked,
        of,
        subset: (asked < of).then(|| rule.name()),
        content,
        remark,
    };
    Ok(Ok((suite, origin)))
}

/// Reads a public suite from `--data-dir`, or from the folder that `draftbench data pull` fills; the inner error says
/// why it is in neither.
fn read(
    public: &suites::Public,
    args: &DirArgs,
) -> Result<std::result::Result<suites::Content, String>> {
    let id = &public.id;
    let dir = match dir(args) {
        Ok(dir) => dir,
        Err(why) => return Ok(Err(format!("suite {id}: {why}"))),
    };
    let found = public.read(&dir)?;
    Ok(found.ok_or_else(|| {
        format!(
            "suite {id}: {} holds none of {}; fetch it with `draftbench data pull {id}` or name its folder with --data-dir",
            dir.display(),
            public.names(),
        )
    }))
}

/// The folder of suites: what was typed, else the cache.
///
/// # Errors
/// If nothing was typed and there is no home folder.
pub(crate) fn dir(args: &DirArgs) -> Result<PathBuf> {
    let dir = args.data_dir.as_deref().or(args.cache.as_deref());
    dir.map(Path::to_path_buf).context(
        "neither XDG_CACHE_HOME nor HOME is set; name the folder of suites with --data-dir",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWELVE: Cut = Cut {
        subset: None,
        seed: 0,
        most: Most {
            alone: Some(12),
            of_sets: None,
        },
    };

    fn names(list: &[&str]) -> Vec<Wanted> {
        let list: Vec<String> = list.iter().map(|name| (*name).to_owned()).collect();
        expand(&list).unwrap()
    }

    fn args(dir: &Path) -> DirArgs {
        DirArgs {
            data_dir: Some(dir.to_owned()),
            cache: None,
        }
    }

    #[test]
    fn a_set_stands_for_its_suites_and_none_is_run_twice() {
        let ids: Vec<&str> = names(&["gsm8k", "dflash7", "mini-chat", "embedded"])
            .iter()
            .map(|one| one.id)
            .collect();
        let want = [
            "gsm8k",
            "math500",
            "aime25",
            "humaneval",
            "mbpp",
            "livecodebench",
            "mt-bench",
            "mini-chat",
            "mini-maths",
            "mini-code",
        ];
        assert_eq!(ids, want);
        let error = expand([&"gsm9k".to_owned()]).unwrap_err().to_string();
        assert!(
            error.starts_with("suite \"gsm9k\" is unknown; known: mini-maths, "),
            "{error}"
        );
        assert!(error.ends_with("dspark9"), "{error}");
    }

    #[test]
    fn a_number_that_is_typed_lowers_that_of_a_set_and_a_presets_does_not() {
        let [set, alone] = [names(&["aime24", "dflash10"]), names(&["mini-maths"])];
        let [typed, long] = [40, 400].map(|n| Most {
            alone: Some(n),
            of_sets: Some(n),
        });
        let preset = TWELVE.most;
        assert_eq!(
            [preset, typed, long].map(|m| m.of(&alone[0])),
            [12, 40, 400]
        );
        assert_eq!([preset, typed, long].map(|m| m.of(&set[0])), [12, 40, 400]);
        assert_eq!([preset, typed, long].map(|m| m.of(&set[1])), [128, 40, 128]);
    }

    #[test]
    fn embedded_suites_need_no_folder_and_are_cut_to_their_first_prompts() {
        let library = Library::open(&names(&["embedded"]), &DirArgs::default(), TWELVE).unwrap();
        let ids: Vec<u32> = library.prompts("mini-code").iter().map(|p| p.id).collect();
        assert_eq!(ids, (1..=12).collect::<Vec<_>>());
        assert_eq!(
            library.lines()[0],
            "mini-chat: 12 of 24 prompts by the rule first"
        );
    }

    #[test]
    fn a_suite_that_is_not_there_is_named_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::open(&names(&["gsm8k"]), &args(dir.path()), TWELVE).unwrap();
        let why = library.lacks("gsm8k").unwrap();
        for part in [
            "suite gsm8k: ",
            "gsm8k.jsonl",
            "draftbench data pull gsm8k",
            "--data-dir",
        ] {
            assert!(why.contains(part), "{why}");
        }
        assert_eq!((library.n_turns("gsm8k"), library.origins().len()), (0, 0));
        let nowhere = Library::open(&names(&["gsm8k"]), &DirArgs::default(), TWELVE).unwrap();
        let why = nowhere.lacks("gsm8k").unwrap();
        assert!(why.contains("--data-dir"), "{why}");
        let error = check(&args(&dir.path().join("no")))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("--data-dir ") && error.ends_with("no such folder"),
            "{error}"
        );
    }

    #[test]
    fn another_content_and_an_unknown_rule_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("aime24.jsonl"), "{\"turns\": [\"a\"]}\n").unwrap();
        let error = Library::open(&names(&["aime24"]), &args(dir.path()), TWELVE).unwrap_err();
        assert!(
            crate::chain(&error).contains("pinned are 30 rows of sha256 98b2"),
            "{error:#}"
        );
        let error = rule("odd").unwrap_err().to_string();
        assert!(
            error.starts_with("--subset \"odd\" is unknown; known: first, "),
            "{error}"
        );
    }

    #[test]
    fn an_exclusion_names_suites_one_by_one_or_by_a_set() {
        let list = |name: &str| [name.to_owned()];
        assert!(is_named(None, "gsm8k"));
        assert!(is_named(Some(&list("dflash7")), "gsm8k"));
        assert!(is_named(Some(&list("gsm8k")), "gsm8k"));
        assert!(!is_named(Some(&list("embedded")), "gsm8k"));
        assert!(!is_named(Some(&list("gsm9k")), "gsm8k"));
    }
}
