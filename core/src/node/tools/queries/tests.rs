use crate::node::{JobContext, LaunchFacts, NodeCore, served};
use std::collections::VecDeque;
use std::sync::Arc;

use super::*;
use crate::job::appnums::Appnums;
use crate::job::ids::{AppNum, GlobalRank};
use crate::node::event::NodeEvent;
use crate::pmix::keys;
use crate::pmix::upcall::{AnswerParts, Notice, Upcall, UpcallRequest};
use crate::pmix::value::{Array, Info, PmixProc, Status, Value, find};

struct Names;

impl LaunchFacts for Names {
    fn host(&self, node: NodeId) -> Option<&str> {
        ["a", "b"].get(node.index()).copied()
    }

    fn executable(&self, app: AppNum) -> Option<Vec<u8>> {
        Some(format!("/bin/app{app}").into_bytes())
    }

    fn command(&self, app: AppNum) -> Option<Vec<u8>> {
        Some(format!("/bin/app{app} x").into_bytes())
    }
}

/// Two nodes with two ranks each, in two application contexts; messages between them may be held.
struct Job {
    cores: Vec<NodeCore>,
    /// The requests that wait until starts are known; none, unless they are unknown.
    awaiting: Vec<(u32, QueryId)>,
    starting: bool,
    hold: bool,
    held: VecDeque<(u32, NodeId, PeerMessage)>,
    last: u64,
    answers: Vec<AnswerParts>,
}

impl Job {
    fn new() -> Self {
        let job = JobContext {
            app_map: Appnums::from_sizes([1, 3]),
            universe_size: 8,
            unbounded_universe: false,
            ..served::job(&[2, 2])
        };
        let mut cores = served::cores(job, false);
        for core in &mut cores {
            core.add_facts(JobIndex(0), Arc::new(Names));
        }
        let mut job = Self {
            cores,
            starting: false,
            awaiting: Vec::new(),
            hold: false,
            held: VecDeque::new(),
            last: 0,
            answers: Vec::new(),
        };
        for rank in 0..4 {
            let (node, local, pid) = (rank / 2, NodeRank(rank % 2), 100 + rank);
            job.feed(node, NodeEvent::RankStarted { rank: local, pid });
        }
        job
    }

    fn feed(&mut self, node: u32, event: NodeEvent<'_>) {
        let mut actions = Vec::new();
        self.cores[node as usize].handle(event, Moment::default(), &mut actions);
        for action in actions {
            match action {
                NodeAction::SendPeer { to, message } => {
                    self.held.push_back((to.0, NodeId(node), message));
                }
                NodeAction::SendUpcall(bytes) => {
                    let answers = served::answers(&bytes);
                    self.answers.extend(answers.map(|(_, parts)| parts));
                }
                NodeAction::AwaitStarts { query, .. } if self.starting => {
                    self.awaiting.push((node, query))
                }
                NodeAction::AwaitStarts { query, .. } => {
                    self.feed(node, NodeEvent::StartsReported(query))
                }
                // Rank n uses n megabytes, the server 100.
                NodeAction::MeasureMemory { query, pids } => {
                    let weighed = pids
                        .into_iter()
                        .map(|pid| (pid, u64::from(pid - 100) << 20));
                    let event = NodeEvent::MemoryMeasured {
                        query,
                        server: Some(100 << 20),
                        processes: weighed.collect(),
                    };
                    self.feed(node, event);
                }
                _ => {}
            }
        }
        while !self.hold
            && let Some((to, from, message)) = self.held.pop_front()
        {
            self.feed(to, NodeEvent::Peer { from, message });
        }
    }

    /// Asks at node 0; the answer is the last.
    fn ask(&mut self, keys: &[&str], qualifiers: Vec<Info>) -> usize {
        self.last += 1;
        let upcall = Upcall::Request(UpcallRequest::Query {
            proc: proc(0),
            queries: vec![Query {
                keys: keys.iter().map(|key| (*key).into()).collect(),
                qualifiers,
            }],
        });
        let frame = upcall.encode(self.last).unwrap();
        self.feed(0, NodeEvent::UpcallReceived(&frame));
        self.answers.len()
    }

