//! Own, endless, deterministic text: example `index` of a domain is a function of (seed, domain, index).
//!
//! The words live in `data/*.txt` (format: see `synth/library.rs`); this module draws from them.

mod draw;
mod expr;
mod library;

use crate::{Domain, Example};
use draw::Draw;
use library::Library;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::LazyLock;

/// Examples with a thinking text, in percent.
const THINK_PERCENT: u32 = 25;

const SHARED: (&str, &str) = ("shared.txt", include_str!("../data/shared.txt"));

static MATHS: LazyLock<Library> = LazyLock::new(|| {
    embedded(&[
        ("maths_a.txt", include_str!("../data/maths_a.txt")),
        ("maths_b.txt", include_str!("../data/maths_b.txt")),
    ])
});

static CODE: LazyLock<Library> = LazyLock::new(|| {
    embedded(&[
        ("code_a.txt", include_str!("../data/code_a.txt")),
        ("code_b.txt", include_str!("../data/code_b.txt")),
    ])
});

static CHAT: LazyLock<Library> = LazyLock::new(|| {
    embedded(&[
        ("chat_a.txt", include_str!("../data/chat_a.txt")),
        ("chat_b.txt", include_str!("../data/chat_b.txt")),
    ])
});

/// Makes example `index` of `domain`. The same arguments give the same example on every machine.
///
/// A quarter of the examples carry a thinking text. Answers are 30 to 140 words long.
pub fn example(seed: u64, domain: Domain, index: u64) -> Example {
    drawn(seed, domain, index).1
}

/// The example and the id of the template it was drawn from.
fn drawn(seed: u64, domain: Domain, index: u64) -> (&'static str, Example) {
    let library = library(domain);
    let mut rng = rng(seed, domain, index);
    let schema = &library.schemas[rng.random_range(0..library.schemas.len() as u32) as usize];
    let thinks = rng.random_range(0..100) < THINK_PERCENT;
    let example = Draw::new(library, schema, &mut rng).example(domain, thinks);
    (
        &schema.id,
        example.expect("embedded templates are complete: a test draws from each"),
    )
}

fn library(domain: Domain) -> &'static Library {
    match domain {
        Domain::Maths => &MATHS,
        Domain::Code => &CODE,
        Domain::Chat => &CHAT,
    }
}

fn embedded(files: &[(&str, &str)]) -> Library {
    let mut library = Library::default();
    for (file, text) in [SHARED].iter().chain(files) {
        library
            .add(file, text)
            .expect("embedded templates parse: a test reads each");
    }
    library
}

fn rng(seed: u64, domain: Domain, index: u64) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&index.to_le_bytes());
    key[16] = match domain {
        Domain::Maths => 1,
        Domain::Code => 2,
        Domain::Chat => 3,
    };
    ChaCha8Rng::from_seed(key)
}

#[cfg(test)]
mod tests;
