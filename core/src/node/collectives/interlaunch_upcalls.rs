//! Collectives between launches as a node's core takes part in them, and the data of other launches'
//! processes. The head node speaks with those of the other launches.

mod head_node;
mod remote_jobs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::interlaunch::{
    HeadNodeMessage, InterlaunchHub, InterlaunchId, InterlaunchMembers, InterlaunchMessage,
    InterlaunchOperation, InterlaunchResult, LocalParticipants, NodeArrival, RemoteJob,
};
use crate::job::clock::Moment;
use crate::job::ids::{JobIndex, NodeId, Nspace, Rank};
use crate::job::proc;
use crate::job::process_map::ProcessMap;
use crate::node::context::NodeContext;
use crate::node::context::collective_policy::HEAD;
use crate::node::context::upcalls::{local_status, named_members, timeout};
use crate::node::event::PeerMessage;
use crate::node::node_service::NodeService;
use crate::pmix::sidecar_link::{RequestId, UpcallId};
use crate::pmix::upcall::UpcallAnswer;
use crate::pmix::value::{Info, PmixProc, Status};

/// Inter-launch operations of a node: pending upcalls, and registered jobs of other launches.
#[derive(Debug, Default)]
pub(in crate::node) struct InterlaunchState {
    /// The names of the launch's nodes.
    names: Arc<[String]>,
    /// At the head node.
    hub: InterlaunchHub,
    /// Upcalls that wait for the result of a report to the head node.
    waiting: BTreeMap<(InterlaunchOperation, InterlaunchMembers), VecDeque<UpcallId>>,
    /// Jobs of other launches that are registered with the sidecar.
    registered_jobs: BTreeSet<Nspace>,
    registering: BTreeMap<RequestId, Nspace>,
    /// Operations that wait for the registration of jobs, with those jobs.
    unregistered: Vec<(InterlaunchId, BTreeSet<Nspace>)>,
    last_number: u64,
    /// Upcalls that wait for data, and how long.
    fetching: BTreeMap<u64, (UpcallId, Option<Moment>)>,
    /// At the head node: nodes that got the order to register jobs of other launches.
    nodes_by_remote_job: BTreeMap<Nspace, BTreeSet<NodeId>>,
    /// At the head node: requesters of data, and their jobs.
    fetches: BTreeMap<u64, (NodeId, u64, Nspace)>,
}

impl InterlaunchState {
    pub(in crate::node) fn names(&self) -> &Arc<[String]> {
        &self.names
    }

    pub(in crate::node) fn registers(&self, id: RequestId) -> bool {
        self.registering.contains_key(&id)
    }

    /// Tells how the nodes of the launch are called, for other launches and for clients of PMI.
    pub(in crate::node) fn set_node_names(&mut self, names: &[String], cx: &mut NodeContext) {
        self.names = names.into();
        for job in (0..cx.jobs.count()).map(JobIndex) {
            if let Some(server) = cx.jobs.get_mut(job).and_then(|job| job.pmi.as_mut()) {
                server.name_hosts(&self.names);
            }
        }
    }

    /// Names of the nodes of a job: others may have joined the launch since it began.
    fn node_names(&self, ranks: &ProcessMap) -> Vec<String> {
        let names = self.names.iter();
        names.take(ranks.nodes() as usize).cloned().collect()
    }

    /// Processes of this node take part in something together with those of other launches.
    pub(in crate::node) fn enter(
        &mut self,
        id: UpcallId,
        act: InterlaunchOperation,
        procs: &[PmixProc],
        infos: &[Info],
        data: Vec<u8>,
        cx: &mut NodeContext,
    ) {
        let Some(members) = named_members(procs) else {
            return cx.answer_status(id, Status::ERR_BAD_PARAM);
        };
        // Processes of other launches are unknown until they are connected.
        let is_known = |nspace: &Nspace| {
            cx.find_job(nspace.as_str()).is_some() || self.registered_jobs.contains(nspace)
        };
        let own = self.local_participants(&members, cx);
        let all_known = members.iter().all(|(nspace, _)| is_known(nspace));
        if !own.nodes.contains(&cx.node) || act != InterlaunchOperation::Connect && !all_known {
            return cx.answer_status(id, Status::ERR_NOT_FOUND);
        }
        let key = (act, members.clone());
        self.waiting.entry(key).or_default().push_back(id);
        let timeout = cx.policy.timeout_or(timeout(infos));
        let message = InterlaunchMessage::Arrive {
            act,
            members,
            status: local_status(infos),
            data,
            timeout: timeout.map(|timeout| timeout.after),
        };
        self.send(HEAD, message, cx);
    }

    /// Returns this launch's part in the operations that these members do together.
    fn local_participants(
        &self,
        members: &InterlaunchMembers,
        cx: &NodeContext,
    ) -> LocalParticipants {
        let mut nodes = BTreeSet::new();
        let mut jobs: Vec<RemoteJob> = Vec::new();
        for (nspace, rank) in members {
            let Some((_, member)) = cx.find_job(nspace.as_str()) else {
                continue;
            };
            let job = &member.context;
            match rank {
                proc::RankOrWildcard::One(rank) => nodes.extend(job.process_map.node_of(*rank)),
                proc::RankOrWildcard::Wildcard => nodes.extend(member.world.1.iter()),
            }
            if jobs.iter().all(|known| known.nspace != *nspace) {
                jobs.push(RemoteJob {
                    nspace: nspace.clone(),
                    ranks: job.process_map.clone(),
                    node_names: self.node_names(&job.process_map),
                    universe_size: job.universe_size,
                    programs: job.app_map.appnum_of(Rank(job.process_map.size() - 1)).0 + 1,
                });
            }
        }
        LocalParticipants { nodes, jobs }
    }

