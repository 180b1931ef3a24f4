//! Credentials of Slingshot (CXI): virtual network, services and key, asked for at the start of a launch and revoked at
//! its end.
//!
//! - [`grant`]: what ranks get of it, by host and devices
//! - [`manager_rest`]: requests to a fabric manager, and its answers
//! - [`grant_lifecycle`]: from the request to the proof that the service is gone, through answers that are late or lost
//! - [`grant_record`]: what remains on disk of a credential that is not revoked yet

pub mod grant;
pub mod grant_lifecycle;
pub mod grant_record;
pub mod manager_rest;

#[cfg(test)]
mod tests;
