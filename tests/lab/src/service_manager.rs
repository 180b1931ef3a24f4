//! systemd as the service manager of a host.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::{Command, Host};

/// The program of systemd, below the root of its files.
const SYSTEMD: &str = "lib/systemd/systemd";

/// Starts systemd below a root of files, as the first process of a namespace of processes. Its control group is a new one, which it
/// sees as the top. Where each controller has a hierarchy of its own, systemd makes directories for these at the top, and then
/// makes the file system read-only: it gets a file system for them.
const START: &str = "top=/sys/fs/cgroup; [ ! -d $top/systemd ] || top=$top/systemd
group=$top/$1
mkdir $group && echo 0 >$group/cgroup.procs && cd $group || exit
exec unshare --mount --pid --cgroup --fork --kill-child sh -c '
[ \"$2\" = / ] || for dir in \"\" /dev /sys; do mount --rbind \"${dir:-$2}\" \"$2$dir\" || exit; done
mount -t proc proc \"$2/proc\" &&
{ [ $1 = /sys/fs/cgroup ] || { mount -t tmpfs tmpfs \"$2/sys/fs/cgroup\" && mkdir \"$2$1\"; }; } &&
mount --no-canonicalize --bind . \"$2$1\" &&
exec chroot \"$2\" \"$3\" --system --unit=none.target --log-target=console' sh $top \"$2\" \"$3\"";

/// Runs a program among the processes of systemd. A child that systemd has just forked has its name, too: the oldest is the
/// manager.
const RUN: &str = "exec nsenter --target $(pgrep --oldest --exact systemd) --mount --pid --cgroup --root --wd \"$@\"";

/// Prints the number of processes of its services.
const COUNT: &str = "group=/sys/fs/cgroup/$1; [ -d $group ] || group=/sys/fs/cgroup/systemd/$1
find $group/system.slice -name cgroup.procs -exec cat {} + | wc -l";

/// Removes its control group, in which no process is left.
const REMOVE: &str = "for top in /sys/fs/cgroup /sys/fs/cgroup/systemd; do
[ ! -d $top/$1 ] || find $top/$1 -depth -type d -exec rmdir {} +; done";

/// Targets that units need. They have no content here.
const TARGETS: [&str; 4] = ["none", "sysinit", "basic", "shutdown"];

/// A service manager of a host; [`ServiceManager::end`] ends it.
#[derive(Debug)]
pub struct ServiceManager<'host> {
    host: &'host Host,
    group: String,
    process: Child,
}

impl<'host> ServiceManager<'host> {
    /// Starts systemd below `root`, with the units of one directory alone: `units`, a path below `root`. It logs into the file
    /// `manager` of this directory. Returns before it serves. The host must see `root`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn start(host: &'host Host, root: &Path, units: &Path) -> io::Result<Self> {
        let directory = root.join(units.strip_prefix("/").unwrap_or(units));
        for target in TARGETS {
            let file = directory.join(format!("{target}.target"));
            std::fs::write(file, "[Unit]\nDefaultDependencies=no\n")?;
        }
        let group = format!("wireup-test-{}-{}", std::process::id(), host.name());
        let log = File::create(directory.join("manager"))?;
        let mut start = host.command("sh");
        start.args(["-c", START, "sh", &group]);
        start.arg(root).arg(Path::new("/").join(SYSTEMD));
        // It takes itself for the manager of a container, and leaves the machine's settings alone.
        start
            .env("container", "lab")
            .env("SYSTEMD_UNIT_PATH", units);
        start.stdin(Stdio::null()).stdout(log.try_clone()?);
        let process = start.stderr(log).spawn()?;
        Ok(Self {
            host,
            group,
            process,
        })
    }

    /// Returns a command that runs among its processes, below its root of files.
    pub fn command(&self, words: &[&str]) -> Command<'host> {
        let mut command = self.host.command("sh");
        command.args(["-c", RUN, "sh"]).args(words);
        command.stdin(Stdio::null());
        command
    }

    /// Counts the processes of its services.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn count_processes(&self) -> io::Result<usize> {
        let mut count = self.host.command("sh");
        let output = count.args(["-c", COUNT, "sh", &self.group]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse().map_err(io::Error::other)
    }

    /// Ends it, and removes its control group.
    ///
    /// # Errors
    /// When processes of its services are left, or the system refuses.
    pub fn end(mut self) -> io::Result<()> {
        // There is no answer: it is gone.
        self.command(&["systemctl", "--force", "exit"]).output()?;
        self.process.wait()?;
        let mut remove = self.host.command("sh");
        let removed = remove.args(["-c", REMOVE, "sh", &self.group]).output()?;
        match removed.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(
                String::from_utf8_lossy(&removed.stderr).into_owned(),
            )),
        }
    }
}
