//! Upgrades of the agent's package on hosts of a cluster, each with a service manager, while a job runs over them.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use wireup_lab::{Host, Lab, ServiceManager};
use wireup_test_support::{eventually, skip};

use super::debian::later_revision;
use super::system::{PATH, System, USER_RUNS};
use super::{Packages, USER, VERSION};

const UNIT: &str = "wireup-agent.service";

/// A host with files of its own, in which systemd runs.
struct Node<'a> {
    system: &'a System,
    manager: ServiceManager<'a>,
}

impl<'a> Node<'a> {
    fn start(host: &'a Host, system: &'a System) -> Self {
        let hosts = fs::read(host.path("/etc/hosts")).unwrap();
        fs::write(system.root().join("etc/hosts"), hosts).unwrap();
        fs::write(system.root().join("etc/hostname"), host.name()).unwrap();
        let units = Path::new("/units");
        let directory = system.root().join("units");
        fs::create_dir(&directory).unwrap();
        symlink(
            Path::new("/lib/systemd/system").join(UNIT),
            directory.join(UNIT),
        )
        .unwrap();
        let manager = ServiceManager::start(host, system.root(), units).unwrap();
        let node = Self { system, manager };
        eventually("the service manager serves", || {
            let mut list = node.manager.command(&["systemctl", "list-units"]);
            list.output().unwrap().status.success().then_some(())
        });
        node
    }

    /// Runs a script of sh on the host; returns the output.
    #[track_caller]
    fn run(&self, script: &str) -> String {
        let mut command = self.manager.command(&["sh", "-euc", script]);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command.env("PATH", PATH);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the main process of the agent's unit, if the unit is active.
    fn agent(&self) -> Option<u32> {
        let shown = self.run(&format!("systemctl show -P ActiveState -P MainPID {UNIT}"));
        let pid = shown.lines().find_map(|line| line.parse().ok());
        pid.filter(|_| shown.lines().any(|line| line == "active"))
    }
}

/// Issues certificates on the first of the hosts, and copies each host's to its place.
fn bring_certificates(nodes: &[Node<'_>]) {
    nodes[0].run(
        "wireup pki --dir /tmp/pki init && wireup pki --dir /tmp/pki issue --name 'node0[1-2]'",
    );
    for (index, node) in nodes.iter().enumerate() {
        let name = format!("tmp/pki/node0{}", index + 1);
        for entry in fs::read_dir(nodes[0].system.root().join(name)).unwrap() {
            let file = entry.unwrap();
            let place = node.system.root().join("etc/wireup/tls");
            fs::copy(file.path(), place.join(file.file_name())).unwrap();
        }
    }
}

/// Returns the words of a launch on both hosts by an ordinary user.
fn launch<'a>(program: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["setpriv", "--reuid", USER, "--regid", USER];
    words.extend(["--clear-groups", "wireup", "run", "--timeout", "5m"]);
    words.extend(["--hosts", "node01,node02", "--stdin", "all"]);
    words.extend(program);
    words
}

/// Upgrades the packages on two hosts: the agents restart, settings stay, a job goes on, and new launches start.
pub(super) fn check_upgrade(packages: &Packages) {
    if let Err(reason) = wireup_lab::available() {
        skip(&reason);
        return;
    }
    let (Some(first), Some(second)) = (System::new("debian12"), System::new("debian12")) else {
        return;
    };
    let debs = packages.debian_without_slurm();
    let later: Vec<PathBuf> = debs.iter().map(|path| later_revision(path)).collect();
    let systems = [first, second];
    let mut builder = Lab::builder(2);
    for system in &systems {
        system.bring(&debs);
        system.bring(&later);
        builder = builder.share(system.root());
    }
    let lab = builder.start().unwrap();
    let places = lab.hosts().iter().zip(&systems);
    let nodes: Vec<_> = places
        .map(|(host, system)| Node::start(host, system))
        .collect();
    for node in &nodes {
        node.run("dpkg --install /tmp/*-1_*.deb");
        node.run(&format!(
            "groupadd --gid {USER} alice && useradd --uid {USER} --gid {USER} --home / alice"
        ));
        assert_eq!(node.agent(), None, "an agent without certificate");
    }
    bring_certificates(&nodes);
    for node in &nodes {
        node.run(&format!("systemctl start {UNIT}"));
    }

    let mut job = nodes[0].manager.command(&launch(&["cat"]));
    job.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut job = job.spawn().unwrap();
    let mut input = job.stdin.take().unwrap();
    let mut output = BufReader::new(job.stdout.take().unwrap());
    let mut exchange = |text: &str| {
        input.write_all(text.as_bytes()).unwrap();
        for _ in &nodes {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            assert_eq!(line, text);
        }
    };
    exchange("before\n");
    for node in &nodes {
        let before = node.agent().expect("the agent is active");
        let settings = "log = \"debug\"";
        node.run(&format!("echo '{settings}' >/etc/wireup/agent.toml"));
        node.run("dpkg --force-confold --install /tmp/*-2_*.deb");
        eventually("another agent", || {
            node.agent().filter(|pid| *pid != before)
        });
        assert_eq!(
            node.run("cat /etc/wireup/agent.toml"),
            format!("{settings}\n")
        );
        let version = node.run("dpkg-query --show --showformat '${Version}' wireup-agent");
        assert_eq!(version, format!("{VERSION}-2"));
        let output = nodes[0].run(&launch(&["uname", "-n"]).join(" "));
        let mut hosts: Vec<&str> = output.lines().collect();
        hosts.sort_unstable();
        assert_eq!(hosts, ["node01", "node02"]);
        assert_eq!(node.run(USER_RUNS), "hello\nhello\n");
        exchange("after\n");
    }
    drop(input);
    assert!(job.wait().unwrap().success());

    for node in nodes {
        node.run("dpkg --purge wireup-agent wireup-dev wireup-impi wireup");
        eventually("all agents have ended", || {
            (node.manager.count_processes().unwrap() == 0).then_some(())
        });
        node.manager.end().unwrap();
        fs::remove_dir_all(node.system.root().join("units")).unwrap();
        node.system.expect_nothing_left();
    }
}
