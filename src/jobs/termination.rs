//! Sends signals to jobs and terminates them.
//!
//! A signal that the launcher passes on goes to the launcher, which then has the reason why its ranks exit; every
//! other signal goes to the ranks' process groups, as the launcher would send it. A job on several
//! hosts whose launcher is on another host is terminated through its step daemon here, whose end the launcher
//! detects; other signals reach the ranks of this machine alone. A job without launcher and step daemon is terminated
//! and cleaned up here, as its guard would do.

mod signal_error;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;
use rustix::process::Signal;

pub use signal_error::{EndError, remote_ranks_text};

use super::discover::{UserScope, jobs};
use super::name;
use super::snapshot::Snapshot;
use super::{JobLifeState, LocalJobInfo, Rank};
use crate::backend::cleanup_record;
use crate::backend::cleanup_record::CleanupRecord;
use crate::backend::job_label;
use crate::backend::job_label::JobStage;
use crate::backend::orphaned_job_cleanup::{GIVE_UP, LOOK_AT_LEAST, OrphanedJobCleanup};
use wireup_core::job::spec::GRACE;
use wireup_sys::leftovers;
use wireup_sys::pidfd::ProcessHandle;
use wireup_sys::poll::pause;
use wireup_sys::privileges::{NOBODY, as_user};
use wireup_sys::procfs;
use wireup_sys::procfs::Process;
use wireup_sys::signals;

/// Interval between checks of a job that is ending.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time in which a launcher or step daemon must begin to end its job.
const BEGIN: Duration = Duration::from_secs(2);

/// Age by which files of the job may exceed its oldest remaining process: ranks that have exited created them.
const OLDER: Duration = Duration::from_secs(60);

/// The recipient of a signal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SignalRecipient {
    /// The launcher, which passes the signal on.
    Launcher,
    /// The launcher, which got SIGTERM instead: no rank runs that could be killed.
    LauncherInstead,
    /// The launcher, which was made to kill the ranks of all hosts.
    LauncherKills,
    /// The step daemons of a job whose launcher is on another host; they got SIGTERM.
    Steps,
    /// The process groups of these ranks.
    Ranks(Vec<u32>),
    /// The remaining processes of a job without a launcher, counted; all have exited, and their files were removed.
    Leftovers(usize),
    /// No process: the guard is ending the job already.
    Nobody,
}

/// Recipients of a signal that was sent, and the processes that should exit.
#[derive(Debug)]
pub struct SentSignal {
    pub receiver: SignalRecipient,
    /// Selected ranks that did not get the signal, by the other host on which they run.
    pub elsewhere: Vec<(String, Vec<u32>)>,
    /// Processes to wait for; empty if all have exited.
    pub waited_for: Vec<ProcessHandle>,
}

/// Whether a signal is used to terminate jobs; ranks that do not handle it exit.
pub fn ends(signal: Signal) -> bool {
    [Signal::TERM, Signal::HUP, Signal::QUIT, Signal::KILL].contains(&signal)
}

impl SentSignal {
    fn to(receiver: SignalRecipient, waited_for: Vec<ProcessHandle>) -> Self {
        Self {
            receiver,
            elsewhere: Vec::new(),
            waited_for,
        }
    }
}

