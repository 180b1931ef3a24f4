//! The command lines of the runtimes.
//!
//! All of them leave the network, pid, ipc and uts namespaces alone. Root's runtimes leave the user namespace alone too,
//! but for Charliecloud's, which always makes one; ranks join the mount namespace only.
//!
//! Rule: podman refuses `--cgroups=disabled` with `--pid host`, and without CAP_SYS_RESOURCE cannot set limits above the
//! caller's; crun refuses control groups of both versions whose second has controllers, where the machine has both.
//! Source: docs/containers.md#runtimes.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{BindMount, HOLDER, Layout};
use crate::job::spec::Runtime;

/// The file in the holder's directory that has the [configuration](podman_configuration) of a user's podman.
pub const PODMAN_CONFIGURATION: &str = "containers.conf";

/// Returns a configuration of podman for a user: no locks in `/dev/shm`, and a variable in the processes that outlive
/// podman, by which the guard finds them. Otherwise they would wait for the locks that the guard has removed.
pub fn podman_configuration(variable: &str) -> String {
    format!("[engine]\nlock_type = \"file\"\nconmon_env_vars = [\"{variable}\"]\n")
}

/// The root directory of a container.
#[derive(Clone, Copy, Debug)]
pub enum ImageRoot<'a> {
    /// A directory in which the places of this layout have been made.
    Directory(&'a Path, &'a Layout),
    /// An image that the runtime knows by this name, or a file, with these mounts.
    Image(&'a OsStr, &'a [BindMount]),
}

impl<'a> ImageRoot<'a> {
    fn mounts(self) -> &'a [BindMount] {
        match self {
            Self::Directory(_, layout) => &layout.mounts,
            Self::Image(_, mounts) => mounts,
        }
    }
}

/// The process that holds the container.
#[derive(Clone, Copy, Debug)]
pub struct ContainerHolder<'a> {
    /// The program on the host; in the root directory it is [`HOLDER`].
    pub program: &'a Path,
    /// The process with whose end it ends.
    pub watches: u32,
    /// A name for the container that no other has.
    pub name: &'a str,
    /// A directory for the files of a runtime.
    pub bundle: &'a Path,
}

impl ContainerHolder<'_> {
    /// Returns the mount of the holder's program, for an image that has no place for it.
    fn mount(&self) -> BindMount {
        BindMount {
            source: self.program.to_owned(),
            target: HOLDER.into(),
            read_only: true,
        }
    }
}

/// Properties of the host that a runtime's command line depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuntimeHostFacts {
    /// Control groups of both versions are mounted, as systemd's hybrid mode has it.
    pub hybrid_cgroups: bool,
    /// The launch is not root's.
    pub user: bool,
}

/// Returns the command line that starts the holder in a container.
pub fn command(
    runtime: Runtime,
    root: ImageRoot<'_>,
    holder: ContainerHolder<'_>,
    host: RuntimeHostFacts,
) -> Vec<OsString> {
    let mut words = Words::default();
    match runtime {
        Runtime::Apptainer => apptainer(&mut words, root, holder),
        Runtime::Bwrap => bwrap(&mut words, root, holder),
        Runtime::Charliecloud => charliecloud(&mut words, root, holder),
        Runtime::Crun => {
            separated(&mut words, host);
            words.add("crun");
            // What it would keep elsewhere stays when it is killed.
            words.option("--root", holder.bundle.join("crun"));
            words.add("--cgroup-manager=disabled run");
            words.option("--bundle", holder.bundle);
            words.0.push(holder.name.into());
        }
        Runtime::Podman => {
            separated(&mut words, host);
            match host.user {
                true => users_podman(&mut words, holder),
                false => words.add("podman"),
            }
            podman(&mut words, root, holder);
        }
    }
    words.0
}

#[derive(Default)]
struct Words(Vec<OsString>);

impl Words {
    /// Appends words that have a blank between them.
    fn add(&mut self, words: &str) {
        self.0.extend(words.split(' ').map(OsString::from));
    }

    fn option(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.extend([name.into(), value.into()]);
    }

