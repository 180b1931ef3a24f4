//! The loss of the second of three hosts, whatever the ranks are doing, and what it must come to.

use crate::cluster::Cluster;
use crate::common::Running;

/// Fault of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Crash,
    Isolate,
}

pub(crate) const FAULTS: [Fault; 2] = [Fault::Crash, Fault::Isolate];

impl Fault {
    pub(crate) fn strike(self, cluster: &Cluster, host: usize) {
        let (lab, host) = (cluster.lab(), cluster.host(host));
        match self {
            Self::Crash => lab.crash(host).unwrap(),
            Self::Isolate => lab.isolate(host).unwrap(),
        }
    }
}

/// The second host is one among others, or the head node of a launch that was started on another.
const LISTS: [&str; 2] = ["node01:1,node02:1,node03:1", "node02:1,node03:1"];

/// Loses the second host when `start` has brought a launch from the first one, on such a list and with so
/// many ranks, to the point of the loss. The launch must end soon and give the reason.
pub(crate) fn everywhere(start: impl Fn(&Cluster, &str, u32) -> Running + Sync) {
    // Most of the time is spent waiting, so both lists do at once.
    std::thread::scope(|scope| {
        for list in LISTS {
            let start = &start;
            scope.spawn(move || FAULTS.map(|fault| lose(list, fault, start)));
        }
    });
}

fn lose(list: &str, fault: Fault, start: impl Fn(&Cluster, &str, u32) -> Running) {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let running = start(&cluster, list, list.split(',').count() as u32);
    fault.strike(&cluster, 1);
    // All hosts are clean then, also one that was cut off.
    let outcome = running.finish();
    let when = || format!("{fault:?} of node02 of {list}; {outcome:?}");
    assert_ne!(outcome.code, 0, "{}", when());
    let err = outcome.err();
    let cause = err.lines().find(|line| line.starts_with("wireup: "));
    assert!(cause.is_some_and(|l| l.contains("node02")), "{}", when());
    if matches!(fault, Fault::Isolate) {
        cluster.lab().heal_all().unwrap();
    }
    let rest = ["--hosts", "node01:1,node03:1", "-n", "2", "true"];
    cluster.run(0, rest).run().expect_quiet_success();
}
