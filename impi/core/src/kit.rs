//! The conformance kit, without I/O: the rules of the specification as data, the analysis of a recorded conversation,
//! and the messages of clients to a server under test.

mod analysis_log;
pub mod conformance_rules;
pub mod conversation_record;
mod host_channel;
mod job_analysis;
mod observer;
pub mod rewrite;
mod value_text;

pub mod server_checks;
mod server_conversation;
#[cfg(test)]
mod tests;

pub use analysis_log::{Finding, Note, Party};
pub use observer::Observer;
