//! What can be typed. Nothing is looked up here; [`crate::plan`] does that.

mod export;
mod machine;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::data_env::Environment;
use crate::train::TrainCommand;
pub(crate) use export::{ExportCommand, ExportGgufArgs};
pub(crate) use machine::{CostArgs, MachineArgs, SelftestArgs};

const EXAMPLES: &str = "\
Examples:
  draftbench                                     the quick preset: every family of methods on tiny-qwen3
  draftbench run --methods dflash --prompts 4    a shorter one
  draftbench run --methods dflash,dflash:max_draft=3 --sampling greedy
  draftbench run --preset ablation               the study: many arms of DCOCO, tables and plots at the end
  draftbench analyse coverage                    how often the right token is among a slot's first 16
  draftbench run --sampling greedy,t1000 --thinking both --concurrency 1,8
  draftbench plan --targets tiny-llama           what would run, and what could not
  draftbench run --matrix my.toml --out runs/a   a matrix of your own
  draftbench run --resume runs/a                 go on after Ctrl-C, a kill or a power cut
  draftbench generate --rounds \"What is 12 + 30?\"
  draftbench plan --suites dflash10 --data-dir D  the ten public suites of a paper, from a folder
  draftbench compare runs/a runs/b               what differs, paired by prompt
  draftbench gate --reference a.jsonl --candidate runs/b
  draftbench list                                every target, method and suite

Exit code: 0 fine, 1 a cell failed or a text differs from vanilla's, 2 bad input, 130 interrupted. `draftbench gate`:
0 pass, 1 fail, 2 incomparable or bad input, 3 inconclusive.";

/// Measures speculative decoding: how many tokens a drafting method gets accepted per round, how much faster that
/// makes a target model, and whether the text stays the same.
///
/// Without a subcommand it runs the quick preset with models that are inside the binary.
#[derive(Parser, Debug)]
#[command(name = "draftbench", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    /// What to do; `run` if absent
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

impl Cli {
    /// Tells commands where suites lie if `--data-dir` is not typed.
    pub(crate) fn set_cache(&mut self, environment: &Environment) {
        let dir = match &mut self.command {
            None => &mut self.run.select.data.dir,
            Some(Command::Run(run)) => &mut run.select.data.dir,
            Some(Command::Plan(plan)) => &mut plan.select.data.dir,
            Some(Command::Data(
                DataCommand::List(dir)
                | DataCommand::Check { dir, .. }
                | DataCommand::Pull { dir, .. },
            )) => dir,
            Some(_) => return,
        };
        dir.cache = environment.suites_dir();
    }
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Decode the matrix, prove the texts equal, print the table (the default)
    #[command(after_help = EXAMPLES)]
    Run(RunArgs),
    /// Print what `run` with the same flags would do, what is skipped and why, and an estimate of time and memory
    Plan(PlanArgs),
    /// Put the runs of one plan's shards together
    Merge(MergeArgs),
    /// Write tables, plots, files for other programs and one HTML page of runs
    Report(ReportArgs),
    /// Print a schema
    #[command(subcommand)]
    Schema(SchemaCommand),
    /// Stream one answer and show what speculation did for it
    Generate(GenerateArgs),
    /// List targets, methods and suites
    List,
    /// Find out whether this build and this machine are fit to measure with
    Selftest(SelftestArgs),
    /// Time steps of a target by their rows and sequences, beside what this machine can do at most
    Cost(CostArgs),
    /// Fetch, list and check public suites
    #[command(subcommand)]
    Data(DataCommand),
    /// Make checkpoint folders of GGUF files
    #[command(subcommand)]
    Target(TargetCommand),
    /// Write trained drafters as files of other programs
    #[command(subcommand)]
    Export(ExportCommand),
    /// What differs between runs: tau, throughput, speedup and text, paired by prompt
    Compare(CompareArgs),
    /// Judge a run against a saved one: 0 pass, 1 fail, 2 incomparable, 3 inconclusive
    Gate(GateArgs),
    /// Tables and plots of the study, from records
    #[command(subcommand)]
    Analyse(AnalyseCommand),
    /// Train the tiny targets and drafters that ship with the project
    #[command(subcommand)]
    Train(TrainCommand),
}

