//! Objects that the launch creates on this host and removes at its end: directory, control group, containers of its ranks.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use super::job_containers::JobContainers;
use crate::backend::guard::GuardLine;
use crate::plan::HostPlan;
use crate::plan::directory::{self, DirectoryError, JobDirectory};
use crate::plan::host_scope::HostScope;
use wireup_sys::cgroup::{self, Cgroup};
use wireup_sys::hwloc;

/// Creates the launch's directory on this host. The guard is made responsible for it before.
pub(super) fn job_directory(
    plan: &HostPlan,
    part: HostScope,
    guard: &GuardLine,
) -> Result<JobDirectory, DirectoryError> {
    let path = directory_path(plan, part);
    guard.announce_directory(&path);
    JobDirectory::create(path)
}

/// Path of the launch's directory on this host.
fn directory_path(plan: &HostPlan, part: HostScope) -> PathBuf {
    match part {
        HostScope::Whole => directory::job_directory(&plan.job.nspace),
        HostScope::Node(node) => directory::step_directory(&plan.job.nspace, node),
    }
}

/// Path of the file that [`HostCleanup::describe_host`] writes.
pub(super) fn topology_file(plan: &HostPlan, part: HostScope) -> PathBuf {
    directory_path(plan, part).join("hwloc.xml")
}

/// Creates the launch's control group on this host, if the system allows it.
pub(super) fn group(plan: &HostPlan, part: HostScope, guard: &GuardLine) -> Option<Cgroup> {
    let name = match part {
        HostScope::Whole => plan.job.nspace.to_string(),
        HostScope::Node(node) => format!("{}.n{node}", plan.job.nspace),
    };
    let place = cgroup::place(&name)?;
    // The guard is made responsible before the group exists, as with the directory.
    let _ = guard.add_group(&place);
    Cgroup::make(place)
}

/// Objects of the launch on this host that its end removes.
pub(super) struct HostCleanup {
    /// Directory of the launch, if it has one.
    pub(super) directory: Option<JobDirectory>,
    /// Control group of the launch, if it has one.
    pub(super) cgroup: Option<Arc<Cgroup>>,
    /// Containers of the ranks.
    pub(super) containers: JobContainers,
}

impl HostCleanup {
    /// Returns the directory of the launch, and creates it if necessary.
    ///
    /// # Errors
    /// [`DirectoryError`] when it cannot be created.
    pub(super) fn make_directory(
        &mut self,
        plan: &HostPlan,
        part: HostScope,
        guard: &GuardLine,
    ) -> Result<&JobDirectory, DirectoryError> {
        let directory = match self.directory.take() {
            Some(directory) => directory,
            None => job_directory(plan, part, guard)?,
        };
        Ok(self.directory.insert(directory))
    }

    /// Writes the topology of this host to a file in the directory of the launch, once. Errors are ignored: a rank that does
    /// not find the file discovers the topology itself.
    pub(super) fn describe_host(&mut self, plan: &HostPlan, part: HostScope, guard: &GuardLine) {
        let file = topology_file(plan, part);
        if file.exists() {
            return;
        }
        let text = match &plan.binding {
            Some(binding) => Some(Cow::from(&binding.topology.description)),
            None => {
                let discovered = hwloc::describe(None, true).ok();
                let discovered = discovered.filter(|found| found.this_host);
                discovered.map(|found| Cow::from(found.xml))
            }
        };
        if let Some(text) = text
            && self.make_directory(plan, part, guard).is_ok()
        {
            let _ = fs::write(file, text.as_bytes());
        }
    }

    /// Removes the containers, in which no rank runs any more.
    pub(super) fn remove_containers(&mut self) {
        self.containers.clear();
        self.containers.of_launch = None;
    }

    /// Removes the directory of the launch.
    ///
    /// # Errors
    /// When something in it cannot be removed.
    pub(super) fn remove_directory(&mut self) -> io::Result<()> {
        self.directory.take().map_or(Ok(()), JobDirectory::remove)
    }

    /// Removes the control group, which is empty or whose remaining processes are not waited for.
    pub(super) fn end_group(&mut self) {
        if let Some(group) = self.cgroup.take() {
            cgroup::end(group.path());
        }
    }

    /// Removes everything of a launch that has started nothing.
    pub(super) fn abandon(mut self) {
        self.remove_containers();
        let _ = self.remove_directory();
        self.end_group();
    }
}
