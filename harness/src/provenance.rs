//! Where a run comes from: program, command, environment. Read in `main`, stored in `run.json`.

use std::collections::BTreeMap;

use serde::Serialize;

/// Commit that was checked out when this program was built; files may have been edited since. `unknown` outside a clone.
pub(crate) const GIT_COMMIT: &str = env!("DRAFTBENCH_GIT_COMMIT");

/// Beginnings of the variables that a result may depend on.
const KEPT: [&str; 10] = [
    "CUDA_VISIBLE_DEVICES",
    "GOMP_",
    "JOB_COMPLETION",
    "KMP_",
    "MALLOC_",
    "MKL_",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_",
    "RAYON_",
    "SLURM_",
];

/// Words that a variable with a secret may have in its name.
const SECRET: [&str; 9] = [
    "AUTH", "COOKIE", "CRED", "JWT", "KEY", "PASS", "PRIVATE", "SECRET", "TOKEN",
];

/// How the program was called.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Caller {
    /// The command line, program first.
    pub(crate) command: Vec<String>,
    /// Variables of the environment that a result may depend on; never one whose name hints at a secret.
    pub(crate) environment: BTreeMap<String, String>,
}

impl Caller {
    /// From what the system says.
    pub(crate) fn new(
        command: impl Iterator<Item = std::ffi::OsString>,
        vars: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
    ) -> Self {
        let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
        let vars = vars.map(|(name, value)| (text(name), text(value)));
        Self {
            command: command.map(text).collect(),
            environment: vars.filter(|(name, _)| is_kept(name)).collect(),
        }
    }

    /// A variable that [`is_kept`].
    pub(crate) fn var(&self, name: &str) -> Option<String> {
        self.environment.get(name).cloned()
    }
}

fn is_kept(name: &str) -> bool {
    let upper = name.to_uppercase();
    KEPT.iter().any(|kept| name.starts_with(kept)) && !SECRET.iter().any(|s| upper.contains(s))
}

/// Versions of every crate in this program's lock file, by name; a crate with several has them all.
pub(crate) fn crates() -> BTreeMap<String, String> {
    let mut out: BTreeMap<String, String> = BTreeMap::new();
    for line in include_str!(concat!(env!("OUT_DIR"), "/crates.txt")).lines() {
        let Some((name, version)) = line.split_once(' ') else {
            continue;
        };
        match out.get_mut(name) {
            Some(versions) => {
                versions.push_str(", ");
                versions.push_str(version);
            }
            None => drop(out.insert(name.to_owned(), version.to_owned())),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_kept_by_name_and_never_with_a_secret() {
        let vars = [
            ("RAYON_NUM_THREADS", "2"),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_JWT", "x"),
            ("OMP_secret_x", "x"),
            ("SLURM_API_TOKEN", "x"),
            ("HF_TOKEN", "x"),
            ("HOME", "/root"),
        ];
        let caller = Caller::new(
            ["draftbench".into()].into_iter(),
            vars.into_iter().map(|(k, v)| (k.into(), v.into())),
        );
        let names: Vec<&str> = caller.environment.keys().map(String::as_str).collect();
        assert_eq!(names, ["RAYON_NUM_THREADS", "SLURM_JOB_ID"]);
    }

    #[test]
    fn the_crates_of_the_build_are_known_and_so_is_its_commit() {
        assert!(crates().contains_key("candle-core"));
        let is_hash = GIT_COMMIT.len() == 40 && GIT_COMMIT.bytes().all(|b| b.is_ascii_hexdigit());
        assert!(GIT_COMMIT == "unknown" || is_hash, "{GIT_COMMIT}");
    }
}
