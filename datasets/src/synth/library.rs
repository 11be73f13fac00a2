//! Reads template files.
//!
//! A file is a run of sections. `[list]` adds word lists for all, `[kind NAME]` adds lists for the
//! schemas of one kind, `[schema ID]` or `[schema ID : KIND]` starts a template. Inside a section:
//!
//! - `name: a | b | c` adds three entries to list `name`; `a~b~c` is one entry with three fields.
//! - `name:` alone takes the indented lines below it as one entry, two spaces of indent removed.
//! - `vars: a = 2..9; b = a + 1..20; c = a * b; d = 5, 10` (schemas only) draws integers in order.
//! - `where: c % 2 == 0; a != b` (schemas only) draws again until every condition holds.
//! - a line that starts with `#` is a comment.
//!
//! An entry may hold slots, see `draw.rs`. Every schema needs `user`, `answer` and `think`, its own
//! or from its kind.

use std::collections::BTreeMap;

/// Entries by list name.
pub(super) type Lists = BTreeMap<String, Vec<String>>;

/// All templates of one domain.
#[derive(Default)]
pub(super) struct Library {
    pub(super) globals: Lists,
    pub(super) kinds: BTreeMap<String, Lists>,
    pub(super) schemas: Vec<Schema>,
}

/// One template.
#[derive(Default)]
pub(super) struct Schema {
    pub(super) id: String,
    pub(super) kind: Option<String>,
    pub(super) lists: Lists,
    pub(super) vars: Vec<(String, Vec<String>)>,
    pub(super) wheres: Vec<String>,
}

enum Section {
    None,
    Globals,
    Kind(String),
    Schema,
}

impl Library {
    /// Adds the sections of one file. `Err` names the file and the 1-based line.
    pub(super) fn add(&mut self, file: &str, text: &str) -> Result<(), String> {
        let lines: Vec<&str> = text.lines().collect();
        let mut section = Section::None;
        let mut at = 0;
        while at < lines.len() {
            let line = lines[at];
            at += 1;
            let start = at;
            let here = |why: &str| format!("{file}:{start}: {why}");
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(title) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                section = self.open(title).map_err(|why| here(&why))?;
                continue;
            }
            let (name, rest) = line.split_once(':').ok_or_else(|| here("no `name:`"))?;
            let (name, rest) = (name.trim(), rest.trim());
            let entries = if rest.is_empty() {
                let block = lines[at..]
                    .iter()
                    .take_while(|l| l.starts_with("  ") || l.trim().is_empty())
                    .count();
                let body: Vec<&str> = lines[at..at + block]
                    .iter()
                    .map(|l| l.get(2..).unwrap_or(""))
                    .collect();
                at += block;
                vec![body.join("\n").trim_end().to_string()]
            } else {
                rest.split(" | ").map(|e| e.trim().to_string()).collect()
            };
            self.put(&section, name, entries)
                .map_err(|why| here(&why))?;
        }
        Ok(())
    }

    fn open(&mut self, title: &str) -> Result<Section, String> {
        if title == "list" {
            return Ok(Section::Globals);
        }
        if let Some(kind) = title.strip_prefix("kind ") {
            return Ok(Section::Kind(kind.trim().to_string()));
        }
        let name = title
            .strip_prefix("schema ")
            .ok_or(format!("unknown section [{title}]"))?;
        let (id, kind) = match name.split_once(':') {
            Some((id, kind)) => (id.trim(), Some(kind.trim().to_string())),
            None => (name.trim(), None),
        };
        if self.schemas.iter().any(|s| s.id == id) {
            return Err(format!("schema {id} appears twice"));
        }
        self.schemas.push(Schema {
            id: id.to_string(),
            kind,
            ..Schema::default()
        });
        Ok(Section::Schema)
    }

    fn put(&mut self, section: &Section, name: &str, entries: Vec<String>) -> Result<(), String> {
        let lists = match section {
            Section::None => return Err("an entry before the first section".into()),
            Section::Globals => &mut self.globals,
            Section::Kind(kind) => self.kinds.entry(kind.clone()).or_default(),
            Section::Schema => {
                let schema = self
                    .schemas
                    .last_mut()
                    .expect("a schema section was opened");
                let parts = || entries.join("|");
                match name {
                    "vars" => {
                        for rule in parts().split(';') {
                            let (var, rule) =
                                rule.split_once('=').ok_or(format!("no `=` in {rule:?}"))?;
                            let choices = rule.split(',').map(|c| c.trim().to_string()).collect();
                            schema.vars.push((var.trim().to_string(), choices));
                        }
                        return Ok(());
                    }
                    "where" => {
                        schema
                            .wheres
                            .extend(parts().split(';').map(|c| c.trim().to_string()));
                        return Ok(());
                    }
                    _ => &mut schema.lists,
                }
            }
        };
        lists.entry(name.to_string()).or_default().extend(entries);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_indented_block_is_one_entry_and_keeps_its_inner_indent() {
        let mut library = Library::default();
        library
            .add("t", "[schema s : k]\nbody:\n  a | b\n    c\nwords: x | y\n")
            .unwrap();
        let lists = &library.schemas[0].lists;
        assert_eq!(lists["body"], ["a | b\n  c"]);
        assert_eq!(lists["words"], ["x", "y"]);
    }

    #[test]
    fn a_bad_line_is_named_with_file_and_line() {
        let cases = [
            ("[list]\nno colon", "t:2: no `name:`"),
            ("[shelf]", "t:1: unknown section [shelf]"),
            ("a: b", "t:1: an entry before the first section"),
            ("[schema s]\n[schema s]", "t:2: schema s appears twice"),
            ("[schema s]\nvars: a", "t:2: no `=` in \"a\""),
        ];
        for (text, want) in cases {
            assert_eq!(Library::default().add("t", text), Err(want.to_string()));
        }
    }
}
