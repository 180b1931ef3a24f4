//! The PMIx server of a node fails: at every operation of its two sockets, by every means.
//!
//! `faults/preload.c` sits inside `wireup-pmix-host` and acts at the frame that a rule names.
//! Whatever happens: the run ends soon, by itself, with the right code and one line that names the
//! server and what became of it, and leaves nothing (see `common`).

mod broken;
mod killed;
mod launcher;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::common::{Mpi, Outcome, Pmix, Run, Running, mpi, pmix, shared_library};

/// A stand-in for `wireup-pmix-host`: the real one, with the library that makes it fail. Shared by the
/// tests that have it at the same time, and removed by the last of them.
struct FaultyHost {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl FaultyHost {
    #[track_caller]
    fn get() -> Option<Arc<Self>> {
        static MADE: Mutex<Weak<FaultyHost>> = Mutex::new(Weak::new());
        // A test that panics here has created no host.
        let mut shared = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = shared.upgrade() {
            return Some(host);
        }
        let host = Arc::new(Self::make()?);
        *shared = Arc::downgrade(&host);
        Some(host)
    }

    #[track_caller]
    fn make() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        // Runs of ordinary users must get through.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/faults/preload.c");
        let library = shared_library(dir.path(), "preload.so", &source, &[])?;
        let real = Path::new(env!("CARGO_BIN_EXE_wireup")).with_file_name("wireup-pmix-host");
        let script = format!(
            "#!/bin/sh\nexec env LD_PRELOAD='{}' '{}' \"$@\"\n",
            library.display(),
            real.display()
        );
        let path = dir.path().join("faulty-host");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Some(Self { _dir: dir, path })
    }
}

/// A job with as few upcalls as it takes to have the one that is to fail.
#[derive(Clone, Copy)]
enum Job {
    /// Open MPI: two ranks on one node.
    Hello,
    /// Open MPI: two ranks on each of two nodes, three fences.
    Modex,
    /// A PMIx client in this mode: two ranks on one node.
    Client(&'static str),
    /// Clients on each of two nodes.
    Clients(&'static str),
    /// Another PMIx client with these arguments: two ranks on each of two nodes.
    Other(&'static str, &'static [&'static str]),
    /// Open MPI: two ranks on one node that wait to be ended.
    Waiting,
}

/// End that a run must have.
#[derive(Clone, Copy)]
enum End {
    /// Exit code 125 and the server's failure.
    Lost,
    /// All ranks have finished: exit code 0, and a warning.
    Late,
    /// `Lost`, or `Late` when the ranks have finished in the meantime.
    LostOrLate,
    /// Exit code 0 and not a word.
    Fine,
    /// Rank 1's abort had arrived: its code counts.
    Aborted,
}

/// Everything to run jobs with: an Open MPI and a libpmix with its client programs.
struct Stage {
    host: Arc<FaultyHost>,
    openmpi: Mpi,
    pmix: Pmix,
}

impl Stage {
    /// Old and new, as far as they are here.
    fn all() -> Vec<Self> {
        let Some(host) = FaultyHost::get() else {
            return Vec::new();
        };
        [("openmpi4", "pmix4"), ("openmpi5", "pmix5")]
            .into_iter()
            .filter_map(|(openmpi, library)| {
                Some(Self {
                    host: Arc::clone(&host),
                    openmpi: mpi(openmpi)?,
                    pmix: pmix(library)?,
                })
            })
            .collect()
    }

    #[track_caller]
    fn start(&self, job: Job, rule: &str) -> Running {
        self.run(job, rule, &[]).start()
    }

    fn run(&self, job: Job, rule: &str, options: &[&str]) -> Run {
        let host = format!("host={}", self.host.path.display());
        let mut options = [options, &["--libpmix", &host]].concat();
        if matches!(job, Job::Modex | Job::Clients(_) | Job::Other(..)) {
            options.extend(["--virtual-nodes", "2"]);
        }
        let run = match job {
            Job::Hello => self.openmpi.run(2, &options, "hello", &[]),
            Job::Modex => self.openmpi.run(4, &options, "modex", &[]),
            Job::Client(mode) => self.client(2, &options, mode),
            Job::Clients(mode) => self.client(4, &options, mode),
            Job::Other(program, args) => self.pmix.run(4, &options, program, args),
            // The rank that would end is not there.
            Job::Waiting => self
                .openmpi
                .run(2, &options, "exitcode", &["2", "signal", "9"]),
        };
        run.env("WIREUP_TEST_FAULT", rule).deadline(LIMIT)
    }

    fn client(&self, ranks: u32, options: &[&str], mode: &str) -> Run {
        let program = self.pmix.dir.join("pmix_client");
        let words = [options, &[program.to_str().unwrap(), mode]].concat();
        Run::ranks(ranks, words)
    }
}

/// Longer than any of our own deadlines.
const LIMIT: Duration = Duration::from_secs(120);

#[track_caller]
fn check(outcome: &Outcome, rule: &str, end: End, words: &[&str]) {
    let end = match end {
        End::LostOrLate if outcome.code == 0 => End::Late,
        End::LostOrLate => End::Lost,
        end => end,
    };
    match end {
        End::LostOrLate => unreachable!("it is one of the two"),
        End::Lost => {
            assert_eq!(outcome.code, 125, "{rule}: {outcome:?}");
            let line = outcome.expect_one_line(&["the PMIx server of ", " failed: "]);
            assert!(!line.contains("warning"), "{rule}: {line}");
        }
        End::Late => {
            assert_eq!(outcome.code, 0, "{rule}: {outcome:?}");
            outcome.expect_one_line(&["warning: the PMIx server of ", " when no rank needed it: "]);
        }
        End::Fine => {
            assert_eq!(outcome.code, 0, "{rule}: {outcome:?}");
            assert!(!outcome.err().contains("wireup: "), "{rule}: {outcome:?}");
        }
        End::Aborted => {
            assert_eq!(outcome.code, 7, "{rule}: {outcome:?}");
            outcome.expect_one_line(&["rank 1 ", " called MPI_Abort with code 7"]);
        }
    }
    for word in words {
        assert!(
            outcome.err().contains(word),
            "{rule}: no {word:?}; {outcome:?}"
        );
    }
}

/// Runs the job with each rule, for every Open MPI, and checks it.
fn table(job: Job, action: &str, rows: &[(&str, End)], words: &[&str]) {
    for stage in Stage::all() {
        for (moment, end) in rows {
            let rule = format!("{moment} {action}");
            let outcome = stage.start(job, &rule).finish();
            check(&outcome, &rule, *end, words);
        }
    }
}

const KILLED: &str = "its process was killed by signal 9 (SIGKILL)";

#[test]
fn fault_rule_that_never_applies_changes_nothing() {
    table(Job::Hello, "kill", &[("hello 2 before", End::Fine)], &[]);
    table(
        Job::Clients("direct"),
        "kill",
        &[("hello 2 before", End::Fine)],
        &[],
    );
}
