//! PMIx tools that are attached to this node's server: their names, and their departure.
//!
//! Rule: a tool is never refused here. libpmix 4.2 uses freed memory when its host refuses one, and who
//! may connect was decided before libpmix read a byte (`pmix-host/src/peers.rs`). A name that is not the
//! tool's to have is replaced: what libpmix passes on then comes from the new name.
//! Rule: a rank that calls `PMIx_tool_init` connects as a tool too, and libpmix keeps its name whatever
//! the answer is. Source: `process_cbfunc` in `ptl_base_connection_hdlr.c` of 4.2.2 and 5.0.11.

use std::collections::BTreeSet;

use crate::job::ids::Rank;
use crate::node::context::NodeContext;
use crate::node::event::NodeReport;
use crate::node::tools::raised_events::job_ended;
use crate::pmix::keys;
use crate::pmix::sidecar_link::{RequestId, UpcallId};
use crate::pmix::sidecar_protocol::SidecarCommand;
use crate::pmix::upcall::UpcallAnswer;
use crate::pmix::value::{Info, PmixProc, Value, find};
use crate::queries::JobEnd;

/// Bytes of an nspace at most: `PMIX_MAX_NSLEN`.
const NSPACE_MAX: usize = wireup_shim::wire::WIREUP_MAX_NSPACE as usize;

/// Adds a connection of a tool.
pub(in crate::node) fn attach_tool(cx: &mut NodeContext, name: &PmixProc) {
    // Reported each time: a node may have lost its sidecar since another tool attached.
    cx.report_to_launcher(NodeReport::Tools { attached: true });
    cx.tools.connect(name);
}

/// Gives a tool that has connected its name.
pub(in crate::node) fn connect_tool(cx: &mut NodeContext, id: UpcallId, infos: &[Info]) {
    let claimed = claimed(infos);
    let name = match claimed {
        Some(claimed) if is_free(cx, &claimed) => claimed,
        claimed => {
            let name = new_tool_name(cx);
            // Of a rank libpmix does not take the name.
            if claimed.is_some_and(|claimed| cx.find_process(&claimed).is_some()) {
                return cx.answer(id, &UpcallAnswer::Named(name));
            }
            name
        }
    };
    attach_tool(cx, &name);
    cx.answer(id, &UpcallAnswer::Named(name));
}

/// Whether a tool may have this name: that of no job, and of no server.
fn is_free(cx: &NodeContext, name: &PmixProc) -> bool {
    let Some(nspace) = name.nspace.to_str() else {
        return false;
    };
    let launch = cx.launch().nspace.as_str();
    !nspace.is_empty()
        && cx.find_job(nspace).is_none()
        && nspace.strip_prefix(launch) != Some("-host")
}

fn new_tool_name(cx: &mut NodeContext) -> PmixProc {
    loop {
        let number = cx.tools.next_number();
        let launch = &cx.launch().nspace;
        let nspace = format!("{launch}-tool-{}-{number}", cx.node);
        let name = PmixProc::new(nspace, Rank(0));
        if !cx.tools.knows(&name) {
            return name;
        }
    }
}

/// Removes all tools with their server.
pub(in crate::node) fn lose_tools(cx: &mut NodeContext) {
    if cx.tools.disconnect_all() {
        report_no_tools(cx);
    }
}

/// Reports that no tool is attached here any more.
pub(in crate::node) fn report_no_tools(cx: &mut NodeContext) {
    cx.report_to_launcher(NodeReport::Tools { attached: false });
}

/// Ends connections and returns the tools that have none any more. Connections of processes of the launch are passed over.
pub(in crate::node) fn disconnect_tools(
    cx: &mut NodeContext,
    source: PmixProc,
    infos: Vec<Info>,
) -> Vec<PmixProc> {
    let others = infos.into_iter().filter_map(|info| match info.value {
        Value::Proc(proc) if info.key == keys::PROCID => Some(proc),
        _ => None,
    });
    let names = std::iter::once(source).chain(others);
    names.filter(|name| cx.tools.disconnect(name)).collect()
}

/// Notices to tools of how the jobs of a launch have ended.
#[derive(Debug, Default)]
pub(in crate::node) struct EndNotices {
    /// Requests that the sidecar has not answered yet.
    requests: BTreeSet<RequestId>,
}

impl EndNotices {
    /// Whether the sidecar has not passed on all notices.
    pub(in crate::node) fn are_pending(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Has the sidecar notify the tools here. Each node notifies its own.
    pub(in crate::node) fn send(&mut self, ends: &[JobEnd], cx: &mut NodeContext) {
        for end in ends {
            let Some(member) = cx.jobs.get(end.job) else {
                continue;
            };
            let event = job_ended(&member.context.nspace, end.worst);
            self.requests.extend(cx.notify_now(&event));
        }
        // The sidecar's thread sends an event after it has answered, and before it answers this.
        self.requests.extend(cx.control(&SidecarCommand::Probe));
    }

    /// Handles the sidecar's reply to a request.
    pub(in crate::node) fn answered(&mut self, id: RequestId) {
        self.requests.remove(&id);
    }

    /// Forgets all requests after the loss of the sidecar.
    pub(in crate::node) fn clear(&mut self) {
        self.requests.clear();
    }
}

/// Returns the name that a tool brings.
fn claimed(infos: &[Info]) -> Option<PmixProc> {
    match (find(infos, keys::NSPACE)?, find(infos, keys::RANK)?) {
        (Value::String(nspace), Value::Rank(rank)) if nspace.as_bytes().len() <= NSPACE_MAX => {
            rank.rank().map(|rank| PmixProc::new(nspace.clone(), rank))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
