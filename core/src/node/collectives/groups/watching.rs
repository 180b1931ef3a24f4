//! Notifications between members of groups: every node follows the events of invitations, and the
//! node of a process that dies notifies its groups.
//!
//! Rule: libpmix does not report these deaths by itself. Where it would (`PMIx_Group_invite`
//! listens for `PROC_TERMINATED`), it frees what it needs for the next answer, before version 7: so the
//! host raises what libpmix would make of it. Source: docs/pmix-groups.md#groups.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{GroupRelease, GroupState};
use crate::groups::group_watch::{GroupLoss, GroupNotice};
use crate::groups::{GroupKey, GroupOperation};
use crate::job::ids::{GlobalRank, NodeId};
use crate::job::proc;
use crate::node::context::NodeContext;
use crate::node::context::node_effect::NodeEffect;
use crate::node::context::pmi_state::PmixState;
use crate::node::context::upcalls::custom_range;
use crate::node::event::{Notification, PeerMessage};
use crate::pmix::keys;
use crate::pmix::value::{Array, DataRange, Info, PmixProc, Status, Text, Value, find};

/// First libpmix that ends an invitation when an invited process dies.
const INVITES_END_SINCE: u32 = 7;

impl GroupState {
    /// Starts or stops watching a group after a completed operation.
    pub(super) fn follow(&mut self, key: GroupKey, released: &GroupRelease) {
        let watch = &mut self.watch;
        match key.operation {
            GroupOperation::Construct if released.notify && released.status == 0 => {
                let members = released.members.iter().collect();
                watch.add_constructed_group(key.name, members, released.context);
            }
            GroupOperation::Construct => {}
            GroupOperation::Destruct => watch.ended(&key.name, |proc| key.members.contains(proc)),
        }
    }

    /// Handles the end of a group of this node, which libpmix only reports.
    pub(in crate::node) fn group_ended(
        &mut self,
        name: &Text,
        procs: &[PmixProc],
        cx: &mut NodeContext,
    ) {
        let members = cx.members(procs).unwrap_or_default().into_iter();
        let members: BTreeSet<proc::Proc> = members.map(|member| cx.name_of(member)).collect();
        let watch = &mut self.watch;
        watch.ended(name.as_bytes(), |proc| members.contains(proc));
    }

    /// Whether the members requested notifications of deaths instead of a failure.
    pub(super) fn ends_without_the_dead(&self, key: &GroupKey) -> bool {
        key.operation == GroupOperation::Destruct
            && self
                .watch
                .contains(&key.name, |proc| key.members.contains(proc))
    }

    /// Handles an event that may concern groups.
    pub(in crate::node) fn observe(&mut self, event: &Notification, cx: &mut NodeContext) {
        if ![
            Status::GROUP_INVITED,
            Status::GROUP_CONSTRUCT_COMPLETE,
            Status::GROUP_LEADER_SELECTED,
            Status::GROUP_LEFT,
        ]
        .contains(&event.code)
        {
            return;
        }
        let Some(Value::String(name)) = find(&event.infos, keys::GROUP_ID) else {
            return;
        };
        let Some(source) = cx.find_process(&event.source) else {
            return;
        };
        let source = cx.name_of(source);
        let name = name.as_bytes();
        match event.code {
            Status::GROUP_INVITED => {
                let invited = custom_range(&event.infos).unwrap_or_default();
                let invited = cx.members(&invited).unwrap_or_default();
                let members: Vec<_> = invited.iter().map(|member| cx.name_of(*member)).collect();
                self.engine.invited(name, &members);
                self.watch.invited(name.into(), source, members);
                // The death of a process that died before the event arrived is not reported again.
                for member in invited {
                    let local = cx.local(member);
                    if local.is_some_and(|at| cx.pmix_states[at.index()] == PmixState::Died) {
                        self.raise_death(member, cx);
                    }
                }
            }
            Status::GROUP_CONSTRUCT_COMPLETE => self.watch.completed(name, &source),
            Status::GROUP_LEADER_SELECTED => self.watch.chosen(name, &source),
            _ => {
                self.watch.on_member_left(name, &source);
                let name = Arc::from(name);
                self.with_engine(cx, |engine, groups| {
                    engine.member_left(&name, source, groups);
                });
            }
        }
    }

    /// Notifies the members of its groups when a rank of this node died between init and finalize, if the job
    /// continues.
    pub(in crate::node) fn raise_death(&mut self, process: GlobalRank, cx: &mut NodeContext) {
        let dead = cx.name_of(process);
        let notices = self.watch.died(&dead);
        if !cx.policy.tolerant || !cx.sidecar.is_offered() {
            return;
        }
        for notice in notices {
            self.raise_loss(&dead, notice, cx);
        }
    }

    fn raise_loss(&mut self, dead: &proc::Proc, notice: GroupNotice, cx: &mut NodeContext) {
        let source = PmixProc::from(dead);
        let to: Vec<PmixProc> = notice.to.iter().map(PmixProc::from).collect();
        let members = to.iter().filter_map(|proc| cx.find_process(proc));
        let nodes: BTreeSet<NodeId> = members
            .filter_map(|member| cx.jobs.node_of(member))
            .collect();
        let Some(to) = Array::new(to.into_iter().map(Value::Proc).collect()) else {
            return;
        };
        let mut infos = vec![
            Info::new(keys::EVENT_CUSTOM_RANGE, Value::Array(to)),
            Info::new(keys::EVENT_AFFECTED_PROC, Value::Proc(source.clone())),
            Info::new(
                keys::GROUP_ID,
                Value::String(Text::new(notice.name.to_vec())),
            ),
            // Open MPI's default handler ends the process.
            Info::new(keys::EVENT_NON_DEFAULT, Value::Bool(true)),
        ];
        if let Some(context) = notice.context {
            infos.push(Info::new(keys::GROUP_CONTEXT_ID, Value::Size(context)));
        }
        let lost = match notice.loss {
            GroupLoss::Member => Status::GROUP_MEMBER_FAILED,
            GroupLoss::Leader => Status::GROUP_LEADER_FAILED,
            GroupLoss::Invited => Status::GROUP_INVITE_FAILED,
        };
        // libpmix itself ends the invitation then.
        let resolves =
            notice.loss == GroupLoss::Invited && !self.libpmix_is_before(INVITES_END_SINCE);
        let also = resolves.then_some(Status::PROC_TERMINATED);
        for code in [Some(lost), also].into_iter().flatten() {
            let event = Arc::new(Notification {
                code,
                source: source.clone(),
                range: DataRange::CUSTOM,
                infos: infos.clone(),
            });
            let own = cx.node;
            for &to in nodes.iter().filter(|to| **to != own) {
                cx.send(to, PeerMessage::Notify(Arc::clone(&event)));
            }
            if nodes.contains(&own) {
                cx.leave(NodeEffect::Notify(event));
            }
        }
    }
}
