//! Declarations of the OpenPMIx server functions and of the shim's functions that the sidecar
//! calls, made by bindgen from an allow-list. Nothing is linked: both libraries are opened at run
//! time, and each is a struct of function pointers here.
//!
//! PMIx structures are opaque: only the shim knows their layouts. Empty in a build without PMIx.

#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    clippy::missing_errors_doc,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    unused_qualifications,
    reason = "generated; documented in pmix_server.h and host.h"
)]

/// Server functions of libpmix, as function pointers.
#[cfg(have_pmix)]
pub mod pmix {
    include!(concat!(env!("OUT_DIR"), "/pmix.rs"));
}

/// Functions of the shim.
#[cfg(have_pmix)]
pub mod shim {
    use crate::pmix::*;
    include!(concat!(env!("OUT_DIR"), "/shim.rs"));
}
