//! Suite definitions and prompt rendering.

mod error;
mod render;
mod suite;
mod template;

pub use error::{Error, Result};
pub use render::{Rendered, Renderer, Thinking};
pub use suite::{Prompt, Suite, ids, load};
