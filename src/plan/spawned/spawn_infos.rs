//! Reads the values of a spawn request's infos. The table of the keys is `wireup_core::job::directive`. No I/O.
//!
//! Rule: an info is a PMIx attribute (`pmix.wdir`), or comes from an `MPI_Info`: keys of the MPI
//! standard (section 11.8.4), keys of other launchers, and names of PMIx attributes,
//! which Open MPI's users write there. Unknown infos are ignored, unless they are required.

mod binding_infos;
mod image_infos;
mod info_values;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

pub(super) use self::binding_infos::BindingAttributes;
use self::image_infos::ImageAttributes;
use self::info_values::{
    architecture, change, choice, entries, number, parsed, parsed_lines, path, reader, target,
    truth, value_error, wrong,
};
use crate::plan::spawned::{refuse, text};
use wireup_core::job::directive::RequestDirective;
use wireup_core::job::env_change::{EnvChange, EnvChangeKind};
use wireup_core::job::hosts::HostEntry;
use wireup_core::job::ids::{Nspace, Rank};
use wireup_core::job::limit::ResourceLimit;
use wireup_core::job::mpi::MpiDefinition;
use wireup_core::job::proc::RankOrWildcard;
use wireup_core::job::pset::ProcessSet;
use wireup_core::job::rank_set::{RankChoice, RankSet};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind, SpawnInfo};
use wireup_core::job::spec::{
    AppRequest, EnvOption, LayoutRuns, MapBy, MapWithinHost, Mapping, StdinTarget, WrapSpec,
    parse_umask,
};
use wireup_core::placement::SoftCounts;
use wireup_core::topology::ObjectType;

/// Values of the infos of a job, or of one application.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct SpawnAttributes {
    /// Hosts on which the ranks may run; any if empty.
    pub(super) hosts: Vec<HostEntry>,
    /// Files with more such hosts.
    pub(super) hostfiles: Vec<PathBuf>,
    /// Hosts that must join the launch.
    pub(super) added: Vec<HostEntry>,
    /// Files with more hosts that must join.
    pub(super) added_files: Vec<PathBuf>,
    /// Working directory, relative to the one without this info.
    pub(super) wdir: Option<PathBuf>,
    /// Other settings of the application; infos change those of the requester's program.
    pub(super) app: AppRequest,
    /// Ranks that run under a wrapper.
    wrap_ranks: Option<RankSet>,
    /// Order in which nodes get ranks.
    pub(super) map_by: Option<MapBy>,
    pub(super) binding: BindingAttributes,
    pub(super) images: ImageAttributes,
    /// Maximum number of ranks on a node.
    pub(super) per_node: Option<u32>,
    /// Whether nodes may have more ranks than slots; as for the launch if absent.
    pub(super) oversubscribe: Option<bool>,
    /// Nodes of all ranks of the job.
    pub(super) layout: Option<LayoutRuns>,
    /// File with the nodes and CPUs of all ranks of the job.
    pub(super) rankfile: Option<PathBuf>,
    /// Process sets of ranks of the job.
    pub(super) rank_sets: Vec<ProcessSet>,
    /// Whether the head node gets no ranks.
    pub(super) no_head: bool,
    /// Numbers of ranks that are acceptable too.
    pub(super) soft: Option<SoftCounts>,
    /// Whether the job may outlive its parent; as for the launch if absent.
    pub(super) independent: Option<bool>,
    /// Timeout of the job's start.
    pub(super) limit: Option<Duration>,
    /// Whether a process pushes standard input to the job.
    pub(super) has_input: bool,
    /// Ranks that read this input; rank 0 if absent.
    pub(super) reader: Option<StdinTarget>,
    /// Whether standard output is forwarded to the requesting tool.
    pub(super) stdout: bool,
    /// Whether standard error is forwarded to the requesting tool.
    pub(super) stderr: bool,
    /// Whether an info that forwards output is required.
    forwarding_required: bool,
    /// Ranks that are stopped when they execute their program.
    pub(super) on_exec: Option<RankChoice>,
    /// Ranks that wait for a debugger in `PMIx_Init`.
    pub(super) in_init: Option<RankChoice>,
    /// Ranks that wait for a debugger at a point of the program's own.
    pub(super) in_app: Option<RankChoice>,
    /// Whether an info marks the job as debugger daemons.
    pub(super) daemons: bool,
    /// Processes that the debugger daemons debug.
    pub(super) target: Option<(Nspace, RankOrWildcard)>,
    /// Number of debugger daemons on each node of the target.
    pub(super) daemons_per_node: Option<u32>,
    /// Number of debugger daemons for each process of the target, on its node.
    pub(super) daemons_per_proc: Option<u32>,
    /// Allocation whose slots the job uses.
    pub(super) allocation: Option<String>,
    /// Name of the process set of the application's ranks.
    pub(super) set: Option<String>,
    /// Unknown keys, which are ignored.
    pub(super) ignored: Vec<String>,
}

