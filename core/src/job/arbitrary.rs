//! Random descriptions of jobs for property tests.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::builds::BuildMismatchPolicy;
use super::debug::{DebugDirectives, IndirectLaunchTool, ToolLossPolicy};
use super::env_change::{EnvChange, EnvChangeKind};
use super::exit_policy::ExitPolicy;
use super::hosts::HostSpec;
use super::ids::{NodeId, Nspace, Rank};
use super::impi::ImpiWorld;
use super::limit::{LimitValue, Resource, ResourceLimit};
use super::mpi::{MpiDefinition, MpiSpec};
use super::name_store_kind::NameStoreKind;
use super::proc::{PMIX_RANK_RESERVED, RankOrWildcard};
use super::pset::ProcessSet;
use super::rank_set::{RankChoice, RankSet};
use super::rankfile::RankfileCpus;
use super::spec::{
    AgentLaunchCommand, AgentTreeSpec, AppRequest, BindMount, BindTo, BindingSpec, ChildJobPolicy,
    ContainerSpec, DebugSpec, EnvInheritance, FabricSource, FabricSpec, FailurePolicy,
    FenceTimeoutSpec, ImageSpec, InterfaceChoice, InterfaceSpec, JobSpec, LabelSpec, LayoutSpec,
    MapBy, MapWithinHost, MemBind, Runtime, StagingSpec, StatusSpec, StatusTarget, StdinTarget,
    StdioSpec, TerminationSpec, Uenv, WrapSpec,
};
use super::trace_context::TraceContext;
use crate::job::process_map::ProcessMap;
use crate::topology::{CPUS_MAX, CpuSet, ObjectType};

/// Any bytes, as the system allows them.
fn word() -> BoxedStrategy<OsString> {
    vec(1..=u8::MAX, 0..12).prop_map(OsString::from_vec).boxed()
}

fn path() -> BoxedStrategy<PathBuf> {
    word().prop_map(PathBuf::from).boxed()
}

/// Blocks, rounds and irregularities on up to 9 nodes.
pub fn rank_map() -> BoxedStrategy<ProcessMap> {
    let sweep = (0..5_u32, 1..5_u32, 0..4_u32, 1..4_u32);
    vec(sweep, 0..8)
        .prop_map(|sweeps| {
            ProcessMap::from_runs(sweeps.into_iter().flat_map(|(first, nodes, each, rounds)| {
                let round = move |_| (first..first + nodes).map(move |node| (NodeId(node), each));
                (0..rounds).flat_map(round)
            }))
        })
        .boxed()
}

/// A set with ranks below this number.
pub fn process_set(ranks: u32) -> BoxedStrategy<ProcessSet> {
    ("[a-z]{1,9}", vec(0..ranks, 1..9))
        .prop_map(|(name, mut ranks)| {
            ranks.sort_unstable();
            ranks.dedup();
            ranks.reverse();
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            format!("{name}={}", ranks.join(",")).parse().unwrap()
        })
        .boxed()
}

fn rank_set() -> BoxedStrategy<RankSet> {
    vec((any::<u32>(), 0..9_u32), 1..5)
        .prop_map(|ranges| {
            let range =
                |(first, more): (u32, u32)| format!("{first}-{}", first.saturating_add(more));
            let ranges: Vec<String> = ranges.into_iter().map(range).collect();
            ranges.join(",").parse().unwrap()
        })
        .boxed()
}

fn choice() -> BoxedStrategy<Option<RankChoice>> {
    let choice = prop_oneof![Just(RankChoice::All), rank_set().prop_map(RankChoice::Only),];
    of(choice).boxed()
}

/// Any wishes of debuggers.
pub fn debugged() -> BoxedStrategy<DebugDirectives> {
    let rank = prop_oneof![
        Just(RankOrWildcard::Wildcard),
        (0..PMIX_RANK_RESERVED).prop_map(|rank| RankOrWildcard::One(Rank(rank))),
    ];
    let nspace = "[a-z0-9.-]{1,9}".prop_map(|name| Nspace::new(&name).unwrap());
    (
        choice(),
        choice(),
        choice(),
        any::<bool>(),
        of((nspace, rank)),
    )
        .prop_map(
            |(on_exec, in_init, in_app, daemons, target)| DebugDirectives {
                on_exec,
                in_init,
                in_app,
                daemons,
                target,
            },
        )
        .boxed()
}

