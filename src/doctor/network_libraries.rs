//! libfabric and UCX: which of their providers really open. A process of its own tries it: drivers that they load may hang
//! or crash.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::doctor::fabric_libraries::{self, LIBFABRIC, UCP};
use wireup_core::doctor::facts::{NetworkLibrary, ProgramFacts};
use wireup_sys::pidfd::wait_for;

/// How long they may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the libraries offer that the program's MPI would use, or the system's.
pub(super) fn probe_libraries(program: Option<&ProgramFacts>) -> Vec<NetworkLibrary> {
    let directories = library_directories(program.and_then(|program| program.mpi.as_deref()));
    tried(&directories).unwrap_or_else(|| {
        let problem = format!(
            "it did not open within {} s, or crashed",
            PATIENCE.as_secs()
        );
        vec![NetworkLibrary {
            name: "libfabric or UCX".into(),
            problem: Some(problem),
            ..NetworkLibrary::default()
        }]
    })
}

/// Directories in which an MPI may have libraries of its own.
fn library_directories(mpi: Option<&str>) -> Vec<PathBuf> {
    let Some(directory) = mpi.and_then(|mpi| Path::new(mpi).parent()) else {
        return Vec::new();
    };
    // Intel MPI has its libfabric in the last two.
    let below = [
        "",
        "libfabric",
        "../libfabric/lib",
        "../opt/mpi/libfabric/lib",
    ];
    below.iter().map(|below| directory.join(below)).collect()
}

fn tried(directories: &[PathBuf]) -> Option<Vec<NetworkLibrary>> {
    let own = std::env::current_exe().ok()?;
    let mut child = Command::new(own)
        .arg0("wireup")
        .args(["doctor", "--providers"])
        .args(directories)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // What it prints fits into a pipe.
    if !wait_for(&child, PATIENCE) {
        let _ = child.kill();
    }
    let output = child.wait_with_output().ok()?;
    // UCX prints its warnings there too.
    let printed = String::from_utf8_lossy(&output.stdout);
    let mut lines = printed.lines();
    lines.find_map(|line| serde_json::from_str(line).ok())
}

/// What is printed by the process that tries it: a list of libraries.
pub fn opened(directories: &[PathBuf]) -> String {
    let mut all = Vec::new();
    all.extend(fabric_libraries::libfabric(&file(directories, LIBFABRIC)));
    all.extend(fabric_libraries::ucx(&file(directories, UCP)));
    serde_json::to_string(&all).expect("text only") + "\n"
}

/// A library in one of these directories, or where the dynamic loader finds it.
fn file(directories: &[PathBuf], name: &str) -> PathBuf {
    let mut files = directories.iter().map(|directory| directory.join(name));
    files
        .find(|file| file.exists())
        .unwrap_or_else(|| PathBuf::from(name))
}
