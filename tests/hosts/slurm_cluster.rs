//! Slurm on the hosts of a lab: a controller on the first, a node on each. No agent of wireup runs there.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wireup_lab::{Host, Lab};

use crate::batch_nodes::{GROUPS, Groups, Nodes};
use crate::cluster::{ALICE, Site};
use crate::common::{DEADLINE, Run, Sandbox, eventually, repository, shared_library, skip};

/// Services that run on the hosts as long as these exist.
const SERVICES: [&str; 6] = [
    "munged",
    "slurmctld",
    "slurmscriptd",
    "slurmd",
    "mariadbd",
    "slurmdbd",
];

/// Directories of the services on each host.
const RUN: [&str; 4] = ["/run/munge", "/run/slurmctld", "/run/slurmd", "/run/mysql"];

/// Hosts with Slurm. Every run must leave them clean.
pub(crate) struct Slurm {
    nodes: Arc<Nodes>,
    sandbox: Arc<Sandbox>,
    wireup: PathBuf,
    conf: PathBuf,
}

/// Services of a cluster besides nodes that run jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum With {
    Nothing,
    /// A database of jobs and steps.
    Accounting,
    /// Nodes with the machine's CPUs, and control groups that keep a job within its CPUs and memory.
    Groups,
    /// Steps that get credentials of Slingshot ([`CREDENTIALS`]).
    Slingshot,
    /// Nodes with names that Slurm alone knows, c01 and so on.
    Addresses,
    /// The plugin by which `wireup serve` serves steps, for `srun --wireup`.
    Plugin,
}

/// Plugin that gives variables to the tasks of steps, and not to batch scripts, as Slurm's `switch/hpe_slingshot` does:
/// other services and devices on each node, and none on the third.
const CREDENTIALS: &str = "#!/bin/sh
case $SLURM_STEP_ID in '' | 429496729?) exit ;; esac
case $SLURMD_NODENAME in
node01) devices=cxi0,cxi1 services=21,22 ;;
node02) devices=cxi0 services=31 ;;
*) exit ;;
esac
echo export SLINGSHOT_VNIS=1034,1035
echo export SLINGSHOT_DEVICES=$devices
echo export SLINGSHOT_SVC_IDS=$services
echo export SLINGSHOT_TCS=0xa
";

/// The configuration of a cluster of `count` nodes, each with four CPUs. A job that is requeued starts when its credentials have
/// expired.
fn configuration(count: usize, dir: &Path, with: With) -> String {
    let prolog = format!("TaskProlog={}/credentials\n", dir.display());
    let plugins = format!("PlugStackConfig={}/{PLUGINS}\n", dir.display());
    let dir = dir.display();
    let (mut cpus, mut tracking, mut tasks, mut resources) = (4, "linuxproc", "none", "CR_CPU");
    // srun gets the credential of a step before the plugin starts agents.
    let expiry = if with == With::Plugin { 60 } else { 5 };
    let mut further = "";
    let mut nodes = format!("node[01-{count:02}]");
    match with {
        With::Nothing => {}
        With::Addresses => {
            nodes = format!("c[01-{count:02}] NodeHostname={nodes} NodeAddr={nodes}");
        }
        With::Accounting => {
            further = "AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=node01
JobAcctGatherType=jobacct_gather/linux
";
        }
        With::Slingshot => further = &prolog,
        With::Plugin => further = &plugins,
        With::Groups => {
            cpus = std::thread::available_parallelism().map_or(1, usize::from);
            (tracking, tasks, resources) = ("cgroup", "affinity,task/cgroup", "CR_CPU_Memory");
        }
    }
    format!(
        "ClusterName=lab
SlurmctldHost=node01
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire={expiry}
MpiDefault=none
ProctrackType=proctrack/{tracking}
TaskPlugin=task/{tasks}
SelectType=select/cons_tres
SelectTypeParameters={resources}
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
{further}NodeName={nodes} CPUs={cpus} RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"
    )
}

/// File with Slurm's plugins, and the one plugin.
const PLUGINS: &str = "plugstack.conf";
const PLUGIN: &str = "wireup.so";

/// Compiles the plugin; `None`, and the test is ignored, without Slurm's headers.
#[track_caller]
fn compiled_plugin(dir: &Path) -> Option<PathBuf> {
    if !Path::new("/usr/include/slurm/spank.h").exists() {
        skip("needs slurm/spank.h (libslurm-dev)");
        return None;
    }
    let source = repository().join("packaging/slurm/wireup.c");
    shared_library(dir, PLUGIN, &source, &[])
}

/// Settings with which slurmd confines jobs.
const CONFINED: &str = "CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=yes
ConstrainRAMSpace=yes
";

