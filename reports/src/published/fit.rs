//! Which of our figures a published one may stand beside. Nothing is guessed: what a source does not say keeps its
//! figure apart.

use super::Published;
use crate::acceptance::Convention;
use crate::levels::{Estimate, Level, LevelRow};
use crate::{SamplingKey, Thinking};

/// Where a published figure belongs in our matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedAt {
    /// Id of the target.
    pub target: &'static str,
    /// Id of the suite.
    pub suite: String,
    /// Id of the method; ours must be the arm without options.
    pub method: &'static str,
    /// How tokens are chosen.
    pub sampling: SamplingKey,
    /// Whether the chat template asks for a thinking section.
    pub thinking: Thinking,
    /// What is measured.
    pub quantity: Quantity,
    /// What differs nevertheless, if anything.
    pub caveat: Option<String>,
}

/// What a published figure measures, in our terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Acceptance length, which does not depend on the machine.
    Length(Convention),
    /// Speedup in decoding one sequence, which does.
    SpeedupDecode,
}

/// The place of a published figure, or why it has none.
pub type Fit = Result<PublishedAt, &'static str>;

/// A published figure beside ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside<'a> {
    /// Theirs.
    pub published: &'a Published,
    /// Where it belongs.
    pub at: PublishedAt,
    /// Ours; the interval is given for tau and speedup.
    pub ours: Estimate,
    /// Prompts that ours pools; the source may have asked more.
    pub n_prompts: u64,
}

/// Published figures that have one of ours to stand beside, in their order. `rows` are those of [`crate::levels()`]; a
/// figure of one sequence is held against concurrency 1.
pub fn stand_beside<'a>(published: &'a [Published], rows: &[LevelRow]) -> Vec<Beside<'a>> {
    let one = |published: &'a Published| {
        let at = fit(published).ok()?;
        let row = rows.iter().find(|row| is_at(row, &at))?;
        let ours = match at.quantity {
            Quantity::SpeedupDecode => row.speedup_decode?,
            Quantity::Length(Convention::Tau) => row.tau?,
            Quantity::Length(convention) => Estimate {
                value: row.conventions.length(convention)?,
                interval: None,
            },
        };
        Some(Beside {
            published,
            at,
            ours,
            n_prompts: row.n_prompts,
        })
    };
    published.iter().filter_map(one).collect()
}

fn is_at(row: &LevelRow, at: &PublishedAt) -> bool {
    let key = &row.key;
    (key.level, key.concurrency, key.arrivals.is_closed()) == (Level::Suite, 1, true)
        && (key.sampling, key.thinking) == (at.sampling, at.thinking)
        && key.target.as_deref() == Some(at.target)
        && key.suite.as_deref() == Some(at.suite.as_str())
        && key.method == at.method
}

/// Finds the place of a published figure.
///
/// # Errors
/// The first reason why no figure of ours has the same definition and coordinates.
pub fn fit(row: &Published) -> Fit {
    let source = source(row)?;
    let target = target(&row.target)?;
    let quantity = match row.metric.as_str() {
        "accept_len" | "acceptance_length" => Quantity::Length(source.length),
        "speedup" => Quantity::SpeedupDecode,
        _ => return Err("the metric is neither acceptance length nor speedup over vanilla"),
    };
    let measured = match quantity {
        Quantity::Length(_) => source.length_caveat,
        Quantity::SpeedupDecode => Some(source.speedup_caveat?),
    };
    let caveats: Vec<&str> = [measured, drafter_caveat(row), concurrency_caveat(row)]
        .into_iter()
        .flatten()
        .collect();
    Ok(PublishedAt {
        method: method(&row.method)?,
        suite: suite(&row.dataset)?,
        sampling: sampling(&row.temperature)?,
        thinking: thinking(&row.thinking, target)?,
        target: one_sequence(&row.concurrency).map(|()| target)?,
        quantity,
        caveat: (!caveats.is_empty()).then(|| caveats.join("; ")),
    })
}

/// DFlash's figures of a thinking target are of drafters trained for it, which are not those of the method's arm.
///
/// Source: DFlash, section "thinking mode", Table 2.
fn drafter_caveat(row: &Published) -> Option<&'static str> {
    let is_apart = row.paper.starts_with("DFlash (") && row.thinking == "on";
    is_apart.then_some("theirs is of a drafter trained separately for thinking")
}

fn concurrency_caveat(row: &Published) -> Option<&'static str> {
    let is_silent = row.concurrency.is_empty();
    is_silent.then_some("the source states no concurrency; taken as one sequence at a time")
}

