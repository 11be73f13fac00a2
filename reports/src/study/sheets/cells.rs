//! How numbers are written in a table.

use crate::Share;

pub(crate) fn tau_cells(tau: Option<Share>) -> [String; 2] {
    [text(tau.map(|t| t.value), two), range(tau, two)]
}

pub(crate) fn gain_cells(gain: Option<Share>) -> [String; 2] {
    [text(gain.map(|g| g.value), percent), range(gain, percent)]
}

pub(crate) fn share_cells(share: Option<Share>) -> [String; 2] {
    [text(share.map(|s| s.value), points), range(share, points)]
}

pub(crate) fn range(share: Option<Share>, form: fn(f64) -> String) -> String {
    text(share.and_then(|s| s.interval), |(low, high)| {
        format!("{} to {}", form(low), form(high))
    })
}

pub(crate) fn text<T>(value: Option<T>, form: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".into(), form)
}

pub(crate) fn dash(text: &str) -> String {
    match text.is_empty() {
        true => "-".into(),
        false => text.to_owned(),
    }
}

pub(crate) fn two(value: f64) -> String {
    format!("{value:.2}")
}

/// A change, with its sign.
pub(crate) fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

pub(crate) fn plain_percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

pub(crate) fn points(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

pub(crate) fn times(ratio: f64) -> String {
    format!("{ratio:.2}x")
}
