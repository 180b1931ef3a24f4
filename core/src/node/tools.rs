//! PMIx tools that are attached to this node's server: their names, and their departure.
//!
//! Rule: a tool is never refused here. libpmix 4.2 uses freed memory when its host refuses one, and who
//! may connect was decided before libpmix read a byte (`pmix-host/src/peers.rs`). A name that is not the
//! tool's to have is replaced: what libpmix passes on then comes from the new name.
//! Rule: a rank that calls `PMIx_tool_init` connects as a tool too, and libpmix keeps its name whatever
//! the answer is. Source: `process_cbfunc` in `ptl_base_connection_hdlr.c` of 4.2.2 and 5.0.11.

use std::collections::{BTreeMap, BTreeSet};

use super::NodeCore;
use super::node_context::NodeContext;
use crate::job::ids::{Nspace, Rank};
use crate::job::proc;
use crate::node::event::{Action, FromNode};
use crate::pmix::keys;
use crate::pmix::sidecar::{RequestId, UpcallId};
use crate::pmix::upcall::UpcallAnswer;
use crate::pmix::value::{Info, Proc, Value, find};

/// Bytes of an nspace at most: `PMIX_MAX_NSLEN`.
const NSPACE_MAX: usize = wireup_shim::wire::WIREUP_MAX_NSPACE as usize;

/// The tools of a node.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// How many names were made up.
    made: u32,
    /// How many connections each has.
    attached: BTreeMap<Proc, u32>,
    /// Requests that tell them how jobs have ended, until the sidecar has answered them.
    pub(super) telling: BTreeSet<RequestId>,
}

impl Tools {
    /// Whether none is attached.
    pub(super) fn is_empty(&self) -> bool {
        self.attached.is_empty()
    }

    /// It is attached.
    pub(super) fn attach(&mut self, name: &Proc, cx: &mut NodeContext) {
        // Each time: a node may have lost its sidecar since another one came.
        cx.order(Action::Tell(FromNode::Tools { attached: true }));
        *self.attached.entry(name.clone()).or_default() += 1;
    }

    /// Whether it is attached.
    pub(super) fn knows(&self, name: &Proc) -> bool {
        self.attached.contains_key(name)
    }

    /// The same by the name that a job has of it.
    pub(super) fn has(&self, name: &proc::Proc) -> bool {
        self.knows(&Proc::new(&name.nspace, name.rank))
    }
}

impl NodeCore {
    /// Whether the end of the launch must wait: a tool is being told how jobs have ended, or output is on
    /// its way to it.
    pub fn tools_wait(&self) -> bool {
        !self.tools.is_empty()
            && self.cx.sidecar.is_ready()
            && (!self.tools.telling.is_empty() || self.awaits_output())
    }

    /// Whether tools here or elsewhere are concerned by the end of the launch.
    pub fn concerns_tools(&self) -> bool {
        !self.tools.is_empty() || self.has_readers()
    }

    /// A tool has connected.
    pub(super) fn tool_connected(&mut self, id: UpcallId, infos: &[Info]) {
        let claimed = claimed(infos);
        let name = match claimed {
            Some(claimed) if self.is_free(&claimed) => claimed,
            claimed => {
                let name = self.new_tool_name();
                // Of a rank libpmix does not take the name.
                if claimed.is_some_and(|claimed| self.cx.named(&claimed).is_some()) {
                    return self.cx.answer(id, &UpcallAnswer::Named(name));
                }
                name
            }
        };
        self.tools.attach(&name, &mut self.cx);
        self.cx.answer(id, &UpcallAnswer::Named(name));
    }

    /// The tool of that name, if it is attached here.
    pub(super) fn tool_named(&self, name: &Proc) -> Option<proc::Proc> {
        let rank = name.rank.rank().filter(|_| self.tools.knows(name))?;
        let nspace = std::str::from_utf8(name.nspace.as_bytes()).ok()?;
        let nspace = Nspace::new(nspace).ok()?;
        Some(proc::Proc::new(nspace, rank))
    }

    /// Whether a tool may have this name: that of no job, and of no server.
    fn is_free(&self, name: &Proc) -> bool {
        let Ok(nspace) = std::str::from_utf8(name.nspace.as_bytes()) else {
            return false;
        };
        let launch = self.cx.launch().nspace.as_str();
        !nspace.is_empty()
            && self.cx.job_named(nspace).is_none()
            && nspace.strip_prefix(launch) != Some("-host")
    }

    fn new_tool_name(&mut self) -> Proc {
        loop {
            self.tools.made += 1;
            let launch = &self.cx.launch().nspace;
            let nspace = format!("{launch}-tool-{}-{}", self.cx.node, self.tools.made);
            let name = Proc {
                nspace: nspace.as_str().into(),
                rank: Rank(0).into(),
            };
            if !self.tools.attached.contains_key(&name) {
                return name;
            }
        }
    }

    /// The sidecar is lost, and every tool with it.
    pub(super) fn tools_lost(&mut self) {
        self.tools.telling.clear();
        if !std::mem::take(&mut self.tools.attached).is_empty() {
            self.cx
                .order(Action::Tell(FromNode::Tools { attached: false }));
        }
    }

    /// Connections have ended; those of processes of the launch are not of interest here.
    pub(super) fn connections_lost(&mut self, source: Proc, infos: Vec<Info>) {
        let others = infos.into_iter().filter_map(|info| match info.value {
            Value::Proc(proc) if info.key == keys::PROCID => Some(proc),
            _ => None,
        });
        let any = !self.tools.is_empty();
        for name in std::iter::once(source).chain(others) {
            if let Some(connections) = self.tools.attached.get_mut(&name) {
                *connections -= 1;
                if *connections == 0 {
                    self.tools.attached.remove(&name);
                    self.forward_no_more(&name);
                }
            }
        }
        if any && self.tools.is_empty() {
            self.cx
                .order(Action::Tell(FromNode::Tools { attached: false }));
        }
        self.pull_ended();
    }
}

/// The name that a tool brings.
fn claimed(infos: &[Info]) -> Option<Proc> {
    match (find(infos, keys::NSPACE)?, find(infos, keys::RANK)?) {
        (Value::String(nspace), Value::Rank(rank)) if nspace.as_bytes().len() <= NSPACE_MAX => {
            rank.rank().map(|rank| Proc {
                nspace: nspace.clone(),
                rank: rank.into(),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
