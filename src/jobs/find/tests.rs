use super::*;

const OUTER: &str = "wireup-00000000000000aa";
const INNER: &str = "wireup-00000000000000bb";

fn process(pid: i32, parent: i32) -> Process {
    Process {
        pid,
        name: "app".into(),
        state: 'S',
        parent,
        group: pid,
        session: pid,
        cpu: 100,
        started: pid as u64,
        resident: 1,
    }
}

fn plain(pid: i32, parent: i32) -> Seen {
    Seen {
        process: process(pid, parent),
        uid: 7,
        mark: None,
        role: None,
    }
}

fn mark(job: &str, rank: Option<u32>) -> Option<Mark> {
    Some(Mark {
        job: job.into(),
        rank,
        size: rank.map(|_| 2),
        nodes: rank.map(|_| 1),
        node: rank.map(|_| (0, "alpha".into())),
        tmpdir: None,
    })
}

fn rank(pid: i32, parent: i32, job: &str, rank: u32) -> Seen {
    Seen {
        mark: mark(job, Some(rank)),
        ..plain(pid, parent)
    }
}

fn launcher(pid: i32, parent: i32) -> Seen {
    let mut seen = plain(pid, parent);
    seen.process.name = "wireup".into();
    seen.role = Some(Role::Launcher {
        command: vec!["-n".into(), "2".into(), "./app".into()],
        starting: false,
    });
    seen
}

fn guard(pid: i32, parent: i32, charge: &[i32]) -> Seen {
    let mut seen = plain(pid, parent);
    seen.role = Some(Role::Guard {
        charge: charge.to_vec(),
    });
    seen
}

fn of(processes: impl IntoIterator<Item = Seen>) -> Vec<Job> {
    let snapshot = Snapshot {
        processes: processes.into_iter().collect(),
        now: Duration::from_secs(1000),
    };
    jobs(&snapshot, Scope::All)
}

/// A running job of two ranks whose launcher has this pid.
pub(in crate::jobs) fn job(name: &str, pid: i32) -> Job {
    let mut found = of([
        launcher(pid, 1),
        rank(pid + 1, pid, name, 0),
        rank(pid + 2, pid, name, 1),
    ]);
    found.pop().unwrap()
}

/// Name, state, and the ranks with their pids.
type Shown<'a> = (Option<&'a str>, State, Vec<(u32, i32)>);

fn shown(jobs: &[Job]) -> Vec<Shown<'_>> {
    jobs.iter()
        .map(|job| {
            let ranks = job.ranks.iter().map(|rank| (rank.rank, rank.process.pid));
            (job.name.as_deref(), job.state, ranks.collect())
        })
        .collect()
}

#[test]
fn a_job_is_its_launcher_and_what_bears_its_name() {
    let mut child = plain(30, 12);
    child.process.session = 12;
    let jobs = of([
        plain(5, 1),
        launcher(10, 5),
        guard(11, 10, &[12, 13]),
        rank(12, 10, OUTER, 0),
        rank(13, 10, OUTER, 1),
        child,
    ]);
    assert_eq!(
        shown(&jobs),
        [(Some(OUTER), State::Running, vec![(0, 12), (1, 13)])]
    );
    assert_eq!((jobs[0].pid(), jobs[0].size), (Some(10), Some(2)));
    assert_eq!(jobs[0].node_count, Some(1));
    // What a rank started counts for it, with an environment of the job's or without.
    assert_eq!(
        jobs[0].ranks[0].resident,
        2 * rustix::param::page_size() as u64
    );
    assert_eq!(jobs[0].ranks[0].cpu, jobs[0].ranks[1].cpu * 2);
    assert_eq!(jobs[0].nodes(), [(0, "alpha".to_owned())]);
}

#[test]
fn a_launcher_inside_a_rank_has_a_job_of_its_own() {
    // The launcher itself is a rank, or a rank's child.
    for parent in [None, Some(plain(21, 20))] {
        let mut inner = launcher(22, if parent.is_some() { 21 } else { 10 });
        inner.mark = mark(OUTER, Some(0));
        let first = rank(20, 10, OUTER, 0);
        let jobs = of([launcher(10, 5), rank(13, 10, OUTER, 1)]
            .into_iter()
            .chain(parent.is_some().then_some(first))
            .chain(parent)
            .chain([inner, rank(24, 22, INNER, 0), rank(25, 22, INNER, 1)]));
        let outer_rank = if jobs[0].ranks[0].process.pid == 20 {
            20
        } else {
            22
        };
        assert_eq!(
            shown(&jobs),
            [
                (Some(OUTER), State::Running, vec![(0, outer_rank), (1, 13)]),
                (Some(INNER), State::Running, vec![(0, 24), (1, 25)])
            ]
        );
        assert_eq!(jobs[1].within.as_deref(), Some(OUTER));
        assert_eq!(jobs[0].within, None);
    }
}

