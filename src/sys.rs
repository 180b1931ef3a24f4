//! Unix: processes, descriptors, sockets and files of this machine.

pub mod access;
pub mod cgroup;
pub mod channel;
pub mod core_dump;
pub mod descriptors;
pub mod devices;
pub mod fd_passing;
pub mod leftovers;
pub mod limits;
pub mod local_link;
pub mod namespace;
pub mod out_of_memory;
pub mod pidfd;
pub mod poll;
pub mod privileges;
pub(crate) mod process_state;
pub mod procfs;
pub mod remove_dir;
pub mod signal_sender;
pub mod signals;
pub mod spawn;
pub mod start_ranks;
pub(crate) mod syslog;
pub(crate) mod time_zone;
pub mod unix_socket;
