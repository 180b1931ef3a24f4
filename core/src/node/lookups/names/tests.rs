use std::time::Duration;

use super::*;
use crate::job::clock::Moment;
use crate::job::ids::{Nspace, Rank, UserId};
use crate::job::outcome::RankEnd;
use crate::name_server::{ClientId, NameServer};
use crate::node::NodeCore;
use crate::node::event::NodeAction;
use crate::node::event::{NodeCommand, NodeEvent, NodeReport};
use crate::node::served;
use crate::pmix::keys;
use crate::pmix::upcall::{AnswerParts, Upcall, UpcallRequest};
use crate::pmix::value::{Array, DataRange, PmixRank, Value};

/// Two nodes with two ranks each, offered both protocols; node 0 is the head node.
struct Job {
    cores: Vec<NodeCore>,
    rendezvous: NameServer,
    now: Moment,
    last: u64,
    /// What was written to sidecars: node, id, answer.
    answers: Vec<(u32, u64, AnswerParts)>,
    /// What was written to ranks: node, local rank, line.
    lines: Vec<(u32, u32, String)>,
}

impl Job {
    fn new() -> Self {
        let mut rendezvous = NameServer::new(UserId(1000));
        rendezvous.joined(ClientId(1), &mut Vec::new());
        Self {
            rendezvous,
            cores: served::cores(served::job(&[2, 2]), true),
            now: Moment::default(),
            last: 0,
            answers: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Hands in an event and everything that follows from it.
    fn feed(&mut self, node: u32, event: NodeEvent<'_>) {
        for (node, action) in served::deliver(&mut self.cores, node, event, self.now) {
            match action {
                NodeAction::SendUpcall(bytes) => {
                    let answers = served::answers(&bytes);
                    self.answers
                        .extend(answers.map(|(id, parts)| (node, id, parts)));
                }
                NodeAction::SendPmi { rank, bytes } => {
                    let line = String::from_utf8(bytes).unwrap();
                    self.lines.push((node, rank.0, line.trim_end().to_owned()));
                }
                NodeAction::ReportToLauncher(NodeReport::Rendezvous { epoch: 0, message }) => {
                    let mut replies = Vec::new();
                    self.rendezvous
                        .on_command(ClientId(1), message, self.now, &mut replies);
                    for (_, message) in replies {
                        self.feed(0, NodeEvent::Command(NodeCommand::Rendezvous(message)));
                    }
                }
                NodeAction::SendPeer { .. }
                | NodeAction::SendEveryPeer(_)
                | NodeAction::SendControl(_)
                | NodeAction::AwaitStarts { .. }
                | NodeAction::MeasureMemory { .. }
                | NodeAction::Notify(_)
                | NodeAction::ReportToLauncher(_)
                | NodeAction::HoldOutput { .. }
                | NodeAction::WriteStdin { .. }
                | NodeAction::DescribeHost
                | NodeAction::RecordSegment { .. }
                | NodeAction::RemoveAtEnd { .. }
                | NodeAction::KillSidecar
                | NodeAction::ObserveSidecar => {}
            }
        }
    }

    /// An upcall of the node of `rank`; its id.
    fn call(&mut self, rank: u32, upcall: &Upcall) -> u64 {
        self.last += 1;
        let frame = upcall.encode(self.last).unwrap();
        self.feed(rank / 2, NodeEvent::UpcallReceived(&frame));
        self.last
    }

    /// An upcall that is answered at once.
    #[track_caller]
    fn ask(&mut self, rank: u32, upcall: &Upcall) -> AnswerParts {
        let id = self.call(rank, upcall);
        let mut answers = std::mem::take(&mut self.answers);
        assert_eq!(answers.len(), 1, "{upcall:?}: {answers:?}");
        let (node, answered, parts) = answers.remove(0);
        assert_eq!((node, answered), (rank / 2, id));
        parts
    }

    /// A request of a rank over PMI-1, and the line that answers it.
    #[track_caller]
    fn pmi(&mut self, rank: u32, line: &str) -> String {
        let (node, local) = (rank / 2, rank % 2);
        let bytes = format!("{line}\n").into_bytes();
        self.feed(
            node,
            NodeEvent::PmiReceived {
                rank: NodeRank(local),
                bytes: &bytes,
            },
        );
        let [(to, whom, line)] = <[_; 1]>::try_from(std::mem::take(&mut self.lines)).unwrap();
        assert_eq!((to, whom), (node, local));
        line
    }
}

fn proc(rank: u32) -> PmixProc {
    PmixProc::new(&Nspace::new("job").unwrap(), Rank(rank))
}

fn publish(rank: u32, infos: Vec<Info>) -> Upcall {
    let proc = proc(rank);
    Upcall::Request(UpcallRequest::Publish { proc, infos })
}

fn lookup(rank: u32, names: &[&str], infos: Vec<Info>) -> Upcall {
    Upcall::Request(UpcallRequest::Lookup {
        proc: proc(rank),
        keys: names.iter().map(|name| Text::from(*name)).collect(),
        infos,
    })
}

fn text(name: &str, value: &str) -> Info {
    Info::new(name, Value::String(value.into()))
}

fn range(range: DataRange) -> Info {
    Info::new(keys::RANGE, Value::Range(range))
}

/// The values of an answer that has some.
#[track_caller]
fn found(parts: AnswerParts) -> Vec<Value> {
    assert_eq!(parts.status, Status::SUCCESS);
    parts.found.into_iter().map(|pdata| pdata.value).collect()
}

#[test]
fn published_values_return_unchanged_with_publisher() {
    let mut job = Job::new();
    let values = [
        Value::String("text".into()),
        Value::Bytes(vec![0, 1, 2]),
        Value::Undef,
        Value::Array(Array::new(vec![Value::Uint16(1), Value::Uint16(2)]).unwrap()),
        Value::Infos(vec![text("inner", "text")]),
    ];
    let names = ["a", "b", "c", "d", "e"];
    let mut infos: Vec<Info> = names
        .into_iter()
        .zip(values.clone())
        .map(|(name, value)| Info::new(name, value))
        .collect();
    // What says how is no value.
    infos.push(Info::new(keys::USERID, Value::Uint32(7)));
    infos.push(Info::new(keys::TIMEOUT, Value::Int(3)));
    assert_eq!(job.ask(3, &publish(3, infos)).status, Status::SUCCESS);
    let parts = job.ask(0, &lookup(0, &names, Vec::new()));
    assert!(parts.found.iter().all(|pdata| pdata.proc == proc(3)));
    assert_eq!(found(parts), values);
    for directive in [keys::USERID, keys::TIMEOUT] {
        let parts = job.ask(0, &lookup(0, &[directive], Vec::new()));
        assert_eq!(parts.status, Status::ERR_NOT_FOUND);
    }
}

#[test]
fn publish_with_unsupported_persistence_is_refused() {
    let mut job = Job::new();
    let members = |value| {
        vec![
            range(DataRange::CUSTOM),
            Info::new(keys::EVENT_CUSTOM_RANGE, value),
        ]
    };
    let persist = |number| vec![Info::new(keys::PERSISTENCE, Value::Persistence(number))];
    let required = |key| {
        let mut info = Info::new(key, Value::Undef);
        info.required = true;
        vec![info]
    };
    let strange = PmixProc {
        nspace: "a b".into(),
        rank: PmixRank(0),
    };
    let (bad, unsupported) = (Status::ERR_BAD_PARAM, Status::ERR_NOT_SUPPORTED);
    for (status, infos) in [
        (bad, vec![range(DataRange(77))]),
        (bad, vec![Info::new(keys::RANGE, Value::Uint8(3))]),
        (bad, vec![range(DataRange::CUSTOM)]),
        (bad, members(Value::Uint32(1))),
        (bad, members(Value::Proc(strange))),
        (bad, vec![Info::new(keys::PERSISTENCE, Value::Uint8(3))]),
        (unsupported, persist(99)),
        (unsupported, required(keys::ACCESS_PERMISSIONS)),
        (unsupported, vec![Info::new("pointer", Value::Foreign(31))]),
        (
            unsupported,
            vec![Info::new(
                "nested",
                Value::Infos(vec![Info::new("pointer", Value::Foreign(31))]),
            )],
        ),
        (bad, vec![text("", "no key")]),
    ] {
        let infos = [vec![text("a", "text")], infos].concat();
        assert_eq!(
            job.ask(1, &publish(1, infos.clone())).status,
            status,
            "{infos:?}"
        );
    }
    assert_eq!(job.ask(1, &publish(1, Vec::new())).status, bad);
    let parts = job.ask(1, &lookup(1, &["a", "pointer", "nested"], Vec::new()));
    assert_eq!(parts.status, Status::ERR_NOT_FOUND);
    // The same without the demand to honour it.
    let lenient = vec![
        text("a", "text"),
        Info::new(keys::ACCESS_PERMISSIONS, Value::Undef),
    ];
    assert_eq!(job.ask(1, &publish(1, lenient)).status, Status::SUCCESS);
}

#[test]
fn requester_must_be_rank_of_node_of_its_sidecar() {
    let mut job = Job::new();
    let stranger = PmixProc {
        nspace: "other".into(),
        ..proc(0)
    };
    let everybody = PmixProc {
        rank: PmixRank::WILDCARD,
        ..proc(0)
    };
    for proc in [stranger, proc(2), proc(77), everybody] {
        let infos = vec![text("a", "text")];
        let parts = job.ask(0, &Upcall::Request(UpcallRequest::Publish { proc, infos }));
        assert_eq!(parts.status, Status::ERR_NOT_FOUND);
    }
}

#[test]
fn wait_is_parsed_in_every_form_of_libraries() {
    let mut job = Job::new();
    let mut waiting = Vec::new();
    for value in [
        Value::Int(0),
        Value::Int32(1),
        Value::Uint(0),
        Value::Uint32(9),
        Value::Size(0),
        Value::Uint64(u64::MAX),
        Value::Bool(true),
        Value::Undef,
    ] {
        waiting.push(job.call(1, &lookup(1, &["a"], vec![Info::new(keys::WAIT, value)])));
    }
    assert_eq!(job.answers, []);
    assert_eq!(job.call(2, &publish(2, vec![text("a", "text")])), job.last);
    let mut served: Vec<u64> = job.answers.drain(..).map(|(_, id, _)| id).collect();
    served.sort_unstable();
    waiting.push(job.last);
    assert_eq!(served, waiting);

    let mut at_once = |value| {
        let infos = vec![Info::new(keys::WAIT, value)];
        job.ask(1, &lookup(1, &["b"], infos)).status
    };
    assert_eq!(at_once(Value::Bool(false)), Status::ERR_NOT_FOUND);
    assert_eq!(at_once(Value::Int(-1)), Status::ERR_BAD_PARAM);
    assert_eq!(at_once(Value::String("all".into())), Status::ERR_BAD_PARAM);
}

#[test]
fn lookup_timeout_is_tracked_by_head_node_for_whole_job() {
    let mut job = Job::new();
    let wait = |seconds| {
        vec![
            Info::new(keys::RANGE, Value::Range(DataRange::NAMESPACE)),
            Info::new(keys::WAIT, Value::Int(0)),
            Info::new(keys::TIMEOUT, Value::Int(seconds)),
        ]
    };
    let start = job.now;
    let id = job.call(3, &lookup(3, &["a"], wait(2)));
    assert_eq!(
        job.cores[0].next_deadline(),
        Some(start + Duration::from_secs(2))
    );
    job.now = start + Duration::from_secs(2);
    job.feed(0, NodeEvent::Tick);
    let [(1, answered, parts)] = &job.answers[..] else {
        panic!("{:?}", job.answers);
    };
    assert_eq!((*answered, parts.status), (id, Status::ERR_TIMEOUT));
}

#[test]
fn unpublish_of_key_uses_session_range_and_of_all_every_range() {
    let mut job = Job::new();
    let infos = vec![text("a", "text"), range(DataRange::NAMESPACE)];
    assert_eq!(job.ask(1, &publish(1, infos)).status, Status::SUCCESS);
    let mut withdraw = |names: &[&str], infos| {
        let upcall = Upcall::Request(UpcallRequest::Unpublish {
            proc: proc(1),
            keys: names.iter().map(|name| Text::from(*name)).collect(),
            infos,
        });
        job.ask(1, &upcall).status
    };
    assert_eq!(withdraw(&["a"], Vec::new()), Status::ERR_NOT_FOUND);
    let namespace = || vec![range(DataRange::NAMESPACE)];
    assert_eq!(
        withdraw(&[], vec![range(DataRange::LOCAL)]),
        Status::SUCCESS
    );
    assert_eq!(
        withdraw(&["a", "b"], namespace()),
        Status::ERR_PARTIAL_SUCCESS
    );
    assert_eq!(withdraw(&["a"], namespace()), Status::ERR_NOT_FOUND);
    let infos = vec![text("a", "text"), range(DataRange::NAMESPACE)];
    assert_eq!(job.ask(1, &publish(1, infos)).status, Status::SUCCESS);
    let all = Upcall::Request(UpcallRequest::Unpublish {
        proc: proc(1),
        keys: Vec::new(),
        infos: Vec::new(),
    });
    assert_eq!(job.ask(1, &all).status, Status::SUCCESS);
    let parts = job.ask(1, &lookup(1, &["a"], Vec::new()));
    assert_eq!(parts.status, Status::ERR_NOT_FOUND);
}

#[test]
fn both_protocols_use_one_store() {
    let mut job = Job::new();
    for rank in [0, 3] {
        job.pmi(rank, "cmd=init pmi_version=1 pmi_subversion=1");
    }
    let not_found = "cmd=lookup_result rc=1 info=fail msg=service_not_found";
    assert_eq!(job.pmi(0, "cmd=lookup_name service=a b"), not_found);
    // A waiter over PMIx hears of what comes over PMI.
    let wait = vec![Info::new(keys::WAIT, Value::Int(0))];
    job.call(1, &lookup(1, &["a b"], wait));
    let ok = "cmd=publish_result rc=0 info=ok msg=success";
    assert_eq!(job.pmi(3, "cmd=publish_name service=a b port=p:1"), ok);
    let (_, _, parts) = job.answers.remove(0);
    assert_eq!(parts.found[0].proc, proc(3));
    assert_eq!(found(parts), [Value::String("p:1".into())]);
    let duplicate = job.ask(1, &publish(1, vec![text("a b", "other")]));
    assert_eq!(duplicate.status, Status::ERR_DUPLICATE_KEY);

    let infos = vec![
        text("text", "p:2"),
        Info::new("number", Value::Int(1)),
        text("long", &"x".repeat(NAME_MAX + 1)),
    ];
    assert_eq!(job.ask(1, &publish(1, infos)).status, Status::SUCCESS);
    let port = "cmd=lookup_result rc=0 info=ok port=p:2";
    assert_eq!(job.pmi(3, "cmd=lookup_name service=text"), port);
    // What is no text, or none that fits a line, is not there.
    assert_eq!(job.pmi(3, "cmd=lookup_name service=number"), not_found);
    assert_eq!(job.pmi(3, "cmd=lookup_name service=long"), not_found);
    let taken = "cmd=publish_result rc=1 info=fail msg=already_published";
    assert_eq!(job.pmi(0, "cmd=publish_name service=text port=p"), taken);
    let withdrawn = "cmd=unpublish_result rc=0 info=ok";
    assert_eq!(job.pmi(0, "cmd=unpublish_name service=text"), withdrawn);
    let parts = job.ask(1, &lookup(1, &["text"], Vec::new()));
    assert_eq!(parts.status, Status::ERR_NOT_FOUND);
    // A name ends with the rank that published it, on whatever node.
    job.feed(
        1,
        NodeEvent::RankEnded {
            rank: NodeRank(1),
            end: RankEnd::Code(0),
        },
    );
    assert_eq!(job.pmi(0, "cmd=lookup_name service=a b"), not_found);
}

#[test]
fn upcalls_are_answered_once_when_rank_or_job_ends() {
    let mut job = Job::new();
    let wait = || vec![Info::new(keys::WAIT, Value::Int(0))];
    let ids = [0, 1, 2, 3, 3].map(|rank| job.call(rank, &lookup(rank, &["a"], wait())));
    job.feed(
        1,
        NodeEvent::RankEnded {
            rank: NodeRank(1),
            end: RankEnd::Code(0),
        },
    );
    let lost = |answers: Vec<(u32, u64, AnswerParts)>| {
        let lost = |(_, id, parts): (u32, u64, AnswerParts)| {
            assert_eq!(parts.status, Status::ERR_LOST_CONNECTION);
            id
        };
        let mut ids: Vec<u64> = answers.into_iter().map(lost).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(lost(std::mem::take(&mut job.answers)), ids[3..]);
    for node in [0, 1] {
        job.feed(node, NodeEvent::LaunchEnded);
    }
    assert_eq!(lost(std::mem::take(&mut job.answers)), ids[..3]);
}

#[test]
fn keys_of_mpich_limit_value_and_are_not_published() {
    let mut job = Job::new();
    let look = |job: &mut Job| job.ask(1, &lookup(1, &["a"], Vec::new())).status;
    let infos = vec![
        text("a", "text"),
        text("NAMEPUB_EXPIRE", "5"),
        Info::new("NAMEPUB_REFCOUNT", Value::Uint32(2)),
        text("NAMEPUB_CONTACT", "elsewhere"),
    ];
    for _ in 0..2 {
        assert_eq!(
            job.ask(1, &publish(1, infos.clone())).status,
            Status::SUCCESS
        );
        let contact = lookup(1, &["NAMEPUB_CONTACT"], Vec::new());
        assert_eq!(job.ask(1, &contact).status, Status::ERR_NOT_FOUND);
        let statuses = [(); 3].map(|()| look(&mut job));
        assert_eq!(
            statuses,
            [Status::SUCCESS, Status::SUCCESS, Status::ERR_NOT_FOUND]
        );
    }
    assert_eq!(job.ask(1, &publish(1, infos)).status, Status::SUCCESS);
    assert_eq!(look(&mut job), Status::SUCCESS);
    job.now = job.now + Duration::from_secs(5);
    assert_eq!(look(&mut job), Status::ERR_NOT_FOUND);
    for wrong in ["", "soon", "-1"] {
        let infos = vec![text("a", "text"), text("NAMEPUB_EXPIRE", wrong)];
        assert_eq!(job.ask(1, &publish(1, infos)).status, Status::ERR_BAD_PARAM);
    }
    let never = vec![text("a", "text"), text("NAMEPUB_REFCOUNT", "0")];
    assert_eq!(job.ask(1, &publish(1, never)).status, Status::ERR_BAD_PARAM);
}
