//! Slurm on the hosts of a lab: a controller on the first, a node on each. No agent of wireup runs there.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::{fs, io};

use wireup_lab::{Host, Lab};

use crate::cluster::{ALICE, Site};
use crate::common::{DEADLINE, Elsewhere, Run, Sandbox, eventually};

/// What runs on its hosts as long as they exist.
const SERVICES: [&str; 4] = ["munged", "slurmctld", "slurmscriptd", "slurmd"];

/// Where the services have their files, on each host.
const RUN: [&str; 3] = ["/run/munge", "/run/slurmctld", "/run/slurmd"];

/// Hosts with Slurm. Every run must leave them clean.
pub(crate) struct Slurm {
    nodes: Arc<Nodes>,
    sandbox: Arc<Sandbox>,
    wireup: PathBuf,
    conf: PathBuf,
}

#[derive(Debug)]
struct Nodes(Lab);

/// The configuration of a cluster of so many nodes, each with four CPUs.
fn configuration(count: usize, dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "ClusterName=lab
SlurmctldHost=node01
SlurmUser=root
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1
ReturnToService=2
SlurmctldPidFile=/run/slurmctld/pid
SlurmdPidFile=/run/slurmd/pid
StateSaveLocation=/run/slurmctld/state
SlurmdSpoolDir=/run/slurmd/spool
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=3
NodeName=node[01-{count:02}] CPUs=4 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"
    )
}

impl Slurm {
    /// So many nodes; `None`, and the test is ignored, when hosts are not possible here.
    #[track_caller]
    pub(crate) fn new(count: usize) -> Option<Self> {
        let Site {
            dir,
            builder,
            wireup,
        } = Site::new(count)?;
        let conf = dir.path().join("slurm.conf");
        fs::write(&conf, configuration(count, dir.path())).unwrap();
        // As long as munged demands, and readable for it alone.
        let key = dir.path().join("munge.key");
        let random = fs::read("/proc/sys/kernel/random/uuid").unwrap();
        fs::write(&key, random).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let nodes = Arc::new(Nodes(builder.start().unwrap()));
        let slurm = Self {
            sandbox: Arc::new(Sandbox::of_hosts(dir, Arc::clone(&nodes) as _)),
            nodes,
            wireup,
            conf,
        };
        slurm.start_services(&key);
        Some(slurm)
    }

    #[track_caller]
    fn start_services(&self, key: &Path) {
        let key = format!("--key-file={}", key.display());
        for (index, host) in self.lab().hosts().iter().enumerate() {
            let call = |words: &[&str]| {
                let mut command = host.command(words[0]);
                command.args(&words[1..]).env("SLURM_CONF", &self.conf);
                let output = command.output().unwrap();
                let err = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{words:?}: {err}");
            };
            let dirs = [&["mkdir", "-m", "755"][..], &RUN].concat();
            call(&dirs);
            call(&[
                "munged",
                "--force",
                "--pid-file=/run/munge/pid",
                "--log-file=/run/munge/log",
                "--seed-file=/run/munge/seed",
                &key,
            ]);
            if index == 0 {
                call(&["slurmctld"]);
            }
            call(&["slurmd"]);
        }
        let idle = "idle\n".repeat(self.lab().hosts().len());
        eventually("all nodes are idle", || {
            let states = self.ask(&["sinfo", "--noheader", "--Node", "--format=%T"]);
            (states == idle).then_some(())
        });
    }

    /// What a command of Slurm prints on the first host.
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let mut command = self.host(0).command(words[0]);
        command.args(&words[1..]).env("SLURM_CONF", &self.conf);
        let output = command.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The lab, for its faults.
    pub(crate) fn lab(&self) -> &Lab {
        &self.nodes.0
    }

    /// One host, from 0.
    pub(crate) fn host(&self, index: usize) -> &Host {
        self.lab().host(index)
    }

    /// A directory all hosts see, in which commands start.
    pub(crate) fn dir(&self) -> &Path {
        self.sandbox.work()
    }

    /// `wireup` as it is installed on the hosts.
    pub(crate) fn wireup(&self) -> &Path {
        &self.wireup
    }

    /// A command of an ordinary user on the first host.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Run {
        let alice = ALICE.to_string();
        Run::command(words)
            .on_host(0, &self.sandbox)
            .under(["setpriv", "--reuid", &alice, "--regid", &alice])
            .under(["--clear-groups", "--"])
            .env("SLURM_CONF", &self.conf)
            .env("HOME", "/tmp")
            .clean_within(DEADLINE)
    }

    /// `wireup run` in an allocation that salloc makes with these options.
    pub(crate) fn salloc(&self, options: &str) -> Run {
        let words = ["salloc", "--quiet"].into_iter();
        self.command(words.chain(options.split(' ')))
            .more([self.wireup.as_os_str(), OsStr::new("run")])
    }
}

impl Nodes {
    fn left_on(&self, host: &Host) -> Vec<String> {
        let name = host.name();
        if host.has_crashed() {
            return Vec::new();
        }
        let processes = host.processes().into_iter();
        let processes = processes.filter(|process| !SERVICES.contains(&&*process.name));
        let known = |path: &PathBuf| RUN.iter().any(|dir| path.starts_with(dir));
        let files = host.files().into_iter().filter(|path| !known(path));
        let processes = processes.map(|process| format!("{name}: process {process}"));
        let files = files.map(|file| format!("{name}: file {}", file.display()));
        processes.chain(files).collect()
    }
}

impl Elsewhere for Nodes {
    fn start(&self, host: usize, command: &mut Command, dir: &Path) -> io::Result<Child> {
        self.0.host(host).start(command, dir)
    }

    fn left(&self) -> Vec<String> {
        let hosts = self.0.hosts().iter();
        hosts.flat_map(|host| self.left_on(host)).collect()
    }

    fn excuses(&self, _: i32) -> bool {
        false
    }
}
