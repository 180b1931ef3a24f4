//! Binds the ranks of this host: reads its topology and usable CPUs, from which [`HostBinding`] computes the binding.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::plan::host_scope::HostScope;
use crate::plan::reasons::CountReason;
use crate::plan::{HostPlan, JobPlan};
use wireup_core::binding::{BindingError, HostBinding};
use wireup_core::failure::RequestError;
use wireup_core::job::ids::Rank;
use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::spec::{JobSpec, MapWithinHost};
use wireup_core::topology::xml::TopologyError;
use wireup_core::topology::{CpuSet, DeviceKind, ObjectType, Topology, xml};
use wireup_sys::device_files::DeviceDirectories;
use wireup_sys::devices::{self, SYS};
use wireup_sys::hwloc::{self, HwlocError};

/// Ranks of a host that cannot be bound, with the option that requests the binding.
#[derive(Debug, thiserror::Error)]
#[error("{option}: {error}")]
pub(crate) struct HostBindingError {
    option: String,
    error: HostBindingCause,
}

#[derive(Debug, thiserror::Error)]
enum HostBindingCause {
    #[error(transparent)]
    Topology(#[from] TopologyUnavailable),
    #[error(transparent)]
    Binding(#[from] BindingError),
    #[error(
        "the number of {} is known only on each host; give the number of ranks too (-n)", .0.noun(2)
    )]
    Unnumbered(ObjectType),
    #[error("this host has no {}", .0.noun(1))]
    Without(ObjectType),
    #[error(
        "{error}; {hidden} more have no device file here, or the control group denies access to it"
    )]
    Hidden { error: BindingError, hidden: usize },
    #[error(
        "cannot open the device files of GPUs: permission denied for {0}; add the user to the groups video and render, \
         or pass the devices to the container"
    )]
    Refused(String),
    #[error(
        "HWLOC_XMLFILE or HWLOC_SYNTHETIC names another host's topology; unset it, or use --dry-run to show the binding there"
    )]
    OtherHost,
}

impl RequestError for HostBindingError {}

/// Error: the topology of this host is unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopologyUnavailable {
    #[error(transparent)]
    Hwloc(#[from] HwlocError),
    #[error(transparent)]
    Description(#[from] TopologyError),
}

impl RequestError for TopologyUnavailable {}

/// Topology of a host, and the CPUs that its ranks may use.
#[derive(Debug)]
pub(crate) struct BindingHost {
    pub(crate) topology: Topology,
    /// CPUs in the affinity mask; `None` for the topology of another host.
    pub(crate) limit: Option<CpuSet>,
}

impl BindingHost {
    /// Reads the topology of this host, or of the host that a variable of hwloc names; with devices if `devices` is set.
    /// `library_directory` is a directory that may contain hwloc's library.
    ///
    /// # Errors
    /// [`TopologyUnavailable`] without a usable hwloc.
    pub(crate) fn from_hwloc(
        library_directory: Option<&Path>,
        devices: bool,
    ) -> Result<Self, TopologyUnavailable> {
        let described = hwloc::describe(library_directory, devices)?;
        let topology = xml::parse(&described.xml)?;
        let limit = described.this_host.then(affinity).flatten();
        Ok(Self { topology, limit })
    }
}

/// Removes GPUs from a topology to which this process has no access. Returns their number.
fn hide_gpus(topology: &mut Topology) -> usize {
    let places = DeviceDirectories::from_system();
    let before = topology.devices.len();
    topology
        .devices
        .retain(|device| device.kind != DeviceKind::Gpu || !places.is_hidden(device));
    before - topology.devices.len()
}

/// Refuses GPUs of ranks whose device files this user may not open.
fn check_gpus(bound: &HostBinding, ranks: &[Rank]) -> Result<(), HostBindingCause> {
    let gpus = ranks.iter().filter_map(|rank| bound.gpus_of(*rank));
    let devices: BTreeSet<usize> = gpus.flatten().map(|gpu| gpu.device).collect();
    let devices = devices.iter().map(|at| &bound.topology.devices[*at]);
    let refused: BTreeSet<PathBuf> = devices
        .flat_map(|device| DeviceDirectories::from_system().refused(device))
        .collect();
    let refused: Vec<String> = refused.iter().map(|it| it.display().to_string()).collect();
    match refused.is_empty() {
        true => Ok(()),
        false => Err(HostBindingCause::Refused(refused.join(", "))),
    }
}

/// Affinity mask of this thread, from `/proc`, whose text is not limited to a number of CPUs.
fn affinity() -> Option<CpuSet> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().parse().ok()
}

