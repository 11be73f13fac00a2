//! What a reader wants to know first: who wins, by how much, how sure, and what is missing.

use super::PageInput;
use super::data::{Data, Setting};
use super::html::{arm, attr, count, esc, span, times, two};
use super::mean;
use super::notes::{Kind, Notes, links};
use crate::Share;
use crate::metrics::Equality;
use crate::study::pool::Pool;

/// The two best arms of a setting by one measure.
struct Podium<'a> {
    best: (&'a str, Share),
    second: Option<Second<'a>>,
}

struct Second<'a> {
    arm: &'a str,
    value: f64,
    /// By how much the best is ahead of it, minus 1; nothing if they are no pair.
    lead: Option<Share>,
}

#[derive(Clone, Copy)]
enum Measure {
    Speedup,
    Tau,
}

impl Measure {
    fn of(self, data: &Data<'_>, setting: &Setting, arm: &str) -> Option<Share> {
        let standing = data.standing(setting, arm);
        match self {
            Self::Speedup => standing.speedup,
            Self::Tau => standing.tau,
        }
    }

    /// What a verdict on the measure holds for: processes differ in speed, and that is in no interval.
    fn scope(self) -> &'static str {
        match self {
            Self::Speedup => ", within one process",
            Self::Tau => "",
        }
    }

    fn lead(self, best: &Pool, second: &Pool, vanilla: Option<&Pool>) -> Option<Share> {
        match self {
            Self::Speedup => mean::speedup_lead(best, second, vanilla?),
            Self::Tau => mean::tau_lead(best, second),
        }
    }
}

fn podium<'a>(data: &'a Data<'_>, setting: &Setting, measure: Measure) -> Option<Podium<'a>> {
    let pools = data.pools.get(setting)?;
    let drafting = data
        .arms_of(setting)
        .into_iter()
        .filter(|arm| data.is_ranked_throughout(setting, arm));
    let mut ranked: Vec<(&str, Share)> = drafting
        .filter_map(|arm| Some((arm, measure.of(data, setting, arm)?)))
        .collect();
    ranked.sort_by(|a, b| b.1.value.total_cmp(&a.1.value));
    let best = *ranked.first()?;
    let second = ranked.get(1).map(|(arm, share)| Second {
        arm: data.arms.iter().find(|a| a == arm).map_or("", |a| a),
        value: share.value,
        lead: measure.lead(&pools[best.0], &pools[*arm], pools.get("vanilla")),
    });
    let own = data.arms.iter().find(|a| *a == best.0)?;
    Some(Podium {
        best: (own, best.1),
        second,
    })
}

/// Whether an interval leaves out 0.
fn is_clear(lead: Option<Share>) -> bool {
    let interval = lead.and_then(|lead| lead.interval);
    interval.is_some_and(|(low, high)| low > 0.0 || high < 0.0)
}

impl Second<'_> {
    fn html(&self, measure: Measure, form: fn(f64) -> String) -> String {
        let second = format!("{} ({})", arm(self.arm), form(self.value));
        let signed = |share: f64| format!("{:+.1}\u{a0}%", share * 100.0).replace('-', "\u{2212}");
        let Some(lead) = self.lead else {
            return format!("Second: {second}; of other runs, so the lead has no interval.");
        };
        let Some((low, high)) = lead.interval else {
            return format!("Second: {second}; one prompt only, so the lead has no interval.");
        };
        let (class, verdict) = match is_clear(self.lead) {
            true => ("clear", "ahead"),
            false => ("unclear", "not separable"),
        };
        format!(
            "<span class=\"tag {class}\">{verdict}{}</span> {} over {second}, interval {} to {}",
            measure.scope(),
            signed(lead.value),
            signed(low),
            signed(high)
        )
    }
}

/// How a speedup stands to 1, as its tag says within one process.
fn against_vanilla(speedup: Share) -> &'static str {
    match speedup.interval {
        Some((low, _)) if low > 1.0 => {
            "<span class=\"tag clear\">faster than vanilla, within one process</span>"
        }
        Some((_, high)) if high < 1.0 => {
            "<span class=\"tag bad\">slower than vanilla, within one process</span>"
        }
        _ => "<span class=\"tag unclear\">not separable from vanilla, within one process</span>",
    }
}

