//! Many jobs, one after the other and at once: the machine is afterwards as it was before.

use std::time::Duration;

use crate::common::{
    Output, Run, descriptors, eventually, field, memory_peak_kib, mpi, pmix, process, processes,
    program, skip,
};

/// Puts a command where it sees no processes, Unix sockets and System V objects but its
/// own, so that they can be counted; `None`, and the test is ignored, where that is not permitted.
#[track_caller]
fn alone() -> Option<Vec<&'static str>> {
    let words = vec![
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--ipc",
        "--net",
    ];
    let possible = std::process::Command::new(words[0])
        .args(&words[1..])
        .arg("true")
        .output();
    if !possible.is_ok_and(|output| output.status.success()) {
        skip("what many jobs leave: needs the right to make namespaces");
        return None;
    }
    Some(words)
}

/// Series of equal jobs.
struct Jobs<'a> {
    runs: u32,
    at_once: u32,
    /// Whether they are to fail.
    fail: bool,
    /// The arguments of `wireup run`, as a shell reads them.
    command: &'a str,
}

impl<'a> Jobs<'a> {
    fn new(runs: u32, at_once: u32, command: &'a str) -> Self {
        Self {
            runs,
            at_once,
            fail: false,
            command,
        }
    }
}

/// Everything of which a leak would show: processes, Unix sockets, System V objects, files. Without
/// pipes, whose processes come and go in their own time.
const LOOK: &str = r#"look() {
    for process in /proc/[0-9]*; do read -r name <"$process/comm" && echo "process $name"; done
    sed '1d; s/.*/socket/' /proc/net/unix
    for kind in shm sem msg; do sed '1d; s/.*/object/' /proc/sysvipc/$kind; done
    find "$TMPDIR" /dev/shm -mindepth 1
}"#;

