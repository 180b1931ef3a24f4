use super::*;
use crate::plan::launch_names::LauncherProcess;
use wireup_core::job::ids::NodeId;
use wireup_core::job::process_map::ProcessMap;

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

fn plain(pid: i32, parent: i32) -> ProcessSnapshot {
    ProcessSnapshot {
        process: process(pid, parent),
        uid: 7,
        mark: None,
        role: None,
    }
}

fn mark(job: &str, rank: Option<u32>) -> Option<JobTag> {
    Some(JobTag {
        job: job.into(),
        rank,
        spawned_job: 0,
        size: rank.map(|_| 2),
        nodes: rank.map(|_| 1),
        node: rank.map(|_| (0, "alpha".into())),
    })
}

fn rank(pid: i32, parent: i32, job: &str, rank: u32) -> ProcessSnapshot {
    ProcessSnapshot {
        mark: mark(job, Some(rank)),
        ..plain(pid, parent)
    }
}

fn launcher(pid: i32, parent: i32) -> ProcessSnapshot {
    let mut snapshot = plain(pid, parent);
    snapshot.process.name = "wireup".into();
    snapshot.role = Some(ProcessRole::Launcher {
        command: vec!["-n".into(), "2".into(), "./app".into()],
        starting: false,
        label: None,
    });
    snapshot
}

fn guard(pid: i32, parent: i32, charge: &[i32]) -> ProcessSnapshot {
    let mut snapshot = plain(pid, parent);
    snapshot.role = Some(ProcessRole::Guard {
        charge: charge.to_vec(),
    });
    snapshot
}

/// Label of a job of four ranks on two hosts.
fn shows(job: &str, node: Option<u32>, stage: JobStage) -> Option<Box<job_label::LabelContents>> {
    let runs = [(NodeId(0), 2), (NodeId(1), 2)];
    Some(Box::new(job_label::LabelContents {
        job: job.into(),
        stage,
        placement: job_label::LabelPlacement {
            node: node.map(NodeId),
            hosts: vec!["alpha".into(), "beta".into()],
            absent: BTreeSet::new(),
            ranks: ProcessMap::from_runs(runs),
            launcher: Some(LauncherProcess {
                host: "login".into(),
                pid: 7,
            }),
        },
    }))
}

fn remote(pid: i32, job: &str, stage: JobStage) -> ProcessSnapshot {
    let mut snapshot = launcher(pid, 5);
    if let Some(ProcessRole::Launcher { label, .. }) = &mut snapshot.role {
        *label = shows(job, None, stage);
    }
    snapshot
}

fn agent(pid: i32) -> ProcessSnapshot {
    let mut snapshot = plain(pid, 1);
    snapshot.process.name = AGENT.into();
    snapshot.uid = 0;
    snapshot
}

fn step(pid: i32, parent: i32, job: &str, node: u32) -> ProcessSnapshot {
    let mut snapshot = plain(pid, parent);
    snapshot.process.name = "wireup".into();
    snapshot.role = Some(ProcessRole::Step {
        label: shows(job, Some(node), JobStage::Running),
    });
    snapshot
}

fn of(processes: impl IntoIterator<Item = ProcessSnapshot>) -> Vec<LocalJobInfo> {
    let snapshot = Snapshot {
        processes: processes.into_iter().collect(),
        now: Duration::from_secs(1000),
    };
    jobs(&snapshot, UserScope::All)
}

/// Running job of two ranks whose launcher has this pid.
pub(crate) fn job(name: &str, pid: i32) -> LocalJobInfo {
    let mut found = of([
        launcher(pid, 1),
        rank(pid + 1, pid, name, 0),
        rank(pid + 2, pid, name, 1),
    ]);
    found.pop().unwrap()
}

/// Name and state of a job, and its ranks with their pids.
type Shown<'a> = (Option<&'a str>, JobLifeState, Vec<(u32, i32)>);

fn shown(jobs: &[LocalJobInfo]) -> Vec<Shown<'_>> {
    jobs.iter()
        .map(|job| {
            let ranks = job.ranks.iter().map(|rank| (rank.rank, rank.process.pid));
            (job.name.as_deref(), job.state, ranks.collect())
        })
        .collect()
}

