//! Limits: too few ranks, too many, and a system that has no descriptors or processes left.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{
    DEADLINE, Output, Run, descriptors, eventually, mpi, process, program, skip, wireup,
};

#[test]
fn no_ranks_and_absurd_numbers_are_refused() {
    for count in ["0", "-3", "4294967296", "two", ""] {
        let outcome = Run::new(["-n", count, "true"]).run().expect(125);
        let words =
            format!("wireup: invalid value '{count}' for '--ranks <N>': give a number from 1 to ");
        assert!(outcome.err().starts_with(&words), "{outcome:?}");
    }
    let outcome = Run::ranks(4_294_967_295, ["true"]).run().expect(125);
    outcome.expect_one_line(&[
        "a launch has at most 10000000 processes, but this one would have 4294967295",
    ]);
    let outcome = Run::ranks(9_000_000, ["true"]).run().expect(125);
    outcome.expect_one_line(&["9000000 ranks need 36000100 descriptors", "ulimit -Hn"]);
    let outcome = Run::new(["-n", "9000000", "true"]).run().expect(125);
    outcome.expect_one_line(&["9000000 ranks do not fit in "]);
}

#[test]
fn low_descriptor_limit_is_reported_before_start() {
    let few = Run::ranks(30, ["echo", "started"])
        .after_shell("ulimit -n 64;")
        .run()
        .expect(125);
    few.expect_one_line(&["30 ranks need ", "the limit is 64", "ulimit -Hn"]);
    assert_eq!(few.out(), "");
    // The soft limit is no limit: it is raised, and given back to the ranks.
    let script = "echo $(ulimit -Sn):$(ulimit -Hn)";
    let outcome = Run::ranks(20, ["sh", "-c", script])
        .after_shell("ulimit -Sn 32; ulimit -Hn 256;")
        .run()
        .expect_quiet_success();
    assert_eq!(outcome.out(), "32:256\n".repeat(20));
}

#[test]
fn descriptor_shortage_is_one_line_without_hang() {
    for limit in 4..24 {
        let limit = format!("ulimit -n {limit};");
        let outcome = Run::ranks(1, ["echo", "started"])
            .after_shell(&limit)
            .run()
            .expect(125);
        outcome.expect_one_line(&["descriptors"]);
    }
}

/// An ordinary user without other processes, for limits that count per user: not even another test, or the
/// same one in another copy of the repository.
fn as_somebody(run: Run, limit: u32) -> Run {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let user = 60_000 + (std::process::id() * 8 + NEXT.fetch_add(1, Ordering::Relaxed)) % 5_000;
    // The limit does not hold for root, who sets it.
    let nproc = format!("--nproc={limit}");
    let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
    run.under(["prlimit", &nproc, "setpriv", &uid, &gid, "--clear-groups"])
}

#[test]
fn process_limit_error_is_one_line_and_ends_started_ranks() {
    if !rustix::process::geteuid().is_root() {
        return skip("the process limit: needs root to become a user without processes");
    }
    for limit in [1, 2, 3, 4, 6, 10, 30] {
        let outcome = as_somebody(Run::ranks(50, ["sleep", "100"]), limit)
            .run()
            .expect(125);
        let line = outcome.err();
        assert!(
            ["no more processes are allowed", "allow more processes"]
                .iter()
                .any(|remedy| line.contains(remedy)),
            "{limit}: {outcome:?}"
        );
        assert_eq!(line.lines().count(), 1, "{limit}: {outcome:?}");
    }
}

#[test]
fn pmix_job_at_process_limit_is_one_line_with_needed_limit() {
    if !rustix::process::geteuid().is_root() {
        return skip("the process limit: needs root to become a user without processes");
    }
    let Some(mpi) = mpi("openmpi4") else {
        return;
    };
    // With higher limits some rank or server may get one thread less than it needs, and reports it
    // in its own way.
    for limit in [1, 2, 3, 5, 6] {
        let outcome = as_somebody(mpi.run(2, &[], "hello", &[]), limit).run();
        let err = outcome.expect(125).err();
        let messages = ["no more processes are allowed", "allow more processes"];
        assert!(
            messages.iter().any(|message| err.contains(message)),
            "{limit}: {err:?}"
        );
    }
    // The thread that writes is what is missing, now and then.
    for _ in 0..3 {
        let outcome = as_somebody(mpi.run(2, &[], "hello", &[]), 4).run();
        assert_ne!(outcome.expect(125).err(), "");
    }
}

