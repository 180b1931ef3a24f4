//! Counters of a launch, for Prometheus (`--metrics`) and for its agent.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::launch_context::LaunchContext;
use wireup_core::failure::{CommandError, RequestError};
use wireup_core::link::agent_protocol::LaunchSummary;
use wireup_core::metrics::{Exposition, Histogram, Kind};
use wireup_core::record::{FenceRecord, Stream};

/// Error: metrics cannot be served at the address of `--metrics`.
#[derive(Debug, thiserror::Error)]
enum MetricsError {
    #[error(
        "--metrics {0}: a launch serves metrics on a loopback address only, such as 127.0.0.1:9438; agents serve them to other hosts"
    )]
    NotLoopback(SocketAddr),
    #[error("--metrics {address}: {error}")]
    Listen {
        address: SocketAddr,
        error: io::Error,
    },
}

impl RequestError for MetricsError {}

/// Counters of the launch since its start.
#[derive(Debug, Default)]
pub(super) struct LaunchCounters {
    fences: BTreeMap<String, FenceTimes>,
    /// Number of restarts of PMIx servers.
    pub(super) sidecar_restarts: u32,
    /// Bytes of the ranks' standard output and standard error.
    output: [u64; 2],
}

#[derive(Debug, Default)]
struct FenceTimes {
    /// Time from the last arrival to the release.
    release: Histogram,
    /// Time from the first arrival to the last.
    spread: Histogram,
}

impl LaunchCounters {
    pub(super) fn fence(&mut self, fence: &FenceRecord<'_>) {
        let times = self.fences.entry(fence.kind.to_string()).or_default();
        times.release.add(Duration::from_micros(fence.own_us));
        times.spread.add(Duration::from_micros(fence.spread_us));
    }

    pub(super) fn output(&mut self, stream: Stream, bytes: usize) {
        self.output[usize::from(stream == Stream::Stderr)] += bytes as u64;
    }
}

/// Opens the listener for Prometheus.
///
/// # Errors
/// [`CommandError`] if the address is not a loopback address, or is in use.
pub(super) fn listen(address: SocketAddr) -> Result<OwnedFd, CommandError> {
    if !address.ip().to_canonical().is_loopback() {
        return Err(MetricsError::NotLoopback(address).into());
    }
    let listen = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(OwnedFd::from(listener))
    };
    listen().map_err(|error| MetricsError::Listen { address, error }.into())
}

impl LaunchCounters {
    /// Returns the summary of the launch for its agent's metrics.
    pub(super) fn summary(&self, cx: &LaunchContext) -> LaunchSummary {
        let started = cx.ranks.iter().filter(|life| life.pid.is_some());
        let mut fences = Histogram::default();
        for times in self.fences.values() {
            fences.merge(&times.release);
        }
        LaunchSummary {
            failed: cx.supervisor.exit_code() != 0,
            ranks: started.count() as u32,
            sidecar_restarts: self.sidecar_restarts,
            fences,
        }
    }

    /// Returns the current metrics of the launch. Names, units and meanings: docs/metrics.md.
    pub(super) fn text(&self, cx: &LaunchContext) -> String {
        let mut out = Exposition::default();
        // The job's name is left out, since no other user of the machine may learn it.
        let info = [("version", env!("CARGO_PKG_VERSION"))];
        out.family("wireup_launch_info", Kind::Gauge, "The launch, as labels.")
            .sample("wireup_launch_info", &info, 1);
        let (mut planned, mut running, mut ended, mut failed) = (0, 0, 0, 0);
        for life in cx.ranks.iter() {
            failed += u64::from(life.fate.is_some());
            match (life.runs(), life.is_over()) {
                (true, _) => running += 1,
                (false, true) => ended += 1,
                (false, false) => planned += 1,
            }
        }
        let ranks = "wireup_launch_ranks";
        out.family(
            ranks,
            Kind::Gauge,
            "Ranks by state, those of spawned jobs included.",
        )
        .sample(ranks, &[("state", "planned")], planned)
        .sample(ranks, &[("state", "running")], running)
        .sample(ranks, &[("state", "ended")], ended);
        let connected = cx.ranks.iter().filter(|life| life.connected).count();
        out.gauge(
            "wireup_launch_ranks_connected",
            "Ranks that have been in contact with their process-management interface.",
            connected as u64,
        )
        .counter(
            "wireup_launch_ranks_failed_total",
            "Ranks that did not end in order.",
            failed,
        )
        .gauge(
            "wireup_launch_jobs",
            "Jobs of the launch: the first one, and those that were spawned.",
            cx.jobs.count().into(),
        )
        .counter(
            "wireup_launch_sidecar_restarts_total",
            "PMIx servers that were started again.",
            self.sidecar_restarts.into(),
        )
        .gauge(
            "wireup_launch_queue_bytes",
            "Bytes of output that wait for the reader of the launch's standard output and standard error.",
            cx.streams.queued() as u64,
        );
        let output = "wireup_launch_output_bytes_total";
        out.family(
            output,
            Kind::Counter,
            "Bytes that ranks have printed through the launcher.",
        )
        .sample(output, &[("stream", "stdout")], self.output[0])
        .sample(output, &[("stream", "stderr")], self.output[1]);
        for (name, help, part) in [
            (
                "wireup_launch_fence_seconds",
                "From the last entry into a fence or barrier to its release.",
                (|times| &times.release) as fn(&FenceTimes) -> &Histogram,
            ),
            (
                "wireup_launch_fence_spread_seconds",
                "From the first entry into a fence or barrier to the last.",
                |times| &times.spread,
            ),
        ] {
            out.family(name, Kind::Histogram, help);
            for (kind, times) in &self.fences {
                out.histogram(name, &[("kind", kind)], part(times));
            }
        }
        out.into_text()
    }
}
