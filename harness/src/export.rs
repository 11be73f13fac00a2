//! `draftbench export`: trained drafters as files of other programs.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use baselines::{LlamaCppDrafter, to_llama_cpp};
use models::{GgufTarget, GgufWriter, Source};

use crate::cli::{ExportCommand, ExportGgufArgs};
use crate::output::{Ending, Verdict, say};

/// Does what was typed.
///
/// # Errors
/// If the drafter or the target is not one that fits, or the file is there already or cannot be written.
pub(crate) fn act(command: &ExportCommand) -> Ending {
    let ExportCommand::Gguf(args) = command;
    gguf(args)
}

fn gguf(args: &ExportGgufArgs) -> Ending {
    let ExportGgufArgs {
        drafter,
        target,
        to,
        matrices,
    } = args;
    ensure!(
        fs::symlink_metadata(to).is_err(),
        "--to {}: is there already; remove it or name another file",
        to.display()
    );
    ensure!(
        drafter.is_dir(),
        "{}: is not a folder; name a drafter's checkpoint, with config.json and model.safetensors",
        drafter.display()
    );
    ensure!(
        !target.is_dir(),
        "--target {}: is a folder; name the GGUF file that llama.cpp is to run as the target, whose tokenizer the \
         drafter's file needs",
        target.display()
    );
    let target =
        GgufTarget::open(target).with_context(|| format!("--target {}", target.display()))?;
    let made = to_llama_cpp(&Source::Dir(drafter.clone()), &target, matrices.gguf())?;
    let n_bytes = write(&made.file, to)
        .with_context(|| format!("--to {}: cannot be written", to.display()))?;
    say(&told(&made, to, n_bytes))?;
    Ok(Verdict::Fine)
}

fn told(made: &LlamaCppDrafter, to: &Path, n_bytes: u64) -> String {
    let mut text = format!(
        "{}: {} tensors, {} MB; llama.cpp takes it with --spec-type {} --spec-draft-n-max {}\n",
        to.display(),
        made.file.n_tensors(),
        n_bytes.div_ceil(1_000_000),
        made.spec_type.name(),
        made.gamma
    );
    for note in &made.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

/// Writes the file, whole or not at all; gives its length in bytes.
fn write(file: &GgufWriter, to: &Path) -> Result<u64> {
    let name = to.file_name().context("is no name of a file")?;
    let name = name.to_string_lossy();
    let part = to.with_file_name(format!(".{name}-{}.tmp", std::process::id()));
    let written = fill(file, &part).and_then(|n_bytes| {
        fs::rename(&part, to)?;
        Ok(n_bytes)
    });
    if written.is_err() && part.is_file() {
        // What stays behind matters less than why.
        fs::remove_file(&part).unwrap_or_default();
    }
    written
}

fn fill(file: &GgufWriter, part: &Path) -> Result<u64> {
    let mut out = BufWriter::new(File::create_new(part)?);
    file.write(&mut out)?;
    out.flush()?;
    out.get_ref().sync_all()?;
    Ok(out.get_ref().metadata()?.len())
}
