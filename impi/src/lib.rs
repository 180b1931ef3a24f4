//! Interoperable MPI with sockets: what [`wireup_impi_core`] decides is done here.

#![forbid(unsafe_code)]

pub mod cli;
pub mod rendezvous;
pub mod secrets;
pub mod tls;
