use super::*;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const BODY: &str = "{\"question\": \"1+1?\", \"answer\": \"#### 2\"}\n";
const COMMIT: &str = "0123abc";
const FILE: HubFile<'static> = HubFile {
    repository: "o/r",
    revision: "main",
    path: "data/test.jsonl",
};

/// Answers the n-th request with the n-th text and keeps the requests; then nobody listens.
fn server(
    answers: Vec<String>,
) -> (
    Environment,
    tempfile::TempDir,
    Arc<Mutex<Vec<String>>>,
    JoinHandle<()>,
) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let home = tempfile::tempdir().unwrap();
    let environment = Environment {
        hf_home: Some(home.path().to_owned()),
        hf_endpoint: Some(format!("http://{}", listener.local_addr().unwrap())),
        ..Environment::default()
    };
    let asked = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&asked);
    let thread = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            while !request.ends_with("\r\n\r\n") && lines.read_line(&mut request).unwrap() > 0 {}
            kept.lock().unwrap().push(request.to_lowercase());
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (environment, home, asked, thread)
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n{body}")
}

fn sized(body: &str) -> String {
    format!("Content-Length: {}\r\n", body.len())
}

/// What the hub says of a small file whose blob is named `etag`.
fn facts(etag: &str) -> String {
    let headers = format!(
        "ETag: \"{etag}\"\r\nX-Repo-Commit: {COMMIT}\r\n{}",
        sized(BODY)
    );
    answer("200 OK", &headers, "")
}

/// What is fetched, the requests, and the cache's home.
fn fetch(
    answers: Vec<String>,
    token: Option<&str>,
) -> (Result<String>, Vec<String>, tempfile::TempDir) {
    let (mut environment, home, asked, thread) = server(answers);
    environment.hf_token = token.map(str::to_owned);
    let hub = Hub::new(&environment).unwrap().hasty();
    let got = hub
        .fetch(FILE, &|_, _| {})
        .and_then(|path| Ok(fs::read_to_string(path)?));
    thread.join().unwrap();
    let asked = asked.lock().unwrap().clone();
    (got, asked, home)
}

