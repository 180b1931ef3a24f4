//! The sidecar process of a node: its start, its two sockets, its output, its end.

use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use wireup_core::job::ids::NodeId;
use wireup_sys::channel::{BacklogPolicy, Channel};
use wireup_sys::poll::{Poll, PollSource, PollToken};
use wireup_sys::spawn::{Child, ChildCommand, Namespaces, ProcessSpawner, SpawnError, SpawnStage};

/// Descriptor numbers in the sidecar.
const CONTROL_FD: i32 = 3;
const UPCALL_FD: i32 = 4;
const TOOLS_FD: i32 = 5;

/// What all sidecars of a job share.
#[derive(Debug)]
pub struct SidecarSpec<'a> {
    /// Executable.
    pub program: &'a Path,
    /// libpmix to load.
    pub libpmix: &'a Path,
    /// Shim to load.
    pub shim: &'a Path,
    pub env: &'a [CString],
    /// The directory of the control group that it starts in, if not the launcher's own.
    pub group: Option<BorrowedFd<'a>>,
    /// Where tools have connected that it is started for.
    pub listener: Option<BorrowedFd<'a>>,
    /// Descriptor limit: the sidecar needs one per client, so it keeps the launcher's raised one.
    pub reset_signals: &'a [i32],
}

/// A running sidecar.
#[derive(Debug)]
pub struct Sidecar {
    pub child: Child,
    /// Requests to it and their answers.
    pub control: Channel,
    /// Its requests to us.
    pub upcall: Channel,
    /// Its output, until it closes it.
    pub output: Option<OwnedFd>,
    /// Its exit was collected.
    pub exit_collected: bool,
}

/// A path or word as C wants it. A NUL cannot come from a command line or file system.
fn c_string(text: impl Into<OsString>) -> CString {
    CString::new(text.into().into_vec()).unwrap_or_default()
}

impl Sidecar {
    /// Starts a node's sidecar and watches everything of it.
    ///
    /// # Errors
    /// [`SpawnError`]; descriptors that cannot be made count as its descriptor step.
    pub fn start(
        spec: &SidecarSpec<'_>,
        node: NodeId,
        namespaces: Option<Namespaces<'_>>,
        poll: &Poll,
    ) -> Result<Self, SpawnError> {
        let broken = |errno| SpawnError {
            step: SpawnStage::Descriptors,
            errno,
        };
        let pair = || {
            let (ours, theirs) = socketpair(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::CLOEXEC,
                None,
            )?;
            fcntl_setfl(&ours, OFlags::NONBLOCK)?;
            rustix::io::Result::Ok((ours, theirs))
        };
        let (control, control_theirs) = pair().map_err(broken)?;
        let (upcall, upcall_theirs) = pair().map_err(broken)?;
        let (output, output_theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(broken)?;
        fcntl_setfl(&output, OFlags::NONBLOCK).map_err(broken)?;
        let null = rustix::fs::open(
            "/dev/null",
            OFlags::RDWR | OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(broken)?;
        let program = c_string(spec.program);
        let mut argv = vec![
            program.clone(),
            c"--libpmix".into(),
            c_string(spec.libpmix),
            c"--shim".into(),
            c_string(spec.shim),
            c"--control-fd".into(),
            c_string(CONTROL_FD.to_string()),
            c"--upcall-fd".into(),
            c_string(UPCALL_FD.to_string()),
        ];
        let mut descriptors = vec![
            (null.as_fd(), 0),
            (output_theirs.as_fd(), 1),
            (output_theirs.as_fd(), 2),
            (control_theirs.as_fd(), CONTROL_FD),
            (upcall_theirs.as_fd(), UPCALL_FD),
        ];
        if let Some(listener) = spec.listener {
            argv.extend([c"--tools-fd".into(), c_string(TOOLS_FD.to_string())]);
            descriptors.push((listener, TOOLS_FD));
        }
        let child = ProcessSpawner::new().spawn(&ChildCommand {
            env: &[spec.env],
            descriptors: &descriptors,
            reset_signals: spec.reset_signals,
            namespaces,
            group: spec.group,
            ..ChildCommand::new(&program, &argv)
        })?;
        let token = |source| PollToken::new(source, node.0);
        poll.add(&child.pidfd, token(PollSource::SidecarExit))
            .map_err(broken)?;
        poll.add(&output, token(PollSource::SidecarOutput))
            .map_err(broken)?;
        Ok(Self {
            control: Channel::new(
                control,
                token(PollSource::Control),
                BacklogPolicy::Flows,
                poll,
            )
            .map_err(broken)?,
            upcall: Channel::new(
                upcall,
                token(PollSource::Upcall),
                BacklogPolicy::Flows,
                poll,
            )
            .map_err(broken)?,
            child,
            output: Some(output),
            exit_collected: false,
        })
    }
}
