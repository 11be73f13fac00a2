//! Draws one example from a schema.
//!
//! Slots of an entry: `{name}` takes an entry of list `name` (or an integer variable) and keeps it
//! for the whole example; `{name#2}` takes a second, different entry; `{name.1}` is field 1 of it
//! (the first is field 0); `{^name}` starts with a capital; `{a|b}` takes one side at random;
//! `{=a * b}` is an integer expression; `{}` is itself, and `\{` `\}` are plain braces.
//! Entries may hold slots themselves.

use super::expr::eval;
use super::library::{Library, Schema};
use crate::{Domain, Example};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

const MAX_TRIES: usize = 5000;
const MAX_DEPTH: usize = 12;

pub(super) struct Draw<'a> {
    library: &'a Library,
    schema: &'a Schema,
    rng: &'a mut ChaCha8Rng,
    ints: BTreeMap<String, i64>,
    /// Slot (`name` or `name#2`) to the index of its raw entry and its expanded fields.
    slots: BTreeMap<String, (usize, Vec<String>)>,
    depth: usize,
}

impl<'a> Draw<'a> {
    pub(super) fn new(library: &'a Library, schema: &'a Schema, rng: &'a mut ChaCha8Rng) -> Self {
        let (ints, slots) = (BTreeMap::new(), BTreeMap::new());
        Draw {
            library,
            schema,
            rng,
            ints,
            slots,
            depth: 0,
        }
    }

    pub(super) fn example(mut self, domain: Domain, thinks: bool) -> Result<Example, String> {
        self.draw_vars()
            .map_err(|why| format!("schema {}: {why}", self.schema.id))?;
        let mut text = |list: &str| {
            self.slot(list)
                .map_err(|why| format!("schema {}: {list}: {why}", self.schema.id))
        };
        let user = text("user")?;
        let think = if thinks { Some(text("think")?) } else { None };
        Ok(Example {
            domain,
            user,
            think,
            answer: text("answer")?,
        })
    }

    fn draw_vars(&mut self) -> Result<(), String> {
        'tries: for _ in 0..MAX_TRIES {
            self.ints.clear();
            for (name, choices) in &self.schema.vars {
                let pick = &choices[self.below(choices.len())];
                let value = match pick.split_once("..") {
                    None => match eval(pick, &self.ints) {
                        Err(why) if why.ends_with("is not an integer") => continue 'tries,
                        value => value?,
                    },
                    Some((low, high)) => {
                        let (low, high) = (eval(low, &self.ints)?, eval(high, &self.ints)?);
                        if low > high {
                            continue 'tries;
                        }
                        self.rng.random_range(low..=high)
                    }
                };
                self.ints.insert(name.clone(), value);
            }
            for condition in &self.schema.wheres {
                if eval(condition, &self.ints)? == 0 {
                    continue 'tries;
                }
            }
            return Ok(());
        }
        Err(format!(
            "no draw of vars met its conditions in {MAX_TRIES} tries"
        ))
    }

    fn below(&mut self, n: usize) -> usize {
        self.rng.random_range(0..n as u32) as usize
    }

    fn expand(&mut self, text: &str) -> Result<String, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!(
                "slots nest deeper than {MAX_DEPTH}, last in {text:?}"
            ));
        }
        let mut out = String::with_capacity(text.len() * 2);
        let mut rest = text;
        while let Some(at) = rest.find(['{', '\\']) {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(after) = rest.strip_prefix('\\') {
                let brace = after.starts_with(['{', '}']);
                out.push(if brace {
                    after.as_bytes()[0] as char
                } else {
                    '\\'
                });
                rest = &after[usize::from(brace)..];
                continue;
            }
            let len = matching_brace(rest)?;
            let inside = &rest[1..len];
            rest = &rest[len + 1..];
            out.push_str(&self.slot_text(inside)?);
        }
        out.push_str(rest);
        self.depth -= 1;
        Ok(out)
    }

    fn slot_text(&mut self, inside: &str) -> Result<String, String> {
        if inside.is_empty() {
            return Ok("{}".into());
        }
        if let Some(expr) = inside.strip_prefix('=') {
            return Ok(eval(expr, &self.ints)?.to_string());
        }
        let sides = split_sides(inside);
        if sides.len() > 1 {
            let side = sides[self.below(sides.len())];
            return self.expand(side);
        }
        match inside.strip_prefix('^') {
            Some(name) => Ok(capitalised(&self.slot(name)?)),
            None => self.slot(inside),
        }
    }

    /// The value of `name`, `name.FIELD`, `name#N` or `name#N.FIELD`.
    fn slot(&mut self, slot: &str) -> Result<String, String> {
        if let Some(value) = self.ints.get(slot) {
            return Ok(value.to_string());
        }
        let (key, field) = match slot.split_once('.') {
            Some((key, field)) => (
                key,
                field
                    .parse()
                    .map_err(|e| format!("bad slot {slot:?}: {e}"))?,
            ),
            None => (slot, 0usize),
        };
        if !self.slots.contains_key(key) {
            let base = key.split('#').next().unwrap_or(key);
            let entries = self.entries(base)?;
            let taken: Vec<usize> = self
                .slots
                .iter()
                .filter(|(other, _)| other.split('#').next() == Some(base))
                .map(|(_, (entry, _))| *entry)
                .collect();
            let free: Vec<usize> = (0..entries.len()).filter(|i| !taken.contains(i)).collect();
            if free.is_empty() {
                return Err(format!("list {base} has no entry left for {key}"));
            }
            let entry = free[self.below(free.len())];
            let fields: Result<Vec<String>, String> = entries[entry]
                .split('~')
                .map(|field| self.expand(field))
                .collect();
            self.slots.insert(key.to_string(), (entry, fields?));
        }
        let fields = &self.slots[key].1;
        fields
            .get(field)
            .cloned()
            .ok_or(format!("{key} has {} fields, not {slot}", fields.len()))
    }

    fn entries(&self, list: &str) -> Result<&'a [String], String> {
        let kind = match &self.schema.kind {
            None => None,
            Some(kind) => Some(
                self.library
                    .kinds
                    .get(kind)
                    .ok_or(format!("kind {kind} does not exist"))?,
            ),
        };
        let own = self.schema.lists.get(list);
        own.or_else(|| kind.and_then(|lists| lists.get(list)))
            .or_else(|| self.library.globals.get(list))
            .map(Vec::as_slice)
            .ok_or(format!("list {list} does not exist"))
    }
}

