use crate::node::NodeCore;
use std::collections::VecDeque;
use std::sync::Arc;

use super::tool_output::LINGER;
use super::*;
use crate::job::ids::{Nspace, Rank};
use crate::job::outcome::RankEnd;
use crate::job::spawn::{JobRequester, ToolRequester};
use crate::node::JobContext;
use crate::node::event::{NodeEvent, SidecarEnd};
use crate::node::served;
use crate::pmix::sidecar_protocol::ControlKind;
use crate::pmix::sidecar_protocol::serve::{self, Body, SidecarRequest};
use crate::pmix::upcall::{Notice, Upcall};
use crate::pmix::value::{PmixRank, Status};

/// What a sidecar was given: its node, the request, whose, which stream, what.
type Delivery = (u32, u64, u32, Channels, Vec<u8>);

/// Three nodes with two ranks each.
struct Job {
    cores: Vec<NodeCore>,
    deliveries: VecDeque<Delivery>,
    holds: Vec<(u32, NodeRank, bool)>,
}

impl Job {
    fn new() -> Self {
        let mut job = Self {
            cores: served::three_nodes(),
            deliveries: VecDeque::new(),
            holds: Vec::new(),
        };
        for rank in 0..6 {
            let connected = Upcall::Notice(Notice::ClientConnected {
                proc: proc(rank),
                infos: Vec::new(),
            });
            job.call(rank / 2, &connected);
        }
        job
    }

    fn feed(&mut self, node: u32, event: NodeEvent<'_>) {
        for (node, action) in served::deliver(&mut self.cores, node, event, Moment::default()) {
            match action {
                NodeAction::SendControl(bytes) => {
                    for frame in served::frames(&bytes) {
                        if let Ok(SidecarRequest::IofDeliver {
                            source,
                            channel,
                            data,
                        }) = SidecarRequest::decode(&frame)
                        {
                            let delivery = (node, frame.id, source.rank.0, channel, data.to_vec());
                            self.deliveries.push_back(delivery);
                        }
                    }
                }
                NodeAction::HoldOutput {
                    rank,
                    is_held: held,
                    ..
                } => self.holds.push((node, rank, held)),
                _ => {}
            }
        }
    }

    fn call(&mut self, node: u32, upcall: &Upcall) {
        let frame = upcall.encode(0).unwrap();
        self.feed(node, NodeEvent::UpcallReceived(&frame));
    }

    fn pull(&mut self, node: u32, procs: Vec<PmixProc>, channels: Channels) {
        self.pull_some(node, procs, channels, Vec::new());
    }

    fn pull_some(&mut self, node: u32, procs: Vec<PmixProc>, channels: Channels, infos: Vec<Info>) {
        let pull = Upcall::Notice(Notice::IofPull {
            procs,
            infos,
            channels,
        });
        self.call(node, &pull);
    }

    /// What sidecars got and have not passed on: node, rank, text.
    fn texts(&self) -> Vec<(u32, u32, &str)> {
        let texts = self.deliveries.iter().map(|(node, _, rank, _, data)| {
            let text = std::str::from_utf8(data).unwrap();
            (*node, *rank, text)
        });
        texts.collect()
    }

    fn stop(&mut self, node: u32) {
        let stop = Upcall::Notice(Notice::IofPull {
            procs: Vec::new(),
            infos: vec![Info::new(keys::IOF_STOP, Value::Bool(true))],
            channels: Channels(0),
        });
        self.call(node, &stop);
    }

    fn wants(&self, rank: u32, channel: Channels) -> bool {
        self.cores[(rank / 2) as usize]
            .services
            .iof_pulls
            .wants_output(NodeRank(rank % 2), channel)
    }

    /// What the driver does with what it reads.
    fn print(&mut self, rank: u32, channel: Channels, bytes: &[u8]) {
        let rank_here = NodeRank(rank % 2);
        let printed = NodeEvent::OutputRead {
            rank: rank_here,
            channel,
            bytes,
        };
        self.feed(rank / 2, printed);
    }