/// How a source measures.
struct Source {
    length: Convention,
    length_caveat: Option<&'static str>,
    /// What sets its speedup apart, or why it is no speedup of ours.
    speedup_caveat: Result<&'static str, &'static str>,
}

/// Source: the programs' code; see [`Convention`].
fn source(row: &Published) -> Result<Source, &'static str> {
    let other_engine = Err("the speedup is another engine's: it depends on that engine's vanilla");
    let no_speedup = Err("the source times nothing");
    let is = |part: &str| row.paper.starts_with(part);
    let engine = row.engine.as_str();
    // Ablations decode checkpoints of their own under a method's name.
    let ablation = row.table.contains('(') || is("DFlash") && engine.is_empty();
    if ablation && !is("DFlash repo") {
        return Err("the checkpoints of an ablation are not those of the method's arm");
    }
    match engine {
        "Transformers" if is("DFlash") => Ok(Source {
            length: Convention::RawMean,
            length_caveat: None,
            speedup_caveat: Ok(
                "theirs is of answers' mean time a token and leaves the first draft pass out; ours pools answers and \
                 counts the drafter's start; other machine",
            ),
        }),
        _ if is("DSpark") && !is("DSpark confidence") => Ok(Source {
            length: Convention::Tau,
            length_caveat: Some(
                "theirs counts a round that ends in an accepted stop token without a bonus",
            ),
            speedup_caveat: no_speedup,
        }),
        _ if engine.starts_with("SGLang") && is("DFlash") => Ok(Source {
            length: Convention::CompletionMean,
            length_caveat: Some("theirs asks the first turn of a conversation alone"),
            speedup_caveat: other_engine,
        }),
        _ if engine.starts_with("vLLM") => Ok(Source {
            length: Convention::RawPooled,
            length_caveat: None,
            speedup_caveat: other_engine,
        }),
        _ => Err("the source's convention of acceptance length and its timing are not known"),
    }
}

fn target(name: &str) -> Result<&'static str, &'static str> {
    match name {
        "Qwen3-4B" => Ok("qwen3-4b"),
        "Qwen3-8B" => Ok("qwen3-8b"),
        "Qwen3-Coder-30B-A3B" => Ok("qwen3-coder-30b-a3b"),
        "Llama-3.1-8B-Instruct" => Ok("llama-3.1-8b-instruct"),
        _ => Err("the target is none of ours"),
    }
}

fn method(name: &str) -> Result<&'static str, &'static str> {
    match name {
        "vanilla AR" | "AR" | "ar" | "autoregressive" => Ok("vanilla"),
        "DFlash" | "dflash" | "DFlash (block 16)" => Ok("dflash"),
        "DSpark" | "DSpark (block 7, Markov)" => Ok("dspark"),
        "Domino" => Ok("domino"),
        "DCOCO" => Ok("dcoco"),
        _ if name.contains("tree") || name.contains("Tree") => {
            Err("it verifies a tree, whose shape is an option of an arm")
        }
        _ => Err("the method, or what its name adds, is no arm of ours without options"),
    }
}

fn suite(name: &str) -> Result<String, &'static str> {
    const SUITES: [&str; 10] = [
        "gsm8k",
        "math500",
        "aime24",
        "aime25",
        "humaneval",
        "mbpp",
        "livecodebench",
        "mt-bench",
        "alpaca",
        "arena-hard-v2",
    ];
    match SUITES.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err("the data set is none of our suites, or an average over several"),
    }
}

fn sampling(temperature: &str) -> Result<SamplingKey, &'static str> {
    match temperature.parse::<f64>() {
        Ok(0.0) => Ok(SamplingKey::Greedy),
        Ok(t) if t > 0.0 && (t * 1000.0).fract() == 0.0 => Ok(SamplingKey::at((t * 1000.0) as u32)),
        Ok(_) | Err(_) => Err("the temperature is not stated"),
    }
}

fn thinking(thinking: &str, target: &str) -> Result<Thinking, &'static str> {
    let has_switch = ["qwen3-4b", "qwen3-8b"].contains(&target);
    match thinking {
        "on" => Ok(Thinking::On),
        "off" => Ok(Thinking::Off),
        "" | "n/a" if !has_switch => Ok(Thinking::Off),
        _ => Err("it is not stated whether the target thinks"),
    }
}