/// The database of jobs and steps, on the first host.
fn accounting(dir: &Path) -> String {
    format!(
        "AuthType=auth/munge
DbdHost=node01
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=lab
PidFile=/run/mysql/slurmdbd.pid
LogFile={}/slurmdbd.log
",
        dir.display()
    )
}

/// Starts the server of that database.
const DATABASE: &str = "mariadb-install-db --no-defaults --datadir=/run/mysql/data --skip-test-db --user=root \
    --auth-root-authentication-method=normal >/run/mysql/log 2>&1 || exit
mariadbd --no-defaults --datadir=/run/mysql/data --socket=/run/mysql/socket --pid-file=/run/mysql/pid \
    --skip-networking --user=root --innodb-buffer-pool-size=16M --innodb-log-file-size=8M </dev/null >>/run/mysql/log 2>&1 &
for i in $(seq 600); do [ -S /run/mysql/socket ] && exec slurmdbd; sleep 0.1; done
exit 1";

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_state();
        }
    }
}

impl Slurm {
    /// `count` nodes; `None`, and the test is ignored, when hosts are not possible here.
    #[track_caller]
    pub(crate) fn new(count: usize) -> Option<Self> {
        Self::with(count, With::Nothing)
    }

    /// Starts a cluster of this size with additional services.
    #[track_caller]
    pub(crate) fn with(count: usize, with: With) -> Option<Self> {
        let cpusets = Path::new(GROUPS).join("cpuset/cpuset.cpus");
        if with == With::Groups && !cpusets.exists() {
            skip("needs control groups of version 1");
            return None;
        }
        let Site {
            dir,
            builder,
            wireup,
        } = Site::new(count)?;
        let conf = dir.path().join("slurm.conf");
        if with == With::Plugin {
            let plugin = compiled_plugin(dir.path())?;
            let line = format!(
                "required {} wireup={}\n",
                plugin.display(),
                wireup.display()
            );
            fs::write(dir.path().join(PLUGINS), line).unwrap();
        }
        fs::write(&conf, configuration(count, dir.path(), with)).unwrap();
        match with {
            With::Nothing | With::Addresses | With::Plugin => {}
            With::Slingshot => {
                let script = dir.path().join("credentials");
                fs::write(&script, CREDENTIALS).unwrap();
                fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
            }
            With::Accounting => {
                // Slurm demands that others cannot read it.
                let conf = dir.path().join("slurmdbd.conf");
                fs::write(&conf, accounting(dir.path())).unwrap();
                fs::set_permissions(&conf, fs::Permissions::from_mode(0o600)).unwrap();
            }
            With::Groups => fs::write(dir.path().join("cgroup.conf"), CONFINED).unwrap(),
        }
        // As long as munged demands, and readable for it alone.
        let key = dir.path().join("munge.key");
        let random = fs::read("/proc/sys/kernel/random/uuid").unwrap();
        fs::write(&key, random).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let nodes = Arc::new(Nodes {
            lab: builder.start().unwrap(),
            services: &SERVICES,
            files: &RUN,
            _groups: Groups::of_slurm(if with == With::Groups { count } else { 0 }),
        });
        let slurm = Self {
            sandbox: Arc::new(Sandbox::of_hosts(dir, Arc::clone(&nodes) as _)),
            nodes,
            wireup,
            conf,
        };
        slurm.start_services(&key, with);
        Some(slurm)
    }

