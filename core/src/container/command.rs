//! The command lines of the runtimes.
//!
//! All of them leave the network, pid, ipc and uts namespaces alone. Root's runtimes leave the user namespace alone too,
//! but for Charliecloud's, which always makes one; ranks join the mount namespace only.
//!
//! Rule: podman refuses `--cgroups=disabled` with `--pid host`, and without CAP_SYS_RESOURCE cannot set limits above the
//! caller's; crun refuses control groups of both versions whose second has controllers, where the machine has both.
//! Source: docs/containers.md#runtimes.

use std::ffi::OsString;
use std::path::Path;

use serde_json::json;

use super::{BindMount, HOLDER, Layout};
use crate::job::spec::Runtime;

/// The root directory of a container.
#[derive(Clone, Copy, Debug)]
pub enum Root<'a> {
    /// A directory in which the places of this layout have been made.
    Directory(&'a Path, &'a Layout),
    /// An image that the runtime knows by this name, with these mounts.
    Image(&'a str, &'a [BindMount]),
}

/// The process that holds the container.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// The program on the host; in the root directory it is [`HOLDER`].
    pub program: &'a Path,
    /// The process with whose end it ends.
    pub watches: u32,
    /// A name for the container that no other has.
    pub name: &'a str,
    /// A directory for the files of a runtime.
    pub bundle: &'a Path,
}

/// What is to be known of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostFacts {
    /// Control groups of both versions are mounted, as systemd's hybrid mode has it.
    pub hybrid_cgroups: bool,
}

/// The command line that starts the holder in a container.
pub fn command(
    runtime: Runtime,
    root: Root<'_>,
    holder: Holder<'_>,
    host: HostFacts,
) -> Vec<OsString> {
    let mut words = Words::default();
    match runtime {
        Runtime::Bwrap => bwrap(&mut words, root, holder),
        Runtime::Charliecloud => charliecloud(&mut words, root, holder),
        Runtime::Crun => {
            separated(&mut words, host);
            words.add(["crun", "run", "--bundle"]);
            words.0.push(holder.bundle.into());
            words.add([holder.name]);
        }
        Runtime::Podman => {
            separated(&mut words, host);
            podman(&mut words, root, holder);
        }
    }
    words.0
}

#[derive(Default)]
struct Words(Vec<OsString>);

impl Words {
    fn add<'a>(&mut self, words: impl IntoIterator<Item = &'a str>) {
        self.0.extend(words.into_iter().map(OsString::from));
    }

    fn holder(&mut self, holder: Holder<'_>) {
        self.add([HOLDER, &holder.watches.to_string()]);
    }
}

/// The signal by which a launcher that is killed ends its children has to leave these alone: they remove the container
/// when the holder has ended. Where it is needed, they run in mounts of their own, without the second version of control
/// groups. crun makes directories in the place of these all the same.
fn separated(words: &mut Words, host: HostFacts) {
    let script = match host.hybrid_cgroups {
        true => {
            words.add(["unshare", "--mount"]);
            "trap '' TERM; umount -l /sys/fs/cgroup/unified && mount -n -t tmpfs none /sys/fs/cgroup/unified && exec \"$@\""
        }
        false => "trap '' TERM; exec \"$@\"",
    };
    words.add(["sh", "-c", script, "sh"]);
}

/// A mount as `SOURCE:TARGET`, with what runtimes add.
fn pair(mount: &BindMount, read_only: &str, writable: &str) -> OsString {
    let mut text = OsString::from(&mount.source);
    text.push(":");
    text.push(&mount.target);
    text.push(if mount.read_only { read_only } else { writable });
    text
}

fn bwrap(words: &mut Words, root: Root<'_>, holder: Holder<'_>) {
    words.add(["bwrap", "--die-with-parent"]);
    if let Root::Directory(path, layout) = root {
        words.add(["--bind"]);
        words.0.extend([path.into(), "/".into()]);
        for mount in &layout.mounts {
            words.add([match (mount.read_only, mount.target.starts_with("/dev")) {
                (true, _) => "--ro-bind",
                (false, true) => "--dev-bind",
                (false, false) => "--bind",
            }]);
            words
                .0
                .extend([(&mount.source).into(), (&mount.target).into()]);
        }
    }
    words.add(["--"]);
    words.holder(holder);
}

fn charliecloud(words: &mut Words, root: Root<'_>, holder: Holder<'_>) {
    words.add(["ch-run", "--no-passwd", "--private-tmp"]);
    if let Root::Directory(path, layout) = root {
        for mount in &layout.mounts {
            words.add(["-b"]);
            words.0.push(pair(mount, "", ""));
        }
        words.0.push(path.into());
    }
    words.add(["--"]);
    words.holder(holder);
}

fn podman(words: &mut Words, root: Root<'_>, holder: Holder<'_>) {
    words.add([
        "podman",
        "run",
        "--rm",
        "--interactive",
        "--log-driver",
        "none",
    ]);
    words.add([
        "--network",
        "host",
        "--pid",
        "host",
        "--ipc",
        "host",
        "--uts",
        "host",
    ]);
    words.add(["--cgroupns", "host", "--security-opt", "label=disable"]);
    // A group for what watches the holder may not be possible, which podman would say.
    words.add(["--cgroups", "no-conmon"]);
    words.add(["--pull", "never", "--name", holder.name]);
    // The holder's alone: podman would raise them, for which it may have no right.
    words.add([
        "--ulimit",
        "nofile=1024:1024",
        "--ulimit",
        "nproc=1024:1024",
    ]);
    let mounts = match root {
        Root::Directory(_, layout) => &layout.mounts,
        Root::Image(_, mounts) => mounts,
    };
    let dynamic = |mount: &&BindMount| !mount.is_same() || mount.target != Path::new("/proc");
    for mount in mounts.iter().filter(dynamic) {
        words.add(["--volume"]);
        words.0.push(pair(mount, ":ro,rbind", ":rbind"));
    }
    match root {
        Root::Directory(path, _) => {
            words.add(["--rootfs"]);
            words.0.push(path.into());
            words.holder(holder);
        }
        Root::Image(name, _) => {
            words.add(["--volume"]);
            let program = BindMount {
                source: holder.program.to_owned(),
                target: HOLDER.into(),
                read_only: true,
            };
            words.0.push(pair(&program, ":ro", ""));
            words.add(["--entrypoint", HOLDER, name, &holder.watches.to_string()]);
        }
    }
}

/// `config.json` of a bundle for OCI runtimes. Source: the OCI runtime specification 1.0.
pub fn bundle(root: &Path, layout: &Layout, holder: Holder<'_>) -> String {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mounts = layout.mounts.iter().map(|mount| {
        let access = if mount.read_only { "ro" } else { "rw" };
        json!({
            "type": "bind",
            "source": text(&mount.source),
            "destination": text(&mount.target),
            "options": ["rbind", access],
        })
    });
    let config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": [HOLDER, holder.watches.to_string()],
            "env": [],
            "cwd": "/",
        },
        "root": { "path": text(root), "readonly": false },
        "mounts": mounts.collect::<Vec<_>>(),
        "linux": { "namespaces": [{ "type": "mount" }] },
    });
    config.to_string()
}
