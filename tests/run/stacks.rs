//! `wireup stacks`, `wireup core` and the stacks that a launch shows by itself, with a real gdb.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{
    Outcome, Output, Run, Running, eventually, mpi, node_name, program, skip, wireup,
};
use crate::users::{Reachable, USER, as_user};

/// Timeout for gdb with many ranks, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) fn has(program: &str) -> bool {
    let found = std::process::Command::new(program)
        .arg("--version")
        .output()
        .is_ok();
    if !found {
        skip(&format!("{program} is not installed: run scripts/setup"));
    }
    found
}

fn has_tmux() -> bool {
    let found = std::process::Command::new("tmux")
        .arg("-V")
        .output()
        .is_ok();
    if !found {
        skip("tmux is not installed: run scripts/setup");
    }
    found
}

/// Ranks of which one is elsewhere.
fn hanging(ranks: u32, options: &[&str], odd: &str) -> Option<Running> {
    let hang = program("hang")?;
    if !has("gdb") {
        return None;
    }
    let run = Run::ranks(ranks, options).more([hang.to_str()?, odd]);
    let running = run.deadline(PATIENCE).start();
    running.wait_for_many(Output::Stdout, "hang rank=", ranks as usize);
    Some(running)
}

/// `wireup COMMAND` about a launch.
fn about(running: &Running, words: &[&str]) -> Run {
    let pid = running.pid().to_string();
    let run = Run::command([wireup()]).more([words[0], &pid]);
    run.more(&words[1..]).deadline(PATIENCE)
}

fn end(running: Running) -> Outcome {
    running.signal(Signal::TERM);
    running.finish().expect(143)
}

#[test]
fn stack_tree_lists_divergent_rank_first() {
    let (Some(hang), true) = (program("hang"), has("gdb")) else {
        return;
    };
    // Counts how often gdb is started, and is it then.
    let counts = tempfile::tempdir().unwrap();
    let (gdb, calls) = (counts.path().join("gdb"), counts.path().join("calls"));
    let script = "#!/bin/sh\necho >>\"${0%/*}/calls\"\nPATH=${PATH#*:} exec gdb \"$@\"\n";
    std::fs::write(&gdb, script).unwrap();
    std::fs::set_permissions(&gdb, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let run = Run::ranks(64, ["--virtual-nodes", "8"]).more([hang.to_str().unwrap(), "17"]);
    let run = run.env("PATH", format!("{}:{path}", counts.path().display()));
    let running = run.deadline(PATIENCE).start();
    running.wait_for_many(Output::Stdout, "hang rank=", 64);
    let start = Instant::now();
    let outcome = about(&running, &["stacks"]).run().expect(0);
    println!("64 ranks on 8 virtual nodes: {:?}", start.elapsed());
    // The virtual nodes are one host.
    assert_eq!(std::fs::read_to_string(&calls).unwrap(), "\n");
    let text = outcome.out();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("main (hang.c:"), "{text}");
    let at = |words: &str, ranks: &str| {
        let line = lines.iter().position(|line| line.contains(words));
        let line = line.unwrap_or_else(|| panic!("no {words}:\n{text}"));
        assert!(lines[line].ends_with(ranks), "{text}");
        line
    };
    assert!(at("elsewhere (hang.c:", "[rank 17]") < at("receive (hang.c:", "[ranks 0-16,18-63]"));
    // They go on as before.
    for process in running.processes() {
        assert!(!matches!(process.state, 'T' | 't'), "{process}");
    }
    let some = about(&running, &["stacks", "--ranks", "3,17"]).run();
    let some = some.expect(0).out();
    assert!(
        some.contains("[rank 17]") && some.contains("[rank 3]"),
        "{some}"
    );
    let outcome = about(&running, &["stacks", "--ranks", "64"])
        .run()
        .expect(1);
    outcome.expect_one_line(&["no rank 64", "0 to 63"]);
    end(running);
}

