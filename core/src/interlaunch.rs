//! Connect, disconnect and fence between processes of several launches. No I/O.
//!
//! ```text
//!  node ── Arrive ──▶ head node ══ Arrived ══▶ head node of the other launch
//!       ◀─ Register ─     │     ◀═ Arrived ══
//!       ── Registered ─▶  │     ══ Ready ════▶  (connect: all nodes know the other launch's jobs)
//!       ◀─ Release ──     │     ◀═ Ready ════
//! ```
//! Each launch gathers its contribution at its head node. The [`InterlaunchHub`]s of the launches exchange their
//! contributions through the name server. A lost launch is an error for every process that waits for it.
//!
//! Rule: an nspace is registered with the servers of all participants before `PMIx_Connect` completes anywhere, or both
//! jobs hang. Source: docs/pmix-server.md#job-description.

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub mod arbitrary;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::clock::Moment;
use crate::job::ids::{NodeId, Nspace};
use crate::job::octets;
use crate::job::proc::{Proc, RankOrWildcard};
use crate::job::process_map::ProcessMap;

/// Operation of processes of several launches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum InterlaunchOperation {
    Connect,
    /// End of a connection.
    Disconnect,
    /// Synchronization, possibly with an exchange of data.
    Fence,
}

/// The processes that take part, sorted.
pub type InterlaunchMembers = Vec<(Nspace, RankOrWildcard)>;

/// Identity of one operation; equal in all launches, since all of them count in the same way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct InterlaunchId {
    pub act: InterlaunchOperation,
    pub members: InterlaunchMembers,
    /// The sequence number among those of the same act and members, from 0.
    pub generation: u32,
}

/// Description of a job for other launches.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RemoteJob {
    pub nspace: Nspace,
    /// Node and local rank of each rank.
    pub ranks: ProcessMap,
    /// The names of its launch's nodes.
    pub node_names: Vec<String>,
    /// Slots it could grow to.
    pub universe_size: u32,
    /// Number of its programs.
    pub programs: u32,
}

/// Result of an operation: the worst status and the data of all participants, or a PMIx status with the reason of the
/// failure.
pub type InterlaunchResult = Result<(i32, Vec<u8>), i32>;

/// Messages between the head nodes of two launches.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HeadNodeMessage {
    /// All participants of the sender's launch have arrived.
    Arrived {
        key: InterlaunchId,
        /// The participating jobs of the sender's launch.
        jobs: Vec<RemoteJob>,
        status: i32,
        #[serde(with = "octets")]
        data: Vec<u8>,
    },
    /// The servers of all participants of the sender's launch have registered the other jobs.
    Ready {
        key: InterlaunchId,
        /// The participating jobs of the sender's launch.
        jobs: Vec<Nspace>,
    },
    /// Asks for a process's data.
    Fetch {
        /// Chosen by the asking launch.
        serial: u64,
        proc: Proc,
    },
    /// The answer: the data, or a PMIx status.
    Fetched {
        serial: u64,
        result: Result<Vec<u8>, i32>,
    },
}

/// Output of a head node's hub.
#[derive(Debug, PartialEq, Eq)]
pub enum InterlaunchAction {
    /// Say something to the launch of a job.
    Send { to: Nspace, packet: HeadNodeMessage },
    /// Register these jobs on these nodes of this launch; each node reports when it has done so.
    Register {
        key: InterlaunchId,
        nodes: BTreeSet<NodeId>,
        jobs: Vec<RemoteJob>,
    },
    /// Release these nodes of this launch from a completed operation.
    Release {
        key: InterlaunchId,
        nodes: BTreeSet<NodeId>,
        outcome: InterlaunchResult,
    },
}

/// This launch's part in a collective.
#[derive(Clone, Debug)]
pub struct LocalParticipants {
    /// The nodes whose servers make the upcall.
    pub nodes: BTreeSet<NodeId>,
    /// Jobs of the launch that take part.
    pub jobs: Vec<RemoteJob>,
}

#[derive(Debug)]
struct PendingInterlaunch {
    local_participants: LocalParticipants,
    arrived: BTreeSet<NodeId>,
    registered: BTreeSet<NodeId>,
    /// The contribution of this launch, and those of all others.
    local_contribution: InterlaunchContribution,
    remote_contribution: InterlaunchContribution,
    /// State of each job of another launch: whether it has arrived, and whether it is ready.
    remote_job_states: BTreeMap<Nspace, (bool, bool)>,
    descriptions: Vec<RemoteJob>,
    sent: bool,
    deadline: Option<Moment>,
}

impl PendingInterlaunch {
    /// Returns the actions that send a message to each job of another launch.
    fn send_to_all(&self, packet: &HeadNodeMessage) -> Vec<InterlaunchAction> {
        let jobs = self.remote_job_states.keys().cloned();
        jobs.map(|to| InterlaunchAction::Send {
            to,
            packet: packet.clone(),
        })
        .collect()
    }
}

