//! Facts about a job for PMIx queries, from its plan.

use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::plan::HostPlan;
use wireup_core::job::ids::{AppNum, NodeId};
use wireup_core::node::LaunchFacts;

impl LaunchFacts for HostPlan {
    fn host(&self, node: NodeId) -> Option<&str> {
        self.node_names.get(node.index()).map(String::as_str)
    }

    fn executable(&self, app: AppNum) -> Option<Vec<u8>> {
        let app = self.apps.get(app.0 as usize)?;
        Some(app.program.path().as_os_str().as_bytes().to_vec())
    }

    fn command(&self, app: AppNum) -> Option<Vec<u8>> {
        let app = self.apps.get(app.0 as usize)?;
        let words = app.program.words().into_iter().chain(app.args.clone());
        let words: Vec<Vec<u8>> = words.map(OsStringExt::into_vec).collect();
        Some(words.join(&b' '))
    }
}
