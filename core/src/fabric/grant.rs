//! The credential of a launch, and the part of it that the ranks of one host get.
//!
//! Rule: libfabric takes the first of `SLINGSHOT_VNIS`, and of `SLINGSHOT_SVC_IDS` the one at the place that its own device
//! has in `SLINGSHOT_DEVICES`; without a list of devices it ignores both. Source: libfabric, prov/cxi/src/cxip_nic.c.
//! `FI_CXI_DEFAULT_VNI` is its parameter for services that restrict no network; `FI_CXI_AUTH_KEY` is not libfabric's.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::secret::SecretBytes;

/// Most bytes of a key.
pub const KEY_MAX: usize = 256;

/// Most devices, networks and services of a host. Source: Slurm allows 8 devices and 4 networks.
pub const LIST_MAX: usize = 64;

/// Variables of virtual networks, devices, services and traffic classes, each with commas between its values.
pub const VNIS: &str = "SLINGSHOT_VNIS";
pub const DEVICES: &str = "SLINGSHOT_DEVICES";
pub const SERVICES: &str = "SLINGSHOT_SVC_IDS";
pub const TRAFFIC: &str = "SLINGSHOT_TCS";
/// The first of the networks alone.
pub const DEFAULT_VNI: &str = "FI_CXI_DEFAULT_VNI";
/// The key in hexadecimal digits.
pub const KEY: &str = "FI_CXI_AUTH_KEY";

/// All variables in which there is a credential.
pub const NAMES: [&str; 6] = [VNIS, DEVICES, SERVICES, TRAFFIC, DEFAULT_VNI, KEY];

/// Devices and services of one host that differ from the launch's.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HostGrant {
    /// Devices that may be used; all existing ones if empty.
    pub devices: Vec<String>,
    /// One service for all devices, or one for each; those of the launch if empty.
    pub services: Vec<u32>,
}

/// Fabric grant of a launch: VNIs, CXI services and key.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FabricGrant {
    /// Virtual networks; the first is the launch's own. Never empty.
    pub vnis: Vec<u16>,
    /// One service for all devices of every host, or one for each; none if the hosts have their own.
    pub services: Vec<u32>,
    /// Traffic classes, as the variable has them.
    pub traffic: Option<String>,
    /// Key of the services; empty without one.
    pub key: SecretBytes,
    /// Deviations of single hosts, by name.
    pub hosts: BTreeMap<String, HostGrant>,
    /// Devices that every host is limited to, unless it has some of its own.
    pub devices: Vec<String>,
}

/// Reason for which no grant was created.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FabricGrantError {
    #[error("{VNIS} is not set; request an allocation with Slingshot, or name a fabric manager")]
    None,
    /// The value is not shown.
    #[error("invalid {0}: use at most {LIST_MAX} numbers separated by commas")]
    Malformed(&'static str),
    #[error("invalid {KEY}: use at most {KEY_MAX} bytes as hexadecimal digits")]
    Key,
}

/// Reason for which a host cannot use a grant.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FabricDeviceError {
    #[error("no Slingshot device (/dev/cxi*)")]
    NoDevice,
    #[error("the fabric grant needs {missing}, which this host does not have (/dev/cxi*)")]
    NotThere { missing: String },
    #[error("the fabric grant has {services} services for {devices} devices")]
    Services { services: usize, devices: usize },
}

