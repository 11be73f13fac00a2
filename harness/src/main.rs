//! The `draftbench` command.

mod arms;
mod arrivals;
mod assets;
mod calibrate;
mod cli;
mod compare;
mod conclude;
mod content;
mod cost;
mod coverage;
mod data;
mod data_env;
mod data_hub;
mod data_pull;
mod data_talk;
mod engine;
#[cfg(test)]
mod engine_tests;
mod equality;
mod execute;
mod export;
mod folder;
mod gate;
mod generate;
mod group;
mod interrupt;
mod lease;
mod list;
mod machine;
mod matrix;
mod measure;
mod merge;
mod output;
mod plan;
mod plan_file;
mod preset;
mod progress;
mod provenance;
mod report;
mod run;
mod run_info;
mod saved;
mod schedule;
mod seal;
mod selftest;
mod shard;
mod show;
mod stage;
mod start;
mod study;
mod synthetic;
mod target_pull;
mod train;
mod verdicts;
mod warm_up;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{AnalyseCommand, Cli, Command, SchemaCommand};
use crate::data_env::Environment;
use crate::output::{Ending, Verdict};
use crate::provenance::Caller;

fn main() -> ExitCode {
    let caller = Caller::new(std::env::args_os(), std::env::vars_os());
    let mut cli = Cli::parse();
    #[cfg(target_os = "linux")]
    if let Some(Command::Train(command)) = &cli.command {
        train::settle(command, std::env::args_os(), |name| {
            std::env::var_os(name).is_some()
        });
    }
    let environment = Environment::read();
    cli.set_cache(&environment);
    match act(&cli, &caller, &environment) {
        Ok(Verdict::Fine) => ExitCode::SUCCESS,
        Ok(Verdict::Troubled) => ExitCode::from(1),
        Ok(Verdict::Gate(verdict)) => ExitCode::from(verdict.exit_code()),
        Ok(Verdict::Interrupted) => ExitCode::from(interrupt::EXIT_CODE),
        Err(err) if output::is_closed_pipe(&err) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("error: {}", chain(&err));
            ExitCode::from(2)
        }
    }
}

/// An error and its causes, outermost first; a cause that its message already spells out is not said twice.
pub(crate) fn chain(err: &anyhow::Error) -> String {
    let mut text = message(err);
    for cause in err.chain().skip(1).map(message) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// An error's own words, without the backtrace that candle appends to them where RUST_BACKTRACE is set.
pub(crate) fn message(err: impl std::fmt::Display) -> String {
    let text = err.to_string();
    let end = text.find("\n   0: ").unwrap_or(text.len());
    text[..end].to_owned()
}

fn act(cli: &Cli, caller: &Caller, environment: &Environment) -> Ending {
    match &cli.command {
        None => run::run(&cli.run, caller),
        Some(Command::Run(args)) => run::run(args, caller),
        Some(Command::Plan(args)) => show::show(args),
        Some(Command::Report(args)) => report::report(args),
        Some(Command::Merge(args)) => merge::merge(args, caller),
        Some(Command::Schema(SchemaCommand::Matrix)) => {
            output::say(&matrix::schema())?;
            Ok(Verdict::Fine)
        }
        Some(Command::Generate(args)) => generate::generate(args),
        Some(Command::Compare(args)) => compare::compare(args),
        Some(Command::Gate(args)) => gate::act(args, environment),
        Some(Command::Analyse(AnalyseCommand::Coverage(args))) => coverage::coverage(args),
        Some(Command::Analyse(AnalyseCommand::Study(args))) => study::study(args),
        Some(Command::Analyse(AnalyseCommand::Calibrate(args))) => calibrate::calibrate(args),
        Some(Command::List) => list::list(),
        Some(Command::Data(command)) => data_pull::act(command, environment),
        Some(Command::Target(command)) => target_pull::act(command),
        Some(Command::Export(command)) => export::act(command),
        Some(Command::Selftest(args)) => selftest::selftest(args),
        Some(Command::Cost(args)) => cost::cost(args),
        Some(Command::Train(command)) => {
            train::run(command)?;
            Ok(Verdict::Fine)
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    #[test]
    fn a_cause_is_said_once() {
        let cause = std::io::Error::other("disk on fire");
        let inner = Err::<(), _>(cause).context("cannot read a: disk on fire");
        let err = inner.context("target t").unwrap_err();
        assert_eq!(super::chain(&err), "target t: cannot read a: disk on fire");
        assert_eq!(super::chain(&anyhow!("alone")), "alone");
        let traced = anyhow!("row 0 is NaN\n   0: candle_core::error::Error::bt\n   1: main")
            .context("tensor");
        assert_eq!(super::chain(&traced), "tensor: row 0 is NaN");
    }
}
