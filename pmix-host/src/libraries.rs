//! Opens the inherited descriptors and the two libraries.
//!
//! Rule: libpmix is opened first, by absolute path, global: the shim's PMIx symbols are bound to it and to no other.
//! Neither is ever closed. Source: docs/pmix-server.md#loading.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Takes over a socket that the agent left open for us.
pub(crate) fn inherited_socket(fd: i32) -> io::Result<UnixStream> {
    inherited(fd).map(UnixStream::from)
}

/// Takes over a descriptor that the agent left open for us.
pub(crate) fn inherited(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: fcntl on a number that is no descriptor only fails.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, above the standard descriptors, named on our command line for this
    // purpose, and taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(have_pmix)]
pub(crate) use loaded::Libraries;

#[cfg(have_pmix)]
mod loaded {
    use std::ffi::CStr;
    use std::path::Path;

    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
    use pmix_sys::pmix::LibPmix;
    use pmix_sys::shim::Shim;
    use wireup_core::pmix::release::{MINIMUM, PmixRelease};
    use wireup_core::pmix::sidecar_protocol::StartupStage;
    use wireup_core::pmix::wire::SHIM_ABI;

    use crate::Fatal;

    /// libpmix and the shim, opened for the rest of the process.
    pub(crate) struct Libraries {
        pub(crate) pmix: &'static LibPmix,
        pub(crate) shim: &'static Shim,
        /// Version text of libpmix.
        pub(crate) name: &'static CStr,
        pub(crate) version: PmixRelease,
    }

    impl Libraries {
        /// Opens and checks both.
        pub(crate) fn open(libpmix: &Path, shim: &Path) -> Result<Self, Fatal> {
            let remedy = "; name a libpmix of version 4.2.2 or later with --libpmix";
            let (pmix, (name, version)) =
                Self::open_libpmix(libpmix).map_err(|fatal| fatal.and(remedy))?;
            let remedy =
                "; use the one that was built with this wireup, or name it with --libpmix shim=";
            let shim = Self::open_shim(shim).map_err(|fatal| fatal.and(remedy))?;
            Ok(Self {
                pmix: Box::leak(Box::new(pmix)),
                shim: Box::leak(Box::new(shim)),
                name,
                version,
            })
        }

        fn open_libpmix(path: &Path) -> Result<(LibPmix, LibpmixVersion), Fatal> {
            let library = open(path, RTLD_GLOBAL)?;
            let known = libpmix_version(path, &library)?;
            // SAFETY: the functions are declared by PMIx's own header, and the library states a version that has them
            // in this form.
            let pmix = unsafe { LibPmix::from_library(library) };
            let pmix = pmix.map_err(|error| Fatal::new(StartupStage::Pmix, about(path, &error)))?;
            Ok((pmix, known))
        }

        fn open_shim(path: &Path) -> Result<Shim, Fatal> {
            let library = open(path, RTLD_LOCAL)?;
            check_abi(path, &library)?;
            // SAFETY: the ABI version covers the declarations in host.h.
            unsafe { Shim::from_library(library) }
                .map_err(|error| Fatal::new(StartupStage::Abi, about(path, &error)))
        }
    }

    fn open(path: &Path, scope: i32) -> Result<Library, Fatal> {
        // SAFETY: its initialisers run; which library to trust is the user's choice.
        unsafe { Library::open(Some(path), RTLD_NOW | scope) }.map_err(|error| {
            let text = format!("cannot load {}", about(path, &error));
            Fatal::new(StartupStage::Load, text)
        })
    }

    /// Returns the loader's error with the path in front, which only some of its texts have.
    fn about(path: &Path, error: &libloading::Error) -> String {
        let (path, error) = (path.display().to_string(), error.to_string());
        match error.strip_prefix(&path) {
            Some(_) => error,
            None => format!("{path}: {error}"),
        }
    }

    /// The name that a libpmix gives itself, and the version in that.
    type LibpmixVersion = (&'static CStr, PmixRelease);

    fn libpmix_version(path: &Path, library: &Library) -> Result<LibpmixVersion, Fatal> {
        type GetVersion = unsafe extern "C" fn() -> *const std::ffi::c_char;
        let fatal =
            |text: &str| Fatal::new(StartupStage::Pmix, format!("{}: {text}", path.display()));
        // SAFETY: this is the function's type in every version of PMIx.
        let get = unsafe { library.get::<GetVersion>(b"PMIx_Get_version\0") };
        let get = get.map_err(|_| fatal("not a libpmix: no function PMIx_Get_version"))?;
        // SAFETY: may be called before initialisation.
        let text = unsafe { get() };
        if text.is_null() {
            return Err(fatal("has no version"));
        }
        // SAFETY: a terminated string in the library, which stays open.
        let text: &'static CStr = unsafe { CStr::from_ptr(text) };
        let version = PmixRelease::from_library_name(text.to_bytes());
        let version =
            version.ok_or_else(|| fatal(&format!("has no version number in {text:?}")))?;
        if version < MINIMUM {
            return Err(fatal(&format!(
                "version {version} is too old, {MINIMUM} or later is needed"
            )));
        }
        Ok((text, version))
    }

    fn check_abi(path: &Path, library: &Library) -> Result<(), Fatal> {
        let fatal =
            |text: String| Fatal::new(StartupStage::Abi, format!("{}: {text}", path.display()));
        // SAFETY: this function keeps its type in every version of the shim.
        let abi = unsafe { library.get::<unsafe extern "C" fn() -> u32>(b"wireup_shim_abi\0") };
        let abi =
            abi.map_err(|_| fatal("not a wireup shim: no function wireup_shim_abi".into()))?;
        // SAFETY: it only returns a number.
        match unsafe { abi() } {
            SHIM_ABI => Ok(()),
            other => Err(fatal(format!(
                "shim of version {other}, this wireup needs version {SHIM_ABI}"
            ))),
        }
    }
}
