//! Credentials of Slingshot (CXI): virtual network, services and key, asked for at the start of a launch and revoked at
//! its end.
//!
//! - [`secret`]: bytes that are never shown, and are cleared when they are dropped
//! - [`credential`]: what ranks get of it, by host and devices
//! - [`rest`]: requests to a fabric manager, and its answers
//! - [`life`]: from the request to the proof that the service is gone, through answers that are late or lost
//! - [`record`]: what remains on disk of a credential that is not revoked yet

pub mod credential;
pub mod life;
pub mod record;
pub mod rest;
pub mod secret;

#[cfg(test)]
mod tests;
