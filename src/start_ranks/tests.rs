use std::sync::mpsc::{Receiver, channel};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, open};

use super::*;
use wireup_sys::descriptors;
use wireup_sys::spawn::{ExitStatus, wait};

fn shared(program: &str, ranks: u32) -> Arc<StartShared> {
    let null = || open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let program = CString::new(program).unwrap();
    Arc::new(StartShared {
        apps: vec![AppExec {
            executed: ExecSpec {
                argv: vec![program.clone()],
                program,
            },
            env: Vec::new(),
            cwd: None,
            settings: ProcessSettings::default(),
        }],
        env: Vec::new(),
        node_env: Vec::new(),
        view: None,
        namespaces: None,
        group: None,
        oom_score: None,
        reset_signals: Vec::new(),
        null: null(),
        stdin: null(),
        lowest_rank_fd: descriptors::lowest_rank_fd(ranks as usize),
    })
}

fn plans(count: u32) -> Vec<RankPlan> {
    let plan = |rank| RankPlan {
        process: GlobalRank(rank),
        node: 0,
        app: 0,
        wrapper: None,
        env: Vec::new(),
        cpus: Vec::new(),
        memory: None,
        stdin: StdinPlan::Empty,
        output: OutputPlan::Pipes,
        pmi: false,
        stopped: false,
    };
    (0..count).map(plan).collect()
}

/// Starts these ranks with these threads and waits for the eventfd; returns the results so far. The ranks get a signal when
/// the threads of `pool` end.
fn reported(
    pool: &mut StarterThreads,
    program: &str,
    (ranks, threads): (u32, usize),
    after: impl FnOnce(&RankStarter),
) -> Vec<StartResult> {
    let (results_to, results): (_, Receiver<StartResult>) = channel();
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let starter = RankStarter::start(
        shared(program, ranks),
        plans(ranks),
        pool,
        threads,
        &results_to,
        &wake,
    );
    let starter = starter.unwrap();
    after(&starter);
    let limit = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let mut woken = [PollFd::new(&wake, PollFlags::IN)];
    assert_eq!(
        poll(&mut woken, Some(&limit)),
        Ok(1),
        "the eventfd is not readable"
    );
    let mut start_results = results.try_iter().collect::<Vec<_>>();
    let mut count = [0; 8];
    rustix::io::read(&wake, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
    assert!(results.try_recv().is_err(), "a result came later");
    start_results.sort_by_key(|(rank, _)| *rank);
    let reported_ranks: Vec<u32> = start_results.iter().map(|(rank, _)| rank.0).collect();
    assert_eq!(reported_ranks, (0..ranks).collect::<Vec<_>>());
    start_results
}

#[test]
fn all_starts_are_reported_when_loop_is_woken() {
    let mut pool = StarterThreads::default();
    for size in [(1, 2), (1, 1), (2, 2), (5, 1), (8, 2), (8, 3), (40, 2)] {
        for (rank, result) in reported(&mut pool, "/bin/true", size, |_| {}) {
            let process = result.unwrap_or_else(|error| panic!("{rank:?} of {size:?}: {error:?}"));
            assert_eq!(wait(&process.child.pidfd), Ok(ExitStatus::Code(0)));
        }
    }
}

#[test]
fn failed_start_is_reported_for_every_rank() {
    let mut pool = StarterThreads::default();
    for size in [(1, 2), (3, 2), (20, 2)] {
        for (_, result) in reported(&mut pool, "/nonexistent", size, |_| {}) {
            let error = result.err();
            assert_eq!(
                error,
                Some(RankStartError::Spawn(SpawnStage::Exec, Errno::NOENT))
            );
        }
    }
}

#[test]
fn cancelled_start_is_reported_for_every_rank() {
    let mut pool = StarterThreads::default();
    for process in reported(&mut pool, "/bin/true", (200, 2), RankStarter::stop) {
        match process.1 {
            Ok(process) => assert_eq!(wait(&process.child.pidfd), Ok(ExitStatus::Code(0))),
            Err(error) => assert_eq!(error, RankStartError::Skipped),
        }
    }
}

#[test]
fn nothing_is_started_after_stop_or_deadline() {
    let (results_to, results) = channel();
    let work = StartQueue {
        shared: shared("/bin/true", 3),
        pending_count: AtomicUsize::new(3),
        plans: plans(3).into_iter().map(Some).map(Mutex::new).collect(),
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(true),
        wake: Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
    };
    work.carry_out(&results_to, Some(Instant::now()));
    assert!(results.try_recv().is_err());
    work.carry_out(&results_to, None);
    let errors = results.try_iter().map(|(_, result)| result.err());
    assert_eq!(
        errors.collect::<Vec<_>>(),
        [Some(RankStartError::Skipped); 3]
    );
}
