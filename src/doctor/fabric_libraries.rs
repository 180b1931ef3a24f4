//! Opens the providers of libfabric, and UCX, for `wireup doctor`.
//!
//! Rule: only those fields of libfabric's structures are read whose offsets its ABI fixes: `fi_info` (`next`, `domain_attr`,
//! `fabric_attr`), `fi_fabric_attr` (`prov_name`), and the tables of operations of a fabric and of all objects. Since 1.0,
//! fields were only added behind them. Source: libfabric's `fabric.h`, `fi_domain.h`, and fi_getinfo(3), fi_fabric(3).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use wireup_core::doctor::facts::{NetworkLibrary, Provider};

pub(crate) const LIBFABRIC: &str = "libfabric.so.1";
pub(crate) const UCP: &str = "libucp.so.0";

/// `FI_VERSION(1, 5)`, which every release of the last years supports.
const FI_VERSION: u32 = 1 << 16 | 5;

/// Values of `UCP_PARAM_FIELD_FEATURES` and `UCP_FEATURE_TAG`.
const UCP_FEATURES: u64 = 1 << 0;
const UCP_TAG: u64 = 1 << 0;

/// Size that exceeds `ucp_params_t` of any version, in bytes; fields that are not in its field mask are not read.
const UCP_PARAMS: usize = 128;

#[repr(C)]
struct FiInfo {
    next: *mut FiInfo,
    caps: u64,
    mode: u64,
    addr_format: u32,
    lengths: [usize; 2],
    addresses: [*mut c_void; 2],
    handle: *mut c_void,
    attributes: [*mut c_void; 3],
    domain_attr: *mut c_void,
    fabric_attr: *mut FiFabricAttr,
}

#[repr(C)]
struct FiFabricAttr {
    fabric: *mut c_void,
    name: *mut c_char,
    prov_name: *mut c_char,
}

/// Beginning of every object.
#[repr(C)]
struct Fid {
    class: usize,
    context: *mut c_void,
    ops: *const FiOps,
}

#[repr(C)]
struct FiOps {
    size: usize,
    close: unsafe extern "C" fn(*mut Fid) -> c_int,
}

#[repr(C)]
struct FidFabric {
    fid: Fid,
    ops: *const FiOpsFabric,
}

