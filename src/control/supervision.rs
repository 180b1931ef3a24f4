//! Reports failures to the supervisor, and carries out its orders.

use super::{Controller, finish};
use crate::backend::step_messages::LauncherToStep;
use crate::report::process_names::listed;
use wireup_core::job::outcome::FailureCause;
use wireup_core::supervisor::SupervisorAction;
use wireup_core::wording::{counted, verb_ending};

impl Controller {
    /// The job has failed, unless it had before.
    pub(crate) fn fail(&mut self, cause: FailureCause) {
        // A rank whose end is held back came first.
        self.steps.send(LauncherToStep::Settle);
        // What cannot be read now fails the loop when it reads it.
        let _ = self.drain_reports();
        self.fail_by(cause);
    }

    /// The same, after ends that were held back have been judged.
    pub(super) fn fail_by(&mut self, cause: FailureCause) {
        let mut orders = Vec::new();
        self.supervisor
            .fail(cause, self.started.elapsed(), &mut orders);
        self.carry_out(orders);
    }

    pub(super) fn carry_out(&mut self, orders: Vec<SupervisorAction>) {
        // Before the signals of the end, which a rank that is being started gets once.
        if self.supervisor.is_ending() {
            self.steps.send(LauncherToStep::Ending);
        }
        for order in orders {
            match order {
                SupervisorAction::Signal(signal) => {
                    self.steps.send(LauncherToStep::Signal(signal));
                    if signal == libc::SIGTERM {
                        self.hang_up();
                    }
                }
                SupervisorAction::SignalRanks(signal, ranks) => {
                    self.steps
                        .send(LauncherToStep::SignalRanks { signal, ranks });
                }
                SupervisorAction::NoteAbort {
                    requester: by,
                    code,
                    ranks,
                } => {
                    let names = ranks.iter().filter_map(|rank| self.jobs.find(*rank));
                    let names = listed(&names.collect::<Vec<_>>());
                    if let Some(by) = self.jobs.look_up(by) {
                        self.print_line(&format!(
                            "{by} aborted {names} with code {code}; the others continue"
                        ));
                    }
                }
                SupervisorAction::NoteInterrupt => {
                    let remaining = self.supervisor.remaining();
                    let text = format!(
                        "interrupted; {remaining} of {} still run{}, interrupt again to end them",
                        counted(self.jobs.size(), "rank"),
                        verb_ending(remaining == 1)
                    );
                    self.print_line(&text);
                }
                SupervisorAction::NoteFailure(cause) => {
                    if let Some(line) = finish::failure_line(self, Some(&cause)) {
                        let others = match self.supervisor.remaining() {
                            0 => "",
                            _ => "; the others continue",
                        };
                        self.print_line(&format!("{line}{others}"));
                    }
                }
            }
        }
        self.phase_changed();
    }
}
