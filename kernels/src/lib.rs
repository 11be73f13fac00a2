//! Tensor operations: a readable reference and a fast path for each.