    fn variable(&mut self, name: &str, value: PathBuf) {
        let mut text = OsString::from(name);
        text.push(value);
        self.0.push(text);
    }

    fn holder(&mut self, holder: ContainerHolder<'_>) {
        self.option(HOLDER, holder.watches.to_string());
    }
}

/// Appends a command that separates the runtime's processes from the launcher: the signal by which a killed launcher
/// ends its children must not reach them, since they remove the container when the holder has ended. If necessary they
/// run in mounts of their own, without version 2 of control groups. crun still creates directories in their place. A
/// user's processes run in a user namespace in which they are root; ranks, which stay in the outer one, may join their
/// mounts.
fn separated(words: &mut Words, host: RuntimeHostFacts) {
    const COVERED: &str = "mount -n -t tmpfs none /sys/fs/cgroup/unified && ";
    let before = match (host.user, host.hybrid_cgroups) {
        (true, hybrid) => {
            words.add("unshare --user --map-root-user --mount");
            // What is mounted outside cannot be removed there.
            if hybrid {
                COVERED.to_owned()
            } else {
                String::new()
            }
        }
        (false, true) => {
            words.add("unshare --mount");
            format!("umount -l /sys/fs/cgroup/unified && {COVERED}")
        }
        (false, false) => String::new(),
    };
    words.add("sh");
    words.option("-c", format!("trap '' TERM; {before}exec \"$@\""));
    words.add("sh");
}

/// Formats a mount as `SOURCE:TARGET`, with the suffix of the runtime.
fn pair(mount: &BindMount, read_only: &str, writable: &str) -> OsString {
    let mut text = OsString::from(&mount.source);
    text.push(":");
    text.push(&mount.target);
    text.push(if mount.read_only { read_only } else { writable });
    text
}

/// Appends the command line of Apptainer. Its own mounts are left out, except for `/dev`: devices do not work in its
/// other mounts. As root, Apptainer requests all capabilities, which the caller may not have; the holder needs none.
fn apptainer(words: &mut Words, root: ImageRoot<'_>, holder: ContainerHolder<'_>) {
    words.add("env");
    // It would make one in the user's home directory.
    words.variable("APPTAINER_CONFIGDIR=", holder.bundle.join("apptainer"));
    words.add("apptainer --silent --nocolor exec --no-privs --no-umask");
    words.add("--no-home --cleanenv --pwd /");
    words.add("--no-mount home,cwd,tmp,proc,sys,bind-paths,hostfs");
    let devices = Path::new("/dev");
    let own = root.mounts().iter();
    let own = own.filter(|mount| !mount.is_same() || mount.target != devices);
    // Whatever the site's configuration makes of /dev.
    let shared = BindMount::from_path(Path::new("/dev/shm"));
    for mount in own.chain([&shared]) {
        words.option("--bind", pair(mount, ":ro", ""));
    }
    match root {
        ImageRoot::Directory(path, _) => words.0.push(path.into()),
        ImageRoot::Image(file, _) => {
            words.option("--bind", pair(&holder.mount(), ":ro", ""));
            words.0.push(file.to_owned());
        }
    }
    words.holder(holder);
}

fn bwrap(words: &mut Words, root: ImageRoot<'_>, holder: ContainerHolder<'_>) {
    words.add("bwrap --die-with-parent");
    if let ImageRoot::Directory(path, layout) = root {
        words.option("--bind", path);
        words.add("/");
        for mount in &layout.mounts {
            let option = match (mount.read_only, mount.target.starts_with("/dev")) {
                (true, _) => "--ro-bind",
                (false, true) => "--dev-bind",
                (false, false) => "--bind",
            };
            words.option(option, &mount.source);
            words.0.push((&mount.target).into());
        }
    }
    words.add("--");
    words.holder(holder);
}

fn charliecloud(words: &mut Words, root: ImageRoot<'_>, holder: ContainerHolder<'_>) {
    words.add("ch-run --no-passwd --private-tmp");
    if let ImageRoot::Directory(path, layout) = root {
        for mount in &layout.mounts {
            words.option("-b", pair(mount, "", ""));
        }
        words.0.push(path.into());
    }
    words.add("--");
    words.holder(holder);
}

