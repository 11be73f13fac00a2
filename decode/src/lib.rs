//! The vocabulary of speculative decoding, the one decode loop and the acceptance rule.
