//! What steps of other hosts tell the launcher of their job.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| wireup::fuzzing::carried(data));
