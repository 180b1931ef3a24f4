//! The part of wireup that spans hosts: the long-running agent of a node, and the certificates by
//! which agents know each other.
//!
//! - [`daemon`]: `wireup agent`
//! - [`pki`]: `wireup pki`

pub mod daemon;
pub mod pki;
