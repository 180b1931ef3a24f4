//! Options of Open MPI's mpirun that mean something else to `wireup run`, or nothing. Source: the help texts of Open MPI
//! 4.1 and of PRRTE 3.0, which is the launcher of Open MPI 5.

use std::fs;
use std::path::Path;

use super::option_values;
use super::{NO_AGENTS, NO_COUNTERPART};
use crate::cli::foreign_options::option_table::OptionTranslation::{
    Everywhere, Label, Option as Same, Parameter, Redirect, Words,
};
use crate::cli::foreign_options::option_table::{
    Dialect, ForeignOption, LauncherSetting, PATH, PREFIX, RedirectedStream, Tag, computed, habit,
    ignored, instead, parts, setting,
};

const NO_DVM: &str =
    "wireup starts each launch by itself, without a machine of daemons; leave it out";
const NO_XML: &str = "write --json FILE for a stream of JSON";
const DEBUGGER: &str =
    "write --wrap 'xterm -e gdb --args', or start the debugger with: wireup run … as its launcher";
const CPUS: &str = "write --bind-to cpu-list:LIST with the CPUs of each rank";
const PARAMETER_FILE: &str = "write each parameter of {1} as --mca NAME VALUE";
const DETAILS: &str = "wireup shows its decisions with -v, -vv and --log debug";
const PROGRESS: &str = "on a terminal wireup shows the hosts and ranks that a launch waits for";
const NO_REPORT: &str = "wireup ps and --json show the launcher and its ranks";
const RECOVERY: &str = "a rank that fails ends the job unless --on-failure continue is given";
const LOOKED_UP: &str = "hosts are looked up by their agents";

