//! The unit in `packaging/systemd`, under systemd: agents that it restarts and stops, and starts again, lose no job.
//!
//! A host's service manager is systemd as the first process of a namespace of processes, with root's manager of the system.
//! It has a control group of its own, which it sees as the top, and no units but these.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::cluster::{ALICE, Cluster};
use crate::common::{Output as Stream, eventually, repository, skip};
use crate::restarted::{HOSTS, SEPARATED, TREE, survive_on};
use crate::users::of;

const UNIT: &str = "wireup-agent.service";

const SYSTEMD: &str = "/lib/systemd/systemd";

/// What the unit needs of a system: these do nothing.
const TARGETS: [&str; 4] = ["none", "sysinit", "basic", "shutdown"];

/// Begins a service manager: the name of its control group, and its program. Where each controller has a hierarchy of its own,
/// it gets a place for these of its own: it makes directories there, and then makes the file system read-only.
const BEGIN: &str = "top=/sys/fs/cgroup; [ ! -d $top/systemd ] || top=$top/systemd
group=$top/$1
mkdir $group && echo 0 >$group/cgroup.procs && cd $group || exit
exec unshare --mount --pid --cgroup --fork --kill-child sh -c 'mount -t proc proc /proc &&
{ [ $1 = /sys/fs/cgroup ] || { mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir $1; }; } && mount --no-canonicalize --bind . $1 && cd / &&
exec \"$2\" --system --unit=none.target --log-target=console' sh $top \"$2\"";

/// Gives it an order, as one of the processes that it has below it. A child that it has just forked has its name, too: the
/// oldest is the manager.
const TELL: &str = "exec nsenter --target $(pgrep --oldest --exact systemd) --mount --pid --cgroup systemctl \"$@\"";

/// How many processes its services have.
const COUNT: &str = "group=/sys/fs/cgroup/$1; [ -d $group ] || group=/sys/fs/cgroup/systemd/$1
find $group/system.slice -name cgroup.procs -exec cat {} + | wc -l";

/// Removes its control group when all that was there has ended.
const REMOVE: &str = "for top in /sys/fs/cgroup /sys/fs/cgroup/systemd; do
[ ! -d $top/$1 ] || find $top/$1 -depth -type d -exec rmdir {} +; done";

/// A host's service manager, with the agent's unit.
struct Manager<'a> {
    cluster: &'a Cluster,
    host: usize,
    group: String,
    process: Child,
    units: PathBuf,
    /// What was on the host before.
    files: Vec<PathBuf>,
}

