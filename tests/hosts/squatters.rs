//! A user who takes the places where those of another look for an agent or for each other, listens there
//! and accepts no connection: no launch waits for that.

use std::path::PathBuf;

use rustix::process::Signal;

use crate::cluster::{ALICE, BOB, Cluster, MALLORY};
use crate::common::{Output, Run, Running, pmix, skip};
use crate::doctor::on;
use crate::users::of;

/// Listens at each of the addresses, one in a line, `@` for the abstract namespace, and has no room left.
const SQUATTER: &str = "
import os, socket, sys, time
kept = []
for name in sys.argv[1:]:
    if name[0] != '@':
        os.makedirs(os.path.dirname(name), exist_ok=True)
        os.chmod(os.path.dirname(name), 0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind('\\0' + name[1:] if name[0] == '@' else name)
    if name[0] != '@':
        os.chmod(name, 0o777)
    listener.listen(0)
    kept.append(listener)
    while True:
        caller = socket.socket(socket.AF_UNIX)
        caller.setblocking(False)
        kept.append(caller)
        try:
            caller.connect(listener.getsockname())
        except BlockingIOError:
            break
print('squats', flush=True)
sys.stdin.read()
for name in sys.argv[1:]:
    if name[0] != '@':
        os.remove(name)
        os.rmdir(os.path.dirname(name))
";

fn squat(cluster: &Cluster, places: &[String]) -> Running {
    let words = ["/usr/bin/python3", "-c", SQUATTER].map(str::to_owned);
    let words = words.into_iter().chain(places.iter().cloned());
    let running = of(BOB, cluster.command(0, words)).stdin_held().start();
    running.wait_for(Output::Stdout, "squats");
    running
}

/// Returns the paths of Alice's name server that any user could create.
fn names() -> impl Iterator<Item = String> {
    (0..16).map(|number| format!("@wireup-rendezvous-{ALICE}-{number}-"))
}

/// A launch of Alice's that does this with names.
fn meeting(cluster: &Cluster, what: &str) -> Option<Run> {
    let stage = pmix("pmix5")?;
    let program = cluster.copy(&stage.dir.join("pmix_launches"));
    let options = ["-v", "--libpmix", stage.path(), "-n", "1"];
    let run = cluster.run(0, options).more([program]);
    Some(of(ALICE, run.more(what.split(' '))))
}

#[test]
fn stranger_socket_in_place_of_user_agent_blocks_no_launch() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let place = format!("/tmp/wireup-{ALICE}/agent.sock");
    let squatter = squat(&cluster, &[place]);
    let both = ["--hosts", "node01,node02", "-n", "2", "true"];
    // Root's agent serves.
    let run = of(ALICE, cluster.run(0, both));
    run.run().expect_quiet_success();
    cluster.kill_agent(0);
    let run = of(ALICE, cluster.run(0, both));
    let outcome = run.run().expect(125);
    outcome.expect_one_line(&["no agent serves this machine", "must belong to you or root"]);
    cluster.start_agent(0);
    squatter.finish().expect(0);
}

#[test]
fn launcher_waiting_for_agent_can_be_interrupted_and_times_out() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    let place = "/tmp/squat/agent.sock";
    let squatter = squat(&cluster, &[place.to_owned()]);
    let run = || {
        let run = cluster.run(
            0,
            ["--agent", place, "--hosts", "node01", "-n", "1", "true"],
        );
        of(ALICE, run)
    };
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let running = run().start();
        crate::common::eventually("it waits", || {
            let all = cluster.host(0).processes().into_iter();
            let mut all = all.filter(|process| process.words.contains("--agent"));
            all.any(|process| process.state == 'S').then_some(())
        });
        running.signal(signal);
        running.finish().expect(code);
    }
    let outcome = run().run().expect(125);
    outcome.expect_one_line(&["has accepted no connection within 10 s"]);
    squatter.finish().expect(0);
}

