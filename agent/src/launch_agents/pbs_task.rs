//! Standard input and output for a process that a batch system starts on another host without them: PBS's `pbs_tmrsh`
//! starts it by the task manager (`tm_spawn`).
//!
//! ```text
//!  launch-entry ── stdin, stdout ── tm-caller ┄┄┄ pbs_tmrsh ┄┄▶ tm-task ── stdin, stdout ── for-launch
//!                                        ▲                          │
//!                                        └────────── TLS ───────────┘
//! ```
//! The caller makes a key, and gives the fingerprint of its certificate, which is no secret, on the task's command
//! line. The task connects and accepts that certificate only. Then it proves that it belongs to the job: it sends a
//! digest of this TLS connection and of the job's cookie (`PBS_JOBCOOKIE`), which PBS gives to the tasks of the job
//! and to no other process.
//!
//! Rule: a PBS daemon executes what a process with the cookie asks for, as the job's user: the cookie gives no process
//! more here than it does there. Source: OpenPBS, `tm_request` in src/resmom/mom_comm.c.
//! Rule: the cookie is made of two numbers of 31 bits. So its digest goes only to a caller whose certificate was checked,
//! no other process can try cookies on it, and a caller admits a limited number of attempts. Source: OpenPBS,
//! `start_exec` in src/resmom/start_exec.c.

mod task_connection;
#[cfg(test)]
mod tests;

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, kill_process};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use self::task_connection::{Task, TaskCaller};
use super::{RankSignals, run};
use crate::daemon::settings::host_name;
pub use wireup_core::executables::TASK_CALLER as CALLER;
use wireup_core::failure::{CommandError, RequestError};

/// The command of the task: then the caller's address and fingerprint, and the words to execute.
pub const TASK: &str = "tm-task";

/// Command that starts a task on a host of the job.
const STARTER: &str = "pbs_tmrsh";

/// The secret of a job, which all its tasks have.
const COOKIE: &str = "PBS_JOBCOOKIE";

/// Timeout for the proof that a connection is the task's.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Time for the starter to end after its task.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Connections that a caller takes until one has proved that it is the task's.
const ATTEMPTS: usize = 64;

#[derive(Debug, thiserror::Error)]
enum TaskStartError {
    #[error("this process does not belong to a PBS job: {COOKIE} is not set")]
    NoCookie,
    #[error("{CALLER} needs a host and a command")]
    NoHost,
    #[error("{TASK} needs an address, a fingerprint and a command")]
    NoAddress,
    #[error("the task on {host} did not connect: {STARTER} ended with {status}")]
    Ended { host: String, status: ExitStatus },
    #[error("the task on {0} did not connect: {ATTEMPTS} other connections arrived in its place")]
    Strangers(String),
}

impl RequestError for TaskStartError {}

fn cookie() -> Result<Vec<u8>, TaskStartError> {
    let cookie = std::env::var(COOKIE).ok();
    let cookie = cookie.filter(|cookie| !cookie.is_empty());
    Ok(cookie.ok_or(TaskStartError::NoCookie)?.into_bytes())
}

fn failed(error: io::Error) -> CommandError {
    CommandError::system("task manager", error)
}

/// Executes a command on a host of the job, and passes on its standard input and output.
///
/// # Errors
/// One line.
pub fn caller(words: Vec<String>) -> Result<u8, CommandError> {
    let [host, command @ ..] = &words[..] else {
        return Err(TaskStartError::NoHost.into());
    };
    let cookie = cookie()?;
    run(async |_| {
        // The launcher has them from the job's session too.
        let _ignored = RankSignals::new()?;
        let caller = TaskCaller::new().map_err(failed)?;
        let listener = match TcpListener::bind("[::]:0").await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind("0.0.0.0:0").await.map_err(failed)?,
        };
        let port = listener.local_addr().map_err(failed)?.port();
        let mut starter = Command::new(STARTER)
            .arg(host)
            .arg(std::env::current_exe().map_err(failed)?)
            .args([
                TASK,
                &format!("{}:{port}", host_name()),
                &caller.fingerprint(),
            ])
            .args(command)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| CommandError::system(STARTER, error))?;
        let task = tokio::select! {
            task = admitted(&listener, &caller, &cookie) => {
                task.ok_or_else(|| TaskStartError::Strangers(host.clone()))?
            }
            status = starter.wait() => {
                let (host, status) = (host.clone(), status.map_err(failed)?);
                return Err(TaskStartError::Ended { host, status }.into());
            }
        };
        drop(listener);
        let (from, to) = split(task);
        let input = tokio::spawn(carry(tokio::io::stdin(), to));
        // Ends with the output of the command there.
        carry(from, tokio::io::stdout()).await;
        input.abort();
        let _ = timeout(END_LIMIT, starter.wait()).await;
        Ok(())
    })
}

/// Returns the first connection that proves to be the task's; `None` after too many that do not.
async fn admitted(
    listener: &TcpListener,
    caller: &TaskCaller,
    cookie: &[u8],
) -> Option<TlsStream<TcpStream>> {
    let mut handshakes = JoinSet::new();
    let mut attempts = 0;
    loop {
        tokio::select! {
            // One that is refused ends there, and the next is taken.
            accepted = listener.accept(), if attempts < ATTEMPTS => {
                if let Ok((stream, _)) = accepted {
                    attempts += 1;
                    let (caller, cookie) = (caller.clone(), cookie.to_owned());
                    handshakes.spawn(async move {
                        let task = timeout(HANDSHAKE, caller.admit(stream, &cookie)).await;
                        task.ok().and_then(Result::ok)
                    });
                }
            }
            Some(task) = handshakes.join_next() => {
                if let Ok(Some(task)) = task {
                    return Some(task);
                }
            }
            else => return None,
        }
    }
}

/// Executes a command with standard input and output from and to the caller.
///
/// # Errors
/// One line.
pub fn task(words: Vec<String>) -> Result<u8, CommandError> {
    let [address, fingerprint, program, args @ ..] = &words[..] else {
        return Err(TaskStartError::NoAddress.into());
    };
    let cookie = cookie()?;
    run(async |_| {
        let rank_signals = RankSignals::new()?;
        let task = Task::new(fingerprint).map_err(failed)?;
        let caller = task.connect(address, &cookie).await.map_err(failed)?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| CommandError::system(program.clone(), error))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw);
        rank_signals.pass(Duration::ZERO, move |signal| {
            // A command that has ended and is not collected yet needs none.
            let _ = pid.map(|pid| kill_process(pid, signal));
        });
        if let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) {
            let (from, to) = split(caller);
            let input = tokio::spawn(carry(from, stdin));
            carry(stdout, to).await;
            input.abort();
        }
        let status = child.wait().await.map_err(failed)?;
        match status.success() {
            true => Ok(()),
            false => Err(CommandError::system(
                program.clone(),
                io::Error::other(status.to_string()),
            )),
        }
    })
}

/// Copies until the end of the input, and closes the output.
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let _ = copy(&mut from, &mut to).await;
    let _ = to.shutdown().await;
}
