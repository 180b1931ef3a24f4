//! A cluster to run on: the hosts of a lab, an agent on each, certificates for them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use wireup_lab::{Host, Lab, Process};

use crate::common::{Elsewhere, Mpi, Pmix, Run, Sandbox, eventually, mpis, repository, skip};

/// Agents make these and leave them to the next, root's and Alice's.
const OF_AGENTS: [&str; 2] = ["/run/wireup", "/tmp/wireup-54321"];

/// Container runtimes make these on each host and leave them to the next container: with all that is in them, or empty.
const OF_RUNTIMES: [&str; 3] = ["/run/containers", "/run/libpod", "/dev/shm/libpod_lock"];
const OF_RUNTIMES_EMPTY: [&str; 2] = ["/run/crun", "/run/mount"];

/// Files that users had staged with `--stage`, and the record by which they are removed, as long as there
/// is an agent.
const STORE: &str = "/tmp/wireup-staged.";
const RECORD: &str = "/dev/shm/wireup.";

/// All that is installed.
const PARTS: [&str; 6] = [
    "wireup",
    "wireup-agent",
    "wireup-impi",
    "libwireup_impi.so",
    "wireup-pmix-host",
    "libwireup-pmix-host.so",
];

/// Libraries that a build has if it has found the headers of their MPIs.
const OPTIONAL_PARTS: [&str; 2] = ["libwireup_impi_mpich.so", "libwireup_impi_openmpi.so"];

/// File in which the kernel names the boot of the machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Most that cleaning up may take once a launcher has ended.
const CLEAN_WITHIN: Duration = crate::common::DEADLINE;

/// Hosts with agents. When it is dropped the agents are stopped and every host must be clean.
pub(crate) struct Cluster {
    hosts: Arc<Hosts>,
    sandbox: Arc<Sandbox>,
}

/// The hosts, and what is allowed to be on them.
#[derive(Debug)]
struct Hosts {
    lab: Lab,
    dir: PathBuf,
    wireup: PathBuf,
    /// User of the agents; `None` for root.
    user: Option<u32>,
    /// Further options of theirs.
    options: &'static [&'static str],
    /// Hosts of the name server that launches of different hosts share, if one is configured.
    names: Option<String>,
    /// The agents' heartbeat, if it is not the usual one.
    heartbeat: Option<String>,
    /// Agents are called by their addresses.
    by_address: bool,
    /// Additional options of the agent of each host.
    own: Vec<Mutex<OwnOptions>>,
    agents: Vec<Mutex<Option<Agent>>>,
    /// Hosts that need not be clean for now.
    excused: Mutex<Vec<usize>>,
    /// Files of each host that a killed agent cannot remove.
    remains: Vec<Mutex<Vec<PathBuf>>>,
}

/// Options and variables of one agent alone.
#[derive(Clone, Default, Debug)]
struct OwnOptions {
    words: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

/// An agent that was started.
#[derive(Debug)]
struct Agent {
    child: Child,
    /// Files that the agent had created on its host when it was ready.
    files: Vec<PathBuf>,
}

/// Configuration of a cluster.
pub(crate) struct Builder {
    count: usize,
    user: Option<u32>,
    options: &'static [&'static str],
    names: Option<String>,
    heartbeat: Option<String>,
    name_servers: bool,
    by_address: bool,
    boots: bool,
    agents: bool,
}

/// Users with an account on all hosts: number of the user and of the group.
pub(crate) const ALICE: u32 = 54321;
pub(crate) const BOB: u32 = 54322;
/// User id of an attacker.
pub(crate) const MALLORY: u32 = 54323;
/// User of root's agents that give up root's rights, with an account on all hosts.
pub(crate) const AGENT: u32 = 54390;
/// The option for that.
pub(crate) const SEPARATED: [&str; 2] = ["--user", "agent"];
/// A further group of Alice's.
pub(crate) const GROUP: u32 = 54400;

impl Builder {
    /// Runs the agents as an ordinary user.
    pub(crate) fn agents_of(mut self, uid: u32) -> Self {
        self.user = Some(uid);
        self
    }

