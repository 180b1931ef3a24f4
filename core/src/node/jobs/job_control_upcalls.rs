//! Requests that affect processes of the launch: upcalls become [`JobControlRequest`]s, which the
//! launcher judges and carries out on all nodes.

use crate::job::ids::GlobalRank;
use crate::job::job_control::{JobControlAction, JobControlRequest};
use crate::job::outcome::FailureCause;
use crate::node::context::NodeContext;
use crate::node::event::{NodeAction, NodeNotice, NodeReport};
use crate::node::node_service::NodeService;
use crate::pmix::keys;
use crate::pmix::sidecar_link::UpcallId;
use crate::pmix::value::{Info, PmixProc, PmixRank, Status, Text, Value, find};

/// Number of `SIGCONT` on Linux.
const SIGCONT: i32 = 18;
/// Number of `SIGSTOP` on Linux.
const SIGSTOP: i32 = 19;
/// The highest real-time signal.
const SIGNAL_MAX: i32 = 64;

/// The keys of directives.
struct JobControlDirectives {
    /// The directive with a signal's number.
    signal: &'static str,
    /// The action if it is set.
    flags: &'static [(&'static str, JobControlAction)],
    /// Directives that libpmix has handled before the upcall.
    done: &'static [&'static str],
    /// The name of the request.
    id: &'static str,
}

/// libpmix itself removes the files that clients register for removal, and makes the upcall if
/// there are more directives; see docs/pmix-calls.md.
const OF_JOBS: JobControlDirectives = JobControlDirectives {
    signal: keys::JOB_CTRL_SIGNAL,
    flags: &[
        (keys::JOB_CTRL_KILL, JobControlAction::Kill),
        (keys::JOB_CTRL_TERMINATE, JobControlAction::Terminate),
        (keys::JOB_CTRL_PAUSE, JobControlAction::Signal(SIGSTOP)),
        (keys::JOB_CTRL_RESUME, JobControlAction::Signal(SIGCONT)),
    ],
    done: &[
        keys::REGISTER_CLEANUP,
        keys::REGISTER_CLEANUP_DIR,
        keys::CLEANUP_RECURSIVE,
        keys::CLEANUP_EMPTY,
        keys::CLEANUP_IGNORE,
        keys::CLEANUP_LEAVE_TOPDIR,
    ],
    id: keys::JOB_CTRL_ID,
};

const OF_SESSIONS: JobControlDirectives = JobControlDirectives {
    signal: keys::SESSION_SIGNAL,
    flags: &[
        (keys::SESSION_TERMINATE, JobControlAction::Terminate),
        (keys::SESSION_PAUSE, JobControlAction::Signal(SIGSTOP)),
        (keys::SESSION_RESUME, JobControlAction::Signal(SIGCONT)),
    ],
    done: &[],
    id: keys::SESSION_CTRL_ID,
};

/// Id of the caller's session; processes cannot know the number of another one.
const OWN_SESSION: u32 = u32::MAX;

/// Requests of this node that are not answered yet.
#[derive(Debug, Default)]
pub(in crate::node) struct Demands {
    /// Aborts of all ranks, which are answered after all ranks have ended.
    pending_aborts: Vec<UpcallId>,
}

impl Demands {
    /// Requests the abort of a job for a `PMIx_Abort`. Without targets, the caller's job is aborted, and the upcall is
    /// answered after the end of all ranks. With an earlier answer the caller would exit, and the failures that this
    /// causes on other hosts could reach the launcher before the abort does. An abort of all ranks fails the launch.
    pub(in crate::node) fn abort(
        &mut self,
        id: UpcallId,
        proc: &PmixProc,
        code: i32,
        message: &Text,
        targets: &[PmixProc],
        cx: &mut NodeContext,
    ) {
        let Some(ranks) = self.targets(proc, targets, cx) else {
            return cx.answer_status(id, Status::ERR_NOT_FOUND);
        };
        let by = cx.find_process(proc);
        // A tool does not exit by it.
        let waits = by.is_some() && (targets.is_empty() || ranks.is_none());
        let message = message.to_string();
        cx.order(match (by, ranks) {
            (Some(by), None) => NodeAction::Notify(NodeNotice::Failed(FailureCause::Aborted {
                rank: by,
                code,
                message,
            })),
            (requester, ranks) => {
                NodeAction::ReportToLauncher(NodeReport::JobControl(JobControlRequest {
                    requester,
                    action: JobControlAction::Abort { code, message },
                    ranks,
                }))
            }
        });
        match waits {
            true => self.pending_aborts.push(id),
            false => cx.answer_status(id, Status::SUCCESS),
        }
    }

