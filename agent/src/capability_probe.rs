//! Interfaces that this node can offer to ranks, as its `wireup capabilities` finds them.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::proto::v1;
use wireup_core::executables::CAPABILITIES;
use wireup_core::link::agent_protocol::NodeCapabilities;

/// Age from which on a result is not used: an administrator may have installed a libpmix.
const AGE_MAX: Duration = Duration::from_secs(10);

/// Time limit of the process, less than callers wait for an agent.
const LIMIT: Duration = Duration::from_secs(3);

/// Capabilities of this node, found when they are needed.
#[derive(Debug)]
pub struct CapabilityProbe {
    program: PathBuf,
    newest: Mutex<Option<(Instant, Option<NodeCapabilities>)>>,
}

impl CapabilityProbe {
    /// Creates the probe, which starts this `wireup`.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            newest: Mutex::default(),
        }
    }

    /// Returns the capabilities of the node; `None` if they cannot be found.
    pub async fn capabilities(&self) -> Option<NodeCapabilities> {
        // Further callers wait for the process of the first.
        let mut newest = self.newest.lock().await;
        if let Some((found_at, found)) = &*newest
            && found_at.elapsed() < AGE_MAX
        {
            return found.clone();
        }
        let found = self.find().await;
        if let Err(error) = &found {
            warn!("cannot find the interfaces of this node: {error}");
        }
        let found = found.ok();
        *newest = Some((Instant::now(), found.clone()));
        found
    }

    async fn find(&self) -> std::io::Result<NodeCapabilities> {
        let mut command = Command::new(&self.program);
        command.arg(CAPABILITIES).stdin(Stdio::null());
        command.stderr(Stdio::null()).kill_on_drop(true);
        let output = timeout(LIMIT, command.output()).await??;
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

impl From<NodeCapabilities> for v1::Capabilities {
    fn from(found: NodeCapabilities) -> Self {
        Self {
            interfaces: found.interfaces,
            libpmix: found.libpmix.unwrap_or_default(),
            pmix_problem: found.pmix_problem.unwrap_or_default(),
        }
    }
}

impl From<v1::Capabilities> for NodeCapabilities {
    fn from(reported: v1::Capabilities) -> Self {
        let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
        Self {
            interfaces: reported.interfaces,
            libpmix: non_empty(reported.libpmix),
            pmix_problem: non_empty(reported.pmix_problem),
        }
    }
}
