//! Random messages for property tests.

mod fences;
mod names;

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

pub use fences::late_fence;
use fences::{fence, participants, passage};
use names::store;

use super::{AllocationRequestId, NodeReport, Notification, PeerMessage, SpawnRequestId};
use crate::direct_modex::{ModexFailure, ModexMessage};
use crate::groups::{self, GroupArrival, GroupFailure, GroupKey, GroupMessage, GroupOperation};
use crate::interlaunch::arbitrary::collective_message;
use crate::job::allocation::{AllocationRequest, Directive};
use crate::job::appnums::Appnums;
use crate::job::arbitrary::{debugged, process_set, rank_map};
use crate::job::ids::{GlobalRank, JobIndex, NodeId, Nspace, Rank, UserId};
use crate::job::job_control::{JobControlAction, JobControlRequest};
use crate::job::log_text::{LogChannel, LogText, SyslogTarget, SyslogText};
use crate::job::outcome::{FailureCause, RankEnd};
use crate::job::proc::{PMIX_RANK_RESERVED, Proc, RankOrWildcard};
use crate::job::spawn::{
    JobRequester, SpawnApp, SpawnInfo, SpawnRequest, SpawnRequester, ToolRequester,
};
use crate::name_server::message::NameServerCommand;
use crate::node::{
    EpochMessage, IofPullMessage, IofPushMessage, JobContext, KeyMessage, OutputCacheRequest,
};
use crate::pmi::pmi_action::RemoteKeyRead;
use crate::pmix::arbitrary::{infos, proc as pmix_proc};
use crate::pmix::value::{Channels, DataRange, Status};
use crate::queries::{
    JobEnd, NodeQuery, NodeQueryReply, ProcessState, QueriedProcess, QueryMessage,
};

fn bytes() -> BoxedStrategy<Arc<[u8]>> {
    vec(any::<u8>(), 0..40).prop_map(Arc::from).boxed()
}

fn reason() -> BoxedStrategy<Arc<str>> {
    "\\PC{0,12}".prop_map(Arc::from).boxed()
}

pub fn node() -> BoxedStrategy<NodeId> {
    prop_oneof![0..5000_u32, any::<u32>()]
        .prop_map(NodeId)
        .boxed()
}

fn nodes() -> BoxedStrategy<Vec<NodeId>> {
    let ascending = |mut nodes: Vec<NodeId>| {
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    };
    let some = vec(0..40_u32, 0..30)
        .prop_map(move |nodes| ascending(nodes.into_iter().map(NodeId).collect()));
    let first = (0..5_u32).prop_map(|nodes| (0..nodes).map(NodeId).collect());
    prop_oneof![first, some].boxed()
}

fn nspace() -> BoxedStrategy<Nspace> {
    let name = prop_oneof![3 => Just("job".to_owned()), 1 => "[a-z]{1,3}"];
    name.prop_map(|name| Nspace::new(&name).unwrap()).boxed()
}

pub fn process() -> BoxedStrategy<GlobalRank> {
    rank().prop_map(|rank| GlobalRank(rank.0)).boxed()
}

fn rank() -> BoxedStrategy<Rank> {
    prop_oneof![0..20_u32, 0..PMIX_RANK_RESERVED]
        .prop_map(Rank)
        .boxed()
}

fn proc() -> BoxedStrategy<Proc> {
    (nspace(), rank())
        .prop_map(|(nspace, rank)| Proc::new(nspace, rank))
        .boxed()
}

/// Any requester of a job.
pub fn spawner() -> BoxedStrategy<SpawnRequester> {
    prop_oneof![
        process().prop_map(SpawnRequester::Rank),
        proc().prop_map(SpawnRequester::Tool),
    ]
    .boxed()
}

/// Any end of a job.
pub fn job_end() -> BoxedStrategy<JobEnd> {
    let worst = proptest::option::of((proptest::option::of(rank()), life()));
    (any::<u32>(), worst)
        .prop_map(|(job, worst)| JobEnd {
            job: JobIndex(job),
            worst,
        })
        .boxed()
}

