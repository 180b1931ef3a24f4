//! Certificates that their authority has taken back: lists of serial numbers that it has signed, as
//! in RFC 5280.
//!
//! A list stays in force until it is replaced. Its next-update time is ignored: a cluster must not
//! stop because no new list was made.

use std::collections::BTreeMap;
use std::time::SystemTime;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::parse_x509_certificate;
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use crate::identity::{moment, significant};

/// Revoked serial numbers, without leading zeros, and since when.
pub type Serials = BTreeMap<Vec<u8>, SystemTime>;

/// The revoked certificates of some authorities.
#[derive(Debug, Default)]
pub struct RevocationLists {
    lists: Vec<RevocationList>,
}

#[derive(Debug)]
struct RevocationList {
    /// The certificate of the authority that signed it, in DER.
    authority: Vec<u8>,
    serials: Serials,
}

/// Reason for which a list cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RevocationListError {
    /// Nothing in the file.
    #[error("no list of revoked certificates in this file (PEM)")]
    Empty,
    /// The bytes are no list.
    #[error("not a list of revoked certificates: {0}")]
    Malformed(String),
    #[error(
        "no authority of this node (ca.pem) signed its list of {0}; remove the list, or use one of such an authority"
    )]
    Foreign(String),
}

impl RevocationLists {
    /// Reads lists in PEM; each has to be signed by one of the authorities.
    ///
    /// # Errors
    /// [`RevocationListError`]
    pub fn read(
        pem: &[u8],
        authorities: &[CertificateDer<'_>],
    ) -> Result<Self, RevocationListError> {
        let malformed =
            |error: &dyn std::fmt::Display| RevocationListError::Malformed(error.to_string());
        let mut lists = Vec::new();
        for der in CertificateRevocationListDer::pem_slice_iter(pem) {
            let der = der.map_err(|error| malformed(&error))?;
            let (rest, list) =
                CertificateRevocationList::from_der(&der).map_err(|error| malformed(&error))?;
            if !rest.is_empty() {
                return Err(malformed(&"unexpected bytes after it"));
            }
            let signed = |authority: &&CertificateDer<'_>| {
                let parsed = parse_x509_certificate(authority);
                parsed.is_ok_and(|(_, it)| list.verify_signature(it.public_key()).is_ok())
            };
            let Some(authority) = authorities.iter().find(signed) else {
                return Err(RevocationListError::Foreign(list.issuer().to_string()));
            };
            let serials = list.iter_revoked_certificates().map(|one| {
                let since = moment(one.revocation_date.timestamp());
                (significant(one.raw_serial()), since)
            });
            lists.push(RevocationList {
                authority: authority.to_vec(),
                serials: serials.collect(),
            });
        }
        match lists.is_empty() {
            true => Err(RevocationListError::Empty),
            false => Ok(Self { lists }),
        }
    }

    /// Whether a certificate in DER has been revoked; one that cannot be read counts as such.
    pub fn contains(&self, der: &[u8]) -> bool {
        if self.lists.is_empty() {
            return false;
        }
        let Ok((_, certificate)) = parse_x509_certificate(der) else {
            return true;
        };
        let serial = significant(certificate.raw_serial());
        let mut lists = self.lists.iter();
        lists.any(|list| {
            // Authorities number their certificates as they like.
            list.serials.contains_key(&serial) && signed_by(&certificate, &list.authority)
        })
    }

    /// Returns the number of revoked certificates.
    pub fn count(&self) -> usize {
        self.lists.iter().map(|list| list.serials.len()).sum()
    }

    /// Returns all serial numbers, of all authorities.
    pub fn into_serials(self) -> Serials {
        let lists = self.lists.into_iter();
        lists.flat_map(|list| list.serials).collect()
    }
}

fn signed_by(certificate: &X509Certificate<'_>, authority: &[u8]) -> bool {
    let authority = parse_x509_certificate(authority);
    authority.is_ok_and(|(_, authority)| {
        let key = authority.public_key();
        certificate.verify_signature(Some(key)).is_ok()
    })
}
