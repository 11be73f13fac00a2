//! Losses, anchor sampling and recipes that train the embedded targets and drafters.