fn job_requester() -> BoxedStrategy<JobRequester> {
    prop_oneof![
        Just(JobRequester::User),
        proc().prop_map(JobRequester::Rank),
        tool().prop_map(JobRequester::Tool),
    ]
    .boxed()
}

fn tool() -> BoxedStrategy<ToolRequester> {
    (proc(), any::<u32>(), any::<[bool; 2]>())
        .prop_map(|(name, node, [stdout, stderr])| ToolRequester {
            name,
            node: NodeId(node),
            stdout,
            stderr,
        })
        .boxed()
}

fn proc_rank() -> BoxedStrategy<RankOrWildcard> {
    prop_oneof![
        1 => Just(RankOrWildcard::Wildcard),
        20 => rank().prop_map(RankOrWildcard::One)
    ]
    .boxed()
}

fn wait() -> BoxedStrategy<Option<Duration>> {
    let time = (0..1_u64 << 40, 0..1_000_000_000_u32);
    proptest::option::of(time.prop_map(|(seconds, rest)| Duration::new(seconds, rest))).boxed()
}

fn modex() -> BoxedStrategy<ModexMessage> {
    let failure = prop_oneof![
        Just(ModexFailure::NotFound),
        Just(ModexFailure::RankGone),
        (node(), reason()).prop_map(|(node, reason)| ModexFailure::PeerLost { node, reason }),
        (node(), wait()).prop_map(|(owner, waited)| ModexFailure::Timeout {
            owner,
            waited: waited.unwrap_or_default(),
        }),
        any::<i32>().prop_map(ModexFailure::Host),
        any::<usize>().prop_map(ModexFailure::TooLarge),
        node().prop_map(|node| ModexFailure::TornDown { node }),
    ];
    let result = prop_oneof![bytes().prop_map(Ok), failure.prop_map(Err)];
    prop_oneof![
        (any::<u64>(), proc()).prop_map(|(serial, proc)| ModexMessage::Request { serial, proc }),
        (any::<u64>(), proc(), result).prop_map(|(serial, proc, result)| ModexMessage::Reply {
            serial,
            proc,
            result,
        }),
    ]
    .boxed()
}

fn group() -> BoxedStrategy<GroupMessage> {
    let key = || {
        (any::<bool>(), bytes(), participants()).prop_map(|(construct, name, members)| GroupKey {
            operation: match construct {
                true => GroupOperation::Construct,
                false => GroupOperation::Destruct,
            },
            name,
            members,
        })
    };
    let offer = (
        vec(proc(), 0..3),
        any::<(bool, bool, bool, i32)>(),
        bytes(),
        wait(),
    )
        .prop_map(
            |(ended, (wants_context, optional, notify, status), part, timeout)| GroupArrival {
                ended_members: ended,
                optional,
                notify,
                wants_context,
                status,
                part,
                timeout,
            },
        );
    let released = (
        any::<Option<u64>>(),
        vec(proc(), 0..9),
        vec(bytes(), 0..3),
        any::<(bool, i32)>(),
    )
        .prop_map(
            |(context, members, parts, (notify, status))| groups::GroupRelease {
                context,
                members: members.into_iter().collect(),
                notify,
                parts: parts.into(),
                status,
            },
        );
    let failure = || {
        prop_oneof![
            (nodes(), any::<usize>())
                .prop_map(|(missing, nodes)| GroupFailure::Timeout { missing, nodes }),
            proc().prop_map(|proc| GroupFailure::MemberEnded { proc }),
            node().prop_map(|node| GroupFailure::ServerLost { node }),
            Just(GroupFailure::Busy),
            node().prop_map(|node| GroupFailure::NotMember { node }),
            node().prop_map(|node| GroupFailure::NodeLost { node }),
            node().prop_map(|node| GroupFailure::TooMany { node }),
            node().prop_map(|node| GroupFailure::TornDown { node }),
        ]
    };
    prop_oneof![
        (key(), offer).prop_map(|(key, offer)| GroupMessage::Arrive { key, offer }),
        key().prop_map(|key| GroupMessage::Open { key }),
        (key(), failure()).prop_map(|(key, failure)| GroupMessage::Refuse { key, failure }),
        (key(), released).prop_map(|(key, released)| GroupMessage::Release { key, released }),
        (key(), failure()).prop_map(|(key, failure)| GroupMessage::Fail { key, failure }),
    ]
    .boxed()
}

