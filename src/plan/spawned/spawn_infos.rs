//! What the infos of a spawn request ask for. No I/O.
//!
//! Rule: an info is a PMIx attribute (`pmix.wdir`), or comes from an `MPI_Info`: the keys of the MPI
//! standard (section 11.8.4), those that other launchers know, and the names of PMIx attributes,
//! which Open MPI's users write there. Those that are not known here are ignored, unless they are
//! required.

mod binding_infos;
mod info_values;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

pub(super) use self::binding_infos::BindingAttributes;
use self::info_values::{
    architecture, change, choice, entries, number, path, reader, target, truth,
};
use crate::plan::spawned::env_change::{EnvChange, EnvChangeKind};
use crate::plan::spawned::{refuse, text};
use wireup_core::job::hosts::HostEntry;
use wireup_core::job::ids::{Nspace, Rank};
use wireup_core::job::proc::RankOrWildcard;
use wireup_core::job::rank_set::RankChoice;
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind, SpawnInfo};
use wireup_core::job::spec::{MapBy, MapWithinHost, StdinTarget};
use wireup_core::placement::SoftCounts;
use wireup_core::topology::ObjectType;

/// See the module.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct SpawnAttributes {
    /// The hosts on which its ranks may run; any if empty.
    pub(super) hosts: Vec<HostEntry>,
    /// Files of such hosts.
    pub(super) hostfiles: Vec<PathBuf>,
    /// Hosts that shall be nodes of the launch.
    pub(super) added: Vec<HostEntry>,
    /// Files of such hosts.
    pub(super) added_files: Vec<PathBuf>,
    pub(super) wdir: Option<PathBuf>,
    /// Directories that are searched first for the program.
    pub(super) search: Vec<PathBuf>,
    /// Changes of the environment.
    pub(super) env: Vec<EnvChange>,
    /// The order of placement.
    pub(super) map_by: Option<MapBy>,
    /// The CPUs of its ranks.
    pub(super) binding: BindingAttributes,
    /// Most ranks on a node.
    pub(super) per_node: Option<u32>,
    /// Whether more ranks than slots are fine; as for the launch when absent.
    pub(super) oversubscribe: Option<bool>,
    /// Not on the head node.
    pub(super) no_head: bool,
    /// Other numbers of ranks that will do.
    pub(super) soft: Option<SoftCounts>,
    /// Files that must be on its nodes.
    pub(super) needs: Vec<PathBuf>,
    /// Files that are copied to nodes that do not have them.
    pub(super) takes: Vec<PathBuf>,
    /// The program is copied to its nodes.
    pub(super) takes_program: bool,
    /// Whether it may outlive its parent; as for the launch if absent.
    pub(super) independent: Option<bool>,
    /// How long its start may take.
    pub(super) limit: Option<Duration>,
    /// Whether a process gives it input.
    pub(super) has_input: bool,
    /// Which of its ranks reads that; the first when absent.
    pub(super) reader: Option<StdinTarget>,
    /// The tool that requests it gets what it prints.
    pub(super) stdout: bool,
    /// The same for standard error.
    pub(super) stderr: bool,
    /// One of both has to be honoured.
    forwarding_required: bool,
    /// Ranks that are stopped or wait for a debugger.
    pub(super) on_exec: Option<RankChoice>,
    pub(super) in_init: Option<RankChoice>,
    pub(super) in_app: Option<RankChoice>,
    /// They are daemons of a debugger.
    pub(super) daemons: bool,
    /// What these debug.
    pub(super) target: Option<(Nspace, RankOrWildcard)>,
    /// How many of these there are on each node of that.
    pub(super) daemons_per_node: Option<u32>,
    /// How many of these there are for each process of that, on its node.
    pub(super) daemons_per_proc: Option<u32>,
    /// The allocation with its slots.
    pub(super) allocation: Option<String>,
    /// The process set that its ranks are in.
    pub(super) set: Option<String>,
    /// Keys that mean nothing here.
    pub(super) ignored: Vec<String>,
}

