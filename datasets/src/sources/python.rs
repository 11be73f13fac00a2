//! Documented top-level functions of a folder of Python files.

use super::{read_text, row_error};
use crate::{Domain, Error, Example, Result};
use std::path::{Path, PathBuf};

const MAX_LINES: usize = 25;

/// Folders of the standard library that hold tests, tools and installed packages.
const LEFT_OUT: [&str; 6] = [
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "site-packages",
    "__pycache__",
];

/// Reads the `.py` files below a folder, sorted by path.
///
/// Kept: public top-level `def`s with a one-line head, a docstring and at most 25 lines. Folders
/// of tests and installed packages are left out. The prompt is the head and the first line of
/// the docstring.
///
/// # Errors
/// [`Error::Row`] for a docstring that is not closed, [`Error::Io`] for a file that is not UTF-8.
pub fn python(folder: &Path) -> Result<Vec<Example>> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    let mut examples = Vec::new();
    for path in files {
        examples.extend(functions(&path, &read_text(&path)?)?);
    }
    Ok(examples)
}

/// `code` in a Python fence between an opening sentence and `closing`.
pub(super) fn fenced(code: &str, closing: &str) -> String {
    format!("Here is a Python function for this task.\n\n```python\n{code}\n```\n\n{closing}")
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let io = |source| Error::Io {
        path: folder.to_path_buf(),
        source,
    };
    let entries: std::io::Result<Vec<_>> = std::fs::read_dir(folder).map_err(io)?.collect();
    let mut paths: Vec<PathBuf> = entries
        .map_err(io)?
        .iter()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    for path in paths {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        if path.is_dir() {
            if !name.is_some_and(|name| LEFT_OUT.contains(&name.as_str())) {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "py") {
            files.push(path);
        }
    }
    Ok(())
}

fn functions(path: &Path, text: &str) -> Result<Vec<Example>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut examples = Vec::new();
    for (at, head) in lines.iter().enumerate() {
        let Some(signature) = head
            .strip_prefix("def ")
            .and_then(|rest| rest.strip_suffix(':'))
        else {
            continue;
        };
        let body = lines[at + 1..]
            .iter()
            .take_while(|line| line.is_empty() || line.starts_with([' ', '\t']))
            .count();
        let code = lines[at..=at + body].join("\n").trim_end().to_string();
        let Some(quoted) = lines
            .get(at + 1)
            .and_then(|line| line.trim_start().strip_prefix("\"\"\""))
        else {
            continue;
        };
        if !code[head.len()..]
            .replacen("\"\"\"", "", 1)
            .contains("\"\"\"")
        {
            if !lines[at + 2..].iter().any(|line| line.contains("\"\"\"")) {
                return Err(row_error(path, at + 1, "the docstring is not closed"));
            }
            // It goes on at the left margin, where the function seems to end.
            continue;
        }
        let doc = quoted.split("\"\"\"").next().unwrap_or(quoted).trim();
        if signature.starts_with('_') || doc.is_empty() || code.lines().count() > MAX_LINES {
            continue;
        }
        let user = format!("Write the Python function `{signature}`. {doc}");
        let answer = fenced(&code, "The docstring says what it does.");
        examples.push(Example {
            domain: Domain::Code,
            user,
            think: None,
            answer,
        });
    }
    Ok(examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "import os\n\ndef twice(x):\n    \"\"\"Return x doubled.\n\n    More.\n    \"\"\"\n\
        \x20   return 2 * x\n\n\ndef _hidden(x):\n    \"\"\"No.\"\"\"\n\ndef bare(x):\n    return x\n\n\
        class A:\n    def method(self):\n        \"\"\"No.\"\"\"\n";

    #[test]
    fn only_public_documented_top_level_functions_are_kept() {
        let examples = functions(Path::new("m.py"), MODULE).unwrap();
        assert_eq!(examples.len(), 1);
        assert_eq!(
            examples[0].user,
            "Write the Python function `twice(x)`. Return x doubled."
        );
        let code = "```python\ndef twice(x):\n    \"\"\"Return x doubled.\n\n    More.\n    \"\"\"\n    return 2 * x\n```";
        assert!(examples[0].answer.contains(code), "{}", examples[0].answer);
    }

    #[test]
    fn a_function_of_26_lines_is_left_out_and_one_of_25_is_kept() {
        for (statements, kept) in [(23, 1), (24, 0)] {
            let text = format!(
                "def f():\n    \"\"\"Do.\"\"\"\n{}",
                "    pass\n".repeat(statements)
            );
            assert_eq!(functions(Path::new("m.py"), &text).unwrap().len(), kept);
        }
    }

    #[test]
    fn an_open_docstring_is_an_error_with_file_and_line() {
        let error = functions(Path::new("m.py"), "\ndef f():\n    \"\"\"Open\n").unwrap_err();
        assert!(
            error.to_string().starts_with("\"m.py\":3: the docstring"),
            "{error}"
        );
    }

    #[test]
    fn a_docstring_that_goes_on_at_the_left_margin_is_left_out() {
        let text = "def f():\n    \"\"\"Open\nand closed.\"\"\"\n    return 1\n";
        assert_eq!(functions(Path::new("m.py"), text).unwrap(), []);
    }

    #[test]
    fn folders_are_walked_in_order_without_tests() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b/m.py", "a.py", "test/t.py", "b/notes.txt"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            std::fs::write(&path, format!("def {stem}():\n    \"\"\"Do.\"\"\"\n")).unwrap();
        }
        let users: Vec<_> = python(dir.path())
            .unwrap()
            .into_iter()
            .map(|e| e.user)
            .collect();
        assert_eq!(
            users,
            [
                "Write the Python function `a()`. Do.",
                "Write the Python function `m()`. Do."
            ]
        );
    }
}