    /// Requests the actions of a `PMIx_Job_control`. The upcall is answered when the request was passed on, not when it
    /// was executed.
    pub(in crate::node) fn job_control(
        &mut self,
        id: UpcallId,
        proc: &PmixProc,
        targets: &[PmixProc],
        directives: &[Info],
        cx: &mut NodeContext,
    ) {
        let wishes = wishes(directives, &OF_JOBS);
        let (ranks, wishes) = match (self.targets(proc, targets, cx), wishes) {
            (Some(ranks), Ok(wishes)) => (ranks, wishes),
            (None, _) => return cx.answer_status(id, Status::ERR_NOT_FOUND),
            (_, Err(status)) => return cx.answer_status(id, status),
        };
        self.demand(id, proc, ranks.as_deref(), wishes, cx);
    }

    /// Requests the actions of a `PMIx_Session_control`: the session is the launch, with all its jobs. Returns the
    /// infos of a request for more nodes, which is not answered here.
    pub(in crate::node) fn session_control(
        &mut self,
        id: UpcallId,
        proc: &PmixProc,
        session: u32,
        directives: &[Info],
        cx: &mut NodeContext,
    ) -> Option<Vec<Info>> {
        if session != OWN_SESSION {
            cx.answer_status(id, Status::ERR_NOT_FOUND);
            return None;
        }
        if find(directives, keys::SESSION_EXTEND).is_some_and(Value::is_set) {
            let mut infos = directives.to_vec();
            infos.retain(|info| info.key != keys::SESSION_EXTEND && info.key != OF_SESSIONS.id);
            return Some(infos);
        }
        match wishes(directives, &OF_SESSIONS) {
            Ok(wishes) => self.demand(id, proc, None, wishes, cx),
            Err(status) => cx.answer_status(id, status),
        }
        None
    }

    fn demand(
        &mut self,
        id: UpcallId,
        proc: &PmixProc,
        ranks: Option<&[GlobalRank]>,
        wishes: Vec<JobControlAction>,
        cx: &mut NodeContext,
    ) {
        let requester = cx.find_process(proc);
        for action in wishes {
            cx.report_to_launcher(NodeReport::JobControl(JobControlRequest {
                requester,
                action,
                ranks: ranks.map(<[GlobalRank]>::to_vec),
            }));
        }
        cx.answer_status(id, Status::SUCCESS);
    }

    /// Returns the targets, the caller's whole job if there are none: `Some(None)` for all ranks, `None` if some are
    /// not of this launch.
    fn targets(
        &self,
        caller: &PmixProc,
        procs: &[PmixProc],
        cx: &NodeContext,
    ) -> Option<Option<Vec<GlobalRank>>> {
        let job = [PmixProc::new(caller.nspace.clone(), PmixRank::WILDCARD)];
        let ranks = cx.members(if procs.is_empty() { &job } else { procs })?;
        let all = ranks.len() == cx.jobs.size() as usize;
        Some((!all).then_some(ranks))
    }
}

impl NodeService for Demands {
    /// Answers the pending aborts after the end of all ranks.
    fn tear_down(&mut self, cx: &mut NodeContext) {
        for id in std::mem::take(&mut self.pending_aborts) {
            cx.answer_status(id, Status::SUCCESS);
        }
    }
}

/// Returns the actions of the directives, in their order; there must be at least one.
fn wishes(
    directives: &[Info],
    supported: &JobControlDirectives,
) -> Result<Vec<JobControlAction>, Status> {
    let mut wishes = Vec::new();
    let mut done = false;
    for info in directives {
        let flag = supported.flags.iter().find(|(key, _)| info.key == *key);
        wishes.push(match (flag, &info.value) {
            _ if info.key == supported.id => continue,
            _ if supported.done.iter().any(|key| info.key == *key) => {
                done = true;
                continue;
            }
            (_, Value::Int(signal) | Value::Int32(signal)) if info.key == supported.signal => {
                match (1..=SIGNAL_MAX).contains(signal) {
                    true => JobControlAction::Signal(*signal),
                    false => return Err(Status::ERR_BAD_PARAM),
                }
            }
            (_, Value::Bool(false)) => continue,
            (Some((_, wish)), value) if value.is_set() => wish.clone(),
            _ if info.required => return Err(Status::ERR_NOT_SUPPORTED),
            _ => continue,
        });
    }
    match wishes.is_empty() && !done {
        true => Err(Status::ERR_NOT_SUPPORTED),
        false => Ok(wishes),
    }
}

#[cfg(test)]
mod tests;
