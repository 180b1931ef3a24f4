//! The part of wireup that spans hosts: the long-running agent of a node, and the certificates by
//! which agents know each other.
//!
//! - [`daemon`]: `wireup agent`
//! - [`pki`]: `wireup pki`
//! - [`identity`]: who holds a certificate
//! - [`tls`]: connections between agents, and from schedulers

pub mod daemon;
pub mod identity;
pub mod pki;
pub mod tls;
