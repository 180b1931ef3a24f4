//! The agent of one host, for one launch.

use std::io::{self, BufReader, Read, Write};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::launch_authority::LaunchCertificates;
use super::{READY, RankSignals, SETTLE, agent, run};
use crate::daemon::settings::host_name;
use crate::peer::MESSAGE_MAX;
use crate::peer_service::PeerService;
use crate::proto::v1::peer_server::PeerServer;
use crate::tls::{self, Heartbeat};
use wireup_core::failure::CommandError;

/// Longest time for the end of a launch after the request.
const END_LIMIT: Duration = Duration::from_secs(20);

/// The command of this process.
pub const COMMAND: &str = "for-launch";

/// Variable in which Slurm names this host.
const SLURM_NAME: &str = "SLURMD_NODENAME";

/// Serves until the launch has ended, or standard input has. `name` is the host's name in the launch, if the command
/// that started this process knows it.
///
/// # Errors
/// One line.
pub fn main(name: Option<String>) -> Result<u8, CommandError> {
    run(async |network| {
        let rank_signals = RankSignals::new()?;
        let mut input = BufReader::new(io::stdin());
        let bundle = LaunchCertificates::read(&mut input)
            .map_err(|error| CommandError::system("cannot read the launch's authority", error))?;
        let name = own_name(&bundle.hosts, name)?;
        // A read that no signal ends: the process ends without waiting for it.
        let (ended, input_ended) = oneshot::channel();
        std::thread::spawn(move || {
            let mut rest = [0; 64];
            while input.read(&mut rest).is_ok_and(|length| length > 0) {}
            drop(ended);
        });
        serve(&bundle, name, input_ended, rank_signals, network).await
    })
}

async fn serve(
    bundle: &LaunchCertificates,
    name: String,
    input_ended: oneshot::Receiver<()>,
    rank_signals: RankSignals,
    network: Handle,
) -> Result<(), CommandError> {
    let failed = |error| CommandError::system("cannot serve", error);
    // A batch system that ends a job may signal this process alone, and all others only when its patience is over: Slurm does
    // with proctrack/cgroup.
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let tls = bundle.credentials(&name)?;
    let listener = match std::net::TcpListener::bind("[::]:0") {
        Ok(listener) => listener,
        Err(_) => std::net::TcpListener::bind("0.0.0.0:0").map_err(failed)?,
    };
    listener.set_nonblocking(true).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let agent = agent(name.clone(), tls.clone(), None, network.clone())?;
    let registry = agent.registry.clone();
    rank_signals.pass(SETTLE, move |signal| registry.signal_steps(signal));
    let service =
        PeerServer::new(PeerService(agent.clone())).max_decoding_message_size(MESSAGE_MAX);
    let refusals = agent.refusals.clone();
    let server =
        tls::server(Heartbeat::default(), refusals.clone(), Handle::current()).add_service(service);
    network.spawn(async move {
        let listener = TcpListener::from_std(listener).map_err(io::Error::other)?;
        let incoming = tls::server_incoming(listener, tls, Heartbeat::default(), refusals, ());
        let served = server.serve_with_incoming(incoming);
        served.await.map_err(io::Error::other)
    });
    let mut out = io::stdout();
    writeln!(out, "{READY} {name} {port}")
        .and_then(|()| out.flush())
        .map_err(failed)?;
    let terminated = async {
        while terminate.recv().await.is_some() {
            agent.registry.end_steps();
        }
    };
    tokio::select! {
        () = agent.registry.drained() => {}
        () = terminated => {}
        _ = input_ended => {
            agent.registry.drain();
            let _ = timeout(END_LIMIT, agent.registry.drained()).await;
        }
    }
    Ok(())
}

/// An agent that was started on another host than those of the launch.
#[derive(Debug, thiserror::Error)]
#[error("the agent of {host} is not on a host of the launch ({hosts})")]
struct UnknownHost {
    host: String,
    hosts: String,
}

/// This host among those of the launch.
fn own_name(hosts: &[String], name_option: Option<String>) -> Result<String, CommandError> {
    let slurm = std::env::var(SLURM_NAME).ok();
    let names = [name_option, slurm, Some(host_name())];
    let label = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
    let found = names.iter().flatten().find_map(|name| {
        let same = hosts.iter().find(|host| *host == name);
        same.or_else(|| hosts.iter().find(|host| label(host) == label(name)))
    });
    found.cloned().ok_or_else(|| {
        CommandError::request(UnknownHost {
            host: host_name(),
            hosts: hosts.join(","),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::own_name;

    #[test]
    fn host_is_identified_by_name_of_starter_in_any_domain() {
        let hosts = ["a1".to_owned(), "a2.cluster".to_owned()];
        let found = |name: &str| own_name(&hosts, Some(name.to_owned())).unwrap();
        assert_eq!(found("a1"), "a1");
        assert_eq!(found("a1.example"), "a1");
        assert_eq!(found("a2"), "a2.cluster");
    }
}
