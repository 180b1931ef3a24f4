//! The identity in a certificate: a name and a role, both in one URI, `wireup://ROLE/NAME`.
//!
//! The certificate also has the names of a node (DNS names and addresses), where TLS looks for them. They identify the
//! host that was reached; the URI gives the permissions. A certificate without the URI has no identity, whichever
//! authority signed it.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use rustls::pki_types::ServerName;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

pub use wireup_agent_args::pki_args::Role;

/// Scheme of the URI.
const SCHEME: &str = "wireup://";

/// Longest name, in bytes, as DNS has it.
pub const NAME_MAX: usize = 253;

/// The holder of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Name; for a node, the one in host lists.
    pub name: String,
    pub role: Role,
}

/// The contents of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// The holder; `None` for an authority and for certificates of other software.
    pub identity: Option<Identity>,
    /// The subject, for people.
    pub subject: String,
    /// Names and addresses by which the holder may be called.
    pub names: Vec<String>,
    /// Serial number among the certificates of its authority, without leading zeros.
    pub serial: Vec<u8>,
    /// Whether the certificate may sign others.
    pub authority: bool,
    /// Start of the validity.
    pub not_before: SystemTime,
    /// End of the validity.
    pub not_after: SystemTime,
}

/// Errors in an identity.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityError {
    /// The name can be no host's.
    #[error(
        "invalid name {0:?}: use a host name (letters, digits, '-', '_', '.') or an IP address"
    )]
    Name(String),
    /// The bytes are no certificate.
    #[error("not an X.509 certificate: {0}")]
    Certificate(String),
    /// Several identities in one certificate.
    #[error("the certificate has several identities: {0} and {1}")]
    Several(String, String),
    /// A URI with the scheme that cannot be read.
    #[error(
        "invalid identity {0:?}: use wireup://node/NAME, or scheduler or observer in place of node"
    )]
    Uri(String),
    /// The certificate has no identity.
    #[error("the certificate has no identity (URI wireup://node/NAME); use `wireup pki issue`")]
    Nobody,
    /// Another identity than that of a node.
    #[error("the certificate belongs to {0}, not to a node")]
    Role(Identity),
}

impl Identity {
    /// Makes an identity with a valid name.
    ///
    /// # Errors
    /// [`IdentityError::Name`].
    pub fn new(name: &str, role: Role) -> Result<Self, IdentityError> {
        check_name(name)?;
        Ok(Self {
            name: name.to_owned(),
            role,
        })
    }

    /// Returns the URI that a certificate has.
    pub fn uri(&self) -> String {
        format!("{SCHEME}{}/{}", role_name(self.role), self.name)
    }

    /// Returns the identity of a URI; `None` if it has another scheme.
    fn from_uri(uri: &str) -> Result<Option<Self>, IdentityError> {
        let Some(rest) = uri.strip_prefix(SCHEME) else {
            return Ok(None);
        };
        let unknown = || IdentityError::Uri(uri.to_owned());
        let (role, name) = rest.split_once('/').ok_or_else(unknown)?;
        let role = Role::from_str(role, false).map_err(|_| unknown())?;
        Self::new(name, role).map(Some).map_err(|_| unknown())
    }

    /// Returns the identity of a certificate in DER.
    ///
    /// # Errors
    /// [`IdentityError`], also if it has no identity.
    pub fn from_der(der: &[u8]) -> Result<Self, IdentityError> {
        Certificate::from_der(der)?
            .identity
            .ok_or(IdentityError::Nobody)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", role_name(self.role), self.name)
    }
}

/// Returns the word for a role.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Node => "node",
        Role::Scheduler => "scheduler",
        Role::Observer => "observer",
    }
}

/// Refuses texts that can be neither a host's name nor its address.
///
/// # Errors
/// [`IdentityError::Name`].
pub fn check_name(name: &str) -> Result<(), IdentityError> {
    // An address in its one canonical spelling: names are compared as text.
    let address = name.parse().is_ok_and(|ip: IpAddr| ip.to_string() == name);
    // A zone or port would make it an invalid DNS name.
    let host =
        !name.ends_with('.') && matches!(ServerName::try_from(name), Ok(ServerName::DnsName(_)));
    match name.len() <= NAME_MAX && (address || host) {
        true => Ok(()),
        false => Err(IdentityError::Name(name.to_owned())),
    }
}