impl SpawnAttributes {
    /// Reads the infos of a job.
    ///
    /// # Errors
    /// [`SpawnFailure`] for an invalid value, and for a required info that is not supported.
    pub(super) fn from_infos(infos: &[SpawnInfo]) -> Result<Self, SpawnFailure> {
        Self::default().with_infos(infos)
    }

    /// Reads the infos of an application; those of the whole job are defaults. `app` has the settings of
    /// the application without infos. Fails as [`from_infos`](Self::from_infos) does.
    pub(super) fn from_app_infos(
        job: &[SpawnInfo],
        app_infos: &[SpawnInfo],
        app: AppRequest,
    ) -> Result<Self, SpawnFailure> {
        let template = Self {
            app,
            ..Self::default()
        };
        let mut wishes = template.with_infos(job)?;
        wishes.ignored.clear();
        let is_host = |info: &SpawnInfo| {
            let directive = RequestDirective::from_key(&info.key);
            matches!(
                directive,
                Some(RequestDirective::Host | RequestDirective::Hostfile)
            )
        };
        if app_infos.iter().any(is_host) {
            wishes.hosts.clear();
            wishes.hostfiles.clear();
        }
        wishes.with_infos(app_infos)
    }

    fn with_infos(mut self, infos: &[SpawnInfo]) -> Result<Self, SpawnFailure> {
        for info in infos {
            self.add(info)?;
        }
        if let Some(ranks) = self.wrap_ranks.clone() {
            let Some(wrap) = &mut self.app.wrap else {
                let problem = "the request has no wrapper; give one with wrap";
                return Err(text("wrap_ranks", problem));
            };
            wrap.ranks = Some(ranks);
        }
        Ok(self)
    }

    /// Whether the request names the hosts of the ranks.
    pub(super) fn names_hosts(&self) -> bool {
        !self.hosts.is_empty() || !self.hostfiles.is_empty()
    }

