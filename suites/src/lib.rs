//! Suite definitions and prompt rendering.
