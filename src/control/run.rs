//! One launch, from the plan to the exit code.
//!
//! The order matters: the guard and the namespaces, which fork without exec, come before the first
//! thread; signals are blocked before that too; sidecars start before everything that can be
//! prepared while they start.

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tracing::{Span, info, info_span};

use crate::backend::cleanup_record;
use crate::backend::container::{self, MountedImages};
use crate::backend::grant_holder::{self, GrantHolder};
use crate::backend::local::{self, LocalStep, RankIo};
use crate::backend::remote::RemoteBackend;
use crate::backend::step_links::StepLinks;
use crate::backend::step_messages::LauncherToStep;
use crate::control::control_stream::ControlStream;
use crate::control::event_sources::EventSources;
use crate::control::finish::finish;
use crate::control::launch_stage::LaunchStage;
use crate::control::mpir;
use crate::control::{self, Controller, status_records};
use crate::plan::host_scope::HostScope;
use crate::plan::packed_files::CleanupSink;
use crate::plan::{HostPlan, launch_directives};
use crate::report::status_stream::{StatusOutput, launch_spans, report_files};
use crate::report::{dry_run, explain};
use crate::start_ranks::StdinPlan;
use crate::stdio::streams::{OutputFormat, OutputStreams};
use crate::stdio::{rank_files, stdin};
use wireup_core::failure::CommandError;
use wireup_core::job::ids::{NodeId, Nspace, Rank};
use wireup_core::job::spec::{FenceTimeoutSpec, InterfaceChoice, JobSpec, StdinTarget};
use wireup_core::link::liveness::SILENCE;
use wireup_sys::inherited_state::InheritedState;
use wireup_sys::leftovers;
use wireup_sys::log;
use wireup_sys::namespace::NodeNamespaces;
use wireup_sys::poll::{PollSource, PollToken};
use wireup_sys::signals::Signals;
use wireup_sys::time_zone::local_clock;

mod early_resources;

pub use early_resources::EarlyResources;

/// Runs a launch and returns its exit code. An error in `beginning` is reported like any other
/// failure. `report_start` is called when all ranks have been started.
///
/// # Errors
/// [`CommandError`] if the job could not be started, or wireup itself failed; no process or file
/// is left in either case.
pub fn run(
    mut spec: JobSpec,
    beginning: Result<EarlyResources, CommandError>,
    report_start: fn(),
) -> Result<u8, CommandError> {
    spec.debug.is_debugger_led = mpir::is_debugged();
    let variables: Vec<_> = std::env::vars_os().collect();
    spec.debug.director = launch_directives::director(&variables);
    spec.debug.rendezvous = std::env::var(launch_directives::RENDEZVOUS).ok();
    if spec.debug.director.is_some() && spec.interface.pmi == InterfaceChoice::Auto {
        // The tool uses a PMIx server even if the ranks do not.
        spec.interface.pmi = InterfaceChoice::All;
    }
    let debug = &spec.debug;
    if (debug.is_debugger_led || debug.director.is_some() || debug.stop_on_exec.is_some())
        && spec.ending.fence == FenceTimeoutSpec::Sensible
    {
        // A debugger that stops ranks decides how long the others wait for them.
        spec.ending.fence = FenceTimeoutSpec::Unlimited;
    }
    spec.status.live = !spec.status.no_progress && io::stderr().is_terminal();
    if spec.dry_run {
        let (surroundings, nspace) = beginning?.unguarded();
        let limit = surroundings.nofile.rlim_max;
        let entered = enter(&spec, &nspace, &mut |_, _| {})?;
        let plan = HostPlan::new(spec, nspace, limit, entered.inside())?;
        return dry_run::show(plan, &surroundings);
    }
    spec.status.spans = launch_spans::context(&variables);
    if let Some(filter) = &spec.log {
        let invalid = |error| CommandError::request(format!("--log: {error}"));
        log::start(filter).map_err(invalid)?;
    }
    let span = beginning.as_ref().map_or_else(
        |_| Span::none(),
        |beginning| info_span!("launch", id = %beginning.nspace),
    );
    let _launch = span.enter();
    cleanup_record::collect();
    let started = Instant::now();
    let started_at = leftovers::file_time();
    let status = StatusOutput::open(&spec.status, started_at)?;
    report_files::check(&spec.status)?;
    let orders = spec.status.control.map(ControlStream::open).transpose()?;
    let prepared = beginning
        .and_then(|beginning| prepare(spec, beginning, started, started_at, status.clone()));
    let (mut controller, surroundings, keeper) = prepared.inspect_err(|failure| {
        if let Some(status) = &status {
            status.refuse(failure, started.elapsed());
        }
    })?;
    controller.report_start = report_start;
    let Controller { services, cx, .. } = &mut controller;
    let watched = orders.map_or(Ok(()), |orders| services.orders.watch(cx, orders));
    services.queries.take_requests(cx);
    services.tools.watch_director(cx);
    status_records::record_plan(cx);
    let metrics = match cx.plan.spec.status.metrics {
        Some(address) => services.queries.serve_metrics_at(cx, address),
        None => Ok(()),
    };
    let started = watched
        .map_err(|error| CommandError::system("cannot wait for --control commands", error))
        .and(metrics)
        .and_then(|()| cx.steps.open(&surroundings));
    let result = started.and_then(|()| launch(&mut controller, &surroundings));
    let code = finish(controller, result);
    // The fabric grant is no longer used.
    drop(keeper);
    code
}

