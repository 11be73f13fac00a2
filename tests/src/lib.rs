//! Integration tests of the whole workspace.
