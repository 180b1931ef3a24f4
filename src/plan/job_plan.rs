//! Makes the launcher's plan of the initial job, once for all its nodes. Options that the job's programs or this machine do
//! not allow are refused before any process starts.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::app_start;
use super::host_plan::{HostSite, resolve_apps};
use super::host_scope::HostScope;
use super::interface_offer;
use super::launch_nodes::{all_apps, launch_nodes, node_names};
use super::placed_job::PlacedJob;
use super::rank_count::{self, sizes, total};
use super::{AppPlan, HostPlan, JobPlan, LaunchNames, LaunchPlan, LauncherProcess, host_binding};
use crate::plan::container_root::ContainerRoot;
use crate::plan::inherited_context::InheritedContext;
use crate::plan::launch_names::own_host;
use crate::plan::reasons::CountReason;
use wireup_core::failure::{CommandError, RequestError};
use wireup_core::job::appnums::Appnums;
use wireup_core::job::debug::DebugDirectives;
use wireup_core::job::ids::{GlobalRank, Nspace, UserId};
use wireup_core::job::pmix_credential::LaunchKey;
use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::pset::ProcessSet;
use wireup_core::job::spawn::JobRequester;
use wireup_core::job::spec::{AppRequest, InterfaceChoice, JobSpec, StagingSpec};
use wireup_core::node::JobContext;
use wireup_core::placement::PlacementRequest;
use wireup_core::pmi::limits::VALLEN_2_MAX;
use wireup_sys::machine_slots::SlotLimits;

/// Options that this machine or the job's programs do not allow.
#[derive(Debug, thiserror::Error)]
enum OptionError {
    #[error(
        "--stop-at init: the ranks are not offered PMIx; --stop-at exec stops ranks of every kind"
    )]
    StopInInit,
    #[error("--allocator {}: {problem}; start the allocator first", path.display())]
    Allocator {
        path: PathBuf,
        problem: SocketProblem,
    },
}

impl RequestError for OptionError {}

#[derive(Debug, thiserror::Error)]
enum SocketProblem {
    #[error("not a Unix socket")]
    NoSocket,
    #[error("no such socket")]
    Absent,
    #[error("cannot check the socket: {0}")]
    Unreadable(std::io::Error),
}

fn secret() -> Result<LaunchKey, CommandError> {
    let mut random = [0; 32];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| CommandError::system("no random numbers from the system", errno))?;
    Ok(LaunchKey::new(random))
}

impl HostPlan {
    /// Makes the plan of the initial job, with the name `nspace`. `descriptors` is the hard limit of the number of open
    /// descriptors, `container_root` the root directory of ranks here that run in an image.
    ///
    /// The plan of a job on several hosts is for all of them; the launcher can then inspect a program only if its own
    /// machine has a copy. The job is resolved on this machine as every job is ([`JobPlan::complete`]).
    ///
    /// # Errors
    /// [`CommandError`] with the reason and the remedy.
    pub fn new(
        mut spec: JobSpec,
        nspace: Nspace,
        descriptors: u64,
        container_root: Option<ContainerRoot>,
    ) -> Result<Self, CommandError> {
        let scope = HostScope::for_launcher(&spec.layout);
        if let Some(socket) = &spec.interface.allocator {
            check_allocator(socket)?;
        }
        let inheritance = InheritedContext::from_process(scope.is_none(), &spec.apps)?;
        let mut warnings = Vec::new();
        let slots = SlotLimits::detect();
        let node_names = node_names(&spec.layout);
        let (placed, count_reasons) = place_initial(&spec, &slots, &node_names)?;
        let PlacedJob {
            sizes,
            process_map,
            oversubscribed,
            universe: (universe_size, unlimited),
        } = placed;
        rank_count::check(&spec, process_map.size(), scope, descriptors)?;
        let psets = ProcessSet::with_app_sets(&spec.psets, sizes.iter().copied())
            .map_err(CommandError::request)?;
        let in_image = spec.container.image.is_some();
        if in_image && spec.apps.iter().any(|app| app.preload.stage) {
            let text = "--stage: ranks find their programs in the image (--image), into which wireup copies no files; put the program into it, or mount its directory (--image-mount)";
            return Err(CommandError::request(text));
        }
        let mut app_plans = Vec::with_capacity(spec.apps.len());
        for (app, count) in spec.apps.iter().zip(count_reasons) {
            let variables = app_start::variables(app, &inheritance, in_image, &mut warnings)?;
            app_plans.push(AppPlan {
                count,
                variables: Some(variables),
            });
        }
        if scope.is_some() {
            warnings.extend(leave_out_staging(&mut spec.apps));
        }
        let job = JobContext {
            nspace,
            process_map,
            app_map: Appnums::from_sizes(sizes),
            universe_size,
            unbounded_universe: unlimited,
            uid: UserId(rustix::process::getuid().as_raw()),
            psets,
            requester: JobRequester::User,
            debug: DebugDirectives {
                on_exec: spec.debug.stop_on_exec.clone(),
                in_init: spec.debug.stop_in_init.clone(),
                ..DebugDirectives::default()
            },
            first_global_rank: GlobalRank(0),
            initial_kvs: preputs(&spec),
        };
        let site = HostSite {
            scope,
            inheritance: Arc::new(inheritance),
            container_root,
            slots,
            descriptors,
        };
        let found = resolve_apps(&job, &spec, &app_plans, &site, &[], None)?;
        let launch = LaunchPlan {
            nspace: job.nspace.clone(),
            names: LaunchNames::new(&site.inheritance, &job.nspace),
            node_names,
            single_host: scope.map(|_| own_host()),
            absent: BTreeSet::new(),
            launcher: LauncherProcess::this(),
            launch_key: None,
            fabric_grant: None,
            grant_record: None,
        };
        let decided = JobPlan {
            launch: Arc::new(launch),
            offer: interface_offer::offer(&spec, &found.apps)?,
            job: Arc::new(job),
            app_plans,
            oversubscribed,
            origin: None,
        };
        let mut plan = decided.complete(site, spec, found, None)?;
        plan.notes.clone_from(&plan.spec.notes);
        plan.warnings = warnings;
        if plan.spec.interface.pmi != InterfaceChoice::None {
            let warning = interface_offer::two_mpis(&plan.apps);
            let warning = warning.or_else(|| interface_offer::two_mpi_libraries(&plan.apps));
            plan.warnings.extend(warning);
        }
        if plan.spec.debug.stop_in_init.is_some() && !plan.offer.pmix {
            return Err(OptionError::StopInInit.into());
        }
        let launch_key = plan.offer.pmix.then(secret).transpose()?;
        plan.job_plan.launch_mut().launch_key = launch_key;
        Ok(plan)
    }
}

