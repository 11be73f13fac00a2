//! Suite definitions and prompt rendering.

mod answer;
mod code;
mod error;
mod public;
mod render;
mod sets;
mod subset;
mod suite;
mod template;

pub use answer::is_right;
pub use code::Program;
pub use datasets::public::Reference;
pub use error::{Error, Result};
pub use public::{Content, Public, StandIn, public, public_ids};
pub use render::{Rendered, Renderer, Thinking};
pub use sets::{SETS, Set, Turns, Wanted, known_names, wanted};
pub use subset::Subset;
pub use suite::{Prompt, Suite, ids, load};