#[test]
fn ranks_of_spawned_jobs_are_separate_from_initial_job() {
    let spawned = |pid, number| {
        let mut snapshot = rank(pid, 10, OUTER, number);
        let mark = snapshot.mark.as_mut().unwrap();
        (mark.spawned_job, mark.size) = (1, Some(3));
        snapshot
    };
    let jobs = of([
        launcher(10, 5),
        spawned(14, 1),
        spawned(13, 0),
        rank(15, 10, OUTER, 1),
        rank(12, 10, OUTER, 0),
    ]);
    let ranks = jobs[0].ranks.iter();
    let ranks: Vec<_> = ranks
        .map(|rank| (rank.spawned_job, rank.rank, rank.process.pid))
        .collect();
    assert_eq!(ranks, [(0, 0, 12), (0, 1, 15), (1, 0, 13), (1, 1, 14)]);
    assert_eq!((jobs[0].size, jobs[0].first_ranks().count()), (Some(2), 2));
}

#[test]
fn job_is_launcher_and_processes_with_its_name() {
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
        [(Some(OUTER), JobLifeState::Running, vec![(0, 12), (1, 13)])]
    );
    assert_eq!((jobs[0].pid(), jobs[0].size), (Some(10), Some(2)));
    assert_eq!(jobs[0].node_count, Some(1));
    // Descendants of a rank count for it, with and without the job's name in their environment.
    assert_eq!(
        jobs[0].ranks[0].resident,
        2 * rustix::param::page_size() as u64
    );
    assert_eq!(jobs[0].ranks[0].cpu, jobs[0].ranks[1].cpu * 2);
    assert_eq!(jobs[0].nodes(), [(0, "alpha".to_owned())]);
}

#[test]
fn launcher_inside_rank_has_own_job() {
    // The launcher itself is a rank, or a child of a rank.
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
                (
                    Some(OUTER),
                    JobLifeState::Running,
                    vec![(0, outer_rank), (1, 13)]
                ),
                (Some(INNER), JobLifeState::Running, vec![(0, 24), (1, 25)])
            ]
        );
        assert_eq!(jobs[1].within.as_deref(), Some(OUTER));
        assert_eq!(jobs[0].within, None);
    }
}

#[test]
fn adopted_orphans_are_neither_ranks_nor_job_of_launcher() {
    // Daemon of rank 0, and a rank of an inner job whose launcher was killed.
    let jobs = of([
        launcher(10, 5),
        rank(30, 10, OUTER, 0),
        rank(29, 10, INNER, 1),
        rank(12, 10, OUTER, 0),
    ]);
    assert_eq!(
        shown(&jobs),
        [
            (Some(OUTER), JobLifeState::Running, vec![(0, 12)]),
            (Some(INNER), JobLifeState::Orphaned, vec![(1, 29)]),
        ]
    );
}

#[test]
fn child_before_exec_is_not_launcher() {
    let jobs = of([launcher(10, 5), launcher(11, 10)]);
    assert_eq!(shown(&jobs), [(None, JobLifeState::Starting, vec![])]);
    assert_eq!(jobs[0].pid(), Some(10));
}

#[test]
fn job_without_ranks_is_starting_or_ending() {
    let mut server = rank(12, 10, OUTER, 0);
    server.mark = mark(OUTER, None);
    let with = |charge: &[i32]| of([launcher(10, 5), guard(11, 10, charge), server.clone()]);
    assert_eq!(
        shown(&with(&[12])),
        [(Some(OUTER), JobLifeState::Starting, vec![])]
    );
    assert_eq!(
        shown(&with(&[12, -1])),
        [(Some(OUTER), JobLifeState::Ending, vec![])]
    );
    let mut busy = launcher(10, 5);
    busy.role = Some(ProcessRole::Launcher {
        command: Vec::new(),
        starting: true,
        label: None,
    });
    let jobs = of([busy, rank(12, 10, OUTER, 0)]);
    assert_eq!(jobs[0].state, JobLifeState::Starting);
}

#[test]
fn job_is_stopped_with_launcher_or_all_ranks() {
    let with = |launcher_state, first, second| {
        let mut all = [
            launcher(10, 5),
            rank(12, 10, OUTER, 0),
            rank(13, 10, OUTER, 1),
        ];
        for (snapshot, state) in all.iter_mut().zip([launcher_state, first, second]) {
            snapshot.process.state = state;
        }
        of(all)[0].state
    };
    assert_eq!(with('T', 'S', 'S'), JobLifeState::Stopped);
    assert_eq!(with('S', 'T', 'T'), JobLifeState::Stopped);
    assert_eq!(with('S', 'T', 'R'), JobLifeState::Running);
}

