//! The PMIx server's groups: upcalls become operations of the group engine, and
//! its answers theirs.
//!
//! Rule: the answer to a construct lists the members one by one, also when they were given as "all",
//! for libpmix 5 sends that list when the group is ended. Rule: the servers' data goes into one
//! info, one after the other. Source: docs/pmix-groups.md#groups.

mod added;
mod watching;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::fence::Participants;
use crate::fence::id::ParticipantRanks;
use crate::groups::group_watch::GroupWatch;
use crate::groups::{
    GroupAction, GroupArrival, GroupContext, GroupEngine, GroupFailure, GroupKey, GroupMessage,
    GroupOperation, GroupRelease, GroupResult, MemberNodes,
};
use crate::job::clock::Moment;
use crate::job::ids::{GlobalRank, NodeId, Rank};
use crate::job::proc;
use crate::node::context::NodeContext;
use crate::node::context::upcalls::timeout;
use crate::node::event::{NodeAction, NodeNotice, PeerMessage};
use crate::node::node_service::NodeService;
use crate::pmix::keys;
use crate::pmix::sidecar_link::UpcallId;
use crate::pmix::upcall::{GroupOp, UpcallAnswer};
use crate::pmix::value::{Array, Info, PmixProc, Status, Text, Value, find};
use crate::pmix::wire::{Reader, Writer};

/// First libpmix with answers that Open MPI's sessions understand.
const SESSIONS_SINCE: u32 = 5;

/// A waiter for an operation.
pub(in crate::node) struct GroupRequester {
    id: UpcallId,
    key: GroupKey,
}

/// State of a node's groups that the engine does not have.
pub(in crate::node) struct GroupState {
    pub(in crate::node) engine: GroupEngine<GroupRequester>,
    /// Groups whose members are notified of deaths.
    watch: GroupWatch,
    /// Version text that the sidecar's libpmix reported.
    pub(in crate::node) libpmix: Text,
    /// The user was warned that sessions do not work.
    warned: bool,
}

impl GroupState {
    pub(in crate::node) fn new(node: NodeId, nodes: u32) -> Self {
        Self {
            engine: GroupEngine::new(node, nodes),
            watch: GroupWatch::default(),
            libpmix: Text::default(),
            warned: false,
        }
    }

    pub(in crate::node) fn request(
        &mut self,
        id: UpcallId,
        op: GroupOp,
        name: Text,
        procs: &[PmixProc],
        infos: Vec<Info>,
        cx: &mut NodeContext,
    ) {
        if infos.iter().any(has_local_cid) && self.libpmix_is_before(SESSIONS_SINCE) {
            return self.refuse_sessions(id, cx);
        }
        if procs.is_empty() || find(&infos, keys::GROUP_BOOTSTRAP).is_some() {
            return cx.answer_status(id, Status::ERR_NOT_SUPPORTED);
        }
        let added = match self.added_here(&infos, cx) {
            Ok(added) => added,
            Err(status) => return cx.answer_status(id, status),
        };
        let Some(mut members) = cx.members(procs) else {
            return cx.answer_status(id, Status::ERR_BAD_PARAM);
        };
        // Others are none of the node's then, and do not call.
        let local_only = is_set(&infos, keys::GROUP_LOCAL_ONLY);
        let home = |member| cx.jobs.node_of(member);
        members.retain(|member| !local_only || home(*member) == Some(cx.node));
        let placement = self.placement(members, cx);
        let named = placement.members.iter();
        let named = named.map(|proc| (proc.nspace, proc::RankOrWildcard::One(proc.rank)));
        let Ok(members) = Participants::from_procs(named) else {
            return cx.answer_status(id, Status::ERR_BAD_PARAM);
        };
        let key = GroupKey {
            operation: match op {
                GroupOp::Construct => GroupOperation::Construct,
                GroupOp::Destruct => GroupOperation::Destruct,
            },
            name: name.into_bytes().into(),
            members,
        };
        let notify = is_set(&infos, keys::GROUP_NOTIFY_TERMINATION);
        let may_be_missing = [keys::GROUP_OPTIONAL, keys::GROUP_FT_COLLECTIVE];
        let optional = may_be_missing
            .iter()
            .any(|directive| is_set(&infos, directive))
            || self.ends_without_the_dead(&key);
        let offer = GroupArrival {
            ended_members: Vec::new(),
            optional,
            notify,
            wants_context: is_set(&infos, keys::GROUP_ASSIGN_CONTEXT_ID),
            status: local_status(&infos, optional).0,
            timeout: self.group_timeout(&infos),
            part: part(infos, added),
        };
        let ticket = GroupRequester {
            id,
            key: key.clone(),
        };
        self.with_engine(cx, |engine, groups| {
            engine.arrive(key, placement, offer, ticket, groups);
        });
    }