impl SpawnAttributes {
    /// Reads infos.
    ///
    /// # Errors
    /// [`SpawnFailure`] when one makes no sense, or cannot be honoured and has to be.
    pub(super) fn from_infos(infos: &[SpawnInfo]) -> Result<Self, SpawnFailure> {
        let mut wishes = Self::default();
        for info in infos {
            wishes.add(info)?;
        }
        Ok(wishes)
    }

    /// With the whole job's attributes as defaults.
    pub(super) fn with_defaults(mut self, job: &Self) -> Self {
        fn some<T: Clone>(own: &mut Vec<T>, job: &[T]) {
            if own.is_empty() {
                own.extend_from_slice(job);
            }
        }
        if self.hosts.is_empty() && self.hostfiles.is_empty() {
            some(&mut self.hosts, &job.hosts);
            some(&mut self.hostfiles, &job.hostfiles);
        }
        some(&mut self.search, &job.search);
        self.wdir = self.wdir.or_else(|| job.wdir.clone());
        self.map_by = self.map_by.or(job.map_by);
        self.binding = self.binding.with_defaults(&job.binding);
        self.per_node = self.per_node.or(job.per_node);
        self.oversubscribe = self.oversubscribe.or(job.oversubscribe);
        self.soft = self.soft.or_else(|| job.soft.clone());
        self.no_head |= job.no_head;
        self.allocation = self.allocation.or_else(|| job.allocation.clone());
        self.set = self.set.or_else(|| job.set.clone());
        self.needs.extend_from_slice(&job.needs);
        self.takes.extend_from_slice(&job.takes);
        self.takes_program |= job.takes_program;
        let env = job.env.iter().cloned();
        self.env = env.chain(std::mem::take(&mut self.env)).collect();
        self
    }

    /// Whether its processes are daemons of a debugger.
    pub(super) fn is_debugger(&self) -> bool {
        self.daemons || self.daemons_per_node.is_some() || self.daemons_per_proc.is_some()
    }

    /// Which ranks of the job read what processes push to them.
    pub(super) fn input(&self) -> StdinTarget {
        match self.has_input {
            true => self.reader.unwrap_or(StdinTarget::Rank(Rank(0))),
            false => StdinTarget::None,
        }
    }

