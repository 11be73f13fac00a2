//! What the environment says about suites; read once, in `main`.

use std::env;
use std::path::PathBuf;

/// The variables that matter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    /// `XDG_CACHE_HOME`, else `.cache` below `HOME`.
    pub(crate) cache_home: Option<PathBuf>,
}

impl Environment {
    /// Reads it. A variable that is empty counts as not set.
    pub(crate) fn read() -> Self {
        let path = |name: &str| {
            env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            cache_home: path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache"))),
        }
    }

    /// Where converted suites lie if nothing else is said.
    pub(crate) fn suites_dir(&self) -> Option<PathBuf> {
        Some(self.cache_home.as_ref()?.join("draftbench").join("data"))
    }
}
