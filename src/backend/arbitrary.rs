//! Random messages between a launcher and its steps, for tests.

use std::path::Path;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::backend::backend_message::{FromBackend, NodeRefusal, NodeStage, ToBackend};
use crate::backend::inspection::{
    Dump, Inspected, InspectedRank, InspectionError, RankUsage, Stack,
};
use crate::backend::link_message::{Carried, Description};
use crate::backend::wait_report::Awaited;
use crate::plan::tests::{plan, spec};
use crate::report::singleton_detection::MpiProcess;
use wireup_core::job::ids::JobNumber;
use wireup_core::job::outcome::{PmiState, RankEnd};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};
use wireup_core::job::usage::Usage;
use wireup_core::node::event::arbitrary::{cause, from_node, job_end, node, peer_message, process};
use wireup_core::pmi::command::Dialect;
use wireup_core::record::Stream;
use wireup_core::step::alike::Alike;
use wireup_core::supervisor::Waiting;

const TEXT: &str = "\\PC{0,9}";

fn job() -> BoxedStrategy<JobNumber> {
    prop_oneof![0..3_u32, any::<u32>()]
        .prop_map(JobNumber)
        .boxed()
}

fn stream() -> BoxedStrategy<Stream> {
    proptest::sample::select(vec![Stream::Stdout, Stream::Stderr]).boxed()
}

fn end() -> BoxedStrategy<RankEnd> {
    prop_oneof![
        any::<u8>().prop_map(RankEnd::Code),
        any::<i32>().prop_map(RankEnd::Signal)
    ]
    .boxed()
}

fn usage() -> BoxedStrategy<Usage> {
    (any::<[u64; 2]>(), option::of(any::<u64>()))
        .prop_map(|([cpu_user_us, cpu_system_us], rss_max)| Usage {
            cpu_user_us,
            cpu_system_us,
            rss_max,
        })
        .boxed()
}

fn state() -> BoxedStrategy<PmiState> {
    (any::<[bool; 2]>(), TEXT)
        .prop_map(|([contacted, active], last)| PmiState {
            contacted,
            active,
            last,
        })
        .boxed()
}

fn waiting() -> BoxedStrategy<Waiting> {
    prop_oneof![
        job().prop_map(Waiting::Session),
        process().prop_map(Waiting::For)
    ]
    .boxed()
}

fn awaited() -> BoxedStrategy<Awaited> {
    vec(waiting(), 0..4).prop_map(Awaited::from_iter).boxed()
}

fn refusal() -> BoxedStrategy<NodeRefusal> {
    (any::<u8>(), TEXT)
        .prop_map(|(code, message)| NodeRefusal { code, message })
        .boxed()
}

fn dialect() -> BoxedStrategy<Option<Dialect>> {
    option::of(proptest::sample::select(vec![Dialect::Pmi1, Dialect::Pmi2])).boxed()
}

/// Any report of several ranks.
fn alike() -> BoxedStrategy<Alike> {
    let started = vec((process(), any::<i32>()), 0..4).prop_map(Alike::Started);
    let connected = (dialect(), vec(process(), 0..4));
    let ended = (
        vec(stream(), 0..3),
        end(),
        state(),
        vec((process(), option::of(usage())), 0..4),
    );
    prop_oneof![
        started,
        connected.prop_map(|(dialect, ranks)| Alike::Connected { dialect, ranks }),
        vec(process(), 0..4).prop_map(Alike::Finalized),
        ended.prop_map(|(closed, end, state, ranks)| Alike::Ended {
            closed,
            end,
            state,
            ranks
        }),
    ]
    .boxed()
}

