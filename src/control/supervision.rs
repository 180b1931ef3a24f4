//! Reports failures and signals to the supervisor, and executes its actions.

use super::failure_line::failure_line;
use super::launch_context::LaunchContext;
use super::launch_effect::LaunchEffect;
use super::launch_stage::LaunchStage;
use super::status_records;
use crate::backend::step_messages::LauncherToStep;
use crate::control::rank_status::RankStatus;
use crate::report::failures::RemainingRanks;
use crate::report::process_names::listed;
use wireup_core::job::job_control::JobControlRequest;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::missing_ranks::NAMED_MAX;
use wireup_core::job::outcome::FailureCause;
use wireup_core::supervisor::{LaunchPhase, SupervisorAction};
use wireup_core::wording::{counted, verb_ending};

/// Fails the job, unless it has failed before. Delayed reports of exits have been handled before.
pub(super) fn fail(cx: &mut LaunchContext, cause: FailureCause) {
    let mut orders = Vec::new();
    cx.supervisor.fail(cause, cx.now(), &mut orders);
    carry_out(cx, orders);
}

/// Terminates, kills or signals ranks at the request of a rank, a tool or the launcher.
pub(super) fn demand(cx: &mut LaunchContext, request: JobControlRequest) {
    let mut orders = Vec::new();
    cx.supervisor.demanded(request, cx.now(), &mut orders);
    carry_out(cx, orders);
}

/// Handles a signal to the launcher that ends the job.
pub(super) fn end_by_signal(cx: &mut LaunchContext, signal: i32) {
    // A repeated signal ends everything. Whether a rank still runs is not
    // always known here at once.
    if cx.supervisor.is_asked_to_end() || !cx.ranks.iter().any(RankStatus::runs) {
        cx.end_signals += 1;
    }
    cx.steps.send(LauncherToStep::Hurry);
    let now = cx.now();
    let mut orders = Vec::new();
    // A rank that does not run yet cannot exit by itself after a signal.
    let is_early = cx.stage < LaunchStage::Running;
    match signal == libc::SIGINT && !is_early {
        true => cx.supervisor.interrupt(now, &mut orders),
        false => cx.supervisor.end_by_signal(signal, now, &mut orders),
    }
    carry_out(cx, orders);
}

/// Executes actions of the supervisor.
pub(super) fn carry_out(cx: &mut LaunchContext, orders: Vec<SupervisorAction>) {
    // Sent before the signals of the end, which a rank that is being started gets once.
    if cx.supervisor.is_ending() {
        cx.steps.send(LauncherToStep::Ending);
    }
    for order in orders {
        match order {
            SupervisorAction::Signal(signal) => {
                cx.steps.send(LauncherToStep::Signal(signal));
                if signal == libc::SIGTERM {
                    cx.effects.push(LaunchEffect::HangUp);
                }
            }
            SupervisorAction::SignalRanks(signal, ranks) => {
                cx.steps.send(LauncherToStep::SignalRanks { signal, ranks });
            }
            SupervisorAction::NoteAbort {
                requester: by,
                code,
                ranks,
            } => {
                let names = ranks.iter().filter_map(|rank| cx.jobs.find(*rank));
                let names = listed(&names.collect::<Vec<_>>());
                if let Some(by) = cx.jobs.look_up(by) {
                    cx.print_line(&format!(
                        "{by} aborted {names} with code {code}; the others continue"
                    ));
                }
            }
            SupervisorAction::NoteInterrupt => {
                let remaining = cx.supervisor.remaining();
                let text = format!(
                    "interrupted; {remaining} of {} still run{}, interrupt again to end them",
                    counted(cx.jobs.size(), "rank"),
                    verb_ending(remaining == 1)
                );
                cx.print_line(&text);
            }
            SupervisorAction::NoteFailure(cause) => {
                if let Some(line) = failure_line(cx, Some(&cause)) {
                    let others = match cx.supervisor.remaining() {
                        0 => "",
                        _ => "; the others continue",
                    };
                    cx.print_line(&format!("{line}{others}"));
                }
            }
        }
    }
    enter_end(cx);
}

/// Enters the stage of the end that the supervisor has decided on, if any.
fn enter_end(cx: &mut LaunchContext) {
    let stage = match cx.supervisor.phase() {
        LaunchPhase::Running => return,
        LaunchPhase::Terminating { .. } => LaunchStage::Ending,
        LaunchPhase::Killing => LaunchStage::Killing,
    };
    if cx.stage < LaunchStage::Ending {
        cx.failure_facts.remaining_ranks = remaining_ranks(cx);
        cx.effects.push(LaunchEffect::EndBegun);
    }
    status_records::enter_stage(cx, stage);
}

fn remaining_ranks(cx: &LaunchContext) -> RemainingRanks {
    let ranks = cx.jobs.all_ranks();
    let living: Vec<KnownRank> = ranks.filter(|rank| cx.ranks.get(*rank).runs()).collect();
    let named = living.iter().take(NAMED_MAX);
    RemainingRanks {
        count: living.len(),
        named: named.map(|rank| (*rank, cx.pmi_state(*rank))).collect(),
    }
}
