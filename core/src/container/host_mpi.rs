//! Compatibility of the host's MPI library with an image, and the libraries that it needs from the host.
//!
//! Rule: MPICH, Intel MPI and others of the MPICH ABI initiative share the interface of `libmpi.so.12`, which Debian
//! calls `libmpich.so.12`; Open MPI 4 and 5 that of `libmpi.so.40`. Source: <https://www.mpich.org/abi/>, the
//! libraries' sonames.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::mpi::MpiAbi;

/// Symbols and versions that a shared library or program defines and needs, as the dynamic loader sees them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LibrarySymbols {
    /// Name of the library (DT_SONAME).
    pub soname: Option<String>,
    /// Symbols that others can use.
    pub defined: BTreeSet<String>,
    /// Symbols that it must find in others; weak ones may be absent.
    pub undefined: BTreeSet<String>,
    /// Versions of its symbols.
    pub versions: BTreeSet<String>,
    /// Versions that it needs, by the library that has them.
    pub needs: BTreeMap<String, BTreeSet<String>>,
}

/// Symbol or version that a library lacks for a user of it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MissingSymbol {
    /// A version of its symbols, without which the loader refuses to start.
    #[error("version {0}")]
    Version(String),
    #[error("{0}()")]
    Symbol(String),
}

/// Returns a version of the library called `name` that `user` needs and `candidate` lacks. A library without versions
/// serves all users; the loader at most prints a warning.
fn missing_version(
    user: &LibrarySymbols,
    name: &str,
    candidate: &LibrarySymbols,
) -> Option<MissingSymbol> {
    let versions = user
        .needs
        .get(name)
        .filter(|_| !candidate.versions.is_empty());
    let mut versions = versions.into_iter().flatten();
    let missing = versions.rfind(|version| !candidate.versions.contains(*version));
    missing.map(|version| MissingSymbol::Version(version.clone()))
}

/// Returns a symbol or version of `reference` that `user` needs and `candidate` lacks. `reference` is the library
/// called `name` for which `user` was built.
pub fn lacks(
    user: &LibrarySymbols,
    name: &str,
    reference: &LibrarySymbols,
    candidate: &LibrarySymbols,
) -> Option<MissingSymbol> {
    let symbol = || {
        let mut used = user.undefined.intersection(&reference.defined);
        let missing = used.find(|symbol| !candidate.defined.contains(*symbol));
        missing.map(|symbol| MissingSymbol::Symbol(symbol.clone()))
    };
    missing_version(user, name, candidate).or_else(symbol)
}

/// Returns the name of a library's C interface of MPI, if it has one: equal for libraries that can replace each other.
pub fn interface(soname: &str) -> Option<&str> {
    match MpiAbi::from_soname(soname) {
        Some(abi) => Some(abi.sonames()[0]),
        None => {
            let stem = soname.split(".so.").next()?;
            let known = matches!(
                stem,
                "libmpi" | "libmpi_abi" | "libmpi_mt" | "libmpi_ilp64" | "libmpich"
            );
            (known && stem != soname).then_some(soname)
        }
    }
}

/// Returns all names of an interface.
pub fn names(interface: &str) -> Vec<&str> {
    match MpiAbi::from_soname(interface) {
        Some(abi) => abi.sonames().to_vec(),
        None => vec![interface],
    }
}

/// Returns the host's name of a library that belongs to an MPI (Fortran, C++), from its name in the image; `None` for
/// other libraries.
pub fn companion(soname: &str) -> Option<String> {
    if interface(soname).is_some() || !soname.starts_with("libmpi") {
        return None;
    }
    Some(soname.replacen("libmpich", "libmpi", 1))
}

/// Libraries that belong to the C library and its loader: the image's alone fit its loader.
const C_LIBRARY: [&str; 14] = [
    "ld-linux",
    "ld64.so",
    "ld-musl",
    "libc.",
    "libm.so",
    "libmvec.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "libutil.so",
    "libresolv.so",
    "libanl.so",
    "libnsl.so.1",
    "libthread_db.so",
];

/// Libraries by which an MPI reaches networks and its launcher: the host's fit its devices.
const OF_THE_NETWORK: [&str; 21] = [
    "libmpi",
    "libopen-",
    "libpmi",
    "libpmix",
    "libfabric.so",
    "libucp.so",
    "libuct.so",
    "libucs",
    "libucm.so",
    "libucc.so",
    "libucxx",
    "libibverbs.so",
    "librdmacm.so",
    "libmlx",
    "libefa.so",
    "libcxi.so",
    "libpsm",
    "libxpmem",
    "libugni.so",
    "libsharp",
    "libhcoll",
];

/// Returns the subdirectory in which a library searches for its plugins.
pub fn plugins(name: &str) -> Option<&'static str> {
    match () {
        () if name.starts_with("libucs.so") => Some("ucx"),
        () if name.starts_with("libfabric.so") => Some("libfabric"),
        () => None,
    }
}

fn starts(name: &str, with: &[&str]) -> bool {
    with.iter().any(|start| name.starts_with(start))
}

/// Origin of a library that the host's MPI needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LibrarySource {
    Image,
    Host,
}

/// Reason for which the host's MPI does not run in the image.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostMpiMismatch {
    #[error("the image has no {0}: the host's MPI needs this part of the C library from the image")]
    NoCLibrary(String),
    #[error(
        "the host's {dependent} needs {lack} of {name}, which the image's {name} does not have; use an image with a newer C library, \
         or an MPI that was built for an older one"
    )]
    CLibrary {
        name: String,
        dependent: String,
        lack: MissingSymbol,
    },
}

