//! The process in front of an agent with `--on-stop leave`: the one that the service manager starts, watches and stops.
//!
//! ```text
//! service manager ── signals ──▶ front ── socketpair ──▶ the agent, which serves
//!                 ◀── READY=1 ──       ◀── READY=1 ────
//! ```
//! It does not serve. When it is stopped, or killed, the agent loses its link, gives its listeners free for the next agent, and
//! goes on with its launches until the last one has ended. The front ends as soon as the listeners are free, so that a restart
//! starts the next agent at once.
//!
//! When the agent is killed or crashes after it has served, the front starts the next one.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until};
use tracing::{error, info};

use super::notify::{NOTIFY_SOCKET, READY, to_service_manager};
use super::{DaemonSignals, runtime};
use crate::state::Agent;
use wireup_core::failure::CommandError;

/// Command of the agent behind the front; its link is standard input. Not a command for people.
pub const COMMAND: &str = "behind-front";

/// Interval at which a leaving agent checks whether the launches of schedulers have ended.
const INTERVAL: Duration = Duration::from_secs(1);

/// Most often the next agent is started in place of one that crashed.
const BETWEEN_STARTS: Duration = Duration::from_secs(1);

/// Reason for which a front has no agent behind it any more.
enum FrontExit {
    /// The front was stopped, and the agent has handed over to the next one.
    Stopped,
    /// The agent has ended, and that was not the front's doing.
    Ended {
        /// Exit code, as a shell would report it.
        code: u8,
        /// Whether the agent had reported that it serves.
        served: bool,
    },
}

/// Starts the agent, and another one after each crash.
///
/// # Errors
/// The agent cannot be started. Its own message is not repeated.
pub(super) fn main() -> Result<u8, CommandError> {
    let failed = |error| CommandError::system("cannot start the agent behind this process", error);
    runtime()?.block_on(async {
        let mut signals = DaemonSignals::take().map_err(failed)?;
        loop {
            let started = Instant::now();
            let (link, agent) = start().map_err(failed)?;
            let departure = stand(&mut signals, link, agent).await.map_err(failed)?;
            let code = match departure {
                FrontExit::Stopped => return Ok(0),
                // The agent was asked to end, or cannot serve: the service manager must see that.
                FrontExit::Ended { code, served } if code == 0 || !served => return Ok(code),
                FrontExit::Ended { code, .. } => code,
            };
            error!("the agent behind this process exited with code {code}; starting the next one");
            let [terminate, interrupt] = &mut signals.end;
            tokio::select! {
                () = sleep_until(started + BETWEEN_STARTS) => {}
                _ = terminate.recv() => return Ok(0),
                _ = interrupt.recv() => return Ok(0),
            }
        }
    })
}

/// Stays in front of one agent.
async fn stand(
    signals: &mut DaemonSignals,
    mut link: UnixStream,
    mut agent: Child,
) -> io::Result<FrontExit> {
    let pid = agent.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw);
    let [terminate, interrupt] = &mut signals.end;
    let (mut is_stopping, mut served) = (false, false);
    let mut state = [0; 256];
    loop {
        let stopped = tokio::select! {
            read = link.read(&mut state) => match read {
                Ok(length @ 1..) => {
                    served |= state[..length].starts_with(READY.as_bytes());
                    to_service_manager(&state[..length]);
                    false
                }
                Ok(0) | Err(_) => break,
            },
            _ = signals.hangup.recv() => {
                if let Some(pid) = pid {
                    // It reads its certificate. One that has ended needs none.
                    let _ = kill_process(pid, Signal::HUP);
                }
                false
            }
            _ = terminate.recv() => true,
            _ = interrupt.recv() => true,
        };
        if stopped && is_stopping {
            // The agent does not wait for schedulers any more.
            return Ok(FrontExit::Stopped);
        }
        if stopped {
            to_service_manager(b"STOPPING=1\n");
            is_stopping = true;
            let _ = link.shutdown().await;
        }
    }
    if is_stopping {
        return Ok(FrontExit::Stopped);
    }
    let ended = agent.wait().await?;
    let code = ended.code().or_else(|| Some(128 + ended.signal()?));
    let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(FrontExit::Ended { code, served })
}

fn start() -> io::Result<(UnixStream, Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs.into_std()?);
    let mut arguments = std::env::args_os();
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(arguments.next().unwrap_or_else(|| OsString::from("wireup")));
    command.arg(COMMAND).args(arguments);
    command.stdin(Stdio::from(theirs)).env_remove(NOTIFY_SOCKET);
    // Ctrl-C is for the process in front.
    command.process_group(0);
    Ok((ours, command.spawn()?))
}

/// The link of an agent to the process in front of it.
#[derive(Debug)]
pub(super) struct Front(UnixStream);

/// Takes the link that is standard input, and leaves the null device in its place: children are to have neither.
///
/// # Errors
/// The system's.
pub(super) fn take_link() -> io::Result<std::os::unix::net::UnixStream> {
    let link = fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    let link = std::os::unix::net::UnixStream::from(link);
    link.set_nonblocking(true)?;
    Ok(link)
}

impl Front {
    pub(super) fn new(link: std::os::unix::net::UnixStream) -> io::Result<Self> {
        Ok(Self(UnixStream::from_std(link)?))
    }

    /// Has it report a state to the service manager; false if it has ended.
    pub(super) async fn report(&mut self, state: &str) -> bool {
        self.0.write_all(state.as_bytes()).await.is_ok()
    }

    /// Waits until the agent is to leave: its front was stopped, and no launch of a scheduler goes on, since the next
    /// agent would not know it; or its front was killed.
    pub(super) async fn gone(&mut self, agent: &Agent) {
        let mut nothing = [0; 64];
        // The front sends nothing; the read returns when it closes the link.
        while let Ok(1..) = self.0.read(&mut nothing).await {}
        loop {
            let count = agent.scheduled.going_on();
            if count == 0 {
                return;
            }
            agent.registry.refuse_launchers();
            let state = format!("STATUS=waits for the end of {count} launches of schedulers\n");
            if !self.report(&state).await {
                info!(
                    "the agent ends with {count} launches of schedulers, whose state is no longer available"
                );
                return;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// Sends one line by itself, or through the process in front.
pub(super) async fn notify(front: Option<&mut Front>, state: &str) {
    match front {
        Some(front) => {
            // One that has ended is noticed where it is waited for.
            let _ = front.report(state).await;
        }
        None => to_service_manager(state.as_bytes()),
    }
}
