//! `wireup top`: what the ranks of a job do and use, on all its hosts. Here are its command line, its tables and its plain
//! form; on a terminal `wireup-agent` shows the tables, which has the library for that.

pub mod view;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum as _};

use self::view::{RankRow, Sample, SortKey, SortOrder};
use crate::cli::launcher_host::LauncherHost;
use crate::cli::ps::{found, width};
use crate::cli::remote_launch::{option_words, switch_word};
use crate::cli::value_error::ValueError;
use crate::control::query_server::job_query::{JobQueryKind, ProcessRecord};
use crate::jobs::LocalJobInfo;
use crate::jobs::query_launcher::{LauncherQueryError, Quiet, query_launcher};
use wireup_core::duration::duration;
use wireup_core::failure::CommandError;
use wireup_core::text_table;
use wireup_sys::pidfd::ProcessHandle;

const AFTER_HELP: &str = "\
Examples:
  wireup top 3f                       the job whose name begins with 3f, refreshed on a terminal
  wireup top 3f --sort cpu
  wireup top 3f --hosts               a line for each host
  wireup top 3f | cat                 one table, of half a second
  wireup top 3f --interval 10 >log    a table every 10 s until the job ends

Keys:
  r n c m o f                            sort by rank, host name, processor, memory, output, fence; again: the other way round
  h                                      ranks or hosts
  arrows, Page Up, Page Down, Home, End  move
  q, Escape, Ctrl-C                      end

Columns:
  S is the state of the process as ps shows it. CPU% and OUT/s are of the time since the last table. TIME, CPU% and MEMORY are
  sums over a rank's process and all below it. OUT/s is what it prints, - where that does not pass through wireup. WAITS IN is
  the PMI fence that it waits in, - if none: waits inside MPI are not known, `wireup stacks` shows them; PMI the last that it did there. Hosts are queried only while this command runs.

Hosts:
  On a host of the job without its launcher, the agent of the launcher's host executes the command there as you. Elsewhere name
  that host, which `wireup ps --hosts LIST` shows: wireup run --pmi none --pty 0 -n 1 --hosts HOST wireup top 3f

Exit status:
  0    it was shown; the job may have ended meanwhile
  1    there is no such job, or it does not answer
  125  wireup itself failed or was called wrongly";

/// The refresh on a terminal.
const REFRESH: Duration = Duration::from_secs(2);

/// Time between the two samples of a single table.
const GLANCE: Duration = Duration::from_millis(500);

/// Maximum time from the end of a launcher's socket to that of the launcher.
const LAST_STEPS: Duration = Duration::from_secs(5);

/// Arguments of `wireup top`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct TopArgs {
    /// The job: the beginning of its name, or the pid of its launcher [default: the only one]
    #[arg(value_name = "JOB")]
    job: Option<String>,

    /// Time between two tables [default: 2 on a terminal; otherwise there is one table]
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    interval: Option<Duration>,

    /// Sort by this; numbers with the largest first
    #[arg(long, value_name = "KEY", value_enum, default_value = "rank")]
    sort: SortKey,

    /// Show a line for each host instead of one for each rank
    #[arg(long)]
    pub hosts: bool,

    /// Print tables one after the other, on a terminal too
    #[arg(long)]
    plain: bool,
}

fn interval(text: &str) -> Result<Duration, ValueError> {
    let interval = duration(text)?;
    match (Duration::from_millis(100)..=Duration::from_hours(24)).contains(&interval) {
        true => Ok(interval),
        false => Err(ValueError::Interval),
    }
}

impl TopArgs {
    /// Whether it is to be shown on a terminal, and refreshed there.
    pub fn is_interactive(&self) -> bool {
        !self.plain && io::stdout().is_terminal() && io::stdin().is_terminal()
    }

    /// Time between two tables on a terminal.
    pub fn refresh(&self) -> Duration {
        self.interval.unwrap_or(REFRESH)
    }

    /// Returns the order of the first table.
    pub fn order(&self) -> SortOrder {
        SortOrder::by(self.sort)
    }

    /// Executes the command on the host that the job shows for its launcher, if that is another one; returns only if it is
    /// this one.
    ///
    /// # Errors
    /// The launch there cannot be started.
    pub(in crate::cli) fn pass_on(&self) -> Result<(), CommandError> {
        let Some(host) = LauncherHost::shown(self.job.as_deref()) else {
            return Ok(());
        };
        let key = self.sort.to_possible_value();
        let key = key.map_or_else(String::new, |key| key.get_name().to_owned());
        let mut options: Vec<OsString> = vec!["--sort".into(), key.into()];
        let seconds = self.interval.map(|interval| interval.as_secs_f64());
        options.extend(option_words("--interval", seconds.map(|it| it.to_string())));
        options.extend(switch_word("--hosts", self.hosts));
        options.extend(switch_word("--plain", self.plain));
        Err(host.execute("top", options, self.is_interactive()))
    }
}