/// Sends a signal to a job, or to some of its ranks.
///
/// # Errors
/// [`EndError`]; some processes may have got the signal before the error.
pub fn signal(
    job: &LocalJobInfo,
    ranks: Option<&[u32]>,
    signal: Signal,
) -> Result<SentSignal, EndError> {
    if let Some(ranks) = ranks {
        return to_ranks(job, ranks, signal);
    }
    let Some(launcher) = &job.launcher else {
        return match (job.steps.is_empty(), job.state, ends(signal)) {
            (false, _, true) => end_steps(job, signal),
            (true, JobLifeState::Ending, _) => {
                Ok(SentSignal::to(SignalRecipient::Nobody, Vec::new()))
            }
            (true, _, true) => clean(job, signal),
            (_, _, false) => to_all_ranks(job, signal),
        };
    };
    let Some(held) = hold(launcher)? else {
        // The launcher has exited since it was found; the wait that follows detects that.
        return Ok(SentSignal::to(SignalRecipient::Launcher, Vec::new()));
    };
    // Ranks that do not run yet cannot be killed; SIGTERM makes the launcher not start them.
    let early = signal == Signal::KILL && job.ranks.is_empty();
    let mut elsewhere = Vec::new();
    let receiver = if signal == Signal::KILL && job.is_on_several_hosts() {
        make_launcher_kill(job, launcher, &held)?;
        SignalRecipient::LauncherKills
    } else if early {
        send(&held, launcher, Signal::TERM)?;
        SignalRecipient::LauncherInstead
    } else if passes_on(launcher.pid, signal) {
        send(&held, launcher, signal)?;
        SignalRecipient::Launcher
    } else {
        let sent = to_all_ranks(job, signal)?;
        elsewhere = sent.elsewhere;
        sent.receiver
    };
    if ends(signal) && job.state == JobLifeState::Stopped {
        send(&held, launcher, Signal::CONT)?;
    }
    Ok(SentSignal {
        receiver,
        elsewhere,
        waited_for: vec![held],
    })
}

/// Makes a launcher kill the ranks of all hosts, by SIGINT while it ends its job. A launcher that was started with SIGINT
/// ignored gets only SIGTERM, and its ranks their grace time.
fn make_launcher_kill(
    job: &LocalJobInfo,
    launcher: &Process,
    handle: &ProcessHandle,
) -> Result<(), EndError> {
    send(handle, launcher, Signal::TERM)?;
    if launcher.is_stopped() {
        send(handle, launcher, Signal::CONT)?;
    }
    await_ending(job, launcher);
    if !procfs::ignores(launcher.pid, Signal::INT.as_raw()) {
        send(handle, launcher, Signal::INT)?;
    }
    Ok(())
}

/// Waits until a launcher or step daemon has begun to end the job, at most [`BEGIN`].
fn await_ending(job: &LocalJobInfo, leader: &Process) {
    let start = Instant::now();
    let ending = || {
        let label = job_label::read(leader.pid, |name| Some(name) == job.name.as_deref());
        label.is_none_or(|label| label.stage == JobStage::Ending)
    };
    while !ending() && start.elapsed() < BEGIN {
        pause(POLL_INTERVAL);
    }
}

/// Terminates a job whose launcher is on another host, through its step daemons here.
fn end_steps(job: &LocalJobInfo, signal: Signal) -> Result<SentSignal, EndError> {
    let mut waited_for = Vec::new();
    for step in &job.steps {
        let Some(held) = hold(&step.process)? else {
            continue;
        };
        send(&held, &step.process, Signal::TERM)?;
        if step.process.is_stopped() {
            send(&held, &step.process, Signal::CONT)?;
        }
        waited_for.push(held);
    }
    if signal == Signal::KILL && !job.ranks.is_empty() {
        // If the ranks were killed first, the launcher might report a rank killed by an unknown sender.
        for step in &job.steps {
            await_ending(job, &step.process);
        }
        to_all_ranks(job, signal)?;
    }
    Ok(SentSignal::to(SignalRecipient::Steps, waited_for))
}

/// Whether a launcher passes a signal on to its ranks.
fn passes_on(launcher: i32, signal: Signal) -> bool {
    let taken = signals::is_taken(signal.as_raw()) && signal != Signal::CHILD;
    taken && !procfs::ignores(launcher, signal.as_raw())
}

/// Signals all ranks of this machine, those of spawned jobs included.
fn to_all_ranks(job: &LocalJobInfo, signal: Signal) -> Result<SentSignal, EndError> {
    let elsewhere = job.remote_ranks();
    if job.ranks.is_empty() {
        return Err(match elsewhere.is_empty() {
            true => EndError::NoRanks,
            false => EndError::Elsewhere(elsewhere),
        });
    }
    let living: Vec<&Rank> = job.ranks.iter().collect();
    to_groups(&living, elsewhere, signal)
}

