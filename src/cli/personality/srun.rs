//! Options of srun that mean something else to `wireup run`, or nothing. Source: srun(1) of Slurm 22.05.

use std::ffi::OsString;

use super::values;
use crate::cli::foreign_options::table::Meaning::{
    Computed, Instead, Nothing, Option as Same, Words,
};
use crate::cli::foreign_options::table::{Habit, habit};

const NO_STEP: &str = "wireup starts a launch on all nodes that it is given; leave it out";
const NO_LAYOUT: &str =
    "wireup knows nodes and no sockets; leave it out, and write --ntasks-per-node";

pub(super) const HABITS: &[Habit] = &[
    habit(&["n", "ntasks"], 1, Same("-n")),
    habit(
        &["N", "nodes"],
        1,
        Computed(values::nodes, "write -N K with one number"),
    ),
    habit(
        &["c", "cpus-per-task"],
        1,
        Computed(values::cpus, "write -c with a number"),
    ),
    habit(&["ntasks-per-node"], 1, Same("--ppn")),
    habit(&["w", "nodelist"], 1, Same("--hosts")),
    habit(&["F", "nodefile"], 1, Same("--hostfile")),
    habit(
        &[
            "ntasks-per-socket",
            "ntasks-per-core",
            "B",
            "extra-node-info",
        ],
        1,
        Instead(NO_LAYOUT),
    ),
    habit(
        &["m", "distribution"],
        1,
        Computed(
            values::distribution,
            "write -m block or -m cyclic; -m arbitrary needs SLURM_HOSTFILE, or write --rankfile FILE",
        ),
    ),
    habit(&["l", "label"], 0, Same("--label")),
    habit(
        &["o", "output"],
        1,
        Computed(
            values::output,
            "write a name with %t, which is the rank, or > {1} for one file of all ranks",
        ),
    ),
    habit(
        &["e", "error"],
        1,
        Instead("write -o, whose files have both streams, or 2> {1} for one file of all ranks"),
    ),
    habit(
        &["i", "input"],
        1,
        Computed(
            values::input,
            "write < {1} at the end of the line, and -i all, none or RANK for which ranks read it",
        ),
    ),
    habit(
        &["export"],
        1,
        Computed(values::export, "write ALL, NONE, NAME or NAME=VALUE"),
    ),
    habit(&["D", "chdir"], 1, Same("--wdir")),
    habit(
        &["t", "time"],
        1,
        Computed(
            values::time,
            "write MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS or DAYS-HOURS",
        ),
    ),
    habit(
        &["mpi"],
        1,
        Computed(values::interface, "write none, pmi2 or pmix"),
    ),
    habit(
        &["mem-bind"],
        1,
        Computed(values::mem_bind, "write --mem-bind none, local or prefer"),
    ),
    habit(
        &["cpu-bind"],
        1,
        Computed(
            values::cpu_bind,
            "write --cpu-bind none, threads, cores, sockets, ldoms, map_cpu:LIST or mask_cpu:LIST",
        ),
    ),
    habit(
        &["gpus-per-task"],
        1,
        Computed(
            values::gpus,
            "write --gpus-per-task N; wireup gives out what the host has, and reserves none",
        ),
    ),
    habit(&["pty"], 0, Words(&["--pty", "0"])),
    // What Slurm shows or decides, and programs do not notice.
    habit(&["J", "job-name", "comment"], 1, Nothing),
    habit(
        &[
            "u",
            "unbuffered",
            "exact",
            "exclusive",
            "overlap",
            "O",
            "overcommit",
            "Q",
            "quiet",
            "K",
        ],
        0,
        Nothing,
    ),
    habit(&["r", "relative", "x", "exclude"], 1, Instead(NO_STEP)),
    habit(
        &["hint", "threads-per-core", "cores-per-socket"],
        1,
        Instead("write --cpu-bind cores or threads, and -c for the CPUs of each task"),
    ),
];

/// What srun takes where nothing is said: one task for each node, and tasks spread evenly over nodes.
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
