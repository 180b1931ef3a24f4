//! `wireup agent`: the daemon of a node.
//!
//! One task for each launch, and a [thread](crate::worker_threads) for the network; an agent without launches sleeps.

mod agent_log;
mod agent_servers;
pub mod front;
mod listen;
mod notify;
mod separate;
pub mod settings;

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tracing::{info, warn};

use self::agent_servers::{AgentServers, wait_for_leave};
use self::front::{Front, notify};
use self::listen::listen;
use self::notify::{READY, to_service_manager};
use self::settings::{AgentSettings, LogSettings, advertised, with_file};
use crate::PROGRAM_VERSION;
use crate::budget::Budgets;
use crate::capability_probe::CapabilityProbe;
#[cfg(feature = "etcd")]
use crate::etcd::EtcdSettings;
#[cfg(feature = "etcd")]
use crate::host_registrar::register_until;
use crate::launch::launch_registry::LaunchRegistry;
use crate::local_socket::agent_socket::Socket;
use crate::name_servers::NameServers;
use crate::peer::peer_connection::Peers;
use crate::state::{AdvertisedAddress, Agent};
use crate::user::spawn::step_spawner::StepSpawner;
use crate::user::{ServedUsers, files};
use crate::{fabric, local_socket, metrics, tls, worker_threads};
use wireup_agent_args::agent_args::{AgentArgs, AgentStopPolicy};
use wireup_core::failure::CommandError;
#[cfg(feature = "etcd")]
use wireup_core::job::hosts::registered::{EtcdHostSpec, HostRegistration};
#[cfg(feature = "etcd")]
use wireup_sys::machine_slots::SlotLimits;
use wireup_sys::{descriptors, procfs};

/// Time for clients to read the end of the last launch.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Number of descriptors for which the agent has room from the start.
const DESCRIPTORS: u64 = 4096;

/// Serves until it is stopped.
///
/// # Errors
/// One line: why it cannot.
pub fn main(args: AgentArgs) -> Result<u8, CommandError> {
    let args = with_file(args).map_err(CommandError::request)?;
    match args.on_stop {
        Some(AgentStopPolicy::Leave) => {
            agent_log::start(&LogSettings::new(&args)).map_err(CommandError::request)?;
            front::main()
        }
        Some(AgentStopPolicy::Wait) | None => daemon(args, None),
    }
}

/// Serves behind a [front] until it is stopped.
///
/// # Errors
/// One line: the reason of the failure.
pub fn behind_front(args: AgentArgs) -> Result<u8, CommandError> {
    let link = front::take_link()
        .map_err(|error| CommandError::system("cannot use standard input", error))?;
    let args = with_file(args).map_err(CommandError::request)?;
    daemon(args, Some(link))
}

fn daemon(args: AgentArgs, front: Option<UnixStream>) -> Result<u8, CommandError> {
    agent_log::start(&LogSettings::new(&args)).map_err(CommandError::request)?;
    let settings = AgentSettings::new(args).map_err(CommandError::request)?;
    // Before anything is opened: steps get their descriptors by number.
    descriptors::reserve_low()
        .map_err(|error| CommandError::system("cannot reserve descriptors", error))?;
    if let Err(error) = files::raise() {
        warn!("cannot raise the limit of open files: {error}");
    }
    // A connection or a step must not keep the others waiting.
    descriptors::make_room(DESCRIPTORS);
    runtime()?.block_on(start(settings, front))?;
    Ok(0)
}

fn runtime() -> Result<Runtime, CommandError> {
    worker_threads::main()
        .map_err(|error| CommandError::system("cannot create the asynchronous runtime", error))
}

/// An agent that has its sockets, its helper and no right that it does not need.
struct PreparedAgent {
    settings: AgentSettings,
    signals: DaemonSignals,
    front: Option<Front>,
    listener: std::net::TcpListener,
    metrics: Option<std::net::TcpListener>,
    bound: SocketAddr,
    socket: Socket,
    steps: Arc<StepSpawner>,
    served: ServedUsers,
}

