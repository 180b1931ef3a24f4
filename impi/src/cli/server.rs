//! `wireup impi server`.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use wireup_impi_core::auth::{Method, parse_preference};
use wireup_impi_core::server::{MAX_CLIENTS, Settings};

use crate::{rendezvous, secrets, tls};

const NOTES: &str = "\
Prints A.B.C.D:PORT, where clients connect, and ends when all clients have ended: with 0 if all did so in order.

Who may join is said by the environment, for the server as for clients:
  IMPI_AUTH_KEY=NUMBER        a key of 64 bits, sent in clear
  IMPI_AUTH_NONE=             everybody
  WIREUP_IMPI_TOKEN=TEXT      a secret that does not cross the network; clients of wireup only

Examples:
  IMPI_AUTH_KEY=5678 wireup impi -server 2
  wireup impi server 2 --address 10.0.0.1 --port 5000-5100";

/// Arguments of `wireup impi server`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub(super) struct ServerArgs {
    /// Clients of the job, 1 to 32
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CLIENTS)))]
    count: u32,
    /// Port, or a range of which the first free one is taken [default: any]
    #[arg(long, value_name = "PORT[-PORT]")]
    port: Option<String>,
    /// Methods of authentication, best first: numbers and ranges, `8,1-0` [default: the strongest first]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    auth: Option<String>,
    /// Address to listen at [default: all, and the one towards the network is printed]
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Sessions to serve, one beside the other; 0 serves until it is killed
    #[arg(long, value_name = "N", default_value_t = 1)]
    sessions: u64,
    /// Seconds within which a connection must join
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    join_timeout: u64,
    /// Seconds from the first client to the end of start-up [default: no limit]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Serve TLS with this chain of certificates (PEM); only clients of wireup speak it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of the first certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

/// Serves, and says by the exit code whether all went well.
pub(super) fn execute(args: &ServerArgs) -> anyhow::Result<u8> {
    let preference = args
        .auth
        .as_deref()
        .map_or_else(|| Ok(Method::ALL.to_vec()), parse_preference)?;
    let secrets = secrets::from_environment()?;
    if !preference.iter().any(|method| secrets.has(*method)) {
        bail!(
            "no authentication methods available for negotiation: -auth leaves none of those that are enabled"
        );
    }
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(tls::server(cert, key)?),
        _ => None,
    };
    let (first, last) = ports(args.port.as_deref().unwrap_or("0"))?;
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let listener =
        rendezvous::bind(args.address.unwrap_or(any), first..=last).with_context(|| {
            format!(
                "cannot listen at port {}",
                args.port.as_deref().unwrap_or("0")
            )
        })?;
    let port = listener.local_addr()?.port();
    let address = args
        .address
        .filter(|address| !address.is_unspecified())
        .unwrap_or_else(own_address);
    // The one line; a reader that goes away then is not missed.
    let mut out = io::stdout().lock();
    writeln!(out, "{}", SocketAddr::new(address, port))
        .and_then(|()| out.flush())
        .context("stdout")?;
    let settings = Settings {
        count: args.count,
        sessions: (args.sessions > 0).then_some(args.sessions),
        preference,
        secrets,
        greeting_timeout: Duration::from_secs(args.join_timeout),
        startup_timeout: args.timeout.map(Duration::from_secs),
    };
    let success = rendezvous::serve(&listener, settings, tls.as_ref(), &mut io::stderr())?;
    Ok(u8::from(!success))
}

fn ports(text: &str) -> anyhow::Result<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| {
        text.trim()
            .parse()
            .with_context(|| format!("{text:?} is not a port"))
    };
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        bail!("{text}: the range is empty");
    }
    Ok((first, last))
}

/// The address by which this machine reaches others, or loopback. Connecting a datagram socket sends nothing.
fn own_address() -> IpAddr {
    let find = || -> io::Result<IpAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        Ok(socket.local_addr()?.ip())
    };
    find().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_or_a_range() {
        assert_eq!(ports("5678").unwrap(), (5678, 5678));
        assert_eq!(ports("5000-5100").unwrap(), (5000, 5100));
        for text in ["", "70000", "5-4", "-", "a"] {
            assert!(ports(text).is_err(), "{text}");
        }
    }
}
