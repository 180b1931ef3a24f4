//! This host's topology, as hwloc describes it. The library is opened when it is asked for, so that a launch that binds
//! nothing pays nothing for it; what crosses is hwloc's XML, so no struct of its is known here.
//!
//! Rule: the buffer of an export is freed by hwloc, before its topology. Source: hwloc/export.h.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_uint, c_ulong, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

/// Variable that names hwloc's library; it is tried first.
pub const VARIABLE: &str = "WIREUP_LIBHWLOC";

/// The name of hwloc 2.
const LIBRARY: &str = "libhwloc.so.15";

/// hwloc components that are disabled: they open drivers of graphics cards, start threads and take long, for facts that
/// the PCI bus has as well.
const UNWANTED: [&CStr; 5] = [c"opencl", c"cuda", c"gl", c"levelzero", c"rsmi"];

/// `HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED`: CPUs that our control group excludes are shown as such.
const INCLUDE_DISALLOWED: c_ulong = 1 << 0;
/// Flag that disables components, `HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST`.
const BLACKLIST: c_ulong = 1 << 0;
/// Filter that keeps important objects, `HWLOC_TYPE_FILTER_KEEP_IMPORTANT`.
const KEEP_IMPORTANT: c_int = 3;
/// Filter that keeps all objects, `HWLOC_TYPE_FILTER_KEEP_ALL`.
const KEEP_ALL: c_int = 0;
/// Type of a device, `HWLOC_OBJ_OS_DEVICE`.
const OS_DEVICE: c_int = 16;
/// `HWLOC_API_VERSION` of the first release whose functions all exist, 2.1, and of the first that may differ.
const VERSIONS: std::ops::Range<c_uint> = 0x0002_0100..0x0003_0000;

/// Names a file that describes a host in place of this one; `-` is standard input.
const DESCRIPTION: &str = "HWLOC_XMLFILE";
/// Names a directory with the files of a host in place of this one's root directory.
const ROOT: &str = "HWLOC_FSROOT";
/// Describes a host in place of this one.
const SYNTHETIC: &str = "HWLOC_SYNTHETIC";

/// Reason for which the topology is unknown.
#[derive(Debug, thiserror::Error)]
pub enum HwlocError {
    #[error(
        "cannot load hwloc ({0}); install it (libhwloc15, hwloc-libs), or name its library in {VARIABLE}"
    )]
    Library(String),
    #[error("{path} has the hwloc API {found:#x}; use hwloc 2.1 or a later version 2")]
    Version { path: String, found: c_uint },
    #[error(
        "cannot read {DESCRIPTION} {path}: {error}; name an existing file, or unset the variable"
    )]
    NoDescription { path: String, error: std::io::Error },
    #[error(
        "cannot read {ROOT} {path}: {error}; name an existing directory, or unset the variable"
    )]
    NoRoot { path: String, error: std::io::Error },
    #[error(
        "invalid {SYNTHETIC} {0}: write for example 'pack:2 core:4 pu:2', or unset the variable"
    )]
    Synthetic(String),
    #[error("hwloc cannot describe this host ({0})")]
    Discovery(&'static str),
}

/// Topology of a host, as hwloc writes it.
#[derive(Debug)]
pub struct Description {
    pub xml: String,
    /// Whether the topology is that of this host, and not one that a variable of hwloc names.
    pub this_host: bool,
}

type Topology = *mut c_void;

type Export = unsafe extern "C" fn(Topology, *mut *mut c_char, *mut c_int, c_ulong) -> c_int;

/// The functions that are used.
struct Hwloc {
    version: Symbol<unsafe extern "C" fn() -> c_uint>,
    init: Symbol<unsafe extern "C" fn(*mut Topology) -> c_int>,
    set_flags: Symbol<unsafe extern "C" fn(Topology, c_ulong) -> c_int>,
    set_components: Symbol<unsafe extern "C" fn(Topology, c_ulong, *const c_char) -> c_int>,
    filter_devices: Symbol<unsafe extern "C" fn(Topology, c_int) -> c_int>,
    filter: Symbol<unsafe extern "C" fn(Topology, c_int, c_int) -> c_int>,
    set_synthetic: Symbol<unsafe extern "C" fn(Topology, *const c_char) -> c_int>,
    load: Symbol<unsafe extern "C" fn(Topology) -> c_int>,
    is_this_host: Symbol<unsafe extern "C" fn(Topology) -> c_int>,
    export: Symbol<Export>,
    free: Symbol<unsafe extern "C" fn(Topology, *mut c_char)>,
    destroy: Symbol<unsafe extern "C" fn(Topology)>,
    /// Path of the library. It is never closed, since its plugins may not support that.
    path: PathBuf,
}

/// Reads the topology with hwloc; with `devices`, which takes longer, it has the devices too. `extra` is a directory
/// in which the library may be.
///
/// # Errors
/// [`HwlocError`] with the remedy.
pub fn describe(extra: Option<&Path>, devices: bool) -> Result<Description, HwlocError> {
    // hwloc describes this host instead of a file or directory that it cannot read.
    if let Some(path) = variable(DESCRIPTION).filter(|path| path != "-")
        && let Err(error) = std::fs::File::open(&path)
    {
        let path = path.display().to_string();
        return Err(HwlocError::NoDescription { path, error });
    }
    if let Some(path) = variable(ROOT)
        && let Err(error) = std::fs::read_dir(&path)
    {
        let path = path.display().to_string();
        return Err(HwlocError::NoRoot { path, error });
    }
    let hwloc = Hwloc::open(extra)?;
    let mut topology: Topology = ptr::null_mut();
    // SAFETY: the version of the library was checked, so the functions have these signatures. `init` stores a topology,
    // which is destroyed once, after its last use.
    unsafe {
        if (hwloc.init)(&mut topology) < 0 {
            return Err(HwlocError::Discovery("out of memory"));
        }
        let described = hwloc.read(topology, devices);
        (hwloc.destroy)(topology);
        described
    }
}

