//! The streams of a launch: watch, standard input and output, queries.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::Outgoing;
use crate::proto::v1::watch_event::Event;
use crate::proto::v1::{LaunchInfo, StdioInput, StdioOutput, WatchEvent};
use crate::scheduled::launch_progress::Cursor;
use crate::scheduled::scheduled_launch::{LauncherState, ScheduledLaunch, Stdin};
use crate::scheduled::unread_output::BufferedOutput;

/// Messages on their way to a client. Behind them its own flow control counts.
const QUEUE: usize = 4;

/// Events that a watcher takes at a time.
const EVENTS: usize = 256;

fn outgoing<T: Send + 'static>() -> (mpsc::Sender<Result<T, Status>>, Outgoing<T>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (sender, Box::pin(ReceiverStream::new(receiver)))
}

/// Returns the state changes of a launch, up to its end.
pub(super) fn watch(
    launch: Arc<ScheduledLaunch>,
    head: Arc<LauncherState>,
) -> Outgoing<WatchEvent> {
    let (client, stream) = outgoing();
    tokio::spawn(async move {
        // A client that is gone needs nothing.
        let _ = send_events(&launch, &head, &client).await;
    });
    stream
}

async fn send_events(
    launch: &ScheduledLaunch,
    head: &LauncherState,
    client: &mpsc::Sender<Result<WatchEvent, Status>>,
) -> Result<(), mpsc::error::SendError<Result<WatchEvent, Status>>> {
    let mut bell = head.news();
    let mut cursor = Cursor::default();
    loop {
        let (news, over) = {
            let progress = head.progress();
            let news = progress.news(&mut cursor, EVENTS);
            (news, progress.is_over(cursor))
        };
        let silent = news.is_empty();
        for event in news {
            client.send(Ok(event)).await?;
        }
        if over {
            break;
        }
        if silent {
            tokio::select! {
                // Its sender is in the launch.
                _ = bell.changed() => {}
                () = client.closed() => return Ok(()),
            }
        }
    }
    let (since, parts) = {
        let progress = head.progress();
        (
            progress.changed_at(),
            progress.complete(&launch.id, &launch.allocation),
        )
    };
    for part in parts {
        let event = WatchEvent {
            time_ms: since,
            past: false,
            event: Some(Event::Complete(part)),
        };
        client.send(Ok(event)).await?;
    }
    Ok(())
}

/// A reader of a launch's output, which another may follow.
struct OutputReader(Arc<LauncherState>);

impl Drop for OutputReader {
    fn drop(&mut self) {
        self.0.output(BufferedOutput::detach);
    }
}

/// Connects a client to the ranks.
///
/// # Errors
/// When another is connected.
pub(super) fn stdio(
    launch: Arc<ScheduledLaunch>,
    head: Arc<LauncherState>,
    first: StdioInput,
    input: Streaming<StdioInput>,
) -> Result<Outgoing<StdioOutput>, Status> {
    if !head.output(BufferedOutput::attach) {
        return Err(Status::already_exists(format!(
            "another client reads the standard output of launch {:?}: close its stream first",
            launch.id
        )));
    }
    let attached = OutputReader(head);
    let (client, stream) = outgoing();
    let problems = client.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = forward(&attached.0, &client) => {}
            problem = feed(&launch, &attached.0, first, input) => {
                let _ = problems.send(Err(problem)).await;
            }
        }
    });
    Ok(stream)
}

/// Sends output until there is no more, or no receiver.
async fn forward(head: &LauncherState, client: &mpsc::Sender<Result<StdioOutput, Status>>) {
    let mut moves = head.moves();
    loop {
        // Room first: output taken from the launch cannot be put back.
        let Ok(room) = client.reserve().await else {
            return;
        };
        match head.take_output() {
            Some(piece) => room.send(Ok(piece)),
            None if head.output_is(BufferedOutput::is_over) => return,
            None => {
                drop(room);
                tokio::select! {
                    // Its sender is in the launch.
                    _ = moves.changed() => {}
                    () = client.closed() => return,
                }
            }
        }
    }
}

/// Writes input until the client has a problem; a client without more input has none.
async fn feed(
    launch: &ScheduledLaunch,
    head: &LauncherState,
    mut message: StdioInput,
    mut input: Streaming<StdioInput>,
) -> Status {
    loop {
        if let Err(problem) = write(launch, head, &message).await {
            return problem;
        }
        message = match input.message().await {
            Ok(Some(message)) => message,
            Ok(None) => StdioInput {
                eof: true,
                ..Default::default()
            },
            // The stream is broken: its other direction finds that out.
            Err(_) => return std::future::pending().await,
        };
        if message.eof && message.data.is_empty() {
            let _ = write(launch, head, &message).await;
            return std::future::pending().await;
        }
    }
}

async fn write(
    launch: &ScheduledLaunch,
    head: &LauncherState,
    message: &StdioInput,
) -> Result<(), Status> {
    let mut stdin = head.stdin.lock().await;
    match &mut *stdin {
        Stdin::Nobody if !message.data.is_empty() => {
            return Err(Status::failed_precondition(format!(
                "no rank reads the standard input of launch {:?}: set job.stdin when you start it",
                launch.id
            )));
        }
        Stdin::Open(pipe) => {
            // Readers that are gone are not distinguished from readers that do not read.
            if pipe.write_all(&message.data).await.is_err() {
                *stdin = Stdin::Ended;
            }
        }
        Stdin::Nobody | Stdin::Ended => {}
    }
    if message.eof && matches!(*stdin, Stdin::Open(_)) {
        *stdin = Stdin::Ended;
    }
    Ok(())
}

/// Streams the state of launches.
pub(super) fn query(launches: Vec<Arc<ScheduledLaunch>>, ranks: bool) -> Outgoing<LaunchInfo> {
    let info = stream::iter(launches).flat_map(move |launch| stream::iter(launch.info(ranks)));
    Box::pin(info.map(Ok))
}