#[test]
fn names_taken_by_stranger_do_not_separate_launches() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    cluster.kill_agent(0);
    // Where the directory is a stranger's too, there is no rendezvous, and no launch waits for one.
    let directory = format!("/tmp/wireup-{ALICE}/agent.sock");
    let taken: Vec<String> = names().chain([directory]).collect();
    let squatter = squat(&cluster, &taken);
    let Some(run) = meeting(&cluster, "want a 2") else {
        return;
    };
    let outcome = run.run();
    let err = outcome.err();
    assert!(err.contains("is not this user's alone"), "{outcome:?}");
    assert!(
        err.contains("the name server of your launches is lost"),
        "{outcome:?}"
    );
    squatter.finish().expect(0);

    let taken: Vec<String> = names().collect();
    let squatter = squat(&cluster, &taken);
    let waiter = meeting(&cluster, "want a 60 offer seen indef").unwrap();
    let waiter = waiter.start();
    waiter.wait_for(Output::Stdout, "waits=a");
    let offer = meeting(&cluster, "offer a first want seen 60 withdraw seen").unwrap();
    let offer = offer.start();
    for outcome in [waiter.finish(), offer.finish()] {
        let outcome = outcome.expect(0);
        assert!(!outcome.out().contains("TIMEOUT"), "{outcome:?}");
        assert!(!outcome.err().contains("others could take"), "{outcome:?}");
    }
    squatter.finish().expect(0);
    cluster.start_agent(0);
}

/// The stores of staged files on a host, by name.
fn stores(cluster: &Cluster, host: usize) -> Vec<String> {
    let list = "ls -d /tmp/wireup-staged.* 2>/dev/null; true";
    let outcome = cluster.command(host, ["sh", "-c", list]).run().expect(0);
    outcome.out().lines().map(str::to_owned).collect()
}

#[test]
fn stranger_directories_in_place_of_staged_files_are_skipped() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let stage = || {
        let list = ["--hosts", "node01,node02", "-n", "2", "--map-by", "node"];
        // What only the first host has.
        let run = cluster
            .run(0, list)
            .more(["--stage", "/tmp/only", "staged"]);
        let script = "cp /bin/echo /tmp/only; \"$@\"; code=$?; rm /tmp/only; exit $code";
        let run = of(ALICE, run.under(["sh", "-c", script, "sh"]));
        let outcome = run.run().expect_quiet_success();
        assert_eq!(outcome.out(), "staged\nstaged\n");
    };
    stage();
    let own = stores(&cluster, 1);
    let [own] = &own[..] else {
        panic!("one store: {own:?}");
    };
    let (prefix, _) = own.rsplit_once('.').unwrap();
    on(&cluster, 1, &format!("rm -r {own}"));
    // Sorted before and behind any other name, with what might be taken for staged files.
    let names = ["", ".", ".0", ".0000000000000000", ".ffffffffffffffff"];
    let taken = names.map(|suffix| format!("{prefix}{suffix}"));
    let script = format!(
        "umask 0; mkdir {0} && for name in {0}; do echo no >$name/only; done",
        taken.join(" ")
    );
    of(MALLORY, cluster.command(1, ["sh", "-c", &script]))
        .run()
        .expect(0);
    stage();
    let now = stores(&cluster, 1);
    assert_eq!(now.len(), names.len() + 1, "{now:?}");
    on(&cluster, 1, &format!("rm -r {}", taken.join(" ")));
}

#[test]
fn stranger_directories_named_by_pid_do_not_stop_doctor() {
    let directory = || format!("/var/tmp/wireup-mpi-{}", rustix::process::getuid().as_raw());
    let directory =
        std::env::var_os("WIREUP_MPI_DIR").map_or_else(|| directory().into(), PathBuf::from);
    let compiler = directory.join("openmpi5/bin/mpicc");
    if !compiler.exists() {
        return skip("messages between ranks: scripts/setup");
    }
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    // Of all processes that come soon.
    let script = format!(
        "last=$(cat /proc/sys/kernel/ns_last_pid)
         setpriv --reuid {MALLORY} --regid {MALLORY} --clear-groups \\
             mkdir $(seq -f /tmp/wireup-doctor-%.0f $last $((last + 4000)))
         \"$@\"; code=$?
         rm -r /tmp/wireup-doctor-*
         exit $code"
    );
    let wireup = cluster.wireup().to_str().unwrap();
    let words = [wireup, "doctor", "--run", "--ppn", "1", "--mpicc"];
    let run = cluster.command(0, words).more([compiler]);
    let outcome = of(ALICE, run.under(["sh", "-c", &script, "sh"])).run();
    let out = outcome.out();
    let line = out
        .lines()
        .find(|line| line.contains(" - another rank here: "));
    assert!(
        line.is_some_and(|line| line.contains(" us, ")),
        "{outcome:?}"
    );
}
