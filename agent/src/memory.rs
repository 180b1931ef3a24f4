//! Returns the allocator's unused memory to the kernel after large launches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

/// Longer than unused connections are kept.
const AFTER: Duration = Duration::from_secs(15);

/// Whether a return of memory is scheduled.
static SOON: AtomicBool = AtomicBool::new(false);

/// Has a thread return unused memory after a while.
pub(crate) fn schedule_trim(thread: &Handle) {
    if SOON.swap(true, Ordering::Relaxed) {
        return;
    }
    thread.spawn(async {
        sleep(AFTER).await;
        SOON.store(false, Ordering::Relaxed);
        // SAFETY: it may be called at any time, from any thread.
        #[cfg(target_env = "gnu")]
        unsafe {
            libc::malloc_trim(0);
        }
    });
}
