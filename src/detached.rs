//! Launches that continue without the terminal, or the session, from which they were started.
//!
//! ```text
//! wireup run --detach ──▶ attach server ──pipes──▶ launcher (an ordinary `wireup run`)
//!        (ends)             │ socket
//!                           ├──▶ wireup attach   output, input, signals, exit status
//!                           └──▶ wireup wait     exit status
//! ```
//!
//! The attach server leads a session without a terminal. It stores the last output of its launcher in memory, and
//! the exit status, and decides nothing about the job. When it ends before its launcher, the kernel
//! sends the launcher SIGTERM, which ends the job in order. When the launcher is killed, the attach server still has
//! the last output and the exit status.
//!
//! The attach server listens at an abstract Unix address, and is found by its environment in `/proc`: it has no
//! files, so none can be left behind.

mod address;
pub mod attach_client;
mod attach_messages;
pub mod attach_server;
pub(crate) mod detached_start;
mod keeper_connection;
mod output_buffer;

/// Command with which `wireup run` starts the attach server.
pub const COMMAND: &str = "keep";

/// Variable with the job's name in the environment of an attach server and of its launcher.
pub const NAME: &str = "WIREUP_KEPT_JOB";

/// Returns the job's name if this process is an attach server or was started by one.
pub fn job_name_from_env() -> Option<String> {
    let name = std::env::var(NAME).ok()?;
    crate::jobs::name::is_job(&name).then_some(name)
}
