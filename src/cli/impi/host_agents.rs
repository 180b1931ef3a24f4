//! IMPI hosts of a launch on several nodes: `wireup impi host` on each node, as ranks of a separate launch, which is a
//! child of the launcher. The launcher relays messages between them and the client's agent.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{
    self, BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, Seek as _, Write as _,
};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use thiserror::Error;

use crate::detached;
use crate::inspect::agent_file::find;
use crate::plan::launch_directives;
use wireup_core::executables::IMPI;
use wireup_core::failure::{AnyError, CommandError, RequestError};
use wireup_core::job::builds::BuildMismatchPolicy;
use wireup_core::job::ids::NodeId;
use wireup_core::job::outcome::RankEnd;
use wireup_core::job::spec::{
    AppRequest, EnvInheritance, InterfaceChoice, JobSpec, StagingSpec, StdinTarget,
};
use wireup_core::link::scheduled_launcher::{COMMAND, JOB, describe};
use wireup_sys::descriptors::FIRST_FREE;
use wireup_sys::spawn::{Child, ChildCommand, ProcessSpawner, wait};
use wireup_sys::zombie;

/// Variables with the secrets for joining the server; they are empty in ranks.
pub(super) const SECRETS: [&str; 2] = ["IMPI_AUTH_KEY", "WIREUP_IMPI_TOKEN"];

/// Variables that the hosts do not get: they would change the kind of their launch, or are secret.
const NOT_PASSED: [&str; 5] = [
    detached::NAME,
    launch_directives::URI,
    launch_directives::PAUSE,
    SECRETS[0],
    SECRETS[1],
];

/// Error: the hosts of a launch did not join.
#[derive(Debug, Error)]
#[error("the IMPI hosts of the launch: {0}")]
struct HostsError(String);

impl RequestError for HostsError {}

/// Addresses at which a host listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HostPlace {
    /// Address for other hosts.
    pub(super) listens: SocketAddr,
    /// Address for its processes.
    pub(super) door: SocketAddr,
}

/// Report of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
enum HostReport {
    Listens(usize, HostPlace),
    Ready,
    Broken(String),
}

