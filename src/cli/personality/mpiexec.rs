//! Options of mpiexec and mpirun that mean something else to `wireup run`, or nothing: MPI's standard (section "Portable
//! MPI Process Startup"), Hydra's and Open MPI's, which do not contradict each other.

use super::values;
use crate::cli::foreign_options::table::Meaning::{
    Computed, Instead, Nothing, Option as Same, Words,
};
use crate::cli::foreign_options::table::{Habit, habit};

pub(super) const HABITS: &[Habit] = &[
    habit(&["c", "np", "n"], 1, Same("-n")),
    habit(&["N"], 1, Same("--ppn")),
    habit(&["pernode"], 0, Words(&["--ppn", "1"])),
    habit(&["bynode"], 0, Words(&["--map-by", "node"])),
    habit(&["byslot"], 0, Words(&["--map-by", "slot"])),
    habit(
        &["map-by"],
        1,
        Computed(
            values::mapping,
            "write --map-by slot, node, hwthread, core, l2, l3, numa, package or ppr:K: and one of these",
        ),
    ),
    habit(
        &["bind-to"],
        1,
        Computed(
            values::binding,
            "write --bind-to none, hwthread, core, l2, l3, numa, package or cpu-list:LIST",
        ),
    ),
    habit(&["report-bindings"], 0, Words(&["--report-bindings"])),
    habit(&["mca", "gmca"], 2, Words(&["-x", "OMPI_MCA_{1}={2}"])),
    habit(
        &["pmixmca", "gpmixmca"],
        2,
        Words(&["-x", "PMIX_MCA_{1}={2}"]),
    ),
    habit(&["envlist", "genvlist"], 1, Words(&["--env", "{1},"])),
    habit(&["envnone", "genvnone"], 0, Words(&["--env", "none"])),
    habit(
        &[
            "display-map",
            "display-allocation",
            "print-rank-map",
            "verbose",
        ],
        0,
        Words(&["-v"]),
    ),
    habit(&["display"], 1, Words(&["-v"])),
    habit(&["output-filename"], 1, Words(&["--output", "{1}/%r.%s"])),
    habit(&["s"], 1, Same("--stdin")),
    habit(&["stdin"], 1, Same("--stdin")),
    habit(
        &["disable-auto-cleanup"],
        0,
        Words(&["--no-kill-on-bad-exit"]),
    ),
    habit(
        &["enable-recovery"],
        0,
        Words(&["--on-failure", "continue"]),
    ),
    habit(
        &["gpus-per-proc"],
        1,
        Computed(values::gpus, "write -gpus-per-proc with a number"),
    ),
    habit(
        &["output"],
        1,
        Computed(
            values::streams,
            "write --tag-output for labels, or --output with a name with %r, which is the rank",
        ),
    ),
    habit(
        &["gtool", "gtoolfile"],
        1,
        Instead(
            "write --wrap with the command that is put before the program, and --wrap-ranks with the ranks",
        ),
    ),
    habit(
        &["check_mpi", "trace"],
        0,
        Instead("write -x LD_PRELOAD=LIBRARY with the library of the tool"),
    ),
    habit(
        &["with-ft"],
        1,
        Instead("write --on-failure continue, with which ranks survive others"),
    ),
    // How processes are started, which programs do not notice.
    habit(
        &[
            "launcher",
            "bootstrap",
            "launcher-exec",
            "bootstrap-exec",
            "rmk",
        ],
        1,
        Nothing,
    ),
    habit(&["prtemca"], 2, Nothing),
    habit(
        &["q", "quiet", "use-hwthread-cpus", "hetero-nodes"],
        0,
        Nothing,
    ),
    habit(
        &["soft", "arch", "file", "usize"],
        1,
        Instead("wireup has no counterpart; leave it out"),
    ),
];
