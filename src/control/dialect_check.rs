//! Compares the form of PMI that ranks speak with the one that the user has chosen (`--pmi`).

use super::launch_context::LaunchContext;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::spec::InterfaceChoice;
use wireup_core::pmi::command::Dialect;

/// Warns once of a rank that speaks another form.
#[derive(Debug, Default)]
pub(super) struct DialectCheck {
    is_warned: bool,
}

impl DialectCheck {
    /// Says once that a client speaks another form of PMI than was asked for. It is served all the
    /// same: which form a library speaks was decided when it was built.
    pub(super) fn judge(
        &mut self,
        cx: &mut LaunchContext,
        rank: KnownRank,
        spoken: Option<Dialect>,
    ) {
        let wanted = match cx.plan.spec.interface.pmi {
            InterfaceChoice::Pmi1 => Dialect::Pmi1,
            InterfaceChoice::Pmi2 => Dialect::Pmi2,
            _ => return,
        };
        let Some(spoken) = spoken.filter(|spoken| *spoken != wanted) else {
            return;
        };
        if !self.is_warned {
            self.is_warned = true;
            let choice = cx.plan.spec.interface.pmi;
            cx.warn(&format!(
                "{rank} speaks {spoken}, not {wanted} as --pmi {choice} expects: its library decides \
                 that, and is served"
            ));
        }
    }
}