/// Signals some ranks of the initial job.
fn to_ranks(job: &LocalJobInfo, ranks: &[u32], signal: Signal) -> Result<SentSignal, EndError> {
    let living: Vec<u32> = job.first_ranks().map(|rank| rank.rank).collect();
    if ranks.is_empty() {
        return Err(EndError::NoRanks);
    }
    let (here, others): (Vec<u32>, Vec<u32>) = ranks.iter().partition(|rank| living.contains(rank));
    let mut elsewhere = job.remote_ranks();
    for (_, there) in &mut elsewhere {
        there.retain(|rank| others.contains(rank));
    }
    elsewhere.retain(|(_, there)| !there.is_empty());
    let is_there = |rank: &u32| elsewhere.iter().any(|(_, there)| there.contains(rank));
    if let Some(rank) = others.iter().find(|rank| !is_there(rank)).copied() {
        return Err(EndError::NoRank { rank, living });
    }
    if here.is_empty() {
        return Err(EndError::Elsewhere(elsewhere));
    }
    let ranks = job.first_ranks().filter(|rank| here.contains(&rank.rank));
    to_groups(&ranks.collect::<Vec<_>>(), elsewhere, signal)
}

fn to_groups(
    ranks: &[&Rank],
    elsewhere: Vec<(String, Vec<u32>)>,
    signal: Signal,
) -> Result<SentSignal, EndError> {
    let leaders = || ranks.iter().map(|rank| &rank.process);
    let groups: BTreeSet<i32> = leaders().map(|leader| leader.group).collect();
    let mut waited_for = Vec::new();
    for leader in leaders() {
        waited_for.extend(hold(leader)?);
    }
    let members = procfs::processes();
    let members = members.iter().filter(|p| groups.contains(&p.group));
    for member in members {
        if let Some(held) = hold(member)? {
            send(&held, member, signal)?;
            if ends(signal) && member.is_stopped() {
                send(&held, member, Signal::CONT)?;
            }
        }
    }
    Ok(SentSignal {
        receiver: SignalRecipient::Ranks(ranks.iter().map(|rank| rank.rank).collect()),
        elsewhere,
        waited_for,
    })
}

fn hold(process: &Process) -> Result<Option<ProcessHandle>, EndError> {
    let refused = |errno| EndError::Refused {
        pid: process.pid,
        errno,
    };
    ProcessHandle::open(process).map_err(refused)
}

fn send(held: &ProcessHandle, process: &Process, signal: Signal) -> Result<(), EndError> {
    match held.signal(signal) {
        Ok(_) => Ok(()),
        Err(Errno::PERM) => Err(EndError::NotPermitted {
            pid: process.pid,
            name: process.name.clone(),
        }),
        Err(errno) => Err(EndError::Refused {
            pid: process.pid,
            errno,
        }),
    }
}

/// Terminates an unsupervised job, and removes its leftovers. Root acts with the rights of the job's user, who may have
/// made the paths lead elsewhere.
fn clean(job: &LocalJobInfo, signal: Signal) -> Result<SentSignal, EndError> {
    let Some(name) = job.name.as_deref().filter(|name| name::is_job(name)) else {
        return Err(EndError::NoRanks);
    };
    let work = || clean_up(name, job, signal);
    let all_ended = match rustix::process::geteuid().is_root() && job.uid != 0 {
        true => {
            let member = job.members.iter().find_map(|member| {
                let owner = procfs::owner(member.pid)?;
                (owner.0 == job.uid).then_some(owner)
            });
            // Without a running process of the user, no group is needed for access to processes.
            let (uid, gid) = member.unwrap_or((job.uid, NOBODY));
            as_user(uid, gid, || u8::from(!work())).map(|code| code == 0)
        }
        false => Ok(work()),
    };
    match all_ended {
        Ok(true) => Ok(SentSignal::to(
            SignalRecipient::Leftovers(job.members.len()),
            Vec::new(),
        )),
        Ok(false) => {
            let left = leftovers::find_job_processes(name, |_| false);
            Err(EndError::Survived(left.iter().map(|p| p.pid).collect()))
        }
        Err(error) => Err(EndError::NotAsUser {
            uid: job.uid,
            reason: error.to_string(),
        }),
    }
}

