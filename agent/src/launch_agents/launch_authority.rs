//! The authority of one launch, as text for the agents' standard input.

use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::SystemTime;

use crate::identity::{Identity, Role};
use crate::pki::authority::{Authority, CertificatePair, Validity};
use crate::tls::TlsConfigs;
use wireup_core::failure::{AnyError, CommandError};

/// Longer than a launch lasts. Certificates are checked when a connection is made.
const DAYS: u32 = 3650;

/// Last line of the text.
const END: &str = "end";

/// Authority and hosts, for the agents of a launch.
pub(super) struct LaunchCertificates {
    pub(super) hosts: Vec<String>,
    pair: CertificatePair,
}

fn failed(error: impl Into<AnyError>) -> CommandError {
    CommandError::system("cannot create a certificate", error)
}

fn validity() -> Validity {
    Validity::days(SystemTime::now(), DAYS)
}

impl LaunchCertificates {
    /// Makes a new authority, for a launch that may use these hosts.
    pub(super) fn new(hosts: Vec<String>) -> Result<Self, CommandError> {
        let pair = Authority::init("launch", validity()).map_err(failed)?;
        Ok(Self { hosts, pair })
    }

    /// Returns the text that is sent.
    pub(super) fn text(&self) -> String {
        let CertificatePair { certificate, key } = &self.pair;
        format!("{}\n{key}\n{certificate}\n{END}\n", self.hosts.join(","))
    }

    /// Reads the sent lines, and no byte after the last one.
    pub(super) fn read(mut from: impl BufRead) -> io::Result<Self> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if from.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if line.trim_end() == END {
                break;
            }
            lines.push(line);
        }
        let hosts = lines
            .first()
            .map(|line| line.trim_end())
            .unwrap_or_default();
        let rest = lines.get(1..).unwrap_or_default().concat();
        let at = rest.find("-----BEGIN CERTIFICATE").unwrap_or(0);
        let (key, certificate) = rest.split_at(at);
        Ok(Self {
            hosts: hosts.split(',').map(str::to_owned).collect(),
            pair: CertificatePair {
                certificate: certificate.to_owned(),
                key: key.to_owned(),
            },
        })
    }

    /// Makes the credentials of one agent, which exist in its memory only.
    pub(super) fn credentials(&self, name: &str) -> Result<Arc<TlsConfigs>, CommandError> {
        let CertificatePair { certificate, key } = &self.pair;
        let authority = Authority::load(certificate, key).map_err(failed)?;
        let identity = Identity::new(name, Role::Node).map_err(failed)?;
        let own = authority
            .issue(&identity, &[], validity())
            .map_err(failed)?;
        TlsConfigs::in_memory(certificate, &own).map_err(failed)
    }
}
