//! From what the user asked for to what will be done: programs found, slots counted, ranks
//! placed, interfaces chosen. Nothing has been started yet when a plan is refused.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::environment::{self, Forward};
use super::inspect::{Finding, Wants, inspect};
use super::ldso::{Loader, System};
use super::libpmix;
use super::parts::{self, HostParts};
use super::program::Program;
use super::relocated;
use super::run::RunFailure;
use super::slots::Slots;
use crate::agent::core::JobContext;
use crate::job::ids::{AppNum, NodeId, Nspace, Rank, UserId};
use crate::job::outcome::EXIT_WIREUP;
use crate::job::rank_map::RankMap;
use crate::job::spec::{AppSpec, JobSpec, PmiChoice, StdinTarget};

/// Descriptors the launcher holds per rank: PMI socket, two pipes, pidfd.
const DESCRIPTORS_PER_RANK: u64 = 4;
/// Descriptors the launcher needs besides.
const DESCRIPTORS_BASE: u64 = 100;

/// Names the libpmix of the sidecar when the program has none of its own.
const LIBPMIX_VARIABLE: &str = "WIREUP_LIBPMIX";

/// One application context, ready to be started.
#[derive(Debug)]
pub struct App {
    /// The program.
    pub program: Program,
    /// Its arguments, program name not included.
    pub args: Vec<OsString>,
    /// Number of ranks.
    pub size: u32,
    /// Environment of its ranks, before wireup's own variables.
    pub env: Vec<(OsString, OsString)>,
    /// Where it starts, if not where the launcher is.
    pub cwd: Option<PathBuf>,
    /// What looking at the program said.
    pub finding: Finding,
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
    /// Offer PMI-1.
    pub pmi: bool,
    /// Offer PMIx.
    pub pmix: bool,
    /// What the sidecars need, when PMIx is offered.
    pub host: Option<HostParts>,
    /// More ranks than cores.
    pub oversubscribed: bool,
    /// Usable cores.
    pub cores: u32,
    /// What was decided and why, for `-v`.
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
        let (mut notes, mut warnings) = (Vec::new(), Vec::new());
        let slots = Slots::detect();
        let sizes = sizes(&spec.apps, slots.count());
        let size = total(&sizes)?;
        let nodes = spec.layout.virtual_nodes;
        if nodes > size {
            return Err(wrong(format!(
                "--virtual-nodes {nodes} needs at least one rank per node, there are {size} ranks"
            )));
        }
        // Virtual nodes are for trying a layout: each brings the machine's slots.
        slots
            .check(size.div_ceil(nodes), spec.layout.oversubscribe)
            .map_err(|error| match nodes {
                1 => wrong(error),
                _ => wrong(format!("on each virtual node, {error}")),
            })?;
        let oversubscribed = size > slots.count();
        let needed = u64::from(size) * DESCRIPTORS_PER_RANK + DESCRIPTORS_BASE;
        if needed > descriptors {
            return Err(wrong(format!(
                "{size} ranks need {needed} descriptors ({DESCRIPTORS_PER_RANK} each and \
                 {DESCRIPTORS_BASE} more), allowed are {descriptors}; raise the hard limit \
                 (ulimit -Hn) or start fewer ranks"
            )));
        }
        if let StdinTarget::Rank(rank) = spec.stdio.stdin
            && rank.0 >= size
            && rank != Rank(0)
        {
            return Err(wrong(format!(
                "--stdin {rank}: the job has the ranks 0 to {}",
                size - 1
            )));
        }
        let apps = spec
            .apps
            .iter()
            .zip(&sizes)
            .map(|(app, size)| app_plan(app, *size, &inherited, &cwd, &mut notes, &mut warnings))
            .collect::<Result<Vec<App>, _>>()?;
        let (pmi, pmix) = interfaces(spec.interface.pmi, &apps);
        let host = match pmix
            .then(|| host_parts(&spec, &apps, &inherited))
            .transpose()
        {
            Ok(host) => host,
            // Nothing says that the programs need PMIx; they may well live without it.
            Err(failure) if spec.interface.pmi == PmiChoice::Auto && pmi => {
                notes.push(format!("PMIx is not offered: {}", failure.message));
                None
            }
            Err(failure) => return Err(failure),
        };
        let pmix = host.is_some();
        if let Some(host) = &host {
            notes.push(format!("PMIx server: {}", host.libpmix.why));
        }
        let node_names = node_names(nodes);
        notes.insert(
            0,
            format!(
                "{size} ranks on {nodes} {} ({slots}); offered: {}",
                if nodes == 1 { "node" } else { "virtual nodes" },
                match (pmi, pmix) {
                    (true, true) => "PMI-1 and PMIx",
                    (true, false) => "PMI-1",
                    (false, true) => "PMIx",
                    (false, false) => "nothing",
                }
            ),
        );
        let appnums = sizes
            .iter()
            .enumerate()
            .flat_map(|(app, size)| (0..*size).map(move |_| AppNum(app as u32)))
            .collect();
        let job = JobContext {
            nspace,
            ranks: place(size, nodes),
            appnums,
            universe_size: size.max(slots.count() * nodes),
            user: UserId(rustix::process::getuid().as_raw()),
        };
        Ok(Self {
            apps,
            job: Arc::new(job),
            node_names,
            pmi,
            pmix,
            host,
            oversubscribed,
            cores: slots.count(),
            notes,
            warnings,
            spec,
        })
    }

    /// Index of the application context of a rank.
    pub fn app_of(&self, rank: Rank) -> usize {
        self.job.appnums[rank.index()].index()
    }
}

