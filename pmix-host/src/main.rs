//! The sidecar: runs OpenPMIx's server for one node of a launch and executes the requests of its
//! parent, the launcher or step.
//!
//! Two threads of ours: this one reads the agent's requests (`pmix_calls`), the shim's reader takes
//! answers to upcalls. libpmix has its own. The process ends when the agent asks, or is gone.
//!
//! Every failure is reported to the parent as one line on the control socket, since the user looks
//! there; standard error is for failures that have no control socket yet.

#[cfg(have_pmix)]
#[allow(
    unsafe_code,
    reason = "the C boundary: asks the kernel about connections"
)]
mod backlog;
#[cfg(have_pmix)]
mod boundary;
#[cfg(have_pmix)]
#[allow(unsafe_code, reason = "the C boundary: memory shared with C")]
mod c_memory;
#[cfg(have_pmix)]
#[allow(unsafe_code, reason = "the C boundary: libpmix calls it as opendir(3)")]
mod cleanup_filter;
#[cfg(have_pmix)]
#[allow(unsafe_code, reason = "the C boundary: calls into libpmix")]
mod forwarded_output;
#[cfg(have_pmix)]
mod handshakes;
#[cfg(have_pmix)]
#[allow(unsafe_code, reason = "the C boundary: libpmix calls back")]
mod idle;
#[cfg(have_pmix)]
mod inherited_listener;
#[allow(
    unsafe_code,
    reason = "the C boundary: descriptors and libraries from outside"
)]
mod libraries;
#[cfg(have_pmix)]
#[allow(unsafe_code, reason = "the C boundary: calls into libpmix")]
mod locality;
#[cfg(have_pmix)]
#[allow(unsafe_code, reason = "the C boundary: libpmix calls back")]
mod operation_waiter;
#[cfg(have_pmix)]
#[allow(unsafe_code, reason = "the C boundary: libpmix calls it as accept(2)")]
mod peer_filter;
#[cfg(have_pmix)]
#[allow(
    unsafe_code,
    reason = "the C boundary: calls into libpmix and the shim"
)]
mod pmix_calls;
mod replies;
#[cfg(have_pmix)]
#[allow(unsafe_code, reason = "the C boundary: the shim's link")]
mod serve;
#[cfg(have_pmix)]
#[allow(unsafe_code, reason = "the C boundary: libpmix calls it as read(2)")]
mod tcp_acks;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use replies::ReplyWriter;

use wireup_core::pmix::sidecar_protocol::{SidecarNotice, StartupFailure, StartupStage};
use wireup_sys::log;
use wireup_sys::signals;

const USAGE: &str =
    "usage: wireup-pmix-host --libpmix PATH --shim PATH --control-fd N --upcall-fd N [--tools-fd N]
It is started by wireup, not by hand.";

/// Reason for which the sidecar cannot continue, for the agent.
#[derive(Debug, PartialEq, Eq)]
struct Fatal {
    stage: StartupStage,
    text: String,
}

impl Fatal {
    fn new(stage: StartupStage, text: impl Into<String>) -> Self {
        // The agent prints it as one line.
        let text = text.into().replace('\n', " ");
        Self { stage, text }
    }

    /// Creates a failure of a connection to the agent, to clients or to tools.
    #[cfg(have_pmix)]
    fn link(text: impl Into<String>) -> Self {
        Self::new(StartupStage::Link, text)
    }

    /// Appends a remedy to the text.
    #[cfg(have_pmix)]
    fn and(mut self, remedy: &str) -> Self {
        self.text.push_str(remedy);
        self
    }
}

