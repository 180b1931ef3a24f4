//! The part of wireup that spans hosts: the long-running agent of a node, and the certificates by
//! which agents know each other.
//!
//! - [`identity`]: who holds a certificate
//! - [`pki`]: `wireup pki`
//! - [`tls`]: connections between agents, and from schedulers
//! - [`user`]: whom an agent serves, and processes that are theirs
//! - [`proto`]: the services and messages of `proto/`
//! - [`launch`]: one launch at this agent
//! - [`peer`], [`local`]: who it talks to: other agents, launchers of this machine
//! - `memory`: what is given back to the system
//! - [`refusals`]: what the log has of what was refused
//! - [`rendezvous`]: where launches meet that know nothing of each other
//! - [`node_agent`]: the service for schedulers
//! - [`budget`]: what a user may take of an agent
//! - [`work`]: the thread that nothing of a user's delays
//! - [`daemon`]: `wireup agent`

pub mod budget;
pub mod daemon;
pub mod identity;
pub mod launch;
pub mod local;
mod memory;
pub mod node_agent;
pub mod peer;
pub mod pki;
pub mod proto;
pub mod refusals;
pub mod rendezvous;
pub mod revoked;
mod stream;
pub mod tls;
pub mod user;
pub mod work;
