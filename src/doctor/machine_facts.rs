//! The kernel, processors, memory and directories of this host. Facts that cannot be read keep their default.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::backend::cleanup_record;
use crate::jobs::{self, JobLifeState, discover::UserScope};
use wireup_core::doctor::facts::{Cpus, Directory, Kernel, Leftovers, Memory};
use wireup_sys::machine_slots::{Quota, SlotLimits, online};
use wireup_sys::{cgroup, kernel, leftovers, procfs};

/// Kernel settings that are collected, by their files below `/proc/sys`.
const SETTINGS: [&str; 5] = [
    "kernel/yama/ptrace_scope",
    "kernel/sched_autogroup_enabled",
    "kernel/numa_balancing",
    "vm/overcommit_memory",
    "net/ipv4/ip_local_port_range",
];

/// Beginnings of the names of variables that direct an MPI or its transports.
const VARIABLES: [&str; 7] = [
    "OMPI_MCA_",
    "PMIX_MCA_",
    "PRTE_MCA_",
    "MPIR_CVAR_",
    "I_MPI_",
    "FI_",
    "UCX_",
];

/// Least time over which steal is measured: 20 ticks of a processor, as the kernel counts them.
const STEAL_INTERVAL: Duration = Duration::from_millis(200);

/// Files and variables by which container runtimes mark their containers.
const CONTAINERS: [(&str, &str); 2] = [("/.dockerenv", "docker"), ("/run/.containerenv", "podman")];
const CONTAINER_VARIABLES: [(&str, &str); 3] = [
    ("APPTAINER_CONTAINER", "apptainer"),
    ("SINGULARITY_CONTAINER", "singularity"),
    ("KUBERNETES_SERVICE_HOST", "kubernetes"),
];

/// Collects facts about the kernel and its settings.
pub(super) fn kernel(uid: u32) -> Kernel {
    let names = rustix::system::uname();
    let setting = |name: &&str| {
        let text = text(Path::new("/proc/sys").join(name))?;
        Some(((*name).to_owned(), text))
    };
    let of_user = |pid: &i32| procfs::owner(*pid).is_some_and(|(owner, _)| owner == uid);
    let processes = procfs::processes().into_iter().map(|process| process.pid);
    let threads = processes
        .filter(of_user)
        .map(|pid| fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count));
    Kernel {
        release: names.release().to_string_lossy().into_owned(),
        machine: names.machine().to_string_lossy().into_owned(),
        settings: SETTINGS.iter().filter_map(setting).collect(),
        no_cma: kernel::read_by_process_vm().err().map(|e| e.to_string()),
        synchronized: kernel::clock_is_synchronized(),
        container: container(),
        hides_processes: hides_processes(&text("/proc/self/mountinfo").unwrap_or_default()),
        threads: threads.sum::<usize>() as u64,
    }
}

fn container() -> Option<String> {
    let file = CONTAINERS.iter().find(|(file, _)| Path::new(file).exists());
    let variable = || {
        let mut all = CONTAINER_VARIABLES.iter();
        all.find(|(name, _)| std::env::var_os(name).is_some())
    };
    file.or_else(variable).map(|(_, name)| (*name).to_owned())
}

/// Whether the processes of other users are hidden, given `/proc/self/mountinfo`. Source: proc(5).
fn hides_processes(mounts: &str) -> bool {
    let mut of_proc = mounts
        .lines()
        .filter(|line| line.split(' ').nth(4) == Some("/proc"));
    // The last mount covers the others.
    of_proc.next_back().is_some_and(|line| {
        let options = line.split([' ', ',']);
        let mut values = options.filter_map(|option| option.strip_prefix("hidepid="));
        values.any(|value| value != "0" && value != "off")
    })
}