#[test]
fn stacks_separate_ranks_in_receive_from_rank_without_send() {
    for name in ["mpich5", "openmpi5"] {
        let Some(mpi) = mpi(name) else {
            return;
        };
        if !has("gdb") {
            return;
        }
        let options = ["--virtual-nodes", "2"];
        let running = mpi
            .run(4, &options, "hang_recv", &["2"])
            .deadline(PATIENCE)
            .start();
        running.wait_for_many(Output::Stdout, "hang_recv rank=", 4);
        let outcome = about(&running, &["stacks", "--json"]).run().expect(0);
        let ranks: Value = serde_json::from_str(&outcome.out()).unwrap();
        for rank in ranks.as_array().unwrap() {
            let frames = rank["found"].to_string();
            let odd = rank["rank"] == 2;
            assert_eq!(frames.contains("elsewhere"), odd, "{name}: {frames}");
            assert_eq!(frames.contains("MPI_Recv"), !odd, "{name}: {frames}");
        }
        end(running);
    }
}

#[test]
fn stopped_rank_stays_stopped_and_others_undisturbed() {
    let options = ["--stop-at=exec:1"];
    let Some(hang) = program("hang") else {
        return;
    };
    if !has("gdb") {
        return;
    }
    let words = [hang.to_str().unwrap(), "0"];
    let running = Run::ranks(2, options)
        .more(words)
        .deadline(PATIENCE)
        .start();
    running.wait_for(Output::Stdout, "hang rank=0");
    eventually("rank 1 is stopped at its first instruction", || {
        let looked = about(&running, &["stacks"]).run().expect(0);
        let text = looked.out();
        (text.contains("_start") && text.contains("elsewhere")).then_some(())
    });
    let stopped = running
        .processes()
        .iter()
        .filter(|one| one.state == 'T')
        .count();
    assert_eq!(stopped, 1);
    end(running);
}

#[test]
fn cores_are_written_on_request_and_ranks_continue() {
    let Some(running) = hanging(3, &["--virtual-nodes", "3"], "0") else {
        return;
    };
    let directory = running.work().to_owned();
    // A link that another user may have made is replaced, not followed.
    let older = directory.join("older");
    std::fs::write(&older, "older").unwrap();
    let ranks = running.processes().into_iter();
    for rank in ranks.filter(|process| process.name == "hang") {
        let link = directory.join(format!("core.0.{}", rank.pid));
        std::os::unix::fs::symlink(&older, link).unwrap();
    }
    let words = [
        "core",
        "--ranks",
        "0,2",
        "--dir",
        directory.to_str().unwrap(),
    ];
    let text = about(&running, &words).run().expect(0).out();
    let files: Vec<&str> = text
        .lines()
        .map(|line| line.rsplit_once(':').unwrap().1)
        .collect();
    assert_eq!(files.len(), 2, "{text}");
    for file in files {
        let mode = std::fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(
            mode & 0o777,
            0o600,
            "a core has what the rank has in memory"
        );
        let head = std::fs::read(file).unwrap();
        assert!(head.starts_with(b"\x7fELF"), "{file}");
        let show = ["gdb", "-nx", "-q", "-batch", "-ex", "bt", "-c", file];
        let hang = program("hang").unwrap();
        let shown = Run::command(show).more([hang]).deadline(PATIENCE).run();
        assert!(shown.out().contains("main"), "{shown:?}");
        std::fs::remove_file(file).unwrap();
    }
    assert_eq!(std::fs::read(&older).unwrap(), b"older");
    let nowhere = about(&running, &["core", "--dir", "/nowhere"])
        .run()
        .expect(1);
    assert_eq!(nowhere.err().matches("rank ").count(), 3, "{nowhere:?}");
    end(running);
}

