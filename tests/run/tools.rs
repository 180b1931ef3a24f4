//! PMIx tools attach to running jobs: they find the server, see the whole launch, and leave no trace.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::common::{Outcome, Output, Pmix, Run, Running, eventually, field, mpi, number, pmix};
use crate::pmix::SERVERS;
use rustix::process::Signal;

mod control;
mod daemons;
mod ends;
mod io;
mod launchers;
mod losses;
mod on_demand;
mod openpmix;
mod spawns;
mod stops;
mod strangers;
mod versions;

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// Every libpmix that is here, as server and as tool.
fn versions() -> impl Iterator<Item = Pmix> {
    SERVERS.iter().filter_map(|(name, _)| pmix(name))
}

/// Whether it is the file that names no certain server.
fn is_for_any(file: &Path) -> bool {
    file.to_str().is_some_and(|name| name.ends_with(".tool"))
}

/// A job whose ranks wait to be ended, and where its tools run.
struct Job {
    library: Pmix,
    place: Run,
    running: Running,
}

impl Job {
    fn start(library: Pmix, options: &[&str]) -> Self {
        Self::of(library, options, "pmix_client", &["linger"])
    }

    fn of(library: Pmix, options: &[&str], program: &str, args: &[&str]) -> Self {
        let options = [&["--libpmix", library.path()], options].concat();
        let run = library.run(4, &options, program, args);
        Self::from(library, run)
    }

    fn from(library: Pmix, run: Run) -> Self {
        let place = Run::command(["true"]).beside(&run);
        let job = Self {
            library,
            place,
            running: run.start(),
        };
        // The last of its files is there, and has its text.
        eventually("a tool can find the server", || {
            let text = std::fs::read_to_string(job.found()?).unwrap_or_default();
            (text.lines().count() == 5).then_some(())
        });
        job
    }

    /// The files by which tools find the server.
    fn files(&self) -> Vec<PathBuf> {
        let tmp = self.place.dir().with_file_name("tmp");
        let jobs = std::fs::read_dir(tmp).into_iter().flatten().flatten();
        let servers = jobs.map(|job| job.path().join("n0/server"));
        let files = servers.flat_map(|server| std::fs::read_dir(server).into_iter().flatten());
        let files = files.flatten().map(|file| file.path());
        let mut files: Vec<PathBuf> = files
            .filter(|file| {
                let name = file.file_name().unwrap().to_string_lossy().into_owned();
                name.starts_with("pmix.") && name.contains(".tool")
            })
            .collect();
        files.sort();
        files
    }

    /// The file that names no certain server, if it is there.
    fn found(&self) -> Option<PathBuf> {
        self.files().into_iter().find(|file| is_for_any(file))
    }

    /// Returns the name of the file as text.
    fn file(&self) -> String {
        let file = self.found().expect("one for every tool");
        file.to_str().unwrap().to_owned()
    }

    fn uri(&self) -> String {
        let text = std::fs::read_to_string(self.file()).unwrap();
        text.lines().next().unwrap().to_owned()
    }

    fn nspace(&self) -> String {
        let uri = self.uri();
        uri.split_once("-host.").unwrap().0.to_owned()
    }

    fn port(&self) -> u16 {
        self.uri().rsplit(':').next().unwrap().parse().unwrap()
    }

    /// A tool that attaches in this way.
    fn tool(&self, how: &str, which: &str, words: &[&str]) -> Run {
        let tool = self.library.dir.join("pmix_tool");
        let words = [&[tool.to_str().unwrap(), how, which], words].concat();
        Run::command(words)
            .beside(&self.place)
            .env("TOOL_FILE", self.file())
            .env("TOOL_JOB", self.nspace())
    }

    /// The job is as if there had been no tool: it ends when its input ends.
    fn end(self) -> Outcome {
        self.running.signal(Signal::TERM);
        let outcome = self.running.finish().expect(143);
        let err = outcome.err();
        assert!(!err.contains("PMIx server"), "{outcome:?}");
        outcome
    }
}

/// The name that a tool has got, and its server's.
fn names(outcome: &Outcome) -> (String, String) {
    let line = outcome.sorted_lines().remove(0);
    let name = |key| field(&line, key).unwrap().to_owned();
    (name("nspace"), name("server"))
}

#[test]
fn tools_find_server_by_launcher_job_address_file_or_default() {
    for library in versions() {
        for nodes in NODES {
            let job = Job::start(library.clone(), nodes);
            let pid = job.running.pid().to_string();
            let (nspace, uri, file) = (job.nspace(), job.uri(), job.file());
            for (how, which) in [
                ("pid", &*pid),
                ("nspace", &nspace),
                ("uri", &uri),
                ("file", &file),
                ("session", "x"),
                ("system-first", "x"),
            ] {
                let outcome = job.tool(how, which, &[]).run().expect(0);
                let (name, server) = names(&outcome);
                assert!(
                    name.starts_with(&format!("{nspace}-tool-0-")),
                    "{how}: {name}"
                );
                assert_eq!(server, format!("{nspace}-host.0"), "{how}");
            }
            job.end();
        }
    }
}