/// A command line that cannot be used. wireup writes the command line, so people see this error only if they start the
/// sidecar by hand.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
enum ArgsError {
    #[error("unknown argument {0:?}")]
    Unknown(OsString),
    #[error("{0:?} needs a value")]
    NoValue(OsString),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{name} {} is not absolute", path.display())]
    Relative { name: &'static str, path: PathBuf },
    #[error("{name} {value:?} is not a descriptor above 2")]
    Descriptor { name: &'static str, value: OsString },
}

/// Arguments of the command line.
#[derive(Debug, PartialEq, Eq)]
struct Args {
    libpmix: PathBuf,
    shim: PathBuf,
    control_fd: i32,
    upcall_fd: i32,
    /// A listener at which tools have connected.
    tools_fd: Option<i32>,
}

impl Args {
    fn parse(mut words: impl Iterator<Item = OsString>) -> Result<Self, ArgsError> {
        let (mut libpmix, mut shim) = (None, None);
        let (mut control_fd, mut upcall_fd, mut tools_fd) = (None, None, None);
        while let Some(word) = words.next() {
            let slot = match word.to_str() {
                Some("--libpmix") => &mut libpmix,
                Some("--shim") => &mut shim,
                Some("--control-fd") => &mut control_fd,
                Some("--upcall-fd") => &mut upcall_fd,
                Some("--tools-fd") => &mut tools_fd,
                _ => return Err(ArgsError::Unknown(word)),
            };
            *slot = Some(words.next().ok_or(ArgsError::NoValue(word))?);
        }
        let path = |value: Option<OsString>, name| {
            let path = PathBuf::from(value.ok_or(ArgsError::Missing(name))?);
            match path.is_absolute() {
                true => Ok(path),
                false => Err(ArgsError::Relative { name, path }),
            }
        };
        let fd = |value: Option<OsString>, name| {
            let value = value.ok_or(ArgsError::Missing(name))?;
            let number = value.to_str().and_then(|text| text.parse().ok());
            number
                .filter(|fd: &i32| *fd > 2)
                .ok_or(ArgsError::Descriptor { name, value })
        };
        Ok(Self {
            libpmix: path(libpmix, "--libpmix")?,
            shim: path(shim, "--shim")?,
            control_fd: fd(control_fd, "--control-fd")?,
            upcall_fd: fd(upcall_fd, "--upcall-fd")?,
            tools_fd: tools_fd
                .map(|value| fd(Some(value), "--tools-fd"))
                .transpose()?,
        })
    }
}

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "--version")
    {
        println!("wireup-pmix-host {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    signals::block_for_ranks();
    if let Some(filter) = std::env::var_os(log::VARIABLE) {
        // The launcher has checked it.
        let _ = log::start(&filter.to_string_lossy());
    }
    let args = match Args::parse(std::env::args_os().skip(1)) {
        Ok(args) => args,
        Err(error) => {
            complain(&format!("{error}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    let control = libraries::inherited_socket(args.control_fd);
    let (writer, control) = match control.and_then(|control| Ok((control.try_clone()?, control))) {
        Ok(ends) => ends,
        Err(error) => {
            complain(&format!("control socket {}: {error}", args.control_fd));
            return ExitCode::from(2);
        }
    };
    let replies = Arc::new(ReplyWriter::new(writer));
    match run(&args, control, &replies) {
        Ok(code) => code,
        Err(fatal) => {
            report_failure(&fatal, &replies);
            ExitCode::FAILURE
        }
    }
}

/// Reports to the parent why this process ends; if the parent is gone, on standard error.
fn report_failure(Fatal { stage, text }: &Fatal, replies: &ReplyWriter) {
    let notice = SidecarNotice::Failed(StartupFailure {
        stage: *stage,
        text: text.as_str().into(),
    });
    if !replies.notice(&notice) {
        complain(text);
    }
}

#[cfg(have_pmix)]
fn run(
    args: &Args,
    control: std::os::unix::net::UnixStream,
    replies: &Arc<ReplyWriter>,
) -> Result<ExitCode, Fatal> {
    // Each client is a connection, which libpmix's threads must not wait for.
    wireup_sys::descriptors::make_room(0);
    let libraries = libraries::Libraries::open(&args.libpmix, &args.shim)?;
    let mut host = serve::SidecarLoop::start(libraries, args.upcall_fd, Arc::clone(replies))?;
    if let Some(fd) = args.tools_fd {
        let tools = libraries::inherited(fd)
            .map_err(|error| Fatal::link(format!("listener {fd}: {error}")))?;
        host.take_over(tools);
    }
    Ok(host.serve(control))
}

#[cfg(not(have_pmix))]
fn run(
    _args: &Args,
    _control: std::os::unix::net::UnixStream,
    _replies: &Arc<ReplyWriter>,
) -> Result<ExitCode, Fatal> {
    Err(Fatal::new(
        StartupStage::Load,
        "this build of wireup has no PMIx support: no PMIx headers were found when it was built",
    ))
}

/// Says it on standard error, if anyone listens.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "wireup-pmix-host: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Args, ArgsError> {
        Args::parse(words.iter().map(OsString::from))
    }

    #[test]
    fn arguments_are_complete_absolute_and_name_free_descriptors() {
        let good = [
            "--libpmix",
            "/l/libpmix.so.2",
            "--shim",
            "/s.so",
            "--control-fd",
            "3",
            "--upcall-fd",
            "4",
        ];
        assert_eq!(
            parse(&good),
            Ok(Args {
                libpmix: "/l/libpmix.so.2".into(),
                shim: "/s.so".into(),
                control_fd: 3,
                upcall_fd: 4,
                tools_fd: None,
            })
        );
        let listener = [&good[..], &["--tools-fd", "5"]].concat();
        assert_eq!(parse(&listener).map(|args| args.tools_fd), Ok(Some(5)));
        let with = |position: usize, word| {
            let mut words = good;
            words[position] = word;
            parse(&words).expect_err("refused").to_string()
        };
        assert_eq!(
            with(1, "libpmix.so.2"),
            "--libpmix libpmix.so.2 is not absolute"
        );
        assert_eq!(
            with(5, "2"),
            "--control-fd \"2\" is not a descriptor above 2"
        );
        assert_eq!(with(0, "--lib"), "unknown argument \"--lib\"");
        assert_eq!(
            parse(&good[..7]),
            Err(ArgsError::NoValue("--upcall-fd".into()))
        );
        assert_eq!(parse(&good[..6]), Err(ArgsError::Missing("--upcall-fd")));
    }
}