/// A source that states no concurrency, and whose convention is known, decodes one sequence at a time.
fn one_sequence(concurrency: &str) -> Result<(), &'static str> {
    match concurrency {
        "" | "1" => Ok(()),
        _ => Err("several sequences at once, or an average over several loads"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::published;
    use super::*;
    use crate::levels;
    use crate::record::tests::{answer, record};

    fn dflash() -> Published {
        Published {
            paper: "DFlash (arXiv:2602.06036v2)".into(),
            table: "Table 1".into(),
            target: "Qwen3-4B".into(),
            method: "DFlash (block 16)".into(),
            temperature: "1".into(),
            thinking: "off".into(),
            engine: "Transformers".into(),
            hardware: "H200".into(),
            concurrency: String::new(),
            dataset: "gsm8k".into(),
            metric: "accept_len".into(),
            value: 6.0,
        }
    }

    #[test]
    fn a_length_is_held_against_its_own_convention() {
        let at = fit(&dflash()).unwrap();
        assert_eq!(
            (at.target, at.method, at.suite.as_str()),
            ("qwen3-4b", "dflash", "gsm8k")
        );
        assert_eq!(at.sampling, SamplingKey::at(1000));
        assert_eq!(at.quantity, Quantity::Length(Convention::RawMean));
        let speedup = Published {
            metric: "speedup".into(),
            ..dflash()
        };
        let at = fit(&speedup).unwrap();
        assert!(at.quantity == Quantity::SpeedupDecode && at.caveat.is_some());
    }

    #[test]
    fn what_the_source_leaves_open_or_trains_apart_is_a_caveat() {
        let caveat = |change: fn(&mut Published)| {
            let mut row = dflash();
            change(&mut row);
            fit(&row).unwrap().caveat.unwrap_or_default()
        };
        assert!(caveat(|_| ()).contains("states no concurrency"));
        assert_eq!(caveat(|r| r.concurrency = "1".into()), "");
        let thinking = caveat(|r| {
            (r.table, r.thinking) = ("Table 2".into(), "on".into());
            (r.dataset, r.concurrency) = ("math500".into(), "1".into());
        });
        assert_eq!(
            thinking,
            "theirs is of a drafter trained separately for thinking"
        );
    }

    #[test]
    fn what_differs_is_told() {
        let change = |change: fn(&mut Published)| {
            let mut row = dflash();
            change(&mut row);
            fit(&row).unwrap_err()
        };
        for (reason, part) in [
            (change(|r| r.method = "EAGLE-3 (tree 60)".into()), "tree"),
            (change(|r| r.target = "Vicuna-13B".into()), "target"),
            (change(|r| r.engine = "JetSpec engine".into()), "not known"),
            (change(|r| r.dataset = "avg".into()), "average"),
            (change(|r| r.temperature = String::new()), "temperature"),
            (change(|r| r.thinking = String::new()), "thinks"),
            (change(|r| r.concurrency = "8".into()), "several"),
            (change(|r| r.metric = "throughput_tok_s".into()), "metric"),
            (
                change(|r| r.table = "Table 6 (draft layers)".into()),
                "ablation",
            ),
            (
                change(|r| (r.engine, r.metric) = ("vLLM".into(), "speedup".into())),
                "another engine",
            ),
        ] {
            assert!(reason.contains(part), "{reason}");
        }
    }

    #[test]
    fn ours_stands_beside_theirs() {
        let mut rec = record("dflash", "a", answer(&[(3, 4), (3, 1)]));
        rec.cell.target = "qwen3-4b".into();
        rec.cell.suite = "gsm8k".into();
        let rows = levels(std::slice::from_ref(&rec));
        let greedy = Published {
            temperature: "0".into(),
            ..dflash()
        };
        let all = [greedy, dflash()];
        let got = stand_beside(&all, &rows);
        assert_eq!(got.len(), 1);
        // Convention E: 1 + 6 / 2, where tau is 5 / 2.
        assert_eq!((got[0].published.value, got[0].ours.value), (6.0, 4.0));
    }

    #[test]
    fn some_of_the_shipped_figures_have_a_place() {
        let all = published();
        let fits: Vec<PublishedAt> = all.iter().filter_map(|row| fit(row).ok()).collect();
        let n = |method: &str| fits.iter().filter(|at| at.method == method).count();
        assert!(
            n("dflash") > 100 && n("dspark") > 10,
            "{} {}",
            n("dflash"),
            n("dspark")
        );
        assert!(fits.len() < all.len() / 4, "{}", fits.len());
    }
}