#[test]
fn proctable_is_shown_as_debuggers_see_it() {
    let Some(hang) = program("hang") else {
        return;
    };
    let hang = hang.to_str().unwrap();
    let running = Run::ranks(2, [hang, "0"]).start();
    running.wait_for_many(Output::Stdout, "hang rank=", 2);
    let outcome = about(&running, &["ps", "--proctable", "--json"]).run();
    let table: Value = serde_json::from_str(&outcome.expect_quiet_success().out()).unwrap();
    let table = table.as_array().unwrap();
    assert_eq!(table.len(), 2);
    for (number, process) in table.iter().enumerate() {
        assert_eq!(process["rank"], number);
        assert_eq!(process["host"], node_name().as_str());
        assert_eq!(process["executable"], hang);
        assert_eq!(process["state"], "running");
        let pid = process["pid"].as_i64().unwrap();
        assert!(
            running
                .processes()
                .iter()
                .any(|one| i64::from(one.pid) == pid)
        );
    }
    let other = about(&running, &["attach", "--proctable", "--json"]).run();
    let other: Value = serde_json::from_str(&other.expect_quiet_success().out()).unwrap();
    assert_eq!(other.as_array(), Some(table));
    let text = about(&running, &["ps", "--proctable"])
        .run()
        .expect_quiet_success()
        .out();
    assert!(text.starts_with("RANK  HOST"), "{text}");
    end(running);
}

#[test]
fn stacks_are_printed_at_timeout_before_end_of_job() {
    let Some(hang) = program("hang") else {
        return;
    };
    if !has("gdb") {
        return;
    }
    let options = ["--stacks", "--timeout", "4", "--virtual-nodes", "2"];
    let run = Run::ranks(4, options).more([hang.to_str().unwrap(), "3"]);
    let outcome = run.deadline(PATIENCE).run().expect(124);
    let err = outcome.err();
    let odd = err
        .lines()
        .position(|line| line.contains("elsewhere") && line.ends_with("[rank 3]"));
    let end = err
        .lines()
        .position(|line| line.contains("4 ranks had not ended"));
    assert!(odd.is_some() && odd < end, "{outcome:?}");
}

#[test]
fn stacks_are_printed_at_late_fence_before_its_timeout() {
    if !has("gdb") {
        return;
    }
    // The first rank waits for standard input, the other for it in MPI_Finalize.
    for name in ["mpich5", "openmpi5"] {
        let Some(mpi) = mpi(name) else {
            return;
        };
        let options = ["--stacks", "--virtual-nodes", "2", "--fence-timeout", "5"];
        let run = mpi.run(2, &options, "patient", &[]).deadline(PATIENCE);
        let running = run.stdin_held().start();
        running.wait_for(Output::Stderr, "timeout: ");
        let outcome = running.finish().expect(1);
        let err = outcome.err();
        let line = |words: &str, more: &str| {
            let mut lines = err.lines();
            lines.position(|line| line.contains(words) && line.contains(more))
        };
        let (reads, waits) = (line("main (patient.c:", ""), line("inalize", "[rank 1]"));
        let end = line("fence timeout: ", "");
        assert!(reads.is_some() && reads < end, "{name}: {outcome:?}");
        assert!(waits.is_some() && waits < end, "{name}: {outcome:?}");
    }
}

/// The abstract name of the socket at which a launcher takes requests.
fn control_address(launcher: i32) -> String {
    let descriptors = std::fs::read_dir(format!("/proc/{launcher}/fd")).unwrap();
    let held: Vec<String> = descriptors
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    // Num, RefCount, Protocol, Flags, Type, St, Inode, Path. Source: proc_net(5).
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let mut names = sockets.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let name = fields.get(7)?.strip_prefix('@')?;
        let held = held.contains(&format!("socket:[{}]", fields[6]));
        (held && name.starts_with("wireup/control/")).then(|| name.to_owned())
    });
    names.next().expect("a launcher takes requests")
}

