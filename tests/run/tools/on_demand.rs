//! Tools of launches whose ranks are not offered PMIx: the PMIx servers start when the first tool comes.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::Signal;

use super::spawns::Debugger;
use super::{Job, NODES, versions};
use crate::common::{Output, Run, eventually, field, free_port, mpi, number, process};
use crate::metrics::{scraped, value};

/// Timeout for a guard that ends processes and removes files.
const GUARD: Duration = Duration::from_secs(60);

/// Whether a process is a sidecar. Some libpmix need another loader than the system's.
fn is_sidecar(name: &str) -> bool {
    name.starts_with("wireup-pmix-hos") || name.starts_with("ld-linux")
}

/// Returns the number of sidecars of a launch.
fn sidecars(job: &Job) -> usize {
    pids_of_sidecars(job).len()
}

/// The rows of the process tables that a tool is given.
fn look(job: &Job, how: &str, which: &str) -> Vec<String> {
    let outcome = job.tool(how, which, &["look"]).run().expect(0);
    let lines = outcome.sorted_lines().into_iter();
    lines.filter(|row| row.contains(" proc=")).collect()
}

#[test]
fn first_tool_starts_sidecars_of_mpich_job_and_sees_all_ranks() {
    let mpis = ["mpich4", "mpich5", "impi"].into_iter().filter_map(mpi);
    let mpis: Vec<_> = mpis.collect();
    for library in versions() {
        for (mpi, nodes) in mpis.iter().flat_map(|mpi| NODES.map(|nodes| (mpi, nodes))) {
            let options = [&["--libpmix", library.path()], nodes].concat();
            // No rank 9 is there to end the job: all wait.
            let args = ["9", "without-finalize", "0"];
            let job = Job::from(library.clone(), mpi.run(4, &options, "exitcode", &args));
            job.running
                .wait_for_many(Output::Stdout, "exitcode rank=", 4);
            assert_eq!(sidecars(&job), 0);
            let rows = look(&job, "pid", &job.running.pid().to_string());
            eventually("every node has its server", || {
                (sidecars(&job) == nodes.len().max(1)).then_some(())
            });
            let ranks = job.running.processes().into_iter();
            let ranks = ranks.filter(|process| process.name == "exitcode");
            let pids: BTreeSet<u32> = ranks.map(|process| process.pid.unsigned_abs()).collect();
            let listed_pids: BTreeSet<u32> = rows.iter().map(|row| number(row, "pid")).collect();
            assert_eq!(listed_pids, pids, "{rows:?}");
            let hosts: BTreeSet<_> = rows.iter().map(|row| field(row, "host")).collect();
            assert_eq!(hosts.len(), nodes.len().max(1), "{rows:?}");
            // By the other ways, and again.
            let nspace = job.nspace();
            let ways = [
                ("nspace", &*nspace),
                ("uri", &job.uri()),
                ("file", &job.file()),
            ];
            for (how, which) in ways {
                assert_eq!(look(&job, how, which), rows);
            }
            job.end();
        }
    }
}

#[test]
fn tools_control_shell_scripts_without_pmi_on_every_node() {
    const SCRIPT: &str = "trap 'echo usr1 $WIREUP_RANK' USR1; \
                          while :; do echo here $WIREUP_RANK; sleep 0.05; done";
    for library in versions() {
        for nodes in NODES {
            let options = [&["--pmi", "none", "--libpmix", library.path()], nodes].concat();
            let job = Run::ranks(4, options).more(["sh", "-c", SCRIPT]);
            let job = Job::from(library.clone(), job);
            let mut tool = Debugger::attach(&job);
            let name = job.nspace();
            tool.order(&format!("pull {name}"));
            for rank in 0..4 {
                tool.wait_for_line(&format!("got rank={rank} "));
            }
            tool.order(&format!("control {name} -2 pmix.jctrl.sig 10"));
            job.running.wait_for_many(Output::Stdout, "usr1 ", 4);
            tool.order(&format!("control {name} 3 pmix.jctrl.pause"));
            eventually("one shell is stopped", || {
                let processes = job.running.processes();
                let shells = processes.iter().filter(|one| one.name == "sh");
                let stopped = shells.filter(|one| one.state == 'T');
                (stopped.count() == 1).then_some(())
            });
            tool.order(&format!("control {name} -2 pmix.jctrl.term"));
            job.running.finish().expect(143);
            tool.wait_for_line("code=143");
            tool.leave();
        }
    }
}

