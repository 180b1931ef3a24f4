//! `wireup debug`: a gdb on each rank, side by side in tmux.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use super::launcher_host::LauncherHost;
use super::options::HostsListArgs;
use super::ps::{found, query_records};
use super::remote_launch::{option_words, switch_word};
use crate::control::query_server::job_query::{JobQueryKind, ProcessRecord};
use crate::jobs::LocalJobInfo;
use crate::jobs::query_launcher::Quiet;
use crate::plan::launch_names::own_host;
use crate::report::process_names::listed;
use wireup_core::failure::CommandError;
use wireup_core::job::rank_set::RankSet;
use wireup_core::printable;
use wireup_core::shell_words::quoted;
use wireup_sys::leftovers::JOB;
use wireup_sys::poll::pause;
use wireup_sys::{accounts, procfs};

const AFTER_HELP: &str = "\
Examples:
  wireup debug 3f                 gdb on every rank of the job whose name begins with 3f
  wireup debug 3f --ranks 0,3-5
  wireup debug -- -n 4 ./app      starts `wireup run -n 4 ./app`, with the ranks stopped before main

How:
  Each rank gets a pane of tmux with a gdb that has attached to it, on its host; `continue` lets it go on.
  Other hosts are reached through their agents, and need gdb and script(1). Without tmux, or where
  standard output is no terminal, the commands are printed with the host on which to run them. Root's gdb runs as
  the user of the job, by setpriv(1) and in a terminal of its own. Where the launcher is on another host, its agent
  executes the command there as you: on a host of the job by itself, elsewhere with --hosts.

Exit status:
  0    tmux has ended, or the commands were printed
  1    there is no such job, or none of these ranks runs
  125  wireup itself failed or was called wrongly";

/// Maximum number of ranks on a screen.
const PANES_MAX: usize = 16;

/// Time limit of a launch until its ranks are stopped.
const PATIENCE: Duration = Duration::from_secs(120);

/// Interval between checks of the launch.
const LOOK: Duration = Duration::from_millis(100);

/// Shell script that runs a line in a terminal of its own, and hangs that up when the pane is closed. script(1) blocks SIGHUP:
/// gdb would keep its rank stopped.
const IN_TERMINAL: &str =
    r#"exec 3<&0; script -qc "$0" /dev/null <&3 3<&- & trap "kill -KILL $!" HUP; wait"#;

/// Arguments of `wireup debug`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
#[command(group = clap::ArgGroup::new("what").args(["job", "launch"]))]
pub(super) struct DebugCommandArgs {
    /// The job [default: the only one]
    #[arg(value_name = "JOB")]
    job: Option<String>,

    /// These ranks only
    #[arg(long, value_name = "RANKS")]
    ranks: Option<RankSet>,

    /// Print the commands in place of running them
    #[arg(long, conflicts_with = "launch")]
    print: bool,

    #[command(flatten)]
    hosts: HostsListArgs,

    /// What `wireup run` is to run
    #[arg(last = true, value_name = "ARGUMENTS")]
    launch: Vec<OsString>,
}

/// Opens the debuggers.
///
/// # Errors
/// When the job does not exist or does not reply, or tmux is needed and cannot be run.
pub(super) fn execute(args: DebugCommandArgs) -> Result<u8, CommandError> {
    if args.launch.is_empty() {
        if let Some(host) = LauncherHost::find(args.hosts, args.job.as_deref())? {
            let mut options = Vec::new();
            let ranks = args.ranks.map(|ranks| ranks.to_string());
            options.extend(option_words("--ranks", ranks));
            options.extend(switch_word("--print", args.print));
            return Err(host.execute("debug", options, true));
        }
    } else if args.hosts.has_options() {
        let text = "--hosts, --hostfile and --agent of `wireup debug` are for a JOB; put those of the launch behind --";
        return Err(CommandError::request(text));
    }
    let tmux = std::io::stdout().is_terminal() && !args.print && has_tmux();
    if !args.launch.is_empty() {
        if !tmux {
            let text = "wireup debug -- needs a terminal and tmux; without them start `wireup run \
                        --stop-at exec`, and then `wireup debug JOB`";
            return Err(CommandError::request(text));
        }
        return launch(args.launch, args.ranks);
    }
    let job = found(args.job.as_deref())?;
    let records = running(query_records(
        &job,
        args.ranks,
        JobQueryKind::Table,
        &mut Quiet,
    )?);
    if records.is_empty() {
        return Err(CommandError::job("none of these ranks runs"));
    }
    let debuggers = Debuggers::new(job);
    if !tmux {
        return debuggers.print(&records);
    }
    let session = Session::start(&debuggers.panes(&records)?)?;
    session.attach()
}

