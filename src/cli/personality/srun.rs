//! Options of srun that mean something else to `wireup run`, or nothing. Source: srun(1) of Slurm 22.05.

use std::ffi::OsString;

use super::option_values;
use crate::cli::foreign_options::option_table::OptionTranslation::{
    Computed, Option as Same, Redirect, Words,
};
use crate::cli::foreign_options::option_table::{
    ForeignOption, LauncherSetting, RedirectedStream, UNBUFFERED, computed, habit, ignored,
    instead, parts, setting,
};

const NO_STEP: &str = "wireup starts a launch on all nodes that it is given; leave it out";
const NO_LAYOUT: &str =
    "wireup knows nodes and no sockets; leave it out, and write --ntasks-per-node";
const OF_ALLOCATION: &str = "it belongs to the allocation, which wireup does not make";
const OF_BATCH: &str = "it is for a job that waits in a queue, and wireup starts at once";
const NO_LIMIT: &str = "ranks that run when others have ended are not limited but by --time";
const NO_SIGNAL: &str = "ranks get SIGTERM when the time limit is over";
const LIMITS: &str = "ranks have the resource limits of wireup, or those of --rlimit";
const NO_DAEMON: &str = "no daemon of Slurm takes part in the launch";
const AS_USER: &str = "start the launch as that user, as with sudo -u USER or setpriv";
const NO_X11: &str = "set DISPLAY for the ranks with --export=ALL,DISPLAY=HOST:N";
const SHARED_NODES: &str = "launches share the CPUs of the allocation";
const OWN_SOCKETS: &str = "wireup reserves no ports: programs get free ones from the system";
const AROUND: &str = "run {1} in the script, in front of the launch or behind it";
const AROUND_TASKS: &str = "write --wrap with a command that runs {1} and then the program";
const ALL_GPUS: &str = "GPUs are counted by the allocation; --gpus-per-task N gives them to ranks";

