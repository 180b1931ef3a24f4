use super::*;
use crate::job::clock::Moment;
use crate::job::ids::{NodeRank, Nspace, Rank};
use crate::job::outcome::RankEnd;
use crate::job::pset::ProcessSet;
use crate::node::NodeCore;
use crate::node::event::NodeEvent;
use crate::node::{JobContext, served};
use crate::pmix::sidecar_protocol::serve;
use crate::pmix::sidecar_protocol::{Hello, SidecarNotice};
use crate::pmix::upcall::{AnswerParts, Notice, Query, Upcall, UpcallRequest};
use crate::pmix::value::{DataRange, PmixRank};

/// Two nodes with two ranks each.
struct Job {
    cores: Vec<NodeCore>,
    last: u64,
    /// What was written to sidecars: node, id, answer.
    answers: Vec<(u32, u64, AnswerParts)>,
    warnings: Vec<String>,
}

impl Job {
    fn new() -> Self {
        let io: ProcessSet = "io=3,0".parse().unwrap();
        let job = JobContext {
            psets: ProcessSet::with_app_sets(&[io], [4]).unwrap(),
            ..served::job(&[2, 2])
        };
        Self {
            cores: served::cores(job, false),
            last: 0,
            answers: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn with_libpmix(text: &str) -> Self {
        let mut job = Self::new();
        let hello = Hello {
            libpmix: text.into(),
        };
        let frame = serve::notice(&SidecarNotice::Hello(hello)).unwrap();
        job.feed(0, NodeEvent::ControlReceived(&frame));
        job.feed(1, NodeEvent::ControlReceived(&frame));
        job
    }

    /// Hands in an event and everything that follows from it.
    fn feed(&mut self, node: u32, event: NodeEvent<'_>) {
        for (node, action) in served::deliver(&mut self.cores, node, event, Moment::default()) {
            match action {
                NodeAction::SendUpcall(bytes) => {
                    let answers = served::answers(&bytes);
                    self.answers
                        .extend(answers.map(|(id, parts)| (node, id, parts)));
                }
                NodeAction::Notify(NodeNotice::SidecarWarning { text }) => self.warnings.push(text),
                _ => {}
            }
        }
    }

    fn call(&mut self, node: u32, upcall: &Upcall) -> u64 {
        self.last += 1;
        let frame = upcall.encode(self.last).unwrap();
        self.feed(node, NodeEvent::UpcallReceived(&frame));
        self.last
    }

    /// An upcall that is answered at once.
    #[track_caller]
    fn ask(&mut self, node: u32, upcall: &Upcall) -> AnswerParts {
        let id = self.call(node, upcall);
        let (by, answered, parts) = self.answers.pop().expect("an answer");
        assert_eq!((by, answered), (node, id));
        assert!(self.answers.is_empty());
        parts
    }
}

fn ranks(ranks: &[u32]) -> Vec<PmixProc> {
    let nspace = Nspace::new("job").unwrap();
    ranks
        .iter()
        .map(|rank| PmixProc::new(&nspace, PmixRank(*rank)))
        .collect()
}

fn construct(procs: Vec<PmixProc>, infos: Vec<Info>) -> Upcall {
    Upcall::Request(UpcallRequest::Group {
        op: GroupOp::Construct,
        name: "group".into(),
        procs,
        infos,
    })
}

fn assign() -> Info {
    Info::new(keys::GROUP_ASSIGN_CONTEXT_ID, Value::Bool(true))
}

fn endpoint(bytes: &[u8]) -> Info {
    Info::new(keys::GROUP_ENDPT_DATA, Value::Bytes(bytes.to_vec()))
}

fn members(parts: &AnswerParts) -> Vec<u32> {
    let Some(Value::Array(array)) = find(&parts.infos, keys::GROUP_MEMBERSHIP) else {
        panic!("no members: {parts:?}");
    };
    let rank = |value: &Value| match value {
        Value::Proc(proc) => proc.rank.0,
        other => panic!("{other:?}"),
    };
    array.items().iter().map(rank).collect()
}

#[test]
fn data_id_and_members_of_all_nodes_reach_every_server() {
    let mut job = Job::new();
    job.call(
        1,
        &construct(ranks(&[2, 3, 0]), vec![assign(), endpoint(b"b\0")]),
    );
    assert!(job.answers.is_empty());
    job.call(0, &construct(ranks(&[3, 0, 2]), vec![endpoint(b"\0a")]));
    let answers = std::mem::take(&mut job.answers);
    assert_eq!(answers.len(), 2);
    for (_, _, parts) in &answers {
        assert_eq!(parts.status, Status::SUCCESS);
        assert_eq!(members(parts), [3, 0, 2]);
        let data = find(&parts.infos, keys::GROUP_ENDPT_DATA);
        assert_eq!(data, Some(&Value::Bytes(b"\0ab\0".to_vec())));
        let id = find(&parts.infos, keys::GROUP_CONTEXT_ID);
        assert_eq!(id, Some(&Value::Size(1)));
    }
}

#[test]
fn members_are_expanded_from_wildcards_without_duplicates() {
    let mut job = Job::new();
    let all = ranks(&[PmixRank::WILDCARD.0]);
    job.call(1, &construct(all.clone(), Vec::new()));
    job.call(0, &construct([ranks(&[2]), all].concat(), Vec::new()));
    let answers = std::mem::take(&mut job.answers);
    assert_eq!(members(&answers[0].2), [2, 0, 1, 3]);
    assert_eq!(find(&answers[0].2.infos, keys::GROUP_CONTEXT_ID), None);
    let local = ranks(&[PmixRank::LOCAL_PEERS.0, 2]);
    let parts = job.ask(1, &construct(local, vec![assign()]));
    assert_eq!(members(&parts), [2, 3]);
}

fn add(procs: Vec<PmixProc>) -> Info {
    let procs = Array::new(procs.into_iter().map(Value::Proc).collect()).unwrap();
    Info::new(keys::GROUP_ADD_MEMBERS, Value::Array(procs))
}

#[test]
fn added_members_follow_callers_once_each() {
    let mut job = Job::with_libpmix("OpenPMIx 5.0.11 (PMIx Standard: 4.2)");
    let other = PmixProc::new(&Nspace::new("other").unwrap(), Rank(9));
    let by_first = add([ranks(&[1, 0]), vec![other]].concat());
    let by_last = add(ranks(&[PmixRank::WILDCARD.0]));
    job.call(0, &construct(ranks(&[0, 2]), vec![by_first, assign()]));
    job.call(1, &construct(ranks(&[0, 2]), vec![by_last]));
    let answers = std::mem::take(&mut job.answers);
    assert_eq!(answers.len(), 2);
    for (_, _, parts) in &answers {
        assert_eq!(parts.status, Status::SUCCESS);
        assert_eq!(members(parts), [0, 2, 1, 9, 3]);
        assert_eq!(find(&parts.infos, keys::GROUP_ADD_MEMBERS), None);
    }
    for bad in [
        add(ranks(&[PmixRank::UNDEF.0])),
        Info::new(keys::GROUP_ADD_MEMBERS, Value::Bool(true)),
    ] {
        let parts = job.ask(0, &construct(ranks(&[0]), vec![bad]));
        assert_eq!(parts.status, Status::ERR_BAD_PARAM);
    }
    // From 6 on those who are added call, too.
    let mut job = Job::with_libpmix("OpenPMIx 7.0.0 (PMIx Standard: 5.0)");
    let parts = job.ask(0, &construct(ranks(&[0]), vec![add(ranks(&[1]))]));
    assert_eq!(parts.status, Status::ERR_NOT_SUPPORTED);
}

#[test]
fn infos_of_single_members_are_forwarded_only_with_context_id() {
    let mut job = Job::new();
    let named = Info::new(
        keys::GROUP_INFO,
        Value::Infos(vec![
            Info::new(keys::PROCID, Value::Proc(ranks(&[0]).remove(0))),
            Info::new("number", Value::Size(7)),
        ]),
    );
    let unnamed = Info::new(keys::GROUP_INFO, Value::Infos(vec![assign()]));
    let infos = vec![named.clone(), unnamed];
    let parts = job.ask(0, &construct(ranks(&[0]), infos.clone()));
    assert_eq!(find(&parts.infos, keys::GROUP_INFO), None);
    let parts = job.ask(0, &construct(ranks(&[0]), [infos, vec![assign()]].concat()));
    let passed: Vec<&Info> = parts
        .infos
        .iter()
        .filter(|i| i.key == keys::GROUP_INFO)
        .collect();
    assert_eq!(passed, [&named]);
}

#[test]
fn invalid_group_of_job_is_refused() {
    let mut job = Job::new();
    let stranger = vec![PmixProc::new(&Nspace::new("other").unwrap(), Rank(0))];
    for (procs, infos, status) in [
        (ranks(&[0, 4]), vec![], Status::ERR_BAD_PARAM),
        (ranks(&[PmixRank::UNDEF.0]), vec![], Status::ERR_BAD_PARAM),
        (stranger, vec![], Status::ERR_BAD_PARAM),
        (vec![], vec![], Status::ERR_NOT_SUPPORTED),
        // Node 0 has no member.
        (ranks(&[2, 3]), vec![], Status::ERR_BAD_PARAM),
        (
            ranks(&[0]),
            vec![Info::new(keys::GROUP_BOOTSTRAP, Value::Size(2))],
            Status::ERR_NOT_SUPPORTED,
        ),
        (
            ranks(&[0]),
            vec![Info::new(
                keys::LOCAL_COLLECTIVE_STATUS,
                Value::Status(Status::ERR_LOST_CONNECTION),
            )],
            Status::ERR_LOST_CONNECTION,
        ),
    ] {
        let parts = job.ask(0, &construct(procs, infos));
        assert_eq!(parts.status, status);
        assert_eq!(parts.infos, []);
    }
}

#[test]
fn member_lost_by_its_server_is_left_out_where_optional() {
    for (directive, may_be_missing) in [
        (keys::GROUP_OPTIONAL, true),
        (keys::GROUP_FT_COLLECTIVE, true),
        (keys::GROUP_NOTIFY_TERMINATION, false),
    ] {
        for (lost, is_loss) in [
            (Status::ERR_LOST_CONNECTION, true),
            (Status::ERR_PARTIAL_SUCCESS, true),
            (Status::ERR_TIMEOUT, false),
        ] {
            let mut job = Job::new();
            let end = NodeEvent::RankEnded {
                rank: NodeRank(1),
                end: RankEnd::Signal(9),
            };
            job.feed(0, end);
            let infos = vec![
                Info::new(directive, Value::Bool(true)),
                Info::new(keys::LOCAL_COLLECTIVE_STATUS, Value::Status(lost)),
            ];
            let parts = job.ask(0, &construct(ranks(&[0, 1]), infos));
            if may_be_missing && is_loss {
                assert_eq!((parts.status, members(&parts)), (Status::SUCCESS, vec![0]));
            } else {
                assert_ne!(parts.status, Status::SUCCESS, "{directive}, {lost:?}");
            }
        }
    }
}

#[test]
fn end_of_member_or_job_fails_pending_operations() {
    let mut job = Job::new();
    job.call(0, &construct(ranks(&[0, 3]), vec![assign()]));
    job.feed(
        1,
        NodeEvent::RankEnded {
            rank: NodeRank(0),
            end: RankEnd::Code(0),
        },
    );
    assert!(job.answers.is_empty(), "rank 2 is no member");
    job.feed(
        1,
        NodeEvent::RankEnded {
            rank: NodeRank(1),
            end: RankEnd::Code(0),
        },
    );
    let (node, _, parts) = job.answers.pop().unwrap();
    assert_eq!((node, parts.status), (0, Status::ERR_PROC_TERM_WO_SYNC));
    job.call(0, &construct(ranks(&[1, 2]), vec![assign()]));
    job.answers.clear();
    let mut other = Job::new();
    other.call(0, &construct(ranks(&[0, 3]), vec![assign()]));
    other.feed(0, NodeEvent::LaunchEnded);
    let (_, _, parts) = other.answers.pop().unwrap();
    assert_eq!(parts.status, Status::ERR_LOST_CONNECTION);
}

#[test]
fn mpi_session_with_unfit_server_is_refused_with_remedy() {
    let cid = Info::new(keys::GROUP_LOCAL_CID, Value::Size(3));
    let infos = vec![
        assign(),
        Info::new(keys::GROUP_INFO, Value::Infos(vec![cid])),
    ];
    let mut old = Job::with_libpmix("OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2)");
    for _ in 0..2 {
        let parts = old.ask(0, &construct(ranks(&[0, 1]), infos.clone()));
        assert_eq!(parts.status, Status::ERR_NOT_SUPPORTED);
        // What a client of version 5 takes for the number of members.
        let id = find(&parts.infos, keys::GROUP_CONTEXT_ID);
        assert_eq!(id, Some(&Value::Size(0)));
    }
    assert_eq!(old.warnings.len(), 1);
    let warning = &old.warnings[0];
    assert!(
        warning.contains("4.2.2rc2") && warning.contains("--libpmix"),
        "{warning}"
    );
    assert_eq!(
        old.ask(0, &construct(ranks(&[0]), vec![assign()])).status,
        Status::SUCCESS
    );

    let mut new = Job::with_libpmix("OpenPMIx 5.0.11 (PMIx Standard: 4.2)");
    let parts = new.ask(0, &construct(ranks(&[0, 1]), infos));
    assert_eq!((parts.status, new.warnings.len()), (Status::SUCCESS, 0));
}

#[test]
fn process_sets_are_counted_listed_and_resolved() {
    let mut job = Job::new();
    let mut query = |keys: &[&str], set: &str| {
        let upcall = Upcall::Request(UpcallRequest::Query {
            proc: ranks(&[0]).remove(0),
            queries: vec![Query {
                keys: keys.iter().map(|key| (*key).into()).collect(),
                qualifiers: vec![Info::new(keys::PSET_NAME, Value::String(set.into()))],
            }],
        });
        job.ask(1, &upcall)
    };
    let parts = query(&[keys::QUERY_NUM_PSETS, keys::QUERY_PSET_NAMES], "");
    assert_eq!(parts.status, Status::SUCCESS);
    // The set of the only program is known, and not listed.
    let names = Value::String("io".into());
    assert_eq!(
        find(&parts.infos, keys::QUERY_NUM_PSETS),
        Some(&Value::Size(1))
    );
    assert_eq!(find(&parts.infos, keys::QUERY_PSET_NAMES), Some(&names));
    let parts = query(&[keys::QUERY_PSET_MEMBERSHIP], "io");
    let Some(Value::Array(array)) = find(&parts.infos, keys::QUERY_PSET_MEMBERSHIP) else {
        panic!("{parts:?}");
    };
    let expected: Vec<Value> = ranks(&[3, 0]).into_iter().map(Value::Proc).collect();
    assert_eq!(array.items(), expected);
    assert_eq!(
        query(&[keys::QUERY_PSET_MEMBERSHIP], "app0").status,
        Status::SUCCESS
    );
    assert_eq!(
        query(&[keys::QUERY_PSET_MEMBERSHIP], "x").status,
        Status::ERR_NOT_FOUND
    );
    let parts = query(&[keys::QUERY_NUM_PSETS, "other"], "");
    assert_eq!(parts.status, Status::ERR_PARTIAL_SUCCESS);
}

/// Returns the codes of the events that the sidecar of node 0 passes to its clients, when rank 0 has invited ranks 2
/// and 3 of node 1, and rank 3 has died.
fn death_events(libpmix: &str, dies_first: bool) -> Vec<i32> {
    let mut cores = served::three_nodes();
    let hello = Hello {
        libpmix: libpmix.into(),
    };
    let hello = serve::notice(&SidecarNotice::Hello(hello)).unwrap();
    let connected = Upcall::Notice(Notice::ClientConnected {
        proc: ranks(&[3]).remove(0),
        infos: Vec::new(),
    });
    let connected = connected.encode(0).unwrap();
    let invited = ranks(&[2, 3]).into_iter().map(Value::Proc).collect();
    let invitation = Upcall::Notice(Notice::NotifyEvent {
        code: Status::GROUP_INVITED,
        source: ranks(&[0]).remove(0),
        range: DataRange::CUSTOM,
        infos: vec![
            Info::new(
                keys::EVENT_CUSTOM_RANGE,
                Value::Array(Array::new(invited).unwrap()),
            ),
            Info::new(keys::GROUP_ID, Value::String("group".into())),
        ],
    });
    let invitation = invitation.encode(0).unwrap();
    let death = NodeEvent::RankEnded {
        rank: NodeRank(1),
        end: RankEnd::Signal(9),
    };
    let mut events = vec![
        (1, NodeEvent::ControlReceived(&hello)),
        (1, NodeEvent::UpcallReceived(&connected)),
        (0, NodeEvent::UpcallReceived(&invitation)),
        (1, death),
    ];
    if dies_first {
        events.swap(2, 3);
    }
    let mut codes = Vec::new();
    for core in &mut cores {
        core.cx.policy.tolerant = true;
    }
    for (node, event) in events {
        for (node, action) in served::deliver(&mut cores, node, event, Moment::default()) {
            let NodeAction::SendControl(bytes) = action else {
                continue;
            };
            for frame in served::frames(&bytes) {
                if let Ok(serve::SidecarRequest::Notify { code, .. }) =
                    serve::SidecarRequest::decode(&frame)
                    && node == 0
                {
                    codes.push(code.0);
                }
            }
        }
    }
    codes.retain(|code| *code != Status::ERR_PROC_ABORTED.0);
    codes
}

#[test]
fn inviting_process_gets_death_even_before_invitation() {
    for dies_first in [false, true] {
        let failed = Status::GROUP_INVITE_FAILED.0;
        assert_eq!(death_events("OpenPMIx 5.0.11", dies_first), [failed]);
        // From version 7 on libpmix ends the invitation itself.
        let both = [failed, Status::PROC_TERMINATED.0];
        assert_eq!(death_events("OpenPMIx 7.0.0rc1", dies_first), both);
    }
}
