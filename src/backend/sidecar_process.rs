//! Sidecar process of a node: start, two sockets, output, and end.

use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};

use wireup_core::job::ids::NodeId;
use wireup_sys::channel::{BacklogPolicy, Channel};
use wireup_sys::descriptors::open_null;
use wireup_sys::poll::{Poll, PollSource, PollToken};
use wireup_sys::spawn::{Child, ChildCommand, Namespaces, ProcessSpawner, SpawnError, SpawnStage};
use wireup_sys::unix_socket;

/// Descriptor numbers in the sidecar.
const CONTROL_FD: i32 = 3;
const UPCALL_FD: i32 = 4;
const TOOLS_FD: i32 = 5;

/// Start parameters that all sidecars of a job share.
#[derive(Debug)]
pub struct SidecarSpec<'a> {
    /// Path of the sidecar's executable.
    pub program: &'a Path,
    /// Path of the libpmix that the sidecar loads.
    pub libpmix: &'a Path,
    /// Path of the shim that the sidecar loads.
    pub shim: &'a Path,
    pub env: &'a [CString],
    /// Directory of the control group in which it starts, if that is not the launcher's.
    pub group: Option<BorrowedFd<'a>>,
    /// Listening socket at which tools have connected, if the sidecar is started for tools.
    pub listener: Option<BorrowedFd<'a>>,
    /// Descriptor limit: the sidecar needs one per client, so it keeps the launcher's raised one.
    pub reset_signals: &'a [i32],
}

/// Running sidecar process with its sockets.
#[derive(Debug)]
pub struct Sidecar {
    pub child: Child,
    /// Socket of requests to the sidecar and their replies.
    pub control: Channel,
    /// Socket of libpmix's upcalls, which the node core answers.
    pub upcall: Channel,
    /// Pipe of its output; `None` after its end.
    pub output: Option<OwnedFd>,
    /// Whether its exit status was collected.
    pub exit_collected: bool,
}

/// Converts a path or argument to a C string. Command lines and paths have no NUL.
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
        let (control, control_theirs) = unix_socket::pair().map_err(broken)?;
        let (upcall, upcall_theirs) = unix_socket::pair().map_err(broken)?;
        let (output, output_theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(broken)?;
        fcntl_setfl(&output, OFlags::NONBLOCK).map_err(broken)?;
        let null = open_null().map_err(broken)?;
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
        let child = ProcessSpawner::default().spawn(&ChildCommand {
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
        let channel = |fd, source| {
            Channel::new(fd, token(source), BacklogPolicy::Flows, poll).map_err(broken)
        };
        Ok(Self {
            control: channel(control, PollSource::Control)?,
            upcall: channel(upcall, PollSource::Upcall)?,
            child,
            output: Some(output),
            exit_collected: false,
        })
    }
}
