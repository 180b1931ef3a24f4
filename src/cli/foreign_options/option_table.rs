//! Table of the options of Hydra, Open MPI and Slurm, and their translations.

use std::ffi::{OsStr, OsString};

/// Option of another launcher: its names, number of values and translation.
#[derive(Debug)]
pub(in crate::cli) struct ForeignOption {
    /// Names without `=VALUE`, valid after one dash and after two; a name written with its dash is valid only so.
    pub(in crate::cli) names: &'static [&'static str],
    /// Number of following words that are its values.
    pub(in crate::cli) values: usize,
    pub(in crate::cli) meaning: OptionTranslation,
}

/// Writes a name of a [`ForeignOption`] with its dashes.
pub(in crate::cli) fn with_dashes(name: &str) -> String {
    let dashes = match name.len() {
        _ if name.starts_with('-') => "",
        1 => "-",
        _ => "--",
    };
    format!("{dashes}{name}")
}

/// Function that translates a value of another launcher to words of wireup; `None` if it has no translation.
pub(in crate::cli) type TranslatedWords = std::option::Option<Vec<OsString>>;

/// A stream of the ranks that can be redirected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cli) enum RedirectedStream {
    Input,
    Output,
    Error,
    /// Standard error is merged into standard output; without a file.
    Merged,
}

/// Translation of a value that names several things.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct ValueParts {
    /// Words of wireup.
    pub(in crate::cli) words: Vec<OsString>,
    pub(in crate::cli) tags: Vec<Tag>,
    /// Whether standard error is merged into standard output.
    pub(in crate::cli) is_merged: bool,
    /// Notes about differences from the other launcher's treatment of the value.
    pub(in crate::cli) notes: Vec<String>,
}

/// Part of the label that Open MPI puts in front of output lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cli) enum Tag {
    Time,
    Rank,
    /// Number of the job, and rank.
    Proc,
    /// Number of the job, rank, host and process id.
    Detailed,
    /// Name of the job, and rank.
    FullName,
}

impl Tag {
    /// Pattern of a label.
    pub(in crate::cli) fn pattern(self) -> &'static str {
        match self {
            Self::Time => "[%c]",
            Self::Rank => "[%r]",
            Self::Proc => "[%J,%r]",
            Self::Detailed => "[%J,%r][%h:%p]",
            Self::FullName => "[%j,%r]",
        }
    }
}

/// A text about the launcher itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cli) enum Page {
    Help,
    Usage,
    Version,
}

/// The translation of an option.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) enum OptionTranslation {
    /// The option has no effect, for this reason.
    Nothing(&'static str),
    /// No effect with this value, refused with any other.
    Only(&'static str, &'static str),
    /// Option of wireup with another name and the same values.
    Option(&'static str),
    /// Words of wireup's command line, in which `{1}` and `{2}` are the values.
    Words(&'static [&'static str]),
    /// Words of `wireup run` that hold for every program of the job.
    Everywhere(&'static [&'static str]),
    /// A part of the label of output lines.
    Label(Tag),
    /// All that the value names; an unknown value is refused with the first text, the advice. The help has the second one
    /// for the translation, in which `{1}` is the value.
    Parts(
        fn(&OsStr) -> std::option::Option<ValueParts>,
        &'static str,
        &'static str,
    ),
    /// The words of ours are computed from its value, which is empty if it has none; where there are none it is refused.
    /// The texts are those of `Parts`.
    Computed(fn(&str) -> TranslatedWords, &'static str, &'static str),
    /// `NAME VALUE` of a variable for this program.
    Variable,
    /// `NAME VALUE` of a variable for every program.
    VariableEverywhere,
    /// `NAME VALUE` of a parameter, for which ranks of every program get a variable with this prefix, if there is one.
    /// A parameter of the launcher is the option that a [`LauncherSetting`] names.
    Parameter(&'static str),
    /// A stream of the ranks goes to the file of its value, if it has one, or comes from it.
    Redirect(RedirectedStream),
    /// A text is printed, and nothing is run.
    Show(Page),
    /// Advice on the replacement; `{0}` is the option as written, `{1}` and `{2}` its values.
    Instead(&'static str),
}

/// A variable (in capitals) or a parameter that a launcher reads in place of an option.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct LauncherSetting {
    pub(in crate::cli) name: &'static str,
    /// The option without dashes.
    pub(in crate::cli) option: &'static str,
}

