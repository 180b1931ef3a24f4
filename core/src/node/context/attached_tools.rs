//! The PMIx tools that are attached to the server of a node, with their connections.

use std::collections::BTreeMap;

use crate::job::ids::Nspace;
use crate::job::proc;
use crate::pmix::value::PmixProc;

/// The tools that are attached to a node's server.
#[derive(Debug, Default)]
pub(in crate::node) struct AttachedTools {
    /// Number of names that the node gave to tools without one.
    assigned_names: u32,
    /// Number of connections of each tool.
    connections: BTreeMap<PmixProc, u32>,
}

impl AttachedTools {
    /// Whether none is attached.
    pub(in crate::node) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Whether it is attached.
    pub(in crate::node) fn knows(&self, name: &PmixProc) -> bool {
        self.connections.contains_key(name)
    }

    /// Whether a tool is attached, by the name that jobs have of it.
    pub(in crate::node) fn is_attached(&self, name: &proc::Proc) -> bool {
        self.knows(&PmixProc::from(name))
    }

    /// Returns the name of a tool in the form of jobs, if the tool is attached.
    pub(in crate::node) fn name_of(&self, name: &PmixProc) -> Option<proc::Proc> {
        let rank = name.rank.rank().filter(|_| self.knows(name))?;
        let nspace = Nspace::new(name.nspace.to_str()?).ok()?;
        Some(proc::Proc::new(nspace, rank))
    }

    pub(in crate::node) fn connect(&mut self, name: &PmixProc) {
        *self.connections.entry(name.clone()).or_default() += 1;
    }

    /// Makes up a number for the name of a tool that brings none.
    pub(in crate::node) fn next_number(&mut self) -> u32 {
        self.assigned_names += 1;
        self.assigned_names
    }

    /// Ends all connections. Returns whether there were any.
    pub(in crate::node) fn disconnect_all(&mut self) -> bool {
        !std::mem::take(&mut self.connections).is_empty()
    }

    /// Ends a connection. Returns whether it was the last one of its tool.
    pub(in crate::node) fn disconnect(&mut self, name: &PmixProc) -> bool {
        let Some(connections) = self.connections.get_mut(name) else {
            return false;
        };
        *connections -= 1;
        let is_last = *connections == 0;
        if is_last {
            self.connections.remove(name);
        }
        is_last
    }
}