    /// Output is forwarded to tools: a rank's wish for it is refused or ignored, and noted then.
    ///
    /// # Errors
    /// [`SpawnFailure`] when it has to be honoured.
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
        let wrong = |what: &str| Err(text(key, format!("{value:?} {what}")));
        match key.as_str() {
            "host" | "hosts" | "pmix.host" | "PMIX_HOST" => self.hosts.extend(entries(info)?),
            "hostfile" | "pmix.hostfile" | "PMIX_HOSTFILE" => self.hostfiles.extend(path(value)),
            "add-host" | "add_host" | "pmix.addhost" | "PMIX_ADD_HOST" => {
                self.added.extend(entries(info)?);
            }
            "add-hostfile" | "add_hostfile" | "pmix.addhostfile" | "PMIX_ADD_HOSTFILE" => {
                self.added_files.extend(path(value));
            }
            "wdir" | "pmix.wdir" | "PMIX_WDIR" => self.wdir = path(value),
            "path" => self.search.extend(value.split(':').filter_map(path)),
            "env" | "PMIX_ENVAR" => {
                for line in value.lines().filter(|line| !line.is_empty()) {
                    self.env.extend(change(key, line, EnvChangeKind::Set)?);
                }
            }
            "pmix.envar.set" => self.env.extend(change(key, value, EnvChangeKind::Set)?),
            "pmix.envar.add" => self.env.extend(change(key, value, EnvChangeKind::Add)?),
            "pmix.envar.unset" => self.env.extend(change(key, value, EnvChangeKind::Unset)?),
            "pmix.envar.prepnd" | "pmix.envar.appnd" => {
                let how = match key.ends_with("prepnd") {
                    true => EnvChangeKind::Prepend,
                    false => EnvChangeKind::Append,
                };
                match EnvChange::extend(how, OsStr::new(value)) {
                    Some(change) => self.env.push(change),
                    None => return wrong("is no separator with NAME=VALUE behind it"),
                }
            }
            "map_by" | "map-by" | "pmix.mapby" | "PMIX_MAPBY" => self.map_by(info)?,
            "ppr" | "pmix.ppr" | "PMIX_PPR" => {
                let bare = value.strip_prefix("ppr:").unwrap_or(value);
                self.per_resource(info, bare)?;
            }
            "bind_to" | "bind-to" | "pmix.bindto" | "PMIX_BINDTO" => self.binding.bind_to(info)?,
            "rank_by" | "rank-by" | "pmix.rankby" | "PMIX_RANKBY" => self.binding.rank_by(info)?,
            "pmix.cpuperproc" | "PMIX_CPUS_PER_PROC" => self.binding.cpus(info)?,
            "pmix.repbind" | "PMIX_REPORT_BINDINGS" => self.binding.report(info)?,
            "npernode" => self.per_resource(info, value)?,
            "pernode" if truth(info)? => self.per_node = Some(1),
            "pernode" => {}
            "pmix.nolocal" | "PMIX_NO_PROCS_ON_HEAD" => self.no_head = truth(info)?,
            "pmix.noover" | "PMIX_NO_OVERSUBSCRIBE" => {
                if truth(info)? {
                    self.oversubscribe = Some(false);
                }
            }
            "pmix.alloc.id" | "PMIX_ALLOC_ID" => {
                self.allocation = (!value.is_empty()).then(|| value.clone());
            }
            "pmix.pset.nm" | "PMIX_PSET_NAME" => self.set = Some(value.clone()),
            "soft" => match SoftCounts::parse(value) {
                Some(soft) => self.soft = Some(soft),
                None => return wrong("is no list of numbers and FIRST:LAST:STRIDE"),
            },
            "arch" => architecture(value)?,
            "preload_files" | "ompi_preload_files" | "pmix.preloadfiles" | "PMIX_PRELOAD_FILES" => {
                let files: Vec<PathBuf> = value.split(',').filter_map(path).collect();
                // Optional attributes are ignored.
                if info.required {
                    self.needs.extend_from_slice(&files);
                }
                self.takes.extend(files);
            }
            "preload_binary" | "ompi_preload_binary" | "pmix.preloadbin" | "PMIX_PRELOAD_BIN" => {
                self.takes_program = truth(info)?;
            }
            "pmix.spchildsep" | "PMIX_SPAWN_CHILD_SEP" => self.independent = Some(truth(info)?),
            "pmix.timeout" | "PMIX_TIMEOUT" | "pmix.sp.time" | "PMIX_SPAWN_TIMEOUT" => {
                match value.parse() {
                    Ok(0_u32) => {}
                    Ok(seconds) => self.limit = Some(Duration::from_secs(seconds.into())),
                    Err(_) => return wrong("is no number of seconds"),
                }
            }
            "pmix.fwd.stdin" | "PMIX_FWD_STDIN" => self.has_input = truth(info)?,
            "pmix.fwd.stdout" | "PMIX_FWD_STDOUT" => {
                self.stdout = truth(info)?;
                self.forwarding_required |= info.required;
            }
            "pmix.fwd.stderr" | "PMIX_FWD_STDERR" => {
                self.stderr = truth(info)?;
                self.forwarding_required |= info.required;
            }
            "pmix.dbg.exec" | "PMIX_DEBUG_STOP_ON_EXEC" => self.on_exec = choice(info)?,
            "pmix.dbg.init" | "PMIX_DEBUG_STOP_IN_INIT" => self.in_init = choice(info)?,
            "pmix.dbg.notify" | "PMIX_DEBUG_STOP_IN_APP" => self.in_app = choice(info)?,
            "pmix.debugger" | "PMIX_DEBUGGER_DAEMONS" => self.daemons = truth(info)?,
            "pmix.dbg.tgt" | "PMIX_DEBUG_TARGET" => {
                self.target = Some(target(value).ok_or_else(|| {
                    text(key, format!("{value:?} names neither a job nor a process"))
                })?);
            }
            // Its name up to PMIx 3, for a whole job.
            "pmix.dbg.job" | "PMIX_DEBUG_JOB" => {
                let job =
                    Nspace::new(value).map_err(|_| text(key, format!("{value:?} names no job")))?;
                self.target = Some((job, RankOrWildcard::Wildcard));
            }
            "pmix.dbg.dpnd" | "PMIX_DEBUG_DAEMONS_PER_NODE" => {
                self.daemons_per_node = Some(number(info)?);
            }
            "pmix.dbg.dpproc" | "PMIX_DEBUG_DAEMONS_PER_PROC" => {
                self.daemons_per_proc = Some(number(info)?);
            }
            "pmix.stdin" | "PMIX_STDIN_TGT" | "ompi_stdin_target" => {
                self.reader = match reader(value) {
                    Some(target) => Some(target),
                    None => return wrong("is no rank, and neither all nor none"),
                }
            }
            known if NOTHING_TO_DO.contains(&known) => {}
            _ => self.not_offered(info, "is not known here")?,
        }
        Ok(())
    }

    /// `POLICY[:N:OBJECT][:MODIFIER[,MODIFIER]...]`, as Open MPI's users write it.
    fn map_by(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        let value = info.value.to_ascii_lowercase();
        let (policy, mut rest) = value.split_once(':').unwrap_or((&value, ""));
        match policy {
            "" => {}
            "slot" | "byslot" => self.map_by = Some(MapBy::Slot),
            "node" | "bynode" => self.map_by = Some(MapBy::Node),
            "ppr" => {
                let end = rest
                    .match_indices(':')
                    .nth(1)
                    .map_or(rest.len(), |(at, _)| at);
                self.per_resource(info, &rest[..end])?;
                rest = &rest[end..];
            }
            unit => match ObjectType::named(unit) {
                Some(level) => self.binding.map = Some(MapWithinHost::Over(level)),
                None => {
                    let problem = format!(
                        "{:?} is not offered; slot, node, hwthread, core, l2cache, l3cache, numa, package and ppr:N: with one of these are",
                        info.value
                    );
                    return Err(text(&info.key, problem));
                }
            },
        }
        for modifier in rest.split([':', ',']) {
            match modifier {
                pe if pe.starts_with("pe=") => {
                    let count = pe[3..].parse().ok().filter(|count| *count > 0);
                    let problem = || text(&info.key, format!("{pe:?} has no number of CPUs"));
                    self.binding.cpus_per_rank = Some(count.ok_or_else(problem)?);
                }
                "oversubscribe" => self.oversubscribe = Some(true),
                "nooversubscribe" => self.oversubscribe = Some(false),
                "nolocal" => self.no_head = true,
                // The rest is about reporting.
                _ => {}
            }
        }
        Ok(())
    }

    /// `N`, or `N:UNIT`.
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
                    "{:?} is not offered; N:node, N:package, N:numa, N:l3cache and N:core are",
                    info.value
                );
                return Err(text(&info.key, problem));
            }
            _ => {
                return Err(text(
                    &info.key,
                    format!("{:?} has no number of processes", info.value),
                ));
            }
        }
        Ok(())
    }

    fn not_offered(&mut self, info: &SpawnInfo, why: &str) -> Result<(), SpawnFailure> {
        if info.required {
            let problem = format!(
                "info key {} ({:?}) is required and {why}",
                info.key, info.value
            );
            return Err(refuse(SpawnFailureKind::NotSupported, problem));
        }
        self.ignored.push(info.key.clone());
        Ok(())
    }
}

/// Attributes that are always satisfied: the server identifies the requester,
/// and the end of a job is an event for registered processes.
const NOTHING_TO_DO: &[&str] = &[
    "personality",
    "pmix.pers",
    "pmix.wdir.user",
    "pmix.evar.hvstd",
    "pmix.euid",
    "pmix.egid",
    "pmix.req.client",
    "pmix.req.tool",
    "pmix.notecomp",
    // Programs that are designated are requested by themselves.
    "pmix.cospawn",
    "PMIX_COSPAWN_APP",
    "PMIX_PERSONALITY",
];

#[cfg(test)]
mod tests;