/// Removes the request to copy files to other hosts, and returns the warning about it.
fn leave_out_staging(apps: &mut [AppRequest]) -> Option<String> {
    let has_files = apps.iter().any(|app| !app.preload.files.is_empty());
    for app in apps {
        app.preload = StagingSpec::default();
    }
    let text = "--stage: no file is copied on one machine, only to other hosts (--hosts)";
    has_files.then(|| text.to_owned())
}

/// Pairs that the KVS of the job contains at its start.
fn preputs(spec: &JobSpec) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs = spec.impi.iter().flat_map(|world| world.pairs(VALLEN_2_MAX));
    pairs
        .map(|(key, value)| (key.into(), value.into()))
        .collect()
}

/// Places the ranks of the initial job. Returns the reasons for the numbers of ranks too, by application.
fn place_initial(
    spec: &JobSpec,
    limits: &SlotLimits,
    node_names: &[String],
) -> Result<(PlacedJob, Vec<CountReason>), CommandError> {
    let layout = &spec.layout;
    let by_parts = host_binding::ranks_by_parts(spec)?;
    let launch = launch_nodes(layout, limits, node_names);
    let sizes = sizes(&spec.apps, layout, &launch, by_parts);
    let all = all_apps(layout, total(&sizes)?, &launch);
    let request = match layout.runs.is_empty() {
        true => PlacementRequest::Apps(vec![&all]),
        false => PlacementRequest::Runs {
            runs: layout.runs.clone(),
            size: all.count.into(),
            oversubscribe: all.oversubscribe,
            even: all.even,
        },
    };
    let (counts, reasons) = sizes.into_iter().unzip();
    let placed = PlacedJob::new(&request, counts, &launch, layout, None)?;
    Ok((placed, reasons))
}

/// Places the ranks of the initial job.
///
/// # Errors
/// [`CommandError`] when the ranks cannot be placed.
pub(crate) fn placed(spec: &JobSpec) -> Result<ProcessMap, CommandError> {
    let (placed, _) = place_initial(spec, &SlotLimits::detect(), &node_names(&spec.layout))?;
    Ok(placed.process_map)
}

/// Refuses a path that is not a socket.
fn check_allocator(path: &Path) -> Result<(), OptionError> {
    let problem = match std::fs::metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => return Ok(()),
        Ok(_) => SocketProblem::NoSocket,
        Err(error) if error.kind() == ErrorKind::NotFound => SocketProblem::Absent,
        Err(error) => SocketProblem::Unreadable(error),
    };
    let path = path.to_owned();
    Err(OptionError::Allocator { path, problem })
}