pub(in crate::cli) const fn setting(name: &'static str, option: &'static str) -> LauncherSetting {
    LauncherSetting { name, option }
}

/// The command line of a launcher.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Dialect {
    /// Tables of options; the first that has an option counts.
    pub(in crate::cli) options: &'static [&'static [ForeignOption]],
    pub(in crate::cli) settings: &'static [&'static [LauncherSetting]],
    /// Variables of the launcher that are not read: their names, and beginnings of names that end in `_`.
    pub(in crate::cli) idle: &'static [&'static [&'static str]],
    /// Letters with values may stand together in a word, as getopt takes them.
    pub(in crate::cli) has_clusters: bool,
}

/// The command line of `wireup run`, which has no table in front of its own options.
pub(in crate::cli) const OWN: Dialect = Dialect {
    options: &[],
    settings: &[],
    idle: &[],
    has_clusters: false,
};

use OptionTranslation::{Only, Option, Variable, VariableEverywhere, Words};

pub(in crate::cli) const fn habit(
    names: &'static [&'static str],
    values: usize,
    meaning: OptionTranslation,
) -> ForeignOption {
    ForeignOption {
        names,
        values,
        meaning,
    }
}

/// An option that is refused; the advice names its replacement.
pub(in crate::cli) const fn instead(
    names: &'static [&'static str],
    values: usize,
    advice: &'static str,
) -> ForeignOption {
    habit(names, values, OptionTranslation::Instead(advice))
}

/// An option that is accepted without effect, for this reason.
pub(in crate::cli) const fn ignored(
    names: &'static [&'static str],
    values: usize,
    reason: &'static str,
) -> ForeignOption {
    habit(names, values, OptionTranslation::Nothing(reason))
}

/// An option whose words are computed from its only value; see [`OptionTranslation::Computed`].
pub(in crate::cli) const fn computed(
    names: &'static [&'static str],
    compute: fn(&str) -> TranslatedWords,
    advice: &'static str,
    description: &'static str,
) -> ForeignOption {
    let meaning = OptionTranslation::Computed(compute, advice, description);
    habit(names, 1, meaning)
}

/// An option whose value names several things; see [`OptionTranslation::Parts`].
pub(in crate::cli) const fn parts(
    names: &'static [&'static str],
    read: fn(&OsStr) -> std::option::Option<ValueParts>,
    advice: &'static str,
    description: &'static str,
) -> ForeignOption {
    habit(
        names,
        1,
        OptionTranslation::Parts(read, advice, description),
    )
}

const NODES: &str = "to srun it is a number of nodes, to mpirun of ranks on each; write --nodes {1} or --ppn {1} \
    (--virtual-nodes K makes this machine act as K nodes)";
const LIST_ONLY: &str = "wireup runs on this machine only if it is in the list; leave it out, and \
    name the hosts with --hosts or --hostfile";
const BINDING: &str =
    "write --bind-to core, hwthread, numa, package or cpu-list:LIST with the CPUs of each rank";
const NO_GPUS: &str = "write --gpus-per-rank N for N GPUs of each rank; or --wrap 'env \
    CUDA_VISIBLE_DEVICES=%l', which gives each rank the GPU with the number of its local rank";
const NO_MEMORY: &str = "wireup reserves no memory, the batch system does; leave it out, or write \
    --rlimit as={1} for a limit of each rank's process";
