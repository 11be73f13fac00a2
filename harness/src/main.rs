//! The `draftbench` command.

fn main() {}
