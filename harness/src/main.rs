//! The `draftbench` command.

mod assets;
mod cli;
mod engine;
#[cfg(test)]
mod engine_tests;
mod equality;
mod folder;
mod generate;
mod list;
mod machine;
mod measure;
mod output;
mod plan;
mod run;
mod stage;
mod train;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command};
use crate::output::{Ending, Verdict};

fn main() -> ExitCode {
    match act(&Cli::parse()) {
        Ok(Verdict::Fine) => ExitCode::SUCCESS,
        Ok(Verdict::Troubled) => ExitCode::from(1),
        Err(err) if output::is_closed_pipe(&err) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::from(2)
        }
    }
}

fn act(cli: &Cli) -> Ending {
    match &cli.command {
        None => run::run(&cli.run),
        Some(Command::Run(args)) => run::run(args),
        Some(Command::Plan(args)) => run::show_plan(args),
        Some(Command::Generate(args)) => generate::generate(args),
        Some(Command::List) => list::list(),
        Some(Command::Train(command)) => {
            train::run(command)?;
            Ok(Verdict::Fine)
        }
    }
}
