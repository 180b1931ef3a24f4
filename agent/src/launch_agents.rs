//! Agents that serve one launch of their own user and end with it: no socket in the file system, no files, no
//! administrator.
//!
//! ```text
//!  wireup run ── socketpair ── wireup-agent launch-entry ── stdin, stdout ── srun ── wireup-agent for-launch, on each host
//! ```
//!
//! - [`first_agent`]: on the launcher's host; creates an authority for the launch and starts the agents
//! - [`pbs_task`]: standard input and output for a command of a batch system that passes none
//! - [`host_agent`]: on each host; gets the authority on its standard input, and issues its own certificate
//!
//! Rule: the authority's key is on no command line, in no environment and in no file: it is sent to the agents'
//! standard input. All agents belong to the same user and the same launch, so the key gives none of them further
//! rights.
//! Rule: an agent's standard input stays open as long as the launch. Its end ends the agent.
//! Rule: a batch system may send a signal that is for ranks to any of these processes. None of them ends by it, and an
//! agent passes it on to the ranks of its host.

#[allow(unsafe_code, reason = "a descriptor that the launcher passes")]
pub mod first_agent;
pub mod host_agent;
mod launch_authority;
pub mod pbs_task;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::runtime::Handle;
use tokio::signal::{self, unix::SignalKind};
use tokio::time::{sleep, timeout};

use crate::budget::Budgets;
use crate::capability_probe::CapabilityProbe;
use crate::daemon::settings;
use crate::launch::launch_registry::LaunchRegistry;
use crate::launch_agent_ports::LaunchAgents;
use crate::name_servers::NameServers;
use crate::peer::peer_connection::Peers;
use crate::state::{AdvertisedAddress, Agent};
use crate::tls::{Heartbeat, TlsConfigs};
use crate::user::spawn::step_spawner::StepSpawner;
use crate::user::{ServedUsers, files};
use wireup_core::failure::CommandError;
use wireup_sys::signals::FOR_RANKS;
use wireup_sys::{descriptors, procfs};

/// First word of the line that an agent prints when it is ready; its host and its port follow.
const READY: &str = "wireup-agent-ready";

/// Runs one of them until its launch has ended.
fn run<F: Future<Output = Result<(), CommandError>>>(
    serve: impl FnOnce(Handle) -> F,
) -> Result<u8, CommandError> {
    descriptors::reserve_low()
        .map_err(|error| CommandError::system("cannot reserve descriptors", error))?;
    // A small limit is enough for small launches.
    let _ = files::raise();
    let runtime = |error| CommandError::system("cannot create the asynchronous runtime", error);
    let main = crate::worker_threads::main().map_err(runtime)?;
    let network = crate::worker_threads::network().map_err(runtime)?;
    let served = main.block_on(serve(network.handle().clone()));
    network.shutdown_background();
    main.shutdown_background();
    served.map(|()| 0)
}

/// Time that a signal for ranks waits before it is passed on. A batch system may signal all processes of a job one
/// after the other: a step knows by then that its ranks have got the signal without it.
const SETTLE: Duration = Duration::from_millis(200);

/// The signals for ranks that this process gets. As long as there is one of these, none ends the process.
struct RankSignals(Vec<(Signal, signal::unix::Signal)>);

impl RankSignals {
    fn new() -> Result<Self, CommandError> {
        let receive = |kind: Signal| {
            let received = signal::unix::signal(SignalKind::from_raw(kind.as_raw()))?;
            Ok((kind, received))
        };
        let all: io::Result<_> = FOR_RANKS.into_iter().map(receive).collect();
        all.map(Self)
            .map_err(|error| CommandError::system("cannot receive signals", error))
    }

    /// Passes each on after this time, several of the same within it once.
    fn pass(self, settle: Duration, to: impl Fn(Signal) + Clone + Send + 'static) {
        for (kind, mut received) in self.0 {
            let to = to.clone();
            tokio::spawn(async move {
                while received.recv().await.is_some() {
                    sleep(settle).await;
                    let _ = timeout(Duration::ZERO, received.recv()).await;
                    to(kind);
                }
            });
        }
    }
}

/// Makes an agent for one launch of this process's user.
fn agent(
    name: String,
    tls: Arc<TlsConfigs>,
    other_agents: Option<LaunchAgents>,
    network: Handle,
) -> Result<Arc<Agent>, CommandError> {
    let budgets = Arc::<Budgets>::default();
    let heartbeat = Heartbeat::default();
    let step = settings::step().map_err(CommandError::request)?;
    Ok(Arc::new(Agent {
        address: AdvertisedAddress::Assumed(name.clone()),
        name,
        boot_id: procfs::boot_id().unwrap_or_default(),
        capability_probe: CapabilityProbe::new(step.clone()),
        step_spawner: Arc::new(StepSpawner::new(step)),
        socket: PathBuf::new(),
        registry: Arc::new(LaunchRegistry::single_launch(budgets.clone())),
        scheduled: Arc::default(),
        peers: Arc::new(Peers::new(tls, heartbeat, network.clone())),
        name_servers: Arc::new(NameServers::new(Vec::new(), budgets.clone())),
        launch_agents: other_agents,
        liveness_limit: heartbeat.silence,
        fence_timeout: None,
        budgets,
        refusals: Arc::default(),
        counters: Arc::default(),
        served_users: ServedUsers::Only(rustix::process::geteuid().as_raw()),
        frames: network,
        background: Handle::current(),
    }))
}