async fn start(settings: AgentSettings, front: Option<UnixStream>) -> Result<(), CommandError> {
    // Before there is anything that a signal would leave behind.
    let signals = DaemonSignals::take()
        .map_err(|error| CommandError::system("cannot wait for signals", error))?;
    let front = front.map(Front::new).transpose();
    let front = front.map_err(|error| CommandError::system("cannot use standard input", error))?;
    let listener = listen(settings.listen, "--listen").await?;
    // It is watched by the network's thread.
    let failed = |error| CommandError::system("cannot listen", error);
    let listener = listener.into_std().map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let metrics = match settings.metrics {
        Some(address) => Some(listen(Some(address), "--metrics").await?.into_std()),
        None => None,
    };
    let metrics = metrics
        .transpose()
        .map_err(|error| CommandError::system("cannot listen for metrics", error))?;
    let served = ServedUsers::by_this_process();
    let socket = Socket::bind(&settings.socket, served == ServedUsers::Everybody)
        .map_err(CommandError::request)?;
    let steps = Arc::new(StepSpawner::new(settings.step.clone()));
    if let Some(account) = &settings.user {
        separate::drop_privileges(&settings, account, &steps, &socket)?;
    }
    // Not before: a thread would keep root's rights.
    let network = worker_threads::network()
        .map_err(|error| CommandError::system("cannot create the network thread", error))?;
    let requests = worker_threads::requests()
        .map_err(|error| CommandError::system("cannot create the request thread", error))?;
    let ready = PreparedAgent {
        settings,
        signals,
        front,
        listener,
        metrics,
        bound,
        socket,
        steps,
        served,
    };
    let served = serve(ready, network.handle(), requests.handle()).await;
    // A running look-up is not waited for.
    network.shutdown_background();
    requests.shutdown_background();
    served
}

async fn serve(
    mut ready: PreparedAgent,
    network: &Handle,
    requests: &Handle,
) -> Result<(), CommandError> {
    tokio::spawn(fabric::sweep());
    let agent = Arc::new(new_agent(&ready, network));
    info!(
        "wireup {PROGRAM_VERSION} serves node {}: {} (for others {}), {}",
        agent.name,
        ready.bound,
        agent.advertised(None),
        ready.settings.socket.display()
    );
    let (leave, left) = watch::channel(false);
    let (local_open, local_closed) = oneshot::channel::<()>();
    let (launchers_served, launchers_gone) = oneshot::channel::<()>();
    let AgentServers {
        clients,
        network_closed,
        tasks,
    } = AgentServers::start(
        &agent,
        &ready.settings,
        ready.listener,
        network,
        requests,
        &left,
    )
    .await;
    let mut serving = pin!(agent_servers::ended(tasks));
    let failed = |error| CommandError::system("cannot serve", error);
    #[cfg(feature = "etcd")]
    let registered = ready.settings.register.map(|(register, etcd)| {
        network.spawn(register_host(agent.clone(), register, etcd, left.clone()))
    });
    if let Some(listener) = ready.metrics {
        let tls = ready.settings.tls.clone();
        network.spawn(serve_metrics(agent.clone(), listener, tls, left.clone()));
    }
    notify(ready.front.as_mut(), READY).await;
    let launchers = local_socket::serve(
        agent.clone(),
        requests.clone(),
        ready.socket,
        clients,
        wait_for_leave(left.clone()),
        local_open,
    );
    let leaving = async {
        if let Some(mut front) = ready.front.take() {
            front.gone(&agent).await;
            let _ = leave.send(true);
            // Nothing is sent: they are dropped.
            let _ = tokio::join!(network_closed, local_closed);
            let count = agent.registry.count();
            info!("the next agent takes over; {count} launches continue in this process");
            // Now the process in front ends.
            drop(front);
        }
    };
    tokio::select! {
        served = async {
            let served = (&mut serving).await;
            if *left.borrow() {
                // Launches of other agents ended before; those of launchers on this machine may go on.
                let _ = launchers_gone.await;
                agent.registry.drain();
                agent.registry.drained().await;
            }
            served
        } => {
            served.map_err(failed)?;
        }
        () = async {
            tokio::join!(launchers, leaving);
            drop(launchers_served);
            std::future::pending().await
        } => {}
        () = agent.name_servers.run_timers() => {}
        () = agent.scheduled.run_timers() => {}
        () = ready.settings.tls.watch() => {}
        () = reload(ready.signals.hangup, &ready.settings.tls) => {}
        failure = separate::lost(&ready.steps) => return Err(failure),
        stopped = stop(&mut ready.signals.end, &agent.registry) => {
            if stopped {
                // Watchers of the last launch must get its end.
                if let Ok(served) = timeout(LAST_WORDS, serving).await {
                    served.map_err(failed)?;
                }
            }
        }
    }
    #[cfg(feature = "etcd")]
    if let Some(registered) = registered {
        // A panic there was reported where it was.
        let _ = registered.await;
    }
    Ok(())
}