    /// The sidecar passes the oldest delivery on.
    fn take(&mut self) -> Delivery {
        let delivery = self.deliveries.pop_front().expect("a delivery");
        let done = serve::reply(ControlKind::IofDeliver, delivery.1, Ok(Body::Done)).unwrap();
        self.feed(delivery.0, NodeEvent::ControlReceived(&done));
        delivery
    }
}

fn proc(rank: u32) -> PmixProc {
    PmixProc::new(&Nspace::new("job").unwrap(), PmixRank::from(Rank(rank)))
}

fn everybody() -> Vec<PmixProc> {
    vec![PmixProc::new(
        &Nspace::new("job").unwrap(),
        PmixRank::WILDCARD,
    )]
}

const BOTH: Channels = Channels(Channels::STDOUT.0 | Channels::STDERR.0);

#[test]
fn subscribed_output_arrives_in_order_and_alone() {
    let mut job = Job::new();
    job.pull(0, vec![proc(4), proc(1)], Channels::STDOUT);
    for (rank, channel, text) in [
        (4, Channels::STDOUT, "one"),
        (5, Channels::STDOUT, "of another"),
        (4, Channels::STDERR, "elsewhere"),
        (1, Channels::STDOUT, "from here"),
        (4, Channels::STDOUT, "two"),
        (4, Channels::STDOUT, ""),
    ] {
        job.print(rank, channel, text.as_bytes());
    }
    let of_stdout = |delivery: &Delivery| delivery.3 == Channels::STDOUT;
    assert!(job.deliveries.iter().all(of_stdout));
    let expected = [
        (0, 4, "one"),
        (0, 1, "from here"),
        (0, 4, "two"),
        (0, 4, ""),
    ];
    assert_eq!(job.texts(), expected);
    // No request waits for more output of ended processes.
    assert!(!job.wants(4, Channels::STDOUT) && job.wants(1, Channels::STDOUT));
}

#[test]
fn cached_output_comes_first_and_once_per_node() {
    let mut job = Job::new();
    job.print(4, Channels::STDOUT, b"early, ");
    job.print(4, Channels::STDOUT, b"both");
    job.print(4, Channels::STDERR, b"not asked for");
    job.print(1, Channels::STDOUT, b"over");
    job.print(1, Channels::STDOUT, b"");
    job.pull(0, vec![proc(4), proc(1)], Channels::STDOUT);
    job.print(4, Channels::STDOUT, b"late");
    // libpmix would give it to the first subscriber again.
    job.pull(0, everybody(), Channels::STDOUT);
    let first = [
        (0, 1, "over"),
        (0, 1, ""),
        (0, 4, "early, both"),
        (0, 4, "late"),
    ];
    let mut texts = job.texts();
    texts.sort_by_key(|(_, rank, _)| *rank);
    assert_eq!(texts, first);
    job.deliveries.clear();
    job.pull(2, vec![proc(4)], Channels::STDOUT);
    assert_eq!(job.texts(), [(2, 4, "early, bothlate")]);
    job.deliveries.clear();
    // Those that asked have gone: the next one gets everything again, or what it asks for.
    job.stop(0);
    job.stop(0);
    let size = Info::new(keys::IOF_CACHE_SIZE, Value::Uint32(4));
    job.pull_some(0, vec![proc(4)], Channels::STDOUT, vec![size]);
    assert_eq!(job.texts(), [(0, 4, "late")]);
}

#[test]
fn unknown_processes_and_jobs_are_passed_over() {
    let mut job = Job::new();
    job.pull(0, vec![proc(6)], BOTH);
    let other = PmixProc::new(&Nspace::new("other").unwrap(), PmixRank::WILDCARD);
    job.pull(0, vec![other], BOTH);
    assert!((0..6).all(|rank| !job.wants(rank, Channels::STDOUT)));
    let message = IofPullMessage::Output {
        process: GlobalRank(99),
        channel: Channels::STDOUT,
        bytes: b"text".to_vec(),
    };
    let message = PeerMessage::Output(message);
    let from = NodeId(1);
    job.feed(0, NodeEvent::Peer { from, message });
    assert!(job.deliveries.is_empty());
}

