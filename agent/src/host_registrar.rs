//! Registers this node with etcd, for as long as its agent takes launches.
//!
//! The key goes with a lease that is renewed: it is gone when the agent has been for the lease's time, and at once when the
//! agent ends in good order. What a key that is there means is decided in `wireup_core::job::hosts::registered`.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use crate::etcd::{Etcd, EtcdError, EtcdSettings, WriteOutcome};
use wireup_core::job::hosts::registered::{
    HostRegistration, RegisteredKey, RegistrationAction, claim,
};

/// Part of the keys of hosts behind the prefix.
const HOSTS: &str = "hosts/";

/// Number of renewals within the time of a lease.
const RENEWALS: u32 = 3;

/// Maximum number of writes of a key that others change at the same time, until the next renewal.
const ATTEMPTS: usize = 5;

/// Time for which the agent waits for the end of its registration when it exits.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Returns the prefix of the keys of hosts.
pub fn hosts_prefix(settings: &EtcdSettings) -> String {
    format!("{}{HOSTS}", settings.prefix)
}

/// Keeps a node registered until `end` completes.
pub async fn register_until(
    end: impl Future<Output = ()>,
    settings: &EtcdSettings,
    registration: HostRegistration,
) {
    let mut session = RegistrationSession {
        etcd: Etcd::new(settings),
        key: format!("{}{}", hosts_prefix(settings), registration.name),
        value: serde_json::to_vec(&registration).expect("text and numbers only"),
        ttl: settings.ttl,
        registration,
        lease: None,
    };
    let renewing = async {
        let mut logged_state = LoggedState::Nothing;
        let mut next = Instant::now();
        loop {
            let now = session.renew().await;
            logged_state = session.log_change(
                logged_state,
                now.unwrap_or_else(|error| LoggedState::Failed(error.to_string())),
            );
            next += settings.ttl / RENEWALS;
            next = next.max(Instant::now());
            sleep_until(next).await;
        }
    };
    tokio::select! {
        () = renewing => {}
        () = end => {}
    }
    session.end().await;
}

/// Subject of the last log line; a line is repeated only after a change.
#[derive(PartialEq, Eq, Debug)]
enum LoggedState {
    Nothing,
    Registered,
    Taken(String),
    Failed(String),
}

struct RegistrationSession {
    etcd: Etcd,
    registration: HostRegistration,
    key: String,
    value: Vec<u8>,
    ttl: Duration,
    /// Lease of the key. It is kept until it is known to have ended, since an unanswered write may still be applied
    /// under it.
    lease: Option<i64>,
}

impl RegistrationSession {
    /// Renews the lease, and writes the key if it is not there.
    async fn renew(&mut self) -> Result<LoggedState, EtcdError> {
        for _ in 0..ATTEMPTS {
            if let Some(lease) = self.lease
                && !self.etcd.renew_lease(lease).await?
            {
                self.lease = None;
            }
            let lease = match self.lease {
                Some(lease) => lease,
                None => *self.lease.insert(self.etcd.grant(self.ttl).await?),
            };
            let found = self.etcd.get(&self.key).await?;
            let found = found.map(|key| RegisteredKey {
                revision: key.mod_revision,
                lease: key.lease,
                value: key.value,
            });
            let revision = match claim(&self.registration, lease, found.as_ref()) {
                RegistrationAction::Held => return Ok(LoggedState::Registered),
                RegistrationAction::Taken { address } => return Ok(LoggedState::Taken(address)),
                RegistrationAction::Write { revision } => revision,
            };
            let put = self.etcd.put_if(&self.key, revision, &self.value, lease);
            match put.await? {
                WriteOutcome::Done => return Ok(LoggedState::Registered),
                WriteOutcome::Changed => {}
                WriteOutcome::NoLease => self.lease = None,
            }
        }
        Ok(LoggedState::Failed(
            "other agents write its key at the same time".to_owned(),
        ))
    }

    fn log_change(&self, before: LoggedState, now: LoggedState) -> LoggedState {
        if now == before {
            return now;
        }
        let HostRegistration {
            name,
            address,
            slots,
            labels,
        } = &self.registration;
        match &now {
            LoggedState::Nothing => {}
            LoggedState::Registered => {
                info!(
                    "registered in etcd as {name} at {address}: {slots} slots, labels \"{labels}\""
                );
            }
            LoggedState::Taken(other) => warn!(
                "not registered in etcd: the agent at {other} is registered as {name}; waiting until it has ended"
            ),
            LoggedState::Failed(reason) => warn!("cannot register in etcd: {reason}; retrying"),
        }
        now
    }

    /// Takes the key away. What is not answered ends with the lease's time.
    async fn end(self) {
        let Some(lease) = self.lease else { return };
        match timeout(LAST_WORDS, self.etcd.revoke(lease)).await {
            Ok(Ok(())) => info!("removed the registration from etcd"),
            Ok(Err(error)) => warn!(
                "cannot remove the registration from etcd, which ends within {} s: {error}",
                self.ttl.as_secs()
            ),
            Err(_) => warn!(
                "cannot remove the registration from etcd, which ends within {} s: no reply",
                self.ttl.as_secs()
            ),
        }
    }
}
