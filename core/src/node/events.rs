//! PMIx events: those raised on this node are carried to the others, and the deaths of ranks are
//! events.
//!
//! Rule: libpmix notifies the clients of its own node, also of events raised through its server, and
//! does not call for that. Rule: an event is carried by the node of its source alone. Source:
//! docs/shim.md#events.

use std::sync::Arc;

use super::NodeCore;
use super::node_context::NodeContext;
use crate::job::ids::GlobalRank;
use crate::job::outcome::RankEnd;
use crate::node::event::Notification;
use crate::pmix::keys;
use crate::pmix::value::{DataRange, Info, Proc, Status, Value};

impl NodeCore {
    /// An event raised here: libpmix notifies this node's clients, and this function the other
    /// nodes.
    pub(super) fn forward(&mut self, event: Notification) {
        let everywhere = [
            DataRange::NAMESPACE,
            DataRange::SESSION,
            DataRange::GLOBAL,
            DataRange::CUSTOM,
        ];
        // An event of another node's process was brought here by its own node.
        let ours = event
            .source
            .rank
            .rank()
            .is_none_or(|_| self.cx.local_of(&event.source).is_some())
            || self.cx.tools.knows(&event.source);
        if ours && everywhere.contains(&event.range) {
            self.groups.observe(&event, &mut self.cx);
            self.settle();
            self.cx.carry(&Arc::new(event));
        }
    }

    /// An event of another node, or of the host itself.
    pub(super) fn notify(&mut self, event: &Notification) {
        self.groups.observe(event, &mut self.cx);
        self.settle();
        if event.code == Status::DEBUGGER_RELEASE {
            self.stopped.rank_released(&event.infos, &mut self.cx);
        }
        if !self.outputs.keeps_end(event, &mut self.cx) {
            self.cx.notify_now(event);
        }
    }
}

impl NodeContext {
    /// The event that a process has died; `None` where the job does not go on.
    pub(super) fn death(&self, process: GlobalRank, end: RankEnd) -> Option<Notification> {
        if !self.terms.tolerant || !self.sidecar.is_offered() {
            return None;
        }
        let name = self.name_of(process);
        let proc = Proc::new(&name.nspace, name.rank);
        let code = match end {
            RankEnd::Code(0) => Status::ERR_PROC_TERM_WO_SYNC,
            // Also for signals: it is what fault-tolerant MPIs listen for.
            _ => Status::ERR_PROC_ABORTED,
        };
        let infos = vec![
            Info::new(keys::EVENT_AFFECTED_PROC, Value::Proc(proc.clone())),
            Info::new(keys::EXIT_CODE, Value::Int(end.exit_code().into())),
            // Open MPI's default handler ends the process.
            Info::new(keys::EVENT_NON_DEFAULT, Value::Bool(true)),
        ];
        Some(Notification {
            code,
            source: proc,
            range: DataRange::NAMESPACE,
            infos,
        })
    }
}
