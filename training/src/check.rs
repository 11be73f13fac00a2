//! What a recipe's values must fulfil.

use crate::error::{Error, Result};
use std::path::Path;

/// A dotted key, whether its value is right, and how a right value looks.
pub(crate) type Check = (&'static str, bool, &'static str);

pub(crate) const ABOVE_0: &str = "must be above 0";
pub(crate) const NOT_BELOW_0: &str = "must be 0 or above";

/// Above 0 and finite.
pub(crate) fn is_positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// 0 or above, and finite.
pub(crate) fn is_not_negative(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// The first check that fails, as an error that names `file` and key.
pub(crate) fn first_failure(file: &Path, checks: impl IntoIterator<Item = Check>) -> Result<()> {
    match checks.into_iter().find(|(_, is_right, _)| !is_right) {
        None => Ok(()),
        Some((key, _, problem)) => Err(Error::RecipeValue {
            file: file.to_owned(),
            key,
            problem: problem.to_owned(),
        }),
    }
}