/// Any report of a backend, plausible or not.
fn from_backend() -> BoxedStrategy<FromBackend> {
    let bytes = || vec(any::<u8>(), 0..20);
    let seen = (any::<u32>(), option::of(TEXT), any::<[bool; 5]>());
    let seen = seen.prop_map(|(app, program, loads)| {
        let [openmpi, openmpi4, mpich, pmix, pmi] = loads;
        let seen = MpiProcess {
            program,
            openmpi,
            openmpi4,
            mpich,
            pmix,
            pmi,
            ..MpiProcess::default()
        };
        FromBackend::LoadedMpi { app, seen }
    });
    let lost = (node(), TEXT);
    let frames = || vec(TEXT, 0..3);
    let result = prop_oneof![
        (frames(), option::of(TEXT))
            .prop_map(|(frames, note)| Ok(Inspected::Stack(Stack { frames, note }))),
        TEXT.prop_map(|file| Ok(Inspected::Core(file))),
        (TEXT, frames()).prop_map(|(text, frames)| Ok(Inspected::Dump(Dump { text, frames }))),
        (
            any::<[u64; 2]>(),
            option::of(any::<u64>()),
            TEXT,
            option::of(TEXT)
        )
            .prop_map(|([cpu_ms, resident], output, did, fence)| {
                Ok(Inspected::Usage(Box::new(RankUsage {
                    cpu_ms,
                    resident,
                    output,
                    state: 'R',
                    did,
                    fence_ms: fence.as_ref().map(|_| cpu_ms),
                    fence,
                })))
            }),
        any::<i32>().prop_map(|errno| Err(InspectionError::NotStarted(errno))),
        TEXT.prop_map(|text| Err(InspectionError::Gdb(text))),
    ];
    let rank = (process(), result).prop_map(|(rank, result)| InspectedRank { rank, result });
    let found = (node(), any::<u32>(), vec(rank, 0..3), any::<bool>());
    let found = found.prop_map(|(node, ticket, findings, is_last)| FromBackend::Inspected {
        node,
        ticket,
        findings,
        is_last,
    });
    let about_ranks = prop_oneof![
        (process(), any::<i32>()).prop_map(|(rank, pid)| FromBackend::Started { rank, pid }),
        (process(), option::of(cause()))
            .prop_map(|(rank, cause)| FromBackend::NotStarted { rank, cause }),
        (process(), dialect()).prop_map(|(rank, dialect)| FromBackend::Connected { rank, dialect }),
        process().prop_map(|rank| FromBackend::Finalized { rank }),
        (process(), option::of(end()), option::of(usage()))
            .prop_map(|(rank, end, usage)| FromBackend::Ended { rank, end, usage }),
        (process(), end(), state()).prop_map(|(rank, end, state)| FromBackend::Judged {
            rank,
            end,
            state
        }),
        process().prop_map(|rank| FromBackend::Gone { rank }),
        (process(), stream(), bytes()).prop_map(|(rank, stream, bytes)| FromBackend::Output {
            rank,
            stream,
            bytes
        }),
        (waiting(), cause()).prop_map(|(waiting, cause)| FromBackend::Left { waiting, cause }),
        (cause(), option::of(state()))
            .prop_map(|(cause, state)| FromBackend::Failed { cause, state }),
        (node(), from_node()).prop_map(|(node, said)| FromBackend::Node { node, said }),
        awaited().prop_map(FromBackend::Waits),
        alike().prop_map(FromBackend::Alike),
    ];
    let about_others = prop_oneof![
        Just(FromBackend::Ready),
        Just(FromBackend::Over),
        (node(), TEXT, vec(TEXT, 0..2)).prop_map(|(node, libpmix, warnings)| {
            FromBackend::SidecarLoaded {
                node,
                libpmix,
                warnings,
            }
        }),
        lost.prop_map(|(node, error)| FromBackend::SidecarLostLate { node, error }),
        job().prop_map(|job| FromBackend::AllStarted { job }),
        (TEXT, vec((process(), TEXT), 0..3))
            .prop_map(|(topology, ranks)| FromBackend::Bound { topology, ranks }),
        (job(), TEXT).prop_map(|(job, text)| {
            let kind = SpawnFailureKind::Failed;
            let failure = SpawnFailure { kind, text };
            FromBackend::JobRefused { job, failure }
        }),
        node().prop_map(|node| FromBackend::Reached {
            node,
            stage: NodeStage::Staged
        }),
        (node(), any::<bool>(), any::<u32>()).prop_map(|(node, passed, waiting)| {
            FromBackend::Fences {
                node,
                passed,
                waiting,
            }
        }),
        TEXT.prop_map(|text| FromBackend::Tell { text }),
        (node(), option::of(refusal()))
            .prop_map(|(node, refusal)| FromBackend::Joined { node, refusal }),
        vec((node(), refusal()), 0..2).prop_map(FromBackend::Refused),
        seen,
        found,
    ];
    prop_oneof![3 => about_ranks, 1 => about_others].boxed()
}

/// Any message of launchers and steps, mostly reports of steps.
pub(crate) fn carried() -> BoxedStrategy<Carried> {
    let orders = prop_oneof![
        any::<i32>().prop_map(ToBackend::Signal),
        awaited().prop_map(ToBackend::Ask),
        job().prop_map(ToBackend::DropJob),
        (any::<bool>(), vec(job_end(), 0..3))
            .prop_map(|(abnormal, ends)| ToBackend::Finish { abnormal, ends }),
    ];
    prop_oneof![
        8 => vec(from_backend(), 0..6).prop_map(Carried::Told),
        1 => refusal().prop_map(Carried::Refused),
        1 => any::<bool>().prop_map(|open| Carried::InputTaken { open }),
        1 => Just(Carried::InputRead),
        1 => orders.prop_map(Carried::Order),
        1 => (stream(), any::<u32>()).prop_map(|(stream, bytes)| Carried::Credit { stream, bytes }),
        1 => vec(any::<u8>(), 0..20).prop_map(Carried::Input),
        1 => (any::<u32>(), vec(any::<u8>(), 0..20)).prop_map(|(file, bytes)| Carried::Piece { file, bytes }),
        1 => vec(any::<u32>(), 0..4).prop_map(Carried::Lacks),
        1 => any::<u64>().prop_map(|bytes| Carried::Taken { bytes }),
        1 => peer_message().prop_map(Carried::Peer),
    ]
    .boxed()
}

/// Messages to steps about a job of a program that every machine has.
pub(crate) fn description() -> BoxedStrategy<Description> {
    let plan = plan(spec("n1:2,n2", Path::new("/bin/sh")));
    Just(Description {
        decided: plan.decided.clone(),
        spec: plan.spec.clone(),
        inheritance: plan.inheritance.travelling(),
        staged_files: Vec::new(),
    })
    .boxed()
}
