//! Contents of the container of a node's ranks, and the command lines of the runtimes that create it.
//!
//! Each node has one container for the launch. A runtime starts a *holder* in it, a process that does nothing, and
//! every rank joins the mount namespace of the holder; so ranks stay children of their launcher or step, with their
//! descriptors, signals and exit codes, and share the pid and user namespaces and `/dev/shm` of the host.
//!
//! Rule: MPIs crash or hang when the ranks of a node have pid namespaces, user namespaces or a `/dev/shm` of their own.
//! Source: docs/containers.md#one-container-for-each-node.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

pub use crate::job::spec::BindMount;

mod command;
pub mod hook;
pub mod host_mpi;
mod layout;

pub use command::{
    ContainerHolder, ImageRoot, PODMAN_CONFIGURATION, RuntimeHostFacts, bundle, command,
    podman_configuration,
};
pub use layout::{EntryKind, ImageEntry, Layout, LayoutError, layout};

/// Directories of the host that every container has.
pub const OF_THE_HOST: [&str; 4] = ["/proc", "/sys", "/dev", "/tmp"];

/// Variables with paths of the host's files. Ranks in an image get the image's values.
pub const OF_THE_IMAGE: [&str; 8] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LIBRARY_PATH",
    "CPATH",
    "MANPATH",
    "PKG_CONFIG_PATH",
    "PYTHONHOME",
];

/// `PATH` in a root directory, which does not define variables.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The name of the holder in the root directory.
pub const HOLDER: &str = "/.wireup-holder";

/// Returns the mounts of a container: the user's, and the common ones unless the user mounts something else there: the
/// host's [directories](OF_THE_HOST), the directory of temporary files and the ranks' working directory.
pub fn mounts(own: &[BindMount], also: &[&Path]) -> Vec<BindMount> {
    let common = OF_THE_HOST
        .iter()
        .map(Path::new)
        .chain(also.iter().copied());
    let mut all: Vec<BindMount> = Vec::new();
    let own = own.iter().cloned();
    for mount in own.chain(common.map(BindMount::from_path)) {
        // A mount inside another one that shows the host's own path is redundant.
        let shown = |other: &BindMount| {
            other.target == mount.target
                || mount.is_same() && other.is_same() && mount.target.starts_with(&other.target)
        };
        if !all.iter().any(shown) {
            all.push(mount);
        }
    }
    // What lies in another is mounted behind it.
    all.sort_by_key(|mount| mount.target.components().count());
    all
}

/// Merges the user's variables for the ranks with those of the image, which are used where the user has none.
pub fn environment(env: &mut Vec<(OsString, OsString)>, image: &[(OsString, OsString)]) {
    let default = (OsString::from("PATH"), OsString::from(DEFAULT_PATH));
    for (name, value) in image.iter().chain([&default]) {
        if !env.iter().any(|(known, _)| known == name) {
            env.push((name.clone(), value.clone()));
        }
    }
}

/// Whether ranks in an image do not get this variable of the launcher.
pub fn is_of_the_image(name: &OsStr) -> bool {
    OF_THE_IMAGE.iter().any(|known| name == *known)
}

/// Returns the part of a path below the root directory.
fn strip_root(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_container_has_host_directories_once() {
        let targets = |texts: &[&str], also: &[&str]| -> Vec<String> {
            let own: Vec<BindMount> = texts
                .iter()
                .map(|text| BindMount::parse(text.as_ref()).unwrap())
                .collect();
            let also: Vec<&Path> = also.iter().map(Path::new).collect();
            let all = mounts(&own, &also);
            all.iter().map(ToString::to_string).collect()
        };
        let host = ["/proc", "/sys", "/dev", "/tmp"];
        assert_eq!(targets(&[], &["/tmp/x", "/tmp"]), host);
        assert_eq!(
            targets(&["/data:/tmp:ro"], &["/tmp/x"]),
            ["/data:/tmp:ro", "/proc", "/sys", "/dev", "/tmp/x"]
        );
        assert_eq!(
            targets(&[], &["/home/u/run", "/tmp"]),
            ["/proc", "/sys", "/dev", "/tmp", "/home/u/run"]
        );
    }

    #[test]
    fn variables_of_image_apply_where_user_sets_none() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let mut env = vec![pair("A", "1")];
        environment(&mut env, &[pair("A", "2"), pair("B", "3")]);
        let expected = [pair("A", "1"), pair("B", "3"), pair("PATH", DEFAULT_PATH)];
        assert_eq!(env, expected);
        let mut env = vec![pair("PATH", "/own")];
        environment(&mut env, &[pair("PATH", "/image")]);
        assert_eq!(env, [pair("PATH", "/own")]);
    }
}
