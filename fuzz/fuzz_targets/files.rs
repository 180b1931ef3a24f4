//! Arbitrary bytes as files and lines that people and other programs write.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| wireup::fuzzing::files(data));
