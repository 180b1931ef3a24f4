//! Receives the offered files that a step lacks, before it computes its plan, and before a spawned job is added.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::process::{geteuid, getppid};

use super::{Messages, StepDaemon, cannot_wait};
use crate::backend::cleanup_record::{self, CleanupEntry, CleanupRecordFile, OwnerProcess};
use crate::backend::step_messages::{
    LaunchDescription, LauncherToStep, NodeRefusal, StepToLauncher,
};
use crate::plan::content_store::{ContentStore, IncomingFile};
use crate::plan::offered_files::OfferedFile;
use crate::plan::{HostPlan, SpawnedJobPlan};
use wireup_core::failure::{AnyError, CommandError, RequestError};
use wireup_core::job::ids::NodeId;
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};
use wireup_core::link::agent_protocol::StepCommand;
use wireup_core::link::decode;
use wireup_core::link::frame::{FrameAddress, FrameClass};
use wireup_core::staging::REPORT;
use wireup_sys::local_link::LocalLink;
use wireup_sys::poll::Poll;

/// Name in the cleanup record of the content store, which belongs to no launch.
const STORE: &str = "staged-files";

/// Error: a host does not get a file.
#[derive(Debug, thiserror::Error)]
enum BringError {
    #[error("--stage: cannot store files in {}: {error}", directory.display())]
    Place {
        directory: PathBuf,
        error: io::Error,
    },
    #[error(
        "--stage: {needed} MiB must be copied, and {} has {free} MiB free; make room there",
        directory.display()
    )]
    Full {
        needed: u64,
        free: u64,
        directory: PathBuf,
    },
    /// Space ran out during the transfer, because of other files or the user's quota.
    #[error(
        "--stage: no space left in {} for {}: {error}; make room there",
        directory.display(), file.display()
    )]
    Filled {
        directory: PathBuf,
        file: PathBuf,
        error: io::Error,
    },
    #[error("--stage: cannot copy {}: {error}", file.display())]
    File { file: PathBuf, error: io::Error },
}

impl RequestError for BringError {}

/// Receives the offered files that the ranks of this node need into the store of this host's agent. Appends other
/// messages to `backlog`.
///
/// # Errors
/// [`CommandError`] if a file does not arrive or cannot be stored.
pub(super) fn bring(
    poll: &mut Poll,
    link: &mut LocalLink,
    backlog: &mut Messages,
    node: NodeId,
    description: &mut LaunchDescription,
) -> Result<(), CommandError> {
    let LaunchDescription {
        decided,
        spec,
        staged_files,
        ..
    } = description;
    if staged_files.iter().all(|files| files.offered().is_empty()) {
        return Ok(());
    }
    decided.check(spec, Some(node))?;
    let (mut coming, files) =
        IncomingFiles::expect(|store| decided.survey(staged_files, node, store))?;
    let lacks: Vec<StepToLauncher> = vec![StepToLauncher::Lacks(files)];
    link.send(FrameAddress::Launcher, FrameClass::Carried, &lacks, poll);
    let broken = |error: AnyError| CommandError::system("the agent's link", error);
    let mut messages = std::mem::take(backlog);
    let mut ready = Vec::new();
    loop {
        for (envelope, body) in messages.drain(..) {
            if envelope.class == FrameClass::Control {
                return Err(match decode(&body) {
                    Ok(StepCommand::Orphaned { reason }) => broken(reason.into()),
                    Ok(StepCommand::Begin { .. }) => {
                        broken("unexpected second Begin message".into())
                    }
                    Err(error) => broken(error.into()),
                });
            }
            match (envelope.from, decode(&body)) {
                (FrameAddress::Launcher, Ok(LauncherToStep::Piece { file, bytes })) => {
                    coming.take(file, &bytes)?;
                }
                (
                    FrameAddress::Launcher,
                    Ok(LauncherToStep::Skip | LauncherToStep::Finish { .. }),
                ) => return Err(broken("the launch ended before it began".into())),
                _ => backlog.push((envelope, body)),
            }
        }
        if let Some(taken) = coming.report() {
            let taken = vec![taken];
            link.send(FrameAddress::Launcher, FrameClass::Carried, &taken, poll);
        }
        if coming.lacking.is_empty() {
            return Ok(());
        }
        poll.wait(None, &mut ready).map_err(cannot_wait)?;
        for event in &ready {
            link.turn(*event, poll, &mut messages)
                .map_err(|error| broken(error.into()))?;
        }
    }
}

