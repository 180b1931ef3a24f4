//! Values of options that are written in another way here.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use crate::cli::foreign_options::option_table::{Tag, ValueParts};
use wireup_core::topology::CpuSet;

fn words(words: &[&str]) -> Option<Vec<OsString>> {
    Some(words.iter().map(OsString::from).collect())
}

/// `MINUTES`, `MINUTES:SECONDS`, `HOURS:MINUTES:SECONDS`, `DAYS-HOURS[:MINUTES[:SECONDS]]`; 0, `UNLIMITED` and
/// `INFINITE` are no limit. Source: srun(1), --time.
pub(super) fn time(text: &str) -> Option<Vec<OsString>> {
    if ["unlimited", "infinite"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word))
    {
        return words(&[]);
    }
    let (days, parts) = match text.split_once('-') {
        Some((days, parts)) => (Some(days.parse::<u64>().ok()?), parts),
        None => (None, text),
    };
    let parts = parts.split(':').map(|part| part.parse::<u64>().ok());
    let parts = parts.collect::<Option<Vec<_>>>()?;
    let units: &[u64] = match (days, parts.len()) {
        (None, 1) => &[60],
        (None, 2) => &[60, 1],
        (_, 1..=3) => &[3600, 60, 1],
        _ => return None,
    };
    let days = days.unwrap_or(0).checked_mul(86400)?;
    let seconds = parts.iter().zip(units).try_fold(days, |sum, (n, unit)| {
        sum.checked_add(n.checked_mul(*unit)?)
    })?;
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
            // So it is without any other name.
            "NONE" | "NIL" => {}
            _ if part.contains('=') => set.push(part),
            _ => names.push(part),
        }
    }
    let mut result = Vec::new();
    if !all {
        match &names[..] {
            // srun then passes on what Slurm has set, and nothing else of the user's.
            [] => result.extend(["--env".into(), "none".into()]),
            // The comma makes it a list also if it is one name.
            names => result.extend(["--env".into(), (names.join(",") + ",").into()]),
        }
    }
    for part in set {
        result.extend(["-x".into(), part.into()]);
    }
    Some(result)
}

/// Nodes: `K`, or `K-MORE`, of which the smaller number is taken.
pub(super) fn nodes(text: &str) -> Option<Vec<OsString>> {
    let least = text.split('-').next()?;
    least.parse::<u32>().ok().filter(|number| *number > 0)?;
    words(&["--nodes", least])
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

/// Whether libraries are sent with the program. Source: srun(1), --send-libs.
pub(super) fn send_libs(text: &str) -> Option<Vec<OsString>> {
    match text {
        "" | "yes" | "1" => words(&["--stage"]),
        "no" | "0" => words(&[]),
        _ => None,
    }
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

/// GPUs of each host, as `gpu[:TYPE][:N]` among other resources: those that ranks see, in place of all. Slurm reserves
/// the others.
pub(super) fn resources(text: &str) -> Option<Vec<OsString>> {
    let gpus = text.split(',').filter_map(|part| part.strip_prefix("gpu"));
    let mut result = Vec::new();
    for gpu in gpus {
        let fields = gpu.split('(').next()?.rsplit([':', '=']);
        let count = fields.map(str::parse::<usize>).next()?;
        let count = if gpu.is_empty() {
            1
        } else {
            count.unwrap_or(1)
        };
        result.extend(visible(count, |name| std::env::var(name).ok()));
    }
    Some(result)
}

/// The resources of `--gres`, of which GPUs have a meaning.
pub(super) fn gres(value: &OsStr) -> Option<ValueParts> {
    let text = value.to_str()?;
    let is_idle = |part: &&str| !part.is_empty() && *part != "none" && !part.starts_with("gpu");
    let idle = text.split(',').filter(is_idle);
    let note = |part| format!("{part} has no effect: GPUs are the only resource that ranks get");
    Some(ValueParts {
        words: resources(text)?,
        notes: idle.map(note).collect(),
        ..ValueParts::default()
    })
}

/// `N` or `TYPE:N` GPUs of each host.
pub(super) fn gpus_of_host(text: &str) -> Option<Vec<OsString>> {
    resources(&format!("gpu:{text}"))
}

/// The variables by which programs see only so many of the GPUs that they see now.
pub(super) fn visible(count: usize, variable: impl Fn(&str) -> Option<String>) -> Vec<OsString> {
    const NAMES: [&str; 3] = [
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
    ];
    let numbers = (0..count).map(|gpu| gpu.to_string());
    let numbers: Vec<String> = numbers.collect();
    let assignment = |name: &str| {
        let gpus = match variable(name) {
            Some(list) => list.split(',').take(count).collect::<Vec<_>>().join(","),
            None => numbers.join(","),
        };
        ["-x".into(), format!("{name}={gpus}").into()]
    };
    NAMES.into_iter().flat_map(assignment).collect()
}

/// Translates Hydra's source of memory.
pub(super) fn memory(text: &str) -> Option<Vec<OsString>> {
    match text.split(':').next()? {
        "none" | "default" => words(&["--mem-bind", "none"]),
        "firsttouch" | "local" | "bind" => words(&["--mem-bind", "local"]),
        "nexttouch" | "prefer" | "preferred" => words(&["--mem-bind", "prefer"]),
        "interleave" => words(&["--mem-bind", "interleave"]),
        _ => None,
    }
}

/// Translates srun's source of memory. Source: srun(1), --mem-bind.
pub(super) fn mem_bind(text: &str) -> Option<Vec<OsString>> {
    let (_, policy) = verbosity(text);
    match policy {
        "" => words(&[]),
        "no" | "none" => words(&["--mem-bind", "none"]),
        "local" => words(&["--mem-bind", "local"]),
        "prefer" | "p" | "prefer,local" => words(&["--mem-bind", "prefer"]),
        _ => None,
    }
}

/// Slurm's hints on how tasks use cores: without hardware threads each is bound to a core.
pub(super) fn hint(text: &str) -> Option<Vec<OsString>> {
    match text {
        "nomultithread" => words(&["--bind-to", "core"]),
        "multithread" => words(&["--bind-to", "hwthread"]),
        _ => None,
    }
}

/// Translates the distribution of tasks over nodes.
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
        "core" | "cores" | "l1cache" => "core",
        "l2" | "l2cache" => "l2",
        "l3" | "l3cache" => "l3",
        "numa" | "ldoms" => "numa",
        "package" | "socket" | "sockets" => "package",
        _ => return None,
    })
}