#[test]
fn invalid_requests_are_refused_and_job_continues() {
    use std::io::{Read as _, Write as _};
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixStream};

    let running = Run::ranks(1, ["sh", "-c", "echo ready; exec sleep 1000"]).start();
    running.wait_for(Output::Stdout, "ready");
    let name = control_address(running.pid());
    let address = SocketAddr::from_abstract_name(name).unwrap();
    for garbage in [
        &b"\n"[..],
        b"{}\n",
        b"\xff\x00\n",
        b"{\"wish\":\"table\",\"ranks\":[]}\n",
    ] {
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        stream.write_all(garbage).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("{\"refused\":"), "{answer}");
    }
    // More than a request may have, and a caller that disconnects.
    let mut stream = UnixStream::connect_addr(&address).unwrap();
    while stream.write_all(&[b' '; 4096]).is_ok() {}
    drop(UnixStream::connect_addr(&address).unwrap());
    let table = about(&running, &["ps", "--proctable"])
        .run()
        .expect_quiet_success();
    assert!(
        table.out().contains("sleep") || table.out().contains("sh"),
        "{table:?}"
    );
    end(running);
}

/// Value of a line of `/proc/PID/status`.
fn status_of(pid: i32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().to_owned()
}

/// The process that traces another.
fn tracer(pid: i32) -> String {
    status_of(pid, "TracerPid:")
}

/// Ends the panes of a run that shows them.
fn leave(panes: Running, tmux: &std::path::Path) {
    let mut kill = std::process::Command::new("tmux");
    assert!(
        kill.arg("kill-server")
            .env("TMUX_TMPDIR", tmux)
            .status()
            .unwrap()
            .success()
    );
    panes.finish();
}

#[test]
fn each_rank_gets_pane_with_debugger_or_command() {
    let Some(running) = hanging(2, &["--virtual-nodes", "2"], "0") else {
        return;
    };
    if !has_tmux() {
        return;
    }
    let text = about(&running, &["debug"])
        .run()
        .expect_quiet_success()
        .out();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(
        text.contains("rank 1 on ") && text.contains(" -p "),
        "{text}"
    );
    let ranks: Vec<i32> = running
        .processes()
        .iter()
        .filter(|one| one.name == "hang")
        .map(|one| one.pid)
        .collect();
    assert_eq!(ranks.len(), 2);
    let tmux = tempfile::tempdir().unwrap();
    let run = about(&running, &["debug"]).env("TMUX_TMPDIR", tmux.path());
    let panes = run.env("TERM", "xterm").env("TMUX", "").terminal();
    let panes = panes.clean_within(PATIENCE).start();
    eventually("both are traced", || {
        ranks.iter().all(|pid| tracer(*pid) != "0").then_some(())
    });
    leave(panes, tmux.path());
    eventually("both go on", || {
        ranks.iter().all(|pid| tracer(*pid) == "0").then_some(())
    });
    end(running);
}

#[test]
fn debugger_of_root_runs_as_user_of_job() {
    let (Some(user), Some(hang)) = (as_user(), program("hang")) else {
        return;
    };
    if !has("gdb") || !has_tmux() {
        return;
    }
    let here = Reachable::new();
    let (path, hang) = (here.wireup(), here.copy(&hang));
    let words = ["run", "-n", "1", hang.to_str().unwrap(), "0"];
    let run = Run::command([path.to_str().unwrap()]).more(words);
    let running = run.under(user).deadline(PATIENCE).start();
    running.wait_for(Output::Stdout, "hang rank=0");
    let processes = running.processes();
    let rank = processes.iter().find(|one| one.name == "hang").unwrap().pid;
    let tmux = tempfile::tempdir().unwrap();
    let run = about(&running, &["debug"]).env("TMUX_TMPDIR", tmux.path());
    let panes = run.env("TERM", "xterm").env("TMUX", "").terminal();
    let panes = panes.clean_within(PATIENCE).start();
    let gdb = eventually("the rank is traced", || {
        let gdb: i32 = tracer(rank).parse().unwrap();
        (gdb != 0).then_some(gdb)
    });
    assert_eq!(status_of(gdb, "Name:"), "gdb");
    // Real, effective, saved, and of files.
    let ids = [USER; 4].join("\t");
    for name in ["Uid:", "Gid:"] {
        assert_eq!(status_of(gdb, name), ids, "{name}");
    }
    assert_eq!(status_of(gdb, "Groups:"), "");
    leave(panes, tmux.path());
    eventually("the rank is not traced", || {
        (tracer(rank) == "0").then_some(())
    });
    end(running);
}