    #[track_caller]
    fn answer(&mut self, keys: &[&str], qualifiers: Vec<Info>) -> AnswerParts {
        let before = self.answers.len();
        assert_eq!(self.ask(keys, qualifiers), before + 1, "one answer");
        self.answers.pop().unwrap()
    }
}

#[test]
fn query_waits_for_unreported_start_of_rank() {
    let mut job = Job::new();
    job.starting = true;
    assert_eq!(job.ask(&[keys::QUERY_PROC_TABLE], Vec::new()), 0);
    let (rank, pid) = (NodeRank(1), 999);
    job.feed(1, NodeEvent::RankStarted { rank, pid });
    for (node, query) in std::mem::take(&mut job.awaiting) {
        job.feed(node, NodeEvent::StartsReported(query));
    }
    let parts = job.answers.pop().expect("an answer");
    let pids: Vec<u32> = rows(&parts, keys::QUERY_PROC_TABLE)
        .into_iter()
        .map(|row| row.3)
        .collect();
    assert_eq!(pids, [100, 101, 102, 999]);
}

fn proc(rank: u32) -> PmixProc {
    PmixProc::new(&Nspace::new("job").unwrap(), Rank(rank))
}

/// Rank, host, executable, pid, exit code and state of each row.
fn rows(parts: &AnswerParts, key: &str) -> Vec<(u32, String, String, u32, i32, u8)> {
    let Some(Value::Array(array)) = find(&parts.infos, key) else {
        panic!("{parts:?}");
    };
    let row = |value: &Value| {
        let Value::ProcInfo(info) = value else {
            panic!("{value:?}");
        };
        (
            info.proc.rank.0,
            info.hostname.to_string(),
            info.executable.to_string(),
            info.pid,
            info.exit_code,
            info.state,
        )
    };
    array.items().iter().map(row).collect()
}

fn row(rank: u32, pid: u32, exit_code: i32, state: u8) -> (u32, String, String, u32, i32, u8) {
    let host = if rank < 2 { "a" } else { "b" };
    let app = format!("/bin/app{}", u32::from(rank > 0));
    let known = if pid > 0 { app } else { String::new() };
    (rank, host.to_owned(), known, pid, exit_code, state)
}

#[test]
fn process_table_has_state_and_exit_code_of_every_process() {
    let mut job = Job::new();
    let connected = Upcall::Notice(Notice::ClientConnected {
        proc: proc(1),
        infos: Vec::new(),
    });
    let frame = connected.encode(0).unwrap();
    job.feed(0, NodeEvent::UpcallReceived(&frame));
    for (rank, end) in [(0, RankEnd::Signal(9)), (1, RankEnd::Code(3))] {
        let rank = NodeRank(rank);
        job.feed(1, NodeEvent::RankEnded { rank, end });
    }
    let parts = job.answer(&[keys::QUERY_PROC_TABLE], Vec::new());
    assert_eq!(parts.status, Status::SUCCESS);
    let expected = [
        row(0, 100, 0, 5),
        row(1, 101, 0, 6),
        row(2, 102, 137, 54),
        row(3, 103, 3, 62),
    ];
    assert_eq!(rows(&parts, keys::QUERY_PROC_TABLE), expected);
    let parts = job.answer(&[keys::QUERY_LOCAL_PROC_TABLE], Vec::new());
    assert_eq!(rows(&parts, keys::QUERY_LOCAL_PROC_TABLE), expected[..2]);
    let of = |key, value| vec![Info::new(key, value)];
    let parts = job.answer(
        &[keys::QUERY_LOCAL_PROC_TABLE],
        of(keys::HOSTNAME, Value::String("b".into())),
    );
    assert_eq!(rows(&parts, keys::QUERY_LOCAL_PROC_TABLE), expected[2..]);
    let parts = job.answer(
        &[keys::QUERY_PROC_TABLE],
        of(keys::PROCID, Value::Proc(proc(2))),
    );
    assert_eq!(rows(&parts, keys::QUERY_PROC_TABLE), expected[2..3]);
}

