//! What a training run tells its watcher.

/// One optimiser step.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// Steps done, this one included.
    pub step: u64,
    /// Tokens trained on so far.
    pub tokens: u64,
    /// Seconds of training so far, earlier parts of a resumed run included.
    pub seconds: f64,
    /// Tokens of this step over its seconds.
    pub tokens_per_sec: f64,
    /// Predictions of this step that carried loss, over its seconds: a block drafter's draft positions.
    pub predictions_per_sec: f64,
    /// Learning rate of this step.
    pub lr: f64,
    /// Mean loss of this step, in nats a weighted token.
    pub loss: f64,
    /// Part of the run that is over, 0 to 1.
    pub progress: f64,
}

/// Watches a run; the library itself prints nothing.
pub trait Progress {
    /// A step is done.
    fn step(&mut self, report: &StepReport);
    /// Something a user wants to read once: sizes, a left-out source, a checkpoint, a sample.
    fn note(&mut self, text: &str);
}

/// Watches nothing.
pub struct Silent;

impl Progress for Silent {
    fn step(&mut self, _report: &StepReport) {}
    fn note(&mut self, _text: &str) {}
}