/// A job that is looked at again and again.
#[derive(Debug)]
pub struct TopSession {
    job: LocalJobInfo,
    started_at: Instant,
}

impl TopSession {
    /// Finds the job.
    ///
    /// # Errors
    /// If there is none, or several that are meant.
    pub fn new(args: &TopArgs) -> Result<Self, CommandError> {
        Ok(Self {
            job: found(args.job.as_deref())?,
            started_at: Instant::now(),
        })
    }

    /// Takes a sample of the job's ranks; `None` when the job has ended.
    ///
    /// # Errors
    /// If its launcher does not answer.
    pub fn sample(&self) -> Result<Option<Sample>, CommandError> {
        let answer = query_launcher(&self.job, JobQueryKind::Usage, None, &mut Quiet);
        let records = match answer {
            Ok(records) => records,
            Err(LauncherQueryError::Ended) => return Ok(None),
            Err(LauncherQueryError::Unreachable { .. }) if self.ends_soon() => return Ok(None),
            Err(error) => {
                let name = self.name();
                return Err(CommandError::job(format!("job {name}: {error}")));
            }
        };
        Ok(Some(Sample {
            job: self.name().to_owned(),
            size: self.job.size,
            at: self.started_at.elapsed(),
            ranks: records.into_iter().map(row).collect(),
        }))
    }

    fn name(&self) -> &str {
        self.job.name.as_deref().unwrap_or("?")
    }

    /// Whether the launcher has ended or ends within [`LAST_STEPS`].
    fn ends_soon(&self) -> bool {
        let launcher = self.job.launcher.as_ref();
        let now = launcher.and_then(|launcher| wireup_sys::procfs::process(launcher.pid));
        let started = launcher.map(|launcher| launcher.started);
        let Some(now) = now.filter(|now| Some(now.started) == started) else {
            return true;
        };
        ProcessHandle::open(&now)
            .is_ok_and(|process| process.is_none_or(|process| process.wait(LAST_STEPS)))
    }
}

fn row(record: ProcessRecord) -> RankRow {
    let usage = record.usage.map(|usage| *usage);
    let row = RankRow {
        job: record.job,
        rank: record.rank,
        host: record.host,
        pid: record.pid,
        ..RankRow::default()
    };
    match usage {
        None => RankRow {
            did: record.error.unwrap_or_default(),
            ..row
        },
        Some(usage) => RankRow {
            state: usage.state,
            cpu: Duration::from_millis(usage.cpu_ms),
            resident: usage.resident,
            output: usage.output,
            fence: usage.fence.map(|fence| {
                let waiting = Duration::from_millis(usage.fence_ms.unwrap_or(0));
                (fence, waiting)
            }),
            did: usage.did,
            ..row
        },
    }
}

/// Prints a table, or one after each interval until the job ends.
///
/// # Errors
/// If there is no such job, or it does not answer.
pub(in crate::cli) fn plain(args: &TopArgs) -> Result<u8, CommandError> {
    let watch = TopSession::new(args)?;
    let nothing = || CommandError::job(format!("job {} has ended", watch.name()));
    let mut before = watch.sample()?.ok_or_else(nothing)?;
    let pause = args.interval.unwrap_or(GLANCE);
    loop {
        wireup_sys::poll::pause(pause);
        let Some(now) = watch.sample()? else {
            return Ok(0);
        };
        let text = text(&before, &now, args);
        if io::stdout().lock().write_all(text.as_bytes()).is_err() || args.interval.is_none() {
            // A reader that has seen enough is no failure.
            return Ok(0);
        }
        before = now;
    }
}

fn text(before: &Sample, now: &Sample, args: &TopArgs) -> String {
    let (head, rows) = match args.hosts {
        true => view::hosts(Some(before), now, args.order()),
        false => view::ranks(Some(before), now, args.order()),
    };
    let width = width();
    format!(
        "{}\n{}\n",
        view::title(now),
        text_table::render(head, &rows, width)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::JobLifeState;

    #[test]
    fn launcher_that_closes_its_socket_before_its_end_has_ended() {
        let mut launcher = std::process::Command::new("sleep")
            .arg("0.3")
            .spawn()
            .unwrap();
        let session = TopSession {
            job: LocalJobInfo {
                name: Some(format!("wireup-none-{}", launcher.id())),
                launcher: wireup_sys::procfs::process(launcher.id() as i32),
                steps: Vec::new(),
                placement: None,
                uid: 0,
                state: JobLifeState::Running,
                within: None,
                ranks: Vec::new(),
                size: None,
                node_count: None,
                elapsed: Duration::ZERO,
                command: Vec::new(),
                members: Vec::new(),
            },
            started_at: Instant::now(),
        };
        assert!(session.sample().unwrap().is_none());
        assert!(launcher.wait().unwrap().success());
    }

    #[test]
    fn interval_is_duration_within_bounds() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("1m"), Ok(Duration::from_mins(1)));
        for bad in ["", "x", "0", "-1", "50ms", "25h"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}