/// Index of the `}` that closes the `{` at the start of `text`.
fn matching_brace(text: &str) -> Result<usize, String> {
    let mut depth = 0usize;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return Ok(at);
                }
            }
            _ => {}
        }
    }
    Err(format!("no closing brace in {text:?}"))
}

/// Splits at the `|` outside of inner braces.
fn split_sides(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut sides) = (0usize, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => {
                sides.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    sides.push(&text[start..]);
    sides
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn user(text: &str) -> Result<String, String> {
        let mut library = Library::default();
        library.add("t", text)?;
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        Draw::new(&library, &library.schemas[0], &mut rng)
            .example(Domain::Chat, false)
            .map(|example| example.user)
    }

    #[test]
    fn slots_keep_their_value_take_fields_and_start_with_a_capital() {
        let text = "[list]\npet: cat~cats\n[schema s]\nvars: a = 2; b = a + 1\n\
                    user: {^pet} and {pet.1}, {a} * {b} = {=a * b}, {} \\{x\\}\nanswer: -\n";
        assert_eq!(user(text).unwrap(), "Cat and cats, 2 * 3 = 6, {} {x}");
    }

    #[test]
    fn a_second_draw_from_a_list_is_a_different_entry() {
        let text = "[list]\nw: a | b\n[schema s]\nuser: {w}{w#2}\nanswer: -\n";
        assert!(["ab", "ba"].contains(&user(text).unwrap().as_str()));
    }

    #[test]
    fn templates_that_cannot_be_filled_are_errors() {
        for (slot, vars) in [
            ("{missing}", "a = 1"),
            ("{w#2}{w}", "a = 1"),
            ("{w.1}", "a = 1"),
            ("{w", "a = 1"),
            ("{=b}", "a = 1"),
            ("{w}", "a = 7 / 2"),
            ("{w}", "a = 3..2"),
            ("{loop}", "a = 1"),
        ] {
            let text = format!(
                "[list]\nw: x\nloop: {{loop}}\n[schema s]\nvars: {vars}\nuser: {slot}\nanswer: -\n"
            );
            assert!(user(&text).is_err(), "{slot} {vars}");
        }
    }
}
