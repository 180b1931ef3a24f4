//! Reads the build ids of programs and MPI libraries that ranks load.

use crate::inspect::build_id;
use crate::inspect::program::Kind;
use crate::inspect::{DetectionReason, DetectionResult};
use crate::plan::HostPlan;
use wireup_core::job::builds::{Build, BuildMismatchPolicy};
use wireup_core::job::ids::{AppNum, NodeId};

/// Builds of the programs with ranks on a node of several hosts, or of all programs. Empty if builds are not compared: in an
/// image, or with `--same-build off`.
pub(crate) fn builds_of(plan: &HostPlan, node: Option<NodeId>) -> Vec<Build> {
    if plan.spec.layout.spread.same_build == BuildMismatchPolicy::Off
        || plan.spec.container.image.is_some()
    {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (number, app) in (0..).zip(&plan.apps) {
        if node.is_some_and(|node| !plan.has_app(node, AppNum(number))) {
            continue;
        }
        let mut add = |library, name: String, id: Option<String>| {
            all.extend(id.map(|id| Build {
                app: number,
                library,
                name,
                id,
            }));
        };
        let program = app.program.path();
        if let Kind::Elf(_) = app.program.kind() {
            let name = app.program.path().display().to_string();
            add(false, name, build_id::read_build_id(program));
        }
        if let Some((name, path)) = mpi_library(&app.detected) {
            add(true, name, build_id::read_build_id(&path));
        }
    }
    all
}

/// Name and path of the MPI library that a program loads.
pub(super) fn mpi_library(detected: &DetectionResult) -> Option<(String, std::path::PathBuf)> {
    let found = match &detected.why {
        DetectionReason::Library(found, _) => found.path.as_ref(),
        _ => None,
    };
    let path = detected.openmpi.as_ref().or(found)?;
    let name = path.file_name()?.to_string_lossy().into_owned();
    name.starts_with("libmpi").then(|| (name, path.clone()))
}
