//! The binding of the ranks of this host: its topology, the CPUs that it may use, and what core decides of these.

use std::path::Path;
use std::sync::Arc;

use crate::failure::RequestError;
use crate::plan::{Decided, Plan};
use crate::sys::hwloc::{self, HwlocError};
use wireup_core::binding::{BindingError, HostBinding};
use wireup_core::job::ids::{NodeId, Rank};
use wireup_core::job::rank_placement::RankMap;
use wireup_core::job::spec::JobSpec;
use wireup_core::topology::xml::TopologyError;
use wireup_core::topology::{CpuSet, Topology, xml};

/// Why the ranks of a host cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("{option}: {error}")]
pub(crate) struct NotBound {
    option: String,
    error: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error(transparent)]
    Topology(#[from] NoTopology),
    #[error(transparent)]
    Binding(#[from] BindingError),
    #[error(
        "a variable of hwloc's names another host's topology (HWLOC_XMLFILE, HWLOC_SYNTHETIC); --dry-run shows the binding there"
    )]
    OtherHost,
}

impl RequestError for NotBound {}

/// Why the topology of this host is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoTopology {
    #[error(transparent)]
    Hwloc(#[from] HwlocError),
    #[error("{0}")]
    Description(#[from] TopologyError),
}

impl RequestError for NoTopology {}

/// A host, as far as it concerns binding.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) topology: Topology,
    /// CPUs in the affinity mask; nothing if it is another host.
    pub(crate) limit: Option<CpuSet>,
}

impl Host {
    /// This host, with its `devices` if these are wanted, or the one that a variable of hwloc's names. `beside` is a
    /// directory that may have hwloc's library.
    ///
    /// # Errors
    /// [`NoTopology`] without a usable hwloc.
    pub(crate) fn look(beside: Option<&Path>, devices: bool) -> Result<Self, NoTopology> {
        let described = hwloc::describe(beside, devices)?;
        let topology = xml::parse(&described.xml)?;
        let limit = described.this_host.then(affinity).flatten();
        Ok(Self { topology, limit })
    }
}

/// The affinity mask of this thread. From a text, which has no limit of size.
fn affinity() -> Option<CpuSet> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().parse().ok()
}

/// The ranks of a host in the order in which they are bound: of one node, or node after node.
fn ranks_here(ranks: &RankMap, node: Option<NodeId>) -> Vec<Rank> {
    match node {
        Some(node) => ranks.ranks_on(node).collect(),
        None => ranks
            .node_ids()
            .flat_map(|node| ranks.ranks_on(node))
            .collect(),
    }
}

/// Binds the ranks of a job on one node, or on this machine as all nodes. For a spawned job `first` is the first job's
/// plan. Nothing if nothing is to be bound here.
///
/// # Errors
/// [`NotBound`] with the reason and the remedy.
pub(super) fn bind(
    spec: &JobSpec,
    decided: &Decided,
    node: Option<NodeId>,
    (first, libpmix): (Option<&Plan>, Option<&Path>),
) -> Result<Option<Arc<HostBinding>>, NotBound> {
    let ranks = ranks_here(&decided.job.ranks, node);
    let several = node.is_none() && decided.job.ranks.nodes() > 1;
    // A virtual node brings the slots of the whole machine.
    let share = spec.layout.oversubscribe || several;
    if !spec.binding.asks() || ranks.is_empty() {
        return Ok(None);
    }
    let before = match (&decided.origin, node) {
        (None, _) => 0,
        (Some(origin), Some(node)) => origin.before.get(node.index()).copied().unwrap_or(0),
        (Some(origin), None) => origin.before.iter().sum(),
    };
    let known = first.and_then(|first| first.binding.as_ref());
    let bound = || -> Result<HostBinding, Reason> {
        let (topology, usable) = match known {
            Some(known) => (Arc::clone(&known.topology), Some(known.usable.clone())),
            None => {
                let host = Host::look(
                    libpmix.and_then(Path::parent),
                    spec.binding.gpus_per_rank.is_some(),
                )?;
                if host.limit.is_none() && !spec.dry_run {
                    return Err(Reason::OtherHost);
                }
                (Arc::new(host.topology), host.limit)
            }
        };
        let usable = usable.as_ref();
        let order = (before, share);
        Ok(HostBinding::new(
            topology,
            usable,
            &spec.binding,
            &ranks,
            order,
        )?)
    };
    let bound = bound().map_err(|error| NotBound {
        option: match spec.binding.binds() {
            true => format!("--bind-to {}", spec.binding.to),
            false => "--gpus-per-rank".to_owned(),
        },
        error,
    })?;
    Ok(Some(Arc::new(bound)))
}
