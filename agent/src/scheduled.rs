//! The launches that schedulers have started, and the reports about them. No I/O.
//!
//! - [`request`]: what a scheduler asks for
//! - [`job`]: the job that its launcher gets
//! - [`caller`]: identity and permissions of a caller
//! - [`launch`], [`launches`]: one launch, and all that are known here
//! - [`progress`], [`output`]: its state and output, from the records of its launcher
//! - [`exchange`]: keys that the nodes of a launch exchange

pub mod caller;
pub mod exchange;
pub mod job;
pub mod launch;
pub mod launches;
pub mod output;
pub mod progress;
pub mod request;
