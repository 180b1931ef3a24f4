//! `prte --singleton NSPACE.RANK --report-uri FD --keepalive FD`, which programs of Open MPI 5 without a launcher execute
//! when they spawn: starts a launch with the program's nspace, whose rank 0 is the program.
//!
//! This process remains between the two, so that processes of the launch do not keep the program's descriptors open.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{getpid, getppid};

use super::remote_launch::option_words;
use super::serve::proxy_program;
use crate::detached::detached_start::start;
use crate::rank_proxy::openmpi_singleton;
use wireup_core::failure::CommandError;
use wireup_core::job::ids::Nspace;
use wireup_sys::inherited_fd;
use wireup_sys::spawn::{ExitStatus, wait};

/// Command of the rank proxy; started by launches.
pub(super) const RANK_COMMAND: &str = "adopted-rank";

/// Request of a program of Open MPI for a server.
#[derive(Debug, PartialEq, Eq)]
struct PrteRequest {
    /// Nspace in which the program is rank 0.
    nspace: String,
    /// Descriptor to which the server's address is written.
    report: RawFd,
    /// Descriptor that closes with the program.
    keepalive: RawFd,
}

impl PrteRequest {
    /// Parses the arguments. Source: `start_dvm` in ompi/dpm/dpm.c of Open MPI 5.
    fn new(words: &[OsString]) -> Result<Self, String> {
        let (mut nspace, mut report, mut keepalive) = (None, None, None);
        let mut words = words.iter().map(|word| word.to_string_lossy());
        while let Some(word) = words.next() {
            let mut number = || words.next()?.parse::<RawFd>().ok();
            match &*word {
                "--report-uri" => report = number(),
                "--keepalive" => keepalive = number(),
                "--singleton" => {
                    let name = words.next().unwrap_or_default();
                    nspace = name.strip_suffix(".0").map(str::to_owned);
                }
                "--no-ready-msg" => {}
                "--prtemca" => drop((words.next(), words.next())),
                "--host" | "--hostfile" => {
                    let text = "write the hosts of a program without a launcher in a defaults file of `wireup run` (hosts = …)";
                    return Err(text.to_owned());
                }
                _ => break,
            }
        }
        match (nspace, report, keepalive) {
            (Some(nspace), Some(report), Some(keepalive)) => Ok(Self {
                nspace,
                report,
                keepalive,
            }),
            _ => Err(
                "wireup takes the place of prte for programs of Open MPI 5 alone that spawn without a launcher"
                    .to_owned(),
            ),
        }
    }
}

/// Serves the program; `words` are those after `prte`.
pub(super) fn execute(words: &[OsString]) -> Result<u8, CommandError> {
    let request = PrteRequest::new(words).map_err(CommandError::request)?;
    let nspace = Nspace::new(&request.nspace).map_err(CommandError::request)?;
    let failed =
        |error: io::Error| CommandError::system("cannot serve the program that spawns", error);
    serve(&request, &nspace).map_err(failed)
}

fn serve(request: &PrteRequest, nspace: &Nspace) -> io::Result<u8> {
    let report = inherited_fd::take(request.report)?;
    let keepalive = inherited_fd::take(request.keepalive)?;
    let (reads, writes) = pipe_with(PipeFlags::CLOEXEC)?;
    let own = getpid().as_raw_nonzero().to_string();
    let mut args: Vec<OsString> = ["--pmi", "pmix", "--oversubscribe", "-n", "1"]
        .map(OsString::from)
        .to_vec();
    args.extend(option_words("--libpmix", libpmix_of_parent()));
    args.extend(proxy_program(RANK_COMMAND)?);
    args.push(own.into());
    let numbers = [writes.as_raw_fd(), keepalive.as_raw_fd()];
    args.extend(numbers.map(|number| number.to_string().into()));
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let launch = start(
        "run",
        &args,
        (openmpi_singleton::NSPACE, nspace.as_str()),
        streams,
    )?;
    if let Some(uri) = uri(&reads, &launch.pidfd)? {
        File::from(report).write_all(&uri)?;
    } else {
        // The program recognizes the missing server by the end of the pipe.
        drop(report);
    }
    Ok(match wait(&launch.pidfd)? {
        ExitStatus::Code(code) => code,
        ExitStatus::Signal { number, .. } => 128u8.wrapping_add(number as u8),
    })
}

/// Reads the URI that the rank proxy writes, up to a NUL; `None` if the launch ends before.
fn uri(reads: &OwnedFd, launch: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let mut uri = Vec::new();
    while uri.last() != Some(&0) {
        let mut ready = [reads, launch].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        let [text, end] = ready.map(|fd| !fd.revents().is_empty());
        if text {
            let mut buffer = [0; 4096];
            let count = rustix::io::read(reads, &mut buffer)?;
            uri.extend_from_slice(&buffer[..count]);
        } else if end {
            return Ok(None);
        }
    }
    Ok(Some(uri))
}

/// Returns the libpmix that the program has loaded: the server must accept a client of its version.
fn libpmix_of_parent() -> Option<PathBuf> {
    let parent = getppid()?.as_raw_nonzero();
    let maps = std::fs::read_to_string(format!("/proc/{parent}/maps")).ok()?;
    let paths = maps
        .lines()
        .filter_map(|line| Some(&line[line.find('/')?..]));
    let mut paths = paths.map(PathBuf::from);
    paths.find(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("libpmix.so"))
    })
}

/// Runs the rank proxy of the program; `words` are those after the command.
pub(super) fn rank(words: &[OsString]) -> Result<u8, CommandError> {
    let numbers: Option<Vec<u32>> = words
        .iter()
        .map(|word| word.to_str()?.parse().ok())
        .collect();
    match numbers.as_deref() {
        Some([process, report, keepalive]) => {
            openmpi_singleton::serve(*process, *report, *keepalive)
        }
        _ => Err(CommandError::request(format!(
            "{RANK_COMMAND} needs a process and two of its descriptors"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<PrteRequest, String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        PrteRequest::new(&words)
    }

    #[test]
    fn only_command_line_of_open_mpi_singleton_is_accepted() {
        let line = "--prtemca schizo prte --no-ready-msg --report-uri 29 --singleton singleton.a.b.77.0 --keepalive 30";
        let expected = PrteRequest {
            nspace: "singleton.a.b.77".to_owned(),
            report: 29,
            keepalive: 30,
        };
        assert_eq!(parse(line), Ok(expected));
        let refused = |line: &str, words: &str| {
            let text = parse(line).unwrap_err();
            assert!(text.contains(words), "{line}: {text}");
        };
        refused("--daemonize", "takes the place of prte");
        refused(
            "--singleton a.0 --report-uri x --keepalive 3",
            "takes the place of prte",
        );
        refused(
            "--singleton a.1 --report-uri 4 --keepalive 3",
            "takes the place of prte",
        );
        refused("--host n1", "defaults file");
    }
}