impl StepDaemon {
    /// Prepares this host for a job that will be spawned. First it receives the offered files that its ranks need.
    pub(super) fn prepare(&mut self, mut job: Box<SpawnedJobPlan>) {
        let node = self.local.first_node();
        let decided = job.decided(&self.plan.job_plan);
        if !decided.nodes_with_offers(&job.staged_files).contains(&node) {
            // Files are sent after all nodes have reported which ones they lack.
            self.report_to_launcher(&[StepToLauncher::Lacks(Vec::new())]);
            return self.local.order(LauncherToStep::Prepare(job));
        }
        let found =
            IncomingFiles::expect(|store| decided.survey(&mut job.staged_files, node, store));
        let lacks = found.map(|(coming, files)| {
            self.incoming = Some((coming, job));
            self.report_to_launcher(&[StepToLauncher::Lacks(files)]);
        });
        self.follow_files(lacks);
    }

    /// Stores the next piece of a file, if this host lacks the file.
    pub(super) fn take_piece(&mut self, file: u32, bytes: &[u8]) {
        if let Some((coming, _)) = &mut self.incoming {
            let taken = coming.take(file, bytes);
            self.follow_files(taken);
        }
    }

    /// Reports the received bytes, and continues the preparation after the last one.
    fn follow_files(&mut self, done: Result<(), BringError>) {
        if let Err(error) = done {
            self.incoming = None;
            let (node, error) = (self.local.first_node(), CommandError::from(error));
            let refusal = Some(NodeRefusal {
                code: error.code(),
                message: error.to_string(),
            });
            return self.report_to_launcher(&[StepToLauncher::Prepared { node, refusal }]);
        }
        let Some((coming, _)) = &mut self.incoming else {
            return;
        };
        let taken = coming.report();
        let is_over = coming.lacking.is_empty();
        if let Some(taken) = taken {
            self.report_to_launcher(&[taken]);
        }
        if is_over && let Some((_, job)) = self.incoming.take() {
            self.local.order(LauncherToStep::Prepare(job));
        }
    }
}

/// Finds the received files for the ranks of a spawned job on a node. `first` is the node's plan of the initial job.
///
/// # Errors
/// [`SpawnFailure`] if a file no longer exists.
pub(super) fn find_brought(
    job: &mut SpawnedJobPlan,
    first: &HostPlan,
    node: NodeId,
) -> Result<(), SpawnFailure> {
    let decided = job.decided(&first.job_plan);
    if !decided.nodes_with_offers(&job.staged_files).contains(&node) {
        return Ok(());
    }
    let found = IncomingFiles::expect(|store| decided.survey(&mut job.staged_files, node, store));
    let problem = match found {
        Ok((_, files)) if files.is_empty() => return Ok(()),
        Ok((coming, _)) => {
            let lost = coming.lacking.values().next().map(|file| &file.path);
            let lost = lost.map_or(String::new(), |path| path.display().to_string());
            format!("--stage: {lost} was changed or removed during the copy; spawn again")
        }
        Err(error) => error.to_string(),
    };
    Err(SpawnFailure {
        kind: SpawnFailureKind::Failed,
        text: format!("on {}: {problem}", first.node_name(node)),
    })
}

/// Returns the user's content store of this step's agent. A cleanup record removes it after the end of the agent.
fn store(place: &Path) -> io::Result<ContentStore> {
    let agent = getppid().and_then(|pid| OwnerProcess::from_pid(pid.as_raw_nonzero().get()));
    let agent = agent.ok_or_else(|| io::Error::other("this host's agent has ended"))?;
    let uid = geteuid().as_raw();
    let name = format!("wireup-staged.{uid}.{agent}.");
    if let Some(known) = find_store(place, &name)? {
        return Ok(known);
    }
    // Another user could take a predictable name.
    let number = cleanup_record::number()?;
    let directory = place.join(format!("{name}{number:016x}"));
    let mut record = CleanupRecordFile::make(number, vec![agent], STORE, SystemTime::now())?;
    record.add(&CleanupEntry::Directory(directory.clone()))?;
    ContentStore::open(directory)
}

