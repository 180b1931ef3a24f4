//! One launch, the fault, and what became of it.

use std::fmt;
use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::process::Signal;
use wireup_lab::Process;

use super::scenario::{Fault, HOSTS, Job, Moment, Scenario, Target};
use crate::cluster::{ALICE, Cluster, GROUP, is_helper};
use crate::common::{Mpi, mpi, pmix, program};

/// Longest time from a fault, or from the signal that ends what may go on, to the end of the launcher.
const LIMIT: Duration = Duration::from_secs(60);

/// Longest time until nothing is left.
const CLEAN: Duration = Duration::from_secs(60);

/// Time for which a launch that may continue is watched before it is ended.
const WATCH: Duration = Duration::from_millis(1500);

/// Longest time for a launch to come to its moment.
const UP: Duration = Duration::from_secs(60);

/// Paths of the programs that are launched.
#[derive(Debug)]
pub(super) struct Programs {
    pmi: PathBuf,
    pmix: PathBuf,
    mpich: Mpi,
    openmpi: Mpi,
}

impl Programs {
    /// All of them, or `None`, and the test is ignored.
    pub(super) fn find() -> Option<Self> {
        Some(Self {
            pmi: program("pmi_steady")?,
            pmix: pmix("pmix5")?.dir.join("pmix_steady"),
            mpich: mpi("mpich5")?.with_dynamic_processes(),
            openmpi: mpi("openmpi5")?.with_dynamic_processes(),
        })
    }
}

/// Run of a scenario with its observations.
#[derive(Debug)]
pub(super) struct Trial {
    /// Whether there was something to do it to.
    hit: bool,
    /// Exit code of the launcher as a shell shows it.
    code: Option<i32>,
    /// From the fault to the end of the launcher.
    took: Duration,
    /// Errors found so far.
    wrong: Vec<String>,
    out: String,
    err: String,
}

/// A launch that goes on.
struct Launch<'a> {
    cluster: &'a Cluster,
    scenario: Scenario,
    child: Child,
    stdin: Option<ChildStdin>,
    files: [PathBuf; 2],
    /// Shells end when it is there.
    end: PathBuf,
}

/// Looks again and again, up to a limit.
fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if start.elapsed() >= limit {
            return None;
        }
        pause(Duration::from_millis(5));
    }
}

/// Between two looks, or the random time in a scenario.
fn pause(time: Duration) {
    let time = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    let _ = rustix::event::poll(&mut [], Some(&time));
}

