//! The conformance kit with sockets: what records, and what plays clients, servers and processes.

pub mod check_client;
pub mod check_server;
pub mod program;
pub mod proxy;
pub mod recorder;
pub mod tap;