#[test]
fn orphans_a_launcher_adopted_are_neither_ranks_nor_its_job() {
    // A daemon of rank 0, and a rank of a job inside whose launcher was killed.
    let jobs = of([
        launcher(10, 5),
        rank(30, 10, OUTER, 0),
        rank(29, 10, INNER, 1),
        rank(12, 10, OUTER, 0),
    ]);
    assert_eq!(
        shown(&jobs),
        [
            (Some(OUTER), State::Running, vec![(0, 12)]),
            (Some(INNER), State::Orphaned, vec![(1, 29)]),
        ]
    );
}

#[test]
fn a_child_on_its_way_to_exec_is_no_launcher() {
    let jobs = of([launcher(10, 5), launcher(11, 10)]);
    assert_eq!(shown(&jobs), [(None, State::Starting, vec![])]);
    assert_eq!(jobs[0].pid(), Some(10));
}

#[test]
fn a_job_without_ranks_starts_or_ends() {
    let mut server = rank(12, 10, OUTER, 0);
    server.mark = mark(OUTER, None);
    let with = |charge: &[i32]| of([launcher(10, 5), guard(11, 10, charge), server.clone()]);
    assert_eq!(
        shown(&with(&[12])),
        [(Some(OUTER), State::Starting, vec![])]
    );
    assert_eq!(
        shown(&with(&[12, -1])),
        [(Some(OUTER), State::Ending, vec![])]
    );
    let mut busy = launcher(10, 5);
    busy.role = Some(Role::Launcher {
        command: Vec::new(),
        starting: true,
    });
    let jobs = of([busy, rank(12, 10, OUTER, 0)]);
    assert_eq!(jobs[0].state, State::Starting);
}

#[test]
fn a_job_is_stopped_with_its_launcher_or_with_all_its_ranks() {
    let with = |launcher_state, first, second| {
        let mut all = [
            launcher(10, 5),
            rank(12, 10, OUTER, 0),
            rank(13, 10, OUTER, 1),
        ];
        for (seen, state) in all.iter_mut().zip([launcher_state, first, second]) {
            seen.process.state = state;
        }
        of(all)[0].state
    };
    assert_eq!(with('T', 'S', 'S'), State::Stopped);
    assert_eq!(with('S', 'T', 'T'), State::Stopped);
    assert_eq!(with('S', 'T', 'R'), State::Running);
}

#[test]
fn a_job_whose_launcher_is_gone_is_ended_by_its_guard_or_by_nobody() {
    let ranks = [rank(12, 1, OUTER, 0), rank(13, 1, OUTER, 1)];
    let orphaned = of(ranks.clone());
    assert_eq!(
        shown(&orphaned),
        [(Some(OUTER), State::Orphaned, vec![(0, 12), (1, 13)])]
    );
    assert_eq!((orphaned[0].pid(), orphaned[0].size), (Some(12), Some(2)));
    let guarded = of(ranks.into_iter().chain([guard(11, 1, &[-1, 13])]));
    assert_eq!(guarded[0].state, State::Ending);
}

#[test]
fn processes_whose_launcher_is_out_of_sight_are_not_orphans() {
    // Another user's launcher; a container's first process; a parent that was not seen.
    let mut foreign = plain(10, 5);
    foreign.process.name = "wireup".into();
    assert_eq!(of([foreign, rank(12, 10, OUTER, 0)]), []);
    assert_eq!(of([rank(1, 0, OUTER, 0), rank(12, 1, OUTER, 0)]), []);
    assert_eq!(of([rank(12, 10, OUTER, 0)]), []);
}

#[test]
fn what_has_ended_is_not_counted() {
    let mut all = [
        launcher(10, 5),
        rank(12, 10, OUTER, 0),
        rank(13, 10, OUTER, 1),
    ];
    all[1].process.state = 'Z';
    assert_eq!(shown(&of(all.clone()))[0].2, [(1, 13)]);
    all[0].process.state = 'Z';
    assert_eq!(of(all), []);
}

#[test]
fn jobs_come_in_the_order_of_their_start_and_belong_to_somebody() {
    let mut other = launcher(30, 5);
    other.uid = 8;
    let snapshot = Snapshot {
        processes: vec![other, launcher(20, 5), launcher(10, 5)],
        now: Duration::from_secs(1000),
    };
    let pids = |scope| {
        let jobs = jobs(&snapshot, scope);
        jobs.iter()
            .map(|job| job.pid().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(pids(Scope::All), [10, 20, 30]);
    assert_eq!(pids(Scope::User(8)), [30]);
    assert!(pids(Scope::User(9)).is_empty());
}