    /// Gives agents these options.
    pub(crate) fn options(mut self, options: &'static [&'static str]) -> Self {
        self.options = options;
        self
    }

    /// Tells the agents where launches of different hosts meet.
    pub(crate) fn names_at(mut self, list: &str) -> Self {
        self.names = Some(list.to_owned());
        self
    }

    /// Has each host ask port 53 of its own loopback address for names that no file has.
    pub(crate) fn with_name_servers(mut self) -> Self {
        self.name_servers = true;
        self
    }

    /// Has the agents called by their addresses.
    pub(crate) fn known_by_address(mut self) -> Self {
        self.by_address = true;
        self
    }

    /// Starts no agents: see [`Cluster::start_agent_with`].
    pub(crate) fn without_agents(mut self) -> Self {
        self.agents = false;
        self
    }

    /// Gives hosts a boot that [`Cluster::reset`] can change; they share the machine's otherwise.
    pub(crate) fn with_boots(mut self) -> Self {
        self.boots = true;
        self
    }

    /// Gives the agents this heartbeat, in seconds.
    pub(crate) fn heartbeat(mut self, seconds: &str) -> Self {
        self.heartbeat = Some(seconds.to_owned());
        self
    }

    /// Starts it; `None`, and the test is ignored, when hosts are not possible here.
    #[track_caller]
    pub(crate) fn start(self) -> Option<Cluster> {
        let mut site = Site::new(self.count)?;
        if self.name_servers {
            site.builder = site
                .builder
                .file("/etc/resolv.conf", "nameserver 127.0.0.1\n");
        }
        if self.boots {
            site.builder = site.builder.file(BOOT, "first boot\n");
        }
        let Site {
            dir,
            builder,
            wireup,
        } = site;
        let hosts = Arc::new(Hosts {
            lab: builder.start().unwrap(),
            dir: dir.path().to_owned(),
            wireup,
            user: self.user,
            options: self.options,
            names: self.names,
            heartbeat: self.heartbeat,
            by_address: self.by_address,
            own: (0..self.count).map(|_| Mutex::default()).collect(),
            agents: (0..self.count).map(|_| Mutex::default()).collect(),
            excused: Mutex::default(),
            remains: (0..self.count).map(|_| Mutex::default()).collect(),
        });
        let sandbox = Arc::new(Sandbox::of_hosts(dir, Arc::clone(&hosts) as _));
        let cluster = Cluster { hosts, sandbox };
        cluster.make_certificates();
        let agents = if self.agents { self.count } else { 0 };
        for host in 0..agents {
            cluster.spawn_agent(host);
        }
        for host in 0..agents {
            cluster.await_agent(host);
        }
        Some(cluster)
    }
}

/// Files of hosts, before there are any: a directory that all share, accounts, and all that is installed.
pub(crate) struct Site {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) builder: wireup_lab::Builder,
    /// `wireup` as it is installed on the hosts.
    pub(crate) wireup: PathBuf,
}

impl Site {
    /// For `count` hosts; `None`, and the test is ignored, when hosts are not possible here.
    #[track_caller]
    pub(crate) fn new(count: usize) -> Option<Self> {
        if let Err(why) = wireup_lab::available() {
            skip(&format!("runs on several hosts: {why}"));
            return None;
        }
        let dir = tempfile::Builder::new().prefix("wireup-hosts-").tempdir();
        let dir = dir.unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let users = [
            ("alice", ALICE),
            ("bob", BOB),
            ("mallory", MALLORY),
            ("agent", AGENT),
        ];
        let accounts = users.map(|(name, uid)| format!("{name}:x:{uid}:{uid}::/tmp:/bin/sh\n"));
        let groups = users.map(|(name, uid)| format!("{name}:x:{uid}:\n"));
        let groups = groups.concat() + &format!("project:x:{GROUP}:alice\n");
        let machines = |file| fs::read_to_string(file).unwrap();
        let mut builder = Lab::builder(count)
            .share(dir.path())
            .file("/etc/passwd", machines("/etc/passwd") + &accounts.concat())
            .file("/etc/group", machines("/etc/group") + &groups);
        // A repository and its surroundings may be below /tmp.
        let wireup = PathBuf::from(env!("CARGO_BIN_EXE_wireup"));
        for path in programs(&wireup) {
            builder = builder.share(path);
        }
        // What ordinary users run must be where they can read it.
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::set_permissions(&bin, fs::Permissions::from_mode(0o755)).unwrap();
        for part in PARTS {
            let from = wireup.with_file_name(part);
            assert!(from.exists(), "no {part}: run cargo build --workspace");
            link_or_copy(&from, &bin.join(part));
        }
        for part in OPTIONAL_PARTS {
            let from = wireup.with_file_name(part);
            if from.exists() {
                link_or_copy(&from, &bin.join(part));
            }
        }
        Some(Self {
            wireup: bin.join("wireup"),
            dir,
            builder,
        })
    }
}