/// A number of its own for each launch's files.
fn number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<'a> Launch<'a> {
    fn start(cluster: &'a Cluster, programs: &Programs, scenario: Scenario) -> Self {
        let number = number();
        let file = |what: &str| cluster.dir().join(format!("{what}-{number}"));
        let files = [file("out"), file("err")];
        let end = file("end");
        let per_host = scenario.ranks() / HOSTS;
        let hosts: Vec<String> = (1..=HOSTS)
            .map(|i| format!("node{i:02}:{per_host}"))
            .collect();
        let mut command = cluster.host(0).command(cluster.wireup());
        command.args([
            "run",
            "--oversubscribe",
            "-n",
            &scenario.ranks().to_string(),
        ]);
        if !scenario.alone {
            command.args(["--hosts", &hosts.join(",")]);
        }
        command
            .env("WIREUP_SITE_CONFIG", "")
            .env("XDG_CONFIG_HOME", cluster.dir());
        if let Moment::Fence(_) = scenario.moment {
            let last = scenario.ranks() - 1;
            let late = format!(
                "[ $WIREUP_RANK = {last} ] && {{ echo late; exec sleep 1000; }}; exec \"$@\""
            );
            command.args(["sh", "-c", &late, "sh"]);
        }
        let mut mpi = |mpi: &Mpi, name: &str| {
            command.arg(mpi.program(name));
            command.envs(mpi.env.iter().map(|(name, value)| (name, value)));
        };
        match scenario.job {
            Job::Mpich => mpi(&programs.mpich, "mpi_steady"),
            Job::OpenMpi => mpi(&programs.openmpi, "mpi_steady"),
            Job::MpichSpawns => mpi(&programs.mpich, "spawn"),
            Job::OpenMpiSpawns => mpi(&programs.openmpi, "spawn"),
            Job::Pmi => drop(command.arg(cluster.copy(&programs.pmi))),
            Job::Pmix => drop(command.arg(cluster.copy(&programs.pmix))),
            Job::Shell => {
                let script = "echo sh_steady rank=$WIREUP_RANK round=1; until [ -e \"$0\" ]; \
                              do sleep 0.05; done; echo sh_steady rank=$WIREUP_RANK round=2";
                command.args(["sh", "-c", script]).arg(&end);
            }
        }
        if scenario.spawns() {
            command.args(["times=100000", "quiet=1"]);
        }
        if scenario.ordinary {
            command.user(ALICE, ALICE, &[GROUP]).env("HOME", "/tmp");
        }
        command.stdin(Stdio::piped());
        command.stdout(File::create(&files[0]).unwrap());
        command.stderr(File::create(&files[1]).unwrap());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        Self {
            cluster,
            scenario,
            child,
            stdin,
            files,
            end,
        }
    }

    fn out(&self) -> String {
        fs::read_to_string(&self.files[0]).unwrap_or_default()
    }

    fn err(&self) -> String {
        fs::read_to_string(&self.files[1]).unwrap_or_default()
    }

    fn code(&mut self) -> Option<i32> {
        let status = self.child.try_wait().unwrap()?;
        status
            .code()
            .or_else(|| status.signal().map(|signal| 128 + signal))
    }

    /// Comes to the moment.
    ///
    /// # Errors
    /// When the launch does not, in words.
    fn come_to_moment(&mut self) -> Result<(), String> {
        let ranks = self.scenario.ranks();
        let all_met = |launch: &Self| match launch.scenario.spawns() {
            true => launch.spawned(),
            false => launch.out().matches("_steady rank=").count() >= ranks,
        };
        let is_there = |launch: &mut Self| match launch.scenario.moment {
            Moment::Starting(_) => true,
            Moment::Fence(_) => launch.out().contains("late"),
            Moment::Running(_) | Moment::Ending(_) => all_met(launch),
        };
        let came = within(UP, || {
            let over = self.code().is_some();
            if is_there(self) {
                return Some(true);
            }
            over.then_some(false)
        });
        if came != Some(true) {
            return Err(format!("it did not come to its moment: {came:?}"));
        }
        let (Moment::Starting(after)
        | Moment::Fence(after)
        | Moment::Running(after)
        | Moment::Ending(after)) = self.scenario.moment;
        if let Moment::Ending(_) = self.scenario.moment {
            self.tell_to_end();
        }
        pause(Duration::from_millis(after));
        Ok(())
    }

    /// Whether ranks have begun to spawn: a step has more children than ranks of the first job.
    fn spawned(&self) -> bool {
        let own = self.scenario.ranks() / if self.scenario.alone { 1 } else { HOSTS };
        (0..HOSTS).any(|host| self.all(Target::Rank, host).len() > own)
    }

    fn tell_to_end(&mut self) {
        drop(self.stdin.take());
        fs::write(&self.end, "").unwrap();
    }

    /// The processes of the launch that this may mean.
    fn all(&self, target: Target, host: usize) -> Vec<Process> {
        let launcher = self.child.id() as i32;
        let all = self.cluster.host(host).processes();
        let leads = |p: &Process| match self.scenario.alone {
            true => p.pid == launcher,
            false => is_step(p),
        };
        let leaders: Vec<i32> = all.iter().filter(|p| leads(p)).map(|p| p.pid).collect();
        let is = |process: &Process| {
            let led = leaders.contains(&process.parent) && process.state != 'Z';
            match target {
                Target::Launcher => process.pid == launcher,
                Target::Guard => led && process.name == "wireup-guard",
                Target::Agent => false,
                Target::Helper => is_helper(process),
                Target::Step => is_step(process),
                Target::StepGuard => led && process.name == "wireup-guard",
                Target::Sidecar => led && process.name == "wireup-pmix-hos",
                Target::Rank => led && !process.name.starts_with("wireup"),
            }
        };
        all.into_iter().filter(is).collect()
    }

    /// Does it. False when there is nothing to do it to.
    fn strike(&mut self) -> bool {
        let Scenario { fault, host, .. } = self.scenario;
        match fault {
            Fault::Cable => {
                let lab = self.cluster.lab();
                lab.link_down(lab.host(host)).unwrap();
                return true;
            }
            Fault::Freeze => {
                self.cluster.host(host).pause().unwrap();
                return true;
            }
            _ => {}
        }
        // All are found before the first is hit: the others may end of that.
        let signals = self.scenario.signals();
        let found = within(Duration::from_secs(3), || {
            let over = self.code().is_some();
            let find = |&(target, signal): &(Target, Signal)| match target {
                Target::Agent => Some((None, signal)),
                _ => Some((Some(self.all(target, host).into_iter().next()?), signal)),
            };
            let all: Option<Vec<_>> = signals.iter().map(find).collect();
            all.map(Some).or_else(|| over.then_some(None))
        });
        let Some(Some(found)) = found else {
            return false;
        };
        // The agent last, whose end is waited for.
        for (process, signal) in found.iter().rev() {
            match process {
                Some(process) => process.signal(*signal),
                None if *signal == Signal::KILL => self.cluster.kill_agent(host),
                None => self.cluster.agent(host).signal(*signal),
            }
        }
        true
    }

    /// Undoes what would disturb the next launch.
    fn repair(&self) {
        let Scenario { fault, host, .. } = self.scenario;
        let lab = self.cluster.lab();
        match fault {
            Fault::Cable => {
                lab.link_up(lab.host(host)).unwrap();
                // A host that was not found stays so for a moment.
                let others = (0..HOSTS).filter(|other| *other != host);
                for address in others.map(|other| (lab.host(other).ipv4(), 7437)) {
                    let connect = || TcpStream::connect(address).ok();
                    within(CLEAN, || lab.host(host).on_network(connect).unwrap());
                }
            }
            Fault::Freeze => lab.host(host).resume().unwrap(),
            // It came too late where the launch was over before.
            Fault::Kill(Target::Agent) | Fault::KillBoth(Target::Agent, _)
                if !self.cluster.has_agent(host) =>
            {
                self.cluster.start_agent(host);
            }
            Fault::Stop(Target::Agent) => {
                self.cluster.kill_agent(host);
                self.cluster.start_agent(host);
            }
            _ => {}
        }
    }

    /// A helper that was stopped goes on: the next launch had to do without it.
    fn free_helper(&self) {
        if self.scenario.fault == Fault::Stop(Target::Helper) {
            for helper in self.all(Target::Helper, self.scenario.host) {
                helper.signal(Signal::CONT);
            }
        }
    }

    fn signal(&self, signal: Signal) {
        for launcher in self.all(Target::Launcher, 0) {
            launcher.signal(signal);
        }
    }

    /// Whether the ranks have printed all lines of a successful run.
    fn is_complete(&self) -> bool {
        let out = self.out();
        let rounds = |rank: usize| {
            let prefix = format!("_steady rank={rank} round=");
            let lines = out.lines().filter(|line| line.contains(&prefix));
            lines.count()
        };
        let first = rounds(0);
        first > 0 && (1..self.scenario.ranks()).all(|rank| rounds(rank) == first)
    }
}

