//! A job is decided: by the launcher, once for all its nodes. What the job's programs and this machine allow is
//! checked before anything starts.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::app_start::{self, InspectionSite};
use super::host_plan::{HostSite, resolve_apps};
use super::interface_offer::{self, host_parts, interfaces};
use super::launch_nodes::{launch_nodes, node_names, place_first};
use super::rank_count::{self, sizes, total};
use super::{
    AppPlan, AppStart, HostPlan, JobPlan, LaunchNames, LaunchPlan, LauncherProcess, host_binding,
    libpmix,
};
use crate::failure::{CommandError, RequestError};
use crate::inspect::DetectedInterface;
use crate::inspect::ldso::Loader;
use crate::plan::container_root::ContainerRoot;
use crate::plan::inherited_context::InheritedContext;
use crate::plan::launch_names::own_host;
use crate::plan::machine_slots::SlotLimits;
use crate::plan::reasons::{CountReason, OfferReason};
use wireup_core::job::appnums::Appnums;
use wireup_core::job::debug::DebugDirectives;
use wireup_core::job::ids::{GlobalRank, Nspace, UserId};
use wireup_core::job::pmix_credential::LaunchKey;
use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::pset::ProcessSet;
use wireup_core::job::spec::{InterfaceChoice, JobSpec, StagingSpec};
use wireup_core::node::JobContext;
use wireup_core::placement::universe;
use wireup_core::pmi::limits::VALLEN_2_MAX;

/// Options that this machine or the job's programs do not allow.
#[derive(Debug, thiserror::Error)]
enum OptionError {
    #[error(
        "--stop-at init: the ranks are not offered PMIx; --stop-at exec stops ranks of every kind"
    )]
    StopInInit,
    #[error("--allocator {} {problem}; start the allocator first", path.display())]
    Allocator {
        path: PathBuf,
        problem: SocketProblem,
    },
}

impl RequestError for OptionError {}

#[derive(Debug, thiserror::Error)]
enum SocketProblem {
    #[error("is no socket")]
    NoSocket,
    #[error("does not exist")]
    Absent,
    #[error("cannot be looked at: {0}")]
    Unreadable(std::io::Error),
}

/// A random secret.
fn secret() -> Result<LaunchKey, CommandError> {
    let mut random = [0; 32];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| CommandError::system("no random numbers from the system", errno))?;
    Ok(LaunchKey::new(random))
}

