//! What the launcher wants to know as soon as somebody here waits for it.

use std::time::Duration;

use crate::backend::local::LocalBackend;
use crate::backend::message::FromBackend;
use crate::backend::wait_report::Awaited;
use wireup_core::supervisor::JOIN_GRACE;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lookout {
    asked: Awaited,
    /// When it is looked for again.
    pub(super) at: Option<Duration>,
}

impl LocalBackend {
    /// Tells from now on when somebody waits for one of these.
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
