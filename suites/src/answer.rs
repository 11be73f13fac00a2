//! Whether an answer is right, as far as its text alone tells: final answers of maths suites.
//!
//! This is a guard that nothing was lost beside speed, not a grader: an answer that is right in an unusual notation
//! counts as wrong, for every method alike.

use crate::Reference;

/// Whether the final answer of a text is the reference's; `None` if the reference is not a final answer.
///
/// The final answer is what the last `\boxed{}` holds, else what follows the last `#### `, else the last number. A
/// thinking section that ends in `</think>` is no part of the text. Both sides are compared as numbers where they are
/// numbers or fractions, else as LaTeX without what does not change its meaning.
pub fn is_right(text: &str, reference: &Reference) -> Option<bool> {
    let Reference::Answer { answer } = reference else {
        return None;
    };
    let Some(given) = final_answer(text) else {
        return Some(false);
    };
    let (given, wanted) = (plain(&given), plain(answer));
    let same_number = || Some(number(&given)? == number(&wanted)?);
    Some(given == wanted || same_number().unwrap_or(false))
}

fn final_answer(text: &str) -> Option<String> {
    let text = text.rsplit("</think>").next().unwrap_or(text);
    boxed(text)
        .or_else(|| marked(text))
        .or_else(|| last_number(text))
}

/// What the last `\boxed{}` or `\fbox{}` that is closed holds.
fn boxed(text: &str) -> Option<String> {
    let starts = ["\\boxed{", "\\fbox{"];
    let mut found = starts
        .iter()
        .flat_map(|s| text.match_indices(s))
        .collect::<Vec<_>>();
    found.sort_unstable();
    found
        .iter()
        .rev()
        .find_map(|(at, start)| Some(group(&text[at + start.len()..])?.0.to_owned()))
}

/// Splits behind the brace that closes a group which is open already: its content, and what follows.
fn group(text: &str) -> Option<(&str, &str)> {
    let mut depth = 1usize;
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[..at], &text[at + 1..]));
        }
    }
    None
}

fn marked(text: &str) -> Option<String> {
    let line = text.rsplit_once("#### ")?.1.lines().next()?;
    Some(line.to_owned()).filter(|line| !line.trim().is_empty())
}

/// The last number: digits with an optional sign, point and thousands commas.
fn last_number(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let end = bytes.iter().rposition(u8::is_ascii_digit)? + 1;
    let is_part = |b: &u8| b.is_ascii_digit() || matches!(b, b'.' | b',');
    let start = bytes[..end]
        .iter()
        .rposition(|b| !is_part(b))
        .map_or(0, |at| at + 1);
    let number = text[start..end].trim_start_matches(',');
    let is_negative = text[..start].ends_with('-')
        && !text[..start - 1].ends_with(|c: char| c.is_alphanumeric() || c == ')');
    let sign = if is_negative { "-" } else { "" };
    Some(format!("{sign}{number}"))
}

/// LaTeX without what does not change its meaning.
fn plain(latex: &str) -> String {
    let mut text = latex.trim().trim_end_matches(['.', ',', ';']).to_owned();
    for (from, to) in [
        ("\\left", ""),
        ("\\right", ""),
        ("\\dfrac", "\\frac"),
        ("\\tfrac", "\\frac"),
        ("\\displaystyle", ""),
        ("^{\\circ}", ""),
        ("^\\circ", ""),
        ("\\circ", ""),
        ("\\!", ""),
        ("\\,", ""),
        ("\\;", ""),
        ("\\:", ""),
        ("\\ ", ""),
        ("~", ""),
        ("\\%", ""),
        ("%", ""),
        ("\\$", ""),
        ("$", ""),
        ("\\(", ""),
        ("\\)", ""),
        ("\\leq", "\\le"),
        ("\\geq", "\\ge"),
        ("\\cdot", "*"),
        ("\\times", "*"),
        ("−", "-"),
    ] {
        text = text.replace(from, to);
    }
    for wrapper in ["\\text{", "\\textbf{", "\\mathrm{", "\\mbox{", "\\mathbf{"] {
        text = unwrapped(&text, wrapper);
    }
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let text = braced_fractions(&text);
    let text = without_name(&text);
    without_commas(text)
}

fn unwrapped(text: &str, wrapper: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(wrapper) {
        let Some((inner, behind)) = group(after) else {
            break;
        };
        out.push_str(before);
        out.push_str(inner);
        rest = behind;
    }
    out + rest
}

/// `\frac12` and `\frac1{2}` as `\frac{1}{2}`.
fn braced_fractions(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\frac") {
        out.push_str(before);
        out.push_str("\\frac");
        rest = after;
        for _ in 0..2 {
            match rest.chars().next() {
                Some(digit) if digit.is_ascii_digit() => {
                    out.push_str(&format!("{{{digit}}}"));
                    rest = &rest[1..];
                }
                Some('{') => {
                    let Some((inner, behind)) = group(&rest[1..]) else {
                        break;
                    };
                    out.push_str(&format!("{{{}}}", braced_fractions(inner)));
                    rest = behind;
                }
                _ => break,
            }
        }
    }
    out + rest
}

