//! Hosts that a name of DNS stands for: SRV records, which have names and ports, or else addresses alone.
//!
//! Addresses are the C library's to find, like those of all hosts; it has no way to ask for SRV records. Both use the
//! servers and the search list of `/etc/resolv.conf`.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr as _;
use std::time::Duration;

use domain::base::iana::Rtype;
use domain::base::name::Name;
use domain::rdata::Srv;
use domain::resolv::StubResolver;
use domain::resolv::resolver::SearchNames as _;
use futures_util::stream::{self, StreamExt as _};
use tokio::time::timeout;

use wireup_core::job::hosts::PORT;
use wireup_core::job::hosts::lookup::{FoundHost, SERVICE};

/// Timeout of a server's answer with SRV records.
const SRV_LIMIT: Duration = Duration::from_secs(5);

/// Names whose addresses are looked up at the same time.
const LOOKUPS: usize = 32;

#[derive(Debug)]
pub(super) struct DnsHosts {
    pub(super) name: String,
    pub(super) slots: Option<u32>,
}

impl DnsHosts {
    /// Returns the current hosts.
    ///
    /// # Errors
    /// If the name has no addresses.
    pub(super) async fn find_hosts(&self) -> io::Result<Vec<FoundHost>> {
        let services = timeout(SRV_LIMIT, self.services());
        let (services, at_name) = tokio::join!(services, addresses(&self.name, PORT));
        // A missing SRV record, or a server that fails, does not affect the addresses.
        let services = services.unwrap_or_default();
        if services.is_empty() {
            let found: Vec<IpAddr> = at_name?.iter().map(SocketAddr::ip).collect();
            return Ok(FoundHost::from_addresses(&found, self.slots));
        }
        let targets = stream::iter(services).map(async |(target, port)| {
            let found = addresses(&format!("{target}."), port).await.ok()?;
            Some((target, *found.first()?))
        });
        // One without an address has ended, or is not there yet.
        let targets: Vec<_> = targets
            .buffer_unordered(LOOKUPS)
            .filter_map(std::future::ready)
            .collect()
            .await;
        Ok(FoundHost::from_targets(&targets, self.slots))
    }

    /// Names and ports of the SRV records.
    async fn services(&self) -> BTreeSet<(String, u16)> {
        let resolver = StubResolver::new();
        for name in self.candidates(&resolver) {
            let found = services(&resolver, &name).await.unwrap_or_default();
            if !found.is_empty() {
                return found;
            }
        }
        BTreeSet::new()
    }

    /// Returns the names that are tried, in the order of the C library.
    fn candidates(&self, resolver: &StubResolver) -> Vec<String> {
        let name = format!("{SERVICE}.{}", self.name);
        if name.ends_with('.') {
            return vec![name];
        }
        let suffixes = resolver.search_iter().map(|suffix| suffix.to_string());
        let suffixes = suffixes.filter(|suffix| !matches!(&**suffix, "" | "."));
        let mut all: Vec<String> = suffixes.map(|suffix| format!("{name}.{suffix}")).collect();
        let first = self.name.matches('.').count() >= resolver.options().ndots;
        all.insert(if first { 0 } else { all.len() }, name);
        all
    }
}

async fn services(resolver: &StubResolver, name: &str) -> io::Result<BTreeSet<(String, u16)>> {
    let name = Name::<Vec<u8>>::from_str(name).map_err(io::Error::other)?;
    let answer = resolver.query((name, Rtype::SRV)).await?;
    let records = answer.as_ref().answer().map_err(io::Error::other)?;
    let mut found = BTreeSet::new();
    for record in records.limit_to_in::<Srv<_>>() {
        let record = record.map_err(io::Error::other)?;
        found.insert((record.data().target().to_string(), record.data().port()));
    }
    // A target "." means that the service does not exist. Source: RFC 2782.
    found.retain(|(target, _)| !matches!(&**target, "" | "."));
    Ok(found)
}

async fn addresses(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((name, port)).await?.collect())
}

/// Returns the system's text of an error, without the library's prefix.
pub(super) fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let front = "failed to lookup address information: ";
    text.strip_prefix(front).unwrap_or(&text).to_owned()
}