/// The arrival of a node of this launch, with its contribution.
#[derive(Debug)]
pub struct NodeArrival {
    pub node: NodeId,
    pub status: i32,
    pub data: Vec<u8>,
    pub deadline: Option<Moment>,
}

/// The arrival of another launch, with its contribution.
#[derive(Debug)]
pub struct LaunchArrival<'a> {
    /// The other launch's jobs that take part.
    pub jobs: Vec<RemoteJob>,
    pub status: i32,
    pub data: &'a [u8],
}

/// Worst status and concatenated data of the participants so far.
#[derive(Debug, Default)]
struct InterlaunchContribution {
    status: i32,
    data: Vec<u8>,
}

impl InterlaunchContribution {
    fn take(&mut self, status: i32, data: &[u8]) {
        // Statuses are negative where something is wrong.
        self.status = self.status.min(status);
        self.data.extend_from_slice(data);
    }
}

/// Pending operations of a launch with other launches, at its head node.
#[derive(Debug, Default)]
pub struct InterlaunchHub {
    open: BTreeMap<InterlaunchId, PendingInterlaunch>,
    /// Number of completed operations of each kind and members.
    done: BTreeMap<(InterlaunchOperation, InterlaunchMembers), u32>,
    /// Actions that the caller has not taken yet.
    pub(crate) actions: Vec<InterlaunchAction>,
}

impl InterlaunchHub {
    /// Takes the actions that result from the calls since the last time.
    pub fn take_actions(&mut self) -> Vec<InterlaunchAction> {
        std::mem::take(&mut self.actions)
    }

    /// Handles the arrival of a node of this launch. `local_participants` is the launch's part.
    pub fn arrive(
        &mut self,
        act: InterlaunchOperation,
        members: InterlaunchMembers,
        local: LocalParticipants,
        arrival: NodeArrival,
    ) {
        let done = self.done.get(&(act, members.clone()));
        let generation = done.copied().unwrap_or_default();
        let key = InterlaunchId {
            act,
            members,
            generation,
        };
        let pending = self.open(&key, local);
        if pending.arrived.insert(arrival.node) {
            pending
                .local_contribution
                .take(arrival.status, &arrival.data);
        }
        pending.deadline = [pending.deadline, arrival.deadline]
            .into_iter()
            .flatten()
            .min();
        if pending.arrived == pending.local_participants.nodes && !pending.sent {
            pending.sent = true;
            let packet = HeadNodeMessage::Arrived {
                key: key.clone(),
                jobs: pending.local_participants.jobs.clone(),
                status: pending.local_contribution.status,
                data: pending.local_contribution.data.clone(),
            };
            let sends = pending.send_to_all(&packet);
            self.actions.extend(sends);
        }
        self.advance_operation(&key);
    }

    /// Handles the arrival of another launch, in an operation of which `local_participants` is this launch's part.
    pub fn arrived(
        &mut self,
        key: &InterlaunchId,
        local: LocalParticipants,
        arrival: LaunchArrival<'_>,
    ) {
        let done = self.done.get(&(key.act, key.members.clone()));
        // A finished collective does not begin again.
        if key.generation < done.copied().unwrap_or_default() {
            return;
        }
        let pending = self.open(key, local);
        let mut new = false;
        for job in arrival.jobs {
            if let Some((there, _)) = pending.remote_job_states.get_mut(&job.nspace)
                && !std::mem::replace(there, true)
            {
                new = true;
                pending.descriptions.push(job);
            }
        }
        if new {
            pending
                .remote_contribution
                .take(arrival.status, arrival.data);
        }
        self.advance_operation(key);
    }

    /// Handles a node's result of the registration of the other jobs.
    pub fn registered(&mut self, key: &InterlaunchId, node: NodeId, result: Result<(), i32>) {
        if let Err(status) = result {
            return self.end(key, Err(status));
        }
        let Some(pending) = self.open.get_mut(key) else {
            return;
        };
        pending.registered.insert(node);
        if pending.registered == pending.local_participants.nodes {
            let jobs = pending.local_participants.jobs.iter();
            let packet = HeadNodeMessage::Ready {
                key: key.clone(),
                jobs: jobs.map(|job| job.nspace.clone()).collect(),
            };
            self.actions.extend(pending.send_to_all(&packet));
        }
        self.advance_operation(key);
    }

    /// Notes that the servers of another launch have registered this one's jobs.
    pub fn ready(&mut self, key: &InterlaunchId, jobs: &[Nspace]) {
        if let Some(pending) = self.open.get_mut(key) {
            for job in jobs {
                if let Some((_, ready)) = pending.remote_job_states.get_mut(job) {
                    *ready = true;
                }
            }
            self.advance_operation(key);
        }
    }