/// `x=5` as `5`; a side that is more than one letter stays.
fn without_name(text: &str) -> &str {
    match text.split_once('=') {
        Some((name, value)) if name.len() == 1 && name.chars().all(char::is_alphabetic) => value,
        _ => text,
    }
}

/// `1,234,567` as `1234567`; other commas stay, since they part the members of a list.
fn without_commas(text: &str) -> String {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let mut parts = digits.split('.').next().unwrap_or_default().split(',');
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let head = parts
        .next()
        .is_some_and(|head| is_digits(head) && head.len() <= 3);
    match head && parts.all(|part| is_digits(part) && part.len() == 3) {
        true => text.replace(',', ""),
        false => text.to_owned(),
    }
}

/// A decimal or a fraction as numerator and denominator in lowest terms; `None` for anything else, or a number too
/// large to hold.
fn number(text: &str) -> Option<(i128, i128)> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let (above, below) = if let Some(rest) = text.strip_prefix("\\frac{") {
        let (above, rest) = group(rest)?;
        let (below, behind) = group(rest.strip_prefix('{')?)?;
        (
            decimal(above)?,
            decimal(below).filter(|_| behind.is_empty())?,
        )
    } else if let Some((above, below)) = text.split_once('/') {
        (decimal(above)?, decimal(below)?)
    } else {
        (decimal(text)?, (1, 1))
    };
    let (top, bottom) = (above.0.checked_mul(below.1)?, above.1.checked_mul(below.0)?);
    let common = gcd(top, bottom);
    (bottom != 0 && common != 0).then(|| (sign * top / common, bottom / common))
}

/// Digits with at most one point, as a fraction.
fn decimal(text: &str) -> Option<(i128, i128)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{whole}{part}");
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let scale = 10i128.checked_pow(u32::try_from(part.len()).ok()?)?;
    Some((digits.parse().ok().filter(|_| is_number)?, scale))
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(text: &str, answer: &str) -> bool {
        let answer = answer.to_owned();
        is_right(text, &Reference::Answer { answer }).unwrap()
    }

    #[test]
    fn the_last_box_is_the_answer_whatever_stands_around_it() {
        for (text, answer) in [
            (
                "First \\boxed{3}, no: \\boxed{\\frac{1}{2}}. Done in 7 steps.",
                "\\frac{1}{2}",
            ),
            ("\\boxed{\\{1, 2\\}}", "\\{1,2\\}"),
            ("<think>\\boxed{9}</think> So $\\boxed{18}$.", "18"),
            ("\\boxed{4} and then \\boxed{5 which is cut", "4"),
        ] {
            assert!(right(text, answer), "{text}");
        }
        assert!(!right("<think>\\boxed{9}</think> I do not know.", "9"));
        assert!(!right("", "9"));
    }

    #[test]
    fn without_a_box_it_is_the_marked_line_or_the_last_number() {
        for (text, answer) in [
            ("6 * 4 = 24\n#### 24", "24"),
            ("He pays $1,240.50 in all.", "1240.5"),
            ("That leaves -3.", "-3"),
            ("From 10-3 we get 10-3", "3"),
            ("It is 5, as said before.", "5"),
        ] {
            assert!(right(text, answer), "{text}");
        }
    }

    #[test]
    fn notations_of_one_value_are_equal() {
        for (given, answer) in [
            ("025", "25"),
            ("25", "025"),
            ("0.5", "\\frac{1}{2}"),
            (".5", "1/2"),
            ("\\dfrac12", "\\frac{1}{2}"),
            ("-\\frac{2}{4}", "-0.5"),
            ("1{,}000", "1{,}000"),
            ("1,000", "1000"),
            ("x=5", "5"),
            ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})"),
            ("90^\\circ", "90"),
            ("\\text{Evelyn}", "Evelyn"),
            ("50\\%", "50"),
            ("\\$18", "18"),
            ("x \\leq 3", "x\\le3"),
        ] {
            assert!(
                right(&format!("\\boxed{{{given}}}"), answer),
                "{given} for {answer}"
            );
        }
    }

    #[test]
    fn other_values_are_not() {
        for (given, answer) in [
            ("26", "25"),
            ("1,2", "12"),
            ("\\frac{1}{3}", "0.33"),
            ("-5", "5"),
            ("1/0", "0"),
            ("3\\pi", "3"),
        ] {
            assert!(
                !right(&format!("\\boxed{{{given}}}"), answer),
                "{given} for {answer}"
            );
        }
    }

    #[test]
    fn a_reference_that_is_no_final_answer_is_not_judged() {
        let test_list = vec!["assert True".to_owned()];
        let asserts = Reference::Asserts {
            test_imports: Vec::new(),
            test_list,
        };
        assert_eq!(is_right("\\boxed{1}", &asserts), None);
    }
}
