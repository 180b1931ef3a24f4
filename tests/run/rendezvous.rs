//! Launches that know nothing of each other meet without anything the user has started.

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{
    DEADLINE, Mpi, Outcome, Output, Pmix, Run, Running, eventually, field, mpi, pmix,
};
use crate::pmix::SERVERS;

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

for_each_mpi!(mpich5 impi openmpi4 openmpi5: {
    names_of_launch_are_found_until_unpublished_or_launch_ends => |mpi| names(&mpi),
});

/// Two runs of `launches`, side by side, in these modes.
fn two(mpi: &Mpi, options: &[&str], modes: [&str; 2]) -> [Outcome; 2] {
    let run = |mode| mpi.run(2, options, "launches", &[mode, "the service"]);
    let [first, second] = modes.map(run);
    let second = second.beside(&first);
    let (first, second) = (first.start(), second.start());
    [first.finish(), second.finish()].map(|outcome| outcome.expect(0))
}

fn names(mpi: &Mpi) {
    for nodes in NODES {
        let [publisher, looker] = two(mpi, nodes, ["publish", "lookup"]);
        let got = |outcome: &Outcome| {
            let lines = outcome.by_rank("launches", 2);
            field(&lines[0], "got").map(str::to_owned)
        };
        assert_eq!(got(&publisher).as_deref(), Some("bye"));
        assert_eq!(got(&looker).as_deref(), Some("tag#0$port=of;rank:0$"));
    }
}

#[test]
fn jobs_of_two_launches_connect_accept_and_part() {
    for name in ["mpich5", "impi", "openmpi4", "openmpi5"] {
        let Some(mpi) = mpi(name) else { continue };
        let mpi = mpi.with_dynamic_processes();
        for nodes in NODES {
            for outcome in two(&mpi, nodes, ["accept", "connect"]) {
                for line in outcome.by_rank("launches", 2) {
                    assert_eq!(field(&line, "got"), Some("6"), "{line}");
                }
            }
        }
    }
}

#[test]
fn launch_gets_event_of_kill_of_connected_launch() {
    for name in ["openmpi4", "openmpi5"] {
        let Some(mpi) = mpi(name) else { continue };
        for nodes in NODES {
            for signal in [Signal::TERM, Signal::KILL] {
                let run = |mode| mpi.run(2, nodes, "launches", &[mode, "the service"]);
                // What is left of a launcher that was killed is the guard's, which takes its time.
                let stays = run("stay").clean_within(DEADLINE);
                let parts = run("connect").beside(&stays);
                let (stays, parts) = (stays.start(), parts.start());
                stays.wait_for_many(Output::Stdout, "mode=met", 2);
                stays.signal(signal);
                stays.finish();
                // It wants to part in order, which takes both: an error, unless Open MPI 5 sees the
                // end of a connection first, which ends everything.
                let outcome = parts.finish();
                let err = outcome.err();
                let error = outcome.code == 1 && err.contains("MPI_Comm_disconnect: ");
                let closed = outcome.code == 14 && err.contains("Socket closed");
                assert!(error || closed, "{outcome:?}");
            }
        }
    }
}

/// Every libpmix, as server and client.
fn stages() -> impl Iterator<Item = Pmix> {
    SERVERS.iter().filter_map(|(name, _)| pmix(name))
}

fn launch(stage: &Pmix, what: &str) -> Run {
    let words: Vec<&str> = what.split(' ').collect();
    stage.run(1, &["--libpmix", stage.path()], "pmix_launches", &words)
}

/// The statuses of what was done, in order.
fn did(outcome: &Outcome) -> Vec<String> {
    let out = outcome.out();
    let lines = out.lines().filter_map(|line| field(line, "status"));
    // Versions of libpmix do not agree about how a status is written.
    let short = |status: &str| {
        let status = status
            .trim_start_matches("PMIX_")
            .trim_start_matches("ERR_");
        status.replace('_', "-")
    };
    lines.map(short).collect()
}

/// Whether a run has done the last of these.
fn await_did(run: &Running, what: &str) {
    run.wait_for(Output::Stdout, &format!("did={what} "));
}

/// The process that is the rendezvous of a run's surroundings.
fn rendezvous(run: &Running) -> Pid {
    eventually("a rendezvous below the guard", || {
        let guards = run.processes().into_iter();
        let all = crate::common::processes();
        let mut found = guards.flat_map(|guard| {
            let below = all.iter().filter(move |p| p.parent == guard.pid);
            below.filter(|p| p.name == "wireup-meet").map(|p| p.pid)
        });
        found.next().and_then(Pid::from_raw)
    })
}