/// A process that calls `PMIx_Init` without a launcher looks for the file of a system server, too
/// (docs/decisions/0011).
#[test]
fn launches_are_not_system_server_of_host() {
    for library in versions() {
        let job = Job::start(library.clone(), &[]);
        let tmp = job.place.dir().with_file_name("tmp");
        let names = std::fs::read_dir(tmp).unwrap().flatten();
        let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
        assert!(!names.is_empty());
        let is_system = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("pmix.sys");
        assert!(!names.iter().any(is_system), "{names:?}");
        job.end();
    }
}

#[test]
fn tool_files_are_private_and_removed_with_job() {
    for library in versions() {
        let job = Job::start(library, &[]);
        let files = job.files();
        // Of the launcher, the server, the job, and any.
        assert_eq!(files.len(), 4, "{files:?}");
        for file in &files {
            assert_eq!(std::fs::metadata(file).unwrap().mode() & 0o777, 0o600);
            let directory = std::fs::metadata(file.parent().unwrap()).unwrap();
            assert_eq!(directory.mode() & 0o777, 0o700);
        }
        job.end();
        assert!(!files.iter().any(|file| file.exists()), "{files:?}");
    }
}

/// Waits until the server knows that all ranks have left `PMIx_Init`.
fn await_connections(job: &Job) {
    eventually("all ranks have connected", || {
        let outcome = job.tool("file", &job.file(), &["look"]).run().expect(0);
        let rows = outcome.sorted_lines();
        let mut rows = rows.iter().filter(|row| row.contains(" proc="));
        rows.all(|row| number(row, "state") == 6).then_some(())
    });
}

#[test]
fn tool_sees_every_process_on_every_node() {
    for library in versions() {
        for nodes in NODES {
            let job = Job::start(library.clone(), nodes);
            await_connections(&job);
            let outcome = job.tool("file", &job.file(), &["look"]).run().expect(0);
            let lines = outcome.sorted_lines();
            let of = |key: &str| {
                let lines = lines.iter().filter(|line| line.contains(key));
                lines.cloned().collect::<Vec<_>>()
            };
            let jobs = of(" job=");
            assert_eq!(jobs.len(), 1, "{outcome:?}");
            assert_eq!(field(&jobs[0], "job").unwrap(), job.nspace());
            assert_eq!(
                (number(&jobs[0], "size"), number(&jobs[0], "status")),
                (4, 0)
            );
            let ranks = job.running.processes().into_iter();
            let ranks = ranks.filter(|process| process.name == "pmix_client");
            let mut pids: Vec<u32> = ranks.map(|process| process.pid.unsigned_abs()).collect();
            let rows = of(" proc=");
            let mut listed_pids: Vec<u32> = rows.iter().map(|row| number(row, "pid")).collect();
            pids.sort_unstable();
            listed_pids.sort_unstable();
            assert_eq!(listed_pids, pids, "{outcome:?}");
            let hosts = rows
                .iter()
                .map(|row| field(row, "host").unwrap().to_owned());
            let hosts: std::collections::BTreeSet<_> = hosts.collect();
            assert_eq!(hosts.len(), nodes.len().max(1), "{outcome:?}");
            job.end();
        }
    }
}

#[test]
fn tools_come_together_come_again_and_may_die() {
    for library in versions() {
        let job = Job::start(library, &[]);
        let file = job.file();
        let stay = || job.tool("file", &file, &["stay"]).stdin_held().start();
        let mut tools: Vec<Running> = (0..3).map(|_| stay()).collect();
        for tool in &tools {
            tool.wait_for(Output::Stdout, "pmix_tool attached");
        }
        // One is killed, one exits without detaching, one attaches twice; the others do not notice.
        let killed = tools.remove(0);
        killed.signal(Signal::KILL);
        killed.finish().expect(137);
        job.tool("file", &file, &["die"]).run().expect(0);
        let twice = job.tool("file", &file, &["again"]).run().expect(0);
        assert_eq!(twice.sorted_lines().len(), 2, "{twice:?}");
        for mut tool in tools {
            drop(tool.stdin());
            tool.finish().expect(0);
        }
        job.end();
    }
}

