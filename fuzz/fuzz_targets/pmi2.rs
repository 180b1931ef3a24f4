//! Arbitrary bytes, in arbitrary pieces, to a server whose ranks speak PMI-2 and PMI-1.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| wireup_core::pmi::fuzzing::pmi2(data));