/// Returns the store whose name has this prefix. Other users may have created files and directories with such names.
fn find_store(place: &Path, name: &str) -> io::Result<Option<ContentStore>> {
    let entries = fs::read_dir(place)?.flatten();
    let mut named =
        entries.filter(|entry| entry.file_name().as_bytes().starts_with(name.as_bytes()));
    Ok(named.find_map(|entry| ContentStore::open(entry.path()).ok()))
}

/// Refuses files for which the file system has no space, before they are sent.
fn check_room(lacking: &BTreeMap<u32, OfferedFile>, place: &Path) -> Result<(), BringError> {
    const MIB: u64 = 1024 * 1024;
    let needed: u64 = lacking.values().map(|file| file.size).sum();
    match rustix::fs::statvfs(place) {
        Ok(found) if found.f_bavail * found.f_frsize < needed => Err(BringError::Full {
            needed: needed.div_ceil(MIB),
            free: found.f_bavail * found.f_frsize / MIB,
            directory: place.to_owned(),
        }),
        // If the free space is unknown, the write fails later.
        _ => Ok(()),
    }
}

/// Files that are still to be received.
pub(super) struct IncomingFiles {
    /// Directory of the store.
    place: PathBuf,
    store: ContentStore,
    lacking: BTreeMap<u32, OfferedFile>,
    partial_files: BTreeMap<u32, IncomingFile>,
    /// Number of received bytes that are not reported to the launcher yet.
    unreported_bytes: u64,
}

impl IncomingFiles {
    /// Creates the list of files that this host's store lacks; the store must have space for them. Returns also their numbers.
    fn expect(
        survey: impl FnOnce(&ContentStore) -> BTreeMap<u32, OfferedFile>,
    ) -> Result<(Self, Vec<u32>), BringError> {
        let place = std::env::temp_dir();
        let store = store(&place).map_err(|error| BringError::Place {
            directory: place.clone(),
            error,
        })?;
        let lacking = survey(&store);
        check_room(&lacking, &place)?;
        let files = lacking.keys().copied().collect();
        let mut coming = Self {
            place,
            store,
            lacking,
            partial_files: BTreeMap::new(),
            unreported_bytes: 0,
        };
        coming.empty_ones()?;
        Ok((coming, files))
    }

    /// Returns a report of the received bytes, if one is due.
    fn report(&mut self) -> Option<StepToLauncher> {
        let is_due = self.unreported_bytes >= REPORT || self.lacking.is_empty();
        (is_due && self.unreported_bytes > 0).then(|| StepToLauncher::Taken {
            bytes: std::mem::take(&mut self.unreported_bytes),
        })
    }

    /// Stores empty files, for which no piece arrives.
    fn empty_ones(&mut self) -> Result<(), BringError> {
        let empty = self.lacking.iter().filter(|(_, file)| file.size == 0);
        let empty: Vec<u32> = empty.map(|(number, _)| *number).collect();
        empty
            .into_iter()
            .try_for_each(|number| self.take(number, &[]))
    }

    fn take(&mut self, number: u32, bytes: &[u8]) -> Result<(), BringError> {
        let Some(file) = self.lacking.get(&number) else {
            return Ok(());
        };
        let failed = |error: io::Error| {
            let file = file.path.clone();
            match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => BringError::Filled {
                    directory: self.place.clone(),
                    file,
                    error,
                },
                _ => BringError::File { file, error },
            }
        };
        if !self.partial_files.contains_key(&number) {
            let begun = self.store.expect(file.digest, file.size).map_err(failed)?;
            self.partial_files.insert(number, begun);
        }
        let complete = match self.partial_files.get_mut(&number) {
            Some(incoming) => incoming.take(bytes).map_err(failed)?,
            None => false,
        };
        self.unreported_bytes += bytes.len() as u64;
        if complete {
            self.partial_files.remove(&number);
            self.lacking.remove(&number);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn known_store_is_own_directory() {
        let place = tempfile::tempdir().unwrap();
        let named = |end: &str| place.path().join(format!("wireup-staged.0.7.{end}"));
        let known = || find_store(place.path(), "wireup-staged.0.7.").unwrap();
        fs::write(named("file"), "").unwrap();
        fs::create_dir(named("open")).unwrap();
        fs::set_permissions(named("open"), fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink("/", named("link")).unwrap();
        assert!(known().is_none());
        fs::create_dir(named("own")).unwrap();
        fs::set_permissions(named("own"), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(known().is_some());
        assert!(named("file").exists() && named("open").exists());
    }
}