#[repr(C)]
struct FiOpsFabric {
    size: usize,
    domain: unsafe extern "C" fn(*mut FidFabric, *mut FiInfo, *mut *mut Fid, *mut c_void) -> c_int,
}

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const FiInfo,
    *mut *mut FiInfo,
) -> c_int;
type OpenFabric =
    unsafe extern "C" fn(*mut FiFabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int;

/// Opens a library and examines it with one of the functions below; `None` if it is not installed.
pub(crate) fn open_library(
    name: &str,
    path: &Path,
    examine: fn(&Library, &mut NetworkLibrary) -> Result<(), String>,
) -> Option<NetworkLibrary> {
    // SAFETY: libraries for networks, which MPIs of the user load as well; this process does nothing else.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.ok()?;
    let mut found = NetworkLibrary {
        name: name.into(),
        path: path.display().to_string(),
        ..NetworkLibrary::default()
    };
    found.problem = examine(&library, &mut found).err();
    // Its providers may have started threads.
    std::mem::forget(library);
    Some(found)
}

/// Tries each provider of libfabric.
pub(crate) fn try_providers(library: &Library, found: &mut NetworkLibrary) -> Result<(), String> {
    let missing = |error: libloading::Error| error.to_string();
    // SAFETY: the functions of libfabric 1 have these signatures. Their results are used as the manual pages describe: a list
    // that stays valid, since it is not freed, and objects that are closed once. Pointers are checked before they are used.
    unsafe {
        let version: Symbol<unsafe extern "C" fn() -> u32> =
            library.get(b"fi_version\0").map_err(missing)?;
        let get_info: Symbol<GetInfo> = library.get(b"fi_getinfo\0").map_err(missing)?;
        let open: Symbol<OpenFabric> = library.get(b"fi_fabric\0").map_err(missing)?;
        let strerror: Symbol<unsafe extern "C" fn(c_int) -> *const c_char> =
            library.get(b"fi_strerror\0").map_err(missing)?;
        let words = |code: c_int| text(strerror(code.wrapping_neg()));
        let number = version();
        found.version = format!("{}.{}", number >> 16, number & 0xffff);
        let mut info: *mut FiInfo = ptr::null_mut();
        match get_info(
            FI_VERSION,
            ptr::null(),
            ptr::null(),
            0,
            ptr::null(),
            &mut info,
        ) {
            0 => {}
            code => return Err(format!("it offers nothing: {}", words(code))),
        }
        while let Some(offer) = info.as_mut() {
            info = offer.next;
            let Some(attr) = offer.fabric_attr.as_mut() else {
                continue;
            };
            let name = text(attr.prov_name);
            let problem = try_offer(*open, offer).err().map(words);
            match found.providers.iter_mut().find(|known| known.name == name) {
                // A provider is usable if one of its offers opens.
                Some(known) if problem.is_none() => known.problem = None,
                Some(_) => {}
                None => found.providers.push(Provider { name, problem }),
            }
        }
    }
    Ok(())
}

/// Opens a fabric and a domain as an offer describes them, and closes them.
///
/// # Safety
/// The offer comes from libfabric, with attributes, and `open` is its `fi_fabric`.
unsafe fn try_offer(open: OpenFabric, offer: &mut FiInfo) -> Result<(), c_int> {
    // SAFETY: by the caller; an opened object has the operations of its kind.
    unsafe {
        let mut fabric: *mut FidFabric = ptr::null_mut();
        match open(offer.fabric_attr, &mut fabric, ptr::null_mut()) {
            0 => {}
            code => return Err(code),
        }
        let mut domain: *mut Fid = ptr::null_mut();
        let opened = ((*(*fabric).ops).domain)(fabric, offer, &mut domain, ptr::null_mut());
        if opened == 0 {
            ((*(*domain).ops).close)(domain);
        }
        ((*(*fabric).fid.ops).close)(&raw mut (*fabric).fid);
        match opened {
            0 => Ok(()),
            code => Err(code),
        }
    }
}

/// Copies a text of a library.
///
/// # Safety
/// The pointer is null, or the text ends with a zero.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return "?".to_owned();
    }
    // SAFETY: by the caller.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

pub(crate) fn start_ucx(library: &Library, found: &mut NetworkLibrary) -> Result<(), String> {
    type Init = unsafe extern "C" fn(
        c_uint,
        c_uint,
        *const c_void,
        *const c_void,
        *mut *mut c_void,
    ) -> c_int;
    let missing = |error: libloading::Error| error.to_string();
    // SAFETY: the functions of UCP 1 have these signatures; of the parameters only the fields in their mask are read; the
    // context is cleaned up once. Source: ucp_api.h.
    unsafe {
        let version: Symbol<unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint)> =
            library.get(b"ucp_get_version\0").map_err(missing)?;
        let init: Symbol<Init> = library.get(b"ucp_init_version\0").map_err(missing)?;
        let cleanup: Symbol<unsafe extern "C" fn(*mut c_void)> =
            library.get(b"ucp_cleanup\0").map_err(missing)?;
        let words: Symbol<unsafe extern "C" fn(c_int) -> *const c_char> =
            library.get(b"ucs_status_string\0").map_err(missing)?;
        let (mut major, mut minor, mut release) = (0, 0, 0);
        version(&mut major, &mut minor, &mut release);
        found.version = format!("{major}.{minor}.{release}");
        let mut params = [0_u64; UCP_PARAMS];
        (params[0], params[1]) = (UCP_FEATURES, UCP_TAG);
        let mut context = ptr::null_mut();
        let status = init(
            major,
            minor,
            params.as_ptr().cast(),
            ptr::null(),
            &mut context,
        );
        match status {
            0 => cleanup(context),
            status => return Err(format!("it does not start: {}", text(words(status)))),
        }
    }
    Ok(())
}
