//! `wireup agent`: the daemon of a node.
//!
//! One thread and one task for each launch; an agent without launches sleeps.

mod log;
mod notify;
pub mod settings;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tracing::{info, warn};
use wireup::agent::descriptors;
use wireup::cli::handed::agent::AgentArgs;
use wireup::launcher::run::RunFailure;
use wireup::link::control::NodeStatus;

use self::notify::notify;
use self::settings::{LogSettings, Settings, advertised, everywhere, with_file};
use crate::launch::registry::Registry;
use crate::local::{self, Socket};
use crate::node_agent;
use crate::node_agent::launches::Launches;
use crate::peer::MESSAGE_MAX;
use crate::peer::client::PROGRAM_VERSION;
use crate::peer::connection::Peers;
use crate::peer::server::PeerService;
use crate::proto::v1::peer_server::PeerServer;
use crate::refusals::{LogRefusals, Refusals};
use crate::rendezvous::Meetings;
use crate::tls;
use crate::user::spawn::steps::Steps;
use crate::user::{Served, User, UserError, files};

/// How long clients have to take the end of the last launch.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What all parts of an agent share.
#[derive(Debug)]
pub struct Agent {
    /// Name of the node.
    pub name: String,
    /// Where others are to reach it, as it was told to say; otherwise as far as this agent can know.
    advertise: Result<String, String>,
    /// The executable of launchers.
    pub wireup: PathBuf,
    /// Where steps come from.
    pub steps: Arc<Steps>,
    /// Where launchers of this machine find it.
    pub socket: PathBuf,
    /// Its launches.
    pub registry: Arc<Registry>,
    /// Those that schedulers started, and their parts here.
    pub scheduled: Arc<Launches>,
    /// Other agents.
    pub peers: Arc<Peers>,
    /// Where launches meet that know nothing of each other.
    pub meetings: Arc<Meetings>,
    /// What it has refused lately.
    pub refusals: Arc<Refusals>,
    served: Served,
}

impl Agent {
    /// The user as whom a launch runs here.
    ///
    /// # Errors
    /// [`UserError`]
    pub async fn user(&self, uid: u32) -> Result<User, UserError> {
        self.served.check(uid)?;
        let served = self.served;
        // It may wait for a directory service.
        let found = spawn_blocking(move || served.find(uid)).await;
        found.unwrap_or(Err(UserError::Unknown(uid)))
    }

    /// Whether launches of a user may meet here, whether or not this node knows him.
    ///
    /// # Errors
    /// [`UserError`]
    pub fn serves(&self, uid: u32) -> Result<(), UserError> {
        self.served.check(uid)
    }

    /// Where others are to reach it. Who called at `here` has shown that it can be reached there, unless
    /// that leads nobody else anywhere.
    pub fn advertised(&self, here: Option<SocketAddr>) -> String {
        match (&self.advertise, here.filter(|at| !at.ip().is_loopback())) {
            (Err(_), Some(here)) => here.to_string(),
            (Ok(address) | Err(address), _) => address.clone(),
        }
    }

    /// How it is, for who asks on this machine.
    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            name: self.name.clone(),
            advertised: self.advertised(None),
            asked: String::new(),
            version: PROGRAM_VERSION.to_owned(),
            launches: u32::try_from(self.registry.count()).unwrap_or(u32::MAX),
            draining: self.registry.draining(),
            problem: None,
        }
    }
}

/// How many descriptors the agent has room for from the start.
const DESCRIPTORS: u64 = 4096;

/// Serves until it is told to stop.
///
/// # Errors
/// One line: why it cannot.
pub fn main(args: AgentArgs) -> Result<u8, RunFailure> {
    let refused = |error: &dyn std::fmt::Display| RunFailure::refused(error.to_string());
    let args = with_file(args).map_err(|error| refused(&error))?;
    log::start(&LogSettings::new(&args)).map_err(|error| refused(&error))?;
    let settings = Settings::new(args).map_err(|error| refused(&error))?;
    // Before anything is opened: steps get their descriptors by number.
    descriptors::reserve_low()
        .map_err(|error| RunFailure::own("cannot reserve descriptors", error))?;
    if let Err(error) = files::raise() {
        warn!("cannot raise the limit of open files: {error}");
    }
    // A connection or a step must not keep the others waiting.
    descriptors::make_room(DESCRIPTORS);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
        .map_err(|error| RunFailure::own("cannot make a runtime", error))?;
    runtime.block_on(serve(settings))?;
    Ok(0)
}