fn life() -> BoxedStrategy<ProcessState> {
    let end = prop_oneof![
        any::<u8>().prop_map(RankEnd::Code),
        (1..65_i32).prop_map(RankEnd::Signal),
    ];
    prop_oneof![
        Just(ProcessState::Planned),
        Just(ProcessState::Running),
        Just(ProcessState::Connected),
        (end, any::<bool>()).prop_map(|(end, connected)| ProcessState::Ended { end, connected }),
    ]
    .boxed()
}

fn query() -> BoxedStrategy<QueryMessage> {
    let process = (
        rank(),
        any::<Option<u32>>(),
        vec(any::<u8>(), 0..20),
        life(),
        any::<Option<u64>>(),
    );
    let process = process.prop_map(|(rank, pid, executable, life, memory)| QueriedProcess {
        rank,
        pid,
        executable,
        life,
        memory,
    });
    let part = (
        vec(vec(process, 0..4), 0..3),
        any::<Option<u64>>(),
        vec(any::<u8>(), 0..20),
    );
    let part = part.prop_map(|(jobs, server, uri)| NodeQueryReply { jobs, server, uri });
    let question =
        (vec(nspace(), 0..3), any::<bool>()).prop_map(|(jobs, memory)| NodeQuery { jobs, memory });
    prop_oneof![
        (any::<u64>(), question)
            .prop_map(|(serial, question)| QueryMessage::Request { serial, question }),
        (any::<u64>(), part).prop_map(|(serial, part)| QueryMessage::Reply { serial, part }),
    ]
    .boxed()
}

fn output() -> BoxedStrategy<IofPullMessage> {
    let process = || any::<u32>().prop_map(GlobalRank);
    let channel = || any::<u16>().prop_map(Channels);
    prop_oneof![
        (vec(process(), 0..5), channel(), any::<(u32, bool)>()).prop_map(
            |(processes, channels, (bytes, first))| IofPullMessage::Want {
                processes,
                channels,
                cached: OutputCacheRequest { bytes, first },
            }
        ),
        Just(IofPullMessage::WantNothing),
        (process(), channel(), vec(any::<u8>(), 0..40)).prop_map(|(process, channel, bytes)| {
            IofPullMessage::Output {
                process,
                channel,
                bytes,
            }
        }),
        (process(), channel(), any::<u64>()).prop_map(|(process, channel, bytes)| {
            IofPullMessage::Taken {
                process,
                channel,
                bytes,
            }
        }),
    ]
    .boxed()
}

fn input() -> BoxedStrategy<IofPushMessage> {
    let processes = vec(any::<u32>().prop_map(GlobalRank), 0..5);
    prop_oneof![
        (any::<u64>(), processes, vec(any::<u8>(), 0..40)).prop_map(|(push, processes, bytes)| {
            IofPushMessage::Give {
                push,
                processes,
                bytes,
            }
        }),
        (any::<u64>(), any::<i32>()).prop_map(|(push, status)| IofPushMessage::Done {
            push,
            status: Status(status),
        }),
    ]
    .boxed()
}

fn key() -> BoxedStrategy<KeyMessage> {
    let bytes = || vec(any::<u8>(), 0..9);
    let request = prop_oneof![
        bytes().prop_map(RemoteKeyRead::Key),
        Just(RemoteKeyRead::Pairs),
        Just(RemoteKeyRead::Job),
    ];
    prop_oneof![
        (any::<u64>(), nspace(), request).prop_map(|(number, job, request)| KeyMessage::Ask {
            number,
            job,
            request
        }),
        (any::<u64>(), proptest::option::of(bytes()))
            .prop_map(|(number, value)| KeyMessage::Value { number, value }),
    ]
    .boxed()
}

fn epoch() -> BoxedStrategy<EpochMessage> {
    prop_oneof![
        any::<u64>().prop_map(|number| EpochMessage::Begin { number }),
        (any::<u64>(), any::<u64>())
            .prop_map(|(number, epoch)| EpochMessage::Begun { number, epoch }),
    ]
    .boxed()
}

