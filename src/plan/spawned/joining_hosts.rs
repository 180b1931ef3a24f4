//! Finds the hosts that join the launch, for a spawn or on request, and those that leave it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{RequesterPlan, SpawnPlanner, hostfiles, refuse, text};
use crate::plan::allocation_table;
use crate::plan::spawned::spawn_infos::SpawnAttributes;
use crate::plan::spawned::spawn_nodes::first_label;
use wireup_core::job::allocation::{AllocationFailure, AllocationFailureKind as Kind};
use wireup_core::job::hosts::{HostEntry, HostSpec, compress, merge};
use wireup_core::job::ids::NodeId;
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind, SpawnRequest};
use wireup_core::node::HEAD;

impl SpawnPlanner<'_> {
    /// Timeout of a spawn: the shorter of the request's and the launch's.
    pub fn spawn_limit(&self, request: &SpawnRequest) -> Option<Duration> {
        // Invalid infos are ignored here: the plan of the spawn is refused because of them.
        let own = SpawnAttributes::from_infos(&request.infos)
            .ok()
            .and_then(|job| job.limit);
        own.into_iter().chain(self.initial.spec.ending.spawn).min()
    }

    /// Finds the hosts that the launch lacks for a request: those that the request adds, and those of the allocation in
    /// which it spawns. `allocated` returns the hosts of an allocation that are not in the launch.
    ///
    /// # Errors
    /// [`SpawnFailure`] for an invalid list of hosts, and if hosts cannot join the launch.
    pub fn added_hosts(
        &self,
        requester: RequesterPlan<'_>,
        request: &SpawnRequest,
        allocated: impl Fn(&str) -> Vec<HostEntry>,
    ) -> Result<Vec<HostSpec>, SpawnFailure> {
        let job = SpawnAttributes::from_infos(&request.infos)?;
        let mut lists: Vec<Vec<HostEntry>> = Vec::new();
        for app in &request.apps {
            let wishes = SpawnAttributes::from_infos(&app.infos)?;
            let allocation = wishes.allocation.as_ref().or(job.allocation.as_ref());
            let of_allocation = allocation.map_or_else(Vec::new, |id| allocated(id));
            if !lists.contains(&of_allocation) {
                lists.push(of_allocation);
            }
            let cwd = self.directory(requester.base(), app);
            for named in [&wishes, &job] {
                let files = hostfiles(&named.added_files, &cwd)?;
                let list = named.added.iter().cloned().chain(files).collect();
                // Equal lists of several programs are one: their hosts join once.
                if !lists.contains(&list) {
                    lists.push(list);
                }
            }
        }
        let entries = lists.concat();
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let names = self.names(requester.node());
        let mut hosts = merge(entries).map_err(|problem| text("add-host", problem))?;
        hosts.retain(|host| names.node(&host.name).is_none());
        match hosts.first() {
            Some(host) if !self.initial.can_grow() => {
                let problem = format!(
                    "host {} cannot join: the launch runs on this machine alone; start it with \
                     --hosts",
                    host.name
                );
                Err(refuse(SpawnFailureKind::NotSupported, problem))
            }
            _ => Ok(hosts),
        }
    }

    /// Returns the hosts of a list that can be added to the launch; `leaving` are nodes that have not left yet.
    ///
    /// # Errors
    /// [`AllocationFailure`] for an invalid list, for a host that is in the launch, and if no host can join.
    pub(crate) fn hosts_to_add(
        &self,
        entries: &[HostEntry],
        leaving: &BTreeSet<NodeId>,
    ) -> Result<Vec<HostSpec>, AllocationFailure> {
        let hosts = self.merged(entries)?;
        for host in &hosts {
            let Some(node) = self.names(NodeId(0)).node(&host.name) else {
                continue;
            };
            let text = match leaving.contains(&node) {
                true => format!(
                    "host {} is leaving the launch; add it again when it has left",
                    host.name
                ),
                false => format!("host {} is in the launch already", host.name),
            };
            return Err(allocation_table::refuse(Kind::BadRequest, text));
        }
        Ok(hosts)
    }

    /// Returns the nodes of a list of hosts that can leave the launch.
    ///
    /// # Errors
    /// [`AllocationFailure`] for an invalid list, a host that is not in the launch, and a host without which the launch
    /// cannot continue.
    pub(crate) fn nodes_to_remove(
        &self,
        entries: &[HostEntry],
    ) -> Result<Vec<NodeId>, AllocationFailure> {
        let node_of = |host: HostSpec| {
            let Some(node) = self.names(NodeId(0)).node(&host.name) else {
                let text = format!(
                    "host {} is not in the launch ({})",
                    host.name,
                    compress(self.initial.present_names())
                );
                return Err(allocation_table::refuse(Kind::NotFound, text));
            };
            let reason = if first_label(self.initial.node_name(node))
                == first_label(&self.initial.launcher.host)
            {
                "the launcher runs on it"
            } else if node == HEAD {
                "it is the first host, which connects the others and keeps their names"
            } else {
                return Ok(node);
            };
            let text = format!("host {} cannot leave the launch: {reason}", host.name);
            Err(allocation_table::refuse(Kind::NotSupported, text))
        };
        self.merged(entries)?.into_iter().map(node_of).collect()
    }

    fn merged(&self, entries: &[HostEntry]) -> Result<Vec<HostSpec>, AllocationFailure> {
        if !entries.is_empty() && !self.initial.can_grow() {
            let text = "the launch runs on this machine alone: no host can join or leave; start it with --hosts";
            return Err(allocation_table::refuse(Kind::NotSupported, text));
        }
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        merge(entries.to_vec())
            .map_err(|problem| allocation_table::refuse(Kind::BadRequest, problem))
    }
}