pub(super) const HABITS: &[ForeignOption] = &[
    habit(&["n", "ntasks"], 1, Same("-n")),
    computed(
        &["N", "nodes"],
        option_values::nodes,
        "write -N K with one number",
        "--nodes {1}; of a range the smaller number",
    ),
    computed(
        &["c", "cpus-per-task"],
        option_values::cpus,
        "write -c with a number",
        "--cpus-per-rank {1}",
    ),
    habit(&["ntasks-per-node"], 1, Same("--ppn")),
    habit(&["w", "nodelist"], 1, Same("--hosts")),
    habit(&["F", "nodefile"], 1, Same("--hostfile")),
    instead(&["ntasks-per-socket", "ntasks-per-gpu"], 1, NO_LAYOUT),
    computed(
        &["m", "distribution"],
        option_values::distribution,
        "write -m block or -m cyclic; -m arbitrary needs SLURM_HOSTFILE, or write --rankfile FILE",
        "--map-by slot for block, --map-by node for cyclic, --rankfile $SLURM_HOSTFILE for arbitrary",
    ),
    habit(&["O", "overcommit"], 0, Words(&["--oversubscribe"])),
    habit(&["l", "label"], 0, Words(&["--label=%R: "])),
    habit(&["o", "output"], 1, Redirect(RedirectedStream::Output)),
    habit(&["e", "error"], 1, Redirect(RedirectedStream::Error)),
    habit(&["i", "input"], 1, Redirect(RedirectedStream::Input)),
    computed(
        &["export"],
        option_values::export,
        "write ALL, NONE, NAME or NAME=VALUE",
        "-x for NAME=VALUE, --env for NAME and NONE",
    ),
    habit(&["D", "chdir"], 1, Same("--wdir")),
    computed(
        &["t", "time"],
        option_values::time,
        "write MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS or DAYS-HOURS",
        "--timeout with this time in seconds",
    ),
    computed(
        &["mpi"],
        option_values::interface,
        "write none, pmi2 or pmix",
        "--pmi pmi2 or --pmi pmix",
    ),
    computed(
        &["mem-bind"],
        option_values::mem_bind,
        "write --mem-bind none, local or prefer",
        "--mem-bind {1}",
    ),
    computed(
        &["cpu-bind"],
        option_values::cpu_bind,
        "write --cpu-bind none, threads, cores, sockets, ldoms, map_cpu:LIST or mask_cpu:LIST",
        "--bind-to, with --report-bindings for verbose",
    ),
    computed(
        &["gpus-per-task"],
        option_values::gpus,
        "write --gpus-per-task N; wireup gives out the GPUs of the host, and reserves none",
        "--gpus-per-rank {1}",
    ),
    parts(
        &["gres"],
        option_values::gres,
        "write --gres=gpu:N",
        "-x CUDA_VISIBLE_DEVICES and variables of other vendors, for gpu:N",
    ),
    computed(
        &["gpus-per-node"],
        option_values::gpus_of_host,
        "write --gpus-per-node N",
        "-x CUDA_VISIBLE_DEVICES and variables of other vendors",
    ),
    ignored(
        &["G", "gpus", "gpus-per-socket", "cpus-per-gpu", "gpu-freq"],
        1,
        ALL_GPUS,
    ),
    instead(
        &["gpu-bind", "accel-bind"],
        1,
        "write --gpus-per-task N, which gives each rank the GPUs that are near its CPUs",
    ),
    habit(&["pty"], 0, Words(&["--pty", "0"])),
    habit(&["v", "verbose"], 0, Words(&["-v"])),
    habit(&["-K0"], 0, Words(&["--no-kill-on-bad-exit"])),
    habit(&["K"], 0, Words(&["--kill-on-bad-exit"])),
    habit(&["bcast"], 0, Words(&["--stage"])),
    habit(
        &["send-libs"],
        0,
        Computed(
            option_values::send_libs,
            "write --send-libs=yes or no",
            "--stage, except for no",
        ),
    ),
    instead(
        &["container"],
        1,
        "write --image DIRECTORY with the root directory in the bundle",
    ),
    instead(
        &["multi-prog"],
        0,
        "write the programs of the file into the line: srun -n 1 ./a : -n 3 ./b",
    ),
    instead(&["prolog", "epilog"], 1, AROUND),
    instead(&["task-prolog", "task-epilog"], 1, AROUND_TASKS),
    // What Slurm shows or decides, and programs do not notice.
    ignored(
        &["J", "job-name", "comment", "wckey", "mcs-label"],
        1,
        "wireup names jobs itself, and `wireup ps` shows them",
    ),
    ignored(&["u", "unbuffered"], 0, UNBUFFERED),
    ignored(
        &["exact", "exclusive", "overlap", "s", "oversubscribe"],
        0,
        SHARED_NODES,
    ),
    ignored(
        &["Q", "quiet"],
        0,
        "wireup prints nothing of its own when all goes well",
    ),
    ignored(
        &[
            "A",
            "account",
            "p",
            "partition",
            "q",
            "qos",
            "C",
            "constraint",
            "cluster-constraint",
            "prefer",
        ],
        1,
        OF_ALLOCATION,
    ),
    ignored(
        &[
            "mem",
            "mem-per-cpu",
            "mem-per-gpu",
            "mincpus",
            "tmp",
            "reservation",
            "L",
            "licenses",
            "M",
            "clusters",
            "bb",
            "bbf",
            "S",
            "core-spec",
            "thread-spec",
            "switches",
            "network",
            "gres-flags",
            "power",
            "cpu-freq",
            "jobid",
            "het-group",
            "sockets-per-node",
            "cores-per-socket",
            "threads-per-core",
            "ntasks-per-core",
            "B",
            "extra-node-info",
            "profile",
            "acctg-freq",
            "slurmd-debug",
            "T",
            "threads",
            "bcast-exclude",
        ],
        1,
        OF_ALLOCATION,
    ),
    ignored(
        &[
            "contiguous",
            "spread-job",
            "use-min-nodes",
            "reboot",
            "compress",
            "E",
            "preserve-env",
        ],
        0,
        OF_ALLOCATION,
    ),
    ignored(
        &[
            "b",
            "begin",
            "d",
            "dependency",
            "deadline",
            "delay-boot",
            "mail-type",
            "mail-user",
            "priority",
            "time-min",
        ],
        1,
        OF_BATCH,
    ),
    ignored(
        &["H", "hold", "I", "immediate", "nice", "Z", "no-allocate"],
        0,
        OF_BATCH,
    ),
    ignored(&["W", "wait"], 1, NO_LIMIT),
    ignored(&["signal"], 1, NO_SIGNAL),
    ignored(&["msg-timeout"], 1, NO_DAEMON),
    instead(&["uid", "gid"], 1, AS_USER),
    habit(&["test-only"], 0, Words(&["--dry-run"])),
    instead(&["x11"], 0, NO_X11),
    ignored(&["propagate"], 0, LIMITS),
    ignored(&["k", "no-kill"], 0, "a lost host ends the job"),
    ignored(&["resv-ports"], 0, OWN_SOCKETS),
    ignored(
        &["X", "disable-status", "quit-on-interrupt"],
        0,
        "the first Ctrl-C ends the job",
    ),
    instead(
        &["open-mode"],
        1,
        "write >> FILE behind the line for output that is appended",
    ),
    instead(&["r", "relative", "x", "exclude"], 1, NO_STEP),
    computed(
        &["hint"],
        option_values::hint,
        "write --cpu-bind cores or threads, and -c for the CPUs of each task",
        "--bind-to core for nomultithread, --bind-to hwthread for multithread",
    ),
];