pub fn peer_message() -> BoxedStrategy<PeerMessage> {
    let notification = (any::<i32>(), pmix_proc(), any::<u8>(), infos()).prop_map(
        |(code, source, range, infos)| Notification {
            code: Status(code),
            source,
            range: DataRange(range),
            infos,
        },
    );
    prop_oneof![
        fence().prop_map(PeerMessage::Fence),
        modex().prop_map(PeerMessage::Modex),
        store().prop_map(PeerMessage::Store),
        group().prop_map(PeerMessage::Group),
        collective_message().prop_map(PeerMessage::Collective),
        query().prop_map(PeerMessage::Query),
        output().prop_map(PeerMessage::Output),
        input().prop_map(PeerMessage::Input),
        key().prop_map(PeerMessage::Key),
        epoch().prop_map(PeerMessage::Epoch),
        notification.prop_map(|event| PeerMessage::Notify(Arc::new(event))),
        any::<u32>().prop_map(|rank| PeerMessage::Died(GlobalRank(rank))),
    ]
    .boxed()
}

pub fn demand() -> BoxedStrategy<JobControlRequest> {
    let wish = prop_oneof![
        (any::<i32>(), "\\PC{0,9}")
            .prop_map(|(code, message)| JobControlAction::Abort { code, message }),
        Just(JobControlAction::Terminate),
        Just(JobControlAction::Kill),
        any::<i32>().prop_map(JobControlAction::Signal),
    ];
    let ranks = proptest::option::of(vec(process(), 0..4));
    (proptest::option::of(process()), wish, ranks)
        .prop_map(|(by, what, ranks)| JobControlRequest {
            requester: by,
            action: what,
            ranks,
        })
        .boxed()
}

pub fn cause() -> BoxedStrategy<FailureCause> {
    let text = || "\\PC{0,9}";
    let end = prop_oneof![
        any::<u8>().prop_map(RankEnd::Code),
        any::<i32>().prop_map(RankEnd::Signal)
    ];
    prop_oneof![
        (process(), end).prop_map(|(rank, end)| FailureCause::RankFailed { rank, end }),
        process().prop_map(|rank| FailureCause::NotFinalized { rank }),
        process().prop_map(|rank| FailureCause::NeverJoined { rank }),
        process().prop_map(|rank| FailureCause::ExitedEarly { rank }),
        (process(), text()).prop_map(|(rank, why)| FailureCause::Singleton { rank, why }),
        (process(), any::<i32>(), text()).prop_map(|(rank, code, message)| FailureCause::Aborted {
            rank,
            code,
            message
        }),
        (proptest::option::of(process()), any::<i32>())
            .prop_map(|(rank, signal)| FailureCause::TerminatedBy { rank, signal }),
        (process(), text()).prop_map(|(rank, error)| FailureCause::Misbehaved { rank, error }),
        (process(), text(), any::<u8>()).prop_map(|(rank, error, code)| FailureCause::NotStarted {
            rank,
            error,
            code
        }),
        (node(), text()).prop_map(|(node, error)| FailureCause::SidecarFailed { node, error }),
        text().prop_map(|error| FailureCause::FenceFailed { error }),
        late_fence().prop_map(|late| FailureCause::FenceTimeout(Box::new(late))),
        wait().prop_map(|time| FailureCause::Timeout(time.unwrap_or_default())),
        any::<i32>().prop_map(FailureCause::Interrupted),
        (text(), any::<bool>()).prop_map(|(error, pipe)| FailureCause::OutputLost { error, pipe }),
    ]
    .boxed()
}