fn is_step(process: &Process) -> bool {
    process.name == "wireup-step" && process.state != 'Z'
}

impl Scenario {
    fn spawns(&self) -> bool {
        matches!(self.job, Job::MpichSpawns | Job::OpenMpiSpawns)
    }

    /// One on each host of real MPIs, which take more time.
    fn ranks(&self) -> usize {
        match self.job {
            Job::Shell | Job::Pmi | Job::Pmix => 2 * HOSTS,
            _ => HOSTS,
        }
    }
}

impl Trial {
    pub(super) fn run(cluster: &Cluster, programs: &Programs, scenario: Scenario) -> Self {
        let mut launch = Launch::start(cluster, programs, scenario);
        let mut wrong: Vec<String> = launch.come_to_moment().err().into_iter().collect();
        let hit = launch.strike();
        let struck = Instant::now();
        let mut ended = None;
        let mut ended_by_us = false;
        if !hit || scenario.may_go_on() {
            ended = within(WATCH, || launch.code());
            if ended.is_none() {
                ended_by_us = true;
                let launcher_stopped = hit && scenario.fault == Fault::Stop(Target::Launcher);
                match launcher_stopped && scenario.finish_by_kill {
                    true => launch.signal(Signal::KILL),
                    false => launch.signal(Signal::TERM),
                }
                launch.signal(Signal::CONT);
            }
        }
        ended = ended.or_else(|| within(LIMIT, || launch.code()));
        let took = struck.elapsed();
        match ended {
            None => {
                let all = (0..HOSTS).flat_map(|host| cluster.host(host).processes());
                let all: Vec<String> = all.map(|process| process.to_string()).collect();
                wrong.push(format!(
                    "the launcher did not end; processes:\n{}",
                    all.join("\n")
                ));
            }
            Some(0) if !launch.is_complete() || launch.stdin.is_some() => {
                wrong.push("exit code 0, and the job was not seen to end".to_owned());
            }
            Some(code) if code != 0 && hit && !ended_by_us => {
                let err = launch.err();
                let mut own = err.lines().filter(|line| line.starts_with("wireup: "));
                let first = own.find(|line| !line.starts_with("wireup: warning"));
                let first = first.unwrap_or_default();
                let lacks = scenario.lacks(first).into_iter();
                wrong.extend(lacks.map(|word| format!("no {word:?} in the cause")));
            }
            Some(_) => {}
        }
        if ended.is_some() {
            launch.repair();
            wrong.extend(after(&launch));
        }
        let _ = launch.child.kill();
        Self {
            hit,
            code: ended,
            took,
            wrong,
            out: launch.out(),
            err: launch.err(),
        }
    }