#[test]
fn writer_waits_for_slowest_reader_and_continues() {
    let mut job = Job::new();
    job.pull(0, everybody(), BOTH);
    job.pull(1, everybody(), BOTH);
    let half = vec![b'x'; AHEAD / 2];
    job.print(4, Channels::STDOUT, &half);
    assert!(job.holds.is_empty());
    job.print(4, Channels::STDOUT, &half);
    assert_eq!(job.holds, [(2, NodeRank(0), true)]);
    job.holds.clear();
    // What one node takes is of no use as long as the other takes nothing.
    job.deliveries
        .make_contiguous()
        .sort_by_key(|(node, ..)| *node);
    job.take();
    job.take();
    assert!(job.holds.is_empty());
    job.take();
    assert_eq!(job.holds, [(2, NodeRank(0), false)]);
    job.take();
    assert_eq!(job.holds.len(), 1);
}

#[test]
fn lost_or_unsubscribed_reader_blocks_no_writer() {
    for end in 0..3 {
        let mut job = Job::new();
        job.pull(0, everybody(), BOTH);
        job.print(4, Channels::STDERR, &vec![b'x'; AHEAD]);
        assert_eq!(job.holds, [(2, NodeRank(0), true)]);
        match end {
            0 => job.stop(0),
            1 => job.feed(2, nodes_lost(&[NodeId(0)])),
            _ => {
                let (how, end) = ("it crashed".to_owned(), SidecarEnd::Failed);
                job.feed(0, NodeEvent::SidecarEnded { how, end });
            }
        }
        assert_eq!(job.holds.last(), Some(&(2, NodeRank(0), false)), "{end}");
        assert!(!job.wants(4, Channels::STDERR), "{end}");
    }
}

fn nodes_lost(nodes: &[NodeId]) -> NodeEvent<'_> {
    let reason = "cut off".into();
    NodeEvent::NodesLost { nodes, reason }
}

#[test]
fn subscription_ends_with_last_subscriber() {
    let mut job = Job::new();
    job.pull(1, everybody(), BOTH);
    job.pull(1, vec![proc(0)], BOTH);
    job.stop(1);
    assert!(
        job.wants(5, Channels::STDERR),
        "of two that asked one is left"
    );
    job.stop(1);
    assert!(!job.wants(5, Channels::STDERR));
    job.stop(1);
    job.pull(1, everybody(), BOTH);
    assert!(job.wants(5, Channels::STDERR));
    for rank in [0, 1].map(NodeRank) {
        assert!(job.wants(5, Channels::STDERR));
        let end = RankEnd::Code(0);
        job.feed(1, NodeEvent::RankEnded { rank, end });
    }
    assert!(!job.wants(5, Channels::STDERR));
}

/// A job with a rank on the first and on the last node, spawned by a tool on the second.
fn spawned_by_tool(job: &mut Job) {
    let infos = vec![
        Info::new(keys::NSPACE, Value::String("tool".into())),
        Info::new(keys::RANK, Value::Rank(PmixRank(0))),
    ];
    let connected = Upcall::Request(crate::pmix::upcall::UpcallRequest::ToolConnected { infos });
    let frame = connected.encode(1).unwrap();
    job.feed(1, NodeEvent::UpcallReceived(&frame));
    let context = JobContext {
        nspace: Nspace::new("child").unwrap(),
        first_global_rank: GlobalRank(6),
        requester: JobRequester::Tool(ToolRequester {
            name: crate::job::proc::Proc::new(Nspace::new("tool").unwrap(), Rank(0)),
            node: NodeId(1),
            stdout: true,
            stderr: false,
        }),
        ..served::job(&[1, 0, 1])
    };
    let context = Arc::new(context);
    for core in &mut job.cores {
        let context = Arc::clone(&context);
        core.with_actions(Moment::default(), &mut Vec::new(), |core| {
            core.add_job(context, false, &[])
        })
        .unwrap();
    }
}