/// Returns the value of a variable, unless it is empty.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

impl Hwloc {
    fn open(extra: Option<&Path>) -> Result<Self, HwlocError> {
        let named = variable(VARIABLE);
        let candidates: Vec<OsString> = match named {
            Some(named) => vec![named],
            None => std::iter::once(LIBRARY.into())
                .chain(extra.map(|directory| directory.join(LIBRARY).into()))
                .collect(),
        };
        let mut problem = String::new();
        for candidate in candidates {
            // SAFETY: the library is hwloc by its name, whose initialisers do nothing that could harm this process.
            match unsafe { Library::open(Some(&candidate), RTLD_NOW | RTLD_LOCAL) } {
                Ok(library) => return Self::from_library(library, candidate.into()),
                Err(error) if problem.is_empty() => problem = error.to_string(),
                Err(_) => {}
            }
        }
        Err(HwlocError::Library(problem))
    }

    fn from_library(library: Library, path: PathBuf) -> Result<Self, HwlocError> {
        /// Returns a function of the library.
        ///
        /// # Safety
        /// The function has this type.
        unsafe fn function<T>(library: &Library, name: &str) -> Result<Symbol<T>, HwlocError> {
            // SAFETY: as the caller promises.
            let found = unsafe { library.get(name.as_bytes()) };
            found.map_err(|error| HwlocError::Library(error.to_string()))
        }
        // SAFETY: these are the types of hwloc 2.1 and later versions of 2. Nothing but `version` is called before it has
        // confirmed that.
        let hwloc = unsafe {
            Self {
                version: function(&library, "hwloc_get_api_version")?,
                init: function(&library, "hwloc_topology_init")?,
                set_flags: function(&library, "hwloc_topology_set_flags")?,
                set_components: function(&library, "hwloc_topology_set_components")?,
                filter_devices: function(&library, "hwloc_topology_set_io_types_filter")?,
                filter: function(&library, "hwloc_topology_set_type_filter")?,
                set_synthetic: function(&library, "hwloc_topology_set_synthetic")?,
                load: function(&library, "hwloc_topology_load")?,
                is_this_host: function(&library, "hwloc_topology_is_thissystem")?,
                export: function(&library, "hwloc_topology_export_xmlbuffer")?,
                free: function(&library, "hwloc_free_xmlbuffer")?,
                destroy: function(&library, "hwloc_topology_destroy")?,
                path,
            }
        };
        std::mem::forget(library);
        // SAFETY: it takes nothing and has had this signature since hwloc 1.0.
        let found = unsafe { (hwloc.version)() };
        match VERSIONS.contains(&found) {
            true => Ok(hwloc),
            false => Err(HwlocError::Version {
                path: hwloc.path.display().to_string(),
                found,
            }),
        }
    }

    /// Loads a topology and exports it.
    ///
    /// # Safety
    /// The topology was made by `init`, and is neither loaded nor destroyed.
    unsafe fn read(&self, topology: Topology, devices: bool) -> Result<Description, HwlocError> {
        // SAFETY: `topology` as the caller promises; the strings end with NUL, and the buffer is copied before it is freed.
        unsafe {
            if (self.set_flags)(topology, INCLUDE_DISALLOWED) < 0 {
                return Err(HwlocError::Discovery("it rejects the flags"));
            }
            for component in UNWANTED {
                // One that it has not need not be left out.
                (self.set_components)(topology, BLACKLIST, component.as_ptr());
            }
            if devices {
                (self.filter_devices)(topology, KEEP_IMPORTANT);
                // Render nodes, whose files ranks open, are not important to hwloc.
                (self.filter)(topology, OS_DEVICE, KEEP_ALL);
            }
            // hwloc itself would describe this host instead of one that it does not understand.
            if let Some(text) = variable(SYNTHETIC) {
                let host = CString::new(text.as_bytes()).expect("a variable has no NUL");
                if (self.set_synthetic)(topology, host.as_ptr()) < 0 {
                    return Err(HwlocError::Synthetic(text.display().to_string()));
                }
            }
            if (self.load)(topology) < 0 {
                return Err(HwlocError::Discovery("its discovery failed"));
            }
            let (mut text, mut length) = (ptr::null_mut(), 0);
            if (self.export)(topology, &mut text, &mut length, 0) < 0 || text.is_null() {
                return Err(HwlocError::Discovery("its export failed"));
            }
            let xml = CStr::from_ptr(text).to_string_lossy().into_owned();
            (self.free)(topology, text);
            let this_host = (self.is_this_host)(topology) == 1;
            Ok(Description { xml, this_host })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireup_core::topology::{ObjectType, xml};

    #[test]
    fn this_host_is_described() {
        let described = describe(None, true).unwrap();
        let topology = xml::parse(&described.xml).unwrap();
        assert!(described.this_host && !topology.parts(ObjectType::Core).is_empty());
        assert!(topology.cpus.contains(0) && topology.allowed.is_within(&topology.cpus));
    }
}