/// An agent without launches.
fn new_agent(ready: &PreparedAgent, network: &Handle) -> Agent {
    let settings = &ready.settings;
    let budgets = Arc::<Budgets>::default();
    let peers = Peers::new(settings.tls.clone(), settings.heartbeat, network.clone());
    Agent {
        name: settings.name.clone(),
        boot_id: procfs::boot_id().unwrap_or_default(),
        address: match &settings.advertise {
            Some(address) => AdvertisedAddress::Configured(address.clone()),
            None => AdvertisedAddress::Assumed(advertised(ready.bound)),
        },
        step_spawner: Arc::clone(&ready.steps),
        capability_probe: CapabilityProbe::new(settings.step.clone()),
        socket: settings.socket.clone(),
        registry: Arc::new(LaunchRegistry::new(budgets.clone())),
        scheduled: Arc::default(),
        peers: Arc::new(peers),
        name_servers: Arc::new(NameServers::new(settings.names.clone(), budgets.clone())),
        launch_agents: None,
        liveness_limit: settings.heartbeat.silence,
        fence_timeout: settings.fence_timeout,
        budgets,
        refusals: Arc::default(),
        counters: Arc::default(),
        served_users: ready.served,
        frames: network.clone(),
        background: Handle::current(),
    }
}

/// Keeps this host registered until the agent takes no new launch.
#[cfg(feature = "etcd")]
async fn register_host(
    agent: Arc<Agent>,
    register: EtcdHostSpec,
    etcd: EtcdSettings,
    leaving: watch::Receiver<bool>,
) {
    let own = HostRegistration {
        name: agent.name.clone(),
        address: agent.advertised(None),
        slots: register
            .slots
            .unwrap_or_else(|| SlotLimits::detect().count()),
        labels: register.labels,
    };
    let end = async {
        tokio::select! {
            () = agent.registry.draining_begun() => {}
            () = wait_for_leave(leaving) => {}
        }
    };
    register_until(end, &etcd, own).await;
}

/// Serves metrics until the agent leaves its listeners to the next one.
async fn serve_metrics(
    agent: Arc<Agent>,
    listener: std::net::TcpListener,
    tls: Arc<tls::TlsConfigs>,
    leaving: watch::Receiver<bool>,
) {
    match TcpListener::from_std(listener) {
        Ok(listener) => tokio::select! {
            () = metrics::serve(agent, listener, tls) => {}
            () = wait_for_leave(leaving) => {}
        },
        Err(error) => warn!("cannot serve metrics: {error}"),
    }
}

/// The signals an agent heeds.
struct DaemonSignals {
    hangup: Signal,
    /// Signals that end the agent: terminate and interrupt.
    end: [Signal; 2],
}

impl DaemonSignals {
    fn take() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            end: [
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
            ],
        })
    }
}

/// Reads the certificate again on every SIGHUP; returns only if that cannot be awaited.
async fn reload(mut hangup: Signal, tls: &tls::TlsConfigs) {
    while hangup.recv().await.is_some() {
        info!("the agent rereads its certificate");
        tls.reload();
    }
}

/// Waits until the agent is to end: at the last launch's end after one signal or a call, at once after another signal.
/// Returns whether no launch is left.
async fn stop([terminate, interrupt]: &mut [Signal; 2], registry: &LaunchRegistry) -> bool {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = registry.draining_begun() => {}
    }
    to_service_manager(b"STOPPING=1\n");
    registry.drain();
    match registry.count() {
        0 => {}
        launches => info!("the agent accepts no new launch and ends with the last of {launches}"),
    }
    tokio::select! {
        () = registry.drained() => {
            info!("ends");
            return true;
        }
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    warn!("the agent ends at once, with {} launches", registry.count());
    false
}