/// Chooses the origin of the library called `name`, which `users` of the host need, each with its name. The image's
/// library is taken if it serves all of them and is not a network library.
///
/// # Errors
/// [`HostMpiMismatch`] if only the image can have the library, and the image's does not serve the users.
pub fn source(
    name: &str,
    host: &LibrarySymbols,
    image: Option<&LibrarySymbols>,
    users: &[(&str, &LibrarySymbols)],
) -> Result<LibrarySource, HostMpiMismatch> {
    if starts(name, &C_LIBRARY) {
        let image = image.ok_or_else(|| HostMpiMismatch::NoCLibrary(name.to_owned()))?;
        // Its symbols move from one of its libraries to another; its versions tell where it is too old.
        let mut lacking = users.iter().filter_map(|(by, user)| {
            let (name, by) = (name.to_owned(), (*by).to_owned());
            let lack = missing_version(user, &name, image)?;
            Some(HostMpiMismatch::CLibrary {
                name,
                dependent: by,
                lack,
            })
        });
        return lacking.next().map_or(Ok(LibrarySource::Image), Err);
    }
    let serves = |image| {
        let mut users = users.iter();
        users.all(|(_, user)| lacks(user, name, host, image).is_none())
    };
    let own = !starts(name, &OF_THE_NETWORK) && image.is_some_and(serves);
    Ok(if own {
        LibrarySource::Image
    } else {
        LibrarySource::Host
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn library(defined: &[&str], versions: &[&str]) -> LibrarySymbols {
        LibrarySymbols {
            defined: set(defined),
            versions: set(versions),
            ..LibrarySymbols::default()
        }
    }

    fn user(undefined: &[&str], needs: &[(&str, &[&str])]) -> LibrarySymbols {
        LibrarySymbols {
            undefined: set(undefined),
            needs: needs
                .iter()
                .map(|(name, versions)| ((*name).to_owned(), set(versions)))
                .collect(),
            ..LibrarySymbols::default()
        }
    }

    #[test]
    fn mpi_interface_follows_soname() {
        assert_eq!(interface("libmpi.so.12"), interface("libmpich.so.12"));
        assert_ne!(interface("libmpi.so.12"), interface("libmpi.so.40"));
        assert!(names("libmpi.so.12").contains(&"libmpich.so.12"));
        for other in [
            "libmpifort.so.12",
            "libmpi.so",
            "libm.so.6",
            "libmpicxx.so.12",
        ] {
            assert_eq!(interface(other), None, "{other}");
        }
        assert_eq!(companion("libmpichfort.so.12").unwrap(), "libmpifort.so.12");
        assert_eq!(
            companion("libmpi_mpifh.so.40").unwrap(),
            "libmpi_mpifh.so.40"
        );
        assert_eq!(companion("libmpi.so.12"), None);
        assert_eq!(companion("libhwloc.so.15"), None);
    }

    #[test]
    fn replacement_library_must_have_symbols_used_by_program() {
        let program = user(&["MPI_Init", "MPI_Session_init", "puts"], &[]);
        let image = library(&["MPI_Init", "MPI_Session_init", "MPI_Unused"], &[]);
        let old = library(&["MPI_Init"], &[]);
        assert_eq!(lacks(&program, "libmpi.so.12", &image, &image), None);
        assert_eq!(
            lacks(&program, "libmpi.so.12", &image, &old),
            Some(MissingSymbol::Symbol("MPI_Session_init".into()))
        );
    }

    #[test]
    fn newer_c_library_of_host_mpi_is_refused() {
        let name = "libc.so.6";
        let host = library(&["puts", "strlcpy"], &["GLIBC_2.2.5", "GLIBC_2.38"]);
        let old = library(&["puts"], &["GLIBC_2.2.5"]);
        let modest = user(&["puts"], &[(name, &["GLIBC_2.2.5"])]);
        let newer = user(
            &["puts", "strlcpy"],
            &[(name, &["GLIBC_2.2.5", "GLIBC_2.38"])],
        );
        let of = |image, user| source(name, &host, image, &[("libmpi.so.12", user)]);
        assert_eq!(of(Some(&old), &modest), Ok(LibrarySource::Image));
        let error = of(Some(&old), &newer).unwrap_err().to_string();
        assert!(
            error.starts_with("the host's libmpi.so.12 needs version GLIBC_2.38 of libc.so.6, "),
            "{error}"
        );
        assert_eq!(
            of(None, &modest),
            Err(HostMpiMismatch::NoCLibrary(name.into()))
        );
    }

    #[test]
    fn other_libraries_come_from_image_if_sufficient() {
        let host = library(&["a", "b"], &[]);
        let old = library(&["a"], &[]);
        let (modest, newer) = (user(&["a"], &[]), user(&["a", "b"], &[]));
        let of = |name, image, user| source(name, &host, image, &[("x", user)]);
        assert_eq!(
            of("libz.so.1", Some(&old), &modest),
            Ok(LibrarySource::Image)
        );
        assert_eq!(of("libz.so.1", Some(&old), &newer), Ok(LibrarySource::Host));
        assert_eq!(of("libz.so.1", None, &modest), Ok(LibrarySource::Host));
        // Whatever the image's is good for.
        assert_eq!(
            of("libfabric.so.1", Some(&host), &newer),
            Ok(LibrarySource::Host)
        );
    }
}
