//! Some agents, each a process with a certificate, a port and a socket of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use wireup_agent::identity::Role;
use wireup_agent::pki;
use wireup_agent::pki::authority::Validity;

use wireup_core::link::agent_protocol::{LaunchTree, NodeAddress};

/// Never reached by a working test, also on a loaded machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Agents `n0`, `n1`, …; ended when this is dropped.
pub(crate) struct Cluster {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) agents: Vec<Agent>,
    /// Socket of their service manager.
    manager: Option<PathBuf>,
}

/// Agent of one node, with its process, addresses and log.
pub(crate) struct Agent {
    pub(crate) name: String,
    /// Address at which other agents reach this one.
    pub(crate) address: String,
    /// Path of the socket for launchers.
    pub(crate) socket: PathBuf,
    child: Child,
    log: Log,
}

/// Lines that an agent has logged.
#[derive(Clone, Default)]
struct Log(Arc<(Mutex<Vec<String>>, Condvar)>);

impl Cluster {
    /// `count` agents, with these options besides.
    pub(crate) fn start(count: usize, options: &[&str]) -> Self {
        Self::prepare(count, None, options)
    }

    /// `count` agents, started by the service manager with this socket.
    pub(crate) fn start_under(count: usize, manager: &Path) -> Self {
        Self::prepare(count, Some(manager), &[])
    }

    fn prepare(count: usize, manager: Option<&Path>, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        // The agent finds the program that runs steps in its own directory.
        let bin = root.join("bin");
        fs::create_dir(&bin).unwrap();
        let agent = Path::new(env!("CARGO_BIN_EXE_wireup-agent"));
        if fs::hard_link(agent, bin.join("wireup-agent")).is_err() {
            fs::copy(agent, bin.join("wireup-agent")).unwrap();
        }
        let step = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/step.py");
        fs::copy(step, bin.join("wireup")).unwrap();
        fs::set_permissions(bin.join("wireup"), fs::Permissions::from_mode(0o755)).unwrap();

        let pki = root.join("pki");
        let validity = Validity::days(SystemTime::now(), 30);
        pki::init(&pki, "test", validity).unwrap();
        let names: Vec<String> = (0..count).map(|n| format!("n{n}")).collect();
        pki::issue(&pki, &names, &[], Role::Node, validity).unwrap();
        let mut cluster = Self {
            directory,
            agents: Vec::new(),
            manager: manager.map(Path::to_owned),
        };
        let children: Vec<_> = names
            .iter()
            .map(|name| cluster.spawn(name, "127.0.0.1:0", options))
            .collect();
        for (name, child) in names.into_iter().zip(children) {
            cluster.agents.push(Agent::ready(name, child));
        }
        cluster
    }

    fn spawn(&self, name: &str, listen: &str, options: &[&str]) -> (Child, PathBuf) {
        let socket = self.directory.path().join(format!("{name}.sock"));
        let mut command = self.command(&self.certificate(name), &socket, listen);
        (command.args(options).spawn().unwrap(), socket)
    }

    fn command(&self, tls: &Path, socket: &Path, listen: &str) -> Command {
        let mut command = Command::new(self.directory.path().join("bin/wireup-agent"));
        command
            .args(["agent", "--listen", listen, "--config", "/dev/null"])
            .arg("--tls")
            .arg(tls)
            .arg("--socket")
            .arg(socket)
            .stderr(Stdio::piped());
        if let Some(manager) = &self.manager {
            command.env("NOTIFY_SOCKET", manager);
        }
        command
    }

    /// The directory of a certificate.
    pub(crate) fn certificate(&self, name: &str) -> PathBuf {
        self.directory.path().join("pki").join(name)
    }

    /// Issues another certificate of this authority.
    pub(crate) fn issue(&self, name: &str, role: Role) -> PathBuf {
        let validity = Validity::days(SystemTime::now(), 30);
        let pki = self.directory.path().join("pki");
        pki::issue(&pki, &[name.to_owned()], &[], role, validity).unwrap();
        pki.join(name)
    }

    /// Starts an agent as another user.
    pub(crate) fn start_as(&self, uid: u32, name: &str, tls: &Path, socket: &Path) -> Agent {
        let mut command = self.command(tls, socket, "127.0.0.1:0");
        command.uid(uid).gid(uid);
        let child = command.spawn().unwrap();
        Agent::ready(name.to_owned(), (child, socket.to_owned()))
    }

    /// Starts another agent `other`, which listens there.
    pub(crate) fn start_at(&self, listen: &str, options: &[&str]) -> Agent {
        let name = "other";
        if !self.certificate(name).exists() {
            self.issue(name, Role::Node);
        }
        Agent::ready(name.to_owned(), self.spawn(name, listen, options))
    }

    /// Kills an agent and starts it again where it was.
    pub(crate) fn restart(&mut self, index: usize) {
        let old = &mut self.agents[index];
        old.signal(Signal::KILL);
        old.child.wait().unwrap();
        let (name, address) = (old.name.clone(), old.address.clone());
        // Its own words, not those of the dead.
        self.agents[index] = Agent::ready(name.clone(), self.spawn(&name, &address, &[]));
    }

    /// The first `count` agents as nodes of a launch, in a tree of this width.
    pub(crate) fn spread(&self, count: usize, width: u32) -> LaunchTree {
        let members = self.agents[..count].iter().map(Agent::member).collect();
        LaunchTree {
            nodes: members,
            joined: 0,
            star_limit: 1,
            width,
        }
    }
}

impl Agent {
    fn ready(name: String, (mut child, socket): (Child, PathBuf)) -> Self {
        let log = Log::default();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let writer = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let (lines, changed) = &*writer.0;
                lines.lock().unwrap().push(line);
                changed.notify_all();
            }
        });
        let mut agent = Self {
            name,
            address: String::new(),
            socket,
            child,
            log,
        };
        let begun = format!("serves node {}: ", agent.name);
        let line = agent.logged(&[&begun]);
        let address = line.split(&begun).nth(1).unwrap();
        agent.address = address.split_whitespace().next().unwrap().to_owned();
        agent
    }

    pub(crate) fn member(&self) -> NodeAddress {
        NodeAddress {
            name: self.name.clone(),
            address: self.address.clone(),
        }
    }

    /// Waits for a line of the log with all these words.
    pub(crate) fn logged(&self, words: &[&str]) -> String {
        let (lines, changed) = &*self.log.0;
        let until = Instant::now() + DEADLINE;
        let mut lines = lines.lock().unwrap();
        loop {
            let found = lines
                .iter()
                .find(|line| words.iter().all(|word| line.contains(word)));
            if let Some(line) = found {
                return line.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "{words:?} not in the log of {}: {lines:#?}",
                self.name
            );
            lines = changed.wait_timeout(lines, left).unwrap().0;
        }
    }

    /// Returns the lines that the agent has logged so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.0.0.lock().unwrap().clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end and returns its exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < until, "{} does not end", self.name);
            std::thread::yield_now();
        }
    }

    /// Waits until it takes part in no launch.
    pub(crate) fn idle(&self) {
        let until = Instant::now() + DEADLINE;
        loop {
            let status = super::launcher::nodes(self, Vec::new());
            if status[0].launches == 0 {
                return;
            }
            assert!(
                Instant::now() < until,
                "{} is not idle: {:#?}",
                self.name,
                self.log()
            );
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // A test that failed has a message of its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of {}: {:#?}", self.name, self.log());
        }
    }
}
