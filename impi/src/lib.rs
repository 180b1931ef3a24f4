//! Interoperable MPI with sockets: what [`wireup_impi_core`] decides is done here.

#![forbid(unsafe_code)]

pub mod agent;
pub mod cli;
pub mod kit;
pub mod peer;
pub mod rendezvous;
pub mod secrets;
pub mod stream;
pub mod tls;
