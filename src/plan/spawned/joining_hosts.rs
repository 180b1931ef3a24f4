//! Finds the hosts that join the launch for a spawn.

use std::time::Duration;

use super::{RequesterPlan, SpawnPlanner, hostfiles, refuse, text};
use crate::plan::spawned::spawn_infos::SpawnAttributes;
use wireup_core::job::hosts::{HostEntry, HostSpec, merge};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind, SpawnRequest};

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
}
