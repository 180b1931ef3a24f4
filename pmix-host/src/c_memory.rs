//! Memory shared with C: decoded arguments, environments, and the data of callbacks.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;

use pmix_sys::pmix::{pmix_byte_object_t, pmix_info_t, pmix_proc_t, pmix_status_t};
use pmix_sys::shim::{Shim, wireup_infos_t};

use crate::boundary::caught;
use crate::replies::ReplyWriter;
use wireup_core::pmix::sidecar_protocol::ControlRefusal;
use wireup_core::pmix::sidecar_protocol::serve::Body;
use wireup_core::pmix::value::{PmixRank, Status, Text};

/// Data of a pending libpmix callback.
pub(crate) struct CallbackData {
    pub(crate) replies: Arc<ReplyWriter>,
    pub(crate) id: u64,
    /// Arguments that libpmix uses until the callback.
    pub(crate) arguments: Box<dyn Send>,
}

impl CallbackData {
    /// Starts a call of libpmix with data for its callback. If the call fails, there is no callback.
    pub(crate) fn start(self, call: impl FnOnce(*mut c_void) -> pmix_status_t) -> pmix_status_t {
        let data = Box::into_raw(Box::new(self));
        let status = call(data.cast());
        if status != Status::SUCCESS.0 {
            // SAFETY: there will be no callback, so the box is still ours.
            drop(unsafe { Box::from_raw(data) });
        }
        status
    }
}

/// Answers a direct modex request with the blob from libpmix.
///
/// # Safety
/// `data` must be a `CallbackData` from `Box::into_raw`, passed once; `blob` has `len` bytes or is null.
pub(crate) unsafe extern "C" fn on_modex(
    status: pmix_status_t,
    blob: *mut c_char,
    len: usize,
    data: *mut c_void,
) {
    // SAFETY: the caller's promise.
    let data = *unsafe { Box::from_raw(data.cast::<CallbackData>()) };
    let (replies, id) = (data.replies, data.id);
    answer(&replies, id, || {
        match check(status, "the process's data is not available") {
            Err(refusal) => replies.finish(id, Err(&refusal)),
            Ok(()) if blob.is_null() => replies.finish(id, Ok(Body::Data(&[]))),
            Ok(()) => {
                // SAFETY: the caller's promise; libpmix frees it only after we return.
                let blob = unsafe { std::slice::from_raw_parts(blob.cast::<u8>(), len) };
                replies.finish(id, Ok(Body::Data(blob)));
            }
        }
        drop(data.arguments);
    });
}

/// Answers a request with the status from libpmix.
///
/// # Safety
/// `data` must be a `CallbackData` from `Box::into_raw`, passed once.
pub(crate) unsafe extern "C" fn on_done(status: pmix_status_t, data: *mut c_void) {
    // SAFETY: the caller's promise.
    let data = *unsafe { Box::from_raw(data.cast::<CallbackData>()) };
    let (replies, id) = (data.replies, data.id);
    answer(&replies, id, || {
        drop(data.arguments);
        let outcome = check(status, "libpmix did not complete the request");
        replies.finish(id, outcome.as_ref().map(|()| Body::Done));
    });
}

/// Answers a request by a call, or refuses it if that panics.
fn answer(replies: &ReplyWriter, id: u64, call: impl FnOnce()) {
    if caught(call).is_none() {
        let refusal = ControlRefusal::new(Status::ERROR, "the sidecar panicked");
        let _ = caught(|| replies.finish(id, Err(&refusal)));
    }
}

