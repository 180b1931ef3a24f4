//! Launches on disjoint hosts that know nothing of each other.

use crate::cluster::Cluster;
use crate::common::{Mpi, Outcome, Output, Pmix, Run, field, mpi};
use crate::lost::{FAULTS, Fault};
use crate::pmix::versions;

for_each_mpi!(mpich5 impi openmpi4 openmpi5: {
    names_of_launch_are_found_by_others => |mpi| names(&mpi),
});

/// Hosts of two launches: the index of that of the launcher, and the list of those of the ranks.
type Places = [(usize, &'static str); 2];

/// Started on one host, on disjoint ones.
const ONE_LOGIN: Places = [(0, "node01:1,node02:1"), (0, "node03:1,node04:1")];
/// Two launches that start on two hosts.
const TWO_LOGINS: Places = [(0, "node01:1,node02:1"), (2, "node03:1,node04:1")];

fn launch(cluster: &Cluster, mpi: &Mpi, (host, list): (usize, &str), mode: &str) -> Run {
    let run = cluster.run(host, ["--hosts", list, "-n", "2"]);
    let run = run.more([mpi.program("launches")]);
    let run = run.more([mode, "the service"]);
    let own = mpi.env.iter();
    own.fold(run, |run, (name, value)| run.env(name, value))
}

fn two(cluster: &Cluster, mpi: &Mpi, places: Places, modes: [&str; 2]) -> [Outcome; 2] {
    let runs = [0, 1].map(|at| launch(cluster, mpi, places[at], modes[at]).start());
    runs.map(|run| run.finish().expect(0))
}

fn names(mpi: &Mpi) {
    // Launches of one host share the name server of its agent; those of two hosts need a configured
    // one.
    let Some(cluster) = Cluster::builder(4).names_at("node02,node01").start() else {
        return;
    };
    for places in [ONE_LOGIN, TWO_LOGINS] {
        let [publisher, looker] = two(&cluster, mpi, places, ["publish", "lookup"]);
        let got = |outcome: &Outcome| {
            let lines = outcome.by_rank("launches", 2);
            field(&lines[0], "got").map(str::to_owned)
        };
        assert_eq!(got(&publisher).as_deref(), Some("bye"));
        assert_eq!(got(&looker).as_deref(), Some("tag#0$port=of;rank:0$"));
    }
}

/// Both halves of every MPI that is here.
fn accept_and_connect(cluster: &Cluster, places: Places) {
    for name in ["mpich5", "impi", "openmpi4", "openmpi5"] {
        let Some(mpi) = mpi(name) else { continue };
        let mpi = mpi.with_dynamic_processes();
        for outcome in two(cluster, &mpi, places, ["accept", "connect"]) {
            for line in outcome.by_rank("launches", 2) {
                assert_eq!(field(&line, "got"), Some("6"), "{line}");
            }
        }
    }
}

#[test]
fn launches_of_one_host_connect_without_settings() {
    if let Some(cluster) = Cluster::new(4) {
        accept_and_connect(&cluster, ONE_LOGIN);
    }
}

#[test]
fn launches_of_two_hosts_connect_through_configured_agents() {
    if let Some(cluster) = Cluster::builder(4).names_at("node02").start() {
        accept_and_connect(&cluster, TWO_LOGINS);
    }
}

/// A launch of one rank, on the host where it is started.
fn lone(cluster: &Cluster, stage: &Pmix, host: usize, what: &str) -> Run {
    let name = cluster.host(host).name();
    let options = ["--hosts", name, "--libpmix", stage.path(), "-n", "1"];
    let run = cluster.run(host, options);
    let run = run.more([stage.dir.join("pmix_launches")]);
    run.more(what.split(' '))
}

fn did(outcome: &Outcome) -> Vec<String> {
    let out = outcome.out();
    let lines = out.lines().filter_map(|line| field(line, "status"));
    lines
        .map(|status| status.trim_start_matches("PMIX_").to_owned())
        .collect()
}

/// Fate of the host of the name server.
#[derive(Clone, Copy, Debug)]
enum Loss {
    OfItsAgent,
    Of(Fault),
}

#[test]
fn next_agent_replaces_lost_name_server() {
    std::thread::scope(|scope| {
        let losses = [Loss::OfItsAgent].into_iter();
        for loss in losses.chain(FAULTS.map(Loss::Of)) {
            for stage in versions() {
                scope.spawn(move || next_rendezvous(&stage, loss));
            }
        }
    });
}

fn next_rendezvous(stage: &Pmix, loss: Loss) {
    let Some(cluster) = Cluster::builder(3).names_at("node01,node02").start() else {
        return;
    };
    let waits = lone(
        &cluster,
        stage,
        2,
        "offer a session want b 0 look a want c 60",
    );
    let waits = waits.start();
    waits.wait_for(Output::Stdout, "waits=b");
    match loss {
        Loss::OfItsAgent => cluster.kill_agent(0),
        Loss::Of(fault) => fault.strike(&cluster, 0),
    }
    waits.wait_for(Output::Stdout, "waits=c");
    let offers = lone(&cluster, stage, 1, "offer c session want c.seen 1");
    offers.run().expect(0);
    let waits = waits.finish().expect(0);
    let did = did(&waits);
    assert_eq!(did.len(), 4, "{loss:?}; {waits:?}");
    assert!(did[1].contains("LOST"), "{loss:?}; {waits:?}");
    assert!(did[2].contains("NOT"), "{loss:?}; {waits:?}");
    assert_eq!(did[3], "SUCCESS", "{loss:?}; {waits:?}");
    let err = waits.err();
    let notices = err.matches("the name server of your launches is lost");
    assert_eq!(notices.count(), 1, "{loss:?}; {waits:?}");
    match loss {
        Loss::OfItsAgent => cluster.start_agent(0),
        Loss::Of(_) => cluster.lab().heal_all().unwrap(),
    }
}

#[test]
fn loss_of_host_is_reported_to_connected_launches() {
    std::thread::scope(|scope| {
        for fault in FAULTS {
            for stage in versions() {
                scope.spawn(move || connects_with_the_lost(&stage, fault));
            }
        }
    });
}

fn connects_with_the_lost(stage: &Pmix, fault: Fault) {
    let Some(cluster) = Cluster::builder(3).names_at("node01").start() else {
        return;
    };
    let waits = lone(&cluster, stage, 1, "tell a join b 60").start();
    let never = lone(&cluster, stage, 2, "tell b want never 0").start();
    waits.wait_for(Output::Stdout, "joins=b");
    never.wait_for(Output::Stdout, "waits=never");
    fault.strike(&cluster, 2);
    let (waits, never) = (waits.finish().expect(0), never.finish());
    let last_result = |outcome: &Outcome| did(outcome).pop().unwrap_or_default();
    assert!(last_result(&waits).contains("LOST"), "{fault:?}; {waits:?}");
    // Who was cut off has lost where it waits.
    if matches!(fault, Fault::Isolate) {
        assert!(last_result(&never).contains("LOST"), "{never:?}");
    }
    cluster.lab().heal_all().unwrap();
}

#[test]
fn launch_on_one_machine_uses_name_server_of_its_agent() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for stage in versions() {
        let program = stage.dir.join("pmix_launches");
        let plain = |what: &str| {
            let run = cluster.run(0, ["--libpmix", stage.path(), "-n", "1"]);
            run.more([program.as_os_str()]).more(what.split(' '))
        };
        // Only one of them is on several hosts.
        let waits = plain("want a 60").start();
        waits.wait_for(Output::Stdout, "waits=a");
        let run = cluster.run(
            0,
            ["--hosts", "node02", "--libpmix", stage.path(), "-n", "1"],
        );
        let offers = run.more([program.as_os_str()]);
        offers.more(["offer", "a", "indef"]).run().expect(0);
        assert_eq!(did(&waits.finish().expect(0)), ["SUCCESS"]);
    }
}
