//! What to do where the system has no process or thread left for us.

/// The text for messages. Source: strerror(3) of EAGAIN.
const NONE_LEFT: &str = "Resource temporarily unavailable";

const REMEDY: &str =
    "; allow more processes and threads (ulimit -u, or the pids limit of the cgroup)";

/// What to add to a message about something that needs processes or threads; nothing if it is about
/// anything else.
pub fn remedy(message: &str) -> &'static str {
    match message.contains(NONE_LEFT) {
        true => REMEDY,
        false => "",
    }
}