impl HostPlan {
    /// Decides everything about the job named `nspace`. `descriptors` is the hard limit of open descriptors, `container_root`
    /// what ranks here see if they run in an image.
    ///
    /// A job on several hosts is decided for all; what a program is, is then known as far as this
    /// machine has a copy.
    ///
    /// # Errors
    /// [`CommandError`] with the reason and the remedy.
    pub fn new(
        spec: JobSpec,
        nspace: Nspace,
        descriptors: u64,
        container_root: Option<ContainerRoot>,
    ) -> Result<Self, CommandError> {
        let across = spec.layout.across_hosts();
        if let Some(socket) = &spec.interface.allocator {
            check_allocator(socket)?;
        }
        let inheritance = InheritedContext::from_process(across, &spec.apps)?;
        let mut warnings = Vec::new();
        let slots = SlotLimits::detect();
        let node_names = node_names(&spec.layout);
        let PlacedJob {
            sizes,
            process_map,
            oversubscribed,
            universe: (universe_size, unlimited),
        } = PlacedJob::new(&spec, &slots, &node_names)?;
        rank_count::check(&spec, process_map.size(), descriptors)?;
        let psets = ProcessSet::with_app_sets(&spec.psets, sizes.iter().map(|(size, _)| *size))
            .map_err(CommandError::request)?;
        let in_image = spec.container.image.is_some();
        if in_image && spec.apps.iter().any(|app| app.preload.stage) {
            let text = "--stage: ranks find their programs in the image (--image), into which nothing is brought; put the program into it, or mount its directory (--image-mount)";
            return Err(CommandError::request(text));
        }
        let purpose = match (across, in_image) {
            // What this machine has under the name of a program is not what the ranks will find.
            (true, true) => InspectionSite::Bystander,
            (true, false) => InspectionSite::Launcher,
            (false, _) => InspectionSite::Alone,
        };
        let mut app_plans = Vec::with_capacity(spec.apps.len());
        for (app, (_, count)) in spec.apps.iter().zip(&sizes) {
            let variables =
                app_start::variables(app, &inheritance, across, in_image, &mut warnings)?;
            app_plans.push(AppPlan {
                count: *count,
                variables: Some(variables),
            });
        }
        let job = JobContext {
            nspace,
            process_map,
            app_map: Appnums::from_sizes(sizes.iter().map(|(size, _)| *size)),
            universe_size,
            unbounded_universe: unlimited,
            uid: UserId(rustix::process::getuid().as_raw()),
            psets,
            parent: None,
            parent_tool: None,
            debug: DebugDirectives {
                on_exec: spec.debug.stop_on_exec.clone(),
                in_init: spec.debug.stop_in_init.clone(),
                ..DebugDirectives::default()
            },
            first_global_rank: GlobalRank(0),
            initial_kvs: preputs(&spec),
        };
        let site = HostSite {
            node: None,
            inheritance: Arc::new(inheritance),
            container_root,
            slots,
            descriptors,
        };
        let found = resolve_apps(&job, &spec, &app_plans, &site, &[], None, |_| purpose)?;
        let (apps, loaders): (Vec<AppStart>, Vec<Loader>) = found.into_iter().unzip();
        let offer = match spec.ending.restartable {
            true => interface_offer::for_restarts(&spec, &apps)?,
            false => interfaces(spec.interface.pmi, &apps),
        };
        let launch = LaunchPlan {
            nspace: job.nspace.clone(),
            names: LaunchNames::new(&site.inheritance, &job.nspace),
            node_names,
            single_host: (!across).then(own_host),
            absent: BTreeSet::new(),
            launcher: LauncherProcess::this(),
            launch_key: None,
            fabric_grant: None,
            grant_record: None,
        };
        let decided = JobPlan {
            launch: Arc::new(launch),
            job: Arc::new(job),
            app_plans,
            offer,
            oversubscribed,
            origin: None,
        };
        let mut plan = Self {
            job_plan: decided,
            inheritance: site.inheritance,
            apps,
            container_root: site.container_root,
            sidecar_files: None,
            sidecar_unavailable: None,
            binding: None,
            slots: site.slots,
            notes: spec.notes.clone(),
            warnings,
            spec,
        };
        if !across {
            plan.start_here(&loaders)?;
        }
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

    /// Adds what this machine has for the job if it is all its nodes. PMIx is not offered without a server, if no program is
    /// known to need it.
    fn start_here(&mut self, loaders: &[Loader]) -> Result<(), CommandError> {
        if self
            .spec
            .apps
            .iter()
            .any(|app| !app.preload.files.is_empty())
        {
            let text = "--stage: no file is copied on one machine, only to other hosts (--hosts)";
            self.warnings.push(text.to_owned());
        }
        for app in &mut self.spec.apps {
            app.preload = StagingSpec::default();
        }
        if self.offer.pmix {
            match host_parts(&self.spec, &self.apps, loaders, &self.inheritance) {
                Ok(files) => self.sidecar_files = Some(files),
                Err(failure) if self.may_do_without_pmix() => {
                    self.job_plan.offer.pmix = false;
                    self.job_plan.offer.without_pmix = Some(failure.to_string());
                }
                Err(failure) => return Err(failure),
            }
        }
        let libpmix = libpmix(self.sidecar_files.as_ref());
        self.binding = host_binding::bind(&self.spec, &self.job_plan, None, None, libpmix)?;
        Ok(())
    }

    /// Whether no program is known to need PMIx: they may work without it.
    fn may_do_without_pmix(&self) -> bool {
        let mut wants = self.apps.iter().map(|app| app.detected.wants);
        matches!(self.offer.why, OfferReason::Unknown(_))
            && !wants.any(|wants| wants == DetectedInterface::Pmix)
    }
}

/// The pairs that ranks find in their job's key-value space.
fn preputs(spec: &JobSpec) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs = spec.impi.iter().flat_map(|world| world.pairs(VALLEN_2_MAX));
    pairs
        .map(|(key, value)| (key.into(), value.into()))
        .collect()
}

/// The placement of the job that the user starts.
struct PlacedJob {
    /// Ranks of each application, and the reason for the number.
    sizes: Vec<(u32, CountReason)>,
    process_map: ProcessMap,
    oversubscribed: bool,
    /// The number of slots for it, and whether that is unlimited ([`universe`]).
    universe: (u32, bool),
}

impl PlacedJob {
    fn new(
        spec: &JobSpec,
        limits: &SlotLimits,
        node_names: &[String],
    ) -> Result<Self, CommandError> {
        let layout = &spec.layout;
        let by_parts = host_binding::ranks_by_parts(spec)?;
        let launch = launch_nodes(layout, limits, node_names);
        let sizes = sizes(&spec.apps, layout, &launch, by_parts);
        let placement = place_first(layout, total(&sizes)?, &launch)?;
        let oversubscribed = placement.oversubscribed;
        let process_map = placement.process_map(layout.nodes());
        Ok(Self {
            universe: universe(&launch.nodes, &process_map, layout.oversubscribe),
            sizes,
            process_map,
            oversubscribed,
        })
    }
}

/// The nodes of the ranks of the job that the user starts.
///
/// # Errors
/// [`CommandError`] when they cannot be placed.
pub(crate) fn placed(spec: &JobSpec) -> Result<ProcessMap, CommandError> {
    let placed = PlacedJob::new(spec, &SlotLimits::detect(), &node_names(&spec.layout))?;
    Ok(placed.process_map)
}

/// Whether an allocator may listen there.
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
