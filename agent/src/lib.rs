//! The part of wireup that spans hosts: the long-running agent of a node, and the certificates by
//! which agents know each other.
//!
//! From low to high; a module uses those above it in this list:
//!
//! - [`identity`]: the identity in a certificate
//! - [`proto`]: the services and messages of `proto/`
//! - [`capability_probe`]: the interfaces that this node can offer to ranks
//! - [`counters`]: the numbers that an agent counts
//! - [`budget`]: limits on a user's share of an agent
//! - `missing_feature`: parts that this build lacks
//! - `memory`: returns unused memory to the kernel
//! - `stream`: the parts that a stream delegates to the one inside it
//! - `readiness`: waits for a descriptor in one direction
//! - [`worker_threads`]: the thread that nothing of a user's delays
//! - [`user`]: whom an agent serves, and processes that are theirs
//! - [`caller_identity`]: the identity of a connection's other end
//! - [`revocation_lists`], [`pki`]: certificates that are taken back; `wireup pki`
//! - [`site_services`]: the common parts of clients of a site's services
//! - [`site_settings`]: their settings and passwords
//! - [`etcd`], `ldap`: clients of etcd and of a directory
//! - [`refusals`]: log lines for refused requests
//! - [`tls`]: connections between agents, and from schedulers
//! - [`launch`]: the parts of one launch at this agent
//! - [`peer`]: calls to other agents
//! - [`name_servers`]: where launches meet that know nothing of each other
//! - [`scheduled`]: launches that schedulers have started
//! - [`launch_agent_ports`]: where the agents of one launch listen
//! - [`state`]: the state that all services of an agent share
//! - [`name_client`]: a launch of this machine that uses the name server
//! - [`launch_task`]: the task that runs one launch here
//! - [`peer_service`]: the service for other agents
//! - [`local_socket`]: the socket for launchers of this machine
//! - [`node_agent`]: the service for schedulers
//! - [`host_registrar`]: this node in etcd
//! - [`metrics`]: the page that Prometheus reads
//! - [`daemon`]: `wireup agent`
//! - [`launch_agents`]: agents that serve one launch and end with it
//! - [`name_store`]: keeps names of a launch outside of wireup
//! - [`find_hosts`]: looks hosts up for a launcher
//! - [`fabric`]: asks for credentials of a network for a launcher, and revokes them
//! - [`span_export`]: sends the spans of a launch
//! - [`top`]: `wireup top` on a terminal

// The modules that need unsafe code are allowed it, with the reason, where they are declared: `memory`,
// `user::account_lookup`, `user::spawn::child`, `launch::step_process`, `node_agent::process`, `daemon::separate`,
// `launch_agents::first_agent`.
#![deny(unsafe_code)]

pub mod budget;
pub mod caller_identity;
pub mod capability_probe;
pub mod counters;
pub mod daemon;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod fabric;
pub mod find_hosts;
#[cfg(feature = "etcd")]
pub mod host_registrar;
pub mod identity;
pub mod launch;
pub mod launch_agent_ports;
pub mod launch_agents;
pub mod launch_task;
#[cfg(feature = "ldap")]
mod ldap;
pub mod local_socket;
#[allow(unsafe_code, reason = "malloc_trim(3)")]
mod memory;
pub mod metrics;
#[cfg(not(all(feature = "etcd", feature = "ldap", feature = "otel", feature = "top")))]
pub mod missing_feature;
pub mod name_client;
pub mod name_servers;
pub mod name_store;
pub mod node_agent;
pub mod peer;
pub mod peer_service;
mod permit_counts;
pub mod pki;
pub mod pmi_tls_port;
pub mod proto;
#[allow(unsafe_code, reason = "a descriptor is watched for one direction")]
mod readiness;
pub mod refusals;
pub mod revocation_lists;
pub mod scheduled;
pub mod site_services;
pub mod site_settings;
#[cfg(feature = "otel")]
pub mod span_export;
pub mod state;
mod stream;
pub mod tls;
#[cfg(feature = "top")]
pub mod top;
pub mod user;
pub mod worker_threads;

/// Version of this program, for people.
pub const PROGRAM_VERSION: &str = env!("CARGO_PKG_VERSION");
