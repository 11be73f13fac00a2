//! Integer expressions of template files: `+ - * / %`, parentheses, comparisons (1 or 0).
//!
//! Division must be exact, so that no template can state a rounded result.

use std::collections::BTreeMap;

/// Evaluates `text` with the variables bound so far.
pub(super) fn eval(text: &str, vars: &BTreeMap<String, i64>) -> Result<i64, String> {
    let mut parser = Parser {
        rest: text.trim_start(),
        vars,
    };
    let value = parser.comparison()?;
    match parser.rest {
        "" => Ok(value),
        rest => Err(format!("{rest:?} is left over in expression {text:?}")),
    }
}

struct Parser<'a> {
    rest: &'a str,
    vars: &'a BTreeMap<String, i64>,
}

impl Parser<'_> {
    fn take(&mut self, op: &str) -> bool {
        match self.rest.strip_prefix(op) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn comparison(&mut self) -> Result<i64, String> {
        let left = self.sum()?;
        for op in ["==", "!=", "<=", ">=", "<", ">"] {
            if self.take(op) {
                let right = self.sum()?;
                let holds = match op {
                    "==" => left == right,
                    "!=" => left != right,
                    "<=" => left <= right,
                    ">=" => left >= right,
                    "<" => left < right,
                    _ => left > right,
                };
                return Ok(i64::from(holds));
            }
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<i64, String> {
        let mut value = self.product()?;
        loop {
            if self.take("+") {
                value += self.product()?;
            } else if self.take("-") {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<i64, String> {
        let mut value = self.atom()?;
        loop {
            if self.take("*") {
                value *= self.atom()?;
            } else if self.take("/") {
                let by = self.atom()?;
                if by == 0 || value % by != 0 {
                    return Err(format!("{value} / {by} is not an integer"));
                }
                value /= by;
            } else if self.take("%") {
                value = value.checked_rem(self.atom()?).ok_or("remainder by zero")?;
            } else {
                return Ok(value);
            }
        }
    }

    fn atom(&mut self) -> Result<i64, String> {
        if self.take("(") {
            let value = self.comparison()?;
            return if self.take(")") {
                Ok(value)
            } else {
                Err("no closing parenthesis".into())
            };
        }
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        if let Ok(number) = word.parse() {
            return Ok(number);
        }
        self.vars
            .get(word)
            .copied()
            .ok_or(format!("{word:?} is neither a number nor a variable"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_bind_tighter_than_sums_and_comparisons_come_last() {
        let vars = BTreeMap::from([("a".to_string(), 7)]);
        for (text, want) in [
            ("1 + 2 * a", 15),
            ("(1 + 2) * a", 21),
            ("a - 2 - 1", 4),
            ("a * 4 / 2 % 5", 4),
            ("a + 1 >= 8", 1),
            ("a != 7", 0),
        ] {
            assert_eq!(eval(text, &vars), Ok(want), "{text}");
        }
    }

    #[test]
    fn an_inexact_quotient_and_an_unknown_name_are_errors() {
        for text in ["7 / 2", "7 / 0", "b", "(1", "1 2", "5 % 0"] {
            assert!(eval(text, &BTreeMap::new()).is_err(), "{text}");
        }
    }
}
