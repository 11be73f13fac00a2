//! A chat template in the dialect that model repositories ship.
//!
//! They are written for Python's Jinja2 with `trim_blocks`, `lstrip_blocks` and loop controls, call
//! string methods of Python, and may call `raise_exception` and `strftime_now`.

use crate::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind};
use serde::Serialize;

const NAME: &str = "chat_template";

/// A parsed template.
pub(crate) struct Template {
    env: Environment<'static>,
}

impl Template {
    /// # Errors
    /// [`Error::Template`] for a syntax error.
    pub(crate) fn new(source: String) -> Result<Self> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        env.set_syntax(syntax.expect("the delimiters are the usual ones"));
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<Value, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        env.add_function("strftime_now", strftime_now);
        env.add_filter("tojson", to_json);
        env.add_template_owned(NAME, source)
            .map_err(template_error)?;
        Ok(Template { env })
    }

    /// # Errors
    /// [`Error::Template`] if the template fails or raises an exception.
    pub(crate) fn render(&self, context: Value) -> Result<String> {
        let template = self
            .env
            .get_template(NAME)
            .expect("the constructor added it");
        template.render(context).map_err(template_error)
    }
}

/// Python's `strftime` of 26 July 2024, midnight, in the C locale. The clock stands still, so that a prompt and its hash
/// are the same on every day; the date is the one that Llama-3.1's template writes where it has no clock.
fn strftime_now(format: &str) -> std::result::Result<String, minijinja::Error> {
    const WRITTEN: [(&str, &str); 23] = [
        ("a", "Fri"),
        ("A", "Friday"),
        ("b", "Jul"),
        ("B", "July"),
        ("d", "26"),
        ("-d", "26"),
        ("e", "26"),
        ("m", "07"),
        ("-m", "7"),
        ("y", "24"),
        ("Y", "2024"),
        ("H", "00"),
        ("-H", "0"),
        ("I", "12"),
        ("-I", "12"),
        ("M", "00"),
        ("S", "00"),
        ("p", "AM"),
        ("j", "208"),
        ("D", "07/26/24"),
        ("F", "2024-07-26"),
        ("T", "00:00:00"),
        ("%", "%"),
    ];
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let known = WRITTEN.iter().find(|(code, _)| after.starts_with(code));
        let (code, text) = known.ok_or_else(|| {
            let why = format!("strftime_now: {format:?} has a code that is not supported");
            minijinja::Error::new(ErrorKind::InvalidOperation, why)
        })?;
        out.push_str(text);
        rest = &after[code.len()..];
    }
    Ok(out + rest)
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it; minijinja's own filter
/// would escape `<` and write no spaces.
fn to_json(value: Value, options: Kwargs) -> std::result::Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    let bad = |e: &dyn std::fmt::Display| {
        minijinja::Error::new(ErrorKind::BadSerialization, format!("tojson: {e}"))
    };
    let Some(spaces) = indent else {
        let line = datasets::python_json(&value).map_err(|e| bad(&e))?;
        return Ok(Value::from_safe_string(line));
    };
    let mut bytes = Vec::new();
    let spaces = " ".repeat(spaces);
    let pretty = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
    value
        .serialize(&mut serde_json::Serializer::with_formatter(
            &mut bytes, pretty,
        ))
        .map_err(|e| bad(&e))?;
    Ok(Value::from_safe_string(
        String::from_utf8(bytes).map_err(|e| bad(&e))?,
    ))
}