/// Collects facts about the processors.
pub(super) fn cpus() -> Cpus {
    let slots = SlotLimits::detect();
    let nodes = fs::read_dir("/sys/devices/system/node");
    let nodes = nodes.into_iter().flatten().flatten();
    let is_node = |name: &str| {
        let number = name.strip_prefix("node");
        number.is_some_and(|it| it.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let nodes = nodes.filter(|entry| entry.file_name().to_str().is_some_and(is_node));
    let load = text("/proc/loadavg");
    let load = load.and_then(|text| text.split(' ').next()?.parse().ok());
    Cpus {
        online: online().unwrap_or(0),
        allowed: slots.affinity,
        quota: slots.quota().map(Quota::cpus),
        numa_nodes: nodes.count() as u32,
        load: load.unwrap_or(0.0),
        steal: None,
        governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    }
}

/// Time of all processors together since the start of the machine, in ticks.
#[derive(Clone, Copy, Debug)]
struct ProcessorTime {
    total: u64,
    steal: u64,
}

impl ProcessorTime {
    fn read() -> Option<Self> {
        Self::parse(&text("/proc/stat")?)
    }

    /// Parses `/proc/stat`. Time of guests is part of `user` and `nice` already. Source: proc_stat(5).
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let fields = line.split_ascii_whitespace().take(8);
        let fields: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self {
            total: fields.iter().sum(),
            steal: *fields.get(7)?,
        })
    }

    /// Returns the share of steal in the time since `earlier`; `None` if the kernel counted none.
    fn steal_share_since(self, earlier: Self) -> Option<f64> {
        let total = self.total.checked_sub(earlier.total)?;
        (total > 0).then_some(())?;
        let steal = self.steal.saturating_sub(earlier.steal);
        Some(steal as f64 / total as f64)
    }
}

/// Measures which share of processor time the hypervisor takes between two moments. The share since the start of the
/// machine would not show the present state, and `/proc/pressure/cpu` has only waits for processors within the machine.
#[derive(Debug)]
pub(super) struct StealMeasurement {
    start: Instant,
    first: Option<ProcessorTime>,
}

impl StealMeasurement {
    pub(super) fn start() -> Self {
        Self {
            start: Instant::now(),
            first: ProcessorTime::read(),
        }
    }

    /// Returns the share, from 0 to 1, after a pause if less than [`STEAL_INTERVAL`] has passed.
    pub(super) fn finish(self) -> Option<f64> {
        let first = self.first?;
        #[allow(clippy::disallowed_methods, reason = "a measurement takes its time")]
        std::thread::sleep(STEAL_INTERVAL.saturating_sub(self.start.elapsed()));
        ProcessorTime::read()?.steal_share_since(first)
    }
}

pub(super) fn memory() -> Memory {
    let info = text("/proc/meminfo").unwrap_or_default();
    let number = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
        number.unwrap_or(0_u64)
    };
    let mounts = text("/proc/mounts").unwrap_or_default();
    let is_huge = |line: &str| line.split(' ').nth(2) == Some("hugetlbfs");
    Memory {
        available: number("MemAvailable:") * 1024,
        cgroup: cgroup::remaining_limit(
            "memory",
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ),
        cgroup_processes: cgroup::remaining_limit(
            "pids",
            ("pids.max", "pids.current"),
            ("pids.max", "pids.current"),
        ),
        huge_pages: number("HugePages_Total:"),
        huge_pages_free: number("HugePages_Free:"),
        huge_pages_mounted: mounts.lines().any(is_huge),
    }
}

/// Examines a directory in which files are created.
pub(super) fn directory(path: &Path) -> Directory {
    let mut found = Directory {
        path: path.display().to_string(),
        ..Directory::default()
    };
    if let Ok(system) = statvfs(path) {
        found.free = Some(system.f_bavail * system.f_frsize);
        found.size = system.f_blocks * system.f_frsize;
        // Some file systems do not count files.
        found.free_files = Some(system.f_favail).filter(|_| system.f_files > 0);
        found.no_exec = system.f_flag.contains(StatVfsMountFlags::NOEXEC);
    }
    // Other hosts may have the same directory, and a predictable name could be taken by another user.
    let number = cleanup_record::number().map_err(io::Error::from);
    let creation = number.and_then(|number| {
        let file = path.join(format!(".wireup-doctor.{number:016x}"));
        File::create_new(&file).and_then(|_| fs::remove_file(&file))
    });
    found.problem = creation.err().map(|error| error.to_string());
    found
}

