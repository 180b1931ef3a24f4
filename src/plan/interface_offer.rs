//! Chooses the interfaces that ranks are offered, and the files of the PMIx server.

use std::path::{Path, PathBuf};

use super::{AppStart, HostPlan};
use crate::inspect::ldso::{Loader, LoaderFiles};
use crate::inspect::sidecar_files::{self, SidecarFiles};
use crate::inspect::{
    DetectedInterface, DetectionReason, LibraryFamily, build_id, inspect, libpmix,
};
use crate::plan::inherited_context::InheritedContext;
use crate::plan::loaded_openmpi;
use crate::plan::program_builds::mpi_library;
use crate::plan::reasons::{InterfaceOffer, OfferReason};
use wireup_core::failure::{CommandError, RequestError};
use wireup_core::job::spec::{AppRequest, InterfaceChoice, JobSpec};

/// Chooses the interfaces for the ranks of a job, before it is known whether PMIx can be served.
///
/// # Errors
/// [`RestartError`] for ranks that may restart and need PMIx.
pub(super) fn offer(spec: &JobSpec, apps: &[AppStart]) -> Result<InterfaceOffer, RestartError> {
    match spec.ending.restartable {
        true => for_restarts(spec, apps),
        false => Ok(interfaces(spec.interface.pmi, apps)),
    }
}

fn interfaces(choice: InterfaceChoice, apps: &[AppStart]) -> InterfaceOffer {
    let offer = |pmi, pmix, why| InterfaceOffer {
        pmi,
        pmix,
        why,
        without_pmix: None,
    };
    let reason = OfferReason::UserChoice(choice);
    match choice {
        InterfaceChoice::Pmi1 | InterfaceChoice::Pmi2 => offer(true, false, reason),
        InterfaceChoice::Pmix => offer(false, true, reason),
        InterfaceChoice::All => offer(true, true, reason),
        InterfaceChoice::None => offer(false, false, reason),
        InterfaceChoice::Auto => {
            let first =
                |wants: DetectedInterface| apps.iter().position(|app| app.detected.wants == wants);
            match (
                first(DetectedInterface::Unknown),
                first(DetectedInterface::Pmix),
                first(DetectedInterface::Pmi),
            ) {
                (Some(app), ..) => offer(true, true, OfferReason::Unknown(app)),
                (None, Some(pmix), Some(pmi)) => offer(true, true, OfferReason::Both(pmix, pmi)),
                // A program that is known to need PMIx gets nothing else that could confuse it.
                (None, Some(app), None) => offer(false, true, OfferReason::Pmix(app)),
                (None, None, Some(app)) => offer(true, false, OfferReason::Pmi(app)),
                (None, None, None) => offer(true, false, OfferReason::Plain),
            }
        }
    }
}

/// Chooses the interfaces for ranks that may restart. PMIx is not among them: libpmix accepts no second process for a rank.
///
/// # Errors
/// [`RestartError`] if the user requests PMIx, or a program needs it.
fn for_restarts(spec: &JobSpec, apps: &[AppStart]) -> Result<InterfaceOffer, RestartError> {
    let choice = spec.interface.pmi;
    if matches!(choice, InterfaceChoice::Pmix | InterfaceChoice::All) {
        return Err(RestartError::UserChoice(choice));
    }
    if let Some(app) = apps
        .iter()
        .find(|app| app.detected.wants == DetectedInterface::Pmix)
    {
        return Err(RestartError::Program(app.detected.program.clone()));
    }
    let mut offer = interfaces(choice, apps);
    if offer.pmix {
        offer.pmix = false;
        offer.why = OfferReason::Restartable;
    }
    Ok(offer)
}

/// Request for ranks that may restart and need PMIx.
#[derive(Debug, thiserror::Error)]
pub(super) enum RestartError {
    #[error(
        "--restartable does not support --pmi {0}: libpmix accepts no second process for a rank; use pmi1 or pmi2"
    )]
    UserChoice(InterfaceChoice),
    #[error(
        "--restartable: {} uses PMIx, and libpmix accepts no second process for a rank; use programs with PMI-1 or PMI-2",
        .0.display()
    )]
    Program(PathBuf),
}

impl RequestError for RestartError {}