/// The section's inside.
pub(crate) fn html(input: &PageInput<'_>, data: &Data<'_>, notes: &Notes) -> String {
    let each: Vec<(&Setting, Option<Podium<'_>>, Option<Podium<'_>>)> = data
        .settings
        .iter()
        .map(|setting| {
            let of = |measure| podium(data, setting, measure);
            (setting, of(Measure::Speedup), of(Measure::Tau))
        })
        .collect();
    let fastest: Vec<&Podium<'_>> = each.iter().filter_map(|e| e.1.as_ref()).collect();
    let longest: Vec<&Podium<'_>> = each.iter().filter_map(|e| e.2.as_ref()).collect();
    let mut out = String::from("<div class=\"lead\">");
    out.push_str(&sentence("Speedup", &fastest, each.len()));
    out.push_str(&slower(&fastest));
    out.push_str(&sentence("Acceptance length (tau)", &longest, each.len()));
    out.push_str("</div><div class=\"cards\">");
    for (setting, fastest, longest) in &each {
        out.push_str(&card(data, setting, fastest.as_ref(), longest.as_ref()));
    }
    out.push_str("</div>");
    out.push_str(&checks(input, data, notes));
    out
}

/// Who leads where, and how often that is sure.
fn sentence(what: &str, podiums: &[&Podium<'_>], n_settings: usize) -> String {
    if podiums.is_empty() {
        return format!(
            "<p><b>{what}:</b> no drafting method that may be ranked answered every suite.</p>"
        );
    }
    let mut wins: Vec<(&str, usize, usize, usize)> = Vec::new();
    for podium in podiums {
        let clear = usize::from(podium.second.as_ref().is_some_and(|s| is_clear(s.lead)));
        let alone = usize::from(podium.second.is_none());
        match wins.iter_mut().find(|w| w.0 == podium.best.0) {
            Some(win) => {
                win.1 += 1;
                win.2 += clear;
                win.3 += alone;
            }
            None => wins.push((podium.best.0, 1, clear, alone)),
        }
    }
    wins.sort_by_key(|win| std::cmp::Reverse(win.1));
    let each: Vec<String> = wins
        .iter()
        .map(|(name, n, clear, alone)| {
            let sure = match (n, clear) {
                (n, _) if n == alone => "the only one that may be ranked".to_owned(),
                (_, 0) => "not separable from the second".to_owned(),
                (1, _) => "clear of the second".to_owned(),
                (2, 2) => "clear of the second in both".to_owned(),
                (n, clear) if n == clear => format!("clear of the second in all {n}"),
                (n, clear) => format!("clear of the second in {clear} of {n}"),
            };
            let places = match n_settings {
                1 => String::new(),
                _ => format!(" in {n} of {n_settings} settings"),
            };
            let is = if n == alone {
                "stands alone"
            } else {
                "is highest"
            };
            format!("<b>{}</b> {is}{places} ({sure})", arm(name))
        })
        .collect();
    format!("<p><b>{what}:</b> {}.</p>", each.join("; "))
}

/// Settings in which drafting does not pay.
fn slower(fastest: &[&Podium<'_>]) -> String {
    let n = fastest.iter().filter(|p| p.best.1.value < 1.0).count();
    match n {
        0 => String::new(),
        _ => format!(
            "<p><b>No method is faster than vanilla</b> in {n} of {}.</p>",
            count(fastest.len(), "setting")
        ),
    }
}

fn card(
    data: &Data<'_>,
    setting: &Setting,
    fastest: Option<&Podium<'_>>,
    longest: Option<&Podium<'_>>,
) -> String {
    let part = |measure: Measure, podium: Option<&Podium<'_>>| {
        let (what, form): (_, fn(f64) -> String) = match measure {
            Measure::Speedup => ("Highest speedup", times),
            Measure::Tau => ("Longest acceptance (tau)", two),
        };
        let Some(podium) = podium else {
            return format!("<dt>{what}</dt><dd>nothing to compare</dd>");
        };
        let (name, share) = podium.best;
        let interval = share.interval.map_or_else(String::new, |i| {
            format!(" <span class=\"iv\">{}</span>", span(i))
        });
        let second = podium.second.as_ref();
        let second = second.map_or_else(
            || "No second method that may be ranked.".to_owned(),
            |s| s.html(measure, form),
        );
        let verdict = match measure {
            Measure::Speedup => format!("<p>{}</p>", against_vanilla(share)),
            Measure::Tau => String::new(),
        };
        format!(
            "<dt>{what}</dt><dd><p class=\"big\"><b>{}</b> <span class=\"num\">{}</span>{interval}</p>{verdict}<p class=\"second\">{second}</p></dd>",
            arm(name),
            form(share.value)
        )
    };
    format!(
        "<div class=\"card\"{}><h3>{}</h3><dl>{}{}</dl><p class=\"small\">Text: {}. Means of {}.</p></div>",
        setting.attrs(),
        esc(&setting.title()),
        part(Measure::Speedup, fastest),
        part(Measure::Tau, longest),
        texts(data, Some(setting)),
        count(data.suites_of(setting).len(), "suite"),
    )
}

/// How many answers are vanilla's, of one setting or of all.
fn texts(data: &Data<'_>, setting: Option<&Setting>) -> String {
    let its = data
        .stats
        .iter()
        .filter(|(cell, _)| setting.is_none_or(|s| Setting::of(cell) == *s));
    let (mut n_equal, mut n, mut by_law) = (0, 0, 0);
    for (_, stat) in its {
        match stat.equality {
            Equality::Exact { equal, of } => {
                n_equal += equal;
                n += of;
            }
            Equality::Law => by_law += stat.n_answers,
            Equality::Reference | Equality::Unknown => {}
        }
    }
    let mut parts = Vec::new();
    if n > 0 {
        let class = if n_equal == n { "clear" } else { "bad" };
        parts.push(format!(
            "<span class=\"tag {class}\">{n_equal} of {n}</span> greedy answers equal vanilla\u{2019}s token by token"
        ));
    }
    if by_law > 0 {
        parts.push(format!(
            "{by_law} sampled answers are vanilla\u{2019}s in law"
        ));
    }
    match parts.is_empty() {
        true => "nothing to hold against vanilla".into(),
        false => parts.join("; "),
    }
}

/// What is missing and what to be careful with.
fn checks(input: &PageInput<'_>, data: &Data<'_>, notes: &Notes) -> String {
    let mut lines = vec![format!("<b>Text:</b> {}.", texts(data, None))];
    let mut missing = Vec::new();
    for (idx, note) in notes.all.iter().enumerate() {
        let n = count(note.cells.len(), "cell");
        if matches!(note.kind, Kind::Failed | Kind::Skipped | Kind::LeftOut) {
            let text = esc(note.text.trim_end_matches('.'));
            missing.push(format!("{n}: {text}{}", links([idx].into_iter())));
        }
    }
    lines.push(match missing.is_empty() {
        true => format!(
            "<b>Missing:</b> nothing; all {} have answers to every prompt.",
            count(data.stats.len(), "cell")
        ),
        false => format!(
            "<b>Missing:</b><ul>{}</ul>",
            missing
                .iter()
                .map(|m| format!("<li>{m}</li>"))
                .collect::<String>()
        ),
    });
    for run in input.runs.iter().filter(|run| run["complete"] == false) {
        let id = esc(run["run"].as_str().unwrap_or("a run"));
        lines.push(format!("<b>Not complete:</b> {id}."));
    }
    for kind in [Kind::Differs, Kind::Flag, Kind::Degenerate, Kind::Small] {
        let its = notes.all.iter().enumerate();
        for (idx, note) in its.filter(|(_, note)| note.kind == kind) {
            let which = match note.cells.len() == data.stats.len() {
                true => "all cells".to_owned(),
                false => format!(
                    "{} of {}",
                    note.cells.len(),
                    count(data.stats.len(), "cell")
                ),
            };
            lines.push(format!(
                "<b>Caution:</b> {} ({which}){}.",
                esc(note.text.trim_end_matches('.')),
                links([idx].into_iter())
            ));
        }
    }
    let items: String = lines.iter().map(|l| format!("<li>{l}</li>")).collect();
    format!(
        "<ul class=\"checks\"{}>{items}</ul>",
        attr("aria-label", "Checks")
    )
}
