//! What the allocator keeps for later use, given back after what was large.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

/// Longer than connections are kept that nobody uses.
const AFTER: Duration = Duration::from_secs(15);

/// It is about to be done.
static SOON: AtomicBool = AtomicBool::new(false);

/// Gives back what is not used in a while.
pub(crate) fn give_back_soon() {
    if SOON.swap(true, Ordering::Relaxed) {
        return;
    }
    tokio::spawn(async {
        sleep(AFTER).await;
        SOON.store(false, Ordering::Relaxed);
        // SAFETY: it may be called at any time, from any thread.
        #[cfg(target_env = "gnu")]
        unsafe {
            libc::malloc_trim(0);
        }
    });
}
