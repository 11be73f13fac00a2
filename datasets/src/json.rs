//! JSON as Python writes it, so that lines and their hashes equal those of files made there.

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::io;

/// What Python's `json.dumps(value, ensure_ascii=False)` writes: one line, `", "` between entries, `": "` after keys.
///
/// # Errors
/// If the value has no JSON form, such as a map whose keys are lists.
pub fn python_json<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, OneLine))?;
    Ok(String::from_utf8(bytes).expect("the serializer writes UTF-8"))
}

struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}
