//! The process `wireup launch` of a launch: its start, output, orders and end.
//!
//! It runs as the launch's user, who controls its output: so the output is bounded, and counts
//! for this launch only.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use prost::bytes::Bytes;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::process::WatchedProcess;
use crate::launch::launch_registry::RunningLauncher;
use crate::proto::v1::{StdioOutput, StdioStream};
use crate::scheduled::scheduled_launch::{
    LauncherCommand, LauncherState, ScheduledLaunch, Stdin, now,
};
use wireup_core::record::{OptionalRankId, SignalCommand, StatusRecord, Stream};
use wireup_core::wording::json_problem;
use wireup_sys::spawn::ExitStatus;

/// Bytes of a line for each rank: the result has all of them.
const LINE_PER_RANK: u64 = 2048;
/// Bytes of a line besides.
const LINE: u64 = 1024 * 1024;

/// Bytes of a line on standard error.
const STDERR_LINE_MAX: u64 = 64 * 1024;

/// Bytes of orders that a launcher has not taken yet, beyond which no more are given.
const ORDERS_MAX: usize = 4 * 1024 * 1024;

/// Time for which an open pipe may be silent after the launcher's end, if another process holds it.
const KEPT: Duration = Duration::from_secs(5);

/// Maximum bytes of output in one message; clients accept 4 MiB by default.
const PIECE: usize = 1024 * 1024;

/// Time for a launcher to end beyond its ranks' grace time, before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Default of a rank's grace. Source: docs/ending.md.
const GRACE: Duration = Duration::from_secs(2);

/// Error: a line is not a record of the status stream.
#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error("invalid line from the launcher: {}", json_problem(.0))]
    Json(serde_json::Error),
    #[error("incomplete line from the launcher")]
    Cut,
}

/// A process that was just started.
#[derive(Debug)]
pub struct ScheduledLauncher {
    pub process: WatchedProcess,
    /// Pipe for orders to the launcher; the launcher ends when it is closed.
    pub control: pipe::Sender,
    pub stdout: pipe::Receiver,
    /// Standard error of the launcher.
    pub stderr: pipe::Receiver,
    pub orders: mpsc::UnboundedReceiver<LauncherCommand>,
    /// Time between SIGTERM and SIGKILL for its ranks, if it is not the default.
    pub grace: Option<Duration>,
    /// Keeps the agent until it has ended.
    pub started: RunningLauncher,
}

/// Lives as long as the launcher of a launch, and then ends the launch.
pub async fn supervise(
    launch: Arc<ScheduledLaunch>,
    head: Arc<LauncherState>,
    mut launcher: ScheduledLauncher,
) {
    let head = &*head;
    let limit = LINE + LINE_PER_RANK * u64::from(launch.place.size);
    let gone = watch::Sender::new(false);
    let mut last = String::new();
    let read = async {
        let stdout = Pipe::new(launcher.stdout, limit, gone.subscribe());
        let stderr = Pipe::new(launcher.stderr, STDERR_LINE_MAX, gone.subscribe());
        let (unreadable, ()) = tokio::join!(lines(head, stdout), words(head, stderr, &mut last));
        unreadable
    };
    let wait = async {
        let patience = launcher.grace.unwrap_or(GRACE) + PATIENCE;
        let (process, control) = (&launcher.process, &launcher.control);
        let status = run(head, process, control, &mut launcher.orders, patience).await;
        gone.send_replace(true);
        status
    };
    let (unreadable, status) = tokio::join!(read, wait);

    let lost = match (unreadable, status) {
        (Some(error), _) => error.to_string(),
        (None, Ok(status)) => lost(status, &last),
        (None, Err(error)) => format!("unknown exit status of the launcher: {error}"),
    };
    // A client that writes has found the pipe broken by now.
    *head.stdin.lock().await = Stdin::Ended;
    launch.end();
    head.drop_resizes();
    head.learn(|progress| progress.end(&lost, now()));
    head.output(crate::scheduled::unread_output::BufferedOutput::end);
    drop(launcher.started);
    let progress = head.progress();
    let (_, reason) = progress.state();
    tracing::info!(
        launch = launch.id,
        uid = launch.owner,
        reason,
        "launch ended"
    );
}

