//! The plan of one node, made from what the launcher has decided: the node searches for the files that its ranks need.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::app_plan::{AppRanks, InspectionSite, app_plan};
use super::interface_offer::host_parts;
use super::{AppPlan, HostPlan, JobPlan, StagedFiles, host_binding, libpmix, rank_count};
use crate::failure::{CommandError, RequestError};
use crate::inspect::ldso::Loader;
use crate::plan::container_root::{ContainerRoot, run_in_root};
use crate::plan::inherited_context::InheritedContext;
use crate::plan::machine_slots::SlotLimits;
use crate::plan::packed_files::Owner;
use wireup_core::container;
use wireup_core::job::ids::{AppNum, NodeId};
use wireup_core::job::spec::JobSpec;

/// An inconsistent description of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the launcher's description of the job contradicts itself; use one version of wireup everywhere"
)]
pub(crate) struct PlanMismatch;

impl RequestError for PlanMismatch {}

impl HostPlan {
    /// Makes the plan of one node of a job on several hosts: searches for the files that its ranks
    /// need.
    ///
    /// `inheritance` is the launcher's, with what the node itself adds ([`InheritedContext::on_node`]);
    /// `staged_files` are those that were sent and stored; `descriptors` is the hard limit of open
    /// descriptors here, `container_root` what ranks here see if they run in an image.
    ///
    /// # Errors
    /// [`CommandError`] with the reason and the remedy, in words that are the same on every node with
    /// this problem: see [`by_node`](crate::report::failures::by_node).
    pub(crate) fn resolve(
        mut decided: JobPlan,
        spec: JobSpec,
        inheritance: InheritedContext,
        node: NodeId,
        staged_files: &[StagedFiles],
        descriptors: u64,
        inside: Option<ContainerRoot>,
    ) -> Result<Self, CommandError> {
        decided.check(&spec, node)?;
        let slots = SlotLimits::detect();
        let ranks = decided.job.process_map.local_size(node);
        rank_count::check_node(&spec, node, ranks, &slots, descriptors)?;
        decided.oversubscribed = slots.exceeded_by(ranks);
        let in_image = spec.container.image.is_some();
        let mut looked = Vec::with_capacity(spec.apps.len());
        let contexts = (0..).map(AppNum).zip(&spec.apps);
        let variables = std::mem::take(&mut decided.variables);
        for ((number, app), mut env) in contexts.zip(variables) {
            inheritance.add_local(app, &mut env);
            let ranks = decided.job.app_map.ranks_of(number);
            let stand = match decided.has(node, &ranks) {
                true => InspectionSite::Node,
                false => InspectionSite::Bystander,
            };
            let count = decided.count_reasons[number.index()];
            let ranks = AppRanks { ranks, count };
            let mut app = Cow::Borrowed(app);
            let owner = Owner {
                job: &decided.job.nspace,
                node,
                app: number,
            };
            if let Some(staged_files) = staged_files.get(number.index()) {
                staged_files.apply(owner, &mut app, &mut env);
            }
            if let Some(inside) = &inside {
                container::environment(&mut env, &inside.env);
            }
            let inherited = &inheritance;
            looked.push(run_in_root(inside.as_ref(), move || {
                app_plan(&app, ranks, env, inherited, stand, in_image, None)
            })?);
        }
        let (apps, loaders): (Vec<AppPlan>, Vec<Loader>) = looked.into_iter().unzip();
        let host = decided
            .offer
            .pmix
            .then(|| host_parts(&spec, &apps, &loaders, &inheritance));
        let (host, without_host) = match host {
            Some(Ok(host)) => (Some(host), None),
            // Processes spawned here may notice.
            Some(Err(failure)) if ranks == 0 => (None, Some(failure.to_string())),
            Some(Err(failure)) => return Err(failure),
            None => (None, None),
        };
        let libpmix = libpmix(host.as_ref());
        let binding = host_binding::bind(&spec, &decided, Some(node), None, libpmix)?;
        let plan = Self {
            job_plan: decided,
            inheritance: Arc::new(inheritance),
            apps,
            container_root: inside,
            sidecar_files: host,
            sidecar_unavailable: without_host,
            binding,
            slots,
            notes: Vec::new(),
            warnings: Vec::new(),
            spec,
        };
        plan.check_fabric(node)?;
        Ok(plan)
    }
}

impl JobPlan {
    /// Checks that a plan from a link is consistent.
    ///
    /// # Errors
    /// [`PlanMismatch`] otherwise.
    pub(crate) fn check(&self, spec: &JobSpec, node: NodeId) -> Result<(), PlanMismatch> {
        let (apps, nodes) = (spec.apps.len(), self.job.process_map.nodes() as usize);
        let last = AppNum(u32::try_from(apps).unwrap_or(0).saturating_sub(1));
        let fits = self.count_reasons.len() == apps
            && self.variables.len() == apps
            && apps > 0
            && self.job.app_map.ranks_of(last).end == self.job.process_map.size()
            && self.node_names.len() == nodes
            && spec.layout.hosts.len() == nodes
            && node.index() < nodes;
        if fits { Ok(()) } else { Err(PlanMismatch) }
    }

    /// Whether one of these ranks is on a node.
    pub(super) fn has(&self, node: NodeId, ranks: &Range<u32>) -> bool {
        self.job
            .process_map
            .ranks_on(node)
            .any(|rank| ranks.contains(&rank.0))
    }
}