/// Ranks of each app: as given, or one per slot for a single program and one for each of several.
fn sizes(apps: &[AppSpec], slots: u32) -> Vec<u32> {
    let default = if apps.len() == 1 { slots } else { 1 };
    apps.iter()
        .map(|app| app.count.unwrap_or(default))
        .collect()
}

fn total(sizes: &[u32]) -> Result<u32, RunFailure> {
    let total: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
    // Far beyond any machine, and small enough that no arithmetic on it overflows.
    u32::try_from(total)
        .ok()
        .filter(|total| *total <= 10_000_000)
        .ok_or_else(|| {
            wrong(format!(
                "{total} ranks are more than this program can count"
            ))
        })
}

/// Consecutive ranks on each node, as even as possible.
fn place(size: u32, nodes: u32) -> RankMap {
    let (each, extra) = (size / nodes, size % nodes);
    RankMap::from_runs((0..nodes).map(|node| (NodeId(node), each + u32::from(node < extra))))
}

/// One node has the machine's name; virtual ones add a number to its first part.
fn node_names(nodes: u32) -> Vec<String> {
    let own = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let usable = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let own = match own.is_empty() || !own.chars().all(usable) {
        true => "localhost".to_owned(),
        false => own,
    };
    if nodes == 1 {
        return vec![own];
    }
    // A host name has 64 bytes at most, some of which the number needs.
    let stem: String = own
        .split('.')
        .next()
        .unwrap_or(&own)
        .chars()
        .take(50)
        .collect();
    (0..nodes).map(|node| format!("{stem}-v{node}")).collect()
}

fn app_plan(
    app: &AppSpec,
    size: u32,
    inherited: &[(OsString, OsString)],
    cwd: &Path,
    notes: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Result<App, RunFailure> {
    let wdir = app.wdir.as_ref().map(|dir| cwd.join(dir));
    if let Some(dir) = &wdir {
        let entered = rustix::fs::access(dir, rustix::fs::Access::EXEC_OK);
        if let Err(errno) = entered {
            let text = format!("--wdir {}: {errno}", dir.display());
            return Err(wrong(text));
        }
        if !dir.is_dir() {
            return Err(wrong(format!(
                "--wdir {} is not a directory",
                dir.display()
            )));
        }
    }
    let asked = app
        .env
        .iter()
        .map(|text| Forward::parse(text))
        .collect::<Result<Vec<_>, _>>();
    let asked = asked.map_err(|error| wrong(format!("-x: {error}")))?;
    let base = environment::base(inherited.iter().cloned(), &asked);
    warnings.extend(
        base.unset
            .iter()
            .map(|name| format!("-x {}: not set here", name.to_string_lossy())),
    );
    let mut env = base.variables;
    let path = env
        .iter()
        .find(|(name, _)| name == "PATH")
        .map(|(_, value)| value.as_os_str());
    let start = wdir.as_deref().unwrap_or(cwd);
    let program = Program::find(&app.argv[0], path, start).map_err(|error| RunFailure {
        code: error.exit_code(),
        message: error.to_string(),
    })?;
    let finding = inspect(&program, &Loader::new(&env, start, System::default()));
    notes.push(format!("{}: {}", program.path().display(), finding.why));
    if !env.iter().any(|(name, _)| name == relocated::OPEN_MPI)
        && let Some(prefix) = finding.openmpi.as_deref().and_then(relocated::open_mpi)
    {
        env.push((relocated::OPEN_MPI.into(), prefix.into()));
    }
    Ok(App {
        program,
        args: app.argv[1..].to_vec(),
        size,
        env,
        cwd: wdir,
        finding,
    })
}

/// What to offer: PMI-1, PMIx.
fn interfaces(choice: PmiChoice, apps: &[App]) -> (bool, bool) {
    match choice {
        PmiChoice::Pmi1 => (true, false),
        PmiChoice::Pmix => (false, true),
        PmiChoice::All => (true, true),
        PmiChoice::None => (false, false),
        PmiChoice::Auto => {
            let any = |wants: Wants| apps.iter().any(|app| app.finding.wants == wants);
            // A program that is known to need PMIx gets nothing else that could confuse it.
            let sure = any(Wants::Pmix);
            let pmi = any(Wants::Pmi) || any(Wants::Unknown) || !sure;
            (pmi, sure || any(Wants::Unknown))
        }
    }
}

fn host_parts(
    spec: &JobSpec,
    apps: &[App],
    inherited: &[(OsString, OsString)],
) -> Result<HostParts, RunFailure> {
    let wanted = apps
        .iter()
        .find(|app| app.finding.wants == Wants::Pmix)
        .or_else(|| apps.first())
        .expect("a job has at least one program");
    let variable = inherited.iter().find(|(name, _)| name == LIBPMIX_VARIABLE);
    let variable = variable
        .map(|(_, value)| Path::new(value))
        .filter(|p| !p.as_os_str().is_empty());
    let loader = Loader::new(&wanted.env, Path::new("/"), System::default());
    let libpmix = libpmix::choose(
        spec.interface.libpmix.as_deref(),
        Some(&wanted.finding),
        variable,
        &loader,
    );
    parts::find(spec, libpmix)
}
