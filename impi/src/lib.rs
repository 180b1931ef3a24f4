//! Interoperable MPI with sockets: executes the decisions of [`wireup_impi_core`].

#![forbid(unsafe_code)]

pub mod agent;
pub mod cli;
pub mod kit;
pub mod peer;
pub mod rendezvous;
pub mod secrets;
pub mod stream;
pub mod tls;
