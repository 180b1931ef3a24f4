//! The agent's side of the PMIx host process, without I/O: bytes in, typed events out, and back.
//!
//! - [`wire`]: frames and the primitive encodings of `shim/wire.h`
//! - [`value`]: PMIx values, infos and procs, and their encoding
//! - [`sidecar_protocol`]: the agent's requests to the host, and the host's replies
//! - [`upcall`]: libpmix's requests to the host, and the agent's answers
//! - [`host`]: the link to one host process; every request answered exactly once
//! - [`keys`]: PMIx key strings; [`job_info`]: the description of a job in them

#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod job_info;
pub mod keys;
pub mod release;
pub mod server_settings;
pub mod sidecar_link;
pub mod sidecar_protocol;
pub mod upcall;
pub mod value;
pub mod wire;

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub mod arbitrary;
#[cfg(test)]
mod golden;