fn template_error(error: minijinja::Error) -> Error {
    let mut why = error.to_string();
    let mut below = std::error::Error::source(&error);
    while let Some(source) = below {
        why.push_str(&format!(": {source}"));
        below = source.source();
    }
    Error::Template { why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::context;

    fn messages(pairs: &[(&str, &str)]) -> Value {
        let turn = |&(role, content): &(&str, &str)| context! { role, content };
        context! { messages => pairs.iter().map(turn).collect::<Vec<_>>() }
    }

    fn rendered(source: &str, pairs: &[(&str, &str)]) -> String {
        Template::new(source.into())
            .unwrap()
            .render(messages(pairs))
            .unwrap()
    }

    #[test]
    fn a_namespace_set_in_a_loop_over_reversed_messages_is_seen_after_it() {
        let source = "{%- set ns = namespace(at=messages|length - 1, open=true) %}\n\
            {%- for m in messages[::-1] %}\n\
            {%- set index = (messages|length - 1) - loop.index0 %}\n\
            {%- if ns.open and m.role == 'user' %}\n\
            {%- set ns.open = false %}\n{%- set ns.at = index %}\n\
            {%- endif %}\n{%- endfor %}\n{{- ns.at }}";
        let pairs = [
            ("user", "a"),
            ("assistant", "b"),
            ("user", "c"),
            ("assistant", "d"),
        ];
        assert_eq!(rendered(source, &pairs), "2");
    }

    #[test]
    fn python_string_methods_cut_a_think_block_off() {
        let source = "{%- for m in messages %}\n\
            {{- '[' + m.content.split('</think>')[-1].lstrip('\\n') + ']' }}\n\
            {{- '[' + m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].strip('\\n') + ']' }}\n\
            {{- m.content.startswith('<think>') and m.content.endswith('x') }}\n{%- endfor %}";
        let pairs = [("assistant", "<think>\nplan\n</think>\n\nx")];
        assert_eq!(rendered(source, &pairs), "[x][plan]True");
    }

    #[test]
    fn tests_for_definedness_none_string_and_loop_ends_work() {
        let source = "{%- if tools %}tools{%- endif %}\n\
            {%- if enable_thinking is defined %}defined{%- endif %}\n\
            {%- for m in messages %}\n\
            {%- if m.extra is defined and m.extra is not none %}extra{%- endif %}\n\
            {%- if loop.first and not loop.last and m.content is string %}first {% endif %}\n\
            {%- if m.role != 'user' %}{% continue %}{% endif %}\n\
            {{- m.content }}\n{%- endfor %}";
        assert_eq!(
            rendered(source, &[("user", "a"), ("tool", "b"), ("user", "c")]),
            "first ac"
        );
    }

    #[test]
    fn blocks_leave_no_line_end_and_no_indent_behind() {
        let source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n";
        assert_eq!(rendered(source, &[("user", "a"), ("user", "b")]), "a\nb\n");
    }

    #[test]
    fn tojson_writes_what_python_writes() {
        let template = |source: &str| Template::new(source.into()).unwrap();
        let source = "{{ {'b': ['<é>', 1, none, {}], 'a': true} | tojson }}";
        let line = template(source).render(context! {}).unwrap();
        assert_eq!(line, r#"{"b": ["<é>", 1, null, {}], "a": true}"#);
        let list = context! { v => [1] };
        assert_eq!(
            template("{{ v | tojson(indent=4) }}").render(list).unwrap(),
            "[\n    1\n]"
        );
    }

    #[test]
    fn the_clock_stands_still_and_an_unknown_code_is_an_error() {
        let template = Template::new("{{ strftime_now('%d %b %Y, %-m%%') }}".into()).unwrap();
        let text = template.render(context! {}).unwrap();
        assert_eq!(text, "26 Jul 2024, 7%");
        let template = Template::new("{{ strftime_now('%d %Q') }}".into()).unwrap();
        let error = template.render(context! {}).unwrap_err().to_string();
        assert!(error.contains("strftime_now: \"%d %Q\""), "{error}");
    }

    #[test]
    fn a_raised_exception_and_a_syntax_error_are_reported_with_their_words() {
        let raises = Template::new("{{ raise_exception('roles must alternate') }}".into()).unwrap();
        let error = raises.render(messages(&[])).unwrap_err().to_string();
        assert!(
            error.starts_with("chat_template: ") && error.contains("roles must alternate"),
            "{error}"
        );
        let error = Template::new("\n{% if %}".into())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("chat_template:2"), "{error}");
    }
}