pub(super) const HABITS: &[ForeignOption] = &[
    habit(&["c", "np", "n"], 1, Same("-n")),
    habit(&["N", "npernode"], 1, Same("--ppn")),
    habit(&["npersocket"], 1, Words(&["--map-by", "ppr:{1}:package"])),
    computed(
        &["ppr"],
        option_values::per_resource,
        "write --ppr K:node, K:core, K:l2, K:l3, K:numa or K:socket",
        "--map-by ppr:{1}, or --ppn if the unit is node",
    ),
    habit(&["pernode"], 0, Words(&["--ppn", "1"])),
    habit(&["bynode"], 0, Words(&["--map-by", "node"])),
    habit(&["byslot"], 0, Words(&["--map-by", "slot"])),
    habit(&["bycore"], 0, Words(&["--map-by", "core"])),
    computed(
        &["map-by"],
        option_values::mapping,
        "write --map-by slot, node, hwthread, core, l2, l3, numa, package or ppr:K: and one of these",
        "--map-by; ppr:K:node is --ppn K, and PE=K is --cpus-per-rank K",
    ),
    computed(
        &["rank-by"],
        option_values::ranking,
        "ranks are numbered as they are laid out, see --map-by slot and node; leave it out",
        "nothing for slot and fill, the order of ranks in wireup",
    ),
    computed(
        &["bind-to"],
        option_values::binding,
        "write --bind-to none, hwthread, core, l2, l3, numa, package or cpu-list:LIST",
        "--bind-to; socket is package",
    ),
    habit(&["bind-to-none"], 0, Words(&["--bind-to", "none"])),
    habit(&["bind-to-core"], 0, Words(&["--bind-to", "core"])),
    habit(&["bind-to-socket"], 0, Words(&["--bind-to", "package"])),
    instead(&["cpu-list", "cpu-set", "slot-list"], 1, CPUS),
    habit(
        &["cpus-per-proc", "cpus-per-rank"],
        1,
        Same("--cpus-per-rank"),
    ),
    habit(&["report-bindings"], 0, Words(&["--report-bindings"])),
    habit(&["rankfile", "rf"], 1, Same("--rankfile")),
    habit(&["H", "host", "add-host"], 1, Same("--hosts")),
    habit(
        &[
            "hostfile",
            "machinefile",
            "default-hostfile",
            "add-hostfile",
        ],
        1,
        Same("--hostfile"),
    ),
    habit(&["oversubscribe"], 0, Words(&["--oversubscribe"])),
    habit(&["nooversubscribe"], 0, Words(&["--no-oversubscribe"])),
    instead(&["nolocal"], 0, super::LIST_ONLY),
    habit(&["wdir", "wd"], 1, Same("--wdir")),
    instead(
        &["set-cwd-to-session-dir"],
        0,
        "write --rank-tmpdir, whose directory $WIREUP_TMPDIR names, and change to it in the program",
    ),
    instead(&["tmpdir"], 1, "write TMPDIR={1} in front of the line"),
    PATH,
    PREFIX,
    instead(
        &["app-pmix-prefix", "pmix-prefix"],
        1,
        "write --libpmix {1}/lib/libpmix.so.2",
    ),
    instead(
        &["app"],
        1,
        "write the programs of {1} into the line: mpirun -n 1 ./a : -n 3 ./b",
    ),
    // Variables and parameters.
    habit(&["mca", "gmca", "omca", "gomca"], 2, Parameter("OMPI_MCA_")),
    habit(&["prtemca"], 2, Parameter("")),
    habit(
        &["pmixmca", "gpmixmca"],
        2,
        Everywhere(&["-x", "PMIX_MCA_{1}={2}"]),
    ),
    instead(&["am", "tune"], 1, PARAMETER_FILE),
    habit(&["set-env"], 1, Same("-x")),
    instead(&["unset-env"], 1, "write --wrap 'env -u {1}'"),
    instead(
        &["append-env", "prepend-env"],
        2,
        "write -x NAME=VALUE with the whole value",
    ),
    instead(&["gpu-support"], 1, "write --mca opal_cuda_support {1}"),
    super::GPUS_PER_PROC,
    habit(&["memory-alloc-kinds"], 1, Same("--memory-alloc-kinds")),
    instead(
        &["pset"],
        1,
        "write --pset {1}=RANKS with the ranks of the program",
    ),
    // Files.
    habit(&["s", "preload-binary"], 0, Words(&["--stage=program"])),
    habit(&["preload-files"], 1, Words(&["--stage={1}"])),
    // Output and input.
    habit(
        &["display-map", "display-allocation", "verbose", "v"],
        0,
        Words(&["-v"]),
    ),
    habit(
        &[
            "display-devel-map",
            "display-devel-allocation",
            "display-diffable-map",
            "display-topo",
            "debug-devel",
            "d",
        ],
        0,
        Words(&["-v"]),
    ),
    computed(
        &["display"],
        option_values::display,
        "write --display map, allocation or bind",
        "-v for map, allocation and topo, --report-bindings for bind",
    ),
    habit(&["do-not-launch"], 0, Words(&["--dry-run"])),
    habit(&["tag-output"], 0, Label(Tag::Proc)),
    habit(&["timestamp-output"], 0, Label(Tag::Time)),
    habit(
        &["merge-stderr-to-stdout"],
        0,
        Redirect(RedirectedStream::Merged),
    ),
    parts(
        &["output-filename"],
        option_values::output_files,
        "write --output-filename DIR",
        "--output {1}/1/rank.%r/std%s",
    ),
    parts(
        &["output-directory"],
        option_values::output_directory,
        "write --output-directory DIR",
        "--output {1}/%j/rank.%r/std%s",
    ),
    parts(
        &["output"],
        option_values::outputs,
        "write --tag-output for labels, or --output with a name with %r, which is the rank",
        "--label= for tag, rank and timestamp, --output for dir=DIR",
    ),
    ignored(&["stream-buffering"], 1, super::UNBUFFERED),
    habit(&["stdin"], 1, Same("--stdin")),
    instead(&["xml"], 0, NO_XML),
    instead(&["xml-file"], 1, NO_XML),
    instead(&["xterm"], 1, "write --wrap 'xterm -e' --wrap-ranks {1}"),
    ignored(
        &["q", "quiet"],
        0,
        "wireup prints nothing of its own when all goes well",
    ),
    // The end.
    habit(&["timeout"], 1, Same("--timeout")),
    habit(&["spawn-timeout"], 1, Same("--spawn-timeout")),
    habit(
        &["get-stack-traces", "report-state-on-timeout"],
        0,
        Words(&["--stacks"]),
    ),
    habit(
        &["enable-recovery"],
        0,
        Words(&["--on-failure", "continue"]),
    ),
    habit(&["continuous"], 0, Words(&["--on-failure", "continue"])),
    ignored(&["disable-recovery"], 0, RECOVERY),
    instead(
        &["max-restarts"],
        1,
        "wireup restarts no rank; --restartable admits one that another program restarts",
    ),
    instead(
        &["report-child-jobs-separately"],
        0,
        "write --children independent, whose exit codes do not count",
    ),
    instead(
        &["with-ft"],
        1,
        "write --on-failure continue, with which ranks survive others",
    ),
    computed(
        &["runtime-options"],
        option_values::runtime,
        "write --on-failure continue for recoverable, --dry-run for donotlaunch, --timeout and --stacks",
        "options of the same names; recoverable is --on-failure continue, and donotlaunch is --dry-run",
    ),
    ignored(
        &["forward-signals"],
        1,
        "signals of the launcher go to all ranks",
    ),
    // Debuggers.
    habit(&["stop-on-exec"], 0, Words(&["--stop-at", "exec"])),
    habit(&["stop-in-init"], 0, Words(&["--stop-at", "init"])),
    instead(
        &["stop-in-app"],
        0,
        "write --stop-at init or --stop-at exec",
    ),
    instead(&["debug", "tv"], 0, DEBUGGER),
    instead(&["debugger"], 1, DEBUGGER),
    instead(
        &["output-proctable"],
        0,
        "write `wireup ps --proctable JOB`, while the job runs",
    ),
    ignored(&["report-pid", "report-uri", "report-events"], 1, NO_REPORT),
    // How processes are started, which programs do not notice.
    ignored(&["launch-agent", "max-vm-size"], 1, NO_AGENTS),
    ignored(
        &[
            "novm",
            "noprefix",
            "no-app-prefix",
            "leave-session-attached",
            "debug-daemons",
            "debug-daemons-file",
            "fwd-mpirun-port",
            "enable-instant-on-support",
            "use-regexp",
            "set-sid",
            "no-ready-msg",
            "hetero-nodes",
        ],
        0,
        NO_AGENTS,
    ),
    ignored(&["show-progress"], 0, PROGRESS),
    ignored(&["do-not-resolve"], 0, LOOKED_UP),
    ignored(&["display-comm", "display-comm-finalize"], 0, DETAILS),
    ignored(
        &["use-hwthread-cpus"],
        0,
        "every CPU this process may use is a slot, hardware threads included",
    ),
    ignored(&["allow-run-as-root"], 0, "root may start launches"),
    ignored(
        &["personality"],
        1,
        "wireup detects which MPI a program uses",
    ),
    instead(
        &["ompi-server"],
        1,
        "write --names STORE for names that launches share",
    ),
    instead(
        &["index-argv-by-rank"],
        0,
        "read WIREUP_RANK in the program",
    ),
    instead(&["hnp"], 1, NO_DVM),
    // Open MPI 4 has it without a value.
    instead(&["dvm", "system-server"], 0, NO_DVM),
    instead(
        &["keepalive", "singleton"],
        1,
        "only programs that spawn write it, to prte",
    ),
    instead(&["cf", "cartofile"], 1, NO_COUNTERPART),
];