/// Starts a launch whose ranks stop, and opens the debuggers once they have.
fn launch(words: Vec<OsString>, ranks: Option<RankSet>) -> Result<u8, CommandError> {
    let own = std::env::current_exe()
        .map_err(|error| CommandError::system("cannot find the path of wireup", error))?;
    let run = [own.into_os_string(), "run".into(), "--stop-at=exec".into()];
    let (session, pid) = Session::start_launch(run.into_iter().chain(words))?;
    let start = Instant::now();
    let pid_text = pid.to_string();
    let panes = loop {
        // The launch has no job before it is planned. If it is refused, its pane shows the reason.
        if let Ok(job) = found(Some(&pid_text))
            && let Ok(records) = query_records(&job, ranks.clone(), JobQueryKind::Table, &mut Quiet)
            && records.iter().all(|record| record.pid.is_some())
        {
            break Debuggers::new(job).panes(&running(records))?;
        }
        if procfs::process(pid).is_none_or(|process| process.has_ended()) {
            return session.attach();
        }
        if start.elapsed() > PATIENCE {
            return Err(CommandError::job("the ranks have not been started in time"));
        }
        pause(LOOK);
    };
    for pane in &panes {
        session.split(pane)?;
    }
    session.attach()
}

/// Debuggers of a job's ranks. The job may belong to another user, whose launcher may name any process and host. So gdb
/// runs as that user, and on this machine only on processes of the job.
struct Debuggers {
    job: LocalJobInfo,
    /// User of the job, if gdb must run as that user.
    user: Option<JobUser>,
    /// Name of this machine.
    hostname: String,
}

/// A user other than the caller.
struct JobUser {
    uid: u32,
    gid: u32,
    /// Whether the system knows the user's groups.
    has_groups: bool,
}

impl JobUser {
    fn from_job(job: &LocalJobInfo) -> Option<Self> {
        let uid = job.uid;
        if uid == rustix::process::geteuid().as_raw() {
            return None;
        }
        let account = accounts::by_uid(uid).ok().flatten();
        let leader = job.leaders().find_map(|leader| procfs::owner(leader.pid));
        let gid = account.as_ref().map(|account| account.gid);
        Some(Self {
            uid,
            gid: gid.or_else(|| leader.map(|(_, gid)| gid)).unwrap_or(uid),
            has_groups: account.is_some(),
        })
    }

    /// Command that runs the words behind it as this user.
    fn words(&self) -> [String; 5] {
        let groups = match self.has_groups {
            true => "--init-groups",
            false => "--clear-groups",
        };
        [
            "setpriv".to_owned(),
            format!("--reuid={}", self.uid),
            format!("--regid={}", self.gid),
            groups.to_owned(),
            "--reset-env".to_owned(),
        ]
    }
}

impl Debuggers {
    fn new(job: LocalJobInfo) -> Self {
        Self {
            user: JobUser::from_job(&job),
            hostname: own_host(),
            job,
        }
    }

    /// Whether a rank is on another host.
    fn is_elsewhere(&self, record: &ProcessRecord) -> bool {
        self.job.is_on_several_hosts() && record.host != self.hostname
    }

    /// Fails if a record names a process here that is not one of the job, or a host that is not a name.
    fn check(&self, record: &ProcessRecord) -> Result<(), CommandError> {
        let problem = if self.is_elsewhere(record) {
            let is_name = record.host.starts_with(|c: char| c.is_ascii_alphanumeric());
            (!is_name).then(|| format!("host {:?}, which is not a host name", record.host))
        } else {
            let pid = record.pid.unwrap_or(0);
            let is_own = self.job.has_process(pid);
            (!is_own).then(|| format!("pid {pid}, which is not a process of the job"))
        };
        match problem {
            None => Ok(()),
            Some(problem) => Err(CommandError::job(format!(
                "the launcher names for {} {problem}",
                listed(&[record.stack().name])
            ))),
        }
    }

    /// Words for each pane.
    fn panes(&self, records: &[ProcessRecord]) -> Result<Vec<Vec<OsString>>, CommandError> {
        if records.len() > PANES_MAX {
            return Err(CommandError::request(format!(
                "{} ranks do not fit on a screen; name at most {PANES_MAX} with --ranks",
                records.len()
            )));
        }
        records.iter().try_for_each(|record| self.check(record))?;
        let pane = |record: &ProcessRecord| match self.is_elsewhere(record) {
            true => self.remote_command(record),
            false => self
                .local_command(record)
                .into_iter()
                .map(OsString::from)
                .collect(),
        };
        Ok(records.iter().map(pane).collect())
    }

    /// Returns the command of the debugger on a rank's host, in a terminal there. This terminal is raw, so that the other one
    /// handles Ctrl-C and the like, and the other one gets its size.
    fn remote_command(&self, record: &ProcessRecord) -> Vec<OsString> {
        let pid = record.pid.unwrap_or(0);
        let check = match (&self.user, &self.job.name) {
            (Some(user), Some(name)) => format!(
                "[ \"$(stat -c %u /proc/{pid})\" = {} ] && grep -qzx {JOB}={name} /proc/{pid}/environ || \
                 {{ echo 'wireup: pid {pid} is not a process of the job' >&2; exit 1; }}; ",
                user.uid
            ),
            _ => String::new(),
        };
        let inside = format!(
            "{check}set -- $SIZE; stty rows $1 cols $2; exec {}",
            line(&self.gdb(record))
        );
        let line = format!("script -qec {} /dev/null", quoted(inside.as_ref()));
        let pane =
            "size=$(stty size); stty raw -echo; exec \"$0\" rsh \"$1\" \"export SIZE='$size'; $2\"";
        let own = std::env::current_exe().map_or_else(|_| "/proc/self/exe".into(), OsString::from);
        vec![
            "sh".into(),
            "-c".into(),
            pane.into(),
            own,
            record.host.clone().into(),
            line.into(),
        ]
    }

