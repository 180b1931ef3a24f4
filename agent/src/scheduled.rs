//! The launches that schedulers have started, and the reports about them. No I/O.
//!
//! - [`launch_request`]: the request of a scheduler
//! - [`launcher_job`]: the job that its launcher gets
//! - [`caller`]: identity and permissions of a caller
//! - [`scheduled_launch`], [`launch_table`]: one launch, and all that are known here
//! - [`launch_progress`], [`unread_output`]: its state and output, from the records of its launcher
//! - [`exchange`]: keys that the nodes of a launch exchange

pub mod caller;
pub mod exchange;
pub mod launch_progress;
pub mod launch_request;
pub mod launch_table;
pub mod launcher_job;
pub mod scheduled_launch;
pub mod unread_output;