impl<'a> Manager<'a> {
    /// In place of the agent that the cluster has started.
    fn start(cluster: &'a Cluster, host: usize) -> Self {
        cluster.excuse(host);
        cluster.agent(host).signal(rustix::process::Signal::TERM);
        assert!(cluster.agent_ended(host).success());
        let units = cluster.dir().join(format!("units{host}"));
        let settings = units.join(format!("{UNIT}.d"));
        fs::create_dir_all(&settings).unwrap();
        fs::copy(packaged(), units.join(UNIT)).unwrap();
        let command = format!(
            "[Unit]\nConditionPathExistsGlob=\n[Service]\nExecStart=\nExecStart={} agent --tls {} {}\nStandardError=append:{}\n",
            cluster.wireup().display(),
            cluster.certificates(host).display(),
            SEPARATED.join(" "),
            units.join("log").display(),
        );
        fs::write(settings.join("test.conf"), command).unwrap();
        for target in TARGETS {
            let file = units.join(format!("{target}.target"));
            fs::write(file, "[Unit]\nDefaultDependencies=no\n").unwrap();
        }
        let group = format!("wireup-test-{}-{host}", std::process::id());
        let files = cluster.host(host).files();
        let mut manager = cluster.host(host).command("sh");
        manager
            .args(["-c", BEGIN, "sh", &group, SYSTEMD])
            .envs(variables(&units));
        let log = File::create(units.join("manager")).unwrap();
        manager
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap());
        let process = manager.stderr(log).spawn().unwrap();
        let manager = Self {
            cluster,
            host,
            group,
            process,
            units,
            files,
        };
        eventually("the service manager serves", || {
            manager.tell(&["list-units"]).status.success().then_some(())
        });
        manager.order(&["start", UNIT]);
        manager
    }

    fn tell(&self, words: &[&str]) -> Output {
        let mut command = self.cluster.host(self.host).command("sh");
        command.args(["-c", TELL, "sh"]).args(words);
        command.stdin(Stdio::null()).output().unwrap()
    }

    #[track_caller]
    fn order(&self, words: &[&str]) -> String {
        let output = self.tell(words);
        let log = fs::read_to_string(self.units.join("log")).unwrap_or_default();
        assert!(output.status.success(), "{words:?}: {output:?}\n{log}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The process that it started, while the unit is active.
    fn main(&self) -> Option<u32> {
        let shown = self.order(&["show", "-P", "ActiveState", "-P", "MainPID", UNIT]);
        let mut lines = shown.lines();
        let pid = lines.find_map(|line| line.parse().ok());
        pid.filter(|_| shown.lines().any(|line| line == "active"))
    }

    /// Does that to the unit; another process stands for it then.
    #[track_caller]
    fn replace(&self, words: &[&str]) {
        let before = self.main().expect("it is active");
        self.order(words);
        eventually("another process", || {
            self.main().filter(|pid| *pid != before)
        });
    }

    /// All that it started ends; the host is clean.
    fn end(mut self) {
        self.order(&["stop", UNIT]);
        let host = self.cluster.host(self.host);
        eventually("all agents have ended", || {
            let mut count = host.command("sh");
            count.args(["-c", COUNT, "sh", &self.group]);
            (count.output().unwrap().stdout == b"0\n").then_some(())
        });
        // Nothing answers: it is gone.
        self.tell(&["--force", "exit"]);
        self.process.wait().unwrap();
        let removed = host
            .command("sh")
            .args(["-c", REMOVE, "sh", &self.group])
            .output();
        assert!(removed.as_ref().unwrap().status.success(), "{removed:?}");
        // What is in a directory comes after it.
        for file in host
            .files()
            .iter()
            .rev()
            .filter(|file| !self.files.contains(file))
        {
            let path = host.path(file);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        }
        self.cluster.expect_clean(self.host);
    }
}

/// Of a service manager. It takes itself for that of a container, and leaves the machine's settings alone.
fn variables(units: &Path) -> [(&'static str, &OsStr); 2] {
    [
        ("container", OsStr::new("lab")),
        ("SYSTEMD_UNIT_PATH", units.as_os_str()),
    ]
}

fn packaged() -> PathBuf {
    repository().join("packaging/systemd").join(UNIT)
}

fn is_there() -> bool {
    let there = Path::new(SYSTEMD).exists();
    if !there {
        skip("runs the agent as a service: needs systemd");
    }
    there
}

#[test]
fn systemd_restarts_stops_and_revives_agents_and_no_job_is_lost() {
    if !is_there() {
        return;
    }
    let Some(cluster) = Cluster::builder(HOSTS).options(&SEPARATED).start() else {
        return;
    };
    let managers: Vec<_> = (0..HOSTS)
        .map(|host| Manager::start(&cluster, host))
        .collect();
    let killed = ["kill", "--kill-who=main", "--signal=KILL", UNIT];
    survive_on(&cluster, |_, host| match host % 2 {
        0 => managers[host].replace(&["restart", UNIT]),
        _ => managers[host].replace(&killed),
    });
    // A job that goes on without the service.
    let script = "echo up; read line; echo $line";
    let run = of(ALICE, cluster.run(0, TREE)).more(["--stdin", "all", "sh", "-c", script]);
    let mut running = run.stdin_held().start();
    running.wait_for_many(Stream::Stdout, "up", HOSTS);
    managers[1].order(&["stop", UNIT]);
    running.stdin().write_all(b"on\n").unwrap();
    let outcome = running.finish().expect_quiet_success();
    assert_eq!(outcome.out().matches("on\n").count(), HOSTS);
    for manager in managers {
        manager.end();
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    if !is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(packaged()).unwrap();
    let installed = env!("CARGO_BIN_EXE_wireup");
    let file = dir.path().join(UNIT);
    fs::write(&file, unit.replace("/usr/bin/wireup", installed)).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let output = verify
        .args(["verify", "--man=no"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}
