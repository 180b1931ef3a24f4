//! Arbitrary bytes to the rendezvous server of Interoperable MPI, to its clients and to its processes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| wireup_impi_core::fuzzing::impi(data));
