//! A user who takes the places where those of another look for an agent or for each other, listens there
//! and accepts no connection: no launch waits for that.

use rustix::process::Signal;

use crate::cluster::{ALICE, BOB, Cluster};
use crate::common::{Output, Run, Running, pmix};
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

/// The names of Alice's rendezvous that anybody could take.
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
fn a_socket_of_a_stranger_where_a_users_agent_would_be_holds_nobody_up() {
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
    outcome.expect_one_line(&[
        "no agent serves this machine",
        "is not yours or root's alone",
    ]);
    cluster.start_agent(0);
    squatter.finish().expect(0);
}

#[test]
fn a_launcher_that_waits_for_an_agent_to_accept_it_can_be_interrupted_and_gives_up() {
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
fn names_that_a_stranger_takes_keep_no_launches_from_meeting() {
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
        err.contains("the rendezvous of your launches is lost"),
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