/// Does everything that can fail before the job has a process.
fn prepare(
    spec: JobSpec,
    beginning: EarlyResources,
    started: Instant,
    started_at: SystemTime,
    status: Option<StatusOutput>,
) -> Result<(Controller, InheritedState, Option<GrantHolder>), CommandError> {
    if spec.layout.across_hosts() {
        let (surroundings, nspace) = beginning.unguarded();
        let (plan, _, keeper) = planned(spec, nspace, &surroundings, &mut |_, _| {})?;
        let controller = prepare_on_hosts(plan, &surroundings, started, started_at, status)?;
        return Ok((controller, surroundings, keeper));
    }
    let (mut surroundings, nspace, guard) = beginning.guarded()?;
    let cleanup = &mut |path: &Path, identity| guard.line().charge(path, identity);
    let (plan, entered, keeper) = match planned(spec, nspace, &surroundings, cleanup) {
        Ok((plan, entered, keeper)) => (Arc::new(plan), entered, keeper),
        Err(failure) => {
            drop(guard.dismiss());
            return Err(failure);
        }
    };
    surroundings.children.extend(entered.processes());
    surroundings
        .children
        .extend(keeper.as_ref().map(GrantHolder::pid));
    let namespaces = namespaces(&plan);
    let show = show(&plan, started_at, status.as_ref());
    // From here on signals wait until the loop reads them.
    let signals = Signals::take(&surroundings.ignored, plan.spec.stdio.pty.is_some());
    let parts = EventSources::new().and_then(|events| {
        let local = LocalStep::new(local::LocalParts {
            plan: &plan,
            poll: events.poll.clone(),
            wake: Arc::clone(&events.wake),
            scope: HostScope::Whole,
            started,
            started_at,
            guard: guard.line().clone(),
            namespaces,
            inherited_state: &surroundings,
            silence: SILENCE,
        })?;
        Ok((events, local))
    });
    let (events, mut local) = match parts {
        Ok(parts) => parts,
        Err(failure) => {
            drop(guard.dismiss());
            return Err(failure);
        }
    };
    local.run_in(entered.container);
    let (signals, streams) = match outside(&events, signals, show) {
        Ok(outside) => outside,
        Err(failure) => {
            local.abandon();
            drop(guard.dismiss());
            return Err(failure);
        }
    };
    let controller = Controller::new(control::ControllerParts {
        status,
        plan,
        started,
        started_at,
        events,
        steps: StepLinks::Own(Box::new(local)),
        guard: Some(guard),
        signals,
        streams,
    });
    Ok((controller, surroundings, keeper))
}

/// Does everything that can fail before other hosts are contacted.
fn prepare_on_hosts(
    plan: HostPlan,
    surroundings: &InheritedState,
    started: Instant,
    started_at: SystemTime,
    status: Option<StatusOutput>,
) -> Result<Controller, CommandError> {
    let plan = Arc::new(plan);
    let show = show(&plan, started_at, status.as_ref());
    // Nothing has to be cleaned up yet: a signal ends the process, also during a wait.
    let events = EventSources::new()?;
    let (poll, wake) = (events.poll.clone(), Arc::clone(&events.wake));
    let hosts = RemoteBackend::connect(&plan, started, poll, wake)?;
    let signals = Signals::take(&surroundings.ignored, false);
    let (signals, streams) = outside(&events, signals, show)?;
    Ok(Controller::new(control::ControllerParts {
        status,
        plan,
        started,
        started_at,
        events,
        steps: StepLinks::Hosts(Box::new(hosts)),
        guard: None,
        signals,
        streams,
    }))
}

/// Returns the plan of a launch, the images in which its ranks here run, and the holder of its fabric grant.
fn planned(
    spec: JobSpec,
    nspace: Nspace,
    surroundings: &InheritedState,
    cleanup: CleanupSink<'_>,
) -> Result<(HostPlan, MountedImages, Option<GrantHolder>), CommandError> {
    let entered = enter(&spec, &nspace, cleanup)?;
    let limit = surroundings.nofile.rlim_max;
    let mut plan = HostPlan::new(spec, nspace, limit, entered.inside())?;
    let keeper = grant_holder::obtain(&mut plan)?;
    Ok((plan, entered, keeper))
}

