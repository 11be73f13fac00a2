//! `draftbench analyse coverage`: a block drafted at every position of the target's own answers, and where the token
//! that really follows ranks in each slot.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use baselines::{DFlash, Load, Options};
use candle_core::{DType, Tensor};
use decode::{
    Anchor, Committed, Drafter, Draws, Feed, Keep, Parts, Request, Settings, Silent, Slot,
    StepCost, Target, TokenId, VerifyAll,
};
use indicatif::{ProgressBar, ProgressStyle};
use models::{Decoder, DecoderConfig, DecoderOptions};
use reports::{COVERAGE_SCHEMA, CoverageRecord};

use crate::arms::{self, ArmPlan, DrafterPlan, TargetPlan};
use crate::assets::Shelf;
use crate::cli::CoverageArgs;
use crate::output::{Ending, Verdict, say};
use crate::plan;
use crate::stage;

/// File of coverage records.
pub(crate) const COVERAGE: &str = "coverage.jsonl";

const SLOT: Slot = Slot(0);

/// Measures, stores the records and prints their tables.
///
/// # Errors
/// For bad input, before anything is written; later if a forward fails or the folder cannot be written to.
pub(crate) fn coverage(args: &CoverageArgs) -> Ending {
    plan::at_least_one("--max-new", args.max_new)?;
    if let Some(prompts) = args.prompts {
        plan::at_least_one("--prompts", prompts)?;
    }
    let shelf = Shelf::new(&args.machine.models())?;
    let arm = ArmPlan::parse(&format!("dflash:checkpoint={}", args.checkpoint))?;
    let target = arms::target_plan(&args.target, std::slice::from_ref(&arm), &shelf)?;
    arms::check_real(&target, &arm)?;
    shelf.check_used(target.sources())?;
    let out = match &args.out {
        Some(dir) => dir.clone(),
        None => Path::new("runs").join(format!("{}-coverage", plan::run_id())),
    };
    let file = free_file(&out)?;
    plan::start_threads(&args.machine)?;
    let texts = texts(args, &target)?;
    let mut bench = Bench::load(&target, &texts, args.max_new as usize)?;
    let bar = progress_bar(texts.len());
    let mut records = Vec::with_capacity(texts.len());
    for text in &texts {
        bar.set_message(format!("{} {}", text.suite, text.prompt));
        let (n_tokens, ranks) = bench.ranks(&text.tokens)?;
        let record = CoverageRecord {
            schema: COVERAGE_SCHEMA,
            target: target.spec.id.to_owned(),
            checkpoint: args.checkpoint.clone(),
            suite: text.suite.clone(),
            prompt: text.prompt.clone(),
            n_tokens: n_tokens as u32,
            ranks,
        };
        records.push(record);
        bar.inc(1);
    }
    bar.finish_and_clear();
    write(&out, &file, &records)?;
    let sheets = reports::coverage_sheets(&records);
    for sheet in &sheets {
        let path = out.join(format!("{}.csv", sheet.id));
        fs::write(&path, sheet.csv())
            .with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    let tables: Vec<String> = sheets.iter().map(reports::Sheet::markdown).collect();
    say(&format!(
        "{}\nrecords: {}\n",
        tables.join("\n"),
        file.display()
    ))?;
    Ok(Verdict::Fine)
}

/// The file that records will go to.
fn free_file(out: &Path) -> Result<PathBuf> {
    let file = out.join(COVERAGE);
    ensure!(
        !file.exists(),
        "--out {}: holds the {COVERAGE} of an earlier run; choose another folder",
        out.display()
    );
    Ok(file)
}

fn write(out: &Path, file: &Path, records: &[CoverageRecord]) -> Result<()> {
    let mut text = String::new();
    for record in records {
        text.push_str(&serde_json::to_string(record)?);
        text.push('\n');
    }
    fs::create_dir_all(out)
        .and_then(|()| fs::write(file, text))
        .with_context(|| format!("--out {}: cannot be written to", out.display()))
}

/// A rendered prompt.
struct Text {
    suite: String,
    prompt: String,
    tokens: Vec<TokenId>,
}

fn texts(args: &CoverageArgs, target: &TargetPlan) -> Result<Vec<Text>> {
    let renderer = stage::renderer(&target.source)?;
    let mut texts = Vec::new();
    for id in &args.suites {
        let suite = suites::load(id)?;
        let n = args.prompts.map_or(usize::MAX, |n| n as usize);
        for prompt in suite.prompts.iter().take(n) {
            let what = || format!("suite {id}: prompt {}", prompt.id);
            ensure!(prompt.turns.len() == 1, "{} has more than one turn", what());
            let rendered = renderer
                .render(&prompt.turns, suites::Thinking::Off)
                .with_context(what)?;
            texts.push(Text {
                suite: suite.id.clone(),
                prompt: prompt.id.to_string(),
                tokens: rendered.token_ids,
            });
        }
    }
    Ok(texts)
}

/// A target and a DFlash drafter, one slot each.
struct Bench {
    target: Decoder,
    drafter: DFlash,
    max_new: usize,
}

impl Bench {
    fn load(target: &TargetPlan, texts: &[Text], max_new: usize) -> Result<Self> {
        let source = match target.drafters.first() {
            Some(DrafterPlan::Ready(_, source)) => source.as_ref(),
            Some(DrafterPlan::Skipped(_, why)) => bail!("{why}"),
            None => None,
        };
        let longest = texts.iter().map(|t| t.tokens.len()).max().unwrap_or(0);
        // A block stands behind the last token as scratch rows of the drafter's own cache.
        let capacity = longest + max_new + 1;
        let config = DecoderConfig::load(&target.source)?;
        ensure!(
            capacity <= config.max_positions,
            "the longest prompt needs {capacity} cache positions, target {} holds {}; lower --max-new",
            target.spec.id,
            config.max_positions
        );
        let decoder = Decoder::load(
            &target.source,
            DecoderOptions {
                slots: 1,
                capacity,
                precision: target.precision,
            },
        )
        .with_context(|| format!("target {}", target.spec.id))?;
        let facts = stage::facts(target, &decoder);
        let drafter = DFlash::load(&Load {
            source,
            target: &facts,
            slots: 1,
            capacity,
            precision: target.precision,
            max_draft: None,
            options: &Options::default(),
        })
        .context("method dflash")?;
        Ok(Self {
            target: decoder,
            drafter,
            max_new,
        })
    }

    /// Length of the greedy answer and the ranks at each of its positions but the last.
    fn ranks(&mut self, prompt: &[TokenId]) -> Result<(usize, Vec<Vec<u32>>)> {
        let answer = self.answer(prompt)?;
        let n_read = answer.len() - 1;
        let text = [prompt, &answer[..n_read]].concat();
        let feed = Feed {
            slot: SLOT,
            tokens: &text,
            parents: None,
            logits: Keep::Last,
        };
        let taps = self.target.forward(&[feed], self.drafter.taps())?.taps;
        let slice = |from: usize, n: usize| -> candle_core::Result<Vec<Tensor>> {
            taps.iter().map(|tap| tap.narrow(0, from, n)).collect()
        };
        self.drafter.start(Committed {
            slot: SLOT,
            position: 0,
            fed: prompt,
            next_anchor: answer[0],
            taps: slice(0, prompt.len())?,
        })?;
        let mut ranks = Vec::with_capacity(n_read);
        // Never drawn from: argmax drafts take no random number.
        let mut draws = Draws::new(0, 0);
        for at in 0..n_read {
            let position = prompt.len() + at;
            let anchor = Anchor {
                slot: SLOT,
                token: answer[at],
                position,
                draws: &mut draws,
            };
            let (_, logits) = self.drafter.draft(&[anchor], &self.target)?;
            let ids = self.drafter.target_ids();
            ranks.push(ranks_of(&logits, &answer[at + 1..], ids)?);
            self.drafter.commit(vec![Committed {
                slot: SLOT,
                position,
                fed: &answer[at..=at],
                next_anchor: answer[at + 1],
                taps: slice(position, 1)?,
            }])?;
        }
        self.drafter.finish(SLOT);
        self.target.keep(SLOT, 0, &[])?;
        Ok((answer.len(), ranks))
    }

    /// The target's own greedy answer.
    fn answer(&mut self, prompt: &[TokenId]) -> Result<Vec<TokenId>> {
        let parts = Parts {
            target: &mut self.target,
            drafter: &mut baselines::Vanilla,
            scheduler: &mut VerifyAll,
            probe: &mut Silent,
        };
        let request = Request {
            id: 0,
            prompt: prompt.to_vec(),
            max_new: self.max_new,
        };
        let settings = Settings {
            slots: 1,
            sampling: decode::Sampling::Greedy,
            seed: 0,
            cost: StepCost::flat(),
        };
        let done = decode::decode(parts, vec![request], &settings)?;
        let answer = done
            .into_iter()
            .next()
            .context("the target gave no answer")?;
        Ok(answer.tokens)
    }
}

/// Rank of each following token in its slot's row of `[gamma, V_d]` logits, as far as both reach: the number of tokens
/// before it, larger logits first, of equals the lower id first. `ids`: target ids of the columns, rising, if they are
/// others; a token that is not among them ranks [`u32::MAX`].
fn ranks_of(logits: &Tensor, follows: &[TokenId], ids: Option<&[TokenId]>) -> Result<Vec<u32>> {
    let rows = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
    anyhow::ensure!(
        rows.iter().flatten().all(|logit| logit.is_finite()),
        "the drafter gives logits that are not finite; fetch or train its checkpoint again"
    );
    let rank = |(row, token): (&Vec<f32>, &TokenId)| {
        let column = match ids {
            None => *token as usize,
            Some(ids) => match ids.binary_search(token) {
                Ok(column) => column,
                Err(_) => return u32::MAX,
            },
        };
        let own = row[column];
        let is_before = |(id, logit): (usize, &f32)| *logit > own || (*logit == own && id < column);
        row.iter()
            .enumerate()
            .filter(|(id, l)| is_before((*id, l)))
            .count() as u32
    };
    Ok(rows.iter().zip(follows).map(rank).collect())
}

fn progress_bar(n_prompts: usize) -> ProgressBar {
    let bar = ProgressBar::new(n_prompts as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} prompts, {eta} left  {msg}");
    bar.set_style(style.expect("the template is constant and parses"));
    bar
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn a_rank_counts_larger_logits_and_equal_ones_of_lower_ids() {
        let logits = [
            [0.5f32, 2.0, 2.0, -1.0],
            [1.0, 1.0, 1.0, 1.0],
            [0.0, 0.0, 0.0, 9.0],
        ];
        let logits = Tensor::new(&logits, &Device::Cpu).unwrap();
        assert_eq!(ranks_of(&logits, &[2, 3], None).unwrap(), [1, 3]);
        assert_eq!(ranks_of(&logits, &[1, 0, 3, 0], None).unwrap(), [0, 0, 0]);
        assert_eq!(ranks_of(&logits, &[3], None).unwrap(), [3]);
        let ids: &[TokenId] = &[1, 4, 6, 7];
        let ranks = ranks_of(&logits, &[6, 7, 5], Some(ids)).unwrap();
        assert_eq!(ranks, [1, 3, u32::MAX]);
    }
}
