//! Inspects running processes from outside: the MPI that they have loaded, and whether the variables and descriptors
//! of their rank have reached them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::inspect::{LibraryFamily, family_of};
use crate::report::singleton_detection::MpiProcess;
use wireup_sys::leftovers::JOB;

/// Maximum number of processes that are inspected for a rank. A few shells and wrappers may start its MPI program.
const LOOKED_AT: usize = 16;

/// Beginnings of the names of programs that launch MPI processes with interfaces of their own.
const LAUNCHERS: &[&str] = &[
    "mpiexec", "mpirun", "hydra_", "prterun", "prted", "orterun", "orted", "srun",
];

/// Inspects the process of a rank and its descendants, until one has loaded an MPI.
pub(crate) fn find_mpi(pid: i32) -> Option<MpiProcess> {
    let mut left = vec![pid];
    for _ in 0..LOOKED_AT {
        let pid = left.pop()?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let launches = |launcher: &&str| name.starts_with(*launcher);
        if LAUNCHERS.iter().any(launches) || name.trim() == "wireup" {
            continue;
        }
        let process = inspect_process(pid);
        if process.any() {
            return Some(process);
        }
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        left.extend(
            children
                .split_ascii_whitespace()
                .filter_map(|pid| pid.parse::<i32>().ok()),
        );
    }
    None
}

/// Inspects one process. Data of another user's process that cannot be read is unknown.
fn inspect_process(pid: i32) -> MpiProcess {
    let mut process = MpiProcess::default();
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    for line in maps.split(|byte| *byte == b'\n') {
        let file = memchr::memrchr(b'/', line).map(|at| OsStr::from_bytes(&line[at + 1..]));
        let Some(file) = file else { continue };
        match family_of(file) {
            Some(LibraryFamily::OpenMpi) => {
                process.openmpi = true;
                process.openmpi4 |= file.as_bytes().starts_with(b"libopen-rte.so");
            }
            Some(LibraryFamily::Mpich) => process.mpich = true,
            Some(LibraryFamily::Pmix) => process.pmix = true,
            Some(LibraryFamily::Pmi) => process.pmi = true,
            Some(_) | None => {}
        }
    }
    if process.any() {
        inspect_environment(pid, &mut process);
    }
    process
}

fn inspect_environment(pid: i32, process: &mut MpiProcess) {
    let proc = Path::new("/proc").join(pid.to_string());
    let link = |name: &str| fs::read_link(proc.join(name)).ok();
    let program = link("exe");
    process.program = program.map(|program| program.to_string_lossy().into_owned());
    let own_network = fs::read_link("/proc/self/ns/net").ok();
    process.same_network = link("ns/net").zip(own_network).map(|(its, own)| its == own);
    let Ok(environment) = fs::read(proc.join("environ")) else {
        return;
    };
    let variables: BTreeMap<&[u8], &[u8]> = environment
        .split(|byte| *byte == 0)
        .filter_map(|entry| {
            let at = memchr::memchr(b'=', entry)?;
            Some((&entry[..at], &entry[at + 1..]))
        })
        .collect();
    let text = |name: &str| {
        variables
            .get(name.as_bytes())
            .map(|value| OsStr::from_bytes(value))
    };
    process.env_job = Some(text(JOB).is_some());
    process.env_pmi = Some(text("PMI_FD").is_some());
    process.env_pmix = Some(text("PMIX_NAMESPACE").is_some());
    process.env_marker = Some(text("JSM_JSRUN_PORT").is_some());
    let number = text("PMI_FD").and_then(OsStr::to_str);
    // A process whose environment can be read also permits to list its descriptors.
    process.pmi_socket = number.map(|number| {
        link(&format!("fd/{number}"))
            .is_some_and(|target| target.as_os_str().as_bytes().starts_with(b"socket:"))
    });
    process.server_directory = text("PMIX_SERVER_TMPDIR").map(|directory| {
        let inside = Path::new(directory)
            .strip_prefix("/")
            .unwrap_or_else(|_| Path::new(""));
        let visible = proc.join("root").join(inside).exists();
        (visible, directory.to_string_lossy().into_owned())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_without_mpi_has_none() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        assert!(!inspect_process(own).any());
        let mut process = MpiProcess::default();
        inspect_environment(own, &mut process);
        assert_eq!(process.same_network, Some(true));
        let program = std::env::current_exe().unwrap();
        assert_eq!(process.program.as_deref(), program.to_str());
        assert_eq!(process.env_job, Some(std::env::var_os(JOB).is_some()));
    }
}