#[test]
fn a_file_lies_in_the_hubs_layout_and_is_not_fetched_twice() {
    let (environment, home, asked, thread) =
        server(vec![facts("abc"), answer("200 OK", &sized(BODY), BODY)]);
    let hub = Hub::new(&environment).unwrap().hasty();
    let seen = std::cell::Cell::new((0, None));
    let path = hub
        .fetch(FILE, &|there, all| seen.set((there, all)))
        .unwrap();
    thread.join().unwrap();
    let root = home.path().join("hub/datasets--o--r");
    assert_eq!(
        path,
        root.join("snapshots").join(COMMIT).join("data/test.jsonl")
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), BODY);
    assert_eq!(fs::read_to_string(root.join("blobs/abc")).unwrap(), BODY);
    assert_eq!(fs::read_to_string(root.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(seen.get(), (BODY.len() as u64, Some(BODY.len() as u64)));
    assert!(
        asked.lock().unwrap()[0].starts_with("head /datasets/o/r/resolve/main/data/test.jsonl ")
    );
    // Nobody listens any more.
    assert_eq!(hub.fetch(FILE, &|_, _| {}).unwrap(), path);
}

#[test]
fn a_download_that_was_cut_goes_on_where_it_stopped() {
    let (first, rest) = BODY.split_at(20);
    let range = format!(
        "Content-Range: bytes 20-{}/{}\r\n{}",
        BODY.len() - 1,
        BODY.len(),
        sized(rest)
    );
    let (got, asked, _home) = fetch(
        vec![
            facts("abc"),
            answer("200 OK", &sized(BODY), first),
            answer("206 Partial Content", &range, rest),
        ],
        None,
    );
    assert_eq!(got.unwrap(), BODY);
    assert!(asked[2].contains("range: bytes=20-"), "{}", asked[2]);
}

#[test]
fn a_server_without_ranges_sends_everything_again() {
    let whole = answer("200 OK", &sized(BODY), BODY);
    let cut = answer("200 OK", &sized(BODY), &BODY[..20]);
    let (got, ..) = fetch(vec![facts("abc"), cut, whole], None);
    assert_eq!(got.unwrap(), BODY);
}

#[test]
fn a_busy_hub_is_asked_again_and_given_up_in_the_end() {
    let busy = || answer("503 Service Unavailable", &sized(""), "");
    let (got, asked, _home) = fetch(
        vec![
            busy(),
            facts("abc"),
            busy(),
            answer("200 OK", &sized(BODY), BODY),
        ],
        Some("hf_secret"),
    );
    assert_eq!(got.unwrap(), BODY);
    assert!(
        asked
            .iter()
            .all(|request| request.contains("authorization: bearer hf_secret"))
    );
    let (got, asked, _home) = fetch((0..TRIES).map(|_| busy()).collect(), None);
    let error = crate::chain(&got.unwrap_err());
    assert!(
        error.contains("given up after 6 tries") && error.contains("503"),
        "{error}"
    );
    assert_eq!(asked.len(), TRIES as usize);
}

#[test]
fn a_gated_data_set_asks_for_a_token_and_a_missing_file_is_named() {
    for (status, why) in [
        ("401 Unauthorized", "set HF_TOKEN"),
        ("403 Forbidden", "set HF_TOKEN"),
        ("404 Not Found", "no such file; o/r"),
    ] {
        let (got, asked, _home) = fetch(vec![answer(status, &sized(""), "")], None);
        let error = got.unwrap_err().to_string();
        assert!(
            error.contains(why) && error.contains("resolve/main/data/test.jsonl"),
            "{error}"
        );
        assert_eq!(asked.len(), 1);
    }
}

#[test]
fn what_is_not_the_file_of_the_hash_is_thrown_away_with_both_hashes() {
    let want = datasets::sha256_bytes(b"something else");
    let redirect = format!(
        "Location: /elsewhere\r\nX-Linked-Etag: \"{want}\"\r\nX-Linked-Size: {}\r\nX-Repo-Commit: {COMMIT}\r\n{}",
        BODY.len(),
        sized("")
    );
    let moved = || answer("302 Found", &redirect, "");
    let (got, asked, home) = fetch(
        vec![moved(), moved(), answer("200 OK", &sized(BODY), BODY)],
        None,
    );
    let error = got.unwrap_err().to_string();
    let got = datasets::sha256_bytes(BODY.as_bytes());
    assert!(
        error.contains(&want) && error.contains(&got) && error.contains("fetch it again"),
        "{error}"
    );
    assert!(asked[2].starts_with("get /elsewhere "), "{}", asked[2]);
    let blobs = fs::read_dir(home.path().join("hub/datasets--o--r/blobs")).unwrap();
    assert_eq!(blobs.count(), 0);
}

#[test]
fn an_answer_that_is_no_hubs_and_an_endpoint_that_is_no_address_are_errors() {
    let (got, ..) = fetch(vec![answer("200 OK", &sized(""), "")], None);
    assert!(got.unwrap_err().to_string().contains("HF_ENDPOINT"));
    let odd = "ETag: \"../../x\"\r\nX-Repo-Commit: c\r\nContent-Length: 0\r\n";
    let (got, ..) = fetch(vec![answer("200 OK", odd, "")], None);
    assert!(
        got.unwrap_err()
            .to_string()
            .contains("cannot be a file name")
    );
    let environment = Environment {
        hf_endpoint: Some("hub".into()),
        ..Environment::default()
    };
    assert!(
        check_endpoint(&environment)
            .unwrap_err()
            .to_string()
            .starts_with("HF_ENDPOINT \"hub\"")
    );
}
