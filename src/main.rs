//! The `wireup` command.
//!
//! It enters below the standard library's own start-up code, which reads `/proc/self/maps` and sets
//! up a signal stack to word the message of a stack overflow: a twentieth of the time of a short
//! run. The rest of what that code does is done here.

#![no_main]
#![allow(unsafe_code)] // the boundary to the C library's start-up code

use std::ffi::{c_char, c_int};
use std::io::Write;

/// Exit code after a panic, the same as the standard library's.
const PANICKED: c_int = 101;

/// Called by the C library, which has already told `std::env` the arguments.
#[unsafe(no_mangle)]
pub extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    occupy_standard_descriptors();
    // SAFETY: sets a disposition while there is one thread. A broken pipe is an error of the write
    // that meets it.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let result = std::panic::catch_unwind(|| wireup::cli::main(std::env::args_os().collect()));
    // What fails here has failed before, at the write that filled the buffer.
    let _ = std::io::stdout().flush();
    result.map_or(PANICKED, c_int::from)
}

/// Opens `/dev/null` in place of standard descriptors that are closed, so that no file of ours gets
/// the number of one.
fn occupy_standard_descriptors() {
    for fd in 0..3 {
        // SAFETY: asks about a number; open takes the lowest free one, which is this.
        unsafe {
            if libc::fcntl(fd, libc::F_GETFD) == -1 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            }
        }
    }
}
