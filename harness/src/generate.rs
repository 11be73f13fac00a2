//! `draftbench generate`: one answer, streamed, with what speculation did for it.

use std::io::{self, IsTerminal as _};
use std::str::FromStr as _;

use anyhow::{Context as _, Result, bail};
use decode::{
    Generation, Parts, Phase, Probe, Request, RequestId, Round, Settings, StepCost, Target as _,
    TokenId,
};
use models::Decoder;
use reports::{SamplingKey, Thinking};

use crate::arms::{self, ArmPlan, DrafterPlan};
use crate::assets::Shelf;
use crate::cli::{ColorArg, GenerateArgs, SwitchArg};
use crate::engine::{Arm, sampling};
use crate::measure::{Stopwatch, Times, stopwatch};
use crate::output::{Ending, Verdict, say};
use crate::plan;
use crate::{schedule, stage};

const GREEN: &str = "\x1b[32m";
const PLAIN: &str = "\x1b[0m";

/// Answers one prompt.
///
/// # Errors
/// For bad input, before anything is printed.
pub(crate) fn generate(args: &GenerateArgs) -> Ending {
    plan::at_least_one("--max-new", args.max_new)?;
    let key = SamplingKey::from_str(&args.sampling).context("--sampling")?;
    let arm = ArmPlan::parse(&args.method)?;
    let shelf = Shelf::new(&args.machine.models())?;
    let target = arms::target_plan(&args.target, std::slice::from_ref(&arm), &shelf)?;
    arms::check_real(&target, &arm)?;
    shelf.check_used(target.sources())?;
    for drafter in &target.drafters {
        if let DrafterPlan::Skipped(_, why) = drafter {
            bail!("{why}");
        }
    }
    plan::start_threads(&args.machine)?;
    let thinking = match args.thinking {
        SwitchArg::Off => Thinking::Off,
        SwitchArg::On => Thinking::On,
    };
    let renderer = stage::renderer(&target.source)?;
    let turns = stage::one_turn(&args.prompt);
    let prompt = renderer.render(&turns, stage::switch(thinking))?.token_ids;
    let max_new = args.max_new as usize;
    let capacity = stage::check_one(&target, prompt.len(), max_new, 1)?;
    let (mut decoder, arms) = stage::load(&target, &[1], capacity)?;
    let Some((_, mut ready)) = arms.into_iter().next() else {
        bail!("method {} was not loaded", arm.key());
    };
    let round = ready.drafter.max_draft() + 1;
    stage::check_one(&target, prompt.len(), max_new, round)?;
    let cost = match arm.schedule.needs_cost() {
        true => step_cost(args, &mut decoder, &mut ready, (&prompt, key))?,
        false => StepCost::flat(),
    };
    let Arm { mut drafter, .. } = ready;
    for note in target.mixed() {
        eprintln!("note: {note}");
    }
    let mut show = Show {
        watch: stopwatch(),
        decode: |ids: &[TokenId]| renderer.decode(ids),
        style: Style::new(args),
        stop: decoder.stop_tokens().to_vec(),
        held: Vec::new(),
        n_rounds: 0,
        broken: None,
    };
    let request = Request {
        id: 0,
        prompt,
        max_new,
    };
    let settings = Settings {
        slots: 1,
        sampling: sampling(key),
        seed: args.seed,
        cost,
    };
    let mut scheduler = arm.schedule.scheduler();
    let parts = Parts {
        target: &mut decoder,
        drafter: &mut *drafter,
        scheduler: &mut *scheduler,
        probe: &mut show,
    };
    let done = decode::decode(parts, vec![request], &settings)?;
    if let Some(err) = show.broken {
        return Err(err);
    }
    // What an answer that was cut inside a character still holds.
    say(&renderer.decode(&show.held)?)?;
    let times = show.watch.times(0);
    for generation in &done {
        say(if args.rounds { "\n" } else { "\n\n" })?;
        say(&summary(generation, &times))?;
    }
    Ok(Verdict::Fine)
}