#[test]
fn small_stack_or_file_limit_is_one_line() {
    let limited = |limit: &str, words: &[&OsStr]| {
        let script = format!("ulimit {limit}; exec \"$@\"");
        let run = Run::command(["sh", "-c", &script, "sh"]).more([wireup().as_os_str()]);
        run.more(["run", "--oversubscribe"]).more(words).run()
    };
    let outcome = limited("-s 64", &["true".as_ref()]).expect(125);
    outcome.expect_one_line(&["stack limit of 64 KiB", "ulimit -s 256"]);
    // Ranks keep what the system does to them.
    let pmi = ["--pmi", "pmi1", "-n", "1"].map(OsStr::new);
    let write = ["sh", "-c", "echo text >file"].map(OsStr::new);
    let outcome = limited("-f 0", &[&pmi[..], &write].concat()).expect(153);
    outcome.expect_one_line(&["signal 25 (SIGXFSZ)"]);
    for (words, failed) in [
        (&["--pmi", "pmix", "true"][..], "the PMIx server"),
        (
            &["--pmi", "pmi1", "--report", "page.html", "true"],
            "page.html",
        ),
    ] {
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        let outcome = limited("-f 0", &words).expect(125);
        outcome.expect_one_line(&[failed, "ulimit -f"]);
    }
    let agent = wireup().with_file_name("wireup-agent");
    let by_itself = |limit: &str, program: &Path, words: &[&str]| {
        let script = format!("ulimit {limit}; exec \"$@\"");
        let run = Run::command(["sh", "-c", &script, "sh"]).more([program]);
        run.more(words).run().expect(125)
    };
    let outcome = by_itself("-s 64", &agent, &["--version"]);
    outcome.expect_one_line(&["stack limit of 64 KiB"]);
    for words in [&["pki", "--dir", "d", "init"][..], &["man", "--dir", "d"]] {
        let outcome = by_itself("-f 0", &wireup(), words);
        outcome.expect_one_line(&["File too large", "ulimit -f"]);
    }
}

#[test]
fn ordinary_user_can_run_everything() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let Some(pmi_wireup) = program("pmi_wireup") else {
        return;
    };
    let run = as_somebody(Run::ranks(8, [pmi_wireup]), 4000);
    assert_eq!(run.run().expect_quiet_success().out().lines().count(), 8);
    let run = as_somebody(
        Run::ranks(1, ["--output", "/nobody-may-write-here", "true"]),
        4000,
    );
    run.run()
        .expect(125)
        .expect_one_line(&["cannot write /nobody-may-write-here", "Permission denied"]);
    let beside_secret = |args: &[&str]| {
        let run = as_somebody(Run::ranks(1, args), 4000);
        let secret = run.dir().join("secret");
        std::fs::create_dir(&secret).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&secret, mode).unwrap();
        run.env("PATH", format!("{}:/bin:/usr/bin", secret.display()))
            .run()
    };
    let outcome = beside_secret(&["--wdir", "secret", "true"]).expect(125);
    outcome.expect_one_line(&["--wdir", "secret: Permission denied"]);
    let outcome = beside_secret(&["secret/tool"]).expect(126);
    outcome.expect_one_line(&["secret/tool cannot be reached (Permission denied"]);
    let outcome = beside_secret(&["no-such-program"]).expect(127);
    outcome.expect_one_line(&["program \"no-such-program\" not found"]);
    beside_secret(&["true"]).expect_quiet_success();
}

#[test]
fn process_that_may_not_be_killed_is_named_and_left_alone() {
    if !rustix::process::geteuid().is_root() {
        return skip("a process of another user: needs root to make one");
    }
    // A rank of an ordinary user leaves a child that has become root by a set-user-id program.
    let script = "./become --reuid=0 --regid=0 --clear-groups sleep 1000 >/dev/null 2>&1 &
        until grep -q '^Uid:[[:space:]]0[[:space:]]' /proc/$!/status; do :; done; exit 3";
    let run = as_somebody(Run::ranks(1, ["--pmi", "none", "sh", "-c", script]), 4000);
    let other_user = run.dir().join("become");
    std::fs::copy("/usr/bin/setpriv", &other_user).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&other_user, mode).unwrap();
    let running = run.clean_within(DEADLINE).start();
    running.wait_for(Output::Stderr, "cannot end 1 left by the ranks: ");
    eventually("wireup has ended", || {
        process(running.pid()).filter(|process| process.state == 'Z')
    });
    let left = running.processes();
    assert_eq!(left.len(), 1, "{left:?}");
    let left = Pid::from_raw(left[0].pid).unwrap();
    kill_process(left, Signal::KILL).unwrap();
    running.finish().expect(3);
}

#[test]
fn descriptors_do_not_accumulate_over_ranks() {
    let script = "[ $WIREUP_RANK = 0 ] && { echo ready; read x; }; exit 0";
    let mut running = Run::ranks(64, ["sh", "-c", script]).stdin_held().start();
    running.wait_for(Output::Stdout, "ready");
    let wireup = running.pid();
    eventually("only the descriptors of one rank are left", || {
        // Those of the launcher itself, among them the low numbers kept busy, and one rank's.
        (descriptors(wireup) < 40).then_some(())
    });
    drop(running.stdin());
    running.finish().expect_quiet_success();
}
