//! The services of a launch, in the order of their ticks.

use super::allocation_requests::AllocationRequests;
use super::control_orders::ControlOrders;
use super::dialect_check::DialectCheck;
use super::fence_reports::FenceReports;
use super::host_reports::HostReports;
use super::launch_hosts::LaunchHosts;
use super::launch_metrics::LaunchCounters;
use super::launch_service::LaunchService;
use super::launch_spawns::LaunchSpawns;
use super::launch_tools::LaunchTools;
use super::name_server_link::NameServerLink;
use super::progress::LaunchProgress;
use super::query_server::QueryServer;
use super::rank_logs::RankLogs;
use super::rank_terminal::RankTerminal;
use super::singleton_detector::SingletonDetector;
use super::stall::StallWatch;
use super::wait_questions::WaitQuestions;
use crate::plan::HostPlan;
use crate::plan::job_names::JobNames;
use crate::stdio::streams::OutputStreams;
use wireup_sys::signals::Signals;

/// Number of services with deadlines.
pub(super) const SERVICES: usize = 9;

/// All services of a launch. Each owns its state.
pub(super) struct LaunchServices {
    pub(super) signals: Signals,
    pub(super) orders: ControlOrders,
    pub(super) hosts: HostReports,
    pub(super) dialects: DialectCheck,
    pub(super) logs: RankLogs,
    pub(super) fences: FenceReports,
    pub(super) counters: LaunchCounters,
    pub(super) tools: LaunchTools,
    /// Queries of the supervisor: whether ranks wait.
    pub(super) waits: WaitQuestions,
    pub(super) terminal: RankTerminal,
    pub(super) spawns: LaunchSpawns,
    pub(super) membership: LaunchHosts,
    pub(super) allocations: AllocationRequests,
    pub(super) singletons: SingletonDetector,
    pub(super) stall: StallWatch,
    pub(super) progress: LaunchProgress,
    pub(super) names: NameServerLink,
    /// Requests of other commands.
    pub(super) queries: QueryServer,
}

impl LaunchServices {
    /// Creates the services of a launch without started ranks.
    pub(super) fn new(plan: &HostPlan, signals: Signals, streams: &OutputStreams) -> Self {
        Self {
            signals,
            orders: ControlOrders::default(),
            hosts: HostReports::default(),
            dialects: DialectCheck::default(),
            logs: RankLogs::default(),
            fences: FenceReports::default(),
            counters: LaunchCounters::default(),
            tools: LaunchTools::default(),
            waits: WaitQuestions::default(),
            terminal: RankTerminal::default(),
            spawns: LaunchSpawns::new(JobNames::new(&plan.job.nspace)),
            membership: LaunchHosts::default(),
            allocations: AllocationRequests::new(plan.spec.interface.allocator.clone()),
            singletons: SingletonDetector::new(plan.apps.len()),
            stall: StallWatch::default(),
            progress: LaunchProgress::new(plan, streams),
            names: NameServerLink::default(),
            queries: QueryServer::default(),
        }
    }

    /// Returns the services with deadlines, in the order of their ticks. The pattern names every service, so that a
    /// new one is listed here or left out on purpose.
    pub(super) fn each(&mut self) -> [&mut dyn LaunchService; SERVICES] {
        let Self {
            signals: _,
            orders: _,
            hosts: _,
            dialects: _,
            logs: _,
            fences: _,
            counters: _,
            tools: _,
            waits: _,
            terminal,
            spawns,
            membership,
            allocations,
            singletons,
            stall,
            progress,
            names,
            queries,
        } = self;
        [
            terminal,
            spawns,
            membership,
            allocations,
            singletons,
            stall,
            progress,
            names,
            queries,
        ]
    }
}