fn debug() -> BoxedStrategy<DebugSpec> {
    let server = of("[a-z0-9.-]{1,9}".prop_map(|name| (Nspace::new(&name).unwrap(), Rank(3))));
    let director = (of("[a-z0-9.:;]{1,9}"), server)
        .prop_map(|(uri, server)| IndirectLaunchTool { uri, server });
    let by_tools = (of(director), of("[a-z/]{1,9}"));
    (choice(), choice(), any::<(bool, bool)>(), by_tools)
        .prop_map(
            |(stop_on_exec, stop_in_init, (led, stacks), (director, rendezvous))| DebugSpec {
                stop_on_exec,
                is_debugger_led: led,
                stacks,
                stop_in_init,
                director,
                rendezvous,
                on_tool_loss: ToolLossPolicy::Release,
            },
        )
        .boxed()
}

fn limit() -> BoxedStrategy<ResourceLimit> {
    let bound = || {
        prop_oneof![
            any::<u64>().prop_map(LimitValue::At),
            Just(LimitValue::Unlimited)
        ]
    };
    (0..Resource::ALL.len(), bound(), of(bound()))
        .prop_map(|(resource, soft, hard)| ResourceLimit {
            resource: Resource::ALL[resource].0,
            soft: hard.map_or(soft, |hard| soft.min(hard)),
            hard,
        })
        .boxed()
}

fn app() -> BoxedStrategy<AppRequest> {
    let inherited = prop_oneof![
        Just(EnvInheritance::All),
        Just(EnvInheritance::None),
        vec(word(), 0..3).prop_map(EnvInheritance::Only),
    ];
    let wrap = (word(), of(rank_set())).prop_map(|(command, ranks)| WrapSpec { command, ranks });
    let kind = prop_oneof![
        Just(EnvChangeKind::Set),
        Just(EnvChangeKind::Add),
        Just(EnvChangeKind::Unset),
        any::<u8>().prop_map(EnvChangeKind::Prepend),
        any::<u8>().prop_map(EnvChangeKind::Append),
    ];
    let change = (kind, "[A-Z]{1,9}=[a-z]{0,9}")
        .prop_map(|(kind, text)| EnvChange::parse(kind, text.as_ref()).unwrap());
    (
        any::<(Option<u32>, Option<u32>)>(),
        (any::<[bool; 3]>(), vec(path(), 0..3)),
        inherited,
        vec(path(), 0..3),
        (vec(word(), 0..4), vec(change, 0..3)),
        (of(path()), vec(path(), 0..3), vec(path(), 0..3)),
        vec(limit(), 0..3),
        (of(wrap), mpi()),
        vec(word(), 1..5),
    )
        .prop_map(
            |(
                (count, umask),
                preload,
                inherited,
                env_files,
                env,
                paths,
                limits,
                (wrap, mpi),
                argv,
            )| {
                let (env, env_changes) = env;
                let (wdir, search, needed_files) = paths;
                AppRequest {
                    preload: StagingSpec {
                        program: preload.0[0],
                        files: preload.1,
                        stage: preload.0[1],
                    },
                    rank_tmpdir: preload.0[2],
                    mpi,
                    count,
                    inherited,
                    env_files,
                    env,
                    env_changes,
                    wdir,
                    search,
                    needed_files,
                    limits,
                    umask,
                    wrap,
                    argv,
                }
            },
        )
        .boxed()
}

fn mpi() -> BoxedStrategy<MpiSpec> {
    let definition = ("[a-z0-9]{1,9}", path(), vec((word(), word()), 0..2));
    let definition = definition.prop_map(|(name, path, variables)| MpiDefinition {
        name,
        path,
        variables,
    });
    (of(word()), vec(definition, 0..2))
        .prop_map(|(choice, definitions)| MpiSpec {
            choice,
            definitions,
        })
        .boxed()
}

fn fabric() -> BoxedStrategy<FabricSpec> {
    let source = prop_oneof![
        Just(FabricSource::Environment),
        Just(FabricSource::Request),
        "[a-z/:.]{1,9}".prop_map(FabricSource::Service),
        "[a-z ]{1,9}".prop_map(FabricSource::Command),
    ];
    let file = || of("[a-z/]{1,9}".prop_map(PathBuf::from));
    (source, file(), file())
        .prop_map(|(source, token, authorities)| FabricSpec {
            source,
            token,
            authorities,
        })
        .boxed()
}

fn container() -> BoxedStrategy<ContainerSpec> {
    let uenv = (path(), path()).prop_map(|(file, mount)| Uenv { file, mount });
    let mount = (path(), path(), any::<bool>()).prop_map(|(source, target, read_only)| BindMount {
        source,
        target,
        read_only,
    });
    let image = (word(), 0..Runtime::ALL.len(), vec(mount, 0..3));
    let image = image.prop_map(|(image, runtime, mounts)| ImageSpec {
        image,
        runtime: Runtime::ALL[runtime],
        mounts,
    });
    (vec(uenv, 0..3), of(image))
        .prop_map(|(uenvs, image)| ContainerSpec { uenvs, image })
        .boxed()
}

