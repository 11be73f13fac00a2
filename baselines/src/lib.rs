//! The compared decoding methods, one file each.
