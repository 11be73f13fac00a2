//! Losses of a training run, as `draftbench train` logs them.

use std::path::{Path, PathBuf};

/// Losses by step.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingLog {
    /// What was trained.
    pub name: String,
    /// Rising.
    pub steps: Vec<u64>,
    /// Loss on the training text at each step, in nats a token.
    pub loss: Vec<f64>,
    /// Mean of the held-out losses at each step; empty if none was logged.
    pub held_out: Vec<f64>,
}

/// A log that cannot be read.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "{path:?} line {line}: {why}; a log has a header with step and loss, as draftbench train writes it"
)]
pub struct TrainingLogError {
    /// The file.
    pub path: PathBuf,
    /// 1-based line.
    pub line: usize,
    /// What is wrong.
    pub why: String,
}

/// Reads a `log.csv`: the columns `step`, `loss` and those that begin with `held_out_`; others are passed over. `path`
/// names the log in errors, and its file or folder what was trained.
///
/// # Errors
/// [`TrainingLogError`] at the first line that is short of a number.
pub fn parse_training_log(text: &str, path: &Path) -> Result<TrainingLog, TrainingLogError> {
    let wrong = |line: usize, why: String| TrainingLogError {
        path: path.to_owned(),
        line,
        why,
    };
    let mut lines = text.lines().enumerate();
    let header: Vec<&str> = lines.next().map_or("", |l| l.1).split(',').collect();
    let column = |name: &str| {
        let found = header.iter().position(|column| *column == name);
        found.ok_or_else(|| wrong(1, format!("column {name} is missing")))
    };
    let (step, loss) = (column("step")?, column("loss")?);
    let held: Vec<usize> = (0..header.len())
        .filter(|i| header[*i].starts_with("held_out_"))
        .collect();
    let mut log = TrainingLog {
        name: name_of(path),
        steps: Vec::new(),
        loss: Vec::new(),
        held_out: Vec::new(),
    };
    for (idx, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |at: usize| {
            let field = fields.get(at).copied().unwrap_or("");
            let value = field.parse::<f64>().ok().filter(|v| v.is_finite());
            value.ok_or_else(|| wrong(idx + 1, format!("{} is {field:?}", header[at])))
        };
        log.steps.push(number(step)? as u64);
        log.loss.push(number(loss)?);
        let held: Vec<f64> = held
            .iter()
            .map(|at| number(*at))
            .collect::<Result<_, _>>()?;
        if !held.is_empty() {
            log.held_out
                .push(held.iter().sum::<f64>() / held.len() as f64);
        }
    }
    Ok(log)
}

/// The file's name, or its folder's if it is called `log.csv`.
fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match (stem.as_ref(), path.parent().and_then(Path::file_name)) {
        ("log", Some(folder)) => folder.to_string_lossy().into_owned(),
        _ => stem.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_its_steps_losses_and_the_mean_of_held_out_ones() {
        let text = "step,lr,loss,held_out_a,held_out_b\n50,0.1,2.5,3.0,5.0\n100,0.1,2.0,2.0,4.0\n";
        let log = parse_training_log(text, Path::new("runs/tiny/log.csv")).unwrap();
        assert_eq!(
            (log.name.as_str(), log.steps.as_slice()),
            ("tiny", &[50, 100][..])
        );
        assert_eq!((log.loss, log.held_out), (vec![2.5, 2.0], vec![4.0, 3.0]));
        let plain = parse_training_log("step,loss\n1,2\n", Path::new("a.csv")).unwrap();
        assert_eq!((plain.name.as_str(), plain.held_out.len()), ("a", 0));
    }

    #[test]
    fn a_log_without_its_columns_or_with_a_torn_line_is_named_by_line() {
        let why = |text: &str| {
            let err = parse_training_log(text, Path::new("a.csv")).unwrap_err();
            err.to_string()
        };
        assert!(why("step,lr\n").contains("line 1: column loss is missing"));
        assert!(why("step,loss\n1,2\n3").contains("line 3: loss is \"\""));
        assert!(why("step,loss\n1,NaN\n").contains("line 2: loss is \"NaN\""));
    }
}
