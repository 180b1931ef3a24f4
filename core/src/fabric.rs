//! Fabric grants of Slingshot (CXI): virtual network, services and key, requested at the start of a launch and revoked
//! at its end.
//!
//! - [`grant`]: the ranks' part of a grant, by host and devices
//! - [`manager_rest`]: requests to a fabric manager, and its answers
//! - [`grant_lifecycle`]: from the request to the proof that the service is removed, with late or lost answers
//! - [`grant_record`]: the record on disk of a grant that is not revoked yet

pub mod grant;
pub mod grant_lifecycle;
pub mod grant_record;
pub mod manager_rest;

#[cfg(test)]
mod tests;