    pub(super) fn is_good(&self) -> bool {
        self.wrong.is_empty()
    }
}

/// Describes leftovers on the hosts, including names of sockets without a file.
fn left(cluster: &Cluster) -> Vec<String> {
    let mut left = cluster.left();
    for host in cluster.lab().hosts() {
        let sockets = fs::read_to_string(format!("/proc/{}/net/unix", host.init_pid())).unwrap();
        let ours = sockets.lines().filter(|line| line.contains(" @wireup"));
        left.extend(ours.map(|line| format!("{}: socket {line}", host.name())));
    }
    left
}

/// Describes errors after the launcher's exit: leftovers, and failures of the next launch.
fn after(launch: &Launch) -> Vec<String> {
    let mut wrong = Vec::new();
    let cluster = launch.cluster;
    let clean = || within(CLEAN, || left(cluster).is_empty().then_some(())).is_some();
    let later = launch.scenario.collected_later();
    if !later && !clean() {
        wrong.push(format!("left behind:\n{}", left(cluster).join("\n")));
        return wrong;
    }
    let mut command = cluster.host(0).command(cluster.wireup());
    command.args(["run", "--oversubscribe", "-n", "3"]);
    if !launch.scenario.alone {
        command.args(["--hosts", "node01:1,node02:1,node03:1"]);
    }
    command.arg("true");
    command
        .env("WIREUP_SITE_CONFIG", "")
        .env("XDG_CONFIG_HOME", cluster.dir());
    if launch.scenario.ordinary {
        command.user(ALICE, ALICE, &[GROUP]).env("HOME", "/tmp");
    }
    let path = launch.files[1].with_extension("next");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&path).unwrap());
    let mut next = command.spawn().unwrap();
    let ended = within(LIMIT, || next.try_wait().unwrap());
    if !ended.is_some_and(|status| status.success()) {
        let output = fs::read_to_string(&path).unwrap_or_default();
        wrong.push(format!("the next launch: {ended:?}\n{output}"));
        let _ = next.kill();
        let _ = next.wait();
    }
    launch.free_helper();
    if later && !clean() {
        wrong.push(format!(
            "left behind, also after the next launch:\n{}",
            left(cluster).join("\n")
        ));
    }
    wrong
}

/// Returns the last lines of a text.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hit = if self.hit { "" } else { " (nothing to hit)" };
        write!(f, "  code {:?} after {:?}{hit}", self.code, self.took)?;
        if let Some(first) = self.err.lines().find(|line| line.starts_with("wireup: ")) {
            write!(f, "; {first}")?;
        }
        if !self.is_good() {
            let (wrong, err, out) = (self.wrong.join("\n"), tail(&self.err), tail(&self.out));
            write!(
                f,
                "\n  WRONG {wrong}\n--- stderr\n{err}\n--- stdout\n{out}\n"
            )?;
        }
        Ok(())
    }
}
