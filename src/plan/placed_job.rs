//! The nodes of a job's ranks, as the launcher decides them for every requester.
//!
//! ```text
//!  command line, scheduler    HostPlan::new ──────┐
//!                                                 ├─▶ PlacedJob::new ─▶ JobContext
//!  PMI-1, PMI-2, PMIx_Spawn   HostPlan::spawned ──┘
//! ```

use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::spec::LayoutSpec;
use wireup_core::placement::{LaunchNodes, PlacementError, PlacementRequest, place, universe};

/// A job whose ranks have nodes.
pub(super) struct PlacedJob {
    /// Ranks of each application.
    pub(super) sizes: Vec<u32>,
    pub(super) process_map: ProcessMap,
    /// Whether a node has more processes than slots.
    pub(super) oversubscribed: bool,
    /// The number of slots for it, and whether that is unlimited ([`universe`]).
    pub(super) universe: (u32, bool),
}

impl PlacedJob {
    /// Places applications for which these `counts` of ranks are requested, on nodes that the launch has by its `layout`. The
    /// universe of a spawned job is that of the initial one, whose map is `initial`.
    ///
    /// # Errors
    /// [`PlacementError`] when they do not fit.
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
            // The request is about the ranks of all applications together.
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
