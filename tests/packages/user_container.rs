//! A container of an ordinary user's podman: without root's rights, with one user id and no network.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use std::process::Command;

use wireup_test_support::skip;

use super::{USER, expect};

/// Directories of a root directory whose programs are those of the machine.
const DIRECTORIES: [&str; 8] = ["dev", "etc", "proc", "root", "run", "sys", "tmp", "usr"];

/// Links of a root directory to the machine's programs.
const LINKS: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// Script of root that runs a command in a container of an ordinary user ($2), whose files are in a directory ($1), with a directory
/// ($3) mounted at its place. The user has an account here, and crun refuses control groups of both versions.
const RUN: &str = r#"
files=$1 user=$2 mounted=$3
shift 3
{ cat /etc/passwd && echo "user:x:$user:$user::$files:/bin/sh"; } >"$files/passwd"
mount --bind "$files/passwd" /etc/passwd
if [ -e /sys/fs/cgroup/unified/cgroup.controllers ]; then
    umount --lazy /sys/fs/cgroup/unified
    mount -t tmpfs none /sys/fs/cgroup/unified
fi
export HOME="$files/home" XDG_RUNTIME_DIR="$files/home"
exec setpriv --reuid "$user" --regid "$user" --clear-groups \
    podman --cgroup-manager cgroupfs --runtime crun --events-backend none run --rm --network none --cgroups disabled \
    --log-driver none --volume /usr:/usr:ro --volume "$mounted:$mounted:ro" --rootfs "$files/root" "$@"
"#;

/// Files of the user for the container.
pub(super) struct UserContainer {
    dir: tempfile::TempDir,
}

impl UserContainer {
    /// Makes the root directory; `None`, and the test is ignored, where the user cannot have one.
    #[track_caller]
    pub(super) fn new() -> Option<Self> {
        let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
        if !rustix::process::geteuid().is_root() || !is_there("podman") || !is_there("crun") {
            skip("a user's container: needs root, podman and crun: run scripts/setup");
            return None;
        }
        let user = USER.parse().ok();
        let dir = tempfile::tempdir().unwrap();
        chown(dir.path(), user, user).unwrap();
        let root = dir.path().join("root");
        for directory in [&root, &dir.path().join("home")] {
            fs::create_dir(directory).unwrap();
            chown(directory, user, user).unwrap();
        }
        for name in DIRECTORIES {
            fs::create_dir(root.join(name)).unwrap();
            chown(root.join(name), user, user).unwrap();
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
        for name in LINKS {
            symlink(Path::new("usr").join(name), root.join(name)).unwrap();
        }
        Some(Self { dir })
    }

    /// Runs a command in the container, with a directory mounted at its place; returns the output.
    #[track_caller]
    pub(super) fn run<A: AsRef<OsStr>>(&self, mounted: &Path, command: &[A]) -> String {
        // podman leaves a process, which ends with the namespace.
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        unshare.args(["sh", "-euc", RUN, "sh"]);
        unshare.arg(self.dir.path()).arg(USER).arg(mounted);
        expect(unshare.args(command))
    }
}