#[test]
fn processes_of_lost_node_are_listed_as_lost() {
    let mut job = Job::new();
    job.hold = true;
    assert_eq!(job.ask(&[keys::QUERY_PROC_TABLE], Vec::new()), 0);
    let lost = |job: &mut Job| {
        let reason = "the cable".into();
        let nodes = &[NodeId(1)];
        job.feed(0, NodeEvent::NodesLost { nodes, reason });
    };
    lost(&mut job);
    assert_eq!(job.answers.len(), 1);
    let rows = rows(&job.answers[0], keys::QUERY_PROC_TABLE);
    let expected = [
        row(0, 100, 0, 5),
        row(1, 101, 0, 5),
        row(2, 0, 0, 56),
        row(3, 0, 0, 56),
    ];
    assert_eq!(rows, expected);
    assert_eq!(job.answers[0].status, Status::SUCCESS);
}

#[test]
fn silent_node_makes_partial_reply() {
    let mut job = Job::new();
    job.hold = true;
    let timeout = vec![Info::new(keys::TIMEOUT, Value::Int(3))];
    assert_eq!(job.ask(&[keys::QUERY_PROC_TABLE], timeout), 0);
    let due = Moment(Duration::from_secs(3));
    assert_eq!(job.cores[0].services.queries.next_deadline(), Some(due));
    let mut actions = Vec::new();
    job.cores[0].with_actions(due, &mut actions, |core| {
        core.services
            .queries
            .with_engine(&mut core.cx, |engine, out| engine.tick(due, out));
    });
    let [NodeAction::SendUpcall(bytes)] = &actions[..] else {
        panic!("{actions:?}");
    };
    let (_, parts) = served::answers(bytes).next().unwrap();
    assert_eq!(parts.status, Status::ERR_PARTIAL_SUCCESS);
    let states: Vec<u8> = rows(&parts, keys::QUERY_PROC_TABLE)
        .iter()
        .map(|row| row.5)
        .collect();
    assert_eq!(states, [5, 5, 0, 0]);
}

#[test]
fn unanswerable_query_gets_status_with_reason() {
    let mut job = Job::new();
    let required = |key: &str, value| Info {
        required: true,
        ..Info::new(key, value)
    };
    let name = |name: &str| Value::String(name.into());
    for (keys, qualifiers, status) in [
        (vec!["x"], vec![], Status::ERR_NOT_SUPPORTED),
        (
            vec![keys::QUERY_NAMESPACES, "x"],
            vec![],
            Status::ERR_PARTIAL_SUCCESS,
        ),
        (
            vec![keys::QUERY_PROC_TABLE],
            vec![Info::new(keys::NSPACE, name("other"))],
            Status::ERR_NOT_FOUND,
        ),
        (
            vec![keys::QUERY_PROC_TABLE],
            vec![Info::new(keys::NSPACE, Value::Bool(true))],
            Status::ERR_BAD_PARAM,
        ),
        (
            vec![keys::QUERY_PROC_TABLE],
            vec![Info::new(keys::RANK, Value::Rank(Rank(4).into()))],
            Status::ERR_NOT_FOUND,
        ),
        (
            vec![keys::QUERY_PROC_TABLE],
            vec![Info::new(keys::RANK, Value::Int32(4))],
            Status::ERR_NOT_FOUND,
        ),
        (
            vec![keys::QUERY_NAMESPACES],
            vec![required("x", Value::Bool(true))],
            Status::ERR_NOT_SUPPORTED,
        ),
        (
            vec![keys::QUERY_NAMESPACES],
            vec![Info::new("x", Value::Bool(true))],
            Status::SUCCESS,
        ),
    ] {
        assert_eq!(job.answer(&keys, qualifiers).status, status, "{keys:?}");
    }
}