/// Parameters of the launcher, as variables (`OMPI_MCA_…`, `PRTE_MCA_…`) and behind `--mca` and `--prtemca`.
pub(super) const SETTINGS: &[LauncherSetting] = &[
    setting("MPIEXEC_TIMEOUT", "timeout"),
    setting("hwloc_base_binding_policy", "bind-to"),
    setting("hwloc_default_binding_policy", "bind-to"),
    setting("hwloc_base_bind_to_core", "bind-to-core"),
    setting("hwloc_base_bind_to_socket", "bind-to-socket"),
    setting("hwloc_base_report_bindings", "report-bindings"),
    setting("hwloc_base_use_hwthreads_as_cpus", "use-hwthread-cpus"),
    setting("hwloc_base_cpu_list", "cpu-list"),
    setting("hwloc_base_cpu_set", "cpu-set"),
    setting("hwloc_base_slot_list", "slot-list"),
    setting("hwloc_default_cpu_list", "cpu-list"),
    setting("rmaps_base_mapping_policy", "map-by"),
    setting("rmaps_base_schedule_policy", "map-by"),
    setting("rmaps_default_mapping_policy", "map-by"),
    setting("rmaps_base_ranking_policy", "rank-by"),
    setting("rmaps_default_ranking_policy", "rank-by"),
    setting("rmaps_base_oversubscribe", "oversubscribe"),
    setting("rmaps_base_no_oversubscribe", "nooversubscribe"),
    setting("rmaps_base_no_schedule_local", "nolocal"),
    setting("rmaps_base_bynode", "bynode"),
    setting("rmaps_base_byslot", "byslot"),
    setting("rmaps_base_bycore", "bycore"),
    setting("rmaps_base_pernode", "pernode"),
    setting("rmaps_ppr_pernode", "pernode"),
    setting("rmaps_base_n_pernode", "npernode"),
    setting("rmaps_ppr_n_pernode", "npernode"),
    setting("rmaps_base_n_persocket", "npersocket"),
    setting("rmaps_ppr_n_persocket", "npersocket"),
    setting("rmaps_base_pattern", "ppr"),
    setting("rmaps_ppr_pattern", "ppr"),
    setting("rmaps_base_cpus_per_proc", "cpus-per-proc"),
    setting("rmaps_base_cpus_per_rank", "cpus-per-rank"),
    setting("rmaps_base_display_map", "display-map"),
    setting("rmaps_base_display_devel_map", "display-devel-map"),
    setting("rmaps_base_display_diffable_map", "display-diffable-map"),
    setting("rmaps_base_display_topo_with_map", "display-topo"),
    setting("rmaps_rank_file_path", "rankfile"),
    setting("orte_rankfile", "rankfile"),
    setting("prte_rankfile", "rankfile"),
    setting("orte_default_hostfile", "default-hostfile"),
    setting("prte_default_hostfile", "default-hostfile"),
    setting("orte_default_dash_host", "host"),
    setting("prte_default_dash_host", "host"),
    setting("orte_tag_output", "tag-output"),
    setting("prte_tag_output", "tag-output"),
    setting("orte_timestamp_output", "timestamp-output"),
    setting("prte_timestamp_output", "timestamp-output"),
    setting("orte_xml_output", "xml"),
    setting("orte_xterm", "xterm"),
    setting("prte_xterm", "xterm"),
    setting(
        "iof_base_redirect_app_stderr_to_stdout",
        "merge-stderr-to-stdout",
    ),
    setting("orte_do_not_launch", "do-not-launch"),
    setting("prte_do_not_launch", "do-not-launch"),
    setting("orte_display_alloc", "display-allocation"),
    setting("ras_base_display_alloc", "display-allocation"),
    setting("orte_display_devel_alloc", "display-devel-allocation"),
    setting("ras_base_display_devel_alloc", "display-devel-allocation"),
    setting(
        "orte_report_child_jobs_separately",
        "report-child-jobs-separately",
    ),
    setting("orte_enable_recovery", "enable-recovery"),
    setting("orte_report_launch_progress", "show-progress"),
    setting("orte_launch_agent", "launch-agent"),
    setting("prte_launch_agent", "launch-agent"),
];

/// Parameters that are not read; of the first only those of the launcher.
pub(super) const IDLE: &[&str] = &["OMPI_MCA_", "PRTE_MCA_"];

/// A line for each file of parameters in a home directory that sets some of the launcher.
pub(super) fn idle_files(dialect: &Dialect, home: &Path) -> Vec<String> {
    let note = |file: &str| {
        let path = home.join(file);
        let text = fs::read_to_string(&path).ok()?;
        let assigned = text.lines().filter_map(|line| line.split_once('='));
        let names = assigned.map(|(name, _)| name.trim());
        let names: Vec<&str> = names.filter(|name| dialect.is_for_launcher(name)).collect();
        (!names.is_empty()).then(|| {
            format!(
                "{} sets parameters of a launcher that does not run here ({}); write --mca NAME VALUE",
                path.display(),
                names.join(", ")
            )
        })
    };
    let files = [".openmpi/mca-params.conf", ".prte/mca-params.conf"];
    files.into_iter().filter_map(note).collect()
}