/// Another name for a file, or a copy of it on another file system.
fn link_or_copy(from: &Path, to: &Path) {
    if fs::hard_link(from, to).is_err() {
        fs::copy(from, to).unwrap();
    }
}

/// Directories programs of these tests are in.
fn programs(wireup: &Path) -> Vec<PathBuf> {
    let parent = |path: &Path| path.parent().map(Path::to_owned);
    let mut all: Vec<PathBuf> = parent(wireup).into_iter().collect();
    all.extend(crate::common::built());
    all.extend(["tests/programs", "examples"].map(|dir| repository().join(dir)));
    for Mpi { dir, launcher, .. } in mpis() {
        all.push(dir);
        // `bin` and `lib` are in one directory.
        all.extend(launcher.parent().and_then(parent));
    }
    all
}

/// Gives a host a `/dev` of its own, in which this shell script has run; `dir` has its files.
#[track_caller]
pub(crate) fn change_dev(host: &Host, dir: &Path, script: &str) {
    let own = "set -e; d=$1; mkdir $d; mount -n -t tmpfs t $d; mkdir $d/up $d/work $d/new
        mount -n -t overlay -o lowerdir=/dev,upperdir=$d/up,workdir=$d/work dev $d/new
        for part in shm pts; do mount -n --rbind /dev/$part $d/new/$part; done";
    let script = format!("{own}\n(cd $d/new; {script})\nmount -n --rbind $d/new /dev");
    let mut command = host.command("sh");
    command.args(["-c", &script, "sh"]);
    let output = command
        .arg(dir.join(format!("dev-{}", host.index())))
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
}

impl Cluster {
    /// `count` hosts with root's agents; `None`, and the test is ignored, when that is not possible here.
    #[track_caller]
    pub(crate) fn new(count: usize) -> Option<Self> {
        Self::builder(count).start()
    }

    pub(crate) fn builder(count: usize) -> Builder {
        Builder {
            count,
            user: None,
            options: &[],
            names: None,
            heartbeat: None,
            name_servers: false,
            by_address: false,
            boots: false,
            agents: true,
        }
    }

    /// The lab, for its faults.
    pub(crate) fn lab(&self) -> &Lab {
        &self.hosts.lab
    }

    /// Has the PMIx servers run on the C library that this libpmix needs, from now on.
    pub(crate) fn serve_with(&self, pmix: &Pmix) {
        let host = self.hosts.wireup.with_file_name("wireup-pmix-host");
        let other = pmix.host(Path::new(env!("CARGO_BIN_EXE_wireup")));
        fs::remove_file(&host).unwrap();
        fs::copy(other.expect("a C library of its own"), &host).unwrap();
    }

    /// One host, from 0.
    pub(crate) fn host(&self, index: usize) -> &Host {
        self.lab().host(index)
    }

    /// Bytes that a host has received so far.
    pub(crate) fn received(&self, host: usize) -> u64 {
        let path = "/sys/class/net/eth0/statistics/rx_bytes";
        let output = self.host(host).command("cat").arg(path).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.trim().parse().unwrap()
    }

    /// A directory all hosts see.
    pub(crate) fn dir(&self) -> &Path {
        self.sandbox.work()
    }

    /// Gives a host a `/dev` of its own, in which this shell script has run.
    #[track_caller]
    pub(crate) fn change_dev(&self, host: usize, script: &str) {
        change_dev(self.host(host), self.dir(), script);
    }

    /// The names of the first hosts, as `--hosts` takes them.
    pub(crate) fn names(&self, count: usize) -> String {
        let hosts = &self.lab().hosts()[..count];
        let names: Vec<&str> = hosts.iter().map(Host::name).collect();
        names.join(",")
    }

    /// `wireup run` on that host, with these arguments.
    pub(crate) fn run<A: AsRef<OsStr>>(
        &self,
        host: usize,
        args: impl IntoIterator<Item = A>,
    ) -> Run {
        let args: Vec<_> = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
        let start = [self.hosts.wireup.as_os_str(), OsStr::new("run")].map(OsStr::to_owned);
        self.command(host, start.into_iter().chain(args))
    }

