//! Arbitrary bytes, in pieces, to the agent's link with a PMIx host, and to the host's own decoder.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| wireup_core::pmix::fuzzing::frame(data));
