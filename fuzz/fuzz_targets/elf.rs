//! Arbitrary bytes as the file of a program.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| wireup::inspect::elf::fuzzing::elf(data));