    #[track_caller]
    fn start_services(&self, key: &Path, with: With) {
        let key = format!("--key-file={}", key.display());
        for (index, host) in self.lab().hosts().iter().enumerate() {
            let call = |words: &[&str]| {
                let mut command = host.command(words[0]);
                command.args(&words[1..]).env("SLURM_CONF", &self.conf);
                command.env("MYSQL_UNIX_PORT", "/run/mysql/socket");
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
            if index == 0 && with == With::Accounting {
                call(&["sh", "-c", DATABASE]);
                let add = ["sacctmgr", "-i", "add", "cluster", "lab"];
                eventually("the database has the cluster", || {
                    self.ask(&add).contains("lab").then_some(())
                });
            }
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

    /// Returns the output of a command of Slurm on the first host.
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let mut command = self.host(0).command(words[0]);
        command.args(&words[1..]).env("SLURM_CONF", &self.conf);
        let output = command.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// An ordinary user submits a script under a name. What it prints is in a file with that name.
    #[track_caller]
    pub(crate) fn submit(&self, name: &str, options: &str, script: &str) {
        let file = self.dir().join(format!("{name}.sh"));
        fs::write(&file, format!("#!/bin/sh\n{script}")).unwrap();
        let alice = ALICE.to_string();
        let mut command = self.host(0).command("setpriv");
        command
            .args(["--reuid", &alice, "--regid", &alice, "--clear-groups", "--"])
            .args(["sbatch", "--quiet", "--open-mode=append"])
            .args([format!("--job-name={name}"), format!("--output={name}")])
            .arg(format!("--chdir={}", self.dir().display()))
            .args(options.split(' '))
            .arg(file)
            .env("SLURM_CONF", &self.conf);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// The number of the job of that name.
    pub(crate) fn job(&self, name: &str) -> String {
        let name = format!("--name={name}");
        let id = self.ask(&["squeue", "--noheader", "--format=%A", &name]);
        id.trim().to_owned()
    }

    /// Returns the output of the submitted script of that name.
    pub(crate) fn printed(&self, name: &str) -> String {
        fs::read_to_string(self.dir().join(name)).unwrap_or_default()
    }

    /// The number of lines with exactly this text in what the submitted script of that name has printed.
    pub(crate) fn lines(&self, name: &str, line: &str) -> usize {
        self.printed(name).lines().filter(|it| *it == line).count()
    }

    /// Waits until the job of that name has ended for good, with this exit code.
    #[track_caller]
    pub(crate) fn expect_end(&self, name: &str, code: i32) {
        let of_name = format!("--name={name}");
        let look = ["squeue", "--noheader", "--states=all", "--format=%T %A"];
        let job = eventually("the job has ended", || {
            let shown = self.ask(&[&look[..], &[&of_name]].concat());
            let (state, job) = shown.trim().split_once(' ')?;
            let ended = ["COMPLETED", "FAILED"].contains(&state);
            ended.then(|| job.to_owned())
        });
        let shown = self.ask(&["scontrol", "--oneliner", "show", "job", &job]);
        let expected = format!(" ExitCode={code}:0 ");
        let printed = self.printed(name);
        assert!(shown.contains(&expected), "{shown}\n{printed}");
    }

    /// Replaces the arguments of the plugin ([`With::Plugin`]).
    pub(crate) fn set_plugin_arguments(&self, arguments: &str) {
        let plugin = self.conf.with_file_name(PLUGIN);
        let line = format!("required {} {arguments}\n", plugin.display());
        fs::write(self.conf.with_file_name(PLUGINS), line).unwrap();
    }

    /// Waits until nothing of a job is left on the hosts.
    #[track_caller]
    pub(crate) fn expect_clean(&self) {
        self.command(["true"]).run().expect(0);
    }

    /// The lab, for its faults.
    pub(crate) fn lab(&self) -> &Lab {
        &self.nodes.lab
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

    /// Prints the state of each job, the output of each script and the end of each log.
    fn print_state(&self) {
        eprintln!("{}", self.ask(&["scontrol", "--oneliner", "show", "jobs"]));
        let dirs = [self.dir(), self.conf.parent().unwrap()].map(fs::read_dir);
        for file in dirs.into_iter().flatten().flatten().flatten() {
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            let end = &lines[lines.len().saturating_sub(30)..];
            eprintln!("{}:\n{}", file.path().display(), end.join("\n"));
        }
    }

    /// A command of an ordinary user on the first host.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Run {
        self.command_of(ALICE, words)
    }

    /// Returns a command of this user on a host.
    pub(crate) fn command_of<A: AsRef<OsStr>>(
        &self,
        user: u32,
        words: impl IntoIterator<Item = A>,
    ) -> Run {
        let user = user.to_string();
        Run::command(words)
            .on_host(0, &self.sandbox)
            .under(["setpriv", "--reuid", &user, "--regid", &user])
            .under(["--clear-groups", "--"])
            .env("SLURM_CONF", &self.conf)
            .env("HOME", "/tmp")
            .clean_within(DEADLINE)
    }

    /// `wireup run` in an allocation that salloc makes with these options.
    pub(crate) fn salloc(&self, options: &str) -> Run {
        self.salloc_as("run", options)
    }

    /// Returns a run of that command of wireup below salloc.
    pub(crate) fn salloc_as(&self, command: &str, options: &str) -> Run {
        let words = ["salloc", "--quiet"].into_iter();
        self.command(words.chain(options.split(' ')))
            .more([self.wireup.as_os_str(), OsStr::new(command)])
    }

    /// `wireup run` in an allocation of this user's.
    pub(crate) fn salloc_of(&self, user: u32, options: &str) -> Run {
        let words = ["salloc", "--quiet"].into_iter();
        self.command_of(user, words.chain(options.split(' ')))
            .more([self.wireup.as_os_str(), OsStr::new("run")])
    }
}