#[test]
fn lookup_waits_for_late_publisher_of_other_launch() {
    for stage in stages() {
        let waiter = launch(&stage, "want a 60 look a offer seen indef");
        // Its own lookups wait until everything was seen.
        let offer = launch(&stage, "offer a first want seen 60 withdraw seen").beside(&waiter);
        let waiter = waiter.start();
        waiter.wait_for(Output::Stdout, "waits=a");
        let offer = offer.start().finish().expect(0);
        let waiter = waiter.finish().expect(0);
        assert_eq!(
            did(&waiter),
            ["SUCCESS", "NOT-FOUND", "SUCCESS"],
            "{waiter:?}"
        );
        assert_eq!(did(&offer)[..2], ["SUCCESS", "SUCCESS"], "{offer:?}");
    }
}

#[test]
fn lookup_of_unpublished_name_times_out() {
    for stage in stages() {
        let outcome = launch(&stage, "want a 1").run().expect(0);
        assert_eq!(did(&outcome), ["TIMEOUT"], "{outcome:?}");
    }
}

#[test]
fn only_indefinite_names_outlive_launch() {
    for stage in stages() {
        let looks = "want end 60 look indef look session look proc look first";
        let stays = launch(&stage, looks);
        let offers = "offer indef indef offer session session offer proc proc offer first first";
        let first = launch(&stage, offers).beside(&stays);
        let end = launch(&stage, "offer end indef want never 0").beside(&stays);
        let stays = stays.start();
        stays.wait_for(Output::Stdout, "waits=end");
        first.run().expect(0);
        let end = end.start();
        let stays = stays.finish().expect(0);
        let gone = "NOT-FOUND";
        assert_eq!(
            did(&stays),
            ["SUCCESS", "SUCCESS", gone, gone, gone],
            "{stays:?}"
        );
        end.signal(Signal::TERM);
        end.finish();
    }
}

#[test]
fn name_server_outlives_launch_that_started_it() {
    for stage in stages() {
        for signal in [Signal::TERM, Signal::KILL] {
            let first = launch(&stage, "offer a proc want never 0");
            let first = first.clean_within(DEADLINE);
            let waiter = launch(&stage, "look a want b 60").beside(&first);
            let last = launch(&stage, "offer b indef").beside(&first);
            let first = first.start();
            await_did(&first, "offer");
            let pid = rendezvous(&first);
            let waiter = waiter.start();
            waiter.wait_for(Output::Stdout, "waits=b");
            first.signal(signal);
            first.finish();
            assert!(crate::common::process(pid.as_raw_nonzero().get()).is_some());
            last.run().expect(0);
            let waiter = waiter.finish().expect(0);
            assert_eq!(did(&waiter), ["SUCCESS", "SUCCESS"], "{waiter:?}");
        }
    }
}

#[test]
fn loss_of_name_server_is_reported_once_and_next_is_used() {
    for stage in stages() {
        // A lookup that comes only after the loss waits at the next one, and times out.
        let outcome = eventually("a lookup was there in time", || {
            let run = launch(
                &stage,
                "offer a session want b 2 look a offer a session look a",
            );
            let run = run.clean_within(DEADLINE).start();
            run.wait_for(Output::Stdout, "waits=b");
            kill_process(rendezvous(&run), Signal::KILL).unwrap();
            let outcome = run.finish().expect(0);
            (did(&outcome)[1] != "TIMEOUT").then_some(outcome)
        });
        assert_eq!(
            did(&outcome),
            [
                "SUCCESS",
                "LOST-CONNECTION",
                "NOT-FOUND",
                "SUCCESS",
                "SUCCESS"
            ],
            "{outcome:?}"
        );
        let warnings = outcome
            .err()
            .matches("the name server of your launches is lost")
            .count();
        assert_eq!(warnings, 1, "{outcome:?}");
    }
}

#[test]
fn stopped_name_server_blocks_no_lookup() {
    let Some(stage) = stages().next() else {
        return;
    };
    let run = launch(&stage, "offer a session want b 0");
    let run = run.clean_within(DEADLINE).start();
    run.wait_for(Output::Stdout, "waits=b");
    let rendezvous = rendezvous(&run);
    kill_process(rendezvous, Signal::STOP).unwrap();
    await_did(&run, "want");
    kill_process(rendezvous, Signal::CONT).unwrap();
    let outcome = run.finish().expect(0);
    assert_eq!(did(&outcome)[1], "LOST-CONNECTION", "{outcome:?}");
    assert!(
        outcome.err().contains("did not answer within 10 s"),
        "{outcome:?}"
    );
}

