//! The unit in `packaging/systemd`, under systemd: agents that it restarts and stops, and starts again, lose no job.
//!
//! A host's service manager is systemd as the first process of a namespace of processes, with root's manager of the system,
//! and no units but these.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use wireup_lab::ServiceManager;

use crate::cluster::{ALICE, Cluster};
use crate::common::{Output as Stream, eventually, repository, skip};
use crate::restarted::{HOSTS, SEPARATED, TREE, survive_on};
use crate::users::of;

const UNIT: &str = "wireup-agent.service";

const SYSTEMD: &str = "/lib/systemd/systemd";

/// A host's service manager, with the agent's unit.
struct Manager<'a> {
    cluster: &'a Cluster,
    host: usize,
    systemd: ServiceManager<'a>,
    units: PathBuf,
    /// Files of the host before the test.
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
        let files = cluster.host(host).files();
        let systemd = ServiceManager::start(cluster.host(host), Path::new("/"), &units).unwrap();
        let manager = Self {
            cluster,
            host,
            systemd,
            units,
            files,
        };
        eventually("the service manager serves", || {
            manager
                .systemctl(&["list-units"])
                .status
                .success()
                .then_some(())
        });
        manager.order(&["start", UNIT]);
        manager
    }

    fn systemctl(&self, words: &[&str]) -> Output {
        let words = [&["systemctl"], words].concat();
        self.systemd.command(&words).output().unwrap()
    }

    #[track_caller]
    fn order(&self, words: &[&str]) -> String {
        let output = self.systemctl(words);
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
    fn end(self) {
        self.order(&["stop", UNIT]);
        let host = self.cluster.host(self.host);
        eventually("all agents have ended", || {
            (self.systemd.count_processes().unwrap() == 0).then_some(())
        });
        self.systemd.end().unwrap();
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
fn systemd_accepts_unit_without_warnings() {
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
