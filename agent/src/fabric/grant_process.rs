//! The process that a launcher starts to have a credential, and a step to watch over it.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, getppid, pidfd_open, set_dumpable_behavior, setsid,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::Instant;

use super::grant_records::LockedGrantRecord;
use super::{FabricManager, drive, finish, sweep, with_site_settings};
use wireup_core::fabric::grant_lifecycle::{GrantAction, GrantLifecycle};
use wireup_core::fabric::grant_record::GrantRecord;
use wireup_core::fabric::manager_rest::GrantRequest;
use wireup_core::failure::{AnyError, CommandError};
use wireup_core::job::spec::FabricSpec;
use wireup_core::link::grant_holder_messages::{
    GrantHolderReply, GrantHolderRequest, read_message, write_message,
};
use wireup_sys::signals;

/// Delay of a node's revocation after the launcher's, and of each node after the one before.
const LATER: Duration = Duration::from_secs(5);

/// Event of the process that started this one.
enum ParentEvent {
    Request(GrantHolderRequest),
    /// The process has closed its pipe, or has ended.
    Gone,
}

/// Serves one launch until its grant is revoked.
///
/// # Errors
/// [`CommandError`] if the process cannot start its work.
pub fn main() -> Result<u8, CommandError> {
    let failed = |error: AnyError| CommandError::system("cannot hold a fabric grant", error);
    // This process holds a key: its memory is in no core dump, and no other process of the user looks into it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|errno| failed(errno.into()))?;
    let _ = setsid();
    signals::block_for_ranks();
    let runtime = crate::worker_threads::single_task().map_err(|error| failed(error.into()))?;
    let parent = getppid();
    let (sender, events) = mpsc::channel(4);
    watch_input(sender.clone());
    watch_parent(parent, sender);
    let result = runtime.block_on(serve(events));
    // The thread that reads standard input is not waited for.
    runtime.shutdown_background();
    result.map_err(|error| failed(error.into()))?;
    Ok(0)
}

fn watch_input(to: Sender<ParentEvent>) {
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        while let Ok(Some(message)) = read_message(&mut input) {
            if to.blocking_send(ParentEvent::Request(message)).is_err() {
                return;
            }
        }
        let _ = to.blocking_send(ParentEvent::Gone);
    });
}

/// Reports the end of the parent. A process that the launcher has forked may hold the other end of the pipe for longer
/// than the launcher lives.
fn watch_parent(parent: Option<Pid>, to: Sender<ParentEvent>) {
    std::thread::spawn(move || {
        let pidfd = parent.and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
        if let Some(pidfd) = pidfd {
            let mut ready = [PollFd::new(&pidfd, PollFlags::IN)];
            while poll(&mut ready, None).is_err() {}
        }
        let _ = to.blocking_send(ParentEvent::Gone);
    });
}

async fn serve(mut events: Receiver<ParentEvent>) -> io::Result<()> {
    match events.recv().await {
        Some(ParentEvent::Request(GrantHolderRequest::Obtain(grant_request, spec))) => {
            // What others have left may take longer than this launch.
            tokio::spawn(sweep());
            obtain(grant_request, spec, &mut events).await
        }
        Some(ParentEvent::Request(GrantHolderRequest::Watch(record, node))) => {
            watch(record, node, &mut events).await
        }
        Some(ParentEvent::Request(GrantHolderRequest::Finished) | ParentEvent::Gone) | None => {
            Ok(())
        }
    }
}

/// Waits until the launch is over, in order or not, or this process is to end.
async fn wait_for_end(events: &mut Receiver<ParentEvent>) -> io::Result<bool> {
    let mut ended = signal(SignalKind::terminate())?;
    tokio::select! {
        event = events.recv() => Ok(matches!(event, Some(ParentEvent::Request(GrantHolderRequest::Finished)))),
        _ = ended.recv() => Ok(false),
    }
}

/// Whether the launcher can still read it.
fn send_reply(message: &GrantHolderReply) -> bool {
    write_message(&mut io::stdout(), message).is_ok()
}

async fn obtain(
    grant_request: GrantRequest,
    spec: FabricSpec,
    events: &mut Receiver<ParentEvent>,
) -> io::Result<()> {
    let refuse = |reason: String| {
        // A launcher that is gone needs no reason.
        let _ = send_reply(&GrantHolderReply::Refused(reason))
            && send_reply(&GrantHolderReply::Over(None));
        Ok(())
    };
    let spec = match with_site_settings(spec) {
        Ok(spec) => spec,
        Err(error) => return refuse(error.to_string()),
    };
    let manager = match FabricManager::new(&spec) {
        Ok(manager) => manager,
        Err(error) => return refuse(error.to_string()),
    };
    let name = grant_request.name.clone();
    let mut grant_record = match LockedGrantRecord::new(&name) {
        Ok(grant_record) => grant_record,
        Err(error) => return refuse(format!("cannot write a record of the grant: {error}")),
    };
    let since = Instant::now();
    let (mut life, order) = GrantLifecycle::begin(grant_request, spec, Duration::ZERO);
    // The end of the launch meanwhile is seen afterwards: until there is an answer, it is not known what there is to
    // revoke.
    let order = drive(&manager, (&mut life, order), &mut grant_record, since).await?;
    match order {
        GrantAction::Provide(credential) => {
            send_reply(&GrantHolderReply::Provided(
                Box::new(credential),
                life.record(),
            ));
            wait_for_end(events).await?;
        }
        // The launcher ends with this refusal. A search for a credential that may exist goes on as long as that takes.
        GrantAction::Refuse(reason) => {
            send_reply(&GrantHolderReply::Refused(reason));
        }
        GrantAction::Send(_) | GrantAction::Wait(_) | GrantAction::Over { .. } => {}
    }
    let order = life.end(since.elapsed());
    let order = drive(&manager, (&mut life, order), &mut grant_record, since).await?;
    let GrantAction::Over { leak } = order else {
        return Ok(());
    };
    let is_sent = send_reply(&GrantHolderReply::Over(leak.clone()));
    if let Some(leak) = leak.filter(|_| !is_sent) {
        eprintln!("wireup: --fabric: the fabric grant of {name} may remain: {leak}");
    }
    Ok(())
}

async fn watch(
    record: GrantRecord,
    node: u32,
    events: &mut Receiver<ParentEvent>,
) -> io::Result<()> {
    if wait_for_end(events).await? {
        return Ok(());
    }
    let name = record.name.clone();
    let delay = LATER * (node + 1);
    if let Some(leak) = finish(record, &mut LockedGrantRecord::without_file(), delay).await {
        eprintln!("wireup: --fabric: the fabric grant of {name} may remain: {leak}");
    }
    Ok(())
}