    /// Returns the timeout of an operation. libpmix 4.2 also has its own timer, which corrupts the server when it
    /// fires; an earlier answer stops it.
    fn group_timeout(&self, infos: &[Info]) -> Option<Duration> {
        let timeout = timeout(infos)?;
        match self.libpmix_is_before(5) {
            true => Some(timeout * 3 / 4),
            false => Some(timeout),
        }
    }

    pub(in crate::node) fn peer_message(
        &mut self,
        from: NodeId,
        message: GroupMessage,
        cx: &mut NodeContext,
    ) {
        let placement = match &message {
            GroupMessage::Arrive { key, .. } if !self.engine.is_open(key) => self.placed(key, cx),
            _ => None,
        };
        self.with_engine(cx, |engine, groups| {
            engine.message(from, message, placement, groups);
        });
    }

    /// Returns the names of these processes and the nodes on which they are.
    fn placement(&self, members: Vec<GlobalRank>, cx: &NodeContext) -> MemberNodes {
        let homes = members.iter().filter_map(|member| cx.jobs.node_of(*member));
        let homes: Arc<[NodeId]> = homes.collect();
        let nodes: BTreeSet<NodeId> = homes.iter().copied().collect();
        MemberNodes {
            members: members
                .into_iter()
                .map(|member| cx.name_of(member))
                .collect(),
            homes,
            nodes: nodes.into_iter().collect(),
        }
    }

    /// Returns the members of an operation and their nodes; `None` if one of them is not of this launch.
    fn placed(&self, key: &GroupKey, cx: &NodeContext) -> Option<MemberNodes> {
        let mut members = Vec::new();
        for (nspace, ranks) in key.members.entries() {
            let (job, member) = cx.find_job(nspace.as_str())?;
            let size = member.context.process_map.size();
            let listed: Vec<u32> = match ranks {
                ParticipantRanks::All => (0..size).collect(),
                ParticipantRanks::Runs(runs) => {
                    let ranks = runs.iter().map(|run| run.first.0..=run.last_rank.0);
                    ranks.flatten().take_while(|rank| *rank <= size).collect()
                }
            };
            if listed.iter().any(|rank| *rank >= size) {
                return None;
            }
            members.extend(
                listed
                    .into_iter()
                    .map(|rank| cx.jobs.global(job, Rank(rank))),
            );
        }
        Some(self.placement(members, cx))
    }

    /// Calls the engine and executes the resulting actions.
    pub(in crate::node) fn with_engine(
        &mut self,
        cx: &mut NodeContext,
        operation: impl FnOnce(&mut GroupEngine<GroupRequester>, &mut GroupContext<'_, GroupRequester>),
    ) {
        let mut outputs = Vec::new();
        let mut groups = GroupContext::new(cx.now, &mut outputs);
        operation(&mut self.engine, &mut groups);
        for output in outputs {
            match output {
                GroupAction::Send { to, message } => cx.send(to, PeerMessage::Group(message)),
                GroupAction::SendAll(message) => {
                    cx.order(NodeAction::SendEveryPeer(PeerMessage::Group(message)));
                }
                GroupAction::Complete { ticket, result } => {
                    if let Ok(released) = &result {
                        self.follow(ticket.key, released);
                    }
                    cx.answer(ticket.id, &group_answer(result));
                }
            }
        }
    }

    /// Whether the server's libpmix is known to have an earlier major version.
    fn libpmix_is_before(&self, major: u32) -> bool {
        let first = version(&self.libpmix).and_then(|text| text.split('.').next());
        first
            .and_then(|first| first.parse::<u32>().ok())
            .is_some_and(|first| first < major)
    }

    /// Refuses the group of a session. Open MPI 5 creates a communicator for it and misinterprets the answer of an
    /// older server, so it gets an answer in which it finds the refusal.
    fn refuse_sessions(&mut self, id: UpcallId, cx: &mut NodeContext) {
        if !std::mem::replace(&mut self.warned, true) {
            let text = format!(
                "the program uses MPI sessions, which libpmix {} does not support; use version {SESSIONS_SINCE} or \
                 later (--libpmix)",
                version(&self.libpmix).unwrap_or("of an old version"),
            );
            cx.report(NodeNotice::SidecarWarning { text });
        }
        let nothing = vec![Info::new(keys::GROUP_CONTEXT_ID, Value::Size(0))];
        cx.answer(id, &UpcallAnswer::Infos(Status::ERR_NOT_SUPPORTED, nothing));
    }
}

impl NodeService for GroupState {
    fn next_deadline(&self) -> Option<Moment> {
        self.engine.next_deadline()
    }

    fn tick(&mut self, cx: &mut NodeContext) {
        self.with_engine(cx, |engine, groups| engine.tick(groups));
    }