    /// A copy of a program, where ordinary users can read it.
    pub(crate) fn copy(&self, program: &Path) -> PathBuf {
        let to = self
            .hosts
            .dir
            .join("bin")
            .join(program.file_name().unwrap());
        if !to.exists() {
            link_or_copy(program, &to);
        }
        to
    }

    /// `wireup` as it is installed on the hosts.
    pub(crate) fn wireup(&self) -> &Path {
        &self.hosts.wireup
    }

    /// Any command on that host. It shares the cluster's surroundings, and nothing may be left of
    /// it on any host.
    pub(crate) fn command<A: AsRef<OsStr>>(
        &self,
        host: usize,
        words: impl IntoIterator<Item = A>,
    ) -> Run {
        Run::command(words)
            .on_host(host, &self.sandbox)
            .clean_within(CLEAN_WITHIN)
    }

    /// The agent of that host, if it runs.
    pub(crate) fn agent(&self, host: usize) -> Process {
        let found = self.hosts.agent_process(host);
        found.unwrap_or_else(|| panic!("no agent on {}", self.host(host).name()))
    }

    /// Returns the serving process of a host: the agent, or the one behind its front process.
    pub(crate) fn serving(&self, host: usize) -> Process {
        let agent = self.agent(host);
        let all = self.host(host).processes().into_iter();
        let mut behind = all.filter(|one| one.parent == agent.pid && is_behind_front(one));
        behind.next().unwrap_or(agent)
    }

    /// Lets a host that cannot clean up, being paused, be as it is until [`Cluster::expect_clean`].
    pub(crate) fn excuse(&self, host: usize) {
        self.hosts.excused.lock().unwrap().push(host);
    }

    /// Waits until that host is clean.
    #[track_caller]
    pub(crate) fn expect_clean(&self, host: usize) {
        self.hosts.excused.lock().unwrap().retain(|h| *h != host);
        let start = Instant::now();
        eventually("the host is clean", || {
            let left = self.hosts.left_on(host);
            assert!(start.elapsed() < CLEAN_WITHIN, "{left:#?}");
            left.is_empty().then_some(())
        });
    }

    /// The agent of that host is killed.
    #[track_caller]
    pub(crate) fn kill_agent(&self, host: usize) {
        self.agent(host).signal(Signal::KILL);
        let mut agent = self.hosts.lock(host).take();
        let agent = agent.as_mut().expect("it was started");
        agent.child.wait().unwrap();
        // The next one clears them away.
        *self.hosts.remains[host].lock().unwrap() = std::mem::take(&mut agent.files);
    }

    /// Ends all on a host as a reset does: no other host is notified, and its files in memory are gone. It has another boot then, and no
    /// agent. The others notice when its network works again.
    pub(crate) fn reset(&self, index: usize) {
        self.power_off(index);
        let host = self.host(index);
        // What is in a directory comes after it.
        for file in host.files().iter().rev() {
            let path = host.path(file);
            let removed = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
            removed.unwrap();
        }
        fs::write(host.path(BOOT), "second boot\n").unwrap();
    }

    /// Ends all processes of a host without notice to the others.
    pub(crate) fn power_off(&self, index: usize) {
        let host = self.host(index);
        self.lab().isolate(host).unwrap();
        host.kill_all().unwrap();
        self.agent_ended(index);
    }

    /// Describes leftovers on the hosts.
    pub(crate) fn left(&self) -> Vec<String> {
        self.hosts.left()
    }

    /// Ends the cluster as it is, whatever is on its hosts.
    pub(crate) fn discard(self) {
        for agent in &self.hosts.agents {
            let agent = agent.lock();
            let agent = agent
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .take();
            if let Some(mut agent) = agent {
                let _ = agent.child.kill();
                let _ = agent.child.wait();
            }
        }
    }

    /// Returns the log of the agent of that host.
    pub(crate) fn log(&self, host: usize) -> String {
        self.hosts.log(host)
    }

    /// Waits for the exit of an agent that was ordered to stop.
    #[track_caller]
    pub(crate) fn agent_ended(&self, host: usize) -> ExitStatus {
        let agent = self.hosts.lock(host).take();
        let mut child = agent.expect("it was started").child;
        child.wait().unwrap()
    }

    /// Whether an agent was started on a host and not killed.
    pub(crate) fn has_agent(&self, host: usize) -> bool {
        self.hosts.lock(host).is_some()
    }