    /// Fails the operations with jobs of other launches that have ended.
    pub fn gone(&mut self, is_gone: impl Fn(&Nspace) -> bool, status: i32) {
        self.fail_where(status, |pending| {
            pending.remote_job_states.keys().any(&is_gone)
        });
    }

    /// Fails the operations of a lost node of this launch.
    pub fn node_lost(&mut self, node: NodeId, status: i32) {
        self.fail_where(status, |pending| {
            pending.local_participants.nodes.contains(&node)
        });
    }

    /// Ends operations that take too long.
    pub fn tick(&mut self, now: Moment, status: i32) {
        self.fail_where(status, |pending| {
            pending.deadline.is_some_and(|at| at <= now)
        });
    }

    fn fail_where(&mut self, status: i32, is_over: impl Fn(&PendingInterlaunch) -> bool) {
        let over = self.open.iter().filter(|(_, pending)| is_over(pending));
        let over: Vec<InterlaunchId> = over.map(|(key, _)| key.clone()).collect();
        for key in over {
            self.end(&key, Err(status));
        }
    }

    /// Returns the time at which [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.open
            .values()
            .filter_map(|pending| pending.deadline)
            .min()
    }

    fn open(&mut self, key: &InterlaunchId, own: LocalParticipants) -> &mut PendingInterlaunch {
        self.open.entry(key.clone()).or_insert_with(|| {
            let is_own = |nspace: &Nspace| own.jobs.iter().any(|job| job.nspace == *nspace);
            let others = key.members.iter().map(|(nspace, _)| nspace);
            let others = others.filter(|nspace| !is_own(nspace));
            PendingInterlaunch {
                remote_job_states: others
                    .map(|nspace| (nspace.clone(), (false, false)))
                    .collect(),
                local_participants: own,
                arrived: BTreeSet::new(),
                registered: BTreeSet::new(),
                local_contribution: InterlaunchContribution::default(),
                remote_contribution: InterlaunchContribution::default(),
                descriptions: Vec::new(),
                sent: false,
                deadline: None,
            }
        })
    }

    fn advance_operation(&mut self, key: &InterlaunchId) {
        let Some(pending) = self.open.get_mut(key) else {
            return;
        };
        if !pending.sent || !pending.remote_job_states.values().all(|(there, _)| *there) {
            return;
        }
        if key.act == InterlaunchOperation::Connect {
            let jobs = std::mem::take(&mut pending.descriptions);
            if !jobs.is_empty() {
                let nodes = pending.local_participants.nodes.clone();
                let key = key.clone();
                return self
                    .actions
                    .push(InterlaunchAction::Register { key, nodes, jobs });
            }
            let here = pending.registered == pending.local_participants.nodes;
            if !here || !pending.remote_job_states.values().all(|(_, ready)| *ready) {
                return;
            }
        }
        let mut all = std::mem::take(&mut pending.local_contribution);
        all.take(
            pending.remote_contribution.status,
            &pending.remote_contribution.data,
        );
        let outcome = Ok((all.status, all.data));
        self.end(key, outcome);
    }

    fn end(&mut self, key: &InterlaunchId, outcome: InterlaunchResult) {
        let Some(pending) = self.open.remove(key) else {
            return;
        };
        let done = self.done.entry((key.act, key.members.clone()));
        *done.or_default() = key.generation + 1;
        self.actions.push(InterlaunchAction::Release {
            key: key.clone(),
            nodes: pending.local_participants.nodes,
            outcome,
        });
    }
}

/// Messages between a node and the head node of its launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum InterlaunchMessage {
    /// To the head node: all participants of the sender's node have arrived.
    Arrive {
        act: InterlaunchOperation,
        members: InterlaunchMembers,
        /// Status of the operation in the sender's launch.
        status: i32,
        #[serde(with = "octets")]
        data: Vec<u8>,
        /// Timeout of the operation.
        timeout: Option<Duration>,
    },
    /// From the head node: register these jobs.
    Register {
        key: InterlaunchId,
        jobs: Vec<RemoteJob>,
    },
    /// From the head node: these jobs have ended, and their registration can be removed.
    Forget { jobs: Vec<Nspace> },
    /// To the head node: result of the registration, as a PMIx status.
    Registered {
        key: InterlaunchId,
        result: Result<(), i32>,
    },
    /// From the head node: the operation has ended.
    Release {
        key: InterlaunchId,
        outcome: InterlaunchResult,
    },
    /// To the head node: request the data of a process of another launch.
    Fetch {
        /// Chosen by the asking node.
        serial: u64,
        proc: Proc,
    },
    /// From the head node.
    Fetched {
        serial: u64,
        /// The data, or a PMIx status.
        result: Result<Vec<u8>, i32>,
    },
}
