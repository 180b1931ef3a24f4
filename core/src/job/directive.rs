//! Directives of a request for a job: each with the option of `wireup run`, the keys of an `MPI_Info` and the PMIx
//! attributes that have the same meaning.
//!
//! Rule: an attribute has the value that a client sends (`pmix.wdir`) and the name that its users write (`PMIX_WDIR`),
//! which Open MPI passes on unchanged from an `MPI_Info`. Source: PMIx standard 5.0, section 13.1; MPI standard 4.1,
//! section 11.8.4.

use std::fmt::Write as _;

/// Directive of a request, in the order of the documentation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RequestDirective {
    Host,
    Hostfile,
    AddHost,
    AddHostfile,
    MapBy,
    PerResource,
    PerNode,
    OncePerNode,
    Layout,
    Rankfile,
    NoHeadNode,
    Oversubscribe,
    NoOversubscribe,
    Soft,
    Architecture,
    Allocation,
    ProcessSet,
    RankSets,
    BindTo,
    RankBy,
    CpusPerRank,
    MemBind,
    Openmp,
    GpusPerRank,
    ReportBindings,
    Wdir,
    Path,
    Env,
    EnvFile,
    EnvSet,
    EnvAdd,
    EnvUnset,
    EnvPrepend,
    EnvAppend,
    Umask,
    Rlimit,
    Wrap,
    WrapRanks,
    Mpi,
    DefineMpi,
    RankTmpdir,
    Stage,
    PreloadBinary,
    PreloadFiles,
    Uenv,
    Image,
    ImageRuntime,
    ImageMount,
    ChildSeparate,
    SpawnTimeout,
    ForwardStdin,
    StdinTarget,
    ForwardStdout,
    ForwardStderr,
    StopOnExec,
    StopInInit,
    StopInApp,
    DebuggerDaemons,
    DebugTarget,
    DebugJob,
    DaemonsPerNode,
    DaemonsPerProc,
    /// Always satisfied: the server identifies the requester, the end of a job is an event for registered processes, and
    /// programs that are designated are requested by themselves.
    Satisfied,
}

/// The names of one directive.
#[derive(Debug)]
pub struct DirectiveNames {
    pub directive: RequestDirective,
    /// Long option of `wireup run` with the same meaning, without dashes, and the value if only that one does.
    pub option: Option<&'static str>,
    /// Keys of an `MPI_Info`.
    pub keys: &'static [&'static str],
    /// PMIx attributes: the value, and the name.
    pub attributes: &'static [(&'static str, &'static str)],
    /// The value and the effect, for the documentation; empty for a directive that needs no explanation.
    pub effect: &'static str,
}

/// Shortens the rows of the table.
const fn row(
    directive: RequestDirective,
    option: Option<&'static str>,
    keys: &'static [&'static str],
    attributes: &'static [(&'static str, &'static str)],
    effect: &'static str,
) -> DirectiveNames {
    DirectiveNames {
        directive,
        option,
        keys,
        attributes,
        effect,
    }
}