/// Variables that srun reads in place of options.
pub(super) const SETTINGS: &[LauncherSetting] = &[
    setting("SLURM_NTASKS", "ntasks"),
    setting("SLURM_NPROCS", "ntasks"),
    setting("SLURM_NNODES", "nodes"),
    setting("SLURM_JOB_NUM_NODES", "nodes"),
    setting("SLURM_NTASKS_PER_NODE", "ntasks-per-node"),
    setting("SLURM_DISTRIBUTION", "distribution"),
    setting("SRUN_CPUS_PER_TASK", "cpus-per-task"),
    setting("SLURM_CPU_BIND", "cpu-bind"),
    setting("SLURM_MEM_BIND", "mem-bind"),
    setting("SLURM_EXPORT_ENV", "export"),
    setting("SLURM_GPUS_PER_TASK", "gpus-per-task"),
    setting("SLURM_GPUS_PER_NODE", "gpus-per-node"),
    setting("SLURM_STEP_GRES", "gres"),
    setting("SLURM_GPUS", "gpus"),
    setting("SLURM_GPU_BIND", "gpu-bind"),
    setting("SLURM_HINT", "hint"),
    setting("SLURM_KILL_BAD_EXIT", "K"),
    setting("SLURM_LABELIO", "label"),
    setting("SLURM_MPI_TYPE", "mpi"),
    setting("SLURM_STDINMODE", "input"),
    setting("SLURM_STDOUTMODE", "output"),
    setting("SLURM_STDERRMODE", "error"),
    setting("SLURM_TIMELIMIT", "time"),
    setting("SLURM_REMOTE_CWD", "chdir"),
    setting("SLURM_WORKING_DIR", "chdir"),
    setting("SLURM_DEBUG", "verbose"),
    setting("SLURM_BCAST", "bcast"),
    setting("SLURM_PROLOG", "prolog"),
    setting("SLURM_EPILOG", "epilog"),
    setting("SLURM_TASK_PROLOG", "task-prolog"),
    setting("SLURM_TASK_EPILOG", "task-epilog"),
    setting("SLURM_OPEN_MODE", "open-mode"),
    setting("SLURM_ACCOUNT", "account"),
    setting("SLURM_PARTITION", "partition"),
    setting("SLURM_QOS", "qos"),
    setting("SLURM_CONSTRAINT", "constraint"),
    setting("SLURM_RESERVATION", "reservation"),
    setting("SLURM_EXCLUSIVE", "exclusive"),
    setting("SLURM_EXACT", "exact"),
    setting("SLURM_OVERCOMMIT", "overcommit"),
    setting("SLURM_OVERLAP", "overlap"),
    setting("SLURM_MEM_PER_NODE", "mem"),
    setting("SLURM_MEM_PER_CPU", "mem-per-cpu"),
    setting("SLURM_SIGNAL", "signal"),
    setting("SLURM_WAIT", "wait"),
    setting("SLURM_THREADS_PER_CORE", "threads-per-core"),
    setting("SLURM_NTASKS_PER_CORE", "ntasks-per-core"),
    setting("SLURM_NTASKS_PER_SOCKET", "ntasks-per-socket"),
    setting("SLURM_ACCTG_FREQ", "acctg-freq"),
    setting("SLURM_BCAST_EXCLUDE", "bcast-exclude"),
    setting("SLURM_BURST_BUFFER", "bb"),
    setting("SLURM_CLUSTERS", "clusters"),
    setting("SLURM_COMPRESS", "compress"),
    setting("SLURM_CORE_SPEC", "core-spec"),
    setting("SLURM_CPU_FREQ_REQ", "cpu-freq"),
    setting("SLURM_CPUS_PER_GPU", "cpus-per-gpu"),
    setting("SLURM_DELAY_BOOT", "delay-boot"),
    setting("SLURM_DEPENDENCY", "dependency"),
    setting("SLURM_DISABLE_STATUS", "disable-status"),
    setting("SLURM_GPU_FREQ", "gpu-freq"),
    setting("SLURM_GRES", "gres"),
    setting("SLURM_GRES_FLAGS", "gres-flags"),
    setting("SLURM_IMMEDIATE", "immediate"),
    setting("SLURM_JOB_NAME", "job-name"),
    setting("SLURM_MEM_PER_GPU", "mem-per-gpu"),
    setting("SLURM_NETWORK", "network"),
    setting("SLURM_NO_KILL", "no-kill"),
    setting("SLURM_NTASKS_PER_GPU", "ntasks-per-gpu"),
    setting("SLURM_POWER", "power"),
    setting("SLURM_PROFILE", "profile"),
    setting("SLURM_REQ_SWITCH", "switches"),
    setting("SLURM_RESV_PORTS", "resv-ports"),
    setting("SLURM_SEND_LIBS", "send-libs"),
    setting("SLURM_SPREAD_JOB", "spread-job"),
    setting("SLURM_THREAD_SPEC", "thread-spec"),
    setting("SLURM_THREADS", "threads"),
    setting("SLURM_UNBUFFEREDIO", "unbuffered"),
    setting("SLURM_USE_MIN_NODES", "use-min-nodes"),
    setting("SLURM_WAIT4SWITCH", "switches"),
    setting("SLURM_WCKEY", "wckey"),
    setting("SLURMD_DEBUG", "slurmd-debug"),
    setting("SRUN_CONTAINER", "container"),
    setting("SRUN_EXPORT_ENV", "export"),
];

