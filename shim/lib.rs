//! Constants of the shim protocol, taken from `wire.h`, and the name of the C library.

/// The numbers of `wire.h`, under their C names.
#[allow(
    missing_docs,
    non_camel_case_types,
    reason = "named and documented in wire.h"
)]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/wire.rs"));
}

/// File name of the shim, built beside the executables where there are PMIx headers.
pub const LIBRARY_NAME: &str = "libwireup-pmix-host.so";