/// Mounts the images in which ranks on this machine run, so that their programs are found there. For ranks on other hosts,
/// images are mounted as far as possible: the launcher may be on a host without them, and the type of a program is unknown then.
fn enter(
    spec: &JobSpec,
    nspace: &Nspace,
    cleanup: CleanupSink<'_>,
) -> Result<MountedImages, CommandError> {
    if spec.layout.across_hosts() {
        let cwd = std::env::current_dir().unwrap_or_default();
        if rustix::process::geteuid().is_root()
            && let Err(failure) = container::enter_images(&spec.container, &cwd)
        {
            info!("programs are looked for without their images: {failure}");
        }
        return Ok(MountedImages::default());
    }
    if spec.container.is_empty() {
        return Ok(MountedImages::default());
    }
    let cwd = std::env::current_dir()
        .map_err(|error| CommandError::system("the working directory", error))?;
    container::enter(&spec.container, nspace, NodeId(0), &cwd, cleanup)
}

/// Returns the format of the ranks' output.
fn show(plan: &HostPlan, started_at: SystemTime, status: Option<&StatusOutput>) -> OutputFormat {
    OutputFormat {
        label: plan.spec.stdio.label.is_some(),
        times: plan.spec.stdio.timestamps.then(|| local_clock(started_at)),
        events: status.and_then(StatusOutput::output_clock),
    }
}

/// Opens the connections of the launch with its user: signals and output.
fn outside(
    events: &EventSources,
    signals: io::Result<Signals>,
    show: OutputFormat,
) -> Result<(Signals, OutputStreams), CommandError> {
    let signals = signals.map_err(|error| CommandError::system("cannot receive signals", error))?;
    let token = PollToken::new(PollSource::Signals, 0);
    let watched = events.poll.add(signals.as_fd(), token);
    watched.map_err(|error| CommandError::system("cannot wait for events", error))?;
    let streams = OutputStreams::new(show, &events.wake)
        .map_err(|error| CommandError::system("cannot duplicate standard output", error))?;
    Ok((signals, streams))
}

/// Starts the ranks as soon as the sidecars are ready, and runs until the last rank has exited.
fn launch(controller: &mut Controller, surroundings: &InheritedState) -> Result<(), CommandError> {
    let broken = |error| CommandError::system("the event loop failed", error);
    let cx = &mut controller.cx;
    let plan = Arc::clone(&cx.plan);
    for warning in &plan.warnings {
        cx.warn(warning);
    }
    if cx.wants_details() {
        for line in explain::lines(&plan) {
            cx.detail(&line);
        }
    }
    let mut outputs = match rank_files::are_opened_by_launcher(&plan) {
        true => cx.streams.take_files(rank_files::open(&plan)?),
        false => Vec::new(),
    };
    controller
        .run_until(|controller| {
            controller.cx.stage != LaunchStage::Preparing
                || controller.cx.supervisor.is_ending()
                || !controller.services.hosts.refused.is_empty()
        })
        .map_err(broken)?;
    let Controller { services, cx, .. } = &mut *controller;
    services.hosts.judge(cx)?;
    services.hosts.compare_builds(cx)?;
    services.hosts.print_sidecars(cx);
    if cx.supervisor.is_ending() {
        cx.steps.send(LauncherToStep::Skip);
    } else {
        if let Some(rank) = plan.spec.stdio.pty {
            let opened = services.terminal.open(cx, rank);
            outputs[rank.index()] = opened
                .map_err(|error| CommandError::system("cannot open a terminal for --pty", error))?;
        }
        let stdin = stdin_plans(&plan);
        let io = RankIo { outputs, stdin };
        cx.steps.start(io, surroundings)?;
    }
    controller
        .run_until(|controller| controller.cx.supervisor.is_over())
        .map_err(broken)
}

/// Returns the source of each rank's standard input.
fn stdin_plans(plan: &HostPlan) -> Vec<StdinPlan> {
    let size = plan.job.process_map.size();
    let target = plan.spec.stdio.stdin;
    let readers = match target {
        StdinTarget::None => 0,
        StdinTarget::Rank(_) => 1,
        StdinTarget::All => size as usize,
    };
    let copied = stdin::needs_copy(io::stdin().as_fd(), readers);
    let plan = |rank| match (target.reads(rank), copied) {
        (false, _) => StdinPlan::Empty,
        (true, true) => StdinPlan::Pipe,
        (true, false) => StdinPlan::Inherit,
    };
    (0..size).map(Rank).map(plan).collect()
}

/// Gives virtual nodes host names of their own, if the system permits it.
fn namespaces(plan: &HostPlan) -> Option<NodeNamespaces> {
    if plan.job.process_map.nodes() == 1 {
        return None;
    }
    let report = |text: &str| {
        info!("{text}");
        if plan.spec.verbose > 0 {
            eprintln!("wireup: {text}");
        }
    };
    match NodeNamespaces::create(&plan.node_names) {
        Ok(namespaces) => {
            if let Err(error) = namespaces.hosts() {
                report(&format!(
                    "virtual nodes cannot resolve their names: no /etc/hosts of their own: {error}"
                ));
            }
            Some(namespaces)
        }
        Err(error) => {
            report(&format!("virtual nodes share this machine's name: {error}"));
            None
        }
    }
}
