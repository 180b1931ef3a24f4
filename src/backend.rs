//! Backends start and serve the processes of a launch: `local` in this process, `remote` through the step daemons of
//! other hosts.

pub(crate) mod allocator_client;
#[cfg(test)]
pub(crate) mod arbitrary;
pub mod cleanup_record;
pub(crate) mod container;
pub mod grant_holder;
#[allow(unsafe_code, reason = "processes of clone(2) that have one thread")]
pub mod guard;
pub(crate) mod inspection;
pub mod job_label;
pub mod launch_agent_process;
pub(crate) mod launcher_reports;
pub(crate) mod local;
pub mod local_agent;
#[allow(unsafe_code, reason = "descriptors that come with the process")]
pub mod name_server_process;
pub(crate) mod name_store_process;
pub mod orphaned_job_cleanup;
pub(crate) mod remote;
pub(crate) mod report_validation;
pub mod sidecar_process;
pub mod step;
pub(crate) mod step_links;
pub(crate) mod step_messages;
pub(crate) mod wait_set;
