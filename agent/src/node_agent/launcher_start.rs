//! Starts the launcher of a launch, as its user.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::launcher_process::{ScheduledLauncher, supervise};
use super::process::WatchedProcess;
use crate::budget::ByteReservation;
use crate::launch::launch_registry::RunningLauncher;
use crate::scheduled::launch_request::LaunchRequest;
use crate::scheduled::scheduled_launch::{LauncherState, ScheduledLaunch};
use crate::user::spawn::SpawnError;
use crate::user::spawn::step_spawner::StepSpawner;
use crate::user::{self, User};
use wireup_core::job::spec::StdinTarget;
use wireup_core::link::scheduled_launcher::{describe, shown};

/// Variables of the agent that its launchers also get: a site's choices. All others come from the user database and the
/// request.
const PASSED_ON: [&str; 1] = ["WIREUP_LIBPMIX"];

/// Reason for which a launcher was not started.
#[derive(Debug, thiserror::Error)]
pub enum LauncherStartError {
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error("cannot start a launcher: {0}")]
    Io(#[from] io::Error),
}

/// Starts the launcher of a request as `user`, with its own task, which keeps `started`.
/// Returns the launch and the launcher's process id.
///
/// # Errors
/// [`LauncherStartError`]; then nothing is left.
pub async fn start(
    steps: Arc<StepSpawner>,
    socket: &Path,
    request: &LaunchRequest,
    user: User,
    started: RunningLauncher,
    reservation: ByteReservation,
) -> Result<(Arc<ScheduledLaunch>, i32), LauncherStartError> {
    let home = user.home.clone().unwrap_or_else(|| "/".into());
    let turn = reservation.account().turn().await;
    let job = request.job(&home, socket);
    let passed_on = PASSED_ON
        .iter()
        .filter_map(|name| Some(((*name).into(), std::env::var_os(name)?)));
    let variables = passed_on.chain(request.variables()).collect();
    let (stdin, theirs): (_, OwnedFd) = match request.stdin {
        StdinTarget::None => (None, File::open("/dev/null")?.into()),
        StdinTarget::Rank(_) | StdinTarget::All => {
            let (theirs, ours) = io::pipe()?;
            let ours = pipe::Sender::from_owned_fd(ours.into())?;
            (Some(ours), theirs.into())
        }
    };
    let (stdout, their_stdout) = outgoing()?;
    let (stderr, their_stderr) = outgoing()?;
    let (link, control) = io::pipe()?;
    let control = pipe::Sender::from_owned_fd(control.into())?;
    let (orders_to, orders) = mpsc::unbounded_channel();
    let uid = user.uid;
    let described = in_memory(&describe(&job))?;
    drop(turn);
    // It is a fork, which takes its time.
    let starting = spawn_blocking(move || {
        let launcher = user::spawn::step_spawner::LauncherSpec {
            shown: shown(&job),
            variables,
            descriptors: [theirs, their_stdout, their_stderr, link.into(), described],
        };
        steps.launch(&user, launcher)
    });
    let user::spawn::step_spawner::SpawnedProcess {
        child,
        signal_handle,
        ..
    } = starting.await.map_err(io::Error::other)??;
    let pid = child.pid.as_raw_nonzero().get();
    let launcher = ScheduledLauncher {
        process: WatchedProcess::new(child.pidfd, signal_handle)?,
        control,
        stdout,
        stderr,
        orders,
        grace: request.grace,
        started,
    };
    let head = Arc::new(LauncherState::new(request, stdin, orders_to));
    let launch = ScheduledLaunch::new(request, uid, Some(Arc::clone(&head)), reservation);
    let launch = Arc::new(launch);
    tokio::spawn(supervise(Arc::clone(&launch), head, launcher));
    Ok((launch, pid))
}

/// Makes a pipe for the launcher's output: our end and its own.
fn outgoing() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (ours, theirs) = io::pipe()?;
    let ours = pipe::Receiver::from_owned_fd(ours.into())?;
    Ok((ours, theirs.into()))
}

/// Makes a file without a name; a process that opens it by its descriptor reads it from its beginning.
fn in_memory(text: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd_create("job", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(text)?;
    Ok(file.into())
}