/// Appends a podman that runs as root of its namespace and keeps all its files in the holder's directory. Its default
/// directories depend on the user's number in the namespace, which is 0 for every user.
fn users_podman(words: &mut Words, holder: ContainerHolder<'_>) {
    let below = |name: &str| holder.bundle.join(name);
    words.add("env _CONTAINERS_USERNS_CONFIGURED=done");
    for name in ["HOME=", "XDG_RUNTIME_DIR=", "XDG_CONFIG_HOME="] {
        words.variable(name, holder.bundle.to_owned());
    }
    words.variable("CONTAINERS_CONF=", below(PODMAN_CONFIGURATION));
    words.add("podman --storage-driver vfs --cgroup-manager cgroupfs --events-backend none");
    for (option, name) in [
        ("--root", "podman"),
        ("--runroot", "podman-run"),
        ("--tmpdir", "podman-tmp"),
    ] {
        words.option(option, below(name));
    }
}

fn podman(words: &mut Words, root: ImageRoot<'_>, holder: ContainerHolder<'_>) {
    words.add("run --rm --interactive --log-driver none");
    words.add("--network host --pid host --ipc host --uts host --cgroupns host");
    words.add("--security-opt label=disable");
    // A group for the process that monitors the holder may not be possible, and podman would warn about it.
    words.add("--cgroups no-conmon --pull never");
    words.option("--name", holder.name);
    // The holder's alone: podman would raise them, for which it may have no right.
    words.add("--ulimit nofile=1024:1024 --ulimit nproc=1024:1024");
    let dynamic = |mount: &&BindMount| !mount.is_same() || mount.target != Path::new("/proc");
    for mount in root.mounts().iter().filter(dynamic) {
        words.option("--volume", pair(mount, ":ro,rbind", ":rbind"));
    }
    match root {
        ImageRoot::Directory(path, _) => {
            words.option("--rootfs", path);
            words.holder(holder);
        }
        ImageRoot::Image(name, _) => {
            words.option("--volume", pair(&holder.mount(), ":ro", ""));
            words.option("--entrypoint", HOLDER);
            words.0.push(name.to_owned());
            words.add(&holder.watches.to_string());
        }
    }
}

/// Returns the `config.json` of a bundle for OCI runtimes. Source: the OCI runtime specification 1.0.
pub fn bundle(root: &Path, layout: &Layout, holder: ContainerHolder<'_>) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(runtime: Runtime, host: RuntimeHostFacts) -> String {
        let mounts = ["/dev", "/data"].map(|path| BindMount::from_path(Path::new(path)));
        let layout = Layout {
            mounts: mounts.to_vec(),
            ..Layout::default()
        };
        let holder = ContainerHolder {
            program: Path::new("/b/holder"),
            watches: 7,
            name: "job",
            bundle: Path::new("/b"),
        };
        let root = ImageRoot::Directory(Path::new("/b/root"), &layout);
        let words = command(runtime, root, holder, host);
        let words: Vec<String> = words
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        words.join(" ")
    }

    #[test]
    fn user_runtime_is_root_in_user_namespace_and_removes_files() {
        let user = RuntimeHostFacts {
            user: true,
            ..RuntimeHostFacts::default()
        };
        for runtime in [Runtime::Crun, Runtime::Podman] {
            let text = words(runtime, user);
            assert!(
                text.starts_with("unshare --user --map-root-user --mount sh -c "),
                "{text}"
            );
            assert!(text.contains(" --root /b/"), "{text}");
            let text = words(runtime, RuntimeHostFacts::default());
            assert!(!text.contains("--user "), "{text}");
        }
    }

    #[test]
    fn apptainer_mounts_devices_itself() {
        let text = words(Runtime::Apptainer, RuntimeHostFacts::default());
        assert!(
            !text.contains("--bind /dev:/dev ") && text.contains("--bind /data:/data"),
            "{text}"
        );
        assert!(text.ends_with(" /b/root /.wireup-holder 7"), "{text}");
    }
}
