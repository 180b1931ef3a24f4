//! The launches that schedulers have started, and what they are told of them. No I/O.
//!
//! - [`request`]: what a scheduler asks for
//! - [`command`]: the command line of its launcher
//! - [`caller`]: who asks, and what the caller may do
//! - [`launch`], [`launches`]: one launch, and all that are known here
//! - [`lines`], [`progress`], [`output`]: what the launcher reports, and what becomes of it
//! - [`exchange`]: keys that the nodes of a launch exchange

pub mod caller;
pub mod command;
pub mod exchange;
pub mod launch;
pub mod launches;
pub mod lines;
pub mod output;
pub mod progress;
pub mod request;