#[test]
fn tool_keeps_its_name_and_never_gets_name_of_rank_or_server() {
    for library in versions() {
        let job = Job::start(library, &[]);
        let own = job.tool("given", "my-debugger", &[]).run().expect(0);
        assert_eq!(names(&own).0, "my-debugger");
        for forged in [job.nspace(), format!("{}-host", job.nspace())] {
            // libpmix 5 refuses it. With 4.2 the tool does not get the name that the server gives
            // it.
            let outcome = job.tool("given", &forged, &[]).run();
            let refused = outcome.out().contains("refused");
            outcome.expect(if refused { 3 } else { 0 });
        }
        job.end();
    }
}

#[test]
fn garbage_and_silence_at_tool_port_are_refused() {
    for library in versions() {
        let job = Job::start(library, &[]);
        let connect = || TcpStream::connect(("127.0.0.1", job.port())).unwrap();
        let header = |length: u64| [vec![0; 8], length.to_ne_bytes().to_vec()].concat();
        for garbage in [
            Vec::new(),
            vec![0; 5],
            vec![0xff; 400],
            header(u64::MAX),
            [header(300), vec![0x41; 300]].concat(),
            [header(4), vec![0; 4]].concat(),
        ] {
            // The other side may have closed it before all was sent.
            let _ = connect().write_all(&garbage);
        }
        // These stay, and send nothing or half of a message.
        let silent = connect();
        let mut half = connect();
        half.write_all(&header(300)[..10]).unwrap();
        job.tool("file", &job.file(), &["look"]).run().expect(0);
        drop((silent, half));
        job.end();
    }
}

#[test]
fn tool_gets_output_of_ranks_on_every_node() {
    const PRINTS: &str = "while sleep 0.05; do echo out-$PMIX_RANK; echo err-$PMIX_RANK >&2; done";
    for library in versions() {
        for nodes in NODES {
            let options = [&["--pmi", "pmix", "--libpmix", library.path()], nodes].concat();
            let run = Run::ranks(4, options).more(["sh", "-c", PRINTS]);
            let job = Job::from(library.clone(), run);
            let tool = job.tool("file", &job.file(), &["output", "4"]);
            let outcome = tool.run().expect(0);
            let lines = outcome.sorted_lines();
            let lines: Vec<_> = lines
                .iter()
                .filter(|line| line.contains(" output "))
                .collect();
            assert_eq!(lines.len(), 8, "{outcome:?}");
            for line in lines {
                let stream = ["out", "err"][number(line, "channel") as usize - 1];
                let text = format!("{stream}-{}", field(line, "rank").unwrap());
                assert_eq!(field(line, "text").unwrap(), text, "{outcome:?}");
            }
            job.end();
        }
    }
}

#[test]
fn ranks_stopped_in_init_are_counted_and_released_by_tool() {
    for library in versions() {
        for nodes in NODES {
            let options = [&["--stop-at=init"], nodes].concat();
            // Done once they have been released: every rank needs the others.
            let args = ["exchange", "100"];
            let job = Job::of(library.clone(), &options, "pmix_client", &args);
            let tool = job.tool("file", &job.file(), &["release"]).stdin_held();
            let mut tool = tool.start();
            let output = tool.wait_for(Output::Stdout, "pmix_tool ready=");
            let ready = output.lines().find(|line| line.contains("ready=")).unwrap();
            assert_eq!(field(ready, "ready").unwrap(), job.nspace());
            assert_eq!(field(ready, "at").unwrap(), "pmix-init");
            drop(tool.stdin());
            tool.finish().expect(0);
            job.running.finish().expect(0);
        }
    }
}

#[test]
fn ranks_without_pmix_cannot_stop_in_init() {
    let outcome = Run::ranks(2, ["--stop-at=init", "--pmi", "pmi1", "true"]).run();
    outcome
        .expect(125)
        .expect_one_line(&["--stop-at init", "--stop-at exec"]);
}

#[test]
fn tool_attaches_to_mpich_job_that_offers_all_interfaces() {
    let (Some(mpich), Some(library)) = (mpi("mpich4"), versions().next()) else {
        return;
    };
    // No rank 9 is there to end the job: all wait.
    let args = ["9", "without-finalize", "0"];
    let options = ["--pmi", "all", "--libpmix", library.path()];
    let job = Job::from(library.clone(), mpich.run(4, &options, "exitcode", &args));
    job.running
        .wait_for_many(Output::Stdout, "exitcode rank=", 4);
    let outcome = job.tool("file", &job.file(), &["look"]).run().expect(0);
    let lines = outcome.sorted_lines();
    let rows: Vec<_> = lines.iter().filter(|row| row.contains(" proc=")).collect();
    assert_eq!(rows.len(), 4, "{outcome:?}");
    assert!(
        rows.iter()
            .all(|row| field(row, "program").unwrap().ends_with("/exitcode"))
    );
    job.end();
}