/// The names of all directives. A directive has one row.
#[rustfmt::skip]
pub const DIRECTIVES: &[DirectiveNames] = &[
    row(RequestDirective::Host, Some("hosts"), &["host", "hosts"], &[("pmix.host", "PMIX_HOST")],
        "hosts of the launch, in this order"),
    row(RequestDirective::Hostfile, Some("hostfile"), &["hostfile"], &[("pmix.hostfile", "PMIX_HOSTFILE")],
        "a file with such hosts"),
    row(RequestDirective::AddHost, None, &["add-host", "add_host"], &[("pmix.addhost", "PMIX_ADD_HOST")],
        "hosts that [join the launch](#hosts-that-join), written as for `--hosts`; hosts that it already has are unchanged"),
    row(RequestDirective::AddHostfile, None, &["add-hostfile", "add_hostfile"], &[("pmix.addhostfile", "PMIX_ADD_HOSTFILE")],
        "a file with such hosts"),
    row(RequestDirective::MapBy, Some("map-by"), &["map_by", "map-by"], &[("pmix.mapby", "PMIX_MAPBY")],
        "order of placement, or the parts of each host over which ranks are spread; modifiers as for Open MPI's `--map-by`"),
    row(RequestDirective::PerResource, None, &["ppr"], &[("pmix.ppr", "PMIX_PPR")],
        "`N:UNIT`: N ranks on each of these parts of a host"),
    row(RequestDirective::PerNode, Some("ppn"), &["ppn", "npernode"], &[],
        "most ranks on a node"),
    row(RequestDirective::OncePerNode, None, &["pernode"], &[],
        "one rank on a node"),
    row(RequestDirective::Layout, Some("layout"), &["layout"], &[],
        "the numbers of ranks of nodes, in the order of ranks; nodes are counted from 0 in the order of the launch"),
    row(RequestDirective::Rankfile, Some("rankfile"), &["rankfile"], &[],
        "a file with the host and the cores of each rank"),
    row(RequestDirective::NoHeadNode, None, &[], &[("pmix.nolocal", "PMIX_NO_PROCS_ON_HEAD")],
        "no rank on the first node"),
    row(RequestDirective::Oversubscribe, Some("oversubscribe"), &["oversubscribe"], &[],
        "whether more ranks than slots are allowed"),
    row(RequestDirective::NoOversubscribe, None, &[], &[("pmix.noover", "PMIX_NO_OVERSUBSCRIBE")],
        "no more ranks than slots"),
    row(RequestDirective::Soft, None, &["soft"], &[],
        "acceptable numbers of processes"),
    row(RequestDirective::Architecture, None, &["arch"], &[],
        "must be this machine's, otherwise the spawn is refused"),
    row(RequestDirective::Allocation, None, &[], &[("pmix.alloc.id", "PMIX_ALLOC_ID")],
        "[reserved](allocations.md) slots; hosts that the allocator granted join the launch"),
    row(RequestDirective::ProcessSet, None, &[], &[("pmix.pset.nm", "PMIX_PSET_NAME")],
        "the [process set](pmix-groups.md#process-sets) that the program's ranks are in"),
    row(RequestDirective::RankSets, Some("pset"), &["pset"], &[],
        "`NAME=RANKS` on each line: process sets of the job's ranks"),
    row(RequestDirective::BindTo, Some("bind-to"), &["bind_to", "bind-to"], &[("pmix.bindto", "PMIX_BINDTO")],
        "what the ranks are [bound](binding.md) to, instead of what the initial job's are"),
    row(RequestDirective::RankBy, None, &["rank_by", "rank-by"], &[("pmix.rankby", "PMIX_RANKBY")],
        "`slot`, `fill` or `node`, if that is the order of placement; otherwise the spawn is refused"),
    row(RequestDirective::CpusPerRank, Some("cpus-per-rank"), &["cpus_per_rank"], &[("pmix.cpuperproc", "PMIX_CPUS_PER_PROC")],
        "CPUs of each bound rank"),
    row(RequestDirective::MemBind, Some("mem-bind"), &["mem_bind"], &[],
        "the memory of bound ranks"),
    row(RequestDirective::Openmp, Some("openmp"), &["openmp"], &[],
        "whether OpenMP's variables follow the cores of bound ranks"),
    row(RequestDirective::GpusPerRank, Some("gpus-per-rank"), &["gpus_per_rank"], &[],
        "GPUs of each rank"),
    row(RequestDirective::ReportBindings, Some("report-bindings"), &["report_bindings"], &[("pmix.repbind", "PMIX_REPORT_BINDINGS")],
        "whether the bindings are shown"),
    row(RequestDirective::Wdir, Some("wdir"), &["wdir"], &[("pmix.wdir", "PMIX_WDIR")],
        "working directory"),
    row(RequestDirective::Path, None, &["path"], &[],
        "directories, with colons between them, that are searched first for the program"),
    row(RequestDirective::Env, Some("env"), &["env"], &[("PMIX_ENVAR", "PMIX_ENVAR")],
        "one value of `-x` on each line: `NAME=VALUE` sets a variable, `NAME` and `PREFIX*` pass some of wireup's on; `none`, `all` or a list select what is inherited"),
    row(RequestDirective::EnvFile, Some("env-file"), &["env_file"], &[],
        "a [file of variables](environment.md#files)"),
    row(RequestDirective::EnvSet, None, &[], &[("pmix.envar.set", "PMIX_SET_ENVAR")],
        "sets a variable"),
    row(RequestDirective::EnvAdd, None, &[], &[("pmix.envar.add", "PMIX_ADD_ENVAR")],
        "sets a variable that is not set"),
    row(RequestDirective::EnvUnset, None, &[], &[("pmix.envar.unset", "PMIX_UNSET_ENVAR")],
        "removes a variable"),
    row(RequestDirective::EnvPrepend, None, &[], &[("pmix.envar.prepnd", "PMIX_PREPEND_ENVAR")],
        "puts a text in front of a variable's value"),
    row(RequestDirective::EnvAppend, None, &[], &[("pmix.envar.appnd", "PMIX_APPEND_ENVAR")],
        "puts a text behind a variable's value"),
    row(RequestDirective::Umask, Some("umask"), &["umask"], &[],
        "file mode creation mask, in octal"),
    row(RequestDirective::Rlimit, Some("rlimit"), &["rlimit"], &[],
        "resource limits, one on each line"),
    row(RequestDirective::Wrap, Some("wrap"), &["wrap"], &[],
        "a command under which each rank runs"),
    row(RequestDirective::WrapRanks, Some("wrap-ranks"), &["wrap_ranks"], &[],
        "the ranks that run under it"),
    row(RequestDirective::Mpi, Some("mpi"), &["mpi"], &[],
        "the [MPI](mpi-by-name.md) that the ranks load, by name or path, instead of that of their parent"),
    row(RequestDirective::DefineMpi, Some("define-mpi"), &["define_mpi"], &[],
        "`NAME=PATH` and variables: an MPI that can be named, one on each line"),
    row(RequestDirective::RankTmpdir, Some("rank-tmpdir"), &["rank_tmpdir"], &[],
        "whether each rank gets a directory for its files"),
    row(RequestDirective::Stage, Some("stage"), &["stage"], &[],
        "what hosts lack of the program and of the libraries that it loads is [brought](#staged-files) to them"),
    row(RequestDirective::PreloadBinary, Some("stage=program"), &["preload_binary", "ompi_preload_binary"], &[("pmix.preloadbin", "PMIX_PRELOAD_BIN")],
        "the program is [copied](#staged-files) to the hosts"),
    row(RequestDirective::PreloadFiles, Some("stage=FILE"), &["preload_files", "ompi_preload_files"], &[("pmix.preloadfiles", "PMIX_PRELOAD_FILES")],
        "files, with commas between them, are [copied](#staged-files) to hosts that do not have them"),
    row(RequestDirective::Uenv, Some("uenv"), &["uenv"], &[],
        "[software images](#images) that are mounted for the job's ranks, one on each line"),
    row(RequestDirective::Image, Some("image"), &["image"], &[],
        "the [image](#images) that the job's ranks have for their root directory"),
    row(RequestDirective::ImageRuntime, Some("image"), &["runtime"], &[],
        "what makes its container"),
    row(RequestDirective::ImageMount, Some("image-mount"), &["image_mount"], &[],
        "directories and files of the hosts in it, one on each line"),
    row(RequestDirective::ChildSeparate, None, &[], &[("pmix.spchildsep", "PMIX_SPAWN_CHILD_SEP")],
        "the job may live longer than its parent"),
    row(RequestDirective::SpawnTimeout, Some("spawn-timeout"), &[], &[("pmix.timeout", "PMIX_TIMEOUT"), ("pmix.sp.time", "PMIX_SPAWN_TIMEOUT")],
        "how many seconds the start may take"),
    row(RequestDirective::ForwardStdin, None, &[], &[("pmix.fwd.stdin", "PMIX_FWD_STDIN")],
        "ranks read the input that is [pushed](pmix-output.md#input-for-others) to them"),
    row(RequestDirective::StdinTarget, Some("stdin"), &["ompi_stdin_target"], &[("pmix.stdin", "PMIX_STDIN_TGT")],
        "the ranks that read it (one, `all`, `none`; the first by default)"),
    row(RequestDirective::ForwardStdout, None, &[], &[("pmix.fwd.stdout", "PMIX_FWD_STDOUT")],
        "for [tools](tools.md#spawning) alone: they get the output"),
    row(RequestDirective::ForwardStderr, None, &[], &[("pmix.fwd.stderr", "PMIX_FWD_STDERR")],
        "the same for standard error"),
    row(RequestDirective::StopOnExec, Some("stop-at exec"), &[], &[("pmix.dbg.exec", "PMIX_DEBUG_STOP_ON_EXEC")],
        "ranks that [stop](debugging.md) before their program begins"),
    row(RequestDirective::StopInInit, Some("stop-at init"), &[], &[("pmix.dbg.init", "PMIX_DEBUG_STOP_IN_INIT")],
        "ranks that wait in `PMIx_Init` for a debugger"),
    row(RequestDirective::StopInApp, None, &[], &[("pmix.dbg.notify", "PMIX_DEBUG_STOP_IN_APP")],
        "ranks that will wait somewhere in their program for a debugger"),
    row(RequestDirective::DebuggerDaemons, None, &[], &[("pmix.debugger", "PMIX_DEBUGGER_DAEMONS")],
        "the processes are daemons of a [debugger](tools.md)"),
    row(RequestDirective::DebugTarget, None, &[], &[("pmix.dbg.tgt", "PMIX_DEBUG_TARGET")],
        "the processes that these debug"),
    row(RequestDirective::DebugJob, None, &[], &[("pmix.dbg.job", "PMIX_DEBUG_JOB")],
        "the same up to PMIx 3, for a whole job"),
    row(RequestDirective::DaemonsPerNode, None, &[], &[("pmix.dbg.dpnd", "PMIX_DEBUG_DAEMONS_PER_NODE")],
        "how many daemons a node of that job gets"),
    row(RequestDirective::DaemonsPerProc, None, &[], &[("pmix.dbg.dpproc", "PMIX_DEBUG_DAEMONS_PER_PROC")],
        "how many daemons each process of that job gets"),
    row(RequestDirective::Satisfied, None, &["personality"], &[
            ("pmix.pers", "PMIX_PERSONALITY"),
            ("pmix.notecomp", "PMIX_NOTIFY_COMPLETION"),
            ("pmix.cospawn", "PMIX_COSPAWN_APP"),
            ("pmix.wdir.user", "PMIX_WDIR_USER_SPECIFIED"),
            ("pmix.evar.hvstd", "PMIX_ENVARS_HARVESTED"),
            ("pmix.euid", "PMIX_USERID"),
            ("pmix.egid", "PMIX_GRPID"),
            ("pmix.req.client", "PMIX_REQUESTOR_IS_CLIENT"),
            ("pmix.req.tool", "PMIX_REQUESTOR_IS_TOOL"),
        ],
        ""),
];

