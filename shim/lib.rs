//! Constants of the shim protocol, taken from `wire.h`, and whether the C library was built.

/// The numbers of `wire.h`, under their C names.
#[allow(
    missing_docs,
    non_camel_case_types,
    reason = "named and documented in wire.h"
)]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/wire.rs"));
}

/// File name of the shim, built beside the executables when [`HAVE_PMIX`].
pub const LIBRARY_NAME: &str = "libwireup-pmix-host.so";

/// Whether PMIx headers were found at build time, so that the shim exists.
pub const HAVE_PMIX: bool = cfg!(have_pmix);
