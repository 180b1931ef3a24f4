//! Arbitrary bytes, in pieces, from another host: frames, messages, and the cores of two nodes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| wireup_core::fuzzing::link(data));