fn parse_report(line: &str) -> Option<HostReport> {
    let (word, rest) = line.split_once(' ')?;
    let (number, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let number = number.parse().ok()?;
    match word {
        "host" => {
            let (listens, door) = rest.split_once(' ')?;
            let (listens, door) = (listens.parse().ok()?, door.parse().ok()?);
            Some(HostReport::Listens(number, HostPlace { listens, door }))
        }
        "ready" => Some(HostReport::Ready),
        "broken" => Some(HostReport::Broken(format!(
            "host {number} of this launch: {rest}"
        ))),
        _ => None,
    }
}

/// Launch of the hosts.
#[derive(Debug)]
pub(super) struct HostAgents {
    launcher: Child,
    /// Pipe to the standard input of all hosts; closed at the end.
    input: Option<PipeWriter>,
    output: BufReader<PipeReader>,
    /// Standard error of their launcher.
    complaints: File,
    count: usize,
    waited: bool,
    /// Exit status of their launcher, if known.
    end: Option<RankEnd>,
}

impl HostAgents {
    /// Starts a host for each of these runs of ranks, on its node.
    pub(super) fn start(
        spec: &JobSpec,
        runs: &[(NodeId, u32)],
        server: &str,
    ) -> Result<Self, CommandError> {
        let program = find(IMPI).map_err(CommandError::request)?;
        let words = [
            program.into(),
            "host".into(),
            "--server".into(),
            server.into(),
        ];
        let started = Self::launch(&launch(spec, runs, words.to_vec()), runs.len());
        started.map_err(|error| CommandError::system("cannot start the IMPI hosts", error))
    }

    fn launch(job: &JobSpec, count: usize) -> Result<Self, AnyError> {
        let memory = |name: &str| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
        let (mut file, complaints) = (memory("job")?, memory("complaints")?);
        file.write_all(&describe(job))?;
        let (input, to_hosts) = io::pipe()?;
        let (of_hosts, output) = io::pipe()?;
        let high = |fd: OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, FIRST_FREE);
        let (file, input, output) = (
            high(file.into())?,
            high(input.into())?,
            high(output.into())?,
        );
        let error_output = high(complaints.try_clone()?.into())?;
        let own = CString::new(std::env::current_exe()?.into_os_string().into_vec())?;
        let argv = [c"wireup".to_owned(), CString::new(COMMAND)?];
        let env: Result<Vec<CString>, _> = std::env::vars_os()
            .filter(|(name, _)| !NOT_PASSED.iter().any(|not| name == not))
            .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()))
            .collect();
        let descriptors = [
            (input.as_fd(), 0),
            (output.as_fd(), 1),
            (error_output.as_fd(), 2),
            (file.as_fd(), JOB),
        ];
        // It runs in a session of its own, since this launcher handles interrupts. It ends with this launcher.
        let command = ChildCommand {
            env: &[&env?],
            descriptors: &descriptors,
            ..ChildCommand::new(&own, &argv)
        };
        let launcher = ProcessSpawner::default().spawn(&command)?;
        // The backend reaps unknown children.
        zombie::remember(launcher.pid);
        Ok(Self {
            launcher,
            input: Some(to_hosts),
            output: BufReader::new(of_hosts),
            complaints,
            count,
            waited: false,
            end: None,
        })
    }

    /// Waits until all hosts listen.
    pub(super) fn places(&mut self) -> Result<Vec<HostPlace>, CommandError> {
        let mut places = vec![None; self.count];
        while places.iter().any(Option::is_none) {
            if let HostReport::Listens(number, place) = self.read_report()?
                && let Some(known) = places.get_mut(number)
            {
                *known = Some(place);
            }
        }
        Ok(places.into_iter().flatten().collect())
    }

    /// Waits for output of the client's agent. Before their invitation, hosts report only failures.
    pub(super) fn watch_until_readable(
        &mut self,
        agent: BorrowedFd<'_>,
    ) -> Result<(), CommandError> {
        loop {
            if self.output.buffer().is_empty() {
                let output = self.output.get_ref();
                let mut fds = [
                    PollFd::from_borrowed_fd(agent, PollFlags::IN),
                    PollFd::new(output, PollFlags::IN),
                ];
                match poll(&mut fds, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(CommandError::system("cannot poll", error)),
                }
                if !fds[0].revents().is_empty() {
                    return Ok(());
                }
                if fds[1].revents().is_empty() {
                    continue;
                }
            }
            self.read_report()?;
        }
    }

    /// Sends all hosts the invitation, and waits until all are connected with all other hosts.
    pub(super) fn invite(&mut self, invitation: &str) -> Result<(), CommandError> {
        self.send_line(invitation);
        let mut waiting = self.count;
        while waiting > 0 {
            if self.read_report()? == HostReport::Ready {
                waiting -= 1;
            }
        }
        Ok(())
    }

    /// Ends the hosts, and prints their problems. Returns whether they have ended normally.
    pub(super) fn end(mut self, failed: bool) -> bool {
        self.send_line(if failed { "failed" } else { "over" });
        drop(self.input.take());
        let mut reasons = Vec::new();
        let mut line = String::new();
        while matches!(self.output.read_line(&mut line), Ok(count) if count > 0) {
            if let Some(HostReport::Broken(why)) = parse_report(line.trim_end()) {
                reasons.push(why);
            }
            line.clear();
        }
        if self.wait() {
            return true;
        }
        if reasons.is_empty() {
            reasons.push(HostsError(self.complaint()).to_string());
        }
        for why in reasons {
            eprintln!("wireup impi: {why}");
        }
        false
    }

    fn send_line(&mut self, line: &str) {
        // Hosts that have ended have reported the reason, or their launcher has.
        let _ = self.input.as_mut().map(|input| writeln!(input, "{line}"));
    }

    /// Reads the next report of a host.
    fn read_report(&mut self) -> Result<HostReport, HostsError> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        match (read, parse_report(line.trim_end())) {
            (Ok(count), Some(report)) if count > 0 => match report {
                HostReport::Broken(why) => Err(HostsError(why)),
                report => Ok(report),
            },
            (Ok(count), None) if count > 0 => Err(HostsError(format!("{:?}", line.trim_end()))),
            _ => {
                drop(self.input.take());
                self.wait();
                Err(HostsError(self.complaint()))
            }
        }
    }

    /// Returns the error message of their launcher.
    fn complaint(&mut self) -> String {
        let mut text = Vec::new();
        let read = self.complaints.rewind();
        let read = read.and_then(|()| self.complaints.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        match (text.trim(), self.end) {
            ("", Some(end @ RankEnd::Signal(_))) => format!("their launcher was {end}"),
            (text, _) if read.is_err() || text.is_empty() => "they have ended".to_owned(),
            (text, _) => text.strip_prefix("wireup: ").unwrap_or(text).to_owned(),
        }
    }

    /// Waits for the end of their launcher. Returns whether all hosts have ended normally.
    fn wait(&mut self) -> bool {
        self.waited = true;
        self.end = match wait(&self.launcher.pidfd) {
            Ok(status) => Some(status.into()),
            Err(_) => zombie::end_of(self.launcher.pid),
        };
        self.end == Some(RankEnd::Code(0))
    }
}

impl Drop for HostAgents {
    fn drop(&mut self) {
        // The end of their input ends the hosts that wait for an invitation.
        drop(self.input.take());
        if !self.waited {
            self.wait();
        }
    }
}

/// Describes the launch of the hosts of a job.
fn launch(spec: &JobSpec, runs: &[(NodeId, u32)], argv: Vec<OsString>) -> JobSpec {
    let mut job = JobSpec::from_apps(vec![AppRequest {
        inherited: EnvInheritance::None,
        wdir: Some("/".into()),
        argv,
        preload: StagingSpec {
            // Hosts that lack the ranks' programs may lack this one too.
            stage: spec.apps.iter().any(|app| app.preload.stage),
            ..StagingSpec::default()
        },
        ..AppRequest::default()
    }]);
    job.layout = spec.layout.clone();
    job.layout.ppn = None;
    job.layout.runs = runs.iter().map(|(node, _)| (*node, 1)).collect();
    // Hosts wait most of the time, and use no slots.
    job.layout.oversubscribe = true;
    job.layout.spread.same_build = BuildMismatchPolicy::Off;
    job.interface.pmi = InterfaceChoice::None;
    job.stdio.stdin = StdinTarget::All;
    job.status.no_progress = true;
    job
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_hosts_are_parsed() {
        let place = HostPlace {
            listens: "10.0.0.1:5".parse().unwrap(),
            door: "10.0.0.1:6".parse().unwrap(),
        };
        for (line, expected) in [
            (
                "host 2 10.0.0.1:5 10.0.0.1:6",
                Some(HostReport::Listens(2, place)),
            ),
            ("ready 1", Some(HostReport::Ready)),
            (
                "broken 0 server x: no",
                Some(HostReport::Broken(
                    "host 0 of this launch: server x: no".into(),
                )),
            ),
            ("host 2 10.0.0.1:5", None),
            ("host 2 10.0.0.1 10.0.0.1:6", None),
            ("ready", None),
            ("something else", None),
        ] {
            assert_eq!(parse_report(line), expected, "{line}");
        }
    }
}
