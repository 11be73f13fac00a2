//! Having a test here makes `cargo test --workspace` build the binary that the tests package drives.

use std::process::Command;

#[test]
fn the_binary_says_its_version() {
    let output = Command::new(env!("CARGO_BIN_EXE_draftbench"))
        .arg("--version")
        .output();
    let said = String::from_utf8(output.unwrap().stdout).unwrap();
    assert_eq!(said, format!("draftbench {}\n", env!("CARGO_PKG_VERSION")));
}