/// Ranks of a host in the order in which they are bound: node after node.
fn ranks_here(ranks: &ProcessMap, scope: HostScope) -> Vec<Rank> {
    let nodes = scope.nodes(ranks.nodes());
    nodes.flat_map(|node| ranks.ranks_on(node)).collect()
}

/// Number of ranks that `--map-by ppr:N:UNIT` gives a single program without `-n` on this machine; `None` if
/// another option decides their number.
///
/// # Errors
/// [`HostBindingError`] if the units of the host cannot be counted.
pub(super) fn ranks_by_parts(
    spec: &JobSpec,
) -> Result<Option<(u32, CountReason)>, HostBindingError> {
    let MapWithinHost::Each(each, level) = spec.binding.map else {
        return Ok(None);
    };
    let layout = &spec.layout;
    let decided = spec.apps.len() > 1 || spec.apps[0].count.is_some();
    if decided || layout.ppn.is_some() || !layout.runs.is_empty() {
        return Ok(None);
    }
    let count = || -> Result<u32, HostBindingCause> {
        if layout.across_hosts() {
            return Err(HostBindingCause::Unnumbered(level));
        }
        let host = BindingHost::from_hwloc(None, false).map_err(HostBindingCause::Topology)?;
        let allowed = &host.topology.allowed;
        let usable = host
            .limit
            .map_or_else(|| allowed.clone(), |limit| allowed.and(&limit));
        let parts = host.topology.numbers_of(level, &usable).len();
        match u32::try_from(parts) {
            Ok(parts @ 1..) => Ok(parts),
            _ => Err(HostBindingCause::Without(level)),
        }
    };
    let parts = count().map_err(|error| HostBindingError {
        option: format!("--map-by {}", spec.binding.map),
        error,
    })?;
    let ranks = each
        .saturating_mul(parts)
        .saturating_mul(layout.virtual_nodes);
    Ok(Some((ranks, CountReason::Parts { each, parts, level })))
}

/// Binds the ranks of a job on the nodes of this host; `None` if no rank here is to be bound. For a spawned job `first` is the
/// plan of the initial job.
///
/// # Errors
/// [`HostBindingError`] with the reason and the remedy.
pub(super) fn bind(
    spec: &JobSpec,
    decided: &JobPlan,
    scope: HostScope,
    first: Option<&HostPlan>,
    libpmix: Option<&Path>,
) -> Result<Option<Arc<HostBinding>>, HostBindingError> {
    let ranks = ranks_here(&decided.job.process_map, scope);
    let several = scope == HostScope::Whole && decided.job.process_map.nodes() > 1;
    // Each virtual node has the slots of the whole machine.
    let share = spec.layout.oversubscribe || several;
    if !spec.binding.asks() || ranks.is_empty() {
        return Ok(None);
    }
    let before = decided.earlier_processes(scope.node());
    // The topology of an initial job without GPUs has no devices, so a spawned job with GPUs reads its own.
    let with_gpus = |spec: &JobSpec| spec.binding.gpus_per_rank.is_some();
    let known = first.filter(|first| with_gpus(&first.spec) || !with_gpus(spec));
    let known = known.and_then(|first| first.binding.as_ref());
    let bound = || -> Result<HostBinding, HostBindingCause> {
        let mut hidden = 0;
        let (topology, usable) = match known {
            Some(known) => (Arc::clone(&known.topology), Some(known.usable.clone())),
            None => {
                // The search for devices takes time: it is done only to bind GPUs, to show devices, or if ranks read them.
                let shown = spec.dry_run || spec.verbose > 0 || spec.binding.report;
                let read = decided.offer.pmi && !devices::without_near_and_far(Path::new(SYS));
                let must_find_devices = spec.binding.gpus_per_rank.is_some() || shown || read;
                let mut host =
                    BindingHost::from_hwloc(libpmix.and_then(Path::parent), must_find_devices)?;
                if host.limit.is_none() && !spec.dry_run {
                    return Err(HostBindingCause::OtherHost);
                }
                if spec.binding.gpus_per_rank.is_some() && host.limit.is_some() {
                    hidden = hide_gpus(&mut host.topology);
                }
                (Arc::new(host.topology), host.limit)
            }
        };
        let here = usable.is_some();
        let usable = usable.as_ref();
        let bound = HostBinding::new(topology, usable, &spec.binding, &ranks, before, share);
        let bound = bound.map_err(|error| match error {
            BindingError::TooFewGpus { .. } if hidden > 0 => {
                HostBindingCause::Hidden { error, hidden }
            }
            error => HostBindingCause::Binding(error),
        })?;
        if here {
            check_gpus(&bound, &ranks)?;
        }
        Ok(bound)
    };
    let bound = bound().map_err(|error| HostBindingError {
        option: spec.binding.option(),
        error,
    })?;
    Ok(Some(Arc::new(bound)))
}
