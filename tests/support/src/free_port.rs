//! Ports for servers that cannot choose one.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports below those that the kernel gives to other programs.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// Returns a port of the loopback interface that is free now. Each call of a process returns another one, and so do
/// processes whose numbers are close to each other.
pub fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    loop {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + std::process::id().wrapping_mul(7).wrapping_add(call) % COUNT;
        let port = u16::try_from(port).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
