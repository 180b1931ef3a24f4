//! `wireup launch`: runs a job that an agent describes. Started by agents, not by people.

use std::path::Path;

use super::run::filter_of_environment;
use crate::control::run::{EarlyResources, run};
use crate::report::status_stream::refused;
use wireup_core::failure::CommandError;
use wireup_core::job::spec::{JobSpec, StatusSpec, StatusTarget};
use wireup_core::link::scheduled_launcher::{COMMAND, DescriptionError, JOB, JOB_MAX, read};
use wireup_sys::procfs;

/// Runs the job and returns its exit code.
///
/// # Errors
/// [`CommandError`], also when no agent has described a job.
pub(super) fn execute() -> Result<u8, CommandError> {
    let described = description("self").ok_or_else(|| {
        let text =
            format!("`wireup {COMMAND}` is started by an agent, with a job as descriptor {JOB}");
        CommandError::request(text)
    })?;
    let mut spec = described.map_err(|error| {
        let failure = CommandError::request(error);
        let status = StatusSpec {
            json: Some(StatusTarget::Stdout),
            ..StatusSpec::default()
        };
        refused(&status, &failure);
        failure
    })?;
    spec.log = filter_of_environment()?;
    run(spec, EarlyResources::new(false, None), || {})
}

/// The job that was described to a launcher, if one was and it can be looked at.
pub(super) fn job_of(pid: i32) -> Option<JobSpec> {
    let words = procfs::command_line(pid);
    let described = words.get(1).is_some_and(|word| word == COMMAND);
    description(&pid.to_string()).filter(|_| described)?.ok()
}

fn description(process: &str) -> Option<Result<JobSpec, DescriptionError>> {
    let descriptor = format!("/proc/{process}/fd/{JOB}");
    let file = procfs::file_in_memory(Path::new(&descriptor), JOB_MAX)?;
    Some(read(&file))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::process::{Command, Stdio};

    use rustix::fs::{MemfdFlags, memfd_create};
    use wireup_core::job::spec::AppRequest;
    use wireup_core::link::scheduled_launcher::describe;

    use super::*;

    #[test]
    fn job_is_read_from_outside_of_launcher_processes_only() {
        let mut spec = JobSpec::from_apps(vec![AppRequest {
            argv: vec!["a".into()],
            ..AppRequest::default()
        }]);
        spec.ending.grace = std::time::Duration::from_secs(30);
        let file = memfd_create("job", MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(file);
        file.write_all(&describe(&spec)).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        for (command, expected) in [(COMMAND, Some(spec)), ("run", None)] {
            // A program with these words, and with the file as the descriptor.
            let script = format!("exec tail {command} -F {JOB}<$0");
            let mut child = Command::new("sh")
                .args(["-c", &script, &path])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stderr = child.stderr.take().unwrap();
            std::io::Read::read_exact(&mut stderr, &mut [0]).unwrap();
            assert_eq!(job_of(child.id() as i32), expected, "{command}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