#[test]
fn launch_under_debuggers_waits_before_main() {
    let Some(hang) = program("hang") else {
        return;
    };
    if !has("gdb") || !has_tmux() {
        return;
    }
    let tmux = tempfile::tempdir().unwrap();
    let words = ["debug", "--", "--oversubscribe", "-n", "2"];
    let run = Run::command([wireup()])
        .more(words)
        .more([hang.to_str().unwrap(), "0"]);
    let run = run
        .env("TMUX_TMPDIR", tmux.path())
        .env("TERM", "xterm")
        .env("TMUX", "");
    let panes = run.terminal().deadline(PATIENCE);
    let panes = panes.clean_within(PATIENCE).start();
    let ranks = eventually("both are traced", || {
        let processes = panes.processes();
        let ranks = processes.iter().filter(|one| one.name == "hang");
        let ranks: Vec<i32> = ranks.map(|one| one.pid).collect();
        let traced = ranks.iter().all(|pid| tracer(*pid) != "0");
        (ranks.len() == 2 && traced).then_some(ranks)
    });
    for pid in ranks {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        assert!(!maps.contains("libc.so"), "it has begun");
    }
    leave(panes, tmux.path());
}

#[test]
fn python_programs_are_shown_by_their_own_frames() {
    let uid = rustix::process::getuid().as_raw();
    let mpis = std::env::var_os("WIREUP_MPI_DIR");
    let mpis = mpis.unwrap_or_else(|| format!("/var/tmp/wireup-mpi-{uid}").into());
    let bin = std::path::Path::new(&mpis).join("pyspy/bin");
    if !bin.join("py-spy").exists() || !has("gdb") {
        return skip("py-spy is not installed: run scripts/setup");
    }
    let text = "import os, time\n\
                def elsewhere():\n    time.sleep(1000)\n\
                def receive():\n    os.read(os.pipe()[0], 1)\n\
                print('ready', flush=True)\n\
                elsewhere() if os.environ['WIREUP_RANK'] == '1' else receive()\n";
    let run = Run::ranks(3, ["--virtual-nodes", "3", "python3", "where.py"]);
    std::fs::write(run.dir().join("where.py"), text).unwrap();
    let running = run.deadline(PATIENCE).start();
    running.wait_for_many(Output::Stdout, "ready", 3);
    // The launcher has no py-spy in its PATH: the caller's is taken.
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let stacks = |words: &[&str]| about(&running, words).env("PATH", &path).run().expect(0);
    let text = stacks(&["stacks"]).out();
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let at = |words: &str| lines.iter().position(|line| line.contains(words));
    let (python, c) = (at("receive (where.py:5)  [ranks 0,2]"), at("read ("));
    assert!(python.is_some() && python < c, "{text}");
    let without = about(&running, &["stacks"]).run().expect(0);
    assert!(!without.out().contains("where.py"), "{without:?}");
    // On a busy machine, a line shows the progress as well.
    let err = without.err();
    let words = [
        "ranks 0-2 (",
        "no frames of Python: py-spy not found in PATH",
    ];
    let is_missing = |line: &str| words.iter().all(|word| line.contains(word));
    assert!(err.lines().any(is_missing), "{without:?}");
    let text = stacks(&["stacks", "--python"]).out();
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let expected = [
        "<module> (where.py:7)  [ranks 0-2]",
        "elsewhere (where.py:3)  [rank 1]",
        "receive (where.py:5)  [ranks 0,2]",
    ];
    assert_eq!(lines, expected);
    end(running);
}

