//! The `wireup` command.
//!
//! It has C's `main`, because the runtime's own prepares for a stack overflow by reading the list of
//! everything that is mapped, and the main thread of a launcher needs no such care: that is a
//! fiftieth of the time of a short run. What else the runtime does before `main` is done here.

#![cfg_attr(not(test), no_main)]
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::panic;

/// The code of the runtime for a program that panicked.
const PANICKED: i32 = 101;

/// # Safety
/// As the system calls it: `argv` has `argc` texts.
// SAFETY: this is the one definition of the program's entry.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[expect(
    clippy::disallowed_methods,
    reason = "nothing is left to drop, and the runtime's buffers are flushed"
)]
pub unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    open_standard();
    // SAFETY: there is one thread, and no handler is set: a write to a reader that has gone is an
    // error like any other.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let count = usize::try_from(argc).unwrap_or_default();
    let args: Vec<OsString> = (0..count)
        .map(|index| {
            // SAFETY: the caller's promise; the texts live as long as the process.
            let arg = unsafe { CStr::from_ptr(*argv.add(index)) };
            OsStr::from_bytes(arg.to_bytes()).to_owned()
        })
        .collect();
    let code = panic::catch_unwind(|| wireup::cli::main(args));
    std::process::exit(code.map_or(PANICKED, i32::from))
}

/// Opens standard streams that whoever started us has closed: any file that is opened later would
/// take their place.
fn open_standard() {
    for standard in 0..3 {
        // SAFETY: asks about a number, and opens the lowest that is free, which it is then.
        unsafe {
            if libc::fcntl(standard, libc::F_GETFD) == -1 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            }
        }
    }
}
