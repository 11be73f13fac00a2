//! What the environment says about suites, the hub and the workflow that runs this; read once, in `main`.

use std::env;
use std::path::PathBuf;

/// The variables that matter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    /// `XDG_CACHE_HOME`, else `.cache` below `HOME`.
    pub(crate) cache_home: Option<PathBuf>,
    /// `HF_HOME`.
    pub(crate) hf_home: Option<PathBuf>,
    /// `HF_ENDPOINT`.
    pub(crate) hf_endpoint: Option<String>,
    /// `HF_TOKEN`.
    pub(crate) hf_token: Option<String>,
    /// `ALL_PROXY`, `HTTPS_PROXY` or `HTTP_PROXY`, in either case, with `NO_PROXY`.
    pub(crate) proxy: Option<ureq::Proxy>,
    /// `GITHUB_STEP_SUMMARY`: the file that a step's summary is appended to.
    pub(crate) step_summary: Option<PathBuf>,
}

impl Environment {
    /// Reads it. A variable that is empty counts as not set.
    pub(crate) fn read() -> Self {
        let text = |name: &str| env::var(name).ok().filter(|value| !value.trim().is_empty());
        let path = |name: &str| {
            env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            cache_home: path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache"))),
            hf_home: path("HF_HOME"),
            hf_endpoint: text("HF_ENDPOINT"),
            hf_token: text("HF_TOKEN"),
            proxy: ureq::Proxy::try_from_env(),
            step_summary: path("GITHUB_STEP_SUMMARY"),
        }
    }

    /// Where converted suites lie if nothing else is said.
    pub(crate) fn suites_dir(&self) -> Option<PathBuf> {
        Some(self.cache_home.as_ref()?.join("draftbench").join("data"))
    }
}