#[test]
fn address_of_launch_does_not_contain_job_name() {
    let mut running = Run::ranks(1, ["sh", "-c", "echo job=$WIREUP_JOB_ID; cat"])
        .stdin_held()
        .start();
    let line = running.wait_for(Output::Stdout, "job=");
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let job = line.trim().strip_prefix("job=").unwrap();
    assert!(job.len() > 16 && sockets.contains(&control_address(running.pid())));
    assert!(!sockets.contains(job), "all users can read the name");
    drop(running.stdin());
    running.finish().expect(0);
}

/// A launcher of another user that attacks who asks it, and the time in which it must be given up.
const ATTACK: &str = include_str!("hostile_launcher.py");
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

#[test]
fn hostile_launcher_cannot_harm_inspecting_command() {
    let Some(user) = as_user() else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.path(), open.clone()).unwrap();
    let python = place.path().join("wireup");
    std::fs::copy("/usr/bin/python3", &python).unwrap();
    std::fs::set_permissions(&python, open).unwrap();
    std::fs::write(place.path().join("run"), ATTACK).unwrap();
    let script = "cd \"$0\" && exec ./wireup run";
    let words = ["sh", "-c", script, place.path().to_str().unwrap()];
    let attacker = Run::command(user.iter().copied().chain(words)).start();
    attacker.wait_for(Output::Stdout, "ready");
    let processes = attacker.processes();
    let named = |name: &str| {
        let one = processes.iter().find(|one| one.name == name);
        one.unwrap_or_else(|| panic!("no {name}: {processes:?}"))
            .pid
    };
    let (launcher, rank) = (named("wireup").to_string(), named("sleep"));
    let inspect = |words: &[&str]| {
        let run = Run::command([wireup()]).more([words[0], &launcher]);
        run.more(&words[1..]).deadline(SILENCE_LIMIT)
    };
    let silent = inspect(&["core"]).start();
    let plain = |text: &str| {
        let escape = |c: char| c.is_control() && c != '\n';
        assert!(!text.contains(escape), "{text:?}");
        assert!(!text.lines().any(|line| line == "wireup: forged"), "{text}");
    };
    let table = inspect(&["ps", "--proctable"]).run().expect(0);
    plain(&table.out());
    assert!(
        table.out().contains(r"\x1b[2J\u{9b}2J\nwireup: forged"),
        "{table:?}"
    );
    let json = inspect(&["ps", "--proctable", "--json"]).run().expect(0);
    plain(&json.out());
    let records: Value = serde_json::from_str(&json.out()).unwrap();
    assert_eq!(records[0]["host"], "\u{1b}[2J\u{9b}2J\nwireup: forged");
    let refused = inspect(&["stacks"]).run().expect(1);
    refused.expect_one_line(&["wireup: forged"]);
    plain(&refused.err());
    let flood = inspect(&["top"]).run().expect(1);
    flood.expect_one_line(&["exceeds 16 MiB"]);
    let other = inspect(&["debug", "--print"]).run().expect(1);
    other.expect_one_line(&["pid 1, which is not a process of the job"]);
    let own = inspect(&["debug", "--print", "--ranks", "0"])
        .run()
        .expect(0);
    plain(&own.out());
    let gdb = format!("-p {rank}");
    for word in ["setpriv --reuid=54321 --regid=54321 ", "script -qc ", &gdb] {
        assert!(own.out().contains(word), "{own:?}");
    }
    let silent = silent.finish().expect(1);
    silent.expect_one_line(&["did not take the request within 10 s", &launcher]);
    attacker.signal(Signal::TERM);
    attacker.finish().expect(0);
}

