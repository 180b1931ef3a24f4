//! Resources that ranks of a job have registered over PMI for removal at its end.

use std::fs;

use crate::backend::guard::GuardLine;
use crate::plan::packed_files::FileIdentity;
use wireup_core::pmi::node_resource::NodeResource;
use wireup_sys::sysv;

/// Registered resources of one job on this host; removed when this is dropped.
#[derive(Debug, Default)]
pub(super) struct RegisteredResources(Vec<NodeResource>);

impl RegisteredResources {
    /// Adds a resource. The guard becomes responsible for a file that exists already.
    pub(super) fn add(&mut self, resource: NodeResource, guard: &GuardLine) {
        if let NodeResource::File(path) = &resource
            && let Ok(identity) = FileIdentity::with_any_content(path)
        {
            guard.charge(path, Some(identity));
        }
        self.0.push(resource);
    }
}

impl Drop for RegisteredResources {
    fn drop(&mut self) {
        for resource in &self.0 {
            match resource {
                NodeResource::File(path) => {
                    let _ = fs::remove_file(path);
                }
                NodeResource::Segment(id) => sysv::remove_segment(*id),
                NodeResource::Semaphores(id) => sysv::remove_semaphores(*id),
                NodeResource::Queue(id) => sysv::remove_queue(*id),
            }
        }
    }
}
