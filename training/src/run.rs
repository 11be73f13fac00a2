//! The loop every training run shares: batches, optimiser, log, checkpoints, resuming.

use crate::checkpoint::{self, RunState};
use crate::data::Cursor;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::memory::peak_mib;
use crate::optim::{AdamW, Gradients, OptimizerConfig};
use crate::params::Params;
use crate::progress::{Progress, StepReport};
use crate::recipe::{ReportConfig, StopConfig};
use datasets::Domain;
use std::path::Path;
use std::time::Instant;

/// What differs between training a target and training a drafter.
pub(crate) trait Job {
    /// The trained tensors.
    fn params(&self) -> &Params;
    /// Runs the next batch and adds its gradients.
    /// `progress` is the part of the run that is over, 0 to 1.
    fn batch(&mut self, progress: f64, gradients: &mut Gradients) -> Result<Batch>;
    /// Where the next batch starts.
    fn cursor(&self) -> Cursor;
    /// Goes on from a stored place.
    fn seek(&mut self, cursor: Cursor);
    /// Loss of each domain on texts that are never trained on.
    fn held_out(&self) -> Result<Vec<(Domain, f64)>>;
    /// Writes what a user of the trained model needs, and tells what it is like.
    fn export(&self, progress: &mut dyn Progress) -> Result<()>;
}

/// One batch.
pub(crate) struct Batch {
    /// Mean loss, in nats a weighted token.
    pub(crate) loss: f64,
    /// Tokens that went through the network.
    pub(crate) tokens: usize,
    /// Predictions that carried loss.
    pub(crate) predicted: usize,
}

/// The parts of a recipe that the loop reads.
pub(crate) struct Plan<'a> {
    pub(crate) fingerprint: String,
    pub(crate) work: &'a Path,
    pub(crate) optimizer: &'a OptimizerConfig,
    pub(crate) stop: &'a StopConfig,
    pub(crate) report: &'a ReportConfig,
}

/// Trains to the plan's end, from its checkpoint if there is one.
pub(crate) fn run(plan: &Plan<'_>, job: &mut dyn Job, progress: &mut dyn Progress) -> Result<()> {
    let path = plan.work.join("checkpoint.safetensors");
    let (mut optimizer, mut state) = match checkpoint::load(&path, job.params(), &plan.fingerprint)?
    {
        Some(found) => found,
        None => {
            let fingerprint = plan.fingerprint.clone();
            (
                AdamW::default(),
                RunState {
                    fingerprint,
                    ..RunState::default()
                },
            )
        }
    };
    job.seek(state.cursor);
    if state.step > 0 {
        progress.note(&format!("goes on after step {}", state.step));
    }
    if plan.stop.progress(state.step, state.seconds) >= 1.0 {
        progress.note("the run is over; what it made is written again");
        return job.export(progress);
    }
    let mut log = Log::open(&plan.work.join("log.csv"), state.step)?;
    let mut last_checkpoint = Instant::now();
    let mut rates = Vec::new();
    while plan.stop.progress(state.step, state.seconds) < 1.0 {
        let report = step(plan, job, &mut optimizer, &mut state)?;
        let due = state
            .step
            .is_multiple_of(plan.report.held_out_every_steps.max(1));
        let held_out = match due || report.progress >= 1.0 {
            true => job.held_out()?,
            false => Vec::new(),
        };
        log.step(&report, &held_out)?;
        progress.step(&report);
        rates.push(report.predictions_per_sec);
        let waited = last_checkpoint.elapsed().as_secs_f64();
        let excess = excess(plan, state.step);
        let due = waited >= 60.0 * plan.report.checkpoint_minutes;
        if due || report.progress >= 1.0 || excess.is_some() {
            checkpoint::save(&path, job.params(), &optimizer, &state)?;
            progress.note(&format!("checkpoint at step {}", state.step));
            job.export(progress)?;
            last_checkpoint = Instant::now();
        }
        if let Some(excess) = excess {
            return Err(excess);
        }
    }
    rates.sort_by(f64::total_cmp);
    if let Some(median) = rates.get(rates.len() / 2) {
        let n = rates.len();
        progress.note(&format!(
            "{median:.0} predictions a second with loss, median of {n} steps"
        ));
    }
    if let Some(held) = peak_mib() {
        progress.note(&format!("peak memory {held} MiB"));
    }
    Ok(())
}

/// The error of a run that holds more than its recipe states.
fn excess(plan: &Plan<'_>, step: u64) -> Option<Error> {
    let stated = plan.report.peak_mib?;
    let held = peak_mib().filter(|held| *held > stated)?;
    Some(Error::Memory { step, held, stated })
}

/// One optimiser step.
fn step(
    plan: &Plan<'_>,
    job: &mut dyn Job,
    optimizer: &mut AdamW,
    state: &mut RunState,
) -> Result<StepReport> {
    let started = Instant::now();
    let progress = plan.stop.progress(state.step, state.seconds);
    let lr = plan.optimizer.rate(state.step, progress);
    let mut gradients = Gradients::default();
    let batch = job.batch(progress, &mut gradients)?;
    if !batch.loss.is_finite() {
        return Err(Error::Diverged {
            step: state.step + 1,
            loss: batch.loss,
        });
    }
    optimizer.update(job.params(), &gradients, plan.optimizer, lr)?;
    let seconds = started.elapsed().as_secs_f64();
    state.step += 1;
    state.tokens += batch.tokens as u64;
    state.seconds += seconds;
    state.cursor = job.cursor();
    Ok(StepReport {
        step: state.step,
        tokens: state.tokens,
        seconds: state.seconds,
        tokens_per_sec: batch.tokens as f64 / seconds,
        predictions_per_sec: batch.predicted as f64 / seconds,
        lr,
        loss: batch.loss,
        progress: plan.stop.progress(state.step, state.seconds),
    })
}
