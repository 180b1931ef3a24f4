//! `wireup impi server`.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, bail};
use wireup_impi_cli::server_options::ServerArgs;
use wireup_impi_core::auth::{Method, parse_preference};
use wireup_impi_core::server::ServerSettings;

use super::client_file::ClientFile;
use crate::stream::address_towards;
use crate::{rendezvous, secrets, tls};

/// Serves, and returns 0 if all sessions were successful.
pub(super) fn execute(args: &ServerArgs) -> anyhow::Result<u8> {
    let preference = args
        .auth
        .as_deref()
        .map_or_else(|| Ok(Method::ALL.to_vec()), parse_preference)?;
    let secrets = secrets::from_environment()?;
    if !preference.iter().any(|method| secrets.has(*method)) {
        bail!(
            "no authentication methods available for negotiation: -auth excludes all methods that are enabled"
        );
    }
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(tls::server(cert, key)?),
        _ => None,
    };
    let file = args.file.as_deref();
    let file = file.map(|path| ClientFile::read(path, args.count));
    let file = file.transpose()?;
    let (first, last) = ports(args.port.as_deref().unwrap_or("0"))?;
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let at = args.address.unwrap_or(any);
    let listener = rendezvous::bind(at, first..=last).with_context(|| {
        let port = args.port.as_deref().unwrap_or("0");
        format!("cannot listen at {at}, port {port}")
    })?;
    let port = listener.local_addr()?.port();
    let address = args
        .address
        .filter(|address| !address.is_unspecified())
        .unwrap_or_else(|| own_address(at));
    // The one line; a reader that goes away then is not missed.
    let mut out = io::stdout().lock();
    let address = SocketAddr::new(address, port);
    writeln!(out, "{address}")
        .and_then(|()| out.flush())
        .context("stdout")?;
    drop(out);
    let settings = ServerSettings {
        count: args.count,
        sessions: (args.sessions > 0).then_some(args.sessions),
        preference,
        secrets,
        greeting_timeout: args.join_timeout,
        startup_timeout: args.timeout,
        is_print_server: args.print_server,
    };
    let clients = file.map(|file| file.start(address, &args.rsh));
    let clients = clients.transpose()?;
    let exits = clients.as_ref().map(|clients| &clients.exits);
    let success = rendezvous::serve(&listener, settings, tls.as_ref(), exits, &mut io::stderr())?;
    // Clients that connect now are refused.
    drop(listener);
    let ended = clients.is_none_or(|clients| clients.wait(success));
    Ok(u8::from(!(success && ended)))
}

fn ports(text: &str) -> anyhow::Result<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| {
        text.trim().parse().with_context(|| {
            format!("invalid port {text:?}: use 0 to 65535, or a range FIRST-LAST")
        })
    };
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        bail!("empty port range {text}: use FIRST-LAST");
    }
    Ok((first, last))
}

/// Returns the address by which this machine reaches others of the family of `any`, or loopback. The destinations are for
/// documentation (RFC 5737, RFC 3849).
fn own_address(any: IpAddr) -> IpAddr {
    let (other, loopback) = if any.is_ipv6() {
        ("[2001:db8::1]:9", IpAddr::V6(Ipv6Addr::LOCALHOST))
    } else {
        ("192.0.2.1:9", IpAddr::V4(Ipv4Addr::LOCALHOST))
    };
    address_towards(other).unwrap_or(loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_single_or_range() {
        assert_eq!(ports("5678").unwrap(), (5678, 5678));
        assert_eq!(ports("5000-5100").unwrap(), (5000, 5100));
        for text in ["", "70000", "5-4", "-", "a"] {
            assert!(ports(text).is_err(), "{text}");
        }
    }
}