#[test]
fn tool_spawns_pmix_ranks_and_daemons_in_launch_without_pmix() {
    for library in versions() {
        for nodes in NODES {
            let job = Run::ranks(
                4,
                [&["--pmi", "pmi2", "--libpmix", library.path()], nodes].concat(),
            );
            let job = Job::from(library.clone(), job.more(["sleep", "1000"]));
            let mut tool = Debugger::attach(&job);
            let hosts = nodes.len().max(1);
            let daemon = library.dir.join("pmix_daemon");
            let wants = format!(
                "pmix.debugger pmix.dbg.tgt={}:-2 pmix.dbg.dpnd=#1",
                job.nspace()
            );
            tool.spawns(&format!("{wants} -- 0 {}", daemon.display()));
            let output = tool.wait_for_many(" lrank=0 ", hosts);
            for line in output.lines().filter(|line| line.contains(" lrank=")) {
                assert_eq!(number(line, "local") as usize, 4 / hosts, "{line}");
            }
            let client = library.dir.join("pmix_client");
            let wants = "pmix.mapby=node --";
            let child = tool.spawns(&format!("{wants} 2 {} exchange 100", client.display()));
            tool.wait_for_line(&format!("ended={child} status=0"));
            tool.kill();
            job.end();
        }
    }
}

#[test]
fn ranks_stopped_before_main_are_reported_to_later_tool() {
    for library in versions() {
        for nodes in NODES {
            let options = [
                "--stop-at=exec",
                "--pmi",
                "pmi1",
                "--libpmix",
                library.path(),
            ];
            let job = Run::ranks(4, [&options[..], nodes].concat());
            let job = Job::from(library.clone(), job.more(["echo", "begun"]));
            let mut tool = Debugger::attach(&job);
            let name = job.nspace();
            tool.wait_for_line(&format!("ready={name} at=exec"));
            assert!(!job.running.so_far(Output::Stdout).starts_with(b"begun"));
            tool.order(&format!("control {name} -2 pmix.jctrl.sig 18"));
            assert_eq!(job.running.finish().expect(0).out(), "begun\n".repeat(4));
            tool.kill();
        }
    }
}

/// The sidecars of a launch, in the order of their nodes.
fn pids_of_sidecars(job: &Job) -> Vec<i32> {
    let processes = job.running.processes();
    let sidecars = processes.iter().filter(|process| is_sidecar(&process.name));
    let mut pids: Vec<i32> = sidecars.map(|process| process.pid).collect();
    pids.sort_unstable();
    pids
}

/// Waits until tools find another address than this one.
fn another_address(job: &Job, old: &str) {
    eventually("there is another address", || {
        let text = std::fs::read_to_string(job.found()?).ok()?;
        (text.lines().count() == 5 && !text.starts_with(old)).then_some(())
    });
}

#[test]
fn killed_sidecars_cost_nothing_without_pmix_and_are_replaced() {
    for library in versions() {
        for nodes in NODES {
            let port = free_port();
            let address = format!("127.0.0.1:{port}");
            let options = ["--pmi", "pmi1", "--libpmix", library.path()];
            let run = Run::ranks(4, [&options[..], nodes].concat());
            let run = run.more(["--metrics", &address]);
            let run = run.more(["sh", "-c", "read go; echo went on"]);
            let restarts = || {
                let metrics = scraped(port).unwrap();
                value(&metrics, "wireup_launch_sidecar_restarts_total")
            };
            let mut job = Job::from(library.clone(), run.stdin_held());
            let hosts = nodes.len().max(1);
            let rows = look(&job, "file", &job.file());
            assert_eq!(restarts(), 0.0);
            // With no tool there, then with one that is cut off by it.
            for attached in [false, true] {
                let tool = attached.then(|| Debugger::attach(&job));
                eventually("every node has its server", || {
                    (sidecars(&job) == hosts).then_some(())
                });
                let uri = job.uri();
                kill(&pids_of_sidecars(&job));
                let text = "failed when no rank needed it";
                let count = hosts * (1 + usize::from(attached));
                job.running.wait_for_many(Output::Stderr, text, count);
                another_address(&job, &uri);
                assert_eq!(look(&job, "pid", &job.running.pid().to_string()), rows);
                if let Some(tool) = tool {
                    tool.wait_for_line("pmix_debugger lost");
                    tool.kill();
                }
            }
            // One for the ranks of another node, while the tool stays.
            let mut tool = Debugger::attach(&job);
            eventually("every node has its server", || {
                (sidecars(&job) == hosts).then_some(())
            });
            eventually("both restarts of every node are counted", || {
                (restarts() == 2.0 * hosts as f64).then_some(())
            });
            if let [_, second] = pids_of_sidecars(&job)[..] {
                kill(&[second]);
                let text = "failed when no rank needed it";
                job.running.wait_for_many(Output::Stderr, text, 5);
                let daemon = library.dir.join("pmix_daemon");
                let wants = format!("pmix.debugger pmix.dbg.tgt={}:-2", job.nspace());
                tool.spawns(&format!(
                    "{wants} pmix.dbg.dpnd=#1 -- 0 {}",
                    daemon.display()
                ));
                tool.wait_for_many(" lrank=0 ", 2);
            }
            tool.kill();
            drop(job.running.stdin());
            let outcome = job.running.finish().expect(0);
            assert_eq!(outcome.out(), "went on\n".repeat(4));
        }
    }
}

