//! Reports failures to the supervisor, and carries out its orders.

use super::{Controller, finish};
use crate::backend::backend_message::ToBackend;
use crate::report::process_names::listed;
use wireup_core::job::outcome::Cause;
use wireup_core::supervisor::SupervisorOrder;
use wireup_core::wording::{counted, verb_ending};

impl Controller {
    /// The job has failed, unless it had before.
    pub(crate) fn fail(&mut self, cause: Cause) {
        // A rank whose end is held back came first.
        self.backend.judge_now();
        // What cannot be read now fails the loop when it reads it.
        let _ = self.hear();
        self.fail_by(cause);
    }

    /// The same, after ends that were held back have been judged.
    pub(super) fn fail_by(&mut self, cause: Cause) {
        let mut orders = Vec::new();
        self.supervisor
            .fail(cause, self.started.elapsed(), &mut orders);
        self.carry_out(orders);
    }

    pub(super) fn carry_out(&mut self, orders: Vec<SupervisorOrder>) {
        // Before the signals of the end, which a rank that is being started gets once.
        if self.supervisor.is_ending() {
            self.backend.order(ToBackend::Ending);
        }
        for order in orders {
            match order {
                SupervisorOrder::Signal(signal) => {
                    self.backend.order(ToBackend::Signal(signal));
                    if signal == libc::SIGTERM {
                        self.hang_up();
                    }
                }
                SupervisorOrder::SignalRanks(signal, ranks) => {
                    self.backend.order(ToBackend::SignalRanks { signal, ranks });
                }
                SupervisorOrder::NoteAbort { by, code, ranks } => {
                    let names = ranks.iter().filter_map(|rank| self.jobs.find(*rank));
                    let text = format!(
                        "{} aborted {} with code {code}; the others continue",
                        self.jobs.name_of(by),
                        listed(&names.collect::<Vec<_>>())
                    );
                    self.tell(&text);
                }
                SupervisorOrder::NoteInterrupt => {
                    let remaining = self.supervisor.remaining();
                    let text = format!(
                        "interrupted; {remaining} of {} still run{}, interrupt again to end them",
                        counted(self.jobs.size(), "rank"),
                        verb_ending(remaining == 1)
                    );
                    self.tell(&text);
                }
                SupervisorOrder::NoteFailure(cause) => {
                    if let Some(line) = finish::failure_line(self, Some(&cause)) {
                        let others = match self.supervisor.remaining() {
                            0 => "",
                            _ => "; the others continue",
                        };
                        self.tell(&format!("{line}{others}"));
                    }
                }
            }
        }
        self.phase_changed();
    }
}
