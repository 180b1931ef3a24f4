//! Arbitrary bytes, in pieces of any size, to the port of a rank.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| wireup_core::pmi::fuzzing::gate(data));