/// Translates the mapping of Open MPI and Hydra: `UNIT[:MODIFIER]…` and `ppr:N:UNIT[:MODIFIER]…`.
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
        match modifier {
            "oversubscribe" => add("--oversubscribe", None),
            "nooversubscribe" => add("--no-oversubscribe", None),
            "display" => add("-v", None),
            "donotlaunch" => add("--dry-run", None),
            // Spawned processes are placed as the others, and hardware threads are CPUs.
            "inherit" | "noinherit" | "hwtcpus" | "corecpus" => {}
            _ => add("--cpus-per-rank", Some(modifier.strip_prefix("pe=")?)),
        }
    }
    Some(result)
}

/// `K:UNIT` of Open MPI 4.
pub(super) fn per_resource(text: &str) -> Option<Vec<OsString>> {
    mapping(&format!("ppr:{text}"))
}

/// The order in which Open MPI numbers ranks: only that in which they are laid out.
pub(super) fn ranking(text: &str) -> Option<Vec<OsString>> {
    matches!(text, "slot" | "fill").then(Vec::new)
}

/// Translates the information that Open MPI 5 shows before the launch.
pub(super) fn display(text: &str) -> Option<Vec<OsString>> {
    let mut result = Vec::new();
    for part in text.split(',') {
        result.push(match part.split([':', '=']).next()? {
            "map" | "allocation" | "map-devel" | "topo" | "cpus" => "-v".into(),
            "bind" => "--report-bindings".into(),
            _ => return None,
        });
    }
    Some(result)
}

/// `--runtime-options` of Open MPI 5.
pub(super) fn runtime(text: &str) -> Option<Vec<OsString>> {
    let mut result = Vec::new();
    for part in text.split(',') {
        let (name, value) = part.split_once('=').unwrap_or((part, "true"));
        let option: &[&str] = match (name.to_ascii_lowercase().as_str(), value) {
            ("timeout", seconds) => &["--timeout", seconds],
            ("spawn-timeout", seconds) => &["--spawn-timeout", seconds],
            ("show-progress" | "aggregate-help-messages" | "fwd-environment", _) => &[],
            ("error-nonzero-status", "1" | "true" | "yes") => &[],
            (_, "0" | "false" | "no") if name != "error-nonzero-status" => &[],
            ("error-nonzero-status", _) => &["--no-kill-on-bad-exit"],
            ("recoverable" | "continuous", _) => &["--on-failure", "continue"],
            ("donotlaunch", _) => &["--dry-run"],
            ("stop-on-exec", _) => &["--stop-at", "exec"],
            ("stop-in-init", _) => &["--stop-at", "init"],
            ("report-state-on-timeout" | "get-stack-traces", _) => &["--stacks"],
            _ => return None,
        };
        result.extend(option.iter().map(OsString::from));
    }
    Some(result)
}

