//! The protocols of Interoperable MPI, version 0.0: jobs of different MPIs form one world.
//!
//! No I/O: bytes, events and the time go in, bytes and orders come out. The package `wireup-impi` has the sockets.
//!
//! The text of the specification that is to be had is incomplete: collectives from Bcast on and the constants are
//! missing. There the behaviour of LAM/MPI 7.1.4 decides; docs/impi.md lists these places.

#![forbid(unsafe_code)]

pub mod auth;
pub mod collective;
pub mod command;
pub mod endpoint;
pub mod external32;
pub mod flow;
pub mod fuzzing;
pub mod hexadecimal;
pub mod host;
pub mod kit;
pub mod packet;
pub mod server;
pub mod startup;
pub mod world;