/// Examines a directory that ranks enter.
pub(super) fn entered(path: &Path) -> Directory {
    Directory {
        path: path.display().to_string(),
        problem: fs::read_dir(path).err().map(|error| error.to_string()),
        ..Directory::default()
    }
}

/// Finds the files, segments and processes that launches of this user have left behind.
pub(super) fn find_leftovers(uid: u32) -> Leftovers {
    let files = leftovers::unused_shared_memory(uid, SystemTime::UNIX_EPOCH);
    let bytes = files.iter().filter_map(|path| fs::metadata(path).ok());
    let segments = text("/proc/sysvipc/shm").unwrap_or_default();
    let segments = segments_left(&segments, uid);
    let orphaned = jobs::list(UserScope::User(uid)).into_iter();
    let orphaned = orphaned.filter(|job| job.state == JobLifeState::Orphaned);
    Leftovers {
        file_bytes: bytes.map(|meta| meta.len()).sum(),
        files: files.len() as u64,
        segments: segments.len() as u64,
        segment_bytes: segments.iter().sum(),
        processes: orphaned.map(|job| job.members.len() as u64).sum(),
    }
}

/// Returns the sizes of a user's segments that no process has attached, given `/proc/sysvipc/shm`. Source: proc_sysvipc(5).
fn segments_left(table: &str, uid: u32) -> Vec<u64> {
    let left = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let (size, attached, owner) = (number(3)?, number(6)?, number(7)?);
        (attached == 0 && owner == u64::from(uid)).then_some(size)
    });
    left.collect()
}

/// Returns the variables that configure an MPI.
pub(super) fn variables() -> BTreeMap<String, String> {
    let all = std::env::vars_os().filter_map(|(name, value)| {
        Some((
            name.into_string().ok()?,
            value.to_string_lossy().into_owned(),
        ))
    });
    all.filter(|(name, _)| VARIABLES.iter().any(|start| name.starts_with(start)))
        .collect()
}

fn text(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_tables_are_parsed() {
        let mount = |options: &str| {
            format!("24 30 0:22 / /proc rw,nosuid shared:12 - proc proc rw{options}\n")
        };
        assert!(!hides_processes(&mount("")) && !hides_processes(&mount(",hidepid=0")));
        assert!(
            hides_processes(&mount(",hidepid=2")) && hides_processes(&mount(",hidepid=invisible"))
        );
        let table = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid\n\
                     0          0   600                  4096  1  1      0   1000   1000\n\
                     0          1   600                  8192  1  1      1   1000   1000\n\
                     0          2   600                 12288  1  1      0      0      0\n";
        assert_eq!(segments_left(table, 1000), [4096]);
        assert_eq!(segments_left(table, 0), [12288]);
    }

    #[test]
    fn steal_is_share_of_processor_time_between_two_readings() {
        let read = |fields: &str| ProcessorTime::parse(&format!("cpu  {fields}\ncpu0 1 1 1\n"));
        let earlier = read("100 10 50 800 20 5 5 10 40 4").unwrap();
        assert_eq!((earlier.total, earlier.steal), (1000, 10));
        let later = read("130 10 50 840 20 5 5 40 60 4").unwrap();
        assert_eq!(later.steal_share_since(earlier), Some(0.3));
        assert_eq!(earlier.steal_share_since(earlier), None);
        assert_eq!(earlier.steal_share_since(later), None);
        // Kernels before 2.6.11 do not count it.
        assert!(read("100 10 50 800 20 5 5").is_none());
        let share = StealMeasurement::start().finish();
        assert!(
            share.is_none_or(|share| (0.0..=1.0).contains(&share)),
            "{share:?}"
        );
    }

    #[test]
    fn directory_is_tested_by_writing() {
        let dir = tempfile::tempdir().unwrap();
        let found = directory(dir.path());
        assert!(found.problem.is_none() && found.size > 0, "{found:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let missing = dir.path().join("missing");
        assert!(directory(&missing).problem.is_some() && entered(&missing).problem.is_some());
    }
}
