//! Resources of a local backend: descriptors, directories, the nodes' state. Their creation may fail.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use tracing::info_span;

use crate::backend::guard::become_subreaper;
use crate::backend::local::node_cores::LocalNode;
use crate::backend::local::{LocalParts, host_cleanup};
use crate::plan::directory::{JobDirectory, NodeDirectories};
use crate::plan::rank_count;
use wireup_core::failure::CommandError;
use wireup_core::job::ids::JobIndex;
use wireup_core::node::{CollectivePolicy, CredentialSigner, LaunchFacts, NodeCore};
use wireup_core::pmi::pmi_store::{MEMORY_KINDS, PROPAGATED_SIGNALS, TOPOLOGY_FILE};
use wireup_sys::cgroup::Cgroup;
use wireup_sys::{descriptors, signals};

/// Resources of a local backend: descriptors, directories, the nodes' state.
pub(super) struct HostResources {
    pub(super) nodes: Vec<LocalNode>,
    pub(super) directories: Vec<NodeDirectories>,
    pub(super) group: Option<Cgroup>,
}

impl HostResources {
    /// Creates the resources. `directory` is set as soon as the directory exists, also in the case of an error.
    pub(super) fn new(
        parts: &LocalParts<'_>,
        directory: &mut Option<JobDirectory>,
    ) -> Result<Self, CommandError> {
        let (plan, part) = (parts.plan, parts.scope);
        let ranks = part.size(&plan.job.process_map);
        let lowest_rank_fd = descriptors::lowest_rank_fd(ranks as usize).unwrap_or_default();
        descriptors::make_room(
            rank_count::descriptors(ranks) + u64::from(lowest_rank_fd.unsigned_abs()),
        );
        become_subreaper().map_err(|error| CommandError::system("cannot adopt orphans", error))?;
        let of_ranks = plan.spec.apps.iter().any(|app| app.rank_tmpdir);
        if plan.offer.pmix || of_ranks {
            *directory = Some(host_cleanup::job_directory(plan, part, &parts.guard)?);
        }
        let nodes = || part.nodes(plan.job.process_map.nodes());
        // MPICH's ranks read the topology from this file; without it each would discover the topology itself.
        let topology = host_cleanup::topology_file(plan, part);
        let directories = directory
            .iter()
            .filter(|_| plan.offer.pmix)
            .flat_map(|dir| nodes().map(|node| dir.node(node, &plan.job.nspace)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| CommandError::system("cannot make the job's directories", error))?;
        let voucher = plan.launch_key.clone().map(|key| {
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            let since = parts
                .started_at
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            CredentialSigner::new(key, (uid.as_raw(), gid.as_raw()), since)
        });
        let propagated: Vec<String> = signals::passed_on().map(signals::name).collect();
        let propagated = propagated.join(",");
        let nodes = nodes()
            .map(|node| {
                NodeCore::new(
                    node,
                    Arc::clone(&plan.job),
                    plan.offer.pmi,
                    plan.offer.pmix,
                    CollectivePolicy::from_spec(&plan.spec),
                )
                .map(|core| {
                    let core = core.impatient_after(parts.silence);
                    let mut core = core.with_signer(voucher.clone());
                    core = core.with_attribute(PROPAGATED_SIGNALS, propagated.as_bytes());
                    core = core.with_attribute(TOPOLOGY_FILE, topology.as_os_str().as_bytes());
                    if let Some(kinds) = &plan.spec.interface.memory_kinds {
                        core = core.with_attribute(MEMORY_KINDS, kinds.as_bytes());
                    }
                    core.add_facts(JobIndex::INITIAL, Arc::clone(plan) as Arc<dyn LaunchFacts>);
                    core.name_nodes(&plan.node_names);
                    let name = plan.node_names.get(node.index()).map(String::as_str);
                    LocalNode::new(core, info_span!("node", number = node.0, name))
                })
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| CommandError::system("cannot serve this job", error))?;
        Ok(Self {
            nodes,
            directories,
            // The group is created last, since no later failure can leave it behind.
            group: host_cleanup::group(plan, part, &parts.guard),
        })
    }
}