/// Warning about a job with programs of both Open MPI and MPICH's family, which do not
/// connect to each other and wait in `MPI_Init` for all ranks.
pub(super) fn two_mpis(apps: &[AppStart]) -> Option<String> {
    let first = |families: [LibraryFamily; 2]| {
        let of = |app: &&AppStart| match app.detected.why {
            DetectionReason::Library(_, family) => families.contains(&family),
            _ => false,
        };
        apps.iter()
            .find(of)
            .map(|app| app.detected.program.display())
    };
    let open_mpi = first([LibraryFamily::OpenMpi, LibraryFamily::BesideOpenMpi])?;
    let mpich = first([LibraryFamily::Mpich, LibraryFamily::BesideMpich])?;
    Some(format!(
        "{open_mpi} is a program of Open MPI and {mpich} one of MPICH or a relative: ranks of two MPIs \
         cannot make one MPI_COMM_WORLD and may wait for each other for ever; use programs of one MPI, \
         or a launch for each"
    ))
}

/// Warning about a job whose programs load different libraries of one MPI, such as MPICH 4 and 5, which exchange connection
/// data in different forms.
pub(super) fn two_mpi_libraries(apps: &[AppStart]) -> Option<String> {
    let mut loaded = apps.iter().filter_map(|app| match &app.detected.why {
        DetectionReason::Library(_, LibraryFamily::Mpich | LibraryFamily::OpenMpi) => {
            let (name, library) = mpi_library(&app.detected)?;
            // Other libraries are for the Fortran or C++ interface alone.
            let is_whole = matches!(name.split('.').next(), Some("libmpi" | "libmpich"));
            is_whole.then(|| (app.detected.program.display(), library))
        }
        _ => None,
    });
    let (first, library) = loaded.next()?;
    let (other, other_library) = loaded.find(|(_, other)| is_other_build(&library, other))?;
    Some(format!(
        "{first} loads {} and {other} loads {}: ranks of two MPI libraries may not understand each other and wait \
         for ever; use one library for all programs, or a launch for each",
        library.display(),
        other_library.display()
    ))
}

/// Whether two files are different builds. Files without a build id are different builds if their paths differ.
fn is_other_build(one: &Path, other: &Path) -> bool {
    let [one, other] = [one, other].map(|path| path.canonicalize().unwrap_or_else(|_| path.into()));
    let ids = || build_id::read_build_id(&one).zip(build_id::read_build_id(&other));
    one != other && ids().is_none_or(|(one, other)| one != other)
}

/// Searches for the files of a PMIx server for the tools of a job whose ranks are not offered PMIx. Called when the first
/// tool connects.
///
/// # Errors
/// [`CommandError`] with the missing file and the remedy.
pub(crate) fn server_for_tools(plan: &HostPlan) -> Result<SidecarFiles, CommandError> {
    if plan.container_root.is_some() {
        return host_parts(&plan.spec, &plan.apps, &[], &plan.inheritance);
    }
    let loader = |(app, spec): (&AppStart, &AppRequest)| {
        let start = app.cwd.as_deref().unwrap_or(&plan.inheritance.cwd);
        inspect(
            &app.program,
            &spec.argv,
            &app.env,
            start,
            &LoaderFiles::default(),
        )
        .loader
    };
    let loaders: Vec<Loader> = plan.apps.iter().zip(&plan.spec.apps).map(loader).collect();
    host_parts(&plan.spec, &plan.apps, &loaders, &plan.inheritance)
}

/// Searches for the files of the PMIx server, with the libpmix of the first program that loads one.
pub(super) fn host_parts(
    spec: &JobSpec,
    apps: &[AppStart],
    loaders: &[Loader],
    inheritance: &InheritedContext,
) -> Result<SidecarFiles, CommandError> {
    let variable = inheritance
        .variable(libpmix::VARIABLE)
        .map(Path::new)
        .filter(|p| !p.as_os_str().is_empty());
    if spec.container.image.is_some() {
        // The server runs outside the image, on the libraries of the host.
        let loader = Loader::new(&inheritance.vars, &inheritance.cwd, LoaderFiles::default());
        let path = spec.interface.libpmix.as_deref();
        let libpmix = libpmix::choose(path, None, variable, &[], &loader);
        return sidecar_files::find(spec, libpmix);
    }
    let index = apps
        .iter()
        .position(|app| {
            let found = &app.detected;
            let loads_libpmix = found.openmpi.is_some() || found.libpmix.is_some();
            found.wants == DetectedInterface::Pmix || loads_libpmix
        })
        .unwrap_or(0);
    // The libraries of scripts are a guess, used if no program is known to load a libpmix.
    let close_by = |app: &AppStart| loaded_openmpi::close_by(&app.detected, &app.env);
    let scripts: Vec<PathBuf> = apps.iter().flat_map(close_by).collect();
    let libpmix = libpmix::choose(
        spec.interface.libpmix.as_deref(),
        Some(&apps[index].detected),
        variable,
        &scripts,
        &loaders[index],
    );
    sidecar_files::find(spec, libpmix)
}
