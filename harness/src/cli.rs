//! What can be typed. Nothing is looked up here; [`crate::plan`] does that.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::train::TrainCommand;

const EXAMPLES: &str = "\
Examples:
  draftbench                                     the quick matrix: tiny-qwen3 x vanilla, draft_model, dflash
  draftbench run --methods dflash --prompts 6    a shorter one
  draftbench run --sampling greedy,t1000 --thinking both --concurrency 1,8
  draftbench plan --targets tiny-llama           what would run, and what could not
  draftbench generate --rounds \"What is 12 + 30?\"
  draftbench list                                every target, method and suite

Exit code: 0 fine, 1 a cell failed or a text differs from vanilla's, 2 bad input.";

/// Measures speculative decoding: how many tokens a drafting method gets accepted per round, how much faster that
/// makes a target model, and whether the text stays the same.
///
/// Without a subcommand it runs the quick matrix with models that are inside the binary.
#[derive(Parser, Debug)]
#[command(name = "draftbench", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    /// What to do; `run` if absent
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Decode the matrix, prove the texts equal, print the table (the default)
    #[command(after_help = EXAMPLES)]
    Run(RunArgs),
    /// Print what `run` with the same flags would do, and do nothing
    Plan(RunArgs),
    /// Stream one answer and show what speculation did for it
    Generate(GenerateArgs),
    /// List targets, methods and suites
    List,
    /// Train the tiny targets and drafters that ship with the project
    #[command(subcommand)]
    Train(TrainCommand),
}

/// Every list takes commas, a repeated flag, or both.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// Target models
    #[arg(
        long,
        value_name = "ID",
        value_delimiter = ',',
        default_value = "tiny-qwen3"
    )]
    pub(crate) targets: Vec<String>,
    /// Decoding methods; vanilla is always measured too, since a speedup is relative to it
    #[arg(
        long,
        value_name = "ID",
        value_delimiter = ',',
        default_value = "vanilla,draft_model,dflash"
    )]
    pub(crate) methods: Vec<String>,
    /// Prompt suites
    #[arg(
        long,
        value_name = "ID",
        value_delimiter = ',',
        default_value = "mini-maths,mini-code,mini-chat"
    )]
    pub(crate) suites: Vec<String>,
    /// How tokens are chosen: greedy, or t and the temperature in thousandths (t1000 is temperature 1)
    #[arg(
        long,
        value_name = "KEY",
        value_delimiter = ',',
        default_value = "greedy"
    )]
    pub(crate) sampling: Vec<String>,
    /// Thinking switch of the chat template
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) thinking: ThinkingArg,
    /// Sequences decoded at once, 1 to 64
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub(crate) concurrency: Vec<u32>,
    /// Only the first N prompts of each suite
    #[arg(long, value_name = "N")]
    pub(crate) prompts: Option<u32>,
    /// Answers to each prompt where tokens are sampled; greedy needs one
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) samples: u32,
    /// Most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) max_new: u32,
    /// Seed of every random stream
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Folder for records.jsonl and run.json; must not hold a run yet [default: runs/TIME-ID]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Store the token ids of every answer too, not only their hash
    #[arg(long)]
    pub(crate) keep_tokens: bool,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

/// Flags that `run`, `plan` and `generate` share.
#[derive(Args, Clone, Debug)]
pub(crate) struct MachineArgs {
    /// Folder with models in Hugging Face layout, looked at before the models inside the binary: `<target>/`, and
    /// for drafters the folders that `draftbench list` names
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoints: Option<PathBuf>,
    /// Threads that compute [default: one a core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// What the user says
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: String,
    /// Target model
    #[arg(long, value_name = "ID", default_value = "tiny-qwen3")]
    pub(crate) target: String,
    /// Decoding method
    #[arg(long, value_name = "ID", default_value = "dflash")]
    pub(crate) method: String,
    /// Thinking switch of the chat template
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) thinking: SwitchArg,
    /// greedy, or t and the temperature in thousandths
    #[arg(long, value_name = "KEY", default_value = "greedy")]
    pub(crate) sampling: String,
    /// Most tokens of the answer
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) max_new: u32,
    /// Seed of the random stream
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// One line a round: drafts, accepted drafts, text
    #[arg(long)]
    pub(crate) rounds: bool,
    /// Whether accepted draft tokens are green
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) color: ColorArg,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ThinkingArg {
    Off,
    On,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SwitchArg {
    Off,
    On,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorArg {
    /// On a terminal
    Auto,
    Always,
    Never,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn run_args(typed: &[&str]) -> RunArgs {
        Cli::try_parse_from(typed).unwrap().run
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_subcommand_the_quick_matrix_is_asked_for() {
        let args = run_args(&["draftbench"]);
        assert_eq!(args.targets, ["tiny-qwen3"]);
        assert_eq!(args.methods, ["vanilla", "draft_model", "dflash"]);
        assert_eq!(args.suites, ["mini-maths", "mini-code", "mini-chat"]);
        assert_eq!(
            (args.concurrency, args.sampling),
            (vec![1], vec!["greedy".to_owned()])
        );
    }

    #[test]
    fn lists_take_commas_and_repeated_flags() {
        let typed = ["draftbench", "--concurrency", "1,2", "--concurrency", "8"];
        assert_eq!(run_args(&typed).concurrency, [1, 2, 8]);
    }
}
