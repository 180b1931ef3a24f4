//! Remedies for limits of the system that a launch has met.

/// Remedy for a limit of the size of files.
pub const LARGER_FILES: &str = "; allow larger files (ulimit -f)";

/// Text of the system for a limit, and the remedy. Source: strerror(3) of EAGAIN and EFBIG.
const REMEDIES: [(&str, &str); 2] = [
    (
        "Resource temporarily unavailable",
        "; allow more processes and threads (ulimit -u, or the pids limit of the cgroup)",
    ),
    ("File too large", LARGER_FILES),
];

/// Returns the remedy for a message about a resource limit; empty for any other cause.
pub fn remedy(message: &str) -> &'static str {
    let mut remedies = REMEDIES.iter();
    let known = remedies.find(|(text, _)| message.contains(text));
    known.map_or("", |(_, remedy)| remedy)
}