/// Carries out orders until the process has ended.
async fn run(
    head: &LauncherState,
    process: &WatchedProcess,
    control: &pipe::Sender,
    orders: &mut mpsc::UnboundedReceiver<LauncherCommand>,
    patience: Duration,
) -> std::io::Result<ExitStatus> {
    let mut ended = pin!(process.ended());
    let mut deadline: Option<Instant> = None;
    // Orders not read yet: a launcher that does not read must not delay its own end.
    let mut unread = Vec::new();
    loop {
        let due = deadline.unwrap_or_else(Instant::now);
        let order = tokio::select! {
            status = &mut ended => {
                orders.close();
                return status;
            }
            () = sleep_until(due), if deadline.is_some() => {
                process.signal(Signal::KILL);
                deadline = None;
                continue;
            }
            _ = control.writable(), if !unread.is_empty() => {
                match control.try_write(&unread) {
                    Ok(count) => drop(unread.drain(..count)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // It is about to end.
                    Err(_) => unread.clear(),
                }
                continue;
            }
            Some(order) = orders.recv() => order,
        };
        if unread.len() > ORDERS_MAX {
            tracing::warn!("a launcher does not read its commands: one is lost");
            if let LauncherCommand::Resize(resize) = &order {
                head.refuse_resize(resize.request, "the launcher does not read its commands");
            }
            if !matches!(order, LauncherCommand::End) {
                continue;
            }
        }
        let mut line = Vec::new();
        match order {
            LauncherCommand::Signal(signal) => signal.write(&mut line),
            LauncherCommand::Resize(resize) => resize.write(&mut line),
            LauncherCommand::End => {
                // Remaining output must not delay it.
                head.output(crate::scheduled::unread_output::BufferedOutput::release);
                deadline.get_or_insert_with(|| Instant::now() + patience);
                SignalCommand::new(Signal::TERM.as_raw(), None).write(&mut line);
            }
        }
        unread.append(&mut line);
    }
}

/// Describes the end of a launcher that has not reported a result.
fn lost(status: ExitStatus, last: &str) -> String {
    let how = match status {
        ExitStatus::Code(code) => format!("the launcher exited with code {code}"),
        ExitStatus::Signal { number, .. } => format!("the launcher was killed by signal {number}"),
    };
    match last {
        "" => how,
        last => format!("{how}: {last}"),
    }
}

/// A pipe of the launcher's, read by lines.
struct Pipe<R> {
    pipe: BufReader<R>,
    limit: u64,
    launcher_end: watch::Receiver<bool>,
}

impl<R: AsyncRead + Unpin> Pipe<R> {
    fn new(pipe: R, limit: u64, launcher_end: watch::Receiver<bool>) -> Self {
        Self {
            pipe: BufReader::with_capacity(64 * 1024, pipe),
            limit,
            launcher_end,
        }
    }

    /// Reads a line with its end, or as much as is allowed; false at the end of the stream. A pipe
    /// that another process holds open after the launcher's end is given up as well.
    async fn line(&mut self, line: &mut Vec<u8>) -> bool {
        line.clear();
        let gone = &mut self.launcher_end;
        let abandoned = async {
            // Its sender exists as long as this pipe is read.
            let _ = gone.wait_for(|gone| *gone).await;
            sleep(KEPT).await;
        };
        let mut pipe = (&mut self.pipe).take(self.limit);
        tokio::select! {
            read = pipe.read_until(b'\n', line) => matches!(read, Ok(1..)),
            () = abandoned => false,
        }
    }

    /// Reads on without looking.
    async fn discard(mut self) {
        let mut line = Vec::new();
        while self.line(&mut line).await {}
    }
}

/// Reads the status stream to its end; a record that cannot be read ends the launch.
async fn lines(head: &LauncherState, mut stdout: Pipe<pipe::Receiver>) -> Option<LineError> {
    let mut line = Vec::new();
    // The launcher's clock counts from its start, and its lines may have waited.
    let mut origin = None;
    loop {
        if !stdout.line(&mut line).await {
            return None;
        }
        let parsed = match line.last() {
            Some(b'\n') => StatusRecord::read(&line).map_err(LineError::Json),
            _ => Err(LineError::Cut),
        };
        match parsed {
            Ok((_, StatusRecord::Output(output))) => {
                let (speaker, stream) = (output.speaker, output.stream);
                deliver(head, speaker, stream, output.into_bytes().into()).await;
            }
            Ok((_, StatusRecord::ResizeReply(reply))) => head.on_resize_reply(reply),
            Ok((time, record)) => {
                let ms = wireup_core::record::ms(time);
                let origin = *origin.get_or_insert_with(|| now().saturating_sub_unsigned(ms));
                head.learn(|progress| progress.take(record, origin.saturating_add_unsigned(ms)));
            }
            Err(error) => {
                head.order(LauncherCommand::End);
                // The launcher must be able to continue writing until it has ended.
                stdout.discard().await;
                return Some(error);
            }
        }
    }
}

/// Passes on output of a rank or the launcher, once there is room for it.
async fn deliver(head: &LauncherState, speaker: OptionalRankId, stream: Stream, mut bytes: Bytes) {
    let stream = match stream {
        Stream::Stdout => StdioStream::Stdout,
        Stream::Stderr => StdioStream::Stderr,
    };
    let mut moves = head.moves();
    while !bytes.is_empty() {
        while !head.output_is(crate::scheduled::unread_output::BufferedOutput::has_room) {
            // Its sender is in `head`.
            let _ = moves.changed().await;
        }
        let data = bytes.split_to(bytes.len().min(PIECE));
        head.output(|output| {
            output.push(StdioOutput {
                rank: speaker.rank.map(|rank| rank.0),
                stream: stream.into(),
                data,
                spawned_job: speaker.spawned_job.map_or(0, |job| job.0),
                // No bytes were lost before it.
                ..StdioOutput::default()
            });
        });
    }
}

/// Reads the launcher's standard error, and keeps the last line.
async fn words(head: &LauncherState, mut stderr: Pipe<pipe::Receiver>, last: &mut String) {
    let mut line = Vec::new();
    while stderr.line(&mut line).await {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        let text = text.strip_prefix("wireup: ").unwrap_or(text);
        *last = text.replace(char::is_control, " ");
        let bytes = Bytes::from(std::mem::take(&mut line));
        deliver(head, OptionalRankId::default(), Stream::Stderr, bytes).await;
    }
}
