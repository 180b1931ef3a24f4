//! Names by which libraries and programs are recognized.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::detected::LibraryFamily;

/// Libraries of Open MPI; the name alone decides.
pub(super) const OPEN_MPI: &[&str] = &[
    "libmpi.so.40",
    "libmpi.so.20",
    "libmpi_ibm.so",
    "libopen-pal.so",
    "libopen-rte.so",
];
/// Libraries of MPICH's family; the name decides unless the same program loads a library of Open MPI or PMIx. (Open MPI
/// 1.10 was also called libmpi.so.12; MPICH can be built on PMIx.)
pub(super) const MPICH: &[&str] = &[
    "libmpi.so.12",
    "libmpich",
    "libmpi_mt.so.4",
    "libmpi_ilp64.so.4",
];
/// Client libraries of PMI-1 and PMI-2.
const PMI: &[&str] = &["libpmi.so", "libpmi2.so"];

/// Names of libraries, by their owners.
const FAMILIES: [(&[&str], LibraryFamily); 4] = [
    (OPEN_MPI, LibraryFamily::OpenMpi),
    (MPICH, LibraryFamily::Mpich),
    (&["libpmix.so"], LibraryFamily::Pmix),
    (PMI, LibraryFamily::Pmi),
];

/// Returns the owner of a library, by its file name; `None` for a library of no interest.
pub fn family_of(name: &OsStr) -> Option<LibraryFamily> {
    let found = FAMILIES.iter().find(|(names, _)| matches(name, names));
    found.map(|(_, family)| *family)
}

/// Libraries that never load an MPI. They are not searched, which keeps the usual case fast.
pub(super) const LEAVES: &[&str] = &[
    "ld-linux",
    "ld64.so",
    "ld-musl",
    "libc.so",
    "libm.so",
    "libmvec.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "libutil.so",
    "libresolv.so",
    "libgcc_s.so",
    "libstdc++.so",
    "libgfortran.so",
    "libquadmath.so",
    "libgomp.so",
    "libatomic.so",
    "libz.so",
    "libzstd.so",
    "liblzma.so",
    "libbz2.so",
    "libhwloc.so",
    "libevent",
    "libnuma.so",
    "libudev.so",
    "libcap.so",
    "libsystemd.so",
    "libxml2.so",
    "libcrypto.so",
    "libssl.so",
    "libselinux.so",
    "libucp.so",
    "libucs.so",
    "libuct.so",
    "libucm.so",
    "libfabric.so",
    "libibverbs.so",
    "librdmacm.so",
    "libmunge.so",
    "libcuda.so",
    "libcudart.so",
    "libnvidia",
    "libX11.so",
    "libtinfo.so",
];

/// Programs that run a script that may load an MPI, or that start another program in a way that is not
/// inspected (see `wrapper` for those that are).
const INTERPRETERS: &[&str] = &[
    "python",
    "pypy",
    "perl",
    "ruby",
    "lua",
    "luajit",
    "tclsh",
    "wish",
    "R",
    "Rscript",
    "julia",
    "octave",
    "octave-cli",
    "guile",
    "node",
    "nodejs",
    "java",
    "php",
    "erl",
    "MATLAB",
    "sh",
    "bash",
    "rbash",
    "dash",
    "ash",
    "ksh",
    "mksh",
    "zsh",
    "fish",
    "csh",
    "tcsh",
    "make",
    "flock",
    "watch",
    "parallel",
    "expect",
    "busybox",
    "toybox",
    "hwloc-bind",
    "likwid-pin",
    "likwid-perfctr",
    "setarch",
    "linux",
    "prlimit",
    "sudo",
    "su",
    "runuser",
    "setpriv",
    "chroot",
    "unshare",
    "nsenter",
    "cgexec",
    "systemd-run",
    "xargs",
    "script",
    "konsole",
    "gnome-terminal",
    "gdbserver",
    "lldb",
    "rr",
    "heaptrack",
    "memray",
    "nsys",
    "ncu",
    "nvprof",
    "rocprof",
    "vtune",
    "advixe-cl",
    "aps",
    "amplxe-cl",
    "map",
    "ddt",
    "forge",
    "tau_exec",
    "singularity",
    "apptainer",
    "starter",
    "podman",
    "docker",
    "bwrap",
    "ch-run",
    "shifter",
    "sarus",
    "enroot",
    "nvidia-container-cli",
    "crun",
    "runc",
    "flatpak",
    "firejail",
    "proot",
    "fakeroot",
    "catchsegv",
    "ld.so",
    "qemu",
    "wine",
    "conda",
    "uv",
    "pixi",
    "spack",
];

/// Whether `name` is in `list`, or is a name of it followed by a version.
pub(super) fn matches(name: &OsStr, list: &[&str]) -> bool {
    list.iter().any(|start| {
        name.as_bytes()
            .strip_prefix(start.as_bytes())
            // `libmpi.so.4` must not match `libmpi.so.40`.
            .is_some_and(|rest| !rest.first().is_some_and(u8::is_ascii_digit))
    })
}

/// Returns the names of a program: its own, and that of the file behind its symbolic links.
pub(super) fn program_names(path: &Path) -> Vec<String> {
    let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    let real = path.canonicalize().ok();
    let real = real.as_deref().and_then(name);
    let mut names: Vec<String> = name(path).into_iter().chain(real).collect();
    names.dedup();
    names
}

/// Whether a program of that name is a known interpreter; a version at the end does not count.
pub(super) fn is_interpreter(name: &str) -> bool {
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'));
    INTERPRETERS.contains(&name)
        || INTERPRETERS.contains(&bare)
        || name.starts_with("ld-linux")
        || name.starts_with("qemu-")
}