impl Certificate {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// [`IdentityError`]; that there is no identity is none.
    pub fn from_der(der: &[u8]) -> Result<Self, IdentityError> {
        let malformed = |error: &dyn fmt::Display| IdentityError::Certificate(error.to_string());
        let (rest, parsed) = X509Certificate::from_der(der).map_err(|error| malformed(&error))?;
        if !rest.is_empty() {
            return Err(malformed(&"unexpected bytes after it"));
        }
        let mut found = Self {
            identity: None,
            subject: parsed.subject().to_string(),
            names: Vec::new(),
            serial: significant(parsed.raw_serial()),
            authority: parsed.is_ca(),
            not_before: moment(parsed.validity().not_before.timestamp()),
            not_after: moment(parsed.validity().not_after.timestamp()),
        };
        let names = parsed
            .subject_alternative_name()
            .map_err(|error| malformed(&error))?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(name) => found.names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => found.names.extend(address(bytes)),
                GeneralName::URI(uri) => {
                    let Some(identity) = Identity::from_uri(uri)? else {
                        continue;
                    };
                    if let Some(other) = &found.identity {
                        return Err(IdentityError::Several(other.uri(), identity.uri()));
                    }
                    found.identity = Some(identity);
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Removes the leading zeros of a serial number, which make it longer but not different.
pub(crate) fn significant(serial: &[u8]) -> Vec<u8> {
    let zeros = serial.iter().take_while(|byte| **byte == 0).count();
    serial[zeros..].to_vec()
}

/// Seconds since the epoch as a time; earlier times count as the epoch.
pub(crate) fn moment(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn address(bytes: &[u8]) -> Option<String> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let v6 = <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    v4.or(v6).ok().map(|ip| ip.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_parsed_from_its_uri() {
        for (name, role) in [
            ("n1", Role::Node),
            ("rack-2_n17.example.org", Role::Scheduler),
            ("10.0.0.3", Role::Node),
            ("fd00::3", Role::Observer),
        ] {
            let identity = Identity::new(name, role).unwrap();
            assert_eq!(Identity::from_uri(&identity.uri()), Ok(Some(identity)));
        }
        assert_eq!(Identity::from_uri("spiffe://node/n1"), Ok(None));
        for uri in [
            "wireup://",
            "wireup://node",
            "wireup://node/",
            "wireup://Node/n1",
            "wireup://root/n1",
            "wireup://node/a/b",
            "wireup://node/..",
        ] {
            assert_eq!(Identity::from_uri(uri), Err(IdentityError::Uri(uri.into())));
        }
    }

    #[test]
    fn names_of_hosts_and_addresses_have_one_spelling() {
        for name in [
            "",
            ".",
            "..",
            "-a",
            "a b",
            "a/b",
            "a:1",
            "n1.",
            "FD00::3",
            "fd00:0::3",
            "ü",
            "*",
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name(&"a.".repeat(127)).is_err());
    }

    proptest::proptest! {
        #[test]
        fn certificate_with_changed_bytes_is_parsed_or_refused(
            changes in proptest::collection::vec((0..600_usize, 0..=255_u8), 1..8)
        ) {
            static DER: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
                let mut params = rcgen::CertificateParams::default();
                for san in ["wireup://node/n1", "n1", "10.0.0.1"] {
                    let text = san.try_into().unwrap();
                    params.subject_alt_names.push(match san.parse() {
                        Ok(ip) => rcgen::SanType::IpAddress(ip),
                        Err(_) if san.contains(':') => rcgen::SanType::URI(text),
                        Err(_) => rcgen::SanType::DnsName(text),
                    });
                }
                let key = rcgen::KeyPair::generate().unwrap();
                params.self_signed(&key).unwrap().der().to_vec()
            });
            let mut der = DER.clone();
            proptest::prop_assert!(Identity::from_der(&der).is_ok());
            for (at, byte) in changes {
                let at = at % der.len();
                der[at] = byte;
            }
            if let Ok(identity) = Identity::from_der(&der) {
                proptest::prop_assert!(check_name(&identity.name).is_ok());
            }
        }
    }

    #[test]
    fn text_that_is_not_certificate_is_refused() {
        for bytes in [
            &b""[..],
            b"\x30",
            b"\x30\x80\x00\x00",
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert!(Certificate::from_der(bytes).is_err());
        }
    }
}
