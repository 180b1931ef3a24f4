//! Serves an agent's counters to Prometheus: over HTTP on a loopback address, elsewhere over TLS to clients that
//! show a certificate of the agents' authority.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use crate::PROGRAM_VERSION;
use crate::refusals::Refusals;
use crate::state::Agent;
use crate::tls::TlsConfigs;
use wireup_core::metrics::{Exposition, HttpAnswer, Kind, REQUEST_MAX, answer};

/// Connections at a time. One more ends an older one, so that no user can hold all.
const CALLERS: usize = 64;

/// Timeout of a request with its answer, the handshake included.
const LIMIT: Duration = Duration::from_secs(10);

/// Pause after accept failed, for instance for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// HTTP/1.1 is all that is spoken here.
const ALPN: &[u8] = b"http/1.1";

/// Serves until it is dropped.
pub async fn serve(agent: Arc<Agent>, listener: TcpListener, tls: Arc<TlsConfigs>) {
    let open = listener
        .local_addr()
        .is_ok_and(|address| address.ip().to_canonical().is_loopback());
    if let Ok(address) = listener.local_addr() {
        let scheme = if open { "http" } else { "https" };
        info!("serves metrics at {scheme}://{address}/metrics");
    }
    // Oldest first.
    let mut callers: Vec<(IpAddr, AbortHandle)> = Vec::new();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!("cannot accept a connection for metrics: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        callers.retain(|(_, task)| !task.is_finished());
        if callers.len() >= CALLERS {
            let addresses: Vec<IpAddr> = callers.iter().map(|(address, _)| *address).collect();
            callers.remove(displaced(&addresses)).1.abort();
        }
        let (agent, tls) = (agent.clone(), tls.clone());
        let task = tokio::spawn(async move {
            let served = timeout(LIMIT, serve_one(&agent, stream, (!open).then_some(&*tls)));
            if let Ok(Err(error)) = served.await {
                refused(&agent.refusals, from, &error);
            }
        });
        callers.push((from.ip(), task.abort_handle()));
    }
}

/// Returns the index of the connection that gives way to another: the oldest one of the address that has the most. One
/// that sends a request is answered at once, so the oldest one is silent.
fn displaced(callers: &[IpAddr]) -> usize {
    let mut counts: BTreeMap<&IpAddr, usize> = BTreeMap::new();
    for address in callers {
        *counts.entry(address).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(0);
    let oldest = callers.iter().position(|address| counts[address] == most);
    oldest.unwrap_or(0)
}

fn refused(refusals: &Refusals, from: SocketAddr, error: &io::Error) {
    refusals.log(&format!("metrics for {}", from.ip()), || {
        warn!("metrics for {from}: {}", crate::tls::words(error));
    });
}

async fn serve_one(agent: &Agent, stream: TcpStream, tls: Option<&TlsConfigs>) -> io::Result<()> {
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

/// Returns the current metrics of an agent. Names, units and meanings: docs/metrics.md.
fn text(agent: &Agent) -> String {
    let counters = &agent.counters;
    let mut out = Exposition::default();
    out.family("wireup_build_info", Kind::Gauge, "The version, as a label.")
        .sample("wireup_build_info", &[("version", PROGRAM_VERSION)], 1);
    out.gauge(
        "wireup_agent_launches",
        "Launches in which this node takes part.",
        agent.registry.count() as u64,
    );
    out.gauge(
        "wireup_agent_draining",
        "Whether the agent accepts no new launch (1) or does (0).",
        agent.registry.draining().into(),
    );
    out.counter(
        "wireup_agent_launch_parts_total",
        "Launches in which this node has begun to take part.",
        counters.parts.get(),
    );
    out.counter(
        "wireup_agent_launch_ranks_total",
        "Ranks of launches that were started on this node and have ended.",
        counters.ranks.get(),
    );
    out.counter(
        "wireup_agent_sidecar_restarts_total",
        "PMIx servers of these launches that were started again.",
        counters.sidecar_restarts.get(),
    );
    out.counter(
        "wireup_agent_peer_sent_bytes_total",
        "Bytes of launches' messages sent to other agents.",
        counters.sent.get(),
    );
    out.counter(
        "wireup_agent_peer_received_bytes_total",
        "Bytes of launches' messages received from other agents.",
        counters.received.get(),
    );
    let held = agent.budgets.held();
    out.gauge(
        "wireup_agent_queue_bytes",
        "Bytes that the agent holds: messages to be sent, requests, names.",
        held.bytes as u64,
    );
    out.gauge(
        "wireup_agent_users",
        "Users with launches, names or requests at this agent.",
        held.users as u64,
    );
    out.counter(
        "wireup_agent_refusals_total",
        "Connections and requests that were refused.",
        agent.refusals.count(),
    );
    out.gauge(
        "wireup_agent_certificate_expiry_timestamp_seconds",
        "When this node's certificate expires, in seconds since 1970.",
        agent
            .peers
            .certificate_expiry()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |time| time.as_secs()),
    );
    let launches = "wireup_agent_launches_total";
    let help = "Launches that were started on this node and have ended: ok, failed, or lost without a result.";
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_connection_of_busiest_address_gives_way() {
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let callers = [1, 2, 3, 2, 1, 2].map(address);
        assert_eq!(displaced(&callers), 1);
        assert_eq!(displaced(&callers[..1]), 0);
    }
}
