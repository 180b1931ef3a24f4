//! Values of options that are written in another way here.

use std::ffi::OsString;

fn words(words: &[&str]) -> Option<Vec<OsString>> {
    Some(words.iter().map(OsString::from).collect())
}

/// `MINUTES`, `MINUTES:SECONDS`, `HOURS:MINUTES:SECONDS`, `DAYS-HOURS[:MINUTES[:SECONDS]]`; 0 is no limit. Source:
/// srun(1), --time.
pub(super) fn time(text: &str) -> Option<Vec<OsString>> {
    let numbers = |text: &str| -> Option<Vec<u64>> {
        text.split(':').map(|part| part.parse().ok()).collect()
    };
    let seconds = match text.split_once('-') {
        Some((days, rest)) => {
            let days: u64 = days.parse().ok()?;
            let rest = numbers(rest).filter(|rest| rest.len() <= 3)?;
            let units = [3600, 60, 1];
            let rest: u64 = rest.iter().zip(units).map(|(n, unit)| n * unit).sum();
            days.checked_mul(86400)?.checked_add(rest)?
        }
        None => match numbers(text)?[..] {
            [minutes] => minutes.checked_mul(60)?,
            [minutes, seconds] => minutes.checked_mul(60)?.checked_add(seconds)?,
            [hours, minutes, seconds] => {
                hours
                    .checked_mul(3600)?
                    .checked_add(minutes.checked_mul(60)?)?
                    + seconds
            }
            _ => return None,
        },
    };
    match seconds {
        0 => words(&[]),
        seconds => words(&["--timeout", &seconds.to_string()]),
    }
}

/// `ALL`, `NONE`, `NAME`, `NAME=VALUE` and lists of these: assignments are added, names alone are all that ranks get.
pub(super) fn export(text: &str) -> Option<Vec<OsString>> {
    let (mut names, mut set, mut all) = (Vec::new(), Vec::new(), false);
    for part in text.split(',').filter(|part| !part.is_empty()) {
        match part {
            "ALL" => all = true,
            "NONE" | "NIL" => names.push("none"),
            _ if part.contains('=') => set.push(part),
            _ => names.push(part),
        }
    }
    let mut result = Vec::new();
    if !all {
        match &names[..] {
            // srun then passes on what Slurm has set, and nothing else of the user's.
            [] => result.extend(["--env".into(), "none".into()]),
            ["none"] => result.extend(["--env".into(), "none".into()]),
            // The comma makes it a list also if it is one name.
            names => result.extend(["--env".into(), (names.join(",") + ",").into()]),
        }
    }
    for part in set {
        result.extend(["-x".into(), part.into()]);
    }
    Some(result)
}

/// A file name with `%t`, the task.
pub(super) fn output(text: &str) -> Option<Vec<OsString>> {
    let others = ["%j", "%J", "%N", "%n", "%s", "%x", "%u"];
    if text == "none" {
        return words(&["--output", "/dev/null"]);
    }
    if others.iter().any(|other| text.contains(other)) || !text.contains("%t") {
        return None;
    }
    words(&["--output", &text.replace("%t", "%r")])
}

/// Nodes: `K`, or `K-MORE`, of which the smaller number is taken.
pub(super) fn nodes(text: &str) -> Option<Vec<OsString>> {
    let least = text.split('-').next()?;
    least.parse::<u32>().ok().filter(|number| *number > 0)?;
    words(&["--nodes", least])
}

/// An input for one task, all or none.
pub(super) fn input(text: &str) -> Option<Vec<OsString>> {
    match text {
        "all" | "none" => words(&["--stdin", text]),
        _ if text.parse::<u32>().is_ok() => words(&["--stdin", text]),
        _ => None,
    }
}

/// An interface of srun's.
pub(super) fn interface(text: &str) -> Option<Vec<OsString>> {
    match text {
        "none" => words(&[]),
        "pmi2" | "cray_shasta" => words(&["--pmi", "pmi2"]),
        _ if text.starts_with("pmix") => words(&["--pmi", "pmix"]),
        _ => None,
    }
}

/// CPUs of each task. Those of the allocation's tasks are counted in its slots.
pub(super) fn cpus(text: &str) -> Option<Vec<OsString>> {
    let cpus: u32 = text.parse().ok().filter(|cpus| *cpus > 0)?;
    if cpus == 1 || std::env::var("SLURM_CPUS_PER_TASK").is_ok_and(|of_job| of_job == text) {
        return words(&[]);
    }
    words(&["--cpus-per-rank", text])
}

/// One GPU for each rank, the one with its local number.
pub(super) fn gpus(text: &str) -> Option<Vec<OsString>> {
    let one = "env CUDA_VISIBLE_DEVICES=%l ROCR_VISIBLE_DEVICES=%l";
    match text {
        "1" => words(&["--wrap", one]),
        "0" => words(&[]),
        _ => None,
    }
}

/// How tasks are distributed over nodes.
pub(super) fn distribution(text: &str) -> Option<Vec<OsString>> {
    match text {
        "block" | "block:block" | "block:cyclic" => words(&["--map-by", "slot"]),
        "cyclic" | "cyclic:block" | "cyclic:cyclic" => words(&["--map-by", "node"]),
        _ => None,
    }
}

/// Where Open MPI and Hydra place ranks.
pub(super) fn mapping(text: &str) -> Option<Vec<OsString>> {
    if let Some(rest) = text.strip_prefix("ppr:") {
        let (count, of) = rest.split_once(':')?;
        return match of {
            "node" => words(&["--ppn", count]),
            _ => None,
        };
    }
    match text {
        "slot" | "core" | "hwthread" | "byslot" => words(&["--map-by", "slot"]),
        "node" | "bynode" => words(&["--map-by", "node"]),
        "slot:OVERSUBSCRIBE" | ":OVERSUBSCRIBE" => words(&["--oversubscribe"]),
        "node:OVERSUBSCRIBE" => words(&["--map-by", "node", "--oversubscribe"]),
        _ => None,
    }
}

/// What Open MPI 5 does with output: `tag`, `rank` or `dir=DIR`; a pattern of ours is one too.
pub(super) fn streams(text: &str) -> Option<Vec<OsString>> {
    match text {
        "tag" | "rank" => words(&["--label"]),
        "timestamp" => words(&["--timestamp"]),
        _ if text.contains("%r") => words(&["--output", text]),
        _ => {
            let dir = text.strip_prefix("dir=")?;
            words(&["--output", &format!("{dir}/%r.%s")])
        }
    }
}
