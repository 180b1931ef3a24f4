//! Random messages between a launcher and its steps, for tests.

use std::path::Path;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::backend::inspection::{
    Dump, InspectionError, InspectionResult, RankInspection, RankUsage, Stack,
};
use crate::backend::step_messages::{
    LaunchDescription, LauncherToStep, NodeRefusal, NodeStage, StepToLauncher,
};
use crate::backend::wait_set::WaitSet;
use crate::plan::tests::{plan, spec};
use crate::report::singleton_detection::MpiProcess;
use wireup_core::job::ids::JobIndex;
use wireup_core::job::outcome::{PmiState, RankEnd};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};
use wireup_core::job::usage::ResourceUsage;
use wireup_core::link::encode;
use wireup_core::node::event::arbitrary::{cause, from_node, job_end, node, peer_message, process};
use wireup_core::pmi::command::Dialect;
use wireup_core::record::Stream;
use wireup_core::step::report_batch::RankReportBatch;
use wireup_core::supervisor::WaitEvidence;

const TEXT: &str = "\\PC{0,9}";

fn job() -> BoxedStrategy<JobIndex> {
    prop_oneof![0..3_u32, any::<u32>()]
        .prop_map(JobIndex)
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

fn usage() -> BoxedStrategy<ResourceUsage> {
    (any::<[u64; 2]>(), option::of(any::<u64>()))
        .prop_map(|([cpu_user_us, cpu_system_us], rss_max)| ResourceUsage {
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
            last_activity: last,
        })
        .boxed()
}

fn waiting() -> BoxedStrategy<WaitEvidence> {
    prop_oneof![
        job().prop_map(WaitEvidence::Session),
        process().prop_map(WaitEvidence::For)
    ]
    .boxed()
}

fn awaited() -> BoxedStrategy<WaitSet> {
    vec(waiting(), 0..4).prop_map(WaitSet::from_iter).boxed()
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
fn alike() -> BoxedStrategy<RankReportBatch> {
    let started = vec((process(), any::<i32>()), 0..4).prop_map(RankReportBatch::Started);
    let connected = (dialect(), vec(process(), 0..4));
    let ended = (
        vec(stream(), 0..3),
        end(),
        state(),
        vec((process(), option::of(usage())), 0..4),
    );
    prop_oneof![
        started,
        connected.prop_map(|(dialect, ranks)| RankReportBatch::Connected { dialect, ranks }),
        vec(process(), 0..4).prop_map(RankReportBatch::Finalized),
        ended.prop_map(|(closed, end, state, ranks)| RankReportBatch::Ended {
            closed,
            end,
            state,
            ranks
        }),
    ]
    .boxed()
}

/// Any report of a backend, plausible or not.
fn from_backend() -> BoxedStrategy<StepToLauncher> {
    let bytes = || vec(any::<u8>(), 0..20);
    let loaded_mpi = (any::<u32>(), option::of(TEXT), any::<[bool; 5]>());
    let loaded_mpi = loaded_mpi.prop_map(|(app, program, loads)| {
        let [openmpi, openmpi4, mpich, pmix, pmi] = loads;
        let process = MpiProcess {
            program,
            openmpi,
            openmpi4,
            mpich,
            pmix,
            pmi,
            ..MpiProcess::default()
        };
        StepToLauncher::LoadedMpi { app, process }
    });
    let lost = (node(), TEXT);
    let frames = || vec(TEXT, 0..3);
    let result = prop_oneof![
        (frames(), option::of(TEXT))
            .prop_map(|(frames, note)| Ok(InspectionResult::Stack(Stack { frames, note }))),
        TEXT.prop_map(|file| Ok(InspectionResult::Core(file))),
        (TEXT, frames())
            .prop_map(|(text, frames)| Ok(InspectionResult::Dump(Dump { text, frames }))),
        (
            any::<[u64; 3]>(),
            option::of(any::<u64>()),
            TEXT,
            option::of(TEXT)
        )
            .prop_map(|([cpu_ms, runqueue_ms, resident], output, did, fence)| {
                Ok(InspectionResult::Usage(Box::new(RankUsage {
                    cpu_ms,
                    runqueue_ms,
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
    let rank = (process(), result).prop_map(|(rank, result)| RankInspection { rank, result });
    let found = (node(), any::<u32>(), vec(rank, 0..3), any::<bool>());
    let found = found.prop_map(
        |(node, ticket, findings, is_last)| StepToLauncher::Inspected {
            node,
            ticket,
            findings,
            is_last,
        },
    );
    let about_ranks = prop_oneof![
        (process(), any::<i32>()).prop_map(|(rank, pid)| StepToLauncher::Started { rank, pid }),
        (process(), option::of(cause()))
            .prop_map(|(rank, cause)| StepToLauncher::NotStarted { rank, cause }),
        (process(), dialect())
            .prop_map(|(rank, dialect)| StepToLauncher::Connected { rank, dialect }),
        process().prop_map(|rank| StepToLauncher::Finalized { rank }),
        (process(), option::of(end()), option::of(usage()))
            .prop_map(|(rank, end, usage)| StepToLauncher::Ended { rank, end, usage }),
        (process(), end(), state()).prop_map(|(rank, end, state)| StepToLauncher::Judged {
            rank,
            end,
            state
        }),
        (process(), stream(), bytes()).prop_map(|(rank, stream, bytes)| StepToLauncher::Output {
            rank,
            stream,
            bytes
        }),
        (waiting(), cause()).prop_map(|(waiting, cause)| StepToLauncher::Left { waiting, cause }),
        (cause(), option::of(state()))
            .prop_map(|(cause, state)| StepToLauncher::Failed { cause, state }),
        (node(), from_node()).prop_map(|(node, report)| StepToLauncher::Node { node, report }),
        awaited().prop_map(StepToLauncher::Waits),
        alike().prop_map(StepToLauncher::Alike),
    ];
    let about_others = prop_oneof![
        Just(StepToLauncher::Ready),
        Just(StepToLauncher::Over),
        (node(), TEXT, vec(TEXT, 0..2)).prop_map(|(node, libpmix, warnings)| {
            StepToLauncher::SidecarLoaded {
                node,
                libpmix,
                warnings,
            }
        }),
        lost.prop_map(|(node, error)| StepToLauncher::SidecarLostLate { node, error }),
        job().prop_map(|job| StepToLauncher::AllStarted { job }),
        (TEXT, vec((process(), TEXT), 0..3))
            .prop_map(|(topology, ranks)| StepToLauncher::Bound { topology, ranks }),
        (job(), TEXT).prop_map(|(job, text)| {
            let kind = SpawnFailureKind::Failed;
            let failure = SpawnFailure { kind, text };
            StepToLauncher::JobRefused { job, failure }
        }),
        node().prop_map(|node| StepToLauncher::Reached {
            node,
            stage: NodeStage::Staged
        }),
        (node(), any::<bool>(), any::<u32>()).prop_map(|(node, passed, waiting)| {
            StepToLauncher::Fences {
                node,
                passed,
                waiting,
            }
        }),
        TEXT.prop_map(|text| StepToLauncher::Tell { text }),
        (node(), option::of(refusal()))
            .prop_map(|(node, refusal)| StepToLauncher::Prepared { node, refusal }),
        loaded_mpi,
        found,
    ];
    prop_oneof![3 => about_ranks, 1 => about_others].boxed()
}

/// Any reports of a step.
pub(crate) fn reports() -> BoxedStrategy<Vec<StepToLauncher>> {
    let of_link = prop_oneof![
        refusal().prop_map(StepToLauncher::Refused),
        any::<bool>().prop_map(|open| StepToLauncher::InputTaken { open }),
        Just(StepToLauncher::InputRead),
        vec(any::<u32>(), 0..4).prop_map(StepToLauncher::Lacks),
        any::<u64>().prop_map(|bytes| StepToLauncher::Taken { bytes }),
    ];
    vec(prop_oneof![12 => from_backend(), 1 => of_link], 0..6).boxed()
}

/// Any message to a step, of its launcher or of another step, as it is written.
pub(crate) fn to_step() -> BoxedStrategy<Vec<u8>> {
    let orders = prop_oneof![
        any::<i32>().prop_map(LauncherToStep::Signal),
        awaited().prop_map(LauncherToStep::Ask),
        job().prop_map(LauncherToStep::DropJob),
        (any::<bool>(), vec(job_end(), 0..3))
            .prop_map(|(abnormal, ends)| LauncherToStep::Finish { abnormal, ends }),
        (stream(), any::<u32>())
            .prop_map(|(stream, bytes)| LauncherToStep::Credit { stream, bytes }),
        vec(any::<u8>(), 0..20).prop_map(LauncherToStep::Input),
        (any::<u32>(), vec(any::<u8>(), 0..20))
            .prop_map(|(file, bytes)| LauncherToStep::Piece { file, bytes }),
    ];
    prop_oneof![
        4 => orders.prop_map(|order| encode(&order)),
        1 => peer_message().prop_map(|message| encode(&message)),
    ]
    .boxed()
}

/// Messages to steps about a job of a program that every machine has.
pub(crate) fn description() -> BoxedStrategy<LaunchDescription> {
    let plan = plan(spec("n1:2,n2", Path::new("/bin/sh")));
    Just(LaunchDescription {
        decided: plan.job_plan.clone(),
        spec: plan.spec.clone(),
        inheritance: plan.inheritance.travelling(),
        staged_files: Vec::new(),
    })
    .boxed()
}
