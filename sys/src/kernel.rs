//! Facilities of the kernel that `wireup doctor` asks for.

use std::io::{self, IoSlice, IoSliceMut};

/// Copies memory of this process by process_vm_readv(2), as MPIs copy that of other ranks: a filter of system calls
/// refuses both.
///
/// # Errors
/// Why it is refused.
pub fn read_by_process_vm() -> io::Result<()> {
    let from = [1_u8; 8];
    let mut to = [0_u8; 8];
    let (local, remote) = ([IoSliceMut::new(&mut to)], [IoSlice::new(&from)]);
    let (local, remote) = (local.as_ptr().cast(), remote.as_ptr().cast());
    // SAFETY: both are laid out as iovec, and describe arrays which outlive the call; only the first is written.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), local, 1, remote, 1, 0) };
    match read {
        8 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the kernel regards its clock as synchronized with others; `None` if it does not tell.
pub fn clock_is_synchronized() -> Option<bool> {
    // SAFETY: zeros are a request that changes nothing.
    let mut request: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the request outlives the call, which fills it in.
    let state = unsafe { libc::adjtimex(&raw mut request) };
    (state >= 0).then_some(request.status & libc::STA_UNSYNC == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_interfaces_reply() {
        assert!(clock_is_synchronized().is_some());
        // Some sandboxes refuse the other.
        if let Err(error) = read_by_process_vm() {
            assert!(error.raw_os_error().is_some());
        }
    }
}
