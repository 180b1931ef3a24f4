//! OpenPMIx's own tools, as Debian 12 (4.2.2), 13 (5.0.7, with libpmix 5.0.11) and its next release (7) have them: what they
//! print is that of the job.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Job, NODES, await_connections};
use crate::common::{Outcome, Output, Pmix, Run, eventually, pmix, skip, wireup};

/// The libpmix that have tools here.
const RELEASES: [&str; 3] = ["pmix4", "pmix5", "pmix7"];

/// A tool that uses this libpmix.
fn tool(library: &Pmix, name: &str) -> Option<PathBuf> {
    let release = library.dir.file_name().unwrap();
    let path = match release == "pmix4" {
        true => PathBuf::from("/usr/bin").join(name),
        false => {
            let tools = library.dir.with_file_name("tools");
            tools.join(release).join(name)
        }
    };
    let there = path.exists();
    if !there {
        let path = path.display();
        skip(&format!(
            "{path}: run scripts/setup and scripts/test-programs"
        ));
    }
    there.then_some(path)
}

/// Has a tool attach to the launcher's server.
fn ask(job: &Job, tool: &Path, words: &[&str]) -> Run {
    let pid = job.running.pid().to_string();
    let run = Run::command([tool.as_os_str()]).more(["--pid", &pid]);
    run.more(words).beside(&job.place)
}

/// Returns the output on both streams.
fn output_of(outcome: &Outcome) -> String {
    [outcome.out(), outcome.err()].concat()
}

/// The processes of the job, once all have connected: rank, pid, host and executable.
fn processes(job: &Job) -> Vec<[String; 4]> {
    let pid = job.running.pid().to_string();
    let table = eventually("all processes have started", || {
        let ps = Run::command([wireup()]).more(["ps", "--proctable", "--json", &pid]);
        let out = ps.beside(&job.place).run().expect(0).out();
        let table: Vec<Value> = serde_json::from_str(&out).unwrap();
        let started = table.iter().all(|row| row["pid"].is_number());
        started.then_some(table)
    });
    await_connections(job);
    let row = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        let number = |key: &str| row[key].to_string();
        [
            number("rank"),
            number("pid"),
            text("host"),
            text("executable"),
        ]
    };
    table.iter().map(row).collect()
}

/// The word behind a text in a line.
fn behind<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text.split_once(label)?.1.split_whitespace().next()
}

/// The state of a process that has called `PMIx_Init`.
const CONNECTED: &str = "PROC HAS CONNECTED TO LOCAL PMIX SERVER";

#[test]
fn pps_lists_jobs_by_every_discovery_method() {
    for library in ["pmix4", "pmix5"].into_iter().filter_map(pmix) {
        let Some(pps) = tool(&library, "pps") else {
            return;
        };
        for nodes in NODES {
            let job = Job::start(library.clone(), nodes);
            let (pid, uri, nspace) = (job.running.pid().to_string(), job.uri(), job.nspace());
            let ways = [
                &["--pid", &*pid][..],
                &["--uri", &uri],
                &["--namespace", &nspace],
                &[],
            ];
            for way in ways {
                let run = Run::command([pps.as_os_str()]).more(way);
                let outcome = run.beside(&job.place).run().expect(0);
                let jobs = format!("Active nspaces: {nspace}");
                assert!(
                    output_of(&outcome).lines().any(|line| line == jobs),
                    "{outcome:?}"
                );
            }
            job.end();
        }
    }
}

#[test]
fn pps_of_7_shows_processes_and_nodes_of_job() {
    let Some(library) = pmix("pmix7") else { return };
    let Some(pps) = tool(&library, "pps") else {
        return;
    };
    for nodes in NODES {
        let job = Job::start(library.clone(), nodes);
        let expected = processes(&job);
        let text = output_of(&ask(&job, &pps, &[]).run().expect(0));
        let title = format!("Namespace {} (4 processes)", job.nspace());
        assert!(text.lines().any(|line| line == title), "{text}");
        let rows = text
            .lines()
            .filter(|line| line.contains(CONNECTED))
            .map(|line| {
                let (known, program) = line.split_once(CONNECTED).unwrap();
                let known: Vec<&str> = known.split_whitespace().collect();
                [known[0], known[1], known[2], program.trim()].map(str::to_owned)
            });
        assert_eq!(rows.collect::<Vec<_>>(), expected, "{text}");
        let text = output_of(&ask(&job, &pps, &["--nodes"]).run().expect(0));
        for host in expected.iter().map(|row| &row[2]) {
            let on = expected
                .iter()
                .filter(|row| row[2] == *host)
                .count()
                .to_string();
            let shown = |line: &str| line.split_whitespace().eq([&**host, &on]);
            assert!(text.lines().any(shown), "{host} {on}: {text}");
        }
        job.end();
    }
}