async fn serve(settings: Settings) -> Result<(), RunFailure> {
    // Before there is anything that a signal would leave behind.
    let mut signals =
        Signals::take().map_err(|error| RunFailure::own("cannot wait for signals", error))?;
    let listener = listen(settings.listen).await?;
    let bound = listener
        .local_addr()
        .map_err(|error| RunFailure::own("cannot listen", error))?;
    let served = Served::by_this_process();
    let socket = Socket::bind(&settings.socket, served == Served::Everybody)
        .map_err(|error| RunFailure::refused(error.to_string()))?;
    let agent = Arc::new(Agent {
        name: settings.name,
        advertise: settings.advertise.ok_or_else(|| advertised(bound)),
        steps: Arc::new(Steps::new(settings.step.clone())),
        wireup: settings.step,
        socket: settings.socket.clone(),
        registry: Arc::default(),
        scheduled: Arc::default(),
        peers: Arc::new(Peers::new(settings.tls.clone(), settings.heartbeat)),
        meetings: Arc::new(Meetings::new(settings.names)),
        refusals: Arc::default(),
        served,
    });
    info!(
        "wireup {PROGRAM_VERSION} serves node {}: {bound} (for others {}), {}",
        agent.name,
        agent.advertised(None),
        settings.socket.display()
    );
    let service =
        PeerServer::new(PeerService(agent.clone())).max_decoding_message_size(MESSAGE_MAX);
    let routes = node_agent::routes(agent.clone()).await;
    let (local_callers, local_incoming) = mpsc::channel(1);
    let incoming = tls::server_incoming(listener, settings.tls.clone());
    let remote = tls::server(settings.heartbeat, agent.refusals.clone())
        .add_routes(routes.clone())
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, drained(agent.registry.clone()));
    let local = Server::builder()
        .layer(LogRefusals(agent.refusals.clone()))
        .add_routes(routes)
        .serve_with_incoming_shutdown(
            ReceiverStream::new(local_incoming),
            drained(agent.registry.clone()),
        );
    let mut serving = pin!(async { tokio::try_join!(remote, local) });
    let failed = |error| RunFailure::own("cannot serve", io::Error::other(error));
    notify("READY=1\n");
    tokio::select! {
        served = &mut serving => {
            served.map_err(failed)?;
        }
        () = local::serve(agent.clone(), &socket, local_callers) => {}
        () = agent.meetings.keep_time() => {}
        () = agent.scheduled.keep_time() => {}
        () = settings.tls.watch() => {}
        () = reload(signals.hangup, &settings.tls) => {}
        stopped = stop(&mut signals.end, &agent.registry) => {
            if stopped {
                // Who watched the last launch is to hear how it ended.
                if let Ok(served) = timeout(LAST_WORDS, serving).await {
                    served.map_err(failed)?;
                }
            }
        }
    }
    Ok(())
}

async fn drained(registry: Arc<Registry>) {
    registry.drained().await;
}

async fn listen(address: Option<SocketAddr>) -> Result<TcpListener, RunFailure> {
    let addresses = match &address {
        Some(address) => std::slice::from_ref(address),
        None => &everywhere()[..],
    };
    let mut failure = None;
    for address in addresses {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            // Who has the port has it for both.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(RunFailure::refused(format!(
                    "cannot listen on {address}: somebody does already, perhaps another agent; end it, or \
                     name another port (--listen)"
                )));
            }
            Err(error) => failure = Some((address, error)),
        }
    }
    let (address, error) = failure.expect("there is an address");
    Err(RunFailure::refused(format!(
        "cannot listen on {address}: {error}; name an address of this node (--listen)"
    )))
}

/// The signals an agent heeds.
struct Signals {
    hangup: Signal,
    /// Terminate and interrupt.
    end: [Signal; 2],
}

impl Signals {
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
async fn reload(mut hangup: Signal, tls: &tls::Tls) {
    while hangup.recv().await.is_some() {
        info!("looks at its certificate");
        tls.reload();
    }
}

/// Returns when the agent is to end: at the last launch's end after one signal or a call, at once
/// after another signal; whether no launch is left.
async fn stop([terminate, interrupt]: &mut [Signal; 2], registry: &Registry) -> bool {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = registry.draining_begun() => {}
    }
    notify("STOPPING=1\n");
    registry.drain();
    match registry.count() {
        0 => {}
        launches => info!("takes no new launch and ends with the last of {launches}"),
    }
    tokio::select! {
        () = registry.drained() => {
            info!("ends");
            return true;
        }
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    warn!("ends at once, with {} launches", registry.count());
    false
}