/// Any job.
pub fn job_context() -> BoxedStrategy<JobContext> {
    let ranks = rank_map().prop_filter("a job has ranks", |ranks| ranks.size() > 0);
    ranks
        .prop_flat_map(|ranks| {
            let size = ranks.size();
            (
                Just(ranks),
                nspace(),
                vec(0..=size, 0..4),
                any::<[u32; 2]>(),
                (vec(process_set(size), 0..3), debugged()),
                (job_requester(), 0..=u32::MAX - size),
                vec(any::<(Vec<u8>, Vec<u8>)>(), 0..2),
            )
        })
        .prop_map(
            |(ranks, nspace, mut ends, numbers, (psets, debug), origin, preputs)| {
                ends.sort_unstable();
                ends.push(ranks.size());
                let mut before = 0;
                let sizes = ends
                    .into_iter()
                    .map(|end| end - std::mem::replace(&mut before, end));
                JobContext {
                    nspace,
                    process_map: ranks,
                    app_map: Appnums::from_sizes(sizes),
                    universe_size: numbers[0],
                    unbounded_universe: numbers[0] % 2 == 0,
                    uid: UserId(numbers[1]),
                    psets,
                    requester: origin.0,
                    debug,
                    first_global_rank: GlobalRank(origin.1),
                    initial_kvs: preputs,
                }
            },
        )
        .boxed()
}

/// Any message of a node to the launcher; of those to the name server, relays alone.
pub fn from_node() -> BoxedStrategy<NodeReport> {
    let text = || "\\PC{0,9}".prop_map(String::from);
    let infos = || {
        let info = (text(), text(), any::<bool>()).prop_map(|(key, value, required)| SpawnInfo {
            key,
            value,
            required,
        });
        vec(info, 0..3)
    };
    let app =
        (text(), vec(text(), 0..2), any::<u32>()).prop_map(|(program, words, count)| SpawnApp {
            program: program.into(),
            args: words.iter().map(Into::into).collect(),
            env: words.iter().map(Into::into).collect(),
            cwd: words.first().map(Into::into),
            count,
            infos: Vec::new(),
        });
    let request = (vec(app, 0..3), infos()).prop_map(|(apps, infos)| SpawnRequest {
        apps,
        infos,
        preputs: Vec::new(),
    });
    let allocation = (
        proptest::sample::select(vec![Directive::New, Directive::Release]),
        infos(),
        wait(),
    )
        .prop_map(|(directive, infos, timeout)| AllocationRequest {
            directive,
            infos,
            timeout,
        });
    let relay = (vec(nspace(), 0..3), nspace(), vec(any::<u8>(), 0..30));
    prop_oneof![
        (any::<u64>(), process(), allocation).prop_map(|(ticket, by, request)| {
            NodeReport::Allocate {
                ticket: AllocationRequestId(ticket),
                requester: by,
                request: Box::new(request),
            }
        }),
        (any::<u32>(), relay).prop_map(|(epoch, (own, to, body))| NodeReport::Rendezvous {
            epoch,
            message: NameServerCommand::Relay {
                sender_jobs: own,
                to,
                body
            },
        }),
        any::<bool>().prop_map(|attached| NodeReport::Tools { attached }),
        infos().prop_map(NodeReport::LaunchDirectives),
        (any::<u64>(), spawner(), request).prop_map(|(ticket, by, request)| NodeReport::Spawn {
            ticket: SpawnRequestId(ticket),
            requester: by,
            request: Box::new(request),
        }),
        demand().prop_map(NodeReport::JobControl),
        late_fence().prop_map(NodeReport::FenceLate),
        passage().prop_map(|passage| NodeReport::FenceTiming(Box::new(passage))),
        (
            proptest::option::of(process()),
            proptest::sample::select(vec![
                LogChannel::Stdout,
                LogChannel::Stderr,
                LogChannel::Record
            ]),
            any::<bool>(),
            vec(any::<u8>(), 0..30)
        )
            .prop_map(|(rank, channel, once, text)| {
                let text = LogText {
                    rank,
                    channel,
                    once,
                    text,
                };
                NodeReport::Log(text)
            }),
        (
            proptest::sample::select(vec![SyslogTarget::Node, SyslogTarget::Launcher]),
            any::<u8>(),
            proptest::option::of(any::<i64>()),
            "\\PC{0,9}",
            any::<bool>(),
            vec(any::<u8>(), 0..30)
        )
            .prop_map(|(place, priority, at, source, once, text)| {
                let text = SyslogText {
                    place,
                    priority,
                    at,
                    source,
                    once,
                    text,
                };
                NodeReport::Syslog(text)
            }),
    ]
    .boxed()
}