#[test]
fn pquery_reads_state_of_job() {
    // That of 4.2.2 ends with SIGFPE also where there is no server, and that of 7 takes no key.
    let Some(library) = pmix("pmix5") else { return };
    let Some(pquery) = tool(&library, "pquery") else {
        return;
    };
    for nodes in NODES {
        let job = Job::start(library.clone(), nodes);
        let (nspace, expected) = (job.nspace(), processes(&job));
        let query = |key: &str| output_of(&ask(&job, &pquery, &[key]).run().expect(0));
        let of_job = |key: &str| query(&format!("{key}[PMIX_NSPACE={nspace}]"));
        let text = query("PMIX_QUERY_NAMESPACES");
        assert!(text.lines().any(|line| line.trim() == nspace), "{text}");
        let text = query("PMIX_SERVER_URI");
        assert!(text.contains(&job.uri()), "{text}");
        let text = of_job("PMIX_QUERY_JOB_STATUS");
        assert!(text.contains("Value: PMIX_SUCCESS"), "{text}");
        // Its own node's, the first one's.
        let here = expected.len() / nodes.len().max(1);
        for (key, expected) in [
            ("PMIX_QUERY_PROC_TABLE", &expected[..]),
            ("PMIX_QUERY_LOCAL_PROC_TABLE", &expected[..here]),
        ] {
            let text = of_job(key);
            assert_eq!(text.matches(CONNECTED).count(), expected.len(), "{text}");
            let own = format!("PROC: {nspace}:");
            let rows = text.split(&own).skip(1).map(|row| {
                let rank = row.split_whitespace().next().unwrap();
                let known = |label| behind(row, label).unwrap_or_else(|| panic!("{label}: {row}"));
                let [pid, host, program] = ["Pid:", "Hostname:", "Executable:"].map(known);
                [rank, pid, host, program].map(str::to_owned)
            });
            assert_eq!(rows.collect::<Vec<_>>(), expected, "{text}");
        }
        for key in ["PMIX_QUERY_SPAWN_SUPPORT", "PMIX_QUERY_DEBUG_SUPPORT"] {
            let text = query(key);
            assert!(text.contains("PMIX_DEBUGGER_DAEMONS"), "{text}");
        }
        job.end();
    }
}

#[test]
fn plookup_finds_published_values() {
    // That of 4.2.2 ends with SIGSEGV, and does under prterun 3 too.
    for library in ["pmix5", "pmix7"].into_iter().filter_map(pmix) {
        let Some(plookup) = tool(&library, "plookup") else {
            return;
        };
        for nodes in NODES {
            let job = Job::of(library.clone(), nodes, "pmix_store", &["shown"]);
            let look = |words: &[&str]| ask(&job, &plookup, words);
            eventually("it is published", || {
                let text = output_of(&look(&["shown"]).run());
                let found = text.contains("Value: port#3");
                assert!(found || text.contains("PMIX_ERR_NOT_FOUND"), "{text}");
                found.then_some(())
            });
            let text = output_of(&look(&["nobody.published.this"]).run());
            assert!(text.contains("PMIX_ERR_NOT_FOUND"), "{text}");
            job.end();
        }
    }
}

#[test]
fn pevent_raises_events_and_pattrs_lists_server_support() {
    for name in RELEASES {
        let Some(library) = pmix(name) else { return };
        let [Some(pevent), Some(pattrs)] = ["pevent", "pattrs"].map(|name| tool(&library, name))
        else {
            return;
        };
        for nodes in NODES {
            let job = Job::start(library.clone(), nodes);
            // As a test of the way of an event: `pmix_tool release` gets it and releases no process.
            let attached_tool = job.tool("file", &job.file(), &["release"]);
            let mut attached_tool = attached_tool.stdin_held().start();
            attached_tool.wait_for(Output::Stdout, "pmix_tool attached");
            let event: &[&str] = match name {
                "pmix4" => &["--event", "-58", "--range", "session"],
                _ => &["--range", "session", "PMIX_READY_FOR_DEBUG"],
            };
            eventually("the event arrives", || {
                ask(&job, &pevent, event).run().expect(0);
                let output = attached_tool.so_far(Output::Stdout);
                String::from_utf8_lossy(&output)
                    .contains("ready=")
                    .then_some(())
            });
            drop(attached_tool.stdin());
            attached_tool.finish().expect(0);
            let (lists, has) = match name {
                "pmix4" => (&["--server-fns"][..], "PMIx_server_init"),
                _ => (&["--server", "all"][..], "PMIX_SERVER_TMPDIR"),
            };
            let text = output_of(&ask(&job, &pattrs, lists).run().expect(0));
            assert!(text.contains(has), "{text}");
            job.end();
        }
    }
}