/// Translates the binding of Open MPI and Hydra.
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

/// Returns whether srun shows a binding, and the rest of the value after `verbose` and `quiet`. Source: srun(1),
/// --cpu-bind.
fn verbosity(text: &str) -> (bool, &str) {
    let (mut is_shown, mut rest) = (false, text);
    while let Some((word, next)) = ["verbose", "quiet", "v", "q"]
        .into_iter()
        .find_map(|word| Some((word, rest.strip_prefix(word)?)))
        .filter(|(_, next)| next.is_empty() || next.starts_with(','))
    {
        is_shown = word.starts_with('v');
        rest = next.trim_start_matches(',');
    }
    (is_shown, rest)
}

/// Translates the value of `srun --cpu-bind`, the binding of tasks to CPUs. Source: srun(1).
pub(super) fn cpu_bind(text: &str) -> Option<Vec<OsString>> {
    let (is_shown, rest) = verbosity(text);
    let mut result: Vec<OsString> = Vec::new();
    if is_shown {
        result.push("--report-bindings".into());
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

/// Translates a pattern of another launcher, code by code; `None` if there is one that `code` does not know.
pub(super) fn pattern<T: AsRef<[u8]>>(
    text: &[u8],
    code: impl Fn(u8) -> Option<T>,
) -> Option<Vec<u8>> {
    let mut pattern = Vec::new();
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'%' => pattern.extend_from_slice(code(*bytes.next()?)?.as_ref()),
            byte => pattern.push(byte),
        }
    }
    Some(pattern)
}

/// Files of each rank below a directory, as Open MPI names them. It copies output to its own streams too, unless the
/// directory has `:nocopy` behind it.
fn files(value: &[u8], job: &[u8]) -> ValueParts {
    let dir = value.strip_suffix(b":nocopy");
    let is_copied = dir.is_none();
    let name = [dir.unwrap_or(value), b"/", job, b"/rank.%r/std%s"].concat();
    let note = "output goes to the files alone, and not to the terminal";
    ValueParts {
        words: vec!["--output".into(), OsString::from_vec(name)],
        notes: is_copied.then(|| note.to_owned()).into_iter().collect(),
        ..ValueParts::default()
    }
}

/// `--output-filename` of Open MPI 4.
pub(super) fn output_files(value: &OsStr) -> Option<ValueParts> {
    Some(files(value.as_bytes(), b"1"))
}

/// `--output-directory` of Open MPI 5.
pub(super) fn output_directory(value: &OsStr) -> Option<ValueParts> {
    Some(files(value.as_bytes(), b"%j"))
}

/// `--output` of Open MPI 5: `tag`, `timestamp`, `dir=DIR` and others; a pattern of ours is one too.
pub(super) fn outputs(value: &OsStr) -> Option<ValueParts> {
    let bytes = value.as_bytes();
    let mut result = ValueParts::default();
    if bytes.windows(2).any(|code| code == b"%r") {
        result.words = vec!["--output".into(), value.to_owned()];
        return Some(result);
    }
    for part in bytes.split(|byte| *byte == b',') {
        match part.strip_suffix(b":nocopy").unwrap_or(part) {
            b"tag" => result.tags.push(Tag::Proc),
            b"tag-detailed" => result.tags.push(Tag::Detailed),
            b"tag-fullname" => result.tags.push(Tag::FullName),
            b"rank" => result.tags.push(Tag::Rank),
            b"timestamp" => result.tags.push(Tag::Time),
            b"merge-stderr-to-stdout" | b"merge" => result.is_merged = true,
            _ => {
                let dir = part.strip_prefix(b"dir=");
                let dir = dir.or_else(|| part.strip_prefix(b"directory="))?;
                let files = files(dir, b"%j");
                result.words.extend(files.words);
                result.notes.extend(files.notes);
            }
        }
    }
    Some(result)
}