fn starter() -> BoxedStrategy<AgentLaunchCommand> {
    let words = || vec("[a-z{}-]{0,9}", 0..4);
    let lists = [(); 3].map(|()| words());
    ("[a-z]{1,9}", lists, vec(words(), 0..3))
        .prop_map(
            |(name, [command, without, addresses], parts)| AgentLaunchCommand {
                name,
                command,
                parts,
                without,
                addresses,
            },
        )
        .boxed()
}

fn layout() -> BoxedStrategy<LayoutSpec> {
    let host = ("[a-z0-9]{1,9}", "[a-z0-9:]{1,9}", any::<[Option<u32>; 2]>());
    let hosts = vec(
        host.prop_map(|(name, address, [slots, most])| HostSpec {
            name,
            address,
            slots,
            most,
        }),
        0..4,
    );
    (
        hosts,
        of(path()),
        of(starter()),
        any::<[u32; 3]>(),
        any::<(Option<u32>, bool, Option<u32>, bool)>(),
        vec((any::<u32>(), any::<u32>()), 0..3),
    )
        .prop_map(
            |(hosts, agent, starter, numbers, (ppn, by_node, slots, oversubscribe), runs)| {
                let [star_limit, tree_width, virtual_nodes] = numbers;
                LayoutSpec {
                    hosts,
                    spread: AgentTreeSpec {
                        star_limit,
                        tree_width,
                        agent,
                        starter,
                        same_build: [
                            BuildMismatchPolicy::Warn,
                            BuildMismatchPolicy::Fail,
                            BuildMismatchPolicy::Off,
                        ][star_limit as usize % 3],
                    },
                    virtual_nodes,
                    ppn,
                    map_by: match by_node {
                        true => MapBy::Node,
                        false => MapBy::Slot,
                    },
                    runs: runs
                        .into_iter()
                        .map(|(node, ranks)| (NodeId(node), ranks))
                        .collect(),
                    slots,
                    oversubscribe,
                }
            },
        )
        .boxed()
}

fn binding() -> BoxedStrategy<BindingSpec> {
    let level = || (0..ObjectType::ALL.len()).prop_map(|at| ObjectType::ALL[at]);
    let cpus = vec(0..CPUS_MAX, 1..4).prop_map(|cpus| cpus.into_iter().collect::<CpuSet>());
    let slot = any::<(Option<u32>, Option<(u32, u32)>)>();
    let slot = slot.prop_map(|(package, units)| RankfileCpus { package, units });
    let to = prop_oneof![
        Just(BindTo::None),
        level().prop_map(BindTo::Level),
        vec(cpus, 1..3).prop_map(BindTo::List),
        (level(), vec(vec(slot, 0..3), 0..3)).prop_map(|(unit, slots)| BindTo::Slots(unit, slots)),
    ];
    let map = prop_oneof![
        Just(MapWithinHost::InOrder),
        level().prop_map(MapWithinHost::Over),
        (any::<u32>(), level()).prop_map(|(each, level)| MapWithinHost::Each(each, level)),
    ];
    let memory = prop_oneof![
        Just(MemBind::None),
        Just(MemBind::Local),
        Just(MemBind::Prefer),
        Just(MemBind::Interleave),
    ];
    let rest = any::<(bool, bool, Option<u32>)>();
    (to, map, 1_u32.., memory, rest)
        .prop_map(|(to, map, cpus_per_rank, memory, rest)| BindingSpec {
            to,
            map,
            cpus_per_rank,
            memory,
            openmp: rest.0,
            report: rest.1,
            gpus_per_rank: rest.2,
        })
        .boxed()
}

fn stdio() -> BoxedStrategy<StdioSpec> {
    let stdin = prop_oneof![
        Just(StdinTarget::None),
        Just(StdinTarget::All),
        any::<u32>().prop_map(|rank| StdinTarget::Rank(Rank(rank))),
    ];
    let label = prop_oneof![Just(LabelSpec::Rank), word().prop_map(LabelSpec::Pattern),];
    (of(label), any::<(bool, Option<u32>)>(), of(word()), stdin)
        .prop_map(|(label, (timestamps, pty), output, stdin)| StdioSpec {
            label,
            timestamps,
            output,
            stdin,
            pty: pty.map(Rank),
        })
        .boxed()
}

