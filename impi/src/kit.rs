//! The conformance kit with sockets: the recorder, and the programs that play clients, servers and processes.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

pub mod check_program;
pub mod client_under_test;
pub mod recorder;
pub mod recording_proxy;
pub mod server_under_test;
pub mod tap;

/// Waits for a child, and returns `None` if it has not ended by a time.
///
/// # Errors
/// The error of the wait for the process.
fn wait_until(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= deadline {
            return Ok(status);
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Ends a child that leads a process group, with all in this group.
///
/// # Errors
/// The error of the signal or of the wait for the process.
fn end_group(child: &mut Child) -> io::Result<()> {
    kill_process_group(Pid::from_child(child), Signal::KILL)?;
    child.wait()?;
    Ok(())
}
