//! Where the numbers are from: the run.json of each run, as far as it is one.

use serde_json::Value;

use super::html::{count, date, esc};

pub(crate) fn html(runs: &[Value]) -> String {
    match runs.is_empty() {
        true => {
            "<p>No run.json was given, so neither the command nor the machine is known.</p>".into()
        }
        false => runs.iter().map(run).collect(),
    }
}

fn run(run: &Value) -> String {
    let asked = &run["asked"];
    let mut out = format!(
        "<section class=\"run\"><h3>Run {}</h3><dl class=\"facts\">",
        text(&run["run"])
    );
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            out.push_str(&format!("<dt>{name}</dt><dd>{value}</dd>"));
        }
    };
    let started = run["started_unix_secs"].as_u64();
    fact("started", started.map_or_else(String::new, date));
    fact("preset", text(&asked["preset"]));
    fact("version", text(&run["version"]));
    fact("commit", code(&run["git_commit"]));
    fact("plan, SHA-256", code(&run["plan_sha256"]));
    fact("shard", text(&run["shard"]));
    fact(
        "complete",
        match (run["complete"].as_bool(), run["n_failed_groups"].as_u64()) {
            (Some(true), _) => "yes".into(),
            (Some(false), Some(n)) => format!("no; {} failed", count(n as usize, "group")),
            (Some(false), None) => "no".into(),
            (None, _) => String::new(),
        },
    );
    let targets = asked["targets"].as_array().into_iter().flatten();
    let target = |t: &Value| format!("{} from {}", text(&t["id"]), text(&t["from"]));
    fact(
        "targets",
        targets.map(target).collect::<Vec<_>>().join("; "),
    );
    let data = asked["data"].as_array().into_iter().flatten();
    let suite = |d: &Value| {
        format!(
            "{} ({} of {}, rule {})",
            text(&d["suite"]),
            text(&d["asked"]),
            text(&d["of"]),
            text(&d["subset"])
        )
    };
    fact("prompts", data.map(suite).collect::<Vec<_>>().join("; "));
    fact("answers a prompt", text(&asked["samples"]));
    fact("longest answer", unit(&asked["max_new"], "tokens"));
    fact("seed", text(&asked["seed"]));
    let notes = asked["notes"].as_array().into_iter().flatten();
    fact("notes", notes.map(text).collect::<Vec<_>>().join("; "));
    out.push_str("</dl>");
    let sittings = run["sittings"].as_array().into_iter().flatten();
    sittings.for_each(|s| out.push_str(&sitting(s)));
    out.push_str(&crates(&run["crates"]));
    out + "</section>"
}

/// One process that worked on the run.
fn sitting(sitting: &Value) -> String {
    let machine = &sitting["machine"];
    let mut out = String::from("<dl class=\"facts\">");
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            out.push_str(&format!("<dt>{name}</dt><dd>{value}</dd>"));
        }
    };
    let words = sitting["command"].as_array().into_iter().flatten();
    let command: Vec<&str> = words.filter_map(Value::as_str).collect();
    if !command.is_empty() {
        fact("command", format!("<code>{}</code>", esc(&shell(&command))));
    }
    let environment = sitting["environment"].as_object().into_iter().flatten();
    let set: Vec<String> = environment
        .map(|(name, value)| format!("<code>{}={}</code>", esc(name), text(value)))
        .collect();
    fact("environment", set.join(" "));
    fact("processor", text(&machine["cpu"]));
    fact("cores, threads", {
        let both = [&machine["cores"], &machine["threads"]].map(text);
        both.iter()
            .filter(|t| !t.is_empty())
            .cloned()
            .collect::<Vec<_>>()
            .join(", ")
    });
    let memory = machine["memory_bytes"].as_u64();
    fact(
        "memory",
        memory.map_or_else(String::new, |b| {
            format!("{:.1} GiB", b as f64 / f64::from(1 << 30))
        }),
    );
    fact("GPU", text(&machine["gpu"]));
    fact("load at start", text(&machine["load_average"]));
    let flags = machine["cpu_flags"].as_array().into_iter().flatten();
    let flags: Vec<String> = flags.map(text).collect();
    out.push_str("</dl>");
    if !flags.is_empty() {
        out.push_str(&format!(
            "<details><summary>Processor flags</summary><p class=\"small\">{}</p></details>",
            flags.join(" ")
        ));
    }
    out
}

fn crates(crates: &Value) -> String {
    let Some(crates) = crates.as_object().filter(|c| !c.is_empty()) else {
        return String::new();
    };
    let each = crates
        .iter()
        .map(|(name, version)| format!("{} {}", esc(name), text(version)));
    format!(
        "<details><summary>{}</summary><p class=\"small\">{}</p></details>",
        count(crates.len(), "crate"),
        each.collect::<Vec<_>>().join(", ")
    )
}

/// A command that a shell reads as these words.
fn shell(words: &[&str]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=@%+".contains(c);
    let quoted = words.iter().map(
        |word| match !word.is_empty() && word.chars().all(is_plain) {
            true => (*word).to_owned(),
            false => format!("'{}'", word.replace('\'', "'\\''")),
        },
    );
    quoted.collect::<Vec<_>>().join(" ")
}

/// A string or number; nothing for what is absent.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => esc(text),
        other => esc(&other.to_string()),
    }
}

fn unit(value: &Value, unit: &str) -> String {
    match text(value) {
        text if text.is_empty() => text,
        text => format!("{text} {unit}"),
    }
}

fn code(value: &Value) -> String {
    match text(value) {
        text if text.is_empty() => text,
        text => format!("<code>{text}</code>"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_reads_back_in_a_shell() {
        assert_eq!(
            shell(&["run", "--out", "a b", "it's", ""]),
            "run --out 'a b' 'it'\\''s' ''"
        );
    }

    #[test]
    fn a_run_of_another_shape_is_shown_as_far_as_it_is_known() {
        let run = serde_json::json!({ "run": "<r>", "sittings": [{ "environment": { "<e>": 1 } }], "crates": { "<c>": "1" } });
        let html = html(&[run, Value::Null]);
        assert!(
            html.contains("Run &lt;r&gt;")
                && html.contains("&lt;c&gt; 1")
                && html.contains("&lt;e&gt;=1"),
            "{html}"
        );
        assert!(!html.contains("null"), "{html}");
    }
}
