//! From what the user asked for to what will be done: programs found, slots counted, ranks
//! placed, interfaces chosen. Nothing has been started yet when a plan is refused.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use super::inspect::{Finding, Wants};
use super::ldso::Loader;
use super::limits::RawLimit;
use super::parts::HostParts;
use super::program::Program;
use super::reasons::{CountWhy, Offer, OfferWhy};
use super::run::RunFailure;
use super::slots::Slots;
use super::wrap::Wrapper;
use crate::agent::core::JobContext;
use crate::job::appnums::Appnums;
use crate::job::ids::{Nspace, Rank, UserId};
use crate::job::outcome::EXIT_WIREUP;
use crate::job::pset::ProcessSet;
use crate::job::spec::JobSpec;

mod app;
mod offer;
mod place;
mod size;

use app::app_plan;
use offer::{host_parts, interfaces};
use place::{node_names, place};
use size::{sizes, total};

/// One application context, ready to be started.
#[derive(Debug)]
pub struct App {
    /// The program.
    pub program: Program,
    /// What its ranks run it under.
    pub wrapper: Option<Wrapper>,
    /// Its arguments, program name not included.
    pub args: Vec<OsString>,
    /// Number of ranks.
    pub size: u32,
    /// Where that number comes from.
    pub count: CountWhy,
    /// Environment of its ranks, before wireup's own variables.
    pub env: Vec<(OsString, OsString)>,
    /// Which of the variables that differ from rank to rank are among these.
    pub places_given: Vec<&'static str>,
    /// Where it starts, if not where the launcher is.
    pub cwd: Option<PathBuf>,
    /// What looking at the program said.
    pub finding: Finding,
    /// Resource limits of its ranks.
    pub limits: Vec<RawLimit>,
    /// File mode creation mask of its ranks.
    pub umask: Option<u32>,
}

/// A job, decided.
#[derive(Debug)]
pub struct Plan {
    /// What was asked for.
    pub spec: JobSpec,
    /// Application contexts.
    pub apps: Vec<App>,
    /// What the nodes know.
    pub job: Arc<JobContext>,
    /// Host name of each node.
    pub node_names: Vec<String>,
    /// What is offered, and why.
    pub offer: Offer,
    /// What the sidecars need, when PMIx is offered.
    pub host: Option<HostParts>,
    /// More ranks than cores.
    pub oversubscribed: bool,
    /// What limits the number of ranks.
    pub slots: Slots,
    /// What others have to say about how the job came to be as it is, for whoever asks.
    pub notes: Vec<String>,
    /// What the user should know in any case.
    pub warnings: Vec<String>,
}

fn wrong(message: impl Display) -> RunFailure {
    RunFailure {
        code: EXIT_WIREUP,
        message: message.to_string(),
    }
}

impl Plan {
    /// Decides everything about the job named `nspace`. `descriptors` is the hard limit of open descriptors.
    ///
    /// # Errors
    /// [`RunFailure`] with the reason and the remedy.
    pub fn new(spec: JobSpec, nspace: Nspace, descriptors: u64) -> Result<Self, RunFailure> {
        let cwd = std::env::current_dir()
            .map_err(|error| wrong(format!("the current directory cannot be used: {error}")))?;
        let inherited: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let mut warnings = Vec::new();
        let slots = Slots::detect();
        let sizes = sizes(&spec.apps, &spec.layout, slots.count());
        let size = total(&sizes)?;
        let nodes = spec.layout.virtual_nodes;
        size::check(&spec, size, &slots, descriptors)?;
        let psets =
            ProcessSet::of_job(&spec.psets, sizes.iter().map(|(size, _)| *size)).map_err(wrong)?;
        let oversubscribed = size > slots.count();
        let apps: Vec<(App, Loader)> = spec
            .apps
            .iter()
            .zip(size::ranges(&sizes))
            .map(|(app, ranks)| app_plan(app, ranks, &inherited, &cwd, &mut warnings))
            .collect::<Result<_, _>>()?;
        let (apps, loaders): (Vec<App>, Vec<Loader>) = apps.into_iter().unzip();
        let mut offer = interfaces(spec.interface.pmi, &apps);
        let host = match offer
            .pmix
            .then(|| host_parts(&spec, &apps, &loaders, &inherited))
            .transpose()
        {
            Ok(host) => host,
            // Nothing says that the programs need PMIx; they may well live without it.
            Err(failure)
                if matches!(offer.why, OfferWhy::Unknown(_))
                    && !apps.iter().any(|app| app.finding.wants == Wants::Pmix) =>
            {
                offer.without_pmix = Some(failure.message);
                None
            }
            Err(failure) => return Err(failure),
        };
        offer.pmix = host.is_some();
        let node_names = node_names(nodes);
        let appnums = Appnums::from_sizes(sizes.iter().map(|(size, _)| *size));
        let job = JobContext {
            nspace,
            ranks: place(size, &spec.layout),
            appnums,
            universe_size: size.max(slots.count() * nodes),
            user: UserId(rustix::process::getuid().as_raw()),
            psets,
        };
        Ok(Self {
            apps,
            job: Arc::new(job),
            node_names,
            offer,
            host,
            oversubscribed,
            slots,
            notes: spec.notes.clone(),
            warnings,
            spec,
        })
    }

    /// Index of the application context of a rank.
    pub fn app_of(&self, rank: Rank) -> usize {
        self.job.appnums.of(rank).index()
    }
}
