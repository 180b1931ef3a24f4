//! Hosts that agents have registered with etcd.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::HostSearchFailure;
use crate::etcd::{Etcd, EtcdSettings};
use crate::host_registrar::hosts_prefix;
use wireup_core::job::hosts::HostList;
use wireup_core::job::hosts::lookup::FoundHost;
use wireup_core::job::hosts::registered::{EtcdHostSpec, HostRegistration};

#[derive(Debug)]
pub(super) struct EtcdHosts {
    etcd: Etcd,
    prefix: String,
    spec: EtcdHostSpec,
    /// Revision of the last read; `None` before it.
    revision: Option<i64>,
    /// Keys that were named as no registrations.
    reported_keys: BTreeSet<Vec<u8>>,
}

impl EtcdHosts {
    pub(super) fn new(spec: &EtcdHostSpec) -> Result<Self, HostSearchFailure> {
        let settings = EtcdSettings::load()?;
        Ok(Self {
            etcd: Etcd::new(&settings),
            prefix: hosts_prefix(&settings),
            spec: spec.clone(),
            revision: None,
            reported_keys: BTreeSet::new(),
        })
    }

    /// Returns the current hosts.
    pub(super) async fn find_hosts(&mut self) -> Result<Vec<FoundHost>, HostSearchFailure> {
        self.revision = None;
        let found = self.etcd.list(&self.prefix).await?;
        self.revision = Some(found.revision);
        let mut all = Vec::new();
        for key in found.keys {
            match registration(&key.key, &key.value, &self.prefix) {
                Some(registration) => all.push(registration),
                None if self.reported_keys.insert(key.key.clone()) => {
                    let key = String::from_utf8_lossy(&key.key).into_owned();
                    eprintln!("wireup: etcd key {key:?} ignored: not a registration of an agent");
                }
                None => {}
            }
        }
        let registered = all.len();
        let hosts = FoundHost::from_registrations(all, &self.spec);
        if hosts.is_empty() {
            let labels = self.spec.labels.clone();
            return Err(match labels.is_empty() {
                true => HostSearchFailure::NoneRegistered,
                false => HostSearchFailure::NoneHas { registered, labels },
            });
        }
        Ok(hosts)
    }

    /// Returns when there may be others, or after this time.
    pub(super) async fn changed(&self, pause: Duration, limit: Duration) {
        let Some(revision) = self.revision else {
            return sleep(pause).await;
        };
        // A cluster that cannot be watched is asked again.
        if let Ok(Err(_)) = timeout(limit, self.etcd.changed(&self.prefix, revision)).await {
            sleep(pause).await;
        }
    }
}

/// Parses a key; `None` unless an agent has written it and `--hosts` accepts its host.
fn registration(key: &[u8], value: &[u8], prefix: &str) -> Option<HostRegistration> {
    let found: HostRegistration = serde_json::from_slice(value).ok()?;
    let name = key.strip_prefix(prefix.as_bytes())?;
    let word = FoundHost {
        name: found.name.clone(),
        address: found.address.clone(),
        slots: Some(found.slots),
    };
    let list: HostList = word.to_string().parse().ok()?;
    (name == found.name.as_bytes() && list.0.len() == 1).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registrations_of_agents_are_used() {
        let value = |name: &str, address: &str| {
            format!(r#"{{"name":"{name}","address":"{address}","slots":2,"labels":{{}}}}"#)
        };
        let read = |key: &str, value: String| registration(key.as_bytes(), value.as_bytes(), "/w/");
        let good = read("/w/n1", value("n1", "10.0.0.1:7437")).unwrap();
        assert_eq!((&*good.name, good.slots), ("n1", 2));
        for (key, value) in [
            ("/w/n2", value("n1", "10.0.0.1:7437")),
            ("/w/n1,n2", value("n1,n2", "10.0.0.1:7437")),
            ("/w/n[1-2]", value("n[1-2]", "10.0.0.[1-2]:7437")),
            ("/w/n1", value("n1", "10.0.0.1:7437,n2")),
            ("/w/n1", value("n1", "")),
            ("/w/n1", "n1".to_owned()),
        ] {
            assert_eq!(read(key, value.clone()), None, "{key}: {value}");
        }
    }
}
