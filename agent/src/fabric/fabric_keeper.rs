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

use super::grant_records::Kept;
use super::{Manager, drive, finish, sweep};
use wireup::backend::fabric_grant::{FromKeeper, ToKeeper, read_message, write_message};
use wireup::failure::{AnyError, RunFailure};
use wireup::sys::signals;
use wireup_core::fabric::life::{Life, Order};
use wireup_core::fabric::record::Record;
use wireup_core::fabric::rest::Wanted;
use wireup_core::job::spec::FabricSpec;

/// How much later than the keeper of the launcher a node does its work, and the second node than the first.
const LATER: Duration = Duration::from_secs(5);

/// What has happened to the process that started this one.
enum Event {
    Said(ToKeeper),
    /// It has closed its pipe, or is no more.
    Gone,
}

/// Serves one launch.
///
/// # Errors
/// [`RunFailure`] if nothing can be done at all.
pub fn main() -> Result<u8, RunFailure> {
    let failed = |error: AnyError| RunFailure::system("cannot keep a credential", error);
    // A key is in this process: its memory is in no core dump, and no other process of the user looks into it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|errno| failed(errno.into()))?;
    let _ = setsid();
    signals::block_for_ranks();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(error.into()))?;
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

fn watch_input(to: Sender<Event>) {
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        while let Ok(Some(message)) = read_message(&mut input) {
            if to.blocking_send(Event::Said(message)).is_err() {
                return;
            }
        }
        let _ = to.blocking_send(Event::Gone);
    });
}

/// A process that the launcher has forked may hold the other end of the pipe for longer than it lives.
fn watch_parent(parent: Option<Pid>, to: Sender<Event>) {
    std::thread::spawn(move || {
        let pidfd = parent.and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
        if let Some(pidfd) = pidfd {
            let mut ready = [PollFd::new(&pidfd, PollFlags::IN)];
            while poll(&mut ready, None).is_err() {}
        }
        let _ = to.blocking_send(Event::Gone);
    });
}

async fn serve(mut events: Receiver<Event>) -> io::Result<()> {
    match events.recv().await {
        Some(Event::Said(ToKeeper::Obtain(wanted, spec))) => {
            // What others have left may take longer than this launch.
            tokio::spawn(sweep());
            obtain(wanted, spec, &mut events).await
        }
        Some(Event::Said(ToKeeper::Watch(record, node))) => watch(record, node, &mut events).await,
        Some(Event::Said(ToKeeper::Finished) | Event::Gone) | None => Ok(()),
    }
}

/// Returns when the launch is over, in order or not, or this process is to end.
async fn over(events: &mut Receiver<Event>) -> io::Result<bool> {
    let mut ended = signal(SignalKind::terminate())?;
    tokio::select! {
        event = events.recv() => Ok(matches!(event, Some(Event::Said(ToKeeper::Finished)))),
        _ = ended.recv() => Ok(false),
    }
}

/// Whether the launcher can still read it.
fn tell(message: &FromKeeper) -> bool {
    write_message(&mut io::stdout(), message).is_ok()
}

async fn obtain(wanted: Wanted, spec: FabricSpec, events: &mut Receiver<Event>) -> io::Result<()> {
    let refuse = |reason: String| {
        // A launcher that is gone needs no reason.
        let _ = tell(&FromKeeper::Refused(reason)) && tell(&FromKeeper::Over(None));
        Ok(())
    };
    let manager = match Manager::new(&spec) {
        Ok(manager) => manager,
        Err(error) => return refuse(error.to_string()),
    };
    let name = wanted.name.clone();
    let mut kept = match Kept::new(&name) {
        Ok(kept) => kept,
        Err(error) => return refuse(format!("no record of it can be kept: {error}")),
    };
    let since = Instant::now();
    let (mut life, order) = Life::begin(wanted, spec, Duration::ZERO);
    // A launch that is over meanwhile is seen afterwards: until there is an answer, what there is to revoke is not known.
    let order = drive(&manager, (&mut life, order), &mut kept, since).await?;
    match order {
        Order::Provide(credential) => {
            tell(&FromKeeper::Provided(Box::new(credential), life.record()));
            over(events).await?;
        }
        // The launcher ends with this. What may exist is looked for as long as that takes.
        Order::Refuse(reason) => {
            tell(&FromKeeper::Refused(reason));
        }
        Order::Send(_) | Order::Wait(_) | Order::Over { .. } => {}
    }
    let order = life.end(since.elapsed());
    let order = drive(&manager, (&mut life, order), &mut kept, since).await?;
    let Order::Over { leak } = order else {
        return Ok(());
    };
    let heard = tell(&FromKeeper::Over(leak.clone()));
    if let Some(leak) = leak.filter(|_| !heard) {
        eprintln!("wireup: --fabric: the credential of {name} may not be revoked: {leak}");
    }
    Ok(())
}

async fn watch(record: Record, node: u32, events: &mut Receiver<Event>) -> io::Result<()> {
    if over(events).await? {
        return Ok(());
    }
    let name = record.name.clone();
    let delay = LATER * (node + 1);
    if let Some(leak) = finish(record, &mut Kept::elsewhere(), delay).await {
        eprintln!("wireup: --fabric: the credential of {name} may not be revoked: {leak}");
    }
    Ok(())
}
