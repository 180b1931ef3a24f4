//! Restricts the directories and files that libpmix's cleanup enters and removes.
//!
//! Its server removes files that clients registered for removal, and enters links to directories on its way (4.2.2,
//! 5.0.11): files that were never registered are lost. So the sidecar defines libpmix's `opendir`, and on libpmix's own
//! thread, which does the cleanup, it opens no link. The main thread loads libraries, whose directories may well be
//! links.
//!
//! libpmix also removes files if a client requests only the removal of empty directories, which libpmix does not
//! support. So the sidecar also defines `unlink`, which on that thread keeps the files that the shim names.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use pmix_sys::shim::Shim;

use crate::Fatal;
use crate::boundary::caught;

/// Decides which files must be kept.
static SHIM: OnceLock<&'static Shim> = OnceLock::new();

/// Whether this is the thread that loads libraries and executes the agent's requests.
fn is_main() -> bool {
    // Of the kernel: glibc has the function since 2.30 only.
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Replaces opendir(3) for libpmix, because names are looked up in the executable first.
///
/// # Safety
/// As opendir(3): `path` is a terminated string.
#[unsafe(no_mangle)]
unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    let no_links = if is_main() { 0 } else { libc::O_NOFOLLOW };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | no_links;
    // SAFETY: the caller's promise.
    let fd = unsafe { libc::open(path, flags) };
    if fd < 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the descriptor was just opened, and no other code knows it; the directory, if there is one, owns it.
    let directory = unsafe { libc::fdopendir(fd) };
    if directory.is_null() {
        // SAFETY: no directory took it.
        unsafe { libc::close(fd) };
    }
    directory
}

/// Replaces unlink(2) for libpmix, because names are looked up in the executable first.
///
/// # Safety
/// As unlink(2): `path` is a terminated string.
#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let keeps = |shim: &&Shim| unsafe { shim.wireup_keeps(path) } != 0;
    // A file in an unknown state is kept.
    if caught(|| !is_main() && SHIM.get().is_some_and(keeps)).unwrap_or(true) {
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = libc::EPERM };
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { libc::unlinkat(libc::AT_FDCWD, path, 0) }
}

/// Prevents libpmix from following links and from removing files that must be kept. Call before the server starts.
/// # Errors
/// When libpmix would call another `opendir` or `unlink`: the linker did not export ours.
pub(crate) fn guard(shim: &'static Shim) -> Result<(), Fatal> {
    SHIM.get_or_init(|| shim);
    // SAFETY: a terminated name; nothing is called.
    let is = |name: &std::ffi::CStr, ours: *const c_void| unsafe {
        std::ptr::eq(libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()), ours)
    };
    match is(c"opendir", opendir as *const c_void) && is(c"unlink", unlink as *const c_void) {
        true => Ok(()),
        false => Err(Fatal::link(
            "this wireup-pmix-host does not export opendir and unlink to libpmix, which could remove the targets of \
             links; build it with its build script",
        )),
    }
}