    /// Keys about placement except those of layouts, each with whether the request has it.
    pub(super) fn placement_keys(&self) -> [(bool, &'static str); 5] {
        let is_mapped = self.map_by.is_some() || self.binding.map.is_some();
        [
            (self.names_hosts(), "host"),
            (self.no_head, "pmix.nolocal"),
            (is_mapped, "map_by"),
            (self.per_node.is_some(), "ppn"),
            (self.soft.is_some(), "soft"),
        ]
    }

    /// Whether the job's processes are daemons of a debugger.
    pub(super) fn is_debugger(&self) -> bool {
        self.daemons || self.daemons_per_node.is_some() || self.daemons_per_proc.is_some()
    }

    /// Ranks of the job that read the standard input that processes push to it.
    pub(super) fn input(&self) -> StdinTarget {
        match self.has_input {
            true => self.reader.unwrap_or(StdinTarget::Rank(Rank(0))),
            false => StdinTarget::None,
        }
    }

    /// Notes as ignored that a rank requests the forwarding of output, which is for tools alone.
    ///
    /// # Errors
    /// [`SpawnFailure`] if the info is required.
    pub(super) fn forwards_to_no_rank(
        &self,
        ignored: &mut Vec<String>,
    ) -> Result<(), SpawnFailure> {
        let wishes = [
            ("pmix.fwd.stdout", self.stdout),
            ("pmix.fwd.stderr", self.stderr),
        ];
        for (key, _) in wishes.into_iter().filter(|(_, wished)| *wished) {
            if self.forwarding_required {
                let problem = format!(
                    "info key {key} is required, and output is forwarded to tools alone; \
                     PMIx_IOF_pull gets it"
                );
                return Err(refuse(SpawnFailureKind::NotSupported, problem));
            }
            ignored.push(key.to_owned());
        }
        Ok(())
    }

    fn add(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        let SpawnInfo { key, value, .. } = info;
        let Some(directive) = RequestDirective::from_key(key) else {
            return self.not_offered(info);
        };
        match directive {
            RequestDirective::Host => self.hosts.extend(entries(info)?),
            RequestDirective::Hostfile => self.hostfiles.extend(path(value)),
            RequestDirective::AddHost => self.added.extend(entries(info)?),
            RequestDirective::AddHostfile => self.added_files.extend(path(value)),
            RequestDirective::MapBy => self.map_by(info)?,
            RequestDirective::PerResource => {
                self.per_resource(info, value.strip_prefix("ppr:").unwrap_or(value))?;
            }
            RequestDirective::PerNode => self.per_resource(info, value)?,
            RequestDirective::OncePerNode if truth(info)? => self.per_node = Some(1),
            RequestDirective::OncePerNode => {}
            RequestDirective::Layout => self.layout = Some(parsed(info)?),
            RequestDirective::Rankfile => self.rankfile = path(value),
            RequestDirective::RankSets => self
                .rank_sets
                .extend(parsed_lines(info, str::parse::<ProcessSet>)?),
            RequestDirective::NoHeadNode => self.no_head = truth(info)?,
            RequestDirective::Oversubscribe => self.oversubscribe = Some(truth(info)?),
            RequestDirective::NoOversubscribe => {
                if truth(info)? {
                    self.oversubscribe = Some(false);
                }
            }
            RequestDirective::Soft => {
                let problem = "is not a list; use numbers and FIRST:LAST:STRIDE with commas";
                let soft = SoftCounts::parse(value).ok_or_else(|| wrong(info, problem));
                self.soft = Some(soft?);
            }
            RequestDirective::Architecture => architecture(value)?,
            RequestDirective::Allocation => {
                self.allocation = (!value.is_empty()).then(|| value.clone());
            }
            RequestDirective::ProcessSet => self.set = Some(value.clone()),
            RequestDirective::BindTo => self.binding.bind_to(info)?,
            RequestDirective::RankBy => self.binding.rank_by(info)?,
            RequestDirective::CpusPerRank => self.binding.cpus_per_rank = Some(number(info)?),
            RequestDirective::MemBind => self.binding.memory = Some(parsed(info)?),
            RequestDirective::Openmp => self.binding.openmp = Some(truth(info)?),
            RequestDirective::GpusPerRank => self.binding.gpus_per_rank = Some(number(info)?),
            RequestDirective::ReportBindings => self.binding.report = Some(truth(info)?),
            RequestDirective::Wdir => self.wdir = path(value),
            RequestDirective::Path => self.app.search.extend(value.split(':').filter_map(path)),
            RequestDirective::Env => self.env(info)?,
            RequestDirective::EnvFile => self.app.env_files.extend(path(value)),
            RequestDirective::EnvSet => self.change_env(info, value, EnvChangeKind::Set)?,
            RequestDirective::EnvAdd => self.change_env(info, value, EnvChangeKind::Add)?,
            RequestDirective::EnvUnset => self.change_env(info, value, EnvChangeKind::Unset)?,
            RequestDirective::EnvPrepend => self.extend_env(info, EnvChangeKind::Prepend)?,
            RequestDirective::EnvAppend => self.extend_env(info, EnvChangeKind::Append)?,
            RequestDirective::Umask => {
                let mask = parse_umask(value);
                self.app.umask = Some(mask.map_err(|error| value_error(info, error))?);
            }
            RequestDirective::Rlimit => self
                .app
                .limits
                .extend(parsed_lines(info, str::parse::<ResourceLimit>)?),
            RequestDirective::Wrap => {
                let command = OsString::from(value);
                self.app.wrap = (!value.is_empty()).then_some(WrapSpec {
                    command,
                    ranks: None,
                });
            }
            RequestDirective::WrapRanks => {
                let ranks = value.parse().map_err(|error| text(key, error));
                self.wrap_ranks = Some(ranks?);
            }
            RequestDirective::Mpi => {
                self.app.mpi.choice = (!value.is_empty()).then(|| value.into());
            }
            RequestDirective::DefineMpi => {
                let definitions = parsed_lines(info, MpiDefinition::parse)?;
                self.app.mpi.definitions.extend(definitions);
            }
            RequestDirective::RankTmpdir => self.app.rank_tmpdir = truth(info)?,
            RequestDirective::Stage => self.app.preload.stage = truth(info)?,
            RequestDirective::PreloadBinary => self.app.preload.program = truth(info)?,
            RequestDirective::PreloadFiles => {
                let files: Vec<PathBuf> = value.split(',').filter_map(path).collect();
                // A missing file is an error only if the attribute is required.
                if info.required {
                    self.app.needed_files.extend_from_slice(&files);
                }
                self.app.preload.files.extend(files);
            }
            RequestDirective::Uenv => self.images.uenv(info)?,
            RequestDirective::Image => self.images.image(info),
            RequestDirective::ImageRuntime => self.images.runtime(info)?,
            RequestDirective::ImageMount => self.images.mount(info)?,
            RequestDirective::ChildSeparate => self.independent = Some(truth(info)?),
            RequestDirective::SpawnTimeout => match value.parse() {
                Ok(0_u32) => {}
                Ok(seconds) => self.limit = Some(Duration::from_secs(seconds.into())),
                Err(_) => return Err(wrong(info, "is not a number of seconds")),
            },
            RequestDirective::ForwardStdin => self.has_input = truth(info)?,
            RequestDirective::StdinTarget => self.reader = Some(reader(info)?),
            RequestDirective::ForwardStdout => {
                self.stdout = truth(info)?;
                self.forwarding_required |= info.required;
            }
            RequestDirective::ForwardStderr => {
                self.stderr = truth(info)?;
                self.forwarding_required |= info.required;
            }
            RequestDirective::StopOnExec => self.on_exec = choice(info)?,
            RequestDirective::StopInInit => self.in_init = choice(info)?,
            RequestDirective::StopInApp => self.in_app = choice(info)?,
            RequestDirective::DebuggerDaemons => self.daemons = truth(info)?,
            RequestDirective::DebugTarget => {
                let problem = "is not a process; write NSPACE:RANK";
                self.target = Some(target(value).ok_or_else(|| wrong(info, problem))?);
            }
            RequestDirective::DebugJob => match Nspace::new(value) {
                Ok(job) => self.target = Some((job, RankOrWildcard::Wildcard)),
                Err(_) => return Err(wrong(info, "is not the name of a job")),
            },
            RequestDirective::DaemonsPerNode => self.daemons_per_node = Some(number(info)?),
            RequestDirective::DaemonsPerProc => self.daemons_per_proc = Some(number(info)?),
            RequestDirective::Satisfied => {}
        }
        Ok(())
    }

    /// Reads a line that changes a variable.
    fn change_env(
        &mut self,
        info: &SpawnInfo,
        line: &str,
        how: EnvChangeKind,
    ) -> Result<(), SpawnFailure> {
        self.app.env_changes.push(change(&info.key, line, how)?);
        Ok(())
    }

    /// Reads a separator and an extension of a variable.
    fn extend_env(
        &mut self,
        info: &SpawnInfo,
        how: fn(u8) -> EnvChangeKind,
    ) -> Result<(), SpawnFailure> {
        let invalid = || wrong(info, "is invalid; write a separator, then NAME=VALUE");
        let change = EnvChange::extend(how, OsStr::new(&info.value));
        self.app.env_changes.push(change.ok_or_else(invalid)?);
        Ok(())
    }

    /// Reads lines, each with a value as for `--env`.
    fn env(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        for line in info.value.lines().filter(|line| !line.is_empty()) {
            match EnvOption::parse(line.into()).map_err(|error| value_error(info, error))? {
                EnvOption::Select(inherited) => self.app.inherited = inherited,
                EnvOption::Variable(_) if line.contains('=') => {
                    self.change_env(info, line, EnvChangeKind::Set)?;
                }
                EnvOption::Variable(variable) => self.app.env.push(variable),
            }
        }
        Ok(())
    }

    /// Reads `POLICY[:N:OBJECT][:MODIFIER[,MODIFIER]...]`, as Open MPI's users write it.
    fn map_by(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        let value = info.value.to_ascii_lowercase();
        let (policy, mut rest) = value.split_once(':').unwrap_or((&value, ""));
        match policy {
            "" => {}
            "byslot" => self.map_by = Some(MapBy::Slot),
            "bynode" => self.map_by = Some(MapBy::Node),
            "ppr" => {
                let end = rest
                    .match_indices(':')
                    .nth(1)
                    .map_or(rest.len(), |(at, _)| at);
                self.per_resource(info, &rest[..end])?;
                rest = &rest[end..];
            }
            policy => {
                let mapping: Mapping = policy.parse().map_err(|error| value_error(info, error))?;
                match mapping.within {
                    MapWithinHost::InOrder => self.map_by = Some(mapping.nodes),
                    within => self.binding.map = Some(within),
                }
            }
        }
        for modifier in rest.split([':', ',']) {
            match modifier {
                pe if pe.starts_with("pe=") => {
                    let count = pe[3..].parse().ok().filter(|count| *count > 0);
                    let problem = || text(&info.key, format!("{pe:?}: write pe=N, from 1 CPU on"));
                    self.binding.cpus_per_rank = Some(count.ok_or_else(problem)?);
                }
                "oversubscribe" => self.oversubscribe = Some(true),
                "nooversubscribe" => self.oversubscribe = Some(false),
                "nolocal" => self.no_head = true,
                // Other modifiers are about reporting.
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads `N` or `N:UNIT`.
    fn per_resource(&mut self, info: &SpawnInfo, value: &str) -> Result<(), SpawnFailure> {
        let (number, object) = value.split_once(':').unwrap_or((value, "node"));
        let object = object.to_ascii_lowercase();
        let whole = ["n", "node", "host"].contains(&object.as_str());
        match (number.trim().parse(), ObjectType::named(&object)) {
            (Ok(number @ 1..), _) if whole => self.per_node = Some(number),
            (Ok(number @ 1..), Some(level)) => {
                self.binding.map = Some(MapWithinHost::Each(number, level));
            }
            (Ok(1..), None) => {
                let problem = format!(
                    "unsupported {:?}; use N:node, N:package, N:numa, N:l3cache or N:core",
                    info.value
                );
                return Err(text(&info.key, problem));
            }
            _ => {
                let problem = format!("{:?}: write N or N:UNIT, from 1 process on", info.value);
                return Err(text(&info.key, problem));
            }
        }
        Ok(())
    }

    fn not_offered(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        if info.required {
            let problem = format!(
                "unknown info key {} ({:?}), which is required",
                info.key, info.value
            );
            return Err(refuse(SpawnFailureKind::NotSupported, problem));
        }
        self.ignored.push(info.key.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
