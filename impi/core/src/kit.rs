//! The conformance kit, without I/O: the rules of the specification as data, what a record of a conversation says about
//! them, and what clients say to a server under test.

mod analysis_log;
mod channel;
mod explain;
mod job;
mod observer;
pub mod record;
pub mod rewrite;
pub mod rules;

pub mod server_checks;
mod talk;
#[cfg(test)]
mod tests;

pub use analysis_log::{Finding, Note, Party};
pub use observer::Observer;
