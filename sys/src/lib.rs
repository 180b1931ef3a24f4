//! wireup-sys: Unix for the programs of wireup: processes, descriptors, sockets and files of this machine, and the log.

// The modules that need unsafe code are allowed it, with the reason, where they are declared.
#![deny(unsafe_code)]

/// Writes to standard error. Unlike the macro of the standard library it does not panic if that is closed.
#[macro_export]
macro_rules! eprint {
    ($($text:tt)*) => { $crate::write_stderr(&format!($($text)*)) };
}

/// Writes a line to standard error, as [`eprint!`].
#[macro_export]
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::write_stderr(&(format!($($text)*) + "\n")) };
}

/// Writes to standard error; an error there is ignored.
#[doc(hidden)]
pub fn write_stderr(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr().lock(), text.as_bytes());
}

pub mod access;
#[allow(unsafe_code, reason = "the account database")]
pub mod accounts;
#[allow(unsafe_code, reason = "getnameinfo(3)")]
pub mod address_names;
pub mod cgroup;
pub mod channel;
#[allow(unsafe_code, reason = "close_range(2)")]
pub mod close_range;
pub mod core_dump;
pub mod descriptors;
pub mod device_files;
pub mod devices;
pub mod fd_passing;
#[allow(unsafe_code, reason = "the C library hwloc")]
pub mod hwloc;
#[allow(unsafe_code, reason = "borrows a descriptor by its number")]
pub mod inherited_fd;
pub mod inherited_state;
#[allow(unsafe_code, reason = "getifaddrs(3)")]
pub mod interfaces;
#[allow(unsafe_code, reason = "system calls that rustix does not have")]
pub mod kernel;
pub mod leftovers;
pub mod local_link;
pub mod log;
pub mod machine_slots;
pub mod mount_into;
#[allow(unsafe_code, reason = "requests to loop devices")]
pub mod mounts;
#[allow(unsafe_code, reason = "a child between fork and its end")]
pub mod namespace;
pub mod out_of_memory;
pub mod own_host;
pub mod pidfd;
pub mod poll;
#[allow(
    unsafe_code,
    reason = "system calls that change who a process is, and a fork"
)]
pub mod privileges;
pub mod procfs;
pub mod remove_dir;
pub mod resource_limits;
pub mod signal_sender;
#[allow(unsafe_code, reason = "masks and default actions of signals")]
pub mod signals;
mod socket_diag;
#[allow(unsafe_code, reason = "a child between clone and exec")]
pub mod spawn;
pub mod syslog;
#[allow(unsafe_code, reason = "shared memory of System V")]
pub mod sysv;
pub mod tcp_peer;
#[allow(unsafe_code, reason = "localtime_r(3)")]
pub mod time_zone;
pub mod unix_socket;
#[allow(unsafe_code, reason = "waitid(2)")]
pub mod zombie;