/// Runs jobs, those of each row below a parent that stays, and checks that all went well and that
/// nothing is there that was not before.
#[track_caller]
fn endure(rows: &[Jobs<'_>]) {
    let (Some(parent), Some(alone)) = (program("parent"), alone()) else {
        return;
    };
    let mut script = format!("{LOOK}\nip link set lo up\nlook >before\n");
    for row in rows {
        let (runs, at_once) = (row.runs, row.at_once);
        script += &format!("\"$P\" {runs} {at_once} \"$W\" run {}\n", row.command);
    }
    script += "look >after\ncmp before after || cat after\n";
    let outcome = Run::command(["sh", "-c", &script])
        .under(alone)
        .env("W", env!("CARGO_BIN_EXE_wireup"))
        .env("P", parent)
        .deadline(Duration::from_secs(300))
        .run()
        .expect_quiet_success();
    let out = outcome.out();
    let (reports, others): (Vec<&str>, Vec<&str>) =
        out.lines().partition(|line| line.starts_with("parent "));
    assert_eq!(reports.len(), rows.len(), "{outcome:?}");
    for (report, row) in reports.iter().zip(rows) {
        let failed = if row.fail { row.runs } else { 0 };
        let expected = [
            ("runs", row.runs),
            ("failed", failed),
            ("strays", 0),
            ("descriptors", 0),
        ];
        for (key, number) in expected {
            let text = number.to_string();
            assert_eq!(field(report, key), Some(&*text), "{outcome:?}");
        }
    }
    assert_eq!(others, [""; 0], "{outcome:?}");
}

/// A rank that takes part in PMI-1 as far as a shell can.
const PMI1: &str = r#"-n 2 --oversubscribe --pmi pmi1 bash -c '
    ask() { printf "%s\n" "$1" >&$PMI_FD; read -r reply <&$PMI_FD; }
    ask "cmd=init pmi_version=1 pmi_subversion=1"
    ask cmd=barrier_in
    ask cmd=finalize'"#;

/// Jobs of real clients that are here: of PMIx with the system's libpmix, of PMI-2, and of these MPIs.
fn clients(mpis: &[&str]) -> Vec<String> {
    let pmix = pmix("pmix4").map(|pmix| {
        let program = pmix.dir.join("pmix_client");
        let (library, program) = (pmix.path(), program.display());
        format!("--pmi pmix --libpmix {library} {program} exchange")
    });
    let pmi2 = program("pmi2_wireup").map(|program| program.display().to_string());
    let mpis = mpis.iter().filter_map(|name| mpi(name));
    let hellos = mpis.map(|mpi| mpi.program("hello").display().to_string());
    let plain = [pmix, pmi2].into_iter().flatten();
    plain
        .chain(hellos)
        .map(|words| format!("-n 2 --oversubscribe --output /dev/null {words}"))
        .collect()
}

#[test]
fn thousand_consecutive_jobs_leave_machine_unchanged() {
    let clients = clients(&["mpich4", "openmpi4"]);
    let mut rows = vec![
        Jobs::new(780, 1, "-n 1 true"),
        Jobs::new(100, 1, PMI1),
        // Something is left for wireup to end.
        Jobs::new(
            40,
            1,
            "-n 3 --oversubscribe sh -c 'sleep 0.01 & exec >&- 2>&-'",
        ),
    ];
    rows.extend(clients.iter().map(|command| Jobs::new(20, 1, command)));
    endure(&rows);
}

#[test]
fn twenty_concurrent_jobs_leave_machine_unchanged() {
    let clients = clients(&["mpich4"]);
    let mut rows = vec![
        Jobs::new(200, 20, "-n 2 --oversubscribe true"),
        Jobs::new(60, 20, PMI1),
    ];
    rows.extend(clients.iter().map(|command| Jobs::new(20, 20, command)));
    endure(&rows);
}

#[test]
fn failed_jobs_leave_machine_unchanged() {
    let abort = r#"-n 2 --oversubscribe --pmi pmi1 bash -c '
        echo cmd=init pmi_version=1 pmi_subversion=1 >&$PMI_FD
        [ $WIREUP_RANK = 0 ] || echo cmd=abort exitcode=3 >&$PMI_FD
        sleep 1000' 2>/dev/null"#;
    let exit = "-n 4 --oversubscribe sh -c 'exit $WIREUP_RANK' 2>/dev/null";
    endure(&[(100, exit), (60, abort)].map(|(runs, command)| Jobs {
        fail: true,
        ..Jobs::new(runs, 10, command)
    }));
}

#[test]
fn long_job_keeps_nothing_of_thousands_of_orphans() {
    // Each pair of parentheses is a process whose child outlives it and comes to the launcher.
    let script = "orphans() { i=0; while [ $i -lt 1500 ]; do (true & ); i=$((i+1)); done; }
        orphans; echo first; read x; orphans; echo second; read x";
    let mut running = Run::new(["-n", "1", "sh", "-c", script])
        .stdin_held()
        .start();
    let pid = running.pid();
    let zombies = || {
        let all = processes();
        all.iter()
            .filter(|p| p.parent == pid && p.state == 'Z')
            .count()
    };
    let mut stdin = running.stdin();
    let mut samples = Vec::new();
    for word in ["first", "second"] {
        running.wait_for(Output::Stdout, word);
        eventually("the dead are collected", || (zombies() == 0).then_some(()));
        eventually("the launcher sleeps", || {
            (process(pid).unwrap().state == 'S').then_some(())
        });
        samples.push((descriptors(pid), memory_peak_kib(pid)));
        std::io::Write::write_all(&mut stdin, b"on\n").unwrap();
    }
    running.finish().expect_quiet_success();
    assert_eq!(samples[0].0, samples[1].0, "descriptors");
    assert!(
        samples[1].1 < samples[0].1 + 1024,
        "memory in KiB: {samples:?}"
    );
}

#[test]
fn long_job_keeps_nothing_of_thousands_of_barriers_and_lines() {
    // The same key again and again: a store that kept every version would grow.
    let script = r#"
        ask() { printf '%s\n' "$1" >&$PMI_FD; read -r reply <&$PMI_FD; }
        round() {
            for ((i = 0; i < 1500; i++)); do
                ask "cmd=barrier_in"
                echo "line $i of $WIREUP_RANK"
            done
        }
        ask 'cmd=init pmi_version=1 pmi_subversion=1'
        round; echo "first"; read -r x; round; echo "second"; read -r x
        ask cmd=finalize"#;
    let options = ["--pmi", "pmi1", "--stdin", "all", "bash", "-c", script];
    let mut running = Run::ranks(2, options).stdin_held().start();
    let pid = running.pid();
    let mut stdin = running.stdin();
    let mut samples = Vec::new();
    for word in ["first\n", "second\n"] {
        running.wait_for_many(Output::Stdout, word, 2);
        samples.push((descriptors(pid), memory_peak_kib(pid)));
        std::io::Write::write_all(&mut stdin, b"on\n").unwrap();
    }
    running.finish().expect_quiet_success();
    assert_eq!(samples[0].0, samples[1].0, "descriptors");
    assert!(
        samples[1].1 < samples[0].1 + 1024,
        "memory in KiB: {samples:?}"
    );
}
