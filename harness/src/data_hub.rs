//! Files of the Hugging Face hub, kept in the hub's own local cache: `datasets--OWNER--NAME/` with `blobs/`, `refs/` and
//! `snapshots/COMMIT/`, so that other programs find what was fetched here, and the other way round.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ureq::http::{HeaderMap, Response};
use ureq::{Agent, Body};

use crate::data_env::Environment;

const ENDPOINT: &str = "https://huggingface.co";
/// Tries of one file; each that brings nothing new doubles the pause before the next.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// A file of a data set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HubFile<'a> {
    /// Owner and name.
    pub(crate) repository: &'a str,
    /// Branch, tag or commit.
    pub(crate) revision: &'a str,
    /// Path within the data set.
    pub(crate) path: &'a str,
}

/// The hub and its cache.
pub(crate) struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    cache: PathBuf,
    first_pause: Duration,
}

/// What the hub says of a file before it sends it.
struct Facts {
    commit: String,
    /// Name of the blob; of a large file its SHA-256.
    etag: String,
    n_bytes: Option<u64>,
}

/// Why a try failed: for good, or perhaps not the next time.
enum Fault {
    Final(anyhow::Error),
    Passing(anyhow::Error),
}

impl Hub {
    /// Reads endpoint, token, proxy and cache folder from what the environment says.
    ///
    /// # Errors
    /// If there is no folder for the cache.
    pub(crate) fn new(environment: &Environment) -> Result<Self> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects_will_error(false)
            .redirect_auth_headers(ureq::config::RedirectAuthHeaders::SameHost)
            .proxy(environment.proxy.clone())
            .user_agent(concat!("draftbench/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .build();
        let home = environment.hf_home.clone();
        let home = home.or_else(|| Some(environment.cache_home.as_ref()?.join("huggingface")));
        let endpoint = environment.hf_endpoint.as_deref().unwrap_or(ENDPOINT);
        Ok(Self {
            agent: config.new_agent(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: environment.hf_token.clone(),
            cache: home
                .context("none of HF_HOME, XDG_CACHE_HOME and HOME is set; set HF_HOME")?
                .join("hub"),
            first_pause: FIRST_PAUSE,
        })
    }

    /// The same without pauses between tries.
    #[cfg(test)]
    pub(crate) fn hasty(mut self) -> Self {
        self.first_pause = Duration::ZERO;
        self
    }

    /// The file's place in the cache, fetched if it is not there; `moved` is told bytes there and bytes in all.
    ///
    /// # Errors
    /// If the hub refuses, has no such file, cannot be reached after some tries, or sends something else than it said.
    pub(crate) fn fetch(
        &self,
        file: HubFile<'_>,
        moved: &dyn Fn(u64, Option<u64>),
    ) -> Result<PathBuf> {
        let root = self
            .cache
            .join(format!("datasets--{}", file.repository.replace('/', "--")));
        let commit = fs::read_to_string(root.join("refs").join(file.revision));
        let commit = commit.unwrap_or_else(|_| file.revision.to_owned());
        let known = root.join("snapshots").join(commit.trim()).join(file.path);
        if known.is_file() {
            return Ok(known);
        }
        let facts = self.patiently(&url_of(self, file), || self.facts(file))?;
        let blob = root.join("blobs").join(&facts.etag);
        if !blob.is_file() {
            self.download(file, &facts, &blob, moved)?;
        }
        let refused = || format!("{}: cannot be written to", root.display());
        let place = root.join("snapshots").join(&facts.commit).join(file.path);
        link(&blob, &place, file.path).with_context(refused)?;
        let reference = root.join("refs").join(file.revision);
        make_parent(&reference)
            .and_then(|()| fs::write(&reference, &facts.commit))
            .with_context(refused)?;
        Ok(place)
    }

    fn download(
        &self,
        file: HubFile<'_>,
        facts: &Facts,
        blob: &Path,
        moved: &dyn Fn(u64, Option<u64>),
    ) -> Result<()> {
        let url = url_of(self, file);
        let part = blob.with_file_name(format!("{}.incomplete", facts.etag));
        let refused = || format!("{}: cannot be written to", part.display());
        make_parent(&part).with_context(refused)?;
        self.patiently(&url, || self.go_on(file, &part, facts, moved))?;
        if facts.etag.len() == 64 {
            let got = datasets::sha256_file(&part)?;
            if got != facts.etag {
                fs::remove_file(&part).with_context(refused)?;
                bail!(
                    "{url}: sha256 is {got}, the hub says {}; what came is thrown away, fetch it again",
                    facts.etag
                );
            }
        }
        fs::rename(&part, blob).with_context(refused)
    }

    /// Calls until it works, pausing in between; gives up on what will not change.
    fn patiently<T>(
        &self,
        url: &str,
        act: impl Fn() -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        let mut pause = self.first_pause;
        let mut tries = 1;
        loop {
            match act() {
                Ok(done) => return Ok(done),
                Err(Fault::Final(err)) => return Err(err),
                Err(Fault::Passing(err)) if tries >= TRIES => {
                    return Err(err.context(format!("{url}: given up after {TRIES} tries")));
                }
                Err(Fault::Passing(_)) => {
                    std::thread::sleep(pause);
                    pause *= 2;
                    tries += 1;
                }
            }
        }
    }

    /// Asks about the file; a large one is answered by a redirect that carries its hash.
    fn facts(&self, file: HubFile<'_>) -> std::result::Result<Facts, Fault> {
        let url = url_of(self, file);
        let mut request = self.agent.head(&url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = request.config().max_redirects(0).build().call();
        let answer = answer.map_err(|e| passing(&url, e))?;
        if !answer.status().is_redirection() {
            accept(&url, file, &answer)?;
        }
        let headers = answer.headers();
        let etag = header(headers, "x-linked-etag").or_else(|| header(headers, "etag"));
        let commit = header(headers, "x-repo-commit");
        let n_bytes = header(headers, "x-linked-size").or_else(|| {
            let is_redirect = answer.status().is_redirection();
            header(headers, "content-length").filter(|_| !is_redirect)
        });
        let (Some(etag), Some(commit)) = (etag, commit) else {
            let why = "names neither hash nor commit, as the hub does; is HF_ENDPOINT a hub?";
            return Err(Fault::Final(anyhow::anyhow!("{url}: the answer {why}")));
        };
        let etag = etag.trim_start_matches("W/").trim_matches('"').to_owned();
        let is_name = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        if !is_name(&etag) || !is_name(&commit) {
            let why = format!("{url}: hash {etag:?} or commit {commit:?} cannot be a file name");
            return Err(Fault::Final(anyhow::anyhow!(why)));
        }
        Ok(Facts {
            commit,
            etag,
            n_bytes: n_bytes.and_then(|n| n.parse().ok()),
        })
    }

    /// Appends what is missing of the file to what is there.
    fn go_on(
        &self,
        file: HubFile<'_>,
        part: &Path,
        facts: &Facts,
        moved: &dyn Fn(u64, Option<u64>),
    ) -> std::result::Result<(), Fault> {
        let disk = |e: io::Error| {
            Fault::Final(
                anyhow::Error::new(e).context(format!("{}: cannot be written to", part.display())),
            )
        };
        let url = &url_of(self, file);
        let mut there = fs::metadata(part).map_or(0, |meta| meta.len());
        if facts.n_bytes.is_some_and(|n_bytes| there > n_bytes) {
            there = 0;
        }
        if there > 0 && facts.n_bytes == Some(there) {
            return Ok(());
        }
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if there > 0 {
            request = request.header("range", format!("bytes={there}-"));
        }
        let mut answer = request.call().map_err(|e| passing(url, e))?;
        accept(url, file, &answer)?;
        // A server that knows no ranges sends everything again.
        let is_rest = answer.status().as_u16() == 206;
        if !is_rest {
            there = 0;
        }
        let mut out = OpenOptions::new();
        let out = match is_rest {
            true => out.append(true).open(part),
            false => File::create(part),
        };
        let mut out = out.map_err(disk)?;
        let mut body = answer.body_mut().as_reader();
        let mut piece = vec![0u8; 1 << 16];
        loop {
            let n = body.read(&mut piece).map_err(|e| passing(url, e))?;
            if n == 0 {
                break;
            }
            out.write_all(&piece[..n]).map_err(disk)?;
            there += n as u64;
            moved(there, facts.n_bytes);
        }
        match facts.n_bytes {
            Some(n_bytes) if n_bytes != there => {
                let cut = anyhow::anyhow!("{url}: {there} of {n_bytes} bytes came");
                Err(Fault::Passing(cut))
            }
            _ => Ok(()),
        }
    }
}

fn url_of(hub: &Hub, file: HubFile<'_>) -> String {
    let HubFile {
        repository,
        revision,
        path,
    } = file;
    format!(
        "{}/datasets/{repository}/resolve/{revision}/{path}",
        hub.endpoint
    )
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

fn passing(url: &str, error: impl Into<anyhow::Error>) -> Fault {
    Fault::Passing(error.into().context(format!("{url}: cannot be fetched")))
}

/// Sorts what a server answers into fine, for good, and perhaps later.
fn accept(url: &str, file: HubFile<'_>, answer: &Response<Body>) -> std::result::Result<(), Fault> {
    let status = answer.status();
    let say = |what: &str| anyhow::anyhow!("{url}: {status}: {what}");
    match status.as_u16() {
        200..=299 => Ok(()),
        401 | 403 => Err(Fault::Final(say(
            "the hub asks who you are; set HF_TOKEN to a token that may read the data set, after accepting its terms",
        ))),
        404 => Err(Fault::Final(say(&format!(
            "no such file; {} may have moved it, or HF_ENDPOINT is wrong",
            file.repository
        )))),
        408 | 416 | 429 | 500..=599 => Err(Fault::Passing(say("the hub is busy"))),
        _ => Err(Fault::Final(say("this answer was not expected"))),
    }
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Makes `place` the blob: a relative link where the system has them, else a copy.
fn link(blob: &Path, place: &Path, path: &str) -> io::Result<()> {
    make_parent(place)?;
    if place.is_file() {
        return Ok(());
    }
    // Out of the folders of `path`, the commit's and `snapshots`.
    let up = "../".repeat(path.split('/').count() + 1);
    let name = blob.file_name().unwrap_or_default();
    let target = Path::new(&up).join("blobs").join(name);
    #[cfg(unix)]
    let made = std::os::unix::fs::symlink(&target, place);
    #[cfg(not(unix))]
    let made: io::Result<()> = Err(io::Error::other(target.display().to_string()));
    match made {
        Ok(()) => Ok(()),
        Err(_) => fs::copy(blob, place).map(|_| ()),
    }
}

/// Refuses an endpoint that is no address.
///
/// # Errors
/// If `HF_ENDPOINT` does not begin with `http://` or `https://`.
pub(crate) fn check_endpoint(environment: &Environment) -> Result<()> {
    if let Some(endpoint) = &environment.hf_endpoint {
        let is_address = ["http://", "https://"]
            .iter()
            .any(|s| endpoint.starts_with(s));
        ensure!(
            is_address,
            "HF_ENDPOINT {endpoint:?}: must begin with https:// or http://"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
