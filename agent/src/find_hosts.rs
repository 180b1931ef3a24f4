//! Looks hosts up for a launcher, and waits until there are as many as it needs (`wireup-agent find-hosts`).
//!
//! Standard output has a word for each host, as `--hosts` takes them; or, if the process ends with 1, why there are none.

use std::ffi::OsString;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use self::dns::DnsHosts;
#[cfg(feature = "etcd")]
use self::registered_hosts::EtcdHosts;
#[cfg(feature = "etcd")]
use crate::etcd::{EtcdError, EtcdSettingsError};
#[cfg(not(feature = "etcd"))]
use crate::missing_feature::MissingFeature;
use wireup_core::failure::CommandError;
use wireup_core::job::hosts::compress;
use wireup_core::job::hosts::lookup::HostWait;
use wireup_core::job::hosts::lookup::{FoundHost, HostLookup};
#[cfg(feature = "etcd")]
use wireup_core::job::hosts::registered::HostLabels;

mod dns;
#[cfg(feature = "etcd")]
mod registered_hosts;

/// Time between two lookups. A headless service of Kubernetes has a new pod after seconds.
const PAUSE: Duration = Duration::from_millis(500);

/// Longest time of a lookup that is not reported as slow.
const SILENCE: Duration = Duration::from_secs(3);

/// Reason for which a launch has too few hosts.
#[derive(Debug, thiserror::Error)]
enum FindError {
    /// Waiting does not help.
    #[error(transparent)]
    Never(HostSearchFailure),
    #[error("no host found within {} s: {reason}", .limit.as_secs_f32())]
    NoneFound {
        limit: Duration,
        reason: HostSearchFailure,
    },
    /// Fewer hosts than needed were found in time.
    #[error(
        "only {} of {count} hosts found within {} s ({names}); start more, wait longer (--wait-hosts) or use fewer (--nodes)",
        .found, .limit.as_secs_f32()
    )]
    TooFew {
        found: usize,
        count: u32,
        names: String,
        limit: Duration,
    },
}

/// Prints the hosts of a lookup. The words are the arguments after the command.
///
/// # Errors
/// One line, if the words are wrong or there is no runtime.
pub fn main(words: impl Iterator<Item = OsString>) -> Result<u8, CommandError> {
    let words: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let (lookup, awaited) = parse(&words).ok_or_else(|| {
        CommandError::request(
            "this command is internal: `wireup run` uses it to look up hosts".to_owned(),
        )
    })?;
    let runtime = crate::worker_threads::single_task()
        .map_err(|error| CommandError::system("cannot create the asynchronous runtime", error))?;
    let found = runtime.block_on(find(&lookup, awaited));
    // Nothing ends a look-up in the C library but itself.
    runtime.shutdown_background();
    match found {
        Ok(hosts) => {
            hosts.iter().for_each(|host| println!("{host}"));
            Ok(0)
        }
        Err(error) => {
            println!("{error}");
            Ok(1)
        }
    }
}

fn parse(words: &[String]) -> Option<(HostLookup, HostWait)> {
    let [lookup, count, milliseconds] = words else {
        return None;
    };
    let awaited = HostWait {
        count: count.parse().ok()?,
        limit: Duration::from_millis(milliseconds.parse().ok()?),
    };
    Some((HostLookup::parse(lookup).ok()??, awaited))
}

/// Source in which hosts are looked up.
enum HostSourceKind {
    Dns(DnsHosts),
    #[cfg(feature = "etcd")]
    Etcd(Box<EtcdHosts>),
}

/// Reason for which no host was found.
#[derive(Debug, thiserror::Error)]
enum HostSearchFailure {
    #[error("{}", dns::words(.0))]
    Dns(#[from] io::Error),
    #[cfg(feature = "etcd")]
    #[error("no agent is registered")]
    NoneRegistered,
    #[cfg(feature = "etcd")]
    #[error("none of {registered} registered agents has {labels}")]
    NoneHas {
        registered: usize,
        labels: HostLabels,
    },
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Settings(#[from] EtcdSettingsError),
    #[cfg(not(feature = "etcd"))]
    #[error(transparent)]
    Missing(#[from] MissingFeature),
}

impl HostSearchFailure {
    /// Whether waiting does not help.
    fn is_final(&self) -> bool {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(EtcdError::Refused { .. }) | Self::Settings(_) => true,
            _ => false,
        }
    }
}

impl HostSourceKind {
    fn new(lookup: &HostLookup) -> Result<Self, HostSearchFailure> {
        Ok(match lookup {
            HostLookup::Dns { name, slots } => Self::Dns(DnsHosts {
                name: name.clone(),
                slots: *slots,
            }),
            #[cfg(feature = "etcd")]
            HostLookup::Registered(spec) => Self::Etcd(EtcdHosts::new(spec)?.into()),
            #[cfg(not(feature = "etcd"))]
            HostLookup::Registered(_) => return Err(MissingFeature("etcd").into()),
        })
    }

    async fn find_hosts(&mut self) -> Result<Vec<FoundHost>, HostSearchFailure> {
        match self {
            Self::Dns(source) => Ok(source.find_hosts().await?),
            #[cfg(feature = "etcd")]
            Self::Etcd(source) => source.find_hosts().await,
        }
    }

    /// Returns when it is time to look again, at the latest after `limit`.
    async fn changed(&self, limit: Duration) {
        match self {
            Self::Dns(_) => sleep(PAUSE.min(limit)).await,
            #[cfg(feature = "etcd")]
            Self::Etcd(source) => source.changed(PAUSE.min(limit), limit).await,
        }
    }
}

async fn find(lookup: &HostLookup, awaited: HostWait) -> Result<Vec<FoundHost>, FindError> {
    let HostWait { count, limit } = awaited;
    let end = Instant::now() + limit;
    let mut source = match HostSourceKind::new(lookup) {
        Ok(source) => source,
        Err(missing) => return Err(refusal(Err(missing), awaited)),
    };
    let mut last_message = None;
    loop {
        let found = {
            let mut search = pin!(source.find_hosts());
            match timeout(SILENCE, &mut search).await {
                Ok(found) => found,
                Err(_) => {
                    eprintln!("wireup: {lookup}: no reply yet");
                    search.await
                }
            }
        };
        if let Ok(hosts) = &found
            && hosts.len() >= count as usize
        {
            return Ok(hosts.clone());
        }
        let now = Instant::now();
        if now >= end || found.as_ref().is_err_and(HostSearchFailure::is_final) {
            return Err(refusal(found, awaited));
        }
        let text = match &found {
            #[cfg(feature = "etcd")]
            Err(HostSearchFailure::Etcd(error)) => error.to_string(),
            other => format!("{} of {count} hosts", other.as_ref().map_or(0, Vec::len)),
        };
        if last_message.as_ref() != Some(&text) {
            let rest = (end - now).as_secs_f32().ceil();
            eprintln!("wireup: {lookup}: {text}; waiting up to {rest} s for more");
            last_message = Some(text);
        }
        source.changed(end - now).await;
    }
}

fn refusal(found: Result<Vec<FoundHost>, HostSearchFailure>, awaited: HostWait) -> FindError {
    let HostWait { count, limit } = awaited;
    match found {
        Err(missing) if missing.is_final() => FindError::Never(missing),
        Err(reason) => FindError::NoneFound { limit, reason },
        Ok(hosts) => {
            let names: Vec<&str> = hosts.iter().map(|host| &*host.name).collect();
            FindError::TooFew {
                found: hosts.len(),
                count,
                names: compress(&names),
                limit,
            }
        }
    }
}