#[test]
fn nodes_and_processes_of_one_or_all_jobs_are_listed() {
    let mut job = Job::new();
    let context = JobContext {
        nspace: Nspace::new("child").unwrap(),
        first_global_rank: GlobalRank(4),
        ..served::job(&[0, 1])
    };
    let context = Arc::new(context);
    for core in &mut job.cores {
        let (context, now) = (Arc::clone(&context), Moment::default());
        core.with_actions(now, &mut Vec::new(), |core| {
            core.add_job(context, false, &[])
        })
        .unwrap();
    }
    let mut ask = |key: &str, nspace: &str, host: Option<&str>| {
        let name = |name: &str| Value::String(name.into());
        let mut qualifiers = vec![Info::new(keys::NSPACE, name(nspace))];
        qualifiers.extend(host.map(|host| Info::new(keys::HOSTNAME, name(host))));
        let parts = job.answer(&[key], qualifiers);
        (parts.status, find(&parts.infos, key).cloned())
    };
    for (nspace, nodes) in [("job", "a,b"), ("child", "b"), ("", "a,b")] {
        let nodes = Some(Value::String(nodes.into()));
        let reply = ask(keys::QUERY_RESOLVE_NODE, nspace, None);
        assert_eq!(reply, (Status::SUCCESS, nodes), "{nspace}");
    }
    // Or libpmix 5.0 would tell those of all jobs.
    let reply = ask(keys::QUERY_RESOLVE_NODE, "other", None);
    assert_eq!(reply, (Status::SUCCESS, None));
    let child = PmixProc::new(&context.nspace, Rank(0));
    for (nspace, host, procs) in [
        ("job", "a", vec![proc(0), proc(1)]),
        ("job", "b", vec![proc(2), proc(3)]),
        ("child", "b", vec![child.clone()]),
        ("", "b", vec![proc(2), proc(3), child]),
    ] {
        let procs = procs.into_iter().map(Value::Proc).collect();
        let procs = Array::new(procs).map(Value::Array);
        let reply = ask(keys::QUERY_RESOLVE_PEERS, nspace, Some(host));
        assert_eq!(reply, (Status::SUCCESS, procs), "{nspace} on {host}");
    }
    for (nspace, host) in [("child", "a"), ("other", "a"), ("job", "c")] {
        let reply = ask(keys::QUERY_RESOLVE_PEERS, nspace, Some(host));
        assert_eq!(reply, (Status::ERR_NOT_FOUND, None), "{nspace} on {host}");
    }
}

#[test]
fn memory_of_each_node_is_reported_with_bounds() {
    let mut job = Job::new();
    let ended = RankEnd::Code(0);
    let rank = NodeRank(0);
    job.feed(1, NodeEvent::RankEnded { rank, end: ended });
    let minmax = Info::new(keys::QUERY_REPORT_MINMAX, Value::Bool(true));
    let parts = job.answer(&[keys::QUERY_MEMORY_USAGE], vec![minmax]);
    let Some(Value::Infos(nodes)) = find(&parts.infos, keys::QUERY_MEMORY_USAGE) else {
        panic!("{parts:?}");
    };
    let memory: Vec<Vec<Option<f32>>> = nodes
        .iter()
        .map(|node| {
            let Value::Infos(infos) = &node.value else {
                panic!("{node:?}");
            };
            let of = |key| match find(infos, key) {
                Some(Value::Float(value)) => Some(*value),
                _ => None,
            };
            [
                keys::DAEMON_MEMORY,
                keys::CLIENT_AVG_MEMORY,
                keys::MIN_VALUE,
                keys::MAX_VALUE,
            ]
            .map(of)
            .to_vec()
        })
        .collect();
    let numbers = |numbers: [f32; 4]| numbers.map(Some).to_vec();
    // Rank 2 has ended.
    let expected = [
        numbers([100.0, 0.5, 0.0, 1.0]),
        numbers([100.0, 3.0, 3.0, 3.0]),
    ];
    assert_eq!(memory, expected);
    let parts = job.answer(&[keys::CLIENT_AVG_MEMORY, keys::DAEMON_MEMORY], Vec::new());
    let half = Some(&Value::Float(0.5));
    assert_eq!(find(&parts.infos, keys::CLIENT_AVG_MEMORY), half);
}