    /// Returns the command of the debugger on this machine. A debugger of another user gets a separate terminal, since programs
    /// can type into their terminal.
    fn local_command(&self, record: &ProcessRecord) -> Vec<String> {
        let gdb = self.gdb(record);
        match self.user {
            None => gdb,
            Some(_) => ["sh", "-c", IN_TERMINAL, &line(&gdb)]
                .map(str::to_owned)
                .to_vec(),
        }
    }

    /// The debugger's words for a process, as the user of the job.
    fn gdb(&self, record: &ProcessRecord) -> Vec<String> {
        let pid = record.pid.unwrap_or(0).to_string();
        // A stopped process would stop again from the signal that stopped it.
        let handle = "handle SIGSTOP nostop noprint nopass";
        let user = self.user.iter().flat_map(JobUser::words);
        let gdb = ["gdb", "-q", "-ex", handle, "-p", &pid].map(str::to_owned);
        user.chain(gdb).collect()
    }

    /// Prints the commands, each with the host on which to run it.
    fn print(&self, records: &[ProcessRecord]) -> Result<u8, CommandError> {
        records.iter().try_for_each(|record| self.check(record))?;
        let lines = records.iter().map(|record| {
            let name = listed(&[record.stack().name]);
            let command = line(&self.local_command(record));
            format!("{name} on {}: {command}", record.host)
        });
        super::show(&printable::lines(lines));
        Ok(0)
    }
}

/// Words as a line of a shell.
fn line(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word.as_ref())).collect();
    words.join(" ")
}

fn running(records: Vec<ProcessRecord>) -> Vec<ProcessRecord> {
    let running = |record: &ProcessRecord| record.state == "running";
    records.into_iter().filter(running).collect()
}

fn has_tmux() -> bool {
    Command::new("tmux")
        .arg("-V")
        .output()
        .is_ok_and(|done| done.status.success())
}

/// A session of tmux, or a window of the one that this terminal shows.
struct Session {
    target: String,
    inside: bool,
}

impl Session {
    fn new() -> Self {
        Self {
            target: format!("wireup-{}", std::process::id()),
            inside: std::env::var_os("TMUX").is_some_and(|value| !value.is_empty()),
        }
    }

    fn start(panes: &[Vec<OsString>]) -> Result<Self, CommandError> {
        let session = Self::new();
        let mut panes = panes.iter();
        if let Some(first) = panes.next() {
            session.open(first)?;
        }
        for pane in panes {
            session.split(pane)?;
        }
        Ok(session)
    }

    /// Starts a launch, whose pane stays when it has ended; the launcher's pid.
    fn start_launch(words: impl Iterator<Item = OsString>) -> Result<(Self, i32), CommandError> {
        let session = Self::new();
        let words: Vec<OsString> = words.collect();
        let printed = session.open(&words)?;
        let window = ["set-option", "-w", "-t", &session.target];
        session.tmux(&window, &["remain-on-exit", "on"])?;
        let pid = printed.trim().parse().map_err(|error| {
            CommandError::system("tmux has not named the launcher's process", error)
        })?;
        Ok((session, pid))
    }

    /// The first pane; the pid of its process.
    fn open<W: AsRef<std::ffi::OsStr>>(&self, words: &[W]) -> Result<String, CommandError> {
        let mut start = vec!["new-window"];
        if !self.inside {
            start = vec!["new-session", "-d", "-x", "200", "-y", "50"];
            start.extend(["-s", &self.target]);
        }
        start.extend(["-P", "-F", "#{pane_pid}", "-n", &self.target]);
        self.tmux(&start, words)
    }

    /// One more pane.
    fn split(&self, words: &[OsString]) -> Result<(), CommandError> {
        self.tmux(&["split-window", "-t", &self.target], words)?;
        self.tmux(&["select-layout", "-t", &self.target, "tiled"], &[""; 0])?;
        Ok(())
    }

    fn tmux<W: AsRef<std::ffi::OsStr>>(
        &self,
        order: &[&str],
        words: &[W],
    ) -> Result<String, CommandError> {
        let done = Command::new("tmux").args(order).args(words).output();
        let done = done.map_err(|error| CommandError::system("tmux cannot be run", error))?;
        if !done.status.success() {
            let message = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            return Err(CommandError::system("tmux", message));
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// Shows the session, in place of this process.
    fn attach(&self) -> Result<u8, CommandError> {
        if self.inside {
            return Ok(0);
        }
        let error = Command::new("tmux")
            .args(["attach-session", "-t", &self.target])
            .exec();
        Err(CommandError::system("tmux cannot be run", error))
    }
}
