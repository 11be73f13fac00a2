//! Rebuilds the binary when a file that it embeds changes.

fn main() {
    let told = "cargo::rerun-if-changed=../assets/tiny\n";
    std::io::Write::write_all(&mut std::io::stdout(), told.as_bytes())
        .expect("cargo reads a build script's output");
}