fn ending() -> BoxedStrategy<TerminationSpec> {
    let exit = prop_oneof![
        Just(ExitPolicy::First),
        Just(ExitPolicy::Max),
        Just(ExitPolicy::AnyZero),
        Just(ExitPolicy::Last),
        any::<u32>().prop_map(|rank| ExitPolicy::Rank(Rank(rank))),
    ];
    let fence = prop_oneof![
        Just(FenceTimeoutSpec::Sensible),
        Just(FenceTimeoutSpec::Unlimited),
        any::<u32>().prop_map(|ms| FenceTimeoutSpec::After(Duration::from_millis(ms.into()))),
    ];
    let children = prop_oneof![
        Just(ChildJobPolicy::EndWithParent),
        Just(ChildJobPolicy::Independent)
    ];
    let time = |ms: u32| Duration::from_millis(ms.into());
    let spawn = of(any::<u32>().prop_map(time));
    let on_failure = prop_oneof![
        Just(FailurePolicy::Abort),
        Just(FailurePolicy::Continue),
        Just(FailurePolicy::Requeue)
    ];
    let rest = any::<(Option<u32>, u32, bool, bool, bool)>();
    (exit, fence, (spawn, children, on_failure), rest)
        .prop_map(|(exit, fence, (spawn, children, on_failure), rest)| {
            let (timeout, grace, kill_on_bad_exit, strict_pmi, restartable) = rest;
            TerminationSpec {
                on_failure,
                fence,
                spawn,
                children,
                timeout: timeout.map(|time| Duration::from_millis(time.into())),
                exit,
                kill_on_bad_exit,
                grace: Duration::from_millis(grace.into()),
                strict_pmi,
                restartable,
            }
        })
        .boxed()
}

fn status() -> BoxedStrategy<StatusSpec> {
    let json = prop_oneof![
        Just(StatusTarget::Stdout),
        any::<i32>().prop_map(StatusTarget::Descriptor),
        path().prop_map(StatusTarget::File),
    ];
    let flags = any::<[bool; 3]>();
    (of(json), of(3i32..), of(path()), of(path()), flags)
        .prop_map(
            |(json, control, report, trace, [timing, no_progress, live])| StatusSpec {
                json,
                control,
                report,
                trace,
                timing,
                metrics: live.then(|| ([127, 0, 0, 1], 9438).into()),
                no_progress,
                live,
                spans: timing.then(|| TraceContext::new(None, [7; 24])),
            },
        )
        .boxed()
}

fn impi_world() -> impl Strategy<Value = ImpiWorld> {
    let values = vec(("[A-Z_]{1,9}", "\\PC{0,9}"), 0..3);
    let numbers = (any::<u32>(), any::<u32>(), vec(any::<u32>(), 0..3));
    (values, numbers).prop_map(|(values, (first, first_host, hosts))| ImpiWorld {
        values,
        first,
        first_host,
        hosts,
    })
}

/// Anything a user can ask for.
pub fn job_spec() -> BoxedStrategy<JobSpec> {
    let pmi = prop_oneof![
        Just(InterfaceChoice::Auto),
        Just(InterfaceChoice::Pmi1),
        Just(InterfaceChoice::Pmi2),
        Just(InterfaceChoice::Pmix),
        Just(InterfaceChoice::All),
        Just(InterfaceChoice::None),
    ];
    let paths = (of(path()), of(path()), of(path()), of(path()));
    let names = prop_oneof![
        Just(NameStoreKind::Agents),
        "[a-z/:0-9]{0,9}".prop_map(NameStoreKind::File),
        "[a-z:0-9]{0,9}".prop_map(NameStoreKind::Etcd),
        "ldap://[a-z:0-9]{1,9}".prop_map(NameStoreKind::Ldap),
    ];
    let names = (of("[a-z]{1,9}"), of(names), of(any::<u32>()));
    let kinds = of("[a-z:,]{0,9}");
    let interface = (pmi, any::<bool>(), kinds, paths, names).prop_map(
        |(
            pmi,
            slurm_env,
            memory_kinds,
            (libpmix, pmix_host, shim, allocator),
            (meet, names, keep_names),
        )| {
            InterfaceSpec {
                meet,
                names,
                keep_names,
                allocator,
                pmi,
                memory_kinds,
                slurm_env,
                libpmix,
                pmix_host,
                shim,
            }
        },
    );
    (
        vec(app(), 1..4),
        layout(),
        vec(process_set(100), 0..3),
        stdio(),
        ending(),
        status(),
        interface,
        debug(),
        (
            any::<(bool, u8)>(),
            vec("\\PC{0,9}", 0..3),
            of("\\PC{0,9}"),
            binding(),
            container(),
            of(fabric()),
            of(impi_world()),
        ),
    )
        .prop_map(
            |(apps, layout, psets, stdio, ending, status, interface, debug, rest)| {
                let ((dry_run, verbose), notes, log, binding, container, fabric, impi) = rest;
                JobSpec {
                    apps,
                    layout,
                    binding,
                    container,
                    fabric,
                    psets,
                    stdio,
                    ending,
                    status,
                    interface,
                    debug,
                    impi,
                    dry_run,
                    notes,
                    verbose,
                    log,
                }
            },
        )
        .boxed()
}
