//! Finds the providers of libfabric and UCX that can be opened. A separate process opens them: the drivers that they load may
//! hang or crash.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::run_within;
use crate::doctor::fabric_libraries::{LIBFABRIC, UCP, open_library, start_ucx, try_providers};
use wireup_core::doctor::facts::{NetworkLibrary, ProgramFacts};

/// Time that opening them may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Opens the libraries that the program's MPI would use, or those of the system.
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
    // The last two are for Intel MPI's libfabric.
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
    let mut command = Command::new(own);
    command
        .arg0("wireup")
        .args(["doctor", "--providers"])
        .args(directories);
    let (_, output) = run_within(&mut command, PATIENCE).ok()?;
    // UCX prints its warnings to standard output too.
    let printed = String::from_utf8_lossy(&output.stdout);
    let mut lines = printed.lines();
    lines.find_map(|line| serde_json::from_str(line).ok())
}

/// Opens the libraries, and returns the line that the separate process prints: a list of libraries.
pub fn opened(directories: &[PathBuf]) -> String {
    let mut all = Vec::new();
    all.extend(open_library(
        "libfabric",
        &file(directories, LIBFABRIC),
        try_providers,
    ));
    all.extend(open_library("UCX", &file(directories, UCP), start_ucx));
    serde_json::to_string(&all).expect("text only") + "\n"
}

/// Returns the path of a library in one of these directories, or its name for the dynamic loader.
fn file(directories: &[PathBuf], name: &str) -> PathBuf {
    let mut files = directories.iter().map(|directory| directory.join(name));
    files
        .find(|file| file.exists())
        .unwrap_or_else(|| PathBuf::from(name))
}