/// A decoded info list in the shim's memory.
pub(crate) struct CInfos(&'static Shim, *mut wireup_infos_t);

// SAFETY: the list belongs to the holder of the pointer, and the shim's functions are thread-safe.
unsafe impl Send for CInfos {}

impl CInfos {
    pub(crate) fn decode(shim: &'static Shim, bytes: &[u8]) -> Result<Self, ControlRefusal> {
        let mut list = std::ptr::null_mut();
        // SAFETY: the bytes are valid for the call, and so is the place for the result.
        let status =
            unsafe { shim.wireup_infos_decode(bytes.as_ptr(), bytes.len(), &raw mut list) };
        check(status, "cannot decode the list of infos")?;
        Ok(Self(shim, list))
    }

    pub(crate) fn items(&self) -> *mut pmix_info_t {
        // SAFETY: the list is valid until drop.
        unsafe { self.0.wireup_infos_items(self.1) }
    }

    pub(crate) fn count(&self) -> usize {
        // SAFETY: the list is valid until drop.
        unsafe { self.0.wireup_infos_count(self.1) }
    }
}

impl Drop for CInfos {
    fn drop(&mut self) {
        // SAFETY: made by the shim, freed once.
        unsafe { self.0.wireup_infos_free(self.1) }
    }
}

/// A process name in PMIx's layout.
pub(crate) struct CProc(pub(crate) *mut pmix_proc_t, &'static Shim);

// SAFETY: the name belongs to the holder of the pointer, and the shim's functions are thread-safe.
unsafe impl Send for CProc {}

impl CProc {
    pub(crate) fn new(
        shim: &'static Shim,
        nspace: &Text,
        rank: PmixRank,
    ) -> Result<Self, ControlRefusal> {
        let bytes = nspace.as_bytes();
        // SAFETY: the bytes are valid for the call.
        let proc = unsafe { shim.wireup_proc_new(bytes.as_ptr().cast(), bytes.len(), rank.0) };
        match proc.is_null() {
            true => Err(ControlRefusal::new(
                Status::ERR_NOMEM,
                "no memory for a process name",
            )),
            false => Ok(Self(proc, shim)),
        }
    }
}

impl Drop for CProc {
    fn drop(&mut self) {
        // SAFETY: made by the shim, freed once.
        unsafe { self.1.wireup_proc_free(self.0) }
    }
}

/// Bytes in PMIx's layout.
pub(crate) struct CBytes(pub(crate) *mut pmix_byte_object_t, &'static Shim);

// SAFETY: the bytes belong to the holder of the pointer, and the shim's functions are thread-safe.
unsafe impl Send for CBytes {}

impl CBytes {
    pub(crate) fn new(shim: &'static Shim, bytes: &[u8]) -> Result<Self, ControlRefusal> {
        // SAFETY: the bytes are valid for the call, which copies them.
        let object = unsafe { shim.wireup_bytes_new(bytes.as_ptr(), bytes.len()) };
        match object.is_null() {
            false => Ok(Self(object, shim)),
            true => Err(ControlRefusal::new(
                Status::ERR_NOMEM,
                "no memory for output",
            )),
        }
    }
}

impl Drop for CBytes {
    fn drop(&mut self) {
        // SAFETY: made by the shim, freed once.
        unsafe { self.1.wireup_bytes_free(self.0) }
    }
}

/// Converts a text to a C string, with a terminator.
pub(crate) fn c_string(text: &Text) -> CString {
    CString::new(text.as_bytes()).expect("a text holds no NUL")
}

/// Turns a status into an outcome.
pub(crate) fn check(status: pmix_status_t, failure: &str) -> Result<(), ControlRefusal> {
    match Status(status) {
        Status::SUCCESS => Ok(()),
        status => Err(ControlRefusal::new(status, failure)),
    }
}

/// Copies and frees an environment.
///
/// # Safety
/// `environment` is null, or an array of terminated strings that ends with null; array and strings
/// come from malloc and have no other owner.
pub(crate) unsafe fn take_environment(environment: *mut *mut c_char) -> Vec<(Text, Text)> {
    let mut variables = Vec::new();
    if environment.is_null() {
        return variables;
    }
    let mut at = environment;
    loop {
        // SAFETY: not past the null that ends the array.
        let entry = unsafe { *at };
        if entry.is_null() {
            break;
        }
        // SAFETY: a terminated string.
        let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let equals = bytes.iter().position(|b| *b == b'=').unwrap_or(bytes.len());
        let value = bytes.get(equals + 1..).unwrap_or_default();
        variables.push((Text::new(&bytes[..equals]), Text::new(value)));
        // SAFETY: from malloc, freed once; the next entry is within the array.
        unsafe {
            libc::free(entry.cast());
            at = at.add(1);
        }
    }
    // SAFETY: from malloc, freed once.
    unsafe { libc::free(environment.cast()) };
    variables
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use wireup_core::pmix::sidecar_protocol::{ControlKind, serve};

    use super::*;

    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("a test");
        }
    }

    #[test]
    fn panic_in_callback_returns_to_c_and_refuses_request() {
        let (agent, ours) = UnixStream::pair().expect("a socket pair");
        let replies = Arc::new(ReplyWriter::new(ours));
        let (id, kind) = (7, ControlKind::Notify);
        assert!(replies.begin(id, kind));
        let call = CallbackData {
            replies: Arc::clone(&replies),
            id,
            arguments: Box::new(Panics),
        };
        let data = Box::into_raw(Box::new(call)).cast::<c_void>();
        // SAFETY: it is a `CallbackData`, passed once.
        unsafe { on_done(Status::SUCCESS.0, data) };
        drop(replies);
        let mut bytes = Vec::new();
        (&agent).read_to_end(&mut bytes).expect("a reply");
        let refusal = ControlRefusal {
            status: Status::ERROR,
            text: "the sidecar panicked".to_owned(),
        };
        let refused = serve::reply(kind, id, Err(&refusal)).expect("a short text");
        assert_eq!(bytes, refused);
    }
}
