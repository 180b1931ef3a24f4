//! Places the ranks of a job on nodes; the launcher does so for every requester.
//!
//! ```text
//!  command line, scheduler    HostPlan::new ──────┐
//!                                                 ├─▶ PlacedJob::new ─▶ JobContext
//!  PMI-1, PMI-2, PMIx_Spawn   SpawnPlanner::plan ─┘
//! ```

use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::spec::LayoutSpec;
use wireup_core::placement::{LaunchNodes, PlacementError, PlacementRequest, place, universe};

/// Job whose ranks have been placed.
pub(super) struct PlacedJob {
    /// Number of ranks of each application.
    pub(super) sizes: Vec<u32>,
    pub(super) process_map: ProcessMap,
    /// Whether any node has more processes than slots.
    pub(super) oversubscribed: bool,
    /// Universe size of the job, and whether it is unlimited ([`universe`]).
    pub(super) universe: (u32, bool),
}

impl PlacedJob {
    /// Places applications with `counts` requested ranks on the nodes of a launch with this `layout`. The
    /// universe of a spawned job is that of the initial job, whose map is `initial`.
    ///
    /// # Errors
    /// [`PlacementError`] when the ranks do not fit.
    pub(super) fn new(
        request: &PlacementRequest<'_>,
        counts: Vec<u32>,
        launch: &LaunchNodes<'_>,
        layout: &LayoutSpec,
        initial: Option<&ProcessMap>,
    ) -> Result<Self, PlacementError> {
        let placement = place(request, launch)?;
        let sizes = match placement.sizes.len() == counts.len() {
            true => placement.sizes.clone(),
            // The request was for the ranks of all applications together.
            false => counts,
        };
        let oversubscribed = placement.oversubscribed;
        let process_map = placement.process_map(layout.nodes());
        let map = initial.unwrap_or(&process_map);
        Ok(Self {
            universe: universe(&launch.nodes, map, layout.oversubscribe),
            sizes,
            process_map,
            oversubscribed,
        })
    }
}
