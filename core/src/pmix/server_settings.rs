//! Environment variables with which a sidecar sets up libpmix's server.

/// Variables for libpmix, unless the user has set them.
///
/// libpmix discovers the machine's topology when it starts, and hwloc's work then includes parts that ranks do not use:
/// graphics devices, whose plugins load large libraries, a second XML reader, and cpuid on each CPU in turn in addition
/// to the kernel's list. They are disabled. Measured: docs/pmix-server.md#server. (hwloc ignores the names of
/// components that it does not have.)
///
/// The launcher writes to the system's log itself: libpmix would write the same texts again.
pub const ALWAYS: [(&str, &str); 3] = [
    (
        "HWLOC_PLUGINS_BLACKLIST",
        "hwloc_opencl.so,hwloc_gl.so,hwloc_xml_libxml.so",
    ),
    ("PMIX_MCA_plog", "^syslog"),
    // Pieces of output that libpmix caches without a subscriber, for later ones: a million by
    // default, and 0 is no limit. A client that subscribes to all output includes its own, which
    // he never gets.
    ("PMIX_MCA_pmix_max_iof_cache", "1"),
];

/// Variable for small jobs, in which requests of a rank to the server cost less than the set-up of memory that server
/// and ranks share. Measured: docs/pmix-server.md#data-store.
pub const SMALL_JOBS: (&str, &str) = ("PMIX_MCA_gds", "hash");

/// Whether a variable of the sidecar has a value that wireup has set.
pub fn contains(name: &[u8], value: &[u8]) -> bool {
    let ours = ALWAYS.iter().chain([&SMALL_JOBS]);
    ours.into_iter()
        .any(|(ours, setting)| name == ours.as_bytes() && value == setting.as_bytes())
}
