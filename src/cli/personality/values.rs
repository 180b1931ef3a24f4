//! Values of options that are written in another way here.

use std::ffi::OsString;

use wireup_core::topology::CpuSet;

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

/// GPUs of each rank.
pub(super) fn gpus(text: &str) -> Option<Vec<OsString>> {
    // Slurm allows a type in front.
    let count = text.rsplit(':').next()?;
    match count.parse::<u32>().ok()? {
        0 => words(&[]),
        _ => words(&["--gpus-per-rank", count]),
    }
}

/// Where srun has memory from. Source: srun(1), --mem-bind.
pub(super) fn mem_bind(text: &str) -> Option<Vec<OsString>> {
    match text {
        "no" | "none" => words(&["--mem-bind", "none"]),
        "local" => words(&["--mem-bind", "local"]),
        "prefer" | "p" | "prefer,local" => words(&["--mem-bind", "prefer"]),
        _ => None,
    }
}

/// How tasks are distributed over nodes.
pub(super) fn distribution(text: &str) -> Option<Vec<OsString>> {
    match text {
        "block" | "block:block" | "block:cyclic" => words(&["--map-by", "slot"]),
        "cyclic" | "cyclic:block" | "cyclic:cyclic" => words(&["--map-by", "node"]),
        "arbitrary" => {
            let file = std::env::var_os("SLURM_HOSTFILE").filter(|file| !file.is_empty())?;
            Some(vec!["--rankfile".into(), file])
        }
        _ => None,
    }
}

/// A part of a host, as Open MPI, Hydra and Slurm call it.
fn unit(text: &str) -> Option<&'static str> {
    Some(match text {
        "hwthread" | "hwt" | "thread" | "threads" => "hwthread",
        "core" | "cores" => "core",
        "l2" | "l2cache" => "l2",
        "l3" | "l3cache" => "l3",
        "numa" | "ldoms" => "numa",
        "package" | "socket" | "sockets" => "package",
        _ => return None,
    })
}

/// Where Open MPI and Hydra place ranks: `UNIT[:MODIFIER]…` and `ppr:N:UNIT[:MODIFIER]…`.
pub(super) fn mapping(text: &str) -> Option<Vec<OsString>> {
    let file = text.strip_prefix("rankfile:file=");
    if let Some(file) = file.or_else(|| text.strip_prefix("seq:file=")) {
        return words(&["--rankfile", file]);
    }
    let lower = text.to_ascii_lowercase();
    let mut parts = lower.split(':');
    let mut result = Vec::new();
    let mut add = |option: &str, value: Option<&str>| {
        result.push(option.into());
        result.extend(value.map(OsString::from));
    };
    match parts.next()? {
        "" => {}
        "ppr" => {
            let (count, of) = (parts.next()?, parts.next()?);
            match of {
                "node" => add("--ppn", Some(count)),
                _ => add("--map-by", Some(&format!("ppr:{count}:{}", unit(of)?))),
            }
        }
        "slot" | "byslot" => add("--map-by", Some("slot")),
        "node" | "bynode" => add("--map-by", Some("node")),
        part => add("--map-by", Some(unit(part)?)),
    }
    for modifier in parts {
        match modifier.split_once('=') {
            Some(("pe", count)) => add("--cpus-per-rank", Some(count)),
            None if modifier == "oversubscribe" => add("--oversubscribe", None),
            None if modifier == "nooversubscribe" => add("--no-oversubscribe", None),
            _ => return None,
        }
    }
    Some(result)
}

/// What Open MPI and Hydra bind ranks to.
pub(super) fn binding(text: &str) -> Option<Vec<OsString>> {
    let lower = text.to_ascii_lowercase();
    let (what, modifier) = lower.split_once(':').unwrap_or((&lower, ""));
    match (what, modifier) {
        ("none" | "machine" | "board", "") => words(&["--bind-to", "none"]),
        // Hydra's list of each rank's CPUs.
        ("user", list) if !list.is_empty() => words(&["--bind-to", &format!("cpu-list:{list}")]),
        ("cpu-list", list) if !list.is_empty() => words(&["--bind-to", text]),
        (what, "overload-allowed") => words(&["--bind-to", unit(what)?, "--oversubscribe"]),
        (what, "" | "if-supported") => words(&["--bind-to", unit(what)?]),
        _ => None,
    }
}

/// The CPUs of a hexadecimal mask of any length.
fn mask_of(text: &str) -> Option<CpuSet> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let mut cpus = CpuSet::default();
    for (at, digit) in (0_u32..).zip(digits.chars().rev()) {
        let digit = digit.to_digit(16)?;
        let bits = (0..4).filter(|bit| digit & 1 << bit != 0);
        bits.for_each(|bit| cpus.insert(at.saturating_mul(4) + bit));
    }
    Some(cpus)
}

/// What srun binds tasks to; `q` and `v` say whether that is shown. Source: srun(1), --cpu-bind.
pub(super) fn cpu_bind(text: &str) -> Option<Vec<OsString>> {
    let mut result = Vec::new();
    let mut rest = text;
    while let Some(next) = ["verbose", "quiet", "v", "q"]
        .into_iter()
        .find_map(|word| Some((word, rest.strip_prefix(word)?)))
        .filter(|(_, next)| next.is_empty() || next.starts_with(','))
    {
        if next.0.starts_with('v') {
            result.push("--report-bindings".into());
        }
        rest = next.1.trim_start_matches(',');
    }
    let (what, list) = rest.split_once(':').unwrap_or((rest, ""));
    let to = match (what, list) {
        ("", "") => return Some(result),
        ("no" | "none", "") => "none".to_owned(),
        ("map_cpu", list) if !list.is_empty() => format!("cpu-list:{list}"),
        ("mask_cpu", list) => {
            let masks = list.split(',').map(|mask| {
                let mask = mask_of(mask)?;
                let cpus: Vec<String> = mask.iter().map(|cpu| cpu.to_string()).collect();
                (!cpus.is_empty()).then(|| cpus.join("+"))
            });
            format!("cpu-list:{}", masks.collect::<Option<Vec<_>>>()?.join(","))
        }
        (what, "") => unit(what)?.to_owned(),
        _ => return None,
    };
    result.extend(["--bind-to".into(), to.into()]);
    Some(result)
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