/// Variables of ranks; the values are cleared when they are dropped.
pub type Variables = Vec<(&'static str, Zeroizing<String>)>;

impl FabricGrant {
    /// Creates the grant that these variables describe.
    ///
    /// # Errors
    /// [`FabricGrantError`]
    pub fn from_environment<'a>(
        variables: impl IntoIterator<Item = (&'a OsStr, &'a OsStr)>,
    ) -> Result<Self, FabricGrantError> {
        let mut found = Self::default();
        let mut default: Option<u16> = None;
        for (name, value) in variables {
            let Some(known) = NAMES.into_iter().find(|known| name == *known) else {
                continue;
            };
            let value = value.to_str().ok_or(FabricGrantError::Malformed(known))?;
            let malformed = || FabricGrantError::Malformed(known);
            match known {
                VNIS => found.vnis = numbers(value).ok_or_else(malformed)?,
                SERVICES => found.services = numbers(value).ok_or_else(malformed)?,
                DEVICES => found.devices = devices(value).ok_or_else(malformed)?,
                DEFAULT_VNI => default = value.parse().ok(),
                TRAFFIC => found.traffic = traffic(value),
                _ => found.key = key(value)?,
            }
        }
        if found.vnis.is_empty() {
            found.vnis.extend(default);
        }
        match found.vnis.is_empty() {
            true => Err(FabricGrantError::None),
            false => Ok(found),
        }
    }

    /// Returns the variables of the ranks of a host that has these devices.
    ///
    /// # Errors
    /// [`FabricDeviceError`]
    pub fn variables(
        &self,
        host: &str,
        present: &[String],
    ) -> Result<Variables, FabricDeviceError> {
        let own = self.hosts.get(host);
        let limited = own
            .map(|own| &own.devices)
            .filter(|devices| !devices.is_empty())
            .unwrap_or(&self.devices);
        let devices = match limited.as_slice() {
            [] if present.is_empty() => return Err(FabricDeviceError::NoDevice),
            [] => present,
            limited => {
                let missing = limited.iter().filter(|name| !present.contains(name));
                let missing: Vec<&str> = missing.map(String::as_str).collect();
                if !missing.is_empty() {
                    return Err(FabricDeviceError::NotThere {
                        missing: missing.join(", "),
                    });
                }
                limited
            }
        };
        let services = own
            .map(|own| &own.services)
            .filter(|services| !services.is_empty())
            .unwrap_or(&self.services);
        let services: Vec<u32> = match services.as_slice() {
            [] => Vec::new(),
            [one] => vec![*one; devices.len()],
            each if each.len() == devices.len() => each.to_vec(),
            each => {
                return Err(FabricDeviceError::Services {
                    services: each.len(),
                    devices: devices.len(),
                });
            }
        };
        let mut found = self.common();
        found.push((DEVICES, Zeroizing::new(devices.join(","))));
        if !services.is_empty() {
            found.push((SERVICES, list(&services)));
        }
        Ok(found)
    }

    /// Returns the variables of ranks of a host without devices.
    pub fn common(&self) -> Variables {
        let mut found = vec![(VNIS, list(&self.vnis))];
        if let Some(first) = self.vnis.first() {
            found.push((DEFAULT_VNI, Zeroizing::new(first.to_string())));
        }
        if let Some(traffic) = &self.traffic {
            found.push((TRAFFIC, Zeroizing::new(traffic.clone())));
        }
        if !self.key.expose().is_empty() {
            found.push((KEY, self.key.hex()));
        }
        found
    }
}

/// Whether a process with these variables has a credential of its own.
pub fn is_in(variables: &[(OsString, OsString)]) -> bool {
    variables.iter().any(|(name, _)| name == VNIS)
}

/// Parses a key in hexadecimal digits.
///
/// # Errors
/// [`FabricGrantError::Key`]
pub fn key(text: &str) -> Result<SecretBytes, FabricGrantError> {
    let key = SecretBytes::from_hex(text).map_err(|_| FabricGrantError::Key)?;
    match key.expose().len() {
        ..=KEY_MAX => Ok(key),
        _ => Err(FabricGrantError::Key),
    }
}

/// Returns the number in a device file's name: `cxi3`.
pub fn device_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("cxi")?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.len() <= 4;
    plain.then(|| digits.parse().ok()).flatten()
}

fn numbers<T: std::str::FromStr>(text: &str) -> Option<Vec<T>> {
    let numbers = text.split(',').map(|number| number.trim().parse().ok());
    let numbers: Option<Vec<T>> = numbers.collect();
    numbers.filter(|numbers| numbers.len() <= LIST_MAX)
}

fn devices(text: &str) -> Option<Vec<String>> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let known = names.len() <= LIST_MAX && names.iter().all(|name| device_number(name).is_some());
    known.then_some(names)
}

/// Returns a text of printable characters; `None` for any other.
pub(super) fn traffic(text: &str) -> Option<String> {
    let plain = !text.is_empty() && text.len() <= 64 && text.bytes().all(|b| b.is_ascii_graphic());
    plain.then(|| text.to_owned())
}

fn list<T: ToString>(numbers: &[T]) -> Zeroizing<String> {
    let numbers: Vec<String> = numbers.iter().map(T::to_string).collect();
    Zeroizing::new(numbers.join(","))
}
