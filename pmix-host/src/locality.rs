//! What libpmix makes of the CPUs of bound processes: a locality string, which their peers compare with their own to
//! learn what they share. Open MPI chooses its transports and collectives by that.
//!
//! Rule: the string is in the form of the libpmix that the ranks ask, and numbers the parts of the topology that this
//! shares with them: it alone makes it. Source: PMIx_server_generate_locality_string.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char};

use memchr::memmem;
use pmix_sys::pmix::{LibPmix, pmix_cpuset_t};

use crate::foreign::check;
use wireup_core::pmix::control::ControlRefusal;
use wireup_core::pmix::keys;
use wireup_core::pmix::value::{Info, Text, Value};
use wireup_core::pmix::wire::{Reader, Writer};

/// The infos of a job, with a locality string for each process whose CPUs are known. Costs nothing without such.
///
/// # Errors
/// [`ControlRefusal`] for infos and CPUs that cannot be read.
pub(crate) fn completed<'a>(
    pmix: &LibPmix,
    infos: &'a [u8],
) -> Result<Cow<'a, [u8]>, ControlRefusal> {
    if memmem::find(infos, keys::CPUSET.as_bytes()).is_none() {
        return Ok(Cow::Borrowed(infos));
    }
    let Ok(mut list) = Info::decode_list(&mut Reader::new(infos)) else {
        // The shim refuses it with the reason.
        return Ok(Cow::Borrowed(infos));
    };
    for info in &mut list {
        let Value::Infos(process) = &mut info.value else {
            continue;
        };
        let cpus = process.iter().find(|info| info.key == keys::CPUSET);
        let Some(Value::String(cpus)) = cpus.map(|info| &info.value) else {
            continue;
        };
        if let Some(text) = string(pmix, cpus)? {
            process.push(Info::new(keys::LOCALITY_STRING, Value::String(text)));
        }
    }
    let mut out = Writer::default();
    Info::encode_list(&list, &mut out);
    Ok(Cow::Owned(out.into_bytes()))
}

/// The locality string of some CPUs; nothing if they are all there are.
fn string(pmix: &LibPmix, cpus: &Text) -> Result<Option<Text>, ControlRefusal> {
    let named = [b"hwloc:", cpus.as_bytes()].concat();
    let named = CString::new(named).expect("a text holds no NUL");
    let mut set = pmix_cpuset_t {
        source: std::ptr::null_mut(),
        bitmap: std::ptr::null_mut(),
    };
    let mut text: *mut c_char = std::ptr::null_mut();
    // SAFETY: the server runs; the set is empty at first, is filled by libpmix, and given back to it once. The text is from
    // malloc, and ours.
    unsafe {
        let read = pmix.PMIx_Parse_cpuset_string(named.as_ptr(), &raw mut set);
        check(read, "the CPUs of a process cannot be read")?;
        let made = pmix.PMIx_server_generate_locality_string(&raw const set, &raw mut text);
        pmix.PMIx_Cpuset_destruct(&raw mut set);
        check(made, "the locality of a process cannot be described")?;
        if text.is_null() {
            return Ok(None);
        }
        let found = Text::new(CStr::from_ptr(text).to_bytes());
        libc::free(text.cast());
        Ok(Some(found))
    }
}
