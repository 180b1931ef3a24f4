//! Options of Hydra's mpiexec (MPICH, Intel MPI) that mean something else to `wireup run`, or nothing. Source: the help
//! texts of MPICH 4.0 and 5.0 and of Intel MPI 2021.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use super::option_values;
use super::{NO_AGENTS, NO_COUNTERPART};
use crate::cli::foreign_options::option_table::OptionTranslation::{
    Everywhere, Option as Same, Redirect, Show, Variable, VariableEverywhere, Words,
};
use crate::cli::foreign_options::option_table::{
    ForeignOption, LauncherSetting, Page, RedirectedStream, computed, habit, ignored, instead,
    setting,
};

const TOOL: &str = "write --wrap with the command of the tool in front of the program, and --wrap-ranks with the ranks";
const OWN_TOPOLOGY: &str = "wireup reads the topology with hwloc where an option needs it";
const HOST_NAMES: &str = "ranks get the names of the hosts as they are given";
const REPORTED: &str =
    "the report of a failure names each rank that failed, and --json each exit code";
const OWN_NAMES: &str = "wireup serves names itself; --names shares them between launches";

pub(super) const HABITS: &[ForeignOption] = &[
    habit(&["timeout"], 1, Same("--timeout")),
    habit(&["n", "np"], 1, Same("-n")),
    habit(&["ppn", "perhost", "grr"], 1, Same("--ppn")),
    habit(&["rr"], 0, Words(&["--ppn", "1"])),
    habit(&["f", "machinefile", "machine"], 1, Same("--hostfile")),
    habit(&["hosts", "host", "hosts-group"], 1, Same("--hosts")),
    habit(&["wdir"], 1, Same("--wdir")),
    habit(&["gwdir"], 1, Everywhere(&["--wdir", "{1}"])),
    habit(&["env"], 2, Variable),
    habit(&["genv"], 2, VariableEverywhere),
    ignored(&["genvall", "envall"], 0, "ranks inherit the environment"),
    habit(&["envlist"], 1, Words(&["--env", "{1},"])),
    habit(&["genvlist"], 1, Everywhere(&["--env", "{1},"])),
    habit(&["envnone"], 0, Words(&["--env", "none"])),
    habit(&["genvnone"], 0, Everywhere(&["--env", "none"])),
    computed(
        &["bind-to", "binding"],
        option_values::binding,
        "write -bind-to none, hwthread, core, l2, l3, numa, socket or user:LIST",
        "--bind-to; socket is package, and user:LIST is cpu-list:LIST",
    ),
    computed(
        &["cpu-bind"],
        option_values::binding,
        "write --bind-to none, hwthread, core, l2, l3, numa, socket or cpu-list:LIST",
        "--bind-to; socket is package",
    ),
    computed(
        &["map-by"],
        option_values::mapping,
        "write -map-by slot, node, hwthread, core, l2, l3, numa or socket",
        "--map-by; socket is package",
    ),
    computed(
        &["membind"],
        option_values::memory,
        "write --mem-bind none, local, prefer or interleave",
        "--mem-bind; firsttouch is local, and nexttouch is prefer",
    ),
    super::GPUS_PER_PROC,
    habit(&["memory-alloc-kinds"], 1, Same("--memory-alloc-kinds")),
    habit(&["l", "prepend-rank"], 0, Words(&["--label"])),
    computed(
        &["prepend-pattern"],
        label,
        "write %r for the rank, %g for the process group, %p for the number of the host, %h for the host, %t for seconds",
        "--label=, in which %p is %n",
    ),
    habit(&["prepend-timestamp"], 0, Words(&["--timestamps"])),
    habit(&["outfile-pattern"], 1, Redirect(RedirectedStream::Output)),
    habit(&["errfile-pattern"], 1, Redirect(RedirectedStream::Error)),
    habit(&["s"], 1, Same("--stdin")),
    habit(&["verbose", "print-rank-map", "prot"], 0, Words(&["-v"])),
    habit(
        &["disable-auto-cleanup"],
        0,
        Words(&["--no-kill-on-bad-exit"]),
    ),
    instead(&["skip-launch-node", "nolocal"], 0, super::LIST_ONLY),
    instead(
        &["rankmap"],
        1,
        "write --layout NODE*RANKS,… for the ranks of each node in turn, or --rankfile FILE",
    ),
    instead(
        &["usize"],
        1,
        "the universe size is the number of slots of the launch; name them: -hosts n1:SLOTS",
    ),
    instead(
        &["configfile"],
        1,
        "write the programs of {1} into the line: mpiexec -n 1 ./a : -n 3 ./b",
    ),
    instead(
        &["gdb"],
        0,
        "write --wrap 'xterm -e gdb --args', or `wireup debug` for a running job",
    ),
    instead(&["gdb-args"], 1, "write --wrap 'xterm -e gdb {1} --args'"),
    instead(
        &["tv"],
        0,
        "write --wrap with the command of the debugger, or start it with -a: totalview -args wireup run …",
    ),
    instead(&["gtool", "gtoolfile"], 1, TOOL),
    instead(&["aps", "mps"], 0, "write aps in front of the program"),
    instead(
        &["check_mpi", "trace"],
        0,
        "write -x LD_PRELOAD=LIBRARY with the library of the tool",
    ),
    instead(&["tune"], 1, "write -x I_MPI_TUNING_BIN={1}"),
    ignored(
        &[
            "launcher",
            "bootstrap",
            "launcher-exec",
            "bootstrap-exec",
            "rmk",
            "branch-count",
        ],
        1,
        NO_AGENTS,
    ),
    ignored(
        &["enable-x", "disable-x", "pmi-port", "hybrid-hosts"],
        0,
        NO_AGENTS,
    ),
    ignored(&["demux", "iface", "localhost"], 1, super::OWN_SOCKETS),
    ignored(&["topolib"], 1, OWN_TOPOLOGY),
    ignored(
        &["order-nodes"],
        1,
        "nodes are used in the order in which they are given",
    ),
    ignored(&["disable-hostname-propagation"], 0, HOST_NAMES),
    ignored(&["print-all-exitcodes"], 0, REPORTED),
    ignored(&["silent-abort"], 0, "one line reports an abort"),
    ignored(&["nameserver"], 1, OWN_NAMES),
    habit(&["profile"], 0, Words(&["--report", "-"])),
    habit(&["info"], 0, Show(Page::Version)),
    instead(&["soft", "arch", "file"], 1, NO_COUNTERPART),
];

