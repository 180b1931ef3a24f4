//! Checks for local ranks that wait for certain others, reported to the launcher.

use std::time::Duration;

use crate::backend::backend_message::FromBackend;
use crate::backend::local::LocalBackend;
use crate::backend::wait_report::Awaited;
use wireup_core::supervisor::JOIN_GRACE;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lookout {
    asked: Awaited,
    /// Time of the next check.
    pub(super) at: Option<Duration>,
}

impl LocalBackend {
    /// From now on, reports when a rank waits for one of these.
    pub(super) fn look_out_for(&mut self, awaited: Awaited) {
        if !self.ending {
            self.lookout.asked.extend(awaited);
            self.look_out();
        }
    }

    pub(super) fn look_out(&mut self) {
        let asked = self.lookout.asked.iter();
        let waits: Awaited = asked.filter(|waiting| self.waits(*waiting)).collect();
        if !waits.is_empty() {
            self.tell(FromBackend::Waits(waits));
        }
        self.lookout.at = Some(self.now() + JOIN_GRACE);
    }
}
