//! Text of data inside other languages of text.

/// Text on one line: control characters and runs of white space become one space each.
pub(crate) fn folded(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let words: Vec<&str> = words.filter(|w| !w.is_empty()).collect();
    words.join(" ")
}

/// One line of text without meaning to Markdown.
pub(crate) fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in folded(text).chars() {
        if matches!(c, '\\' | '|' | '<' | '*' | '_' | '`') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// A field of comma-separated values, in quotes if it needs them.
///
/// Source: RFC 4180.
pub(crate) fn csv_field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_line_and_loses_its_meaning() {
        assert_eq!(folded("\ta\r\n\n b\u{0}c "), "a b c");
        assert_eq!(
            markdown("<b>|*a_b*\n\n`c\\"),
            "\\<b>\\|\\*a\\_b\\* \\`c\\\\"
        );
    }

    #[test]
    fn a_field_with_a_carriage_return_is_quoted() {
        assert_eq!(csv_field("a\rb"), "\"a\rb\"");
        assert_eq!(csv_field("a \"b\""), "\"a \"\"b\"\"\"");
        assert_eq!(csv_field("a b"), "a b");
    }
}