impl Job {
    /// The rank of the child on this node prints something.
    fn child_prints(&mut self, node: u32, bytes: &[u8]) {
        let printed = NodeEvent::OutputRead {
            rank: NodeRank(2),
            channel: Channels::STDOUT,
            bytes,
        };
        self.feed(node, printed);
    }

    fn claims(&self, node: u32, channel: Channels) -> bool {
        self.cores[node as usize].claims_output(NodeRank(2), channel)
    }

    fn subscribed(&mut self) {
        let nspace = "child".into();
        self.call(1, &Upcall::Notice(Notice::Spawned { nspace }));
    }
}

#[test]
fn tool_gets_all_output_of_its_job_instead_of_launcher() {
    let mut job = Job::new();
    spawned_by_tool(&mut job);
    for node in [0, 2] {
        assert!(job.claims(node, Channels::STDOUT));
        assert!(!job.claims(node, Channels::STDERR));
    }
    job.child_prints(2, b"before the tool knows of the job");
    assert!(job.deliveries.is_empty());
    job.subscribed();
    job.child_prints(0, b"after");
    let came: Vec<_> = job
        .deliveries
        .iter()
        .map(|d| (d.0, d.2, d.4.len()))
        .collect();
    assert_eq!(came, [(1, 1, 32), (1, 0, 5)]);
    let lost = Upcall::Notice(Notice::ConnectionsLost {
        source: PmixProc {
            nspace: "tool".into(),
            rank: PmixRank(0),
        },
        infos: Vec::new(),
    });
    job.call(1, &lost);
    assert!(!job.claims(0, Channels::STDOUT) && !job.claims(2, Channels::STDOUT));
}

#[test]
fn output_of_unannounced_job_is_dropped_with_job() {
    let mut job = Job::new();
    spawned_by_tool(&mut job);
    job.child_prints(0, &vec![0; AHEAD]);
    assert_eq!(job.holds, [(0, NodeRank(2), true)]);
    for node in 0..3 {
        job.feed(node, NodeEvent::JobOver(JobIndex(1)));
    }
    assert_eq!(job.holds.len(), 2);
    job.subscribed();
    assert!(job.deliveries.is_empty());
}

#[test]
fn end_of_job_waits_briefly_for_its_output() {
    let end = Notification {
        code: Status::EVENT_JOB_END,
        source: PmixProc::new(&Nspace::new("child").unwrap(), PmixRank(0)),
        range: crate::pmix::value::DataRange::SESSION,
        infos: Vec::new(),
    };
    for late in [false, true] {
        let mut job = Job::new();
        spawned_by_tool(&mut job);
        job.subscribed();
        let mut actions = Vec::new();
        job.cores[1].with_actions(Moment::default(), &mut actions, |core| {
            core.dispatcher().notify(&end)
        });
        assert!(actions.is_empty(), "{actions:?}");
        if late {
            let core = &mut job.cores[1];
            assert!(core.must_wait_for_tools());
            let at = core.services.iof_pulls.next_deadline().unwrap();
            assert_eq!(at, Moment::default() + LINGER);
            core.handle(NodeEvent::Tick, at, &mut actions);
            assert_eq!(actions.len(), 1, "{actions:?}");
            continue;
        }
        for node in [0, 2] {
            assert_eq!(job.cores[1].services.iof_pulls.ends.len(), 1);
            job.child_prints(node, b"");
            job.take();
        }
        assert!(
            job.cores[1].services.iof_pulls.ends.is_empty() && !job.cores[1].must_wait_for_tools()
        );
    }
}
