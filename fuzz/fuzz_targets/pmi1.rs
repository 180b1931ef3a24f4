//! Arbitrary bytes, in arbitrary pieces, to a PMI-1 server of three ranks.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| wireup_core::pmi::fuzzing::pmi1(data));
