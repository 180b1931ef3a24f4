//! The launcher of a running job: one loop that handles the steps' reports, decides the
//! reaction, and prints output.
//!
//! ```text
//! reports of steps, descriptors, time ──▶ Controller ──▶ services (LaunchServices), each with its own state
//!                                             │                 │
//!                                             └──▶ LaunchContext ◀┘   the launch: plan, jobs, ranks, steps, output
//! ```

mod allocation_requests;
mod control_orders;
pub(crate) mod control_stream;
mod debugger_table;
mod dialect_check;
mod event_sources;
mod failure_facts;
mod failure_line;
mod fence_reports;
mod finish;
mod guard_state;
mod host_reports;
mod job_tree;
mod launch_context;
mod launch_dispatch;
mod launch_effect;
mod launch_hosts;
mod launch_metrics;
mod launch_service;
mod launch_services;
mod launch_spawns;
mod launch_stage;
mod launch_status;
mod launch_tools;
mod launcher_signals;
#[allow(unsafe_code, reason = "symbols that debuggers look for by name")]
mod mpir;
mod name_scope;
mod name_server_link;
mod name_store_link;
mod progress;
pub(crate) mod query_server;
mod queued_spawn;
mod rank_labels;
mod rank_logs;
mod rank_status;
mod rank_terminal;
pub(crate) mod resize_request;
pub mod run;
mod singleton_detector;
pub(crate) mod slurm_job;
mod spawn_answers;
mod spawn_line;
mod stall;
mod status_records;
mod supervision;
mod wait_questions;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use event_sources::EventSources;
use failure_facts::FailureFacts;
use guard_state::GuardState;
use job_tree::JobTree;
use launch_context::LaunchContext;
use launch_services::LaunchServices;
use launch_stage::LaunchStage;
use launch_status::LaunchStatus;
use rank_status::{RankStatus, RankTable};

use crate::backend::guard::Guard;
use crate::backend::step_links::StepLinks;
use crate::plan::HostPlan;
use crate::plan::allocation_table::AllocationTable;
use crate::plan::planned_jobs::Jobs;
use crate::report::status_stream::{StatusOutput, StatusStream};
use crate::stdio::streams::OutputStreams;
use wireup_core::supervisor::Supervisor;
use wireup_sys::signals::Signals;

/// Event loop of the launcher, from the start of the ranks to the exit of the last one.
struct Controller {
    services: LaunchServices,
    /// Called once, when all ranks have been started.
    report_start: fn(),
    /// Context that all services share. The last field, since dropping it may wait for the guard.
    cx: LaunchContext,
}

/// The parts from which the controller is built.
struct ControllerParts {
    plan: Arc<HostPlan>,
    started: Instant,
    events: EventSources,
    steps: StepLinks,
    /// The guard, if this process has one.
    guard: Option<Guard>,
    signals: Signals,
    streams: OutputStreams,
    status: Option<StatusOutput>,
    /// Wall-clock time at which the launch started.
    started_at: SystemTime,
}

impl Controller {
    /// Creates the controller; no rank is started yet.
    fn new(parts: ControllerParts) -> Self {
        let size = parts.plan.job.process_map.size();
        let wake = &parts.events.wake;
        let status = parts.status.map(|target| StatusStream::new(target, wake));
        Self {
            services: LaunchServices::new(&parts.plan, parts.signals, &parts.streams),
            report_start: || {},
            cx: LaunchContext {
                supervisor: Supervisor::new(size, &parts.plan.spec.ending),
                ranks: RankTable::new(size),
                stage: LaunchStage::Preparing,
                status: LaunchStatus::new(status, &parts.plan, parts.started_at),
                job_tree: JobTree::new(size),
                allocations: AllocationTable::default(),
                failure_facts: FailureFacts::default(),
                end_signals: 0,
                effects: Vec::new(),
                guard: parts
                    .guard
                    .map_or(GuardState::Elsewhere, GuardState::Guarding),
                jobs: Jobs::new(Arc::clone(&parts.plan)),
                plan: parts.plan,
                started: parts.started,
                started_at: parts.started_at,
                events: parts.events,
                steps: parts.steps,
                streams: parts.streams,
            },
        }
    }
}