#[test]
fn limits_sent_with_name_apply_to_other_launches() {
    let shared = tempfile::tempdir().unwrap();
    let files = format!("file:{}", shared.path().display());
    for stage in stages() {
        for store in ["agents", &files] {
            let run = |what: &str| launch(&stage, what).env("WIREUP_NAMES", store);
            // Names of the second go with it, so it stays until the first has seen the last.
            let first = run("few a 2 brief b 10 look b few c none want end 0 want never 0");
            let second = run("look a look a look a lose b 60 offer end session want never 0");
            let second = second.beside(&first);
            let first = first.start();
            await_did(&first, "look");
            let second = second.start();
            await_did(&first, "want");
            await_did(&second, "offer");
            second.signal(Signal::TERM);
            let counted = ["SUCCESS", "SUCCESS", "NOT-FOUND", "NOT-FOUND", "SUCCESS"];
            assert_eq!(did(&second.finish().expect(143)), counted, "{store}");
            first.signal(Signal::TERM);
            let published = ["SUCCESS", "SUCCESS", "SUCCESS", "BAD-PARAM", "SUCCESS"];
            assert_eq!(did(&first.finish().expect(143)), published, "{store}");
        }
    }
}

#[test]
fn launches_with_same_name_scope_share_names() {
    for stage in stages() {
        let words = |what: &'static str| what.split(' ').collect::<Vec<_>>();
        let named = |name, what| {
            let meet = format!("--names=meet={name}");
            let options = ["--libpmix", stage.path(), &meet];
            stage.run(1, &options, "pmix_launches", &words(what))
        };
        let first = named("one", "offer a session want never 0");
        let same = named("one", "look a").beside(&first);
        let other = named("two", "look a").beside(&first);
        let first = first.start();
        await_did(&first, "offer");
        assert_eq!(did(&same.run().expect(0)), ["SUCCESS"]);
        assert_eq!(did(&other.run().expect(0)), ["NOT-FOUND"]);
        first.signal(Signal::TERM);
        first.finish();
    }
}

#[test]
fn modex_of_other_launch_waits_until_its_timeout() {
    for stage in stages() {
        let asks = launch(&stage, "tell a join b 60 miss b 1");
        let never = launch(&stage, "tell b join a 60 want never 0").beside(&asks);
        let never = never.start();
        let asks = asks.run().expect(0);
        assert_eq!(did(&asks), ["SUCCESS", "SUCCESS", "TIMEOUT"], "{asks:?}");
        never.signal(Signal::TERM);
        never.finish();
    }
}

#[test]
fn launch_that_ends_before_connect_is_error_for_peer() {
    for stage in stages() {
        let waits = launch(&stage, "tell a join b 60");
        let never = launch(&stage, "tell b want never 0").beside(&waits);
        let waits = waits.start();
        let never = never.start();
        waits.wait_for(Output::Stdout, "joins=b");
        never.wait_for(Output::Stdout, "waits=never");
        never.signal(Signal::TERM);
        never.finish();
        let waits = waits.finish().expect(0);
        assert_eq!(did(&waits), ["SUCCESS", "LOST-CONNECTION"], "{waits:?}");
    }
}

#[test]
fn connect_to_absent_launch_times_out_as_configured() {
    for stage in stages() {
        let waits = launch(&stage, "tell a join b 1");
        let never = launch(&stage, "tell b want never 0").beside(&waits);
        let never = never.start();
        assert_eq!(did(&waits.run().expect(0)), ["SUCCESS", "TIMEOUT"]);
        never.signal(Signal::TERM);
        never.finish();
    }
}

#[test]
fn jobs_connect_part_and_connect_again_over_pmix() {
    for stage in stages() {
        let run = |own: &str, other: &str| {
            let join = format!("join {other} 60");
            launch(&stage, &format!("tell {own} {join} part {other} {join}"))
        };
        let first = run("a", "b");
        let second = run("b", "a").beside(&first);
        let (first, second) = (first.start(), second.start());
        for outcome in [first.finish().expect(0), second.finish().expect(0)] {
            assert_eq!(did(&outcome), ["SUCCESS"; 4], "{outcome:?}");
        }
    }
}
