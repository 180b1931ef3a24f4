//! Commands that another executable carries out: `wireup` checks the line and becomes it.

pub mod top;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::inspect::agent_file;
use wireup_core::failure::CommandError;

/// Executes another program of wireup with these arguments, its name included; returns only if that fails.
pub(super) fn become_it(program: &'static str, args: &[OsString]) -> CommandError {
    let program = match agent_file::find(program) {
        Ok(program) => program,
        Err(error) => return CommandError::request(error),
    };
    let mut command = Command::new(&program);
    if let [name, rest @ ..] = args {
        command.arg0(name).args(rest);
    }
    let error = command.exec();
    CommandError::request(format!("cannot execute {}: {error}", program.display()))
}