/// What steps of one sequence cost behind this prompt.
fn step_cost(
    args: &GenerateArgs,
    target: &mut Decoder,
    arm: &mut Arm,
    (prompt, key): (&[u32], SamplingKey),
) -> Result<StepCost> {
    let round = arm.drafter.max_draft() + 1;
    let mut table = schedule::profile(&args.target, target, 1, prompt, round)?;
    let settings = (key, args.max_new as usize);
    let rest = schedule::drafting(target, arm, &[prompt], settings)?;
    table.drafting.push(rest);
    Ok(table.step_cost(&arm.method, key)?)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lines {
    /// Text as it comes.
    Flowing,
    /// One line a round.
    Rounds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paint {
    Off,
    On,
}

#[derive(Clone, Copy, Debug)]
struct Style {
    lines: Lines,
    paint: Paint,
}

impl Style {
    fn new(args: &GenerateArgs) -> Self {
        let paint = match args.color {
            ColorArg::Always => true,
            ColorArg::Never => false,
            ColorArg::Auto => io::stdout().is_terminal(),
        };
        Self {
            lines: if args.rounds {
                Lines::Rounds
            } else {
                Lines::Flowing
            },
            paint: if paint { Paint::On } else { Paint::Off },
        }
    }
}

/// Where a token came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Drafter,
    Target,
}

/// Prints tokens as rounds commit them.
struct Show<C, D> {
    watch: Stopwatch<C>,
    decode: D,
    style: Style,
    /// Not shown where text flows.
    stop: Vec<TokenId>,
    /// Tokens that do not yet end at a character's end.
    held: Vec<TokenId>,
    n_rounds: u32,
    broken: Option<anyhow::Error>,
}

impl<C: FnMut() -> u64, D: Fn(&[TokenId]) -> suites::Result<String>> Show<C, D> {
    /// The text that a token completes, painted by its origin; empty while a character is incomplete.
    fn text(&mut self, token: TokenId, origin: Origin) -> Result<String> {
        if self.style.lines == Lines::Flowing && self.stop.contains(&token) {
            return Ok(String::new());
        }
        self.held.push(token);
        let text = (self.decode)(&self.held)?;
        if text.ends_with('\u{FFFD}') && self.held.len() < 8 {
            return Ok(String::new());
        }
        self.held.clear();
        let text = match self.style.lines {
            Lines::Flowing => text,
            Lines::Rounds => text.replace('\n', "\\n"),
        };
        Ok(match (self.style.paint, origin) {
            (Paint::On, Origin::Drafter) => format!("{GREEN}{text}{PLAIN}"),
            _ => text,
        })
    }

    fn show_round(&mut self, round: &Round, committed: &[TokenId]) -> Result<()> {
        self.n_rounds += 1;
        let mut text = String::new();
        for (idx, token) in committed.iter().enumerate() {
            let origin = if idx < round.accepted as usize {
                Origin::Drafter
            } else {
                Origin::Target
            };
            text.push_str(&self.text(*token, origin)?);
        }
        // Neighbouring drafts share one stretch of colour.
        let mut text = text.replace(&format!("{PLAIN}{GREEN}"), "");
        if self.style.lines == Lines::Rounds {
            text = format!(
                "round {:>3}  drafted {:>2}  accepted {:>2}  |{text}|\n",
                self.n_rounds, round.drafted, round.accepted
            );
        }
        Ok(say(&text)?)
    }

    fn show_first(&mut self, token: TokenId) -> Result<()> {
        let mut text = self.text(token, Origin::Target)?;
        if self.style.lines == Lines::Rounds {
            text = format!("prefill                           |{text}|\n");
        }
        Ok(say(&text)?)
    }

    /// Keeps the first error and takes the time that printing cost out of the measurement.
    fn printed(&mut self, result: Result<()>, began_ns: u64) {
        if let Err(err) = result {
            self.broken.get_or_insert(err);
        }
        self.watch.leave_out_since(began_ns);
    }
}

impl<C: FnMut() -> u64, D: Fn(&[TokenId]) -> suites::Result<String>> Probe for Show<C, D> {
    fn enter(&mut self, phase: Phase, rows: usize) {
        self.watch.enter(phase, rows);
    }

    fn leave(&mut self, phase: Phase) {
        self.watch.leave(phase);
    }

    fn admitted(&mut self, id: RequestId) {
        self.watch.admitted(id);
    }

    fn first_token(&mut self, id: RequestId, token: TokenId) {
        self.watch.first_token(id, token);
        let began_ns = self.watch.now();
        let result = self.show_first(token);
        self.printed(result, began_ns);
    }

    fn round(&mut self, _id: RequestId, round: &Round, committed: &[TokenId]) {
        let began_ns = self.watch.now();
        if self.broken.is_none() {
            let result = self.show_round(round, committed);
            self.printed(result, began_ns);
        }
    }

    fn finished(&mut self, generation: &Generation) {
        self.watch.finished(generation);
    }
}

fn summary(generation: &Generation, times: &Times) -> String {
    let (n_rounds, n_tokens) = (generation.rounds.len(), generation.tokens.len());
    let drafted: u32 = generation.rounds.iter().map(|r| r.drafted).sum();
    let accepted: u32 = generation.rounds.iter().map(|r| r.accepted).sum();
    let decoded = n_tokens - 1;
    let tau = match n_rounds {
        0 => "-".to_owned(),
        n => format!("{:.2}", decoded as f64 / n as f64),
    };
    let rate = match times.decode_ns {
        0 => "-".to_owned(),
        _ if decoded == 0 => "-".to_owned(),
        ns => format!("{:.0}", decoded as f64 * 1e9 / ns as f64),
    };
    let ended = match generation.ended {
        decode::Ended::Stop => "a stop token",
        decode::Ended::Length => "--max-new",
    };
    format!(
        "tau {tau} ({decoded} tokens committed in {n_rounds} rounds, {accepted} of {drafted} drafts accepted), {rate} tokens/s, ended by {ended}\n"
    )
}