    fn node_lost(&mut self, node: NodeId, _: &Arc<str>, cx: &mut NodeContext) {
        self.with_engine(cx, |engine, groups| engine.node_lost(node, groups));
    }

    fn tear_down(&mut self, cx: &mut NodeContext) {
        self.with_engine(cx, GroupEngine::tear_down);
    }
}

/// Returns the status of the operation on this node before its server was called. Lost local members are no error if
/// members may be missing.
fn local_status(infos: &[Info], may_be_missing: bool) -> Status {
    let losses = [Status::ERR_PARTIAL_SUCCESS, Status::ERR_LOST_CONNECTION];
    let is_bad = |status: &Status| {
        *status != Status::SUCCESS && !(may_be_missing && losses.contains(status))
    };
    let mut statuses = infos.iter().filter_map(|info| match info.value {
        Value::Status(status) if info.key == keys::LOCAL_COLLECTIVE_STATUS => Some(status),
        _ => None,
    });
    statuses.find(is_bad).unwrap_or(Status::SUCCESS)
}

/// Whether a directive is present and not false.
fn is_set(infos: &[Info], key: &str) -> bool {
    infos
        .iter()
        .any(|info| info.key == key && info.value.is_set())
}

/// Returns the version in libpmix's own text, such as `OpenPMIx 5.0.11 (PMIx Standard: ...)`.
fn version(libpmix: &Text) -> Option<&str> {
    let is_number = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    libpmix.to_str()?.split_ascii_whitespace().find(is_number)
}

/// Returns the data of this server for all servers, as an info list. From libpmix 6 on it also has the infos of each
/// member, which start with the member's name.
fn part(infos: Vec<Info>, added: Vec<PmixProc>) -> Arc<[u8]> {
    let for_all = |info: &Info| {
        info.key == keys::GROUP_ENDPT_DATA
            || info.key == keys::GROUP_INFO
                && matches!(&info.value, Value::Infos(items)
                    if items.first().is_some_and(|first| first.key == keys::PROCID))
    };
    let infos = infos.into_iter().filter(for_all);
    let infos: Vec<Info> = infos.chain(added::added_members_info(added)).collect();
    let mut out = Writer::default();
    Info::encode_list(&infos, &mut out);
    out.into_bytes().into()
}

/// Whether Open MPI of version 5 or later makes a communicator with it.
fn has_local_cid(info: &Info) -> bool {
    info.key == keys::GROUP_INFO
        && matches!(&info.value, Value::Infos(items)
            if items.iter().any(|item| item.key == keys::GROUP_LOCAL_CID))
}

fn group_answer(result: GroupResult) -> UpcallAnswer {
    match result {
        Ok(released) if released.status != 0 => UpcallAnswer::Status(Status(released.status)),
        Ok(released) => match group_infos(&released) {
            Some(infos) => UpcallAnswer::Infos(Status::SUCCESS, infos),
            None => UpcallAnswer::Status(Status::ERROR),
        },
        Err(failure) => UpcallAnswer::Status(match failure {
            GroupFailure::Timeout { .. } => Status::ERR_TIMEOUT,
            GroupFailure::MemberEnded { .. } => Status::ERR_PROC_TERM_WO_SYNC,
            GroupFailure::ServerLost { .. }
            | GroupFailure::NodeLost { .. }
            | GroupFailure::TornDown { .. } => Status::ERR_LOST_CONNECTION,
            GroupFailure::TooMany { .. } => Status::ERR_OUT_OF_RESOURCE,
            GroupFailure::Busy | GroupFailure::NotMember { .. } => Status::ERR_BAD_PARAM,
        }),
    }
}

/// Returns the infos of a completed construct; `None` if its data cannot be decoded.
fn group_infos(released: &GroupRelease) -> Option<Vec<Info>> {
    let members = added::members_of(released)?.into_iter().map(Value::Proc);
    let members = Array::new(members.collect())?;
    let mut infos = vec![Info::new(keys::GROUP_MEMBERSHIP, Value::Array(members))];
    if let Some(context) = released.context {
        infos.push(Info::new(keys::GROUP_CONTEXT_ID, Value::Size(context)));
    }
    let mut data = Vec::new();
    for part in released.parts.iter() {
        for info in Info::decode_list(&mut Reader::new(part)).ok()? {
            match info.value {
                Value::Bytes(bytes) => data.extend(bytes),
                _ if info.key == keys::GROUP_ADD_MEMBERS => {}
                // Such infos are of no use without the id, and libpmix would not answer at all.
                _ if released.context.is_none() => {}
                _ => infos.push(info),
            }
        }
    }
    if !data.is_empty() {
        infos.push(Info::new(keys::GROUP_ENDPT_DATA, Value::Bytes(data)));
    }
    Some(infos)
}

#[cfg(test)]
mod tests;