#[test]
fn job_without_launcher_is_ended_by_its_guard_or_orphaned() {
    let ranks = [rank(12, 1, OUTER, 0), rank(13, 1, OUTER, 1)];
    let orphaned = of(ranks.clone());
    assert_eq!(
        shown(&orphaned),
        [(Some(OUTER), JobLifeState::Orphaned, vec![(0, 12), (1, 13)])]
    );
    assert_eq!((orphaned[0].pid(), orphaned[0].size), (Some(12), Some(2)));
    let guarded = of(ranks.into_iter().chain([guard(11, 1, &[-1, 13])]));
    assert_eq!(guarded[0].state, JobLifeState::Ending);
}

#[test]
fn processes_with_invisible_launcher_are_not_orphans() {
    // Launcher of another user; first process of a container; parent that is missing in the snapshot.
    let mut foreign = plain(10, 5);
    foreign.process.name = "wireup".into();
    assert_eq!(of([foreign, rank(12, 10, OUTER, 0)]), []);
    assert_eq!(of([rank(1, 0, OUTER, 0), rank(12, 1, OUTER, 0)]), []);
    assert_eq!(of([rank(12, 10, OUTER, 0)]), []);
}

#[test]
fn ended_process_is_not_counted() {
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
fn jobs_are_listed_in_order_of_start_with_owner() {
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
    assert_eq!(pids(UserScope::All), [10, 20, 30]);
    assert_eq!(pids(UserScope::User(8)), [30]);
    assert!(pids(UserScope::User(9)).is_empty());
}

/// Nodes of the step daemons on this machine, with their pids.
fn steps(job: &LocalJobInfo) -> Vec<(Option<u32>, i32)> {
    let step = |step: &JobStep| (step.node.map(|node| node.0), step.process.pid);
    job.steps.iter().map(step).collect()
}

#[test]
fn launcher_on_several_hosts_shows_job_without_local_process() {
    for (stage, state) in [
        (JobStage::Starting, JobLifeState::Starting),
        (JobStage::Running, JobLifeState::Running),
        (JobStage::Ending, JobLifeState::Ending),
    ] {
        let jobs = of([remote(10, OUTER, stage), agent(20)]);
        assert_eq!(shown(&jobs), [(Some(OUTER), state, vec![])]);
        assert_eq!((jobs[0].size, jobs[0].node_count), (Some(4), Some(2)));
        assert_eq!((jobs[0].pid(), steps(&jobs[0])), (Some(10), vec![]));
        let elsewhere = [("alpha".into(), vec![0, 1]), ("beta".into(), vec![2, 3])];
        assert_eq!(jobs[0].remote_ranks(), elsewhere);
    }
}

#[test]
fn launcher_and_local_steps_are_one_job() {
    // One machine may have two agents; the second step daemon precedes the first in the snapshot.
    let with = |nodes: &[(i32, u32)]| {
        let parts = nodes.iter().flat_map(|(pid, node)| {
            let ranks = [2 * node, 2 * node + 1];
            let ranks = ranks.map(|number| rank(pid + 1 + number as i32, *pid, OUTER, number));
            [agent(pid - 1), step(*pid, pid - 1, OUTER, *node)]
                .into_iter()
                .chain(ranks)
        });
        of(parts.chain([remote(10, OUTER, JobStage::Running)]))
    };
    let jobs = with(&[(60, 1), (70, 0)]);
    let all = vec![(0, 71), (1, 72), (2, 63), (3, 64)];
    assert_eq!(shown(&jobs), [(Some(OUTER), JobLifeState::Running, all)]);
    assert_eq!(steps(&jobs[0]), [(Some(0), 70), (Some(1), 60)]);
    assert_eq!((jobs[0].pid(), jobs[0].remote_ranks()), (Some(10), vec![]));
    let jobs = with(&[(60, 1)]);
    assert_eq!(shown(&jobs)[0].2, [(2, 63), (3, 64)]);
    assert_eq!(jobs[0].remote_ranks(), [("alpha".into(), vec![0, 1])]);
    assert_eq!(jobs[0].launcher_elsewhere(), None);
    let jobs = of([agent(59), step(60, 59, OUTER, 1)]);
    let launcher = jobs[0].launcher_elsewhere().unwrap();
    assert_eq!(launcher.host, "login");
}

#[test]
fn lone_step_is_shown_as_job() {
    let part = [
        agent(20),
        step(21, 20, OUTER, 1),
        guard(22, 21, &[23, 24]),
        rank(23, 21, OUTER, 2),
        rank(24, 21, OUTER, 3),
    ];
    let jobs = of(part.clone());
    let ranks = vec![(2, 23), (3, 24)];
    assert_eq!(
        shown(&jobs),
        [(Some(OUTER), JobLifeState::Running, ranks.clone())]
    );
    assert_eq!((jobs[0].launcher.as_ref(), jobs[0].size), (None, Some(4)));
    let here: Vec<_> = jobs[0].nodes_here().map(|(_, name)| name).collect();
    assert_eq!((jobs[0].pid(), here), (Some(21), vec![Some("beta")]));
    // The agent was killed: the step daemon is a child of init, and ends by itself if it can.
    let mut orphaned = part.clone();
    orphaned[1].process.parent = 1;
    let jobs = of(orphaned[1..].to_vec());
    assert_eq!(shown(&jobs), [(Some(OUTER), JobLifeState::Orphaned, ranks)]);
    assert_eq!(steps(&jobs[0]), [(Some(1), 21)]);
    // Agent outside this PID namespace.
    let mut hidden = part.clone();
    hidden[1].process.parent = 0;
    assert_eq!(of(hidden[1..].to_vec())[0].state, JobLifeState::Running);
    // All ranks were stopped, or the step daemon was.
    let stopped = |which: &[usize]| {
        let mut part = part.clone();
        which.iter().for_each(|at| part[*at].process.state = 'T');
        of(part)[0].state
    };
    assert_eq!(stopped(&[3, 4]), JobLifeState::Stopped);
    assert_eq!(stopped(&[1]), JobLifeState::Stopped);
    assert_eq!(stopped(&[3]), JobLifeState::Running);
}

#[test]
fn step_without_job_has_no_name() {
    let mut early = step(21, 20, OUTER, 1);
    early.role = Some(ProcessRole::Step { label: None });
    // A process that it forks has the same arguments.
    let child = ProcessSnapshot {
        process: process(22, 21),
        ..early.clone()
    };
    let jobs = of([agent(20), early, child]);
    assert_eq!(shown(&jobs), [(None, JobLifeState::Starting, vec![])]);
    assert_eq!(steps(&jobs[0]), [(None, 21)]);
}

#[test]
fn steps_of_other_job_or_user_are_not_merged() {
    let mut foreign = step(31, 20, OUTER, 1);
    foreign.uid = 8;
    let jobs = of([
        remote(10, OUTER, JobStage::Running),
        agent(20),
        step(21, 20, INNER, 0),
        foreign,
        rank(22, 21, INNER, 0),
    ]);
    let parts: Vec<_> = jobs.iter().map(|job| (job.uid, steps(job))).collect();
    let expected = [
        (7, vec![]),
        (7, vec![(Some(0), 21)]),
        (8, vec![(Some(1), 31)]),
    ];
    assert_eq!(parts, expected);
    assert_eq!(jobs[1].name.as_deref(), Some(INNER));
}

#[test]
fn rank_of_step_may_launch_own_job() {
    let mut inner = launcher(23, 22);
    inner.mark = mark(OUTER, Some(2));
    let jobs = of([
        agent(20),
        step(21, 20, OUTER, 1),
        rank(22, 21, OUTER, 2),
        inner,
        rank(24, 23, INNER, 0),
        // Left by an inner job whose launcher was killed; the step daemon has adopted it.
        rank(25, 21, "wireup-00000000000000cc", 0),
    ]);
    assert_eq!(
        shown(&jobs),
        [
            (Some(OUTER), JobLifeState::Running, vec![(2, 22)]),
            (Some(INNER), JobLifeState::Running, vec![(0, 24)]),
            (
                Some("wireup-00000000000000cc"),
                JobLifeState::Orphaned,
                vec![(0, 25)]
            ),
        ]
    );
    assert_eq!(jobs[1].within.as_deref(), Some(OUTER));
    assert!(!jobs[1].is_on_several_hosts());
}
