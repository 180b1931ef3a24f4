//! State that all parts of an agent share.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use crate::PROGRAM_VERSION;
use crate::budget::Budgets;
use crate::capability_probe::CapabilityProbe;
use crate::counters::Counters;
use crate::launch::launch_registry::LaunchRegistry;
use crate::launch_agent_ports::LaunchAgents;
use crate::name_servers::NameServers;
use crate::peer::peer_connection::Peers;
use crate::refusals::Refusals;
use crate::scheduled::launch_table::ScheduledLaunches;
use crate::user::spawn::step_spawner::StepSpawner;
use crate::user::{ServedUsers, User, UserError};
use wireup_core::link::agent_protocol::NodeStatus;

/// The address of an agent.
#[derive(Clone, Debug)]
pub enum AdvertisedAddress {
    /// Set by its administrator.
    Configured(String),
    /// Derived from the address on which it listens.
    Assumed(String),
}

/// An agent: its identity, its users, and its launches.
#[derive(Debug)]
pub struct Agent {
    /// Name of the node.
    pub name: String,
    /// Boot id of the machine; empty if unknown.
    pub boot_id: String,
    /// Address for other agents.
    pub address: AdvertisedAddress,
    /// Spawner of steps and launchers.
    pub step_spawner: Arc<StepSpawner>,
    /// Interfaces of this node.
    pub capability_probe: CapabilityProbe,
    /// Socket for launchers of this machine.
    pub socket: PathBuf,
    pub registry: Arc<LaunchRegistry>,
    /// Launches that schedulers started, and their parts on this node.
    pub scheduled: Arc<ScheduledLaunches>,
    pub peers: Arc<Peers>,
    /// Name servers of the users.
    pub name_servers: Arc<NameServers>,
    /// The agents of its launch, if it serves only one and has started them.
    pub launch_agents: Option<LaunchAgents>,
    /// Longest accepted silence of a process on this machine that takes part in a launch.
    pub liveness_limit: Duration,
    /// The site's time limit of fences in launches of schedulers.
    pub fence_timeout: Option<Duration>,
    /// Budgets of all users.
    pub budgets: Arc<Budgets>,
    pub refusals: Arc<Refusals>,
    pub counters: Arc<Counters>,
    pub served_users: ServedUsers,
    /// The network's thread, which moves the frames of launches too and works on no request.
    pub frames: Handle,
    /// The thread for the work of launches that would delay frames: it starts steps, logs their output and returns memory.
    pub background: Handle,
}

impl Agent {
    /// Returns the user as whom a launch runs here.
    ///
    /// # Errors
    /// [`UserError`]
    pub async fn user(&self, uid: u32) -> Result<User, UserError> {
        self.served_users.check(uid)?;
        let served = self.served_users;
        // It may wait for a directory service.
        let found = spawn_blocking(move || served.find(uid)).await;
        found.unwrap_or(Err(UserError::Unknown(uid)))
    }

    /// Returns the user whose rights the agent has: root, also if its helper has them, or the user that it serves.
    pub fn agent_uid(&self) -> u32 {
        self.served_users.agent_uid()
    }

    /// Returns the address at which others reach the agent. A call to `here` shows that it can be reached there, unless
    /// that is a loopback address.
    pub fn advertised(&self, here: Option<SocketAddr>) -> String {
        match (&self.address, here.filter(|at| !at.ip().is_loopback())) {
            (AdvertisedAddress::Assumed(_), Some(here)) => here.to_string(),
            (AdvertisedAddress::Configured(address) | AdvertisedAddress::Assumed(address), _) => {
                address.clone()
            }
        }
    }

    /// Returns the number of launches that the agent takes part in.
    pub fn count_launches(&self) -> u32 {
        u32::try_from(self.registry.count()).unwrap_or(u32::MAX)
    }

    /// Returns the agent's status, for local callers.
    pub async fn status(&self) -> NodeStatus {
        NodeStatus {
            name: self.name.clone(),
            advertised: self.advertised(None),
            version: PROGRAM_VERSION.to_owned(),
            launches: self.count_launches(),
            draining: self.registry.draining(),
            capabilities: self.capability_probe.capabilities().await,
            ..NodeStatus::default()
        }
    }
}