/// What to run. Every list takes commas, a repeated flag, or both.
#[derive(Args, Clone, Debug)]
pub(crate) struct SelectArgs {
    /// Target models [default: those of the preset, tiny-qwen3 in quick]
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub(crate) targets: Vec<String>,
    /// What is run unless flags say otherwise: a list that is typed takes the place of the preset's
    #[arg(long, value_name = "ID", default_value = "quick")]
    pub(crate) preset: String,
    /// A matrix.toml in place of a preset; docs/matrix.schema.json describes it
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub(crate) matrix: Option<PathBuf>,
    /// Decoding methods, with options as METHOD:KEY=VALUE:KEY=VALUE; `draftbench list` names them all. Vanilla is
    /// always measured too, since a speedup is relative to it
    #[arg(long, value_name = "METHOD", value_delimiter = ',')]
    pub(crate) methods: Vec<String>,
    /// Measure costs at an acceptance length that is given, not found: synthetic:T has T tokens committed a round by
    /// every drafting method that says nothing else, as its option acceptance=synthetic-T
    #[arg(long, value_name = "synthetic:T")]
    pub(crate) acceptance: Option<String>,
    /// Prompt suites, or sets of them: embedded, dflash10, dflash7, dspark9
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub(crate) suites: Vec<String>,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    /// How tokens are chosen: greedy, or t and the temperature in thousandths (t1000 is temperature 1), with -k20 for
    /// top-k and -p950 for top-p behind it (t600-k20-p950)
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub(crate) sampling: Vec<String>,
    /// Thinking switch of the chat template [default: the preset's, off in quick]
    #[arg(long, value_enum)]
    pub(crate) thinking: Option<ThinkingArg>,
    /// Sequences decoded at once, 1 to 64
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) concurrency: Vec<u32>,
    /// When requests come: closed (the next when a slot is free), or in open loop poisson- and requests a second in
    /// thousandths (poisson-2500), with --concurrency as the most at once
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub(crate) arrivals: Vec<String>,
    /// At most N prompts of each suite
    #[arg(long, value_name = "N")]
    pub(crate) prompts: Option<u32>,
    /// Answers to each prompt where tokens are sampled; greedy needs one
    #[arg(long, value_name = "N")]
    pub(crate) samples: Option<u32>,
    /// Most tokens of an answer
    #[arg(long, value_name = "N")]
    pub(crate) max_new: Option<u32>,
    /// Seed of every random stream [default: the preset's, 0 in quick]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Store the token ids of every answer too, not only their hash
    #[arg(long)]
    pub(crate) keep_tokens: bool,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

/// Where the prompts of public suites lie and which of them are asked.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DataArgs {
    #[command(flatten)]
    pub(crate) dir: DirArgs,
    /// How a suite that is too long is cut: first, dflash, deepspec or hash [default: the set's own rule, dflash for
    /// a public suite named by itself, first for the suites inside the binary]
    #[arg(long, value_name = "RULE")]
    pub(crate) subset: Option<String>,
    /// Seed of the rule hash [default: the preset's, 0 in quick]
    #[arg(long, value_name = "N")]
    pub(crate) subset_seed: Option<u64>,
}

/// The folder of public suites; where they lie is the machine's matter, so a stored plan takes another.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DirArgs {
    /// Folder with the public suites, converted or as published: `<suite>.jsonl`, .json or .parquet, or a folder
    /// `<suite>/` with upstream's files [default: draftbench/data in the user's cache, which `data pull` fills]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// The folder that is looked at if none is typed.
    #[arg(skip)]
    pub(crate) cache: Option<PathBuf>,
}

/// Flags that choose what is run; a stored plan has chosen already. `--data-dir` says only where the chosen lies.
const CHOOSING: [&str; 17] = [
    "targets",
    "preset",
    "matrix",
    "methods",
    "acceptance",
    "suites",
    "subset",
    "subset_seed",
    "sampling",
    "thinking",
    "concurrency",
    "arrivals",
    "prompts",
    "samples",
    "max_new",
    "seed",
    "keep_tokens",
];

