//! Serves what an agent counts to Prometheus: over HTTP on a loopback address, elsewhere over TLS to who shows a
//! certificate of the agents' authority.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use crate::PROGRAM_VERSION;
use crate::refusals::Refusals;
use crate::state::Agent;
use crate::tls::Tls;
use wireup_core::metrics::{Exposition, HttpAnswer, Kind, REQUEST_MAX, answer};

/// Who may be served at a time. More wait in the kernel.
const CALLERS: usize = 16;

/// How long a request and its answer may take, the handshake included.
const LIMIT: Duration = Duration::from_secs(10);

/// Pause after accept failed, for instance for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// HTTP/1.1 is all that is spoken here.
const ALPN: &[u8] = b"http/1.1";

/// Serves until it is dropped.
pub async fn serve(agent: Arc<Agent>, listener: TcpListener, tls: Arc<Tls>) {
    let open = listener
        .local_addr()
        .is_ok_and(|address| address.ip().to_canonical().is_loopback());
    if let Ok(address) = listener.local_addr() {
        let scheme = if open { "http" } else { "https" };
        info!("serves metrics at {scheme}://{address}/metrics");
    }
    let places = Arc::new(Semaphore::new(CALLERS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!("cannot accept a connection for metrics: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (agent, tls) = (agent.clone(), tls.clone());
        tokio::spawn(async move {
            let served = timeout(LIMIT, serve_one(&agent, stream, (!open).then_some(&*tls)));
            if let Ok(Err(error)) = served.await {
                refused(&agent.refusals, from, &error);
            }
            drop(place);
        });
    }
}

fn refused(refusals: &Refusals, from: SocketAddr, error: &io::Error) {
    refusals.log(&format!("metrics for {}", from.ip()), || {
        warn!("metrics for {from}: {}", crate::tls::words(error));
    });
}

async fn serve_one(agent: &Agent, stream: TcpStream, tls: Option<&Tls>) -> io::Result<()> {
    let Some(tls) = tls else {
        return converse(agent, stream).await;
    };
    let mut config = ServerConfig::clone(&tls.server_config());
    config.alpn_protocols = vec![ALPN.to_vec()];
    let stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
    converse(agent, stream).await
}

async fn converse(
    agent: &Agent,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut request = Vec::new();
    loop {
        let mut piece = [0; 1024];
        let count = stream.read(&mut piece).await?;
        request.extend_from_slice(&piece[..count]);
        match answer(&request, || text(agent)) {
            HttpAnswer::More if count == 0 || request.len() > REQUEST_MAX => return Ok(()),
            HttpAnswer::More => {}
            HttpAnswer::Answer(answer) => {
                stream.write_all(&answer).await?;
                return stream.shutdown().await;
            }
        }
    }
}

/// The metrics of an agent now. Names, units and meanings: docs/metrics.md.
fn text(agent: &Agent) -> String {
    let counters = &agent.counters;
    let mut out = Exposition::default();
    out.family("wireup_build_info", Kind::Gauge, "The version, as a label.")
        .sample("wireup_build_info", &[("version", PROGRAM_VERSION)], 1);
    let mut single = |name, kind, help, value| {
        out.single(name, kind, help, value);
    };
    single(
        "wireup_agent_launches",
        Kind::Gauge,
        "Launches in which this node takes part.",
        agent.registry.count() as u64,
    );
    single(
        "wireup_agent_draining",
        Kind::Gauge,
        "Whether the agent takes no new launch (1) or does (0).",
        agent.registry.draining().into(),
    );
    single(
        "wireup_agent_launch_parts_total",
        Kind::Counter,
        "Launches in which this node has begun to take part.",
        counters.parts.get(),
    );
    single(
        "wireup_agent_launch_ranks_total",
        Kind::Counter,
        "Ranks of launches that were started on this node and have ended.",
        counters.ranks.get(),
    );
    single(
        "wireup_agent_sidecar_restarts_total",
        Kind::Counter,
        "PMIx servers of these launches that were started again.",
        counters.sidecar_restarts.get(),
    );
    single(
        "wireup_agent_peer_sent_bytes_total",
        Kind::Counter,
        "Bytes of launches' messages sent to other agents.",
        counters.sent.get(),
    );
    single(
        "wireup_agent_peer_received_bytes_total",
        Kind::Counter,
        "Bytes of launches' messages received from other agents.",
        counters.received.get(),
    );
    let held = agent.budgets.held();
    single(
        "wireup_agent_queue_bytes",
        Kind::Gauge,
        "Bytes that the agent holds: messages to be sent, requests, names.",
        held.bytes as u64,
    );
    single(
        "wireup_agent_users",
        Kind::Gauge,
        "Users who have something at this agent.",
        held.users as u64,
    );
    single(
        "wireup_agent_refusals_total",
        Kind::Counter,
        "Connections and requests that were refused.",
        agent.refusals.count(),
    );
    single(
        "wireup_agent_certificate_expiry_timestamp_seconds",
        Kind::Gauge,
        "When this node's certificate expires, in seconds since 1970.",
        agent
            .peers
            .certificate_expiry()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |time| time.as_secs()),
    );
    let launches = "wireup_agent_launches_total";
    let help = "Launches that were started on this node and have ended: ok, failed, or lost without a word.";
    out.family(launches, Kind::Counter, help);
    for (result, count) in counters.results() {
        out.sample(launches, &[("result", result)], count);
    }
    let fences = "wireup_agent_fence_seconds";
    let help = "From the last entry to the release, in launches started on this node that observe their fences.";
    out.family(fences, Kind::Histogram, help)
        .histogram(fences, &[], &counters.fences());
    out.into_text()
}