const NO_BATCH: &str =
    "wireup is not a batch system; leave it out, and give it to sbatch or salloc";
const NAMES_JOBS: &str = "wireup names jobs itself, wireup ps shows them; leave it out";
pub(in crate::cli) const PATH: ForeignOption = instead(
    &["path"],
    1,
    "write -x PATH={1}:$PATH; programs are looked for there",
);
pub(in crate::cli) const PREFIX: ForeignOption = instead(
    &["prefix"],
    1,
    "write -x PATH={1}/bin:$PATH -x LD_LIBRARY_PATH={1}/lib",
);
const QUIET: &str = "wireup prints nothing of its own when all goes well; leave it out";
const INPUT: &str = "write < {1} at the end of the line; --stdin none, all or RANK selects the ranks \
    that read it";
const NO_MAPPING: &str = "ranks are numbered as they are laid out, see --map-by slot and node; \
    leave it out";
const OWN_SOCKETS: &str = "wireup starts processes itself and listens on no port; leave it out";

const UNBOUND: &str = "ranks are not bound unless an option asks for it";
const INHERITED: &str = "ranks inherit all variables but those of an outer launcher";
pub(in crate::cli) const UNBUFFERED: &str =
    "output is not buffered: each line is shown when it is complete";
const ROOT: &str = "root may start launches";

