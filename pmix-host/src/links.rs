//! Which directories libpmix's cleaning up may enter.
//!
//! Its server removes what clients registered for removal, and enters links to directories on its
//! way (4.2.2, 5.0.11): files that were never registered are lost. So libpmix's `opendir` is ours, and
//! on libpmix's own thread, which does the cleaning up, it opens no link. The main thread loads
//! libraries, whose directories may well be links.

use std::ffi::{c_char, c_void};

use crate::Fatal;
use wireup::pmix::control::Stage;

/// What libpmix calls instead of the C library's function, because names are looked up in the
/// executable first.
///
/// # Safety
/// As opendir(3): `path` is a terminated string.
#[unsafe(no_mangle)]
unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    // SAFETY: both only ask.
    let is_main = unsafe { libc::gettid() == libc::getpid() };
    let no_links = if is_main { 0 } else { libc::O_NOFOLLOW };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | no_links;
    // SAFETY: the caller's promise.
    let fd = unsafe { libc::open(path, flags) };
    if fd < 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: it was just made, and nobody else knows of it; the directory owns it, if there is one.
    let directory = unsafe { libc::fdopendir(fd) };
    if directory.is_null() {
        // SAFETY: nobody took it.
        unsafe { libc::close(fd) };
    }
    directory
}

/// From now on libpmix cannot follow links. Before the server starts.
///
/// # Errors
/// When libpmix would call another `opendir`: the linker did not export ours.
pub(crate) fn guard() -> Result<(), Fatal> {
    // SAFETY: a terminated name; nothing is called.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"opendir".as_ptr()) };
    match std::ptr::eq(found, opendir as *const c_void) {
        true => Ok(()),
        false => Err(Fatal::new(
            Stage::Link,
            "this wireup-pmix-host was linked so that libpmix may remove what links lead to; build \
             it with its build script, which exports opendir",
        )),
    }
}
