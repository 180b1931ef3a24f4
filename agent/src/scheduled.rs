//! The launches that schedulers have started, and the reports about them. No I/O.
//!
//! - [`request`]: what a scheduler asks for
//! - [`command`]: the command line of its launcher
//! - [`caller`]: identity and permissions of a caller
//! - [`launch`], [`launches`]: one launch, and all that are known here
//! - [`lines`], [`progress`], [`output`]: the launcher's reports, and their handling
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