/// Variables of Hydra, and those of Intel MPI's.
pub(super) const SETTINGS: &[LauncherSetting] = &[
    setting("MPIEXEC_TIMEOUT", "timeout"),
    setting("I_MPI_MPIEXEC_TIMEOUT", "timeout"),
    setting("I_MPI_JOB_TIMEOUT", "timeout"),
    setting("HYDRA_HOST_FILE", "f"),
    setting("I_MPI_HYDRA_HOST_FILE", "f"),
    setting("I_MPI_HYDRA_HOSTS_GROUP", "hosts-group"),
    setting("HYDRA_PPN", "ppn"),
    setting("I_MPI_PERHOST", "ppn"),
    setting("HYDRA_BINDING", "bind-to"),
    setting("HYDRA_MAPPING", "map-by"),
    setting("HYDRA_MEMBIND", "membind"),
    setting("HYDRA_DEBUG", "verbose"),
    setting("I_MPI_HYDRA_DEBUG", "verbose"),
    setting("I_MPI_GTOOL", "gtool"),
    setting("I_MPI_FAULT_CONTINUE", "disable-auto-cleanup"),
    setting("HYDRA_LAUNCHER", "launcher"),
    setting("HYDRA_BOOTSTRAP", "launcher"),
    setting("I_MPI_HYDRA_BOOTSTRAP", "launcher"),
    setting("HYDRA_LAUNCHER_EXEC", "launcher-exec"),
    setting("HYDRA_BOOTSTRAP_EXEC", "launcher-exec"),
    setting("I_MPI_HYDRA_BOOTSTRAP_EXEC", "launcher-exec"),
    setting("HYDRA_RMK", "rmk"),
    setting("I_MPI_HYDRA_RMK", "rmk"),
    setting("HYDRA_IFACE", "iface"),
    setting("I_MPI_HYDRA_IFACE", "iface"),
    setting("HYDRA_TOPOLIB", "topolib"),
    setting("I_MPI_HYDRA_TOPOLIB", "topolib"),
    setting("I_MPI_HYDRA_NAMESERVER", "nameserver"),
    setting("I_MPI_HYDRA_BRANCH_COUNT", "branch-count"),
    setting("HYDRA_HOSTNAME_PROPAGATION", "disable-hostname-propagation"),
];

/// Variables that are not read.
pub(super) const IDLE: &[&str] = &[
    "HYDRA_",
    "I_MPI_HYDRA_",
    "I_MPI_JOB_",
    "I_MPI_FAULT_",
    "I_MPI_PRINT_PROT",
    "MPIEXEC_",
];

/// Translates the label of lines.
fn label(text: &str) -> Option<Vec<OsString>> {
    let pattern = option_values::pattern(text.as_bytes(), |code| {
        Some(match code {
            b'r' => "%r",
            b'g' => "%g",
            b'p' => "%n",
            b'h' => "%h",
            b't' => "%t",
            b'%' => "%%",
            _ => return None,
        })
    });
    let mut label = OsString::from("--label=");
    label.push(OsString::from_vec(pattern?));
    Some(vec![label])
}

/// Translates the name of a file.
///
/// # Errors
/// Advice on the replacement, if the name has no equivalent.
pub(super) fn file(name: &[u8]) -> Result<Vec<u8>, String> {
    let pattern = option_values::pattern(name, |code| {
        Some(match code {
            b'r' => "%r",
            b'g' => "0",
            b'p' => "%n",
            b'h' => "%h",
            b'%' => "%%",
            _ => return None,
        })
    });
    pattern.ok_or_else(|| {
        "in names of files write %r for the rank, %h for the host or %p for its number".to_owned()
    })
}