    /// Starts an agent where there is none any more, and waits until it serves.
    #[track_caller]
    pub(crate) fn start_agent(&self, host: usize) {
        self.spawn_agent(host);
        self.await_agent(host);
    }

    /// Starts an agent with these options and variables, which its successors get too.
    #[track_caller]
    pub(crate) fn start_agent_with(
        &self,
        host: usize,
        words: &[&str],
        variables: &[(&'static str, &str)],
    ) {
        let variables = variables
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        *self.hosts.own[host].lock().unwrap() = OwnOptions {
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            variables: variables.collect(),
        };
        self.start_agent(host);
    }

    #[track_caller]
    fn make_certificates(&self) {
        let pki = self.hosts.dir.join("pki");
        fs::create_dir(&pki).unwrap();
        fs::set_permissions(&pki, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&pki, self.hosts.user, self.hosts.user).unwrap();
        let call = |args: &[&str]| {
            let mut command = Command::new(&self.hosts.wireup);
            if let Some(user) = self.hosts.user {
                command.uid(user).gid(user);
            }
            let output = command.arg("pki").arg("--dir").arg(&pki).args(args);
            let output = output.output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "wireup pki {args:?}: {err}");
        };
        call(&["init"]);
        let mut issue = vec!["issue"];
        let names: Vec<String> = (0..self.lab().hosts().len())
            .map(|host| self.node(host))
            .collect();
        for name in &names {
            issue.extend(["--name", name]);
        }
        call(&issue);
    }

    /// The directory with the certificate of a host's agent.
    pub(crate) fn certificates(&self, index: usize) -> PathBuf {
        self.hosts.dir.join("pki").join(self.node(index))
    }

    /// Returns the node name of the agent of a host.
    fn node(&self, index: usize) -> String {
        let host = self.host(index);
        match self.hosts.by_address {
            true => host.address().to_string(),
            false => host.name().to_owned(),
        }
    }

    /// An agent for that host, not started.
    pub(crate) fn agent_command(&self, index: usize) -> wireup_lab::Command<'_> {
        let host = self.host(index);
        let mut command = host.command(&self.hosts.wireup);
        command
            .args(["agent", "--tls"])
            .arg(self.certificates(index));
        command.args(self.hosts.options);
        if let Some(names) = &self.hosts.names {
            command.args(["--names", names]);
        }
        if let Some(heartbeat) = &self.hosts.heartbeat {
            command.args(["--heartbeat", heartbeat]);
        }
        if let Some(user) = self.hosts.user {
            command.user(user, user, &[]).env("HOME", "/tmp");
        }
        let OwnOptions { words, variables } = self.hosts.own[index].lock().unwrap().clone();
        command.args(words).envs(variables);
        command
    }

    #[track_caller]
    fn spawn_agent(&self, index: usize) {
        // Agents that have left their place to this one still write.
        let mut log = File::options();
        let log = log
            .append(true)
            .create(true)
            .open(self.hosts.log_path(index));
        let log = log.unwrap();
        log.set_len(0).unwrap();
        let mut command = self.agent_command(index);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap());
        let child = command.stderr(log).spawn().unwrap();
        let mut agent = self.hosts.lock(index);
        assert!(agent.is_none(), "one at a time");
        let files = Vec::new();
        *agent = Some(Agent { child, files });
    }

    #[track_caller]
    fn await_agent(&self, index: usize) {
        let host = self.host(index);
        eventually("the agent serves", || {
            let mut agent = self.hosts.lock(index);
            let agent = agent.as_mut().expect("it was started");
            let log = self.log(index);
            if let Some(status) = agent.child.try_wait().unwrap() {
                panic!("the agent ended: {status}\n{log}");
            }
            log.contains(" serves node ").then_some(())?;
            agent.files = host.files();
            Some(())
        });
    }
}

impl Hosts {
    fn lock(&self, host: usize) -> MutexGuard<'_, Option<Agent>> {
        // A failed test has nothing more to report here.
        let lock = self.agents[host].lock();
        lock.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn log_path(&self, host: usize) -> PathBuf {
        self.dir.join(format!("agent{host}.log"))
    }

    fn log(&self, host: usize) -> String {
        fs::read_to_string(self.log_path(host)).unwrap_or_default()
    }

