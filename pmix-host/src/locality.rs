//! Locality strings and device distances of bound processes, from libpmix. Peers compare their locality strings to find
//! the parts of the host that they share. Open MPI chooses its transports and collectives by the strings, and
//! applications choose their network adapter and GPU by the distances.
//!
//! Rule: the string is in the form of the ranks' libpmix, and numbers the parts of the topology that libpmix shares
//! with them, so only libpmix can make it. Source: PMIx_server_generate_locality_string. Distances are in libpmix's own
//! unit, and of the same kinds of devices as PRRTE's.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;

use memchr::memmem;
use pmix_sys::pmix::{self, LibPmix, pmix_cpuset_t, pmix_device_distance_t};

use crate::c_memory::check;
use wireup_core::pmix::keys;
use wireup_core::pmix::sidecar_protocol::ControlRefusal;
use wireup_core::pmix::value::{Array, DeviceDistance, Info, Text, Value};
use wireup_core::pmix::wire::{Reader, Writer};

/// Kinds of devices whose distance is provided.
const KINDS: u64 =
    (pmix::PMIX_DEVTYPE_OPENFABRICS | pmix::PMIX_DEVTYPE_NETWORK | pmix::PMIX_DEVTYPE_GPU) as u64;

/// Returns the infos of a job, with a locality string and distances for each process whose CPUs are known. Costs
/// nothing without such processes.
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
        let cpus = Cpus::read(pmix, cpus)?;
        let text = cpus.locality()?.map(Value::String);
        let distances = Array::new(cpus.distances()).map(Value::Array);
        process.extend(text.map(|text| Info::new(keys::LOCALITY_STRING, text)));
        process.extend(distances.map(|found| Info::new(keys::DEVICE_DISTANCES, found)));
    }
    let mut out = Writer::default();
    Info::encode_list(&list, &mut out);
    Ok(Cow::Owned(out.into_bytes()))
}

/// CPUs in libpmix's form. The server runs as long as they live.
struct Cpus<'a> {
    pmix: &'a LibPmix,
    set: pmix_cpuset_t,
}

impl<'a> Cpus<'a> {
    fn read(pmix: &'a LibPmix, list: &Text) -> Result<Self, ControlRefusal> {
        let named = [b"hwloc:", list.as_bytes()].concat();
        let named = CString::new(named).expect("a text holds no NUL");
        let mut set = pmix_cpuset_t {
            source: null_mut(),
            bitmap: null_mut(),
        };
        // SAFETY: the server runs; the set is empty and is filled.
        let read = unsafe { pmix.PMIx_Parse_cpuset_string(named.as_ptr(), &raw mut set) };
        check(read, "cannot read the CPUs of a process")?;
        Ok(Self { pmix, set })
    }

    /// Returns the locality string of these CPUs; nothing if the set holds all CPUs.
    fn locality(&self) -> Result<Option<Text>, ControlRefusal> {
        let mut text: *mut c_char = null_mut();
        // SAFETY: the set has been read; the text is from malloc, and ours.
        unsafe {
            let status = self
                .pmix
                .PMIx_server_generate_locality_string(&raw const self.set, &raw mut text);
            check(status, "cannot describe the locality of a process")?;
            Ok(take_text(text))
        }
    }

    /// Returns the distances to the devices of the node; none if libpmix knows no devices.
    fn distances(&self) -> Vec<Value> {
        let mut set = self.set;
        let (mut distances, mut count): (*mut pmix_device_distance_t, usize) = (null_mut(), 0);
        // SAFETY: without a topology libpmix takes its own; the set has been read, and stays ours.
        let status = unsafe {
            self.pmix.PMIx_Compute_distances(
                null_mut(),
                &raw mut set,
                null_mut(),
                0,
                &raw mut distances,
                &raw mut count,
            )
        };
        let mut found = Vec::new();
        if status == 0 && !distances.is_null() {
            for index in 0..count {
                // SAFETY: `count` distances begin there; the texts are from malloc, and ours.
                let (one, uuid, name) = unsafe {
                    let one = *distances.add(index);
                    (one, take_text(one.uuid), take_text(one.osname))
                };
                found.push(DeviceDistance {
                    uuid: uuid.unwrap_or_default(),
                    name: name.unwrap_or_default(),
                    kinds: one.type_,
                    least: one.mindist,
                    most: one.maxdist,
                });
            }
            // SAFETY: from malloc, and ours.
            unsafe { libc::free(distances.cast()) };
        }
        found.retain(|one| one.kinds & KINDS != 0);
        found.into_iter().map(Value::DeviceDistance).collect()
    }
}

impl Drop for Cpus<'_> {
    fn drop(&mut self) {
        // SAFETY: libpmix has filled the set, and gets it back once.
        unsafe { self.pmix.PMIx_Cpuset_destruct(&raw mut self.set) };
    }
}

/// Copies a text of libpmix, and frees it.
///
/// # Safety
/// It is null, or a string from malloc that no other code uses afterwards.
unsafe fn take_text(text: *mut c_char) -> Option<Text> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's.
    unsafe {
        let found = Text::new(CStr::from_ptr(text).to_bytes());
        libc::free(text.cast());
        Some(found)
    }
}
