//! A podman with images, containers and networks of its own.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Settings of a podman that may be in a container itself.
const SETTINGS: &str = "\
[containers]
default_ulimits = []
[engine]
runtime = \"runc\"
cgroup_manager = \"cgroupfs\"
events_logger = \"file\"
[network]
network_backend = \"netavark\"
";

/// A podman that keeps everything in one directory.
#[derive(Debug)]
pub struct Podman {
    dir: PathBuf,
}

impl Podman {
    /// A podman that keeps everything in this directory, which exists.
    ///
    /// # Panics
    /// If its settings cannot be written.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        fs::write(dir.join("containers.conf"), SETTINGS).expect("a file in the directory");
        Self { dir }
    }

    /// A command of it, which is killed after two minutes if `is_limited`.
    pub fn command<A: AsRef<OsStr>>(
        &self,
        is_limited: bool,
        words: impl IntoIterator<Item = A>,
    ) -> Command {
        let limit = if is_limited { "timeout 120 " } else { "" };
        let script = format!("ulimit -n 4096; exec {limit}podman \"$@\"");
        let mut command = Command::new("/bin/sh");
        command.env("CONTAINERS_CONF", self.dir.join("containers.conf"));
        command.args(["-c", &script, "sh"]);
        for (option, name) in [
            ("--root", "store"),
            ("--runroot", "run"),
            ("--network-config-dir", "networks"),
        ] {
            command.arg(option).arg(self.dir.join(name));
        }
        command.args(["--storage-driver", "vfs"]).args(words);
        command.stdin(Stdio::null());
        command
    }
}