/// Variables without an option that are not read.
pub(super) const IDLE: &[&str] = &[
    "PMI_FANOUT",
    "PMI_FANOUT_OFF_HOST",
    "PMI_TIME",
    "SLURM_CONF",
    "SLURM_DEBUG_FLAGS",
    "SLURM_DIST_PLANESIZE",
    "SLURM_EXIT_ERROR",
    "SLURM_EXIT_IMMEDIATE",
    "SLURM_PMI_KVS_NO_DUP_KEYS",
    "SLURM_SRUN_REDUCE_TASK_EXIT_MSG",
    "SLURM_STEP_KILLED_MSG_NODE_ID",
    "SLURM_TEST_EXEC",
    "SLURM_UMASK",
];

/// Variables that batch jobs also have, where the allocation itself gives the same more exactly.
const OF_JOBS: [&str; 7] = [
    "SLURM_JOB_NAME",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
];

/// Whether a variable of [`SETTINGS`] is one for srun: none is in a task, which has those of its step.
pub(super) fn is_read(name: &str, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_set = |name| variable(name).is_some();
    // Higher numbers are those of the script of a job and of its shell.
    let step = variable("SLURM_STEP_ID").and_then(|step| step.to_str()?.parse::<u64>().ok());
    let in_task = is_set("WIREUP_RANK") || step.is_some_and(|step| step < 0xffff_fff0);
    let is_overridden = name == "SLURM_EXPORT_ENV" && is_set("SRUN_EXPORT_ENV");
    !(in_task || is_overridden || is_set("SLURM_JOB_ID") && OF_JOBS.contains(&name))
}

/// Returns srun's defaults: one task for each node, and tasks spread evenly over nodes.
pub(super) fn defaults(option: impl Fn(&str) -> Option<OsString>) -> Vec<OsString> {
    let number = |name: &str| option(name).and_then(|text| text.to_str()?.parse::<u32>().ok());
    let (tasks, nodes, each) = (number("-n"), number("--nodes"), number("--ppn"));
    let mut words: Vec<OsString> = Vec::new();
    let each = match (tasks, nodes) {
        _ if each.is_some() => None,
        (None, Some(_)) => Some(1),
        (Some(tasks), Some(nodes)) => Some(tasks.div_ceil(nodes)),
        _ => None,
    };
    if let Some(each) = each {
        words.extend(["--ppn".into(), each.to_string().into()]);
    }
    // Ranks have the variable too, and their launches stay on their node.
    let set = |name: &str| std::env::var_os(name).is_some();
    let in_job = set("SLURM_JOB_ID") && !set("WIREUP_RANK");
    let placed = nodes.is_some() || option("--ppn").is_some();
    if tasks.is_none() && !placed && !in_job {
        words.extend(["-n".into(), "1".into()]);
    }
    words
}

/// Translates the name of a file of srun's to a pattern of wireup's.
///
/// # Errors
/// Advice on the replacement, if the name has no equivalent.
pub(super) fn file(name: &[u8]) -> Result<Vec<u8>, String> {
    if let Ok(name) = std::str::from_utf8(name)
        && name.parse::<u32>().is_ok()
    {
        return Err(format!(
            "write a name with %t, as out.%t: out.{name} is then the file of that task"
        ));
    }
    let variable = |name: &str| std::env::var(name).ok();
    let pattern = option_values::pattern(name, |code| {
        Some(match code {
            b't' => "%r".to_owned(),
            b'N' => "%h".to_owned(),
            b'n' => "%n".to_owned(),
            b'%' => "%%".to_owned(),
            b'j' | b'J' | b'A' => {
                variable("SLURM_JOB_ID").unwrap_or_else(|| std::process::id().to_string())
            }
            b'u' => variable("USER").unwrap_or_default(),
            b'x' => variable("SLURM_JOB_NAME").unwrap_or_default(),
            _ => return None,
        })
    });
    pattern.ok_or_else(|| "in names of files write %t, %N, %n, %j, %u, %x or %%".to_owned())
}
