//! Text that is safe inside HTML, and how numbers are spelled.

/// Text of data as HTML text or as a quoted attribute.
pub(crate) fn esc(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // No character reference stands for it.
            '\0' => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

/// The name of an arm, which may be broken before each option.
pub(crate) fn arm(name: &str) -> String {
    let breaks = [(":", ":<wbr>"), ("=", "=<wbr>"), ("_", "_<wbr>")];
    let name = esc(name);
    breaks
        .iter()
        .fold(name, |name, (at, broken)| name.replace(at, broken))
}

/// `name="value"` with a space before it.
pub(crate) fn attr(name: &str, value: &str) -> String {
    format!(" {name}=\"{}\"", esc(value))
}

pub(crate) fn two(value: f64) -> String {
    format!("{value:.2}")
}

pub(crate) fn times(value: f64) -> String {
    format!("{value:.2}\u{d7}")
}

pub(crate) fn rate(value: f64) -> String {
    match value < 100.0 {
        true => format!("{value:.1}"),
        false => format!("{value:.0}"),
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1}\u{a0}%", share * 100.0)
}

/// Nanoseconds in milliseconds.
pub(crate) fn millis(ns: f64) -> String {
    let ms = ns / 1e6;
    match ms < 10.0 {
        true => format!("{ms:.2}"),
        false => format!("{ms:.0}"),
    }
}

/// A dash for what is not known.
pub(crate) fn known(value: Option<f64>, form: fn(f64) -> String) -> String {
    value.map_or_else(|| "\u{2013}".into(), form)
}

/// `low to high`.
pub(crate) fn span((low, high): (f64, f64)) -> String {
    format!("{low:.2} to {high:.2}")
}

/// `1 cell`, `2 cells`.
pub(crate) fn count(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// The day and minute of a number of seconds after 1970, UTC.
///
/// Source: Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
pub(crate) fn date(unix_secs: u64) -> String {
    let days = (unix_secs / 86_400) as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (unix_secs / 3600 % 24, unix_secs / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_html_reads_as_markup_is_spelled_out() {
        assert_eq!(
            esc("<a b=\"c\" d='e'>&\0"),
            "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;\u{FFFD}"
        );
        assert_eq!(arm("m:k=<1"), "m:<wbr>k=<wbr>&lt;1");
    }

    #[test]
    fn seconds_after_1970_are_a_date() {
        // date -u -d @N
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_796_001_592), "2026-11-30 01:19 UTC");
    }
}
