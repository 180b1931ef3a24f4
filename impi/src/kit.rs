//! The conformance kit with sockets: what records, and what plays clients, servers and processes.

use std::io;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process_group};

pub mod check_client;
pub mod check_server;
pub mod program;
pub mod proxy;
pub mod recorder;
pub mod tap;

/// Ends a child that leads a process group, with all in this group.
///
/// # Errors
/// When the kernel refuses.
fn end_group(child: &mut Child) -> io::Result<()> {
    kill_process_group(Pid::from_child(child), Signal::KILL)?;
    child.wait()?;
    Ok(())
}