#[test]
fn sidecars_killed_at_start_for_tool_are_replaced_for_next_tool() {
    for library in versions() {
        for nodes in NODES {
            let options = ["--pmi", "pmi1", "--libpmix", library.path()];
            let run = Run::ranks(2, [&options[..], nodes].concat());
            let run = run.more(["sh", "-c", "read go; true"]);
            let mut job = Job::from(library.clone(), run.stdin_held());
            let hosts = nodes.len().max(1);
            let first = TcpStream::connect(("127.0.0.1", job.port())).unwrap();
            let mut killed = BTreeSet::new();
            eventually("every node's server was killed", || {
                let pids = pids_of_sidecars(&job);
                let new: Vec<i32> = pids.into_iter().filter(|&pid| killed.insert(pid)).collect();
                kill(&new);
                (killed.len() == hosts).then_some(())
            });
            let text = "failed when no rank needed it";
            job.running.wait_for_many(Output::Stderr, text, hosts);
            drop(first);
            assert_eq!(look(&job, "pid", &job.running.pid().to_string()).len(), 2);
            eventually("every node has its server", || {
                (sidecars(&job) == hosts).then_some(())
            });
            drop(job.running.stdin());
            job.running.finish().expect(0);
        }
    }
}

#[test]
fn silent_connections_do_not_block_tools() {
    for library in versions() {
        let options = ["--pmi", "pmi1", "--libpmix", library.path()];
        let job = Job::from(
            library.clone(),
            Run::ranks(2, options).more(["sleep", "1000"]),
        );
        let silent = TcpStream::connect(("127.0.0.1", job.port())).unwrap();
        assert_eq!(look(&job, "file", &job.file()).len(), 2);
        drop(silent);
        job.end();
    }
}

#[test]
fn missing_libpmix_refuses_tools_and_job_continues() {
    let run = Run::ranks(2, ["--pmi", "pmi1", "--libpmix", "/nonexistent"]);
    let job = run.more(["sleep", "1000"]);
    let Some(library) = versions().next() else {
        return;
    };
    let job = Job::from(library, job);
    let _ = TcpStream::connect(("127.0.0.1", job.port())).unwrap();
    job.running
        .wait_for(Output::Stderr, "PMIx tools cannot be served: ");
    job.end();
}

/// Ends processes, none of which sees that another has ended.
fn kill(pids: &[i32]) {
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in pids {
            let pid = rustix::process::Pid::from_raw(*pid).unwrap();
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

#[test]
fn files_of_killed_launch_are_removed() {
    for library in versions() {
        for (pmi, nodes) in [("pmix", NODES[0]), ("pmi1", NODES[0]), ("pmi1", NODES[1])] {
            let start = || {
                let options = ["--pmi", pmi, "--libpmix", library.path()];
                let run = Run::ranks(2, [&options[..], nodes].concat());
                let run = run.more(["sleep", "1000"]).clean_within(GUARD);
                Job::from(library.clone(), run)
            };
            // The guard removes them.
            let job = start();
            job.running.signal(Signal::KILL);
            eventually("the files are gone", || {
                job.files().is_empty().then_some(())
            });
            job.running.finish().expect(137);
            // Where that is killed too, the next launch does.
            let job = start();
            look(&job, "file", &job.file());
            let processes = job.running.processes();
            let pids: Vec<_> = processes.iter().map(|process| process.pid).collect();
            kill(&pids);
            let is_dead = |pid: &i32| process(*pid).is_none_or(|process| process.state == 'Z');
            eventually("all are dead", || pids.iter().all(is_dead).then_some(()));
            assert!(!job.files().is_empty());
            let next = Run::ranks(1, ["true"]).beside(&job.place);
            next.run().expect_quiet_success();
            assert!(job.files().is_empty());
            job.running.finish().expect(137);
        }
    }
}