#[test]
fn stopped_launcher_is_named_at_once() {
    let running = Run::ranks(1, ["sh", "-c", "echo ready; exec sleep 1000"]).start();
    running.wait_for(Output::Stdout, "ready");
    running.signal(Signal::STOP);
    let pid = running.pid();
    eventually("the launcher is stopped", || {
        let mut processes = running.processes().into_iter();
        processes.find(|one| one.pid == pid && one.state == 'T')
    });
    let outcome = about(&running, &["ps", "--proctable"]).run().expect(1);
    running.signal(Signal::CONT);
    outcome.expect_one_line(&["is stopped", &format!("kill -CONT {pid}")]);
    end(running);
}

#[test]
fn stacks_shows_progress_while_gdb_is_slow() {
    let Some(hang) = program("hang") else {
        return;
    };
    if !has("gdb") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let gdb = place.path().join("gdb");
    let script = "#!/bin/sh\nsleep 8\nPATH=${PATH#*:} exec gdb \"$@\"\n";
    std::fs::write(&gdb, script).unwrap();
    std::fs::set_permissions(&gdb, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let run = Run::ranks(1, [hang.to_str().unwrap(), "0"]);
    let run = run.env("PATH", format!("{}:{path}", place.path().display()));
    let running = run.deadline(PATIENCE).start();
    running.wait_for(Output::Stdout, "hang rank=0");
    let outcome = about(&running, &["stacks"]).run().expect(0);
    let err = outcome.err();
    let seconds = err.strip_prefix("wireup: 0 of 1 rank inspected after ");
    let seconds = seconds
        .and_then(|rest| rest.split_once(" s\n"))
        .map(|(seconds, _)| seconds);
    let seconds: u32 = seconds
        .unwrap_or_else(|| panic!("{outcome:?}"))
        .parse()
        .unwrap();
    assert!(seconds >= 5, "{outcome:?}");
    assert!(outcome.out().contains("elsewhere"), "{outcome:?}");
    end(running);
}

/// A script for gdb that never attaches to rank 1.
const HANGS_AT_RANK_1: &str = r#"
import os, time
ranks = dict(word.split(":") for word in os.environ["WIREUP_RANKS"].split(","))
execute = gdb.execute
def execute_or_hang(text, **options):
    if text == f"attach {ranks.get('1')}":
        time.sleep(1000)
    return execute(text, **options)
gdb.execute = execute_or_hang
"#;

#[test]
fn stacks_skips_rank_that_gdb_cannot_read_within_30_s() {
    let Some(hang) = program("hang") else {
        return;
    };
    if !has("gdb") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let gdb = place.path().join("gdb");
    let script = "#!/bin/sh\nPATH=${PATH#*:} exec gdb -x \"${0%/*}/hangs.py\" \"$@\"\n";
    std::fs::write(place.path().join("hangs.py"), HANGS_AT_RANK_1).unwrap();
    std::fs::write(&gdb, script).unwrap();
    std::fs::set_permissions(&gdb, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let run = Run::ranks(4, [hang.to_str().unwrap(), "0"]);
    let run = run.env("PATH", format!("{}:{path}", place.path().display()));
    let running = run.deadline(PATIENCE).start();
    running.wait_for_many(Output::Stdout, "hang rank=", 4);
    let start = Instant::now();
    let outcome = about(&running, &["stacks"]).run().expect(1);
    let elapsed = start.elapsed();
    let text = outcome.out();
    let shows = |words: &str, ranks: &str| {
        let mut lines = text.lines();
        assert!(
            lines.any(|line| line.contains(words) && line.ends_with(ranks)),
            "{outcome:?}"
        );
    };
    shows("elsewhere (hang.c:", "[rank 0]");
    shows("receive (hang.c:", "[ranks 2-3]");
    let err = outcome.err();
    let is_late = |line: &str| {
        line.contains("rank 1 (") && line.ends_with("gdb did not inspect the rank within 30 s")
    };
    assert!(err.lines().any(is_late), "{outcome:?}");
    // The time for a host is 240 s.
    assert!(elapsed < Duration::from_secs(90), "{elapsed:?}");
    end(running);
}