#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Folder for records.jsonl and run.json; must not hold a run yet [default: runs/TIME-ID]
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub(crate) out: Option<PathBuf>,
    /// Go on with an interrupted run: sealed groups are kept. With --plan, a folder that is not there yet begins one
    #[arg(long, value_name = "DIR", conflicts_with_all = CHOOSING)]
    pub(crate) resume: Option<PathBuf>,
    /// Run the plan.json that `draftbench plan --out` wrote
    #[arg(long, value_name = "FILE", conflicts_with_all = CHOOSING)]
    pub(crate) plan: Option<PathBuf>,
    /// Only the i-th of n parts of the plan, from 1/n to n/n [default: from SLURM_ARRAY_TASK_ID or
    /// JOB_COMPLETION_INDEX, if set]
    #[arg(long, value_name = "I/N", requires = "plan")]
    pub(crate) shard: Option<String>,
    /// A target that cannot be loaded fails its groups and the rest goes on; exit code 1
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Check answers that have tests (humaneval, mbpp) by running their code with python3, in a sandbox whose strength
    /// the run names; without it they stay unchecked
    #[arg(long)]
    pub(crate) execute_code: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// File for the plan, which `run --plan` takes; must not exist yet
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Vanilla tokens a second that the estimate of time assumes [default: 8 GB/s of memory over the target's f32
    /// weights]
    #[arg(long, value_name = "N")]
    pub(crate) assume_rate: Option<u32>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct MergeArgs {
    /// Folder for the merged run; must not hold a run yet
    #[arg(value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// Folders of runs of one plan
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// Merge although groups of the plan are missing
    #[arg(long)]
    pub(crate) partial: bool,
    /// Runs that measured the same group are repeats: each is a process of its own, and its passes follow those of the
    /// run before it
    #[arg(long)]
    pub(crate) repeats: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// Folders of runs, complete or not, and of coverage; no two may hold one cell
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// Folder for report.html, tables.md, tables.tex, csv, parquet, plots and interop; an earlier report's are
    /// replaced, other files refused
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub(crate) out: PathBuf,
    /// Above the page [default: draftbench report]
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// Figures to stand beside ours, in the columns of reports/reference/published.csv [default: those figures]
    #[arg(long, value_name = "FILE")]
    pub(crate) published: Option<PathBuf>,
    /// Logs of training (log.csv) whose curves the page shows
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub(crate) training: Vec<PathBuf>,
    /// Costs of another machine, a TOML file: recorded rounds are replayed under them, as a projection
    #[arg(long, value_name = "FILE")]
    pub(crate) costs: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SchemaCommand {
    /// The JSON schema of matrix.toml
    Matrix,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DataCommand {
    /// Every public suite: rows, source, licence, and whether it is there
    List(DirArgs),
    /// Hold suites to their pinned hashes
    Check {
        /// Suites or sets [default: dflash10]
        #[arg(value_name = "SUITE")]
        suites: Vec<String>,
        #[command(flatten)]
        dir: DirArgs,
    },
    /// Fetch suites from the Hugging Face hub, convert and check them. HF_TOKEN, HF_HOME, HF_ENDPOINT and the usual
    /// proxy variables are read
    Pull {
        /// Suites or sets [default: dflash10]
        #[arg(value_name = "SUITE")]
        suites: Vec<String>,
        #[command(flatten)]
        dir: DirArgs,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum TargetCommand {
    /// Make the folder that --checkpoints and training take, named like the target and in DIR, of a GGUF file; weights in f32
    Pull {
        /// Target model, such as smollm2-135m
        #[arg(value_name = "ID")]
        target: String,
        /// The GGUF file; left out, an error says how to get it
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
        /// Folder of model folders
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
    },
}

#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// What the user says
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: String,
    /// Target model
    #[arg(long, value_name = "ID", default_value = "tiny-qwen3")]
    pub(crate) target: String,
    /// Decoding method, with options as METHOD:KEY=VALUE
    #[arg(long, value_name = "METHOD", default_value = "dflash")]
    pub(crate) method: String,
    /// Thinking switch of the chat template
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) thinking: SwitchArg,
    /// greedy, or t and the temperature in thousandths, with -k20 for top-k and -p950 for top-p behind it
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

#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// The run that the others are held against: its folder, or a file of `gate record`
    #[arg(value_name = "A")]
    pub(crate) reference: PathBuf,
    /// The other runs
    #[arg(value_name = "B", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// File for the comparison as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// File for the comparison as Markdown
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct GateArgs {
    #[command(subcommand)]
    pub(crate) command: Option<GateCommand>,
    #[command(flatten)]
    pub(crate) gate: GateRunArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum GateCommand {
    /// Write what a gate needs of a run to a file that is small enough to be committed
    Record(GateRecordArgs),
}

#[derive(Args, Debug)]
pub(crate) struct GateRunArgs {
    /// The saved run: its folder, or a file of `gate record`
    #[arg(long, value_name = "A")]
    pub(crate) reference: Option<PathBuf>,
    /// The folder of the run that is judged
    #[arg(long, value_name = "B")]
    pub(crate) candidate: Option<PathBuf>,
    /// A second run of the reference's program, or of the candidate's, on this machine; without one times decide
    /// nothing
    #[arg(long, value_name = "N")]
    pub(crate) null: Option<PathBuf>,
    /// What is let through; docs/gate.md has every key with its default
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// File for the report as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// File for the report as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// File that a line is appended to, and in which changes are looked for
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct GateRecordArgs {
    /// Folder of a complete run
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// The file to write; must not exist yet
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

#[derive(Subcommand, Debug)]
pub(crate) enum AnalyseCommand {
    /// How often the right token is a slot's first choice, and how often among its first 16
    Coverage(CoverageArgs),
    /// Tables, CSV files and plots from the records of runs
    Study(StudyArgs),
    /// Temperatures that make a drafter's confidences fit what was accepted
    Calibrate(CalibrateArgs),
}

#[derive(Args, Debug)]
pub(crate) struct CalibrateArgs {
    /// Folders of runs; best of prompts that nothing is reported on
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// Method as asked for in the runs, with calibration=off: temperatures are fitted to confidences as trained
    #[arg(long, value_name = "METHOD", default_value = "dspark:calibration=off")]
    pub(crate) method: String,
    /// How tokens were chosen in the rounds that count
    #[arg(long, value_name = "KEY", default_value = "greedy")]
    pub(crate) sampling: String,
    /// Target model
    #[arg(long, value_name = "ID", default_value = "tiny-qwen3")]
    pub(crate) target: String,
    /// The file to write; a drafter reads the one in its folder
    #[arg(long, value_name = "FILE", default_value = "calibration.json")]
    pub(crate) out: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct CoverageArgs {
    /// Target model
    #[arg(long, value_name = "ID", default_value = "tiny-qwen3")]
    pub(crate) target: String,
    /// Suffix of the folder of a DFlash drafter
    #[arg(long, value_name = "SUFFIX", default_value = "dflash")]
    pub(crate) checkpoint: String,
    /// Prompt suites
    #[arg(
        long,
        value_name = "ID",
        value_delimiter = ',',
        default_value = "mini-maths,mini-code,mini-chat"
    )]
    pub(crate) suites: Vec<String>,
    /// Only the first N prompts of each suite
    #[arg(long, value_name = "N")]
    pub(crate) prompts: Option<u32>,
    /// Most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) max_new: u32,
    /// Folder for coverage.jsonl and its tables; must not hold one yet [default: runs/TIME-ID-coverage]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

#[derive(Args, Debug)]
pub(crate) struct StudyArgs {
    /// Folders of runs and of coverage; a cell of a later one takes the place of an earlier one's if it has answers
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// Target model
    #[arg(long, value_name = "ID", default_value = "tiny-qwen3")]
    pub(crate) target: String,
    /// Only these tables and plots, by the names of their files
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Folder for study.md, CSV files and plots
    #[arg(long, value_name = "DIR", default_value = "study")]
    pub(crate) out: PathBuf,
    /// Costs of the target's steps that `draftbench cost --json` wrote; the cost model's table predicts by them too
    #[arg(long, value_name = "FILE")]
    pub(crate) cost: Option<PathBuf>,
    /// An arm, and what tests/peers/llama_accept.py printed of its drafter; for each arm once
    #[arg(long = "peer", value_name = "METHOD=FILE")]
    pub(crate) peers: Vec<String>,
    /// A document whose marked places are filled with the tables; made if it is not there
    #[arg(long, value_name = "FILE")]
    pub(crate) doc: Option<PathBuf>,
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
    fn without_a_subcommand_the_quick_preset_is_asked_for() {
        let args = run_args(&["draftbench"]);
        let args = args.select;
        assert_eq!((args.preset.as_str(), args.seed), ("quick", None));
        assert!(args.methods.is_empty() && args.suites.is_empty() && args.targets.is_empty());
    }

    #[test]
    fn lists_take_commas_and_repeated_flags() {
        let typed = ["draftbench", "--concurrency", "1,2", "--concurrency", "8"];
        assert_eq!(run_args(&typed).select.concurrency, [1, 2, 8]);
    }
}
