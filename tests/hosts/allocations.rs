//! Slots of a launch on several hosts that its ranks set aside, give back and spawn into.

use crate::cluster::Cluster;
use crate::common::{Outcome, field};
use crate::pmix::versions;
use wireup_core::pmix::value::Status;

fn everywhere(options: &[&str], steps: &[&str], check: impl Fn(&Outcome)) {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for client in versions() {
        let hosts = "node01:2,node02:2,node03:2";
        let run = cluster.run(0, ["--hosts", hosts, "-n", "2"]);
        let run = run.more(options).more(["--libpmix", client.path()]);
        let run = run.more([client.dir.join("pmix_alloc")]).more(steps);
        check(&run.run().expect(0));
    }
}

/// The steps with their statuses and the other reports, in order.
fn answers(outcome: &Outcome) -> Vec<(Status, String)> {
    let out = outcome.out();
    let lines = out.lines().filter(|line| field(line, "step").is_some());
    let answer = |line: &str| {
        let (_, rest) = line.split_once(" status=").unwrap();
        let (status, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        (Status(status.parse().unwrap()), rest.to_owned())
    };
    lines.map(answer).collect()
}

/// Returns the hosts of children, sorted.
fn children(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.sorted_lines().into_iter();
    lines
        .filter_map(|line| field(&line, "host").map(str::to_owned))
        .collect()
}

#[test]
fn allocated_slots_are_reserved_for_spawns_into_allocation() {
    everywhere(
        &[],
        &[
            "new:slots=3;req=mine",
            "spawn:2",
            "spawn:3;id=a1",
            "spawn:1",
            "extend:id=a1;slots=1",
            "new:slots=1",
            "release:id=a1",
            "release:id=a1",
            "spawn:1;id=a1",
            "new",
            "new:slots=1;!queue=debug",
            "new:slots=1;queue=debug;list=node09",
        ],
        |outcome| {
            let full = Status::ERR_OUT_OF_RESOURCE;
            let none = String::new;
            let expected = [
                (
                    Status::SUCCESS,
                    "id=a1 req=mine nodes=2 list=node02,node03 slots=3 each=2,1".to_owned(),
                ),
                (Status::ERR_JOB_INSUFFICIENT_RESOURCES, none()),
                (Status::SUCCESS, none()),
                (Status::SUCCESS, none()),
            ];
            let answers = answers(outcome);
            assert_eq!(answers[..4], expected);
            // Whether the last child has left its slot by now is open.
            let (extended, rest) = &answers[4];
            match *extended {
                Status::SUCCESS => {
                    assert_eq!(rest, "id=a1 nodes=2 list=node02,node03 slots=4 each=2,2")
                }
                status => assert_eq!(status, full),
            }
            let statuses: Vec<Status> = answers[6..].iter().map(|(status, _)| *status).collect();
            assert_eq!(
                statuses,
                [
                    Status::SUCCESS,
                    Status::ERR_NOT_FOUND,
                    Status::ERR_BAD_PARAM,
                    Status::ERR_BAD_PARAM,
                    Status::ERR_NOT_SUPPORTED,
                    full,
                ]
            );
            let homes = ["node02", "node02", "node03", "node03"];
            assert_eq!(children(outcome), homes);
            let err = outcome.err();
            for words in [
                "cannot spawn: 2 ranks do not fit in 1 free slot",
                "cannot spawn: no allocation \"a1\"",
                "gets no allocation: no size given",
                "gets no allocation: pmix.alloc.queue is required, but only an allocator",
            ] {
                assert_eq!(err.matches(words).count(), 1, "{words}: {err}");
            }
        },
    );
}

#[test]
fn launch_releases_whole_hosts_and_allocates_them_again() {
    everywhere(
        &["-v"],
        &[
            "release:nodes=1;list=node03",
            "spawn:3",
            "new:nodes=2",
            "reacquire:slots=1",
            "reacquire",
            "reacquire",
            "new:nodes=2",
            "release:list=node02",
        ],
        |outcome| {
            let full = Status::ERR_OUT_OF_RESOURCE;
            let granted = |text: &str| (Status::SUCCESS, text.to_owned());
            let expected = [
                granted("nodes=1 list=node03 slots=2 each=2"),
                (Status::ERR_JOB_INSUFFICIENT_RESOURCES, String::new()),
                (full, String::new()),
                granted("nodes=1 list=node03 slots=1 each=1"),
                granted("nodes=1 list=node03 slots=1 each=1"),
                (Status::ERR_NOT_FOUND, String::new()),
                granted("id=a1 nodes=2 list=node02,node03 slots=4 each=2,2"),
                (full, String::new()),
            ];
            assert_eq!(answers(outcome), expected);
            let err = outcome.err();
            for words in [
                "rank 0: allocation of the launch: 2 on node03",
                "rank 0: allocation a1: 2 on node02, 2 on node03",
                "2 whole nodes are requested, but there are not enough free slots (0 on node[01,03], 2 on node02)",
            ] {
                assert!(err.contains(words), "{words}: {err}");
            }
        },
    );
}