    fn agent_process(&self, host: usize) -> Option<Process> {
        let agent = self.lock(host);
        let pid = agent.as_ref()?.child.id() as i32;
        drop(agent);
        let all = self.lab.host(host).processes();
        all.into_iter().find(|process| process.pid == pid)
    }

    /// Describes leftovers on a host that neither it nor its agent created.
    fn left_on(&self, index: usize) -> Vec<String> {
        let host = self.lab.host(index);
        if host.has_crashed() {
            return Vec::new();
        }
        let agent = self.lock(index);
        let remains = self.remains[index].lock().unwrap();
        let (pid, known) = match &*agent {
            Some(agent) => (agent.child.id() as i32, &agent.files[..]),
            None => (0, &remains[..]),
        };
        let files = host.files();
        let begins = |file: &PathBuf, with: &str| file.to_string_lossy().starts_with(with);
        // Records of launches are of no agent.
        let stores = agent.is_some() && files.iter().any(|file| begins(file, STORE));
        let all = host.processes();
        let behind = |process: &&Process| process.parent == pid && is_behind_front(process);
        let behind = all.iter().find(behind).map(|process| process.pid);
        let own = |of: i32| of == pid || Some(of) == behind;
        let helper = |process: &Process| own(process.parent) && is_helper(process);
        let processes = all.into_iter();
        let processes = processes.filter(|process| !own(process.pid) && !helper(process));
        let allowed = |file: &PathBuf| {
            let mut whole = OF_AGENTS.iter().chain(&OF_RUNTIMES_EMPTY);
            known.contains(file)
                || whole.any(|dir| file.as_path() == Path::new(dir))
                || OF_RUNTIMES.iter().any(|dir| file.starts_with(dir))
                || stores && (begins(file, STORE) || begins(file, RECORD))
        };
        let files = files.into_iter().filter(|file| !allowed(file));
        let processes = processes.map(|process| format!("{}: process {process}", host.name()));
        let files = files.map(|file| format!("{}: file {}", host.name(), file.display()));
        processes.chain(files).collect()
    }
}

/// Whether it is the agent behind the process that was started.
fn is_behind_front(process: &Process) -> bool {
    process.words.contains("behind-front")
}

/// Whether it is what an agent's steps are forked from, or what looks up accounts for that.
pub(crate) fn is_helper(process: &Process) -> bool {
    // Steps and their guards have the helper's command line, and names of their own.
    let helper = process.words.ends_with("wireup steps") && process.name == "wireup";
    helper || process.words.ends_with("wireup-agent accounts")
}

impl Elsewhere for Hosts {
    fn start(&self, host: usize, command: &mut Command, dir: &Path) -> io::Result<Child> {
        self.lab.host(host).start(command, dir)
    }

    fn left(&self) -> Vec<String> {
        let excused = self.excused.lock().unwrap();
        let hosts = (0..self.lab.hosts().len()).filter(|host| !excused.contains(host));
        hosts.flat_map(|host| self.left_on(host)).collect()
    }

    fn excuses(&self, pid: i32) -> bool {
        let excused = self.excused.lock().unwrap();
        let processes = excused.iter().map(|host| self.lab.host(*host).processes());
        processes.flatten().any(|process| process.pid == pid)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for host in 0..self.lab().hosts().len() {
                let log = self.log(host);
                if !log.is_empty() {
                    eprintln!("--- agent of {}\n{log}", self.host(host).name());
                }
            }
            return;
        }
        for (index, host) in self.lab().hosts().iter().enumerate() {
            let Some(mut agent) = self.hosts.lock(index).take() else {
                continue;
            };
            if host.has_crashed() {
                let _ = agent.child.wait();
                continue;
            }
            let _ = host.resume();
            let started = Instant::now();
            for process in host.processes() {
                if process.pid == agent.child.id() as i32 {
                    process.signal(Signal::TERM);
                }
            }
            let status = agent.child.wait().unwrap();
            let log = self.log(index);
            assert!(
                status.success(),
                "agent of {}: {status}\n{log}",
                host.name()
            );
            let time = started.elapsed();
            assert!(time < CLEAN_WITHIN, "its agent took {time:?} to end");
            // What served behind it may end after it.
            eventually("nothing is left", || {
                let left = self.hosts.left_on(index);
                let time = started.elapsed();
                assert!(time < CLEAN_WITHIN, "the agent left {left:#?}\n{log}");
                left.is_empty().then_some(())
            });
        }
    }
}