/// Every option of another launcher that is known here.
pub(super) const HABITS: &[ForeignOption] = &[
    // Number of ranks.
    habit(&["np", "n"], 1, Option("-n")),
    instead(
        &["c"],
        1,
        "to mpirun it is a number of ranks, to srun CPUs for each; write -n {1} for {1} ranks, or \
             --cpus-per-rank {1} for {1} CPUs of each",
    ),
    instead(&["ntasks"], 1, "write -n {1}"),
    habit(
        &["perhost", "npernode", "ntasks-per-node", "tasks-per-node"],
        1,
        Option("--ppn"),
    ),
    instead(&["pernode"], 0, "write --ppn 1"),
    instead(&["N"], 1, NODES),
    habit(&["nooversubscribe"], 0, Option("--no-oversubscribe")),
    instead(
        &["use-hwthread-cpus"],
        0,
        "every CPU this process may use is a slot, hardware threads included; leave it out",
    ),
    // Hosts and placement.
    habit(
        &["f", "machinefile", "default-hostfile"],
        1,
        Option("--hostfile"),
    ),
    habit(&["host", "H", "w", "nodelist"], 1, Option("--hosts")),
    instead(&["nolocal"], 0, LIST_ONLY),
    instead(&["rank-by", "rr", "order-nodes"], 1, NO_MAPPING),
    habit(&["cpu-bind"], 1, Only("none", BINDING)),
    ignored(&["bind-to-none"], 0, UNBOUND),
    habit(&["bind-to-core"], 0, Words(&["--bind-to", "core"])),
    habit(&["bind-to-socket"], 0, Words(&["--bind-to", "package"])),
    habit(&["bycore"], 0, Words(&["--map-by", "core"])),
    habit(&["bysocket"], 0, Words(&["--map-by", "package"])),
    instead(&["cpu-set"], 1, BINDING),
    habit(&["rf"], 1, Option("--rankfile")),
    habit(&["cpus-per-proc"], 1, Option("--cpus-per-rank")),
    instead(
        &["display-map", "display-allocation"],
        0,
        "write -v, which shows where the ranks run, or --report-bindings",
    ),
    // Variables.
    habit(&["-env"], 2, Variable),
    habit(&["genv"], 2, VariableEverywhere),
    ignored(&["envall", "genvall"], 0, INHERITED),
    instead(&["envnone", "genvnone"], 0, "write --env none"),
    instead(
        &["envlist", "genvlist"],
        1,
        "write --env {1}, with the comma at the end if it is one name",
    ),
    instead(
        &["mca", "gmca"],
        2,
        "write -x OMPI_MCA_{1}={2}: parameters of Open MPI reach the ranks as variables",
    ),
    instead(
        &["pmixmca", "gpmixmca"],
        2,
        "write -x PMIX_MCA_{1}={2}: parameters of PMIx reach the ranks as variables",
    ),
    instead(&["prtemca"], 2, "wireup does not use PRRTE; leave it out"),
    instead(
        &["am", "tune"],
        1,
        "write each parameter of {1} as -x OMPI_MCA_NAME=VALUE",
    ),
    PATH,
    instead(
        &["export"],
        1,
        "write --env all, none or NAME,NAME for variables that ranks inherit, -x NAME=VALUE for those that are set",
    ),
    PREFIX,
    // Directory, input, output.
    habit(&["wd", "chdir", "D"], 1, Option("--wdir")),
    ignored(&["u", "unbuffered"], 0, UNBUFFERED),
    habit(&["prepend-rank", "tag-output"], 0, Option("--label")),
    instead(
        &["outfile-pattern", "errfile-pattern"],
        1,
        "write --output '{1}', which takes standard error too; in the name %r is the rank and %s is \
             out or err",
    ),
    instead(
        &["output-filename"],
        1,
        "write --output '{1}/%r.%s', where %r is the rank and %s is out or err",
    ),
    instead(
        &["o"],
        1,
        "write --output {1}, where %r is the rank, or > {1} for one file of all ranks",
    ),
    instead(
        &["e", "error"],
        1,
        "write --output with %r for the rank and %s for out or err in the name, or 2> {1} for one \
             file of all ranks",
    ),
    instead(&["i", "input"], 1, INPUT),
    instead(&["q", "Q", "quiet"], 0, QUIET),
    instead(&["s"], 1, "write --stdin {1}"),
    instead(
        &["configfile", "app", "multi-prog"],
        1,
        "write the programs of {1} into the line: wireup run -n 1 ./a : -n 3 ./b",
    ),
    // Options without a counterpart.
    ignored(&["allow-run-as-root"], 0, ROOT),
    instead(
        &[
            "launcher",
            "bootstrap",
            "launcher-exec",
            "bootstrap-exec",
            "rmk",
            "iface",
            "localhost",
        ],
        1,
        OWN_SOCKETS,
    ),
    instead(
        &["t", "time"],
        1,
        "write --timeout SECONDS; Slurm counts in minutes",
    ),
    instead(
        &["gdb", "debug"],
        0,
        "write --wrap 'xterm -e gdb --args', or put the debugger in front of the program",
    ),
    habit(&["cpus-per-task"], 1, Option("--cpus-per-rank")),
    instead(
        &["m", "distribution"],
        1,
        "write --map-by slot for block, --map-by node for cyclic",
    ),
    // Options that batch systems decide.
    instead(&["J", "job-name"], 1, NAMES_JOBS),
    instead(
        &["p", "partition", "A", "account", "qos", "constraint", "C"],
        1,
        NO_BATCH,
    ),
    instead(&["exclusive", "overlap"], 0, NO_BATCH),
    instead(&["mem", "mem-per-cpu"], 1, NO_MEMORY),
    instead(
        &[
            "gres",
            "G",
            "gpus",
            "gpus-per-task",
            "gpus-per-node",
            "gpus-per-proc",
            "g",
            "gpu-bind",
        ],
        1,
        NO_GPUS,
    ),
    instead(
        &["W", "wait"],
        1,
        "a job runs until all its ranks have ended or one has failed; leave it out, or write \
             --timeout SECONDS for the whole job",
    ),
    // In the spelling of srun.
    habit(&["kill-on-bad-exit=1"], 0, Option("--kill-on-bad-exit")),
    habit(&["kill-on-bad-exit=0"], 0, Option("--no-kill-on-bad-exit")),
    instead(
        &["K", "disable-auto-cleanup"],
        0,
        "the first rank that fails ends the job; leave it out",
    ),
];
