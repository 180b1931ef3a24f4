//! Compares the PMI version that ranks use with the one that the user chose (`--pmi`).

use super::launch_context::LaunchContext;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::spec::InterfaceChoice;
use wireup_core::pmi::command::Dialect;

/// Warning about a rank that uses another PMI version; printed once.
#[derive(Debug, Default)]
pub(super) struct DialectCheck {
    is_warned: bool,
}

impl DialectCheck {
    /// Warns once if a client uses another PMI version than the user chose. The client is served
    /// nevertheless: the version of a library is decided when it is built.
    pub(super) fn judge(
        &mut self,
        cx: &mut LaunchContext,
        rank: KnownRank,
        spoken: Option<Dialect>,
    ) {
        let expected_dialect = match cx.plan.spec.interface.pmi {
            InterfaceChoice::Pmi1 => Dialect::Pmi1,
            InterfaceChoice::Pmi2 => Dialect::Pmi2,
            _ => return,
        };
        let Some(spoken) = spoken.filter(|spoken| *spoken != expected_dialect) else {
            return;
        };
        if !self.is_warned {
            self.is_warned = true;
            let choice = cx.plan.spec.interface.pmi;
            cx.warn(&format!(
                "{rank} speaks {spoken}, not {expected_dialect} as --pmi {choice} expects: its library decides \
                 that, and is served"
            ));
        }
    }
}
