//! Launches that go on without the terminal, or the session, from which they were started.
//!
//! ```text
//! wireup run --detach ──▶ keeper ──pipes──▶ launcher (an ordinary `wireup run`)
//!        (ends)             │ socket
//!                           ├──▶ wireup attach   output, input, signals, exit status
//!                           └──▶ wireup wait     exit status
//! ```
//!
//! The keeper leads a session without a terminal. It keeps the last output of its launcher, in memory, and
//! the exit status, and decides nothing about the job. When the keeper ends before its launcher, the kernel
//! sends the launcher SIGTERM, which ends the job in order. When the launcher is killed, the keeper still has
//! its last output and its exit status.
//!
//! The keeper listens at an abstract Unix address, and is found by its environment in `/proc`: there are no
//! files, so nothing can be left behind.

mod address;
pub mod attach_client;
mod attach_messages;
pub mod attach_server;
pub(crate) mod detached_start;
mod keeper_connection;
mod output_buffer;

/// The word with which the keeper is started, by `wireup run` alone.
pub const COMMAND: &str = "keep";

/// The variable with the job's name in the environment of a keeper and of its launcher.
pub const NAME: &str = "WIREUP_KEPT_JOB";

/// The job's name, if a keeper has started this process, or this is one.
pub fn job_name_from_env() -> Option<String> {
    let name = std::env::var(NAME).ok()?;
    crate::jobs::name::is_job(&name).then_some(name)
}