impl RequestDirective {
    /// Returns the directive of a key of an `MPI_Info`, or of an attribute by its value or its name.
    pub fn from_key(key: &str) -> Option<Self> {
        let mut rows = DIRECTIVES.iter();
        let found = rows.find(|row| {
            let mut attributes = row.attributes.iter();
            row.keys.contains(&key) || attributes.any(|(value, name)| [value, name].contains(&&key))
        })?;
        Some(found.directive)
    }
}

/// Returns the attributes that a spawn supports, separated by commas, for queries.
pub fn supported_attributes() -> String {
    let all = DIRECTIVES.iter().flat_map(|row| row.attributes);
    let values = all
        .map(|(value, _)| *value)
        .filter(|value| value.starts_with("pmix."));
    values.collect::<Vec<_>>().join(",")
}

/// Returns the directives as a table of Markdown.
pub fn table() -> String {
    let mut table = String::from("| keys | PMIx attribute | option | |\n|---|---|---|---|\n");
    for row in DIRECTIVES.iter().filter(|row| !row.effect.is_empty()) {
        let keys: Vec<_> = row.keys.iter().map(|key| format!("`{key}`")).collect();
        let names: Vec<_> = row
            .attributes
            .iter()
            .map(|(_, name)| format!("`{name}`"))
            .collect();
        let option = row
            .option
            .map(|option| format!("`--{option}`"))
            .unwrap_or_default();
        let (keys, names) = (keys.join(", "), names.join(", "));
        writeln!(table, "| {keys} | {names} | {option} | {} |", row.effect)
            .expect("a string takes all");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_name_belongs_to_one_directive() {
        let mut known = BTreeSet::new();
        let mut directives = BTreeSet::new();
        for row in DIRECTIVES {
            assert!(
                directives.insert(row.directive),
                "{:?} has two rows",
                row.directive
            );
            let attributes = row
                .attributes
                .iter()
                .flat_map(|(value, name)| [*value, *name]);
            let names: BTreeSet<&str> = attributes.chain(row.keys.iter().copied()).collect();
            for name in names {
                assert!(known.insert(name), "{name} is in two rows");
                assert_eq!(
                    RequestDirective::from_key(name),
                    Some(row.directive),
                    "{name}"
                );
            }
        }
        assert_eq!(RequestDirective::from_key("file"), None);
    }

    #[test]
    fn documentation_has_directive_table() {
        let page = include_str!("../../../docs/spawn.md");
        assert!(
            page.contains(&table()),
            "docs/spawn.md lacks this table:\n{}",
            table()
        );
    }
}