    fn send(&mut self, to: NodeId, message: InterlaunchMessage, cx: &mut NodeContext) {
        if to == cx.node {
            return self.peer_message(to, message, cx);
        }
        let message = PeerMessage::Collective(message);
        cx.send(to, message);
    }

    pub(in crate::node) fn peer_message(
        &mut self,
        from: NodeId,
        message: InterlaunchMessage,
        cx: &mut NodeContext,
    ) {
        let now = cx.now;
        match message {
            InterlaunchMessage::Arrive {
                act,
                members,
                status,
                data,
                timeout,
            } if cx.node == HEAD => {
                let own = self.local_participants(&members, cx);
                let arrival = NodeArrival {
                    node: from,
                    status,
                    data,
                    deadline: timeout.map(|timeout| now + timeout),
                };
                self.with_hub(cx, |hub| hub.arrive(act, members, own, arrival));
            }
            InterlaunchMessage::Registered { key, result } if cx.node == HEAD => {
                self.with_hub(cx, |hub| hub.registered(&key, from, result));
            }
            InterlaunchMessage::Fetch { serial, proc } if cx.node == HEAD => {
                self.last_number += 1;
                let number = self.last_number;
                let to = proc.nspace.clone();
                let requester = (from, serial, to.clone());
                self.fetches.insert(number, requester);
                let serial = number;
                self.relay(to, &HeadNodeMessage::Fetch { serial, proc }, cx);
            }
            InterlaunchMessage::Register { key, jobs } if from == HEAD => {
                self.register_remote_jobs(key, &jobs, cx);
            }
            InterlaunchMessage::Forget { jobs } if from == HEAD => {
                self.deregister_remote_jobs(&jobs, cx)
            }
            InterlaunchMessage::Release { key, outcome } if from == HEAD => {
                self.collective_ended(key, outcome, cx);
            }
            InterlaunchMessage::Fetched { serial, result } if from == HEAD => {
                if let Some((id, _)) = self.fetching.remove(&serial) {
                    let answer = match result {
                        Ok(data) => UpcallAnswer::Data(data),
                        Err(status) => UpcallAnswer::Status(Status(status)),
                    };
                    cx.answer(id, &answer);
                }
            }
            // Not to this node, or not from that one.
            _ => {}
        }
    }

    /// Handles libpmix's request for the data of a process of another launch.
    pub(in crate::node) fn request_remote_data(
        &mut self,
        id: UpcallId,
        proc: &PmixProc,
        timeout: Option<Duration>,
        cx: &mut NodeContext,
    ) {
        let named = named_members(std::slice::from_ref(proc)).and_then(|mut named| named.pop());
        let named = named.filter(|(nspace, _)| self.registered_jobs.contains(nspace));
        let Some((nspace, proc::RankOrWildcard::One(rank))) = named else {
            return cx.answer_status(id, Status::ERR_NOT_FOUND);
        };
        self.last_number += 1;
        let serial = self.last_number;
        let until = timeout.map(|timeout| cx.now + timeout);
        self.fetching.insert(serial, (id, until));
        let proc = proc::Proc::new(nspace, rank);
        let message = InterlaunchMessage::Fetch { serial, proc };
        self.send(HEAD, message, cx);
    }

    fn collective_ended(
        &mut self,
        key: InterlaunchId,
        outcome: InterlaunchResult,
        cx: &mut NodeContext,
    ) {
        let act = key.act;
        let named = (key.act, key.members);
        let waiting = self.waiting.get_mut(&named);
        let id = waiting.and_then(VecDeque::pop_front);
        if self.waiting.get(&named).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&named);
        }
        let Some(id) = id else { return };
        let answer = match outcome {
            Ok((0, data)) if act == InterlaunchOperation::Fence => UpcallAnswer::Data(data),
            Ok((status, _)) | Err(status) => UpcallAnswer::Status(Status(status)),
        };
        cx.answer(id, &answer);
    }
}

impl NodeService for InterlaunchState {
    fn next_deadline(&self) -> Option<Moment> {
        let fetching = self.fetching.values().filter_map(|(_, until)| *until);
        fetching.chain(self.hub.next_deadline()).min()
    }

    fn tick(&mut self, cx: &mut NodeContext) {
        let now = cx.now;
        let timeout = Status::ERR_TIMEOUT.0;
        self.with_hub(cx, |hub| hub.tick(now, timeout));
        let is_late = |_: &u64, (_, until): &mut (UpcallId, Option<Moment>)| {
            until.is_some_and(|until| until <= now)
        };
        for (_, (id, _)) in self.fetching.extract_if(.., is_late) {
            cx.answer_status(id, Status::ERR_TIMEOUT);
        }
    }

    /// Fails the operations that need a lost node of this launch.
    fn node_lost(&mut self, node: NodeId, _: &Arc<str>, cx: &mut NodeContext) {
        let lost = Status::ERR_LOST_CONNECTION.0;
        if node == HEAD {
            return self.tear_down(cx);
        }
        self.with_hub(cx, |hub| hub.node_lost(node, lost));
    }

    /// Fails all pending requests at the end of the launch.
    fn tear_down(&mut self, cx: &mut NodeContext) {
        let waiting = std::mem::take(&mut self.waiting);
        let fetching = std::mem::take(&mut self.fetching);
        let waiting = waiting.into_values().flatten();
        let fetching = fetching.into_values().map(|(id, _)| id);
        for id in waiting.chain(fetching) {
            cx.answer_status(id, Status::ERR_LOST_CONNECTION);
        }
    }
}

#[cfg(test)]
mod tests;
