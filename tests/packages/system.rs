//! Root of a system of its own, into which packages are installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wireup_test_support::skip;

use super::{expect, readable_directory};

/// Returns the archive with the base of this name, as `scripts/setup` has made it; `None`, and the test is ignored, without it.
#[track_caller]
pub(crate) fn base(name: &str) -> Option<PathBuf> {
    let default = || format!("/var/tmp/wireup-mpi-{}", rustix::process::getuid()).into();
    let bases = std::env::var_os("WIREUP_MPI_DIR").map_or_else(default, PathBuf::from);
    let base = bases.join(name).join("base.tar");
    if !rustix::process::geteuid().is_root() || !base.exists() {
        skip(&format!(
            "{name} is not installed, or this is not root: run scripts/setup"
        ));
        return None;
    }
    Some(base)
}

/// The root of a Debian system that has nothing but its base.
pub(crate) struct System {
    dir: tempfile::TempDir,
}

impl System {
    /// Unpacks the [`base`] of this name.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let base = base(name)?;
        let dir = readable_directory();
        let mut tar = Command::new("tar");
        expect(
            tar.arg("-xf")
                .arg(base)
                .arg("-C")
                .arg(dir.path())
                .arg("--exclude=./dev/*"),
        );
        Some(Self { dir })
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Copies files into its `/tmp`.
    pub(crate) fn bring(&self, files: &[PathBuf]) {
        for file in files {
            let name = file.file_name().unwrap();
            fs::copy(file, self.root().join("tmp").join(name)).unwrap();
        }
    }

    /// Runs a script of sh in it, with mounts and processes of its own; returns the output.
    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> String {
        let inside = r#"mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" sh -euc "$1""#;
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            inside,
        ]);
        command.arg(self.root()).arg(script);
        command.env("PATH", PATH);
        expect(command.env("DEBIAN_FRONTEND", "noninteractive"))
    }

    /// Fails if anything of wireup is there.
    #[track_caller]
    pub(crate) fn expect_nothing_left(&self) {
        let left = self.run(
            "find / -xdev -name '*wireup*' -not -path '/tmp/*' -not -path '/proc/*' -not -path '/var/log/*'
             ! getent passwd wireup || echo account
             ! getent group wireup || echo group",
        );
        assert_eq!(left, "");
    }
}

/// Directories of its programs.
pub(crate) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Script in which an ordinary user launches ranks.
pub(crate) const USER_RUNS: &str = "
cd /tmp
setpriv --reuid 1234 --regid 1234 --clear-groups wireup run --oversubscribe -n 2 /bin/echo hello
";
