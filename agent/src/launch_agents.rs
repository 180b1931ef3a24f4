//! The agents that a launch has for itself: where they listen, as they report it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use wireup_core::job::hosts::compress;
use wireup_core::link::control::LaunchMember;

/// How long the agents may take to start.
pub const START_LIMIT: Duration = Duration::from_secs(120);

/// What is known of the agents.
#[derive(Debug, Default)]
pub struct Known {
    /// Ports by host.
    pub ports: BTreeMap<String, u16>,
    /// Why no further agent will report.
    pub ended: Option<String>,
}

/// The agents of one launch.
#[derive(Clone, Debug)]
pub struct LaunchAgents(pub watch::Receiver<Known>);

/// Why the agents cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentStartError {
    #[error("{why} before the agent of {hosts} was ready")]
    Ended { why: String, hosts: String },
    #[error(
        "the agent of {0} was not ready within {limit} s",
        limit = START_LIMIT.as_secs()
    )]
    Late(String),
}

impl LaunchAgents {
    /// Waits until the agents of these hosts are ready, and enters their addresses.
    ///
    /// # Errors
    /// [`AgentStartError`] with the hosts that are not ready.
    pub async fn reach(&self, members: &mut [LaunchMember]) -> Result<(), AgentStartError> {
        let mut known = self.0.clone();
        let missing = |known: &Known| {
            let names = members.iter().map(|member| &member.name);
            let missing = names.filter(|name| !known.ports.contains_key(*name));
            missing.cloned().collect::<BTreeSet<String>>()
        };
        let decided = |known: &Known| known.ended.is_some() || missing(known).is_empty();
        let waited = timeout(START_LIMIT, known.wait_for(decided)).await;
        drop(waited);
        let known = self.0.borrow();
        let hosts = compress(missing(&known));
        match &known.ended {
            _ if hosts.is_empty() => {}
            Some(why) => {
                let why = why.clone();
                return Err(AgentStartError::Ended { why, hosts });
            }
            None => return Err(AgentStartError::Late(hosts)),
        }
        for member in members {
            member.address = format!("{}:{}", member.name, known.ports[&member.name]);
        }
        Ok(())
    }
}
