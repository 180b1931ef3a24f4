//! The part of wireup that spans hosts: the long-running agent of a node, and the certificates by
//! which agents know each other.
//!
//! - [`daemon`]: `wireup agent`
//! - [`launch`]: one launch at this agent
//! - [`node_agent`]: the service for schedulers
//! - [`pki`]: `wireup pki`
//! - [`identity`]: who holds a certificate
//! - [`proto`]: the services and messages of `proto/`

pub mod daemon;
pub mod identity;
pub mod launch;
pub mod node_agent;
pub mod pki;
pub mod proto;