/// Terminates a job of this process's user. Returns whether all its processes have exited.
fn clean_up(name: &str, job: &LocalJobInfo, signal: Signal) -> bool {
    let remains = cleanup_record::abandoned_records(name);
    let mut tmpdirs: BTreeSet<PathBuf> = remains.iter().map(CleanupRecord::tmpdir).collect();
    tmpdirs.insert(std::env::temp_dir());
    tmpdirs.insert("/tmp".into());
    let tmpdirs: Vec<PathBuf> = tmpdirs.into_iter().collect();
    let recorded = remains.iter().flat_map(|record| &record.directories);
    let usual = tmpdirs.iter().map(|tmp| tmp.join(name));
    let directories: BTreeSet<PathBuf> = recorded.cloned().chain(usual).collect();
    let directories: Vec<PathBuf> = directories.into_iter().collect();
    let groups = remains.iter().flat_map(|record| &record.groups);
    let groups: Vec<PathBuf> = groups.cloned().collect();
    let work = OrphanedJobCleanup {
        job: name,
        is_ours: &|_, _| false,
        directories: &directories,
        groups: &groups,
        ranks: &[],
        tmpdirs: &tmpdirs,
        uid: job.uid,
        started_at: SystemTime::now()
            .checked_sub(job.elapsed + OLDER)
            .unwrap_or(SystemTime::UNIX_EPOCH),
        grace: match signal == Signal::KILL {
            true => Duration::ZERO,
            false => GRACE,
        },
        look_at_least: LOOK_AT_LEAST,
        give_up: GIVE_UP,
    };
    let left = work.carry_out();
    remains.into_iter().for_each(CleanupRecord::remove);
    left.is_empty()
}

/// Waits until no process of a job is left, at most for `most`; returns whether that is so. Terminates the job if its
/// launcher and its guard are killed in the meantime.
///
/// # Errors
/// As [`signal`].
pub fn wait(job: &LocalJobInfo, sent: &SentSignal, most: Duration) -> Result<bool, EndError> {
    let start = Instant::now();
    let left = || most.saturating_sub(start.elapsed());
    if !sent.waited_for.iter().all(|held| held.wait(left())) {
        return Ok(false);
    }
    let Some(name) = &job.name else {
        return Ok(true);
    };
    loop {
        let now = jobs(&Snapshot::take(), UserScope::All);
        let same = now.iter().find(|now| now.name.as_ref() == Some(name));
        match same {
            None => return Ok(true),
            Some(now) if now.state == JobLifeState::Orphaned && now.leaders().next().is_none() => {
                drop(clean(now, Signal::TERM)?);
            }
            Some(_) if left().is_zero() => return Ok(false),
            Some(_) => pause(POLL_INTERVAL),
        }
    }
}

/// Signals a slow launcher again: the reader of its output may have stopped. Kills a slow step daemon, whose
/// guard then terminates the ranks.
///
/// # Errors
/// As [`signal`].
pub fn hurry(job: &LocalJobInfo, sent: &SentSignal) -> Result<(), EndError> {
    let signal = match job.launcher {
        Some(_) => Signal::TERM,
        None => Signal::KILL,
    };
    let Some(leader) = job.leaders().next() else {
        return Ok(());
    };
    let mut held = sent.waited_for.iter();
    held.try_for_each(|held| send(held, leader, signal))
}

/// Waits until ranks have exited, at most for `most`; returns whether they have.
pub fn wait_for_ranks(sent: &SentSignal, most: Duration) -> bool {
    let start = Instant::now();
    let left = || most.saturating_sub(start.elapsed());
    sent.waited_for.iter().all(|held| held.wait(left()))
}
