//! The certificate authority: makes certificates, in memory.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use time::OffsetDateTime;

use crate::identity::{Certificate, Identity, IdentityError, Role};
use crate::revocation_lists::Serials;

/// Certificates are valid from a little before they are made: clocks of nodes differ.
const SKEW: Duration = Duration::from_secs(60 * 60);

/// Error: a certificate cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The text is no certificate of an authority.
    #[error("invalid certificate of the authority: {0}")]
    Certificate(String),
    /// The text is no key.
    #[error("invalid private key: {0}")]
    Key(rcgen::Error),
    /// The certificate and the key do not match.
    #[error("the key does not match the certificate")]
    Mismatch,
    /// The authority's own validity has ended.
    #[error(
        "the authority has expired; create another one in a new directory (wireup pki init --dir)"
    )]
    Expired,
    /// A name cannot be written into a certificate.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A list of revoked certificates cannot be made.
    #[error("cannot create the list of revoked certificates: {0}")]
    List(rcgen::Error),
    #[error("cannot create the certificate: {0}")]
    Making(rcgen::Error),
}

/// Validity of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

impl Validity {
    /// Returns the time of `days` days from `now` on.
    pub fn days(now: SystemTime, days: u32) -> Self {
        Self {
            not_before: now - SKEW,
            not_after: now + Duration::from_secs(u64::from(days) * 24 * 60 * 60),
        }
    }
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct CertificatePair {
    pub certificate: String,
    /// Key of the certificate: a secret, so this type has no `Debug`.
    pub key: String,
}

/// Certificate authority, with its key.
pub struct Authority {
    /// Certificate that the holders of the authority's certificates must trust, in PEM.
    pub certificate: String,
    /// End of the authority's own validity; no certificate of it is valid longer.
    not_after: SystemTime,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Creates a new authority.
    ///
    /// # Errors
    /// [`AuthorityError`]
    pub fn init(name: &str, validity: Validity) -> Result<CertificatePair, AuthorityError> {
        let key = KeyPair::generate().map_err(AuthorityError::Making)?;
        let mut params = params(name, validity);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(AuthorityError::Making)?;
        Ok(CertificatePair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Reads an authority. Of several certificates, the first is the authority's; the others are
    /// those of earlier or later ones that nodes trust as well.
    ///
    /// # Errors
    /// [`AuthorityError`]
    pub fn load(certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        let malformed =
            |error: &dyn std::fmt::Display| AuthorityError::Certificate(error.to_string());
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|error| malformed(&error))?;
        let found = Certificate::from_der(&der).map_err(|error| malformed(&error))?;
        if !found.authority {
            return Err(malformed(&"it may not sign certificates"));
        }
        let key = KeyPair::from_pem(key).map_err(AuthorityError::Key)?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(&der).map_err(|error| malformed(&error))?;
        if parsed.public_key().subject_public_key.data != key.public_key_raw() {
            return Err(AuthorityError::Mismatch);
        }
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(|error| malformed(&error))?;
        Ok(Self {
            certificate: certificate.to_owned(),
            not_after: found.not_after,
            issuer,
        })
    }

    /// Makes a certificate with a new key. `names` are further names or addresses by which
    /// the holder may be called.
    ///
    /// # Errors
    /// [`AuthorityError`]
    pub fn issue(
        &self,
        identity: &Identity,
        names: &[String],
        validity: Validity,
    ) -> Result<CertificatePair, AuthorityError> {
        let not_after = validity.not_after.min(self.not_after);
        if not_after <= validity.not_before {
            return Err(AuthorityError::Expired);
        }
        let key = KeyPair::generate().map_err(AuthorityError::Making)?;
        let mut params = params(
            &identity.name,
            Validity {
                not_after,
                ..validity
            },
        );
        let uri = identity.uri().try_into().map_err(AuthorityError::Making)?;
        params.subject_alt_names.push(SanType::URI(uri));
        let own = (!names.contains(&identity.name)).then_some(&identity.name);
        for name in own.into_iter().chain(names) {
            crate::identity::check_name(name)?;
            let name = match name.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => {
                    SanType::DnsName(name.as_str().try_into().map_err(AuthorityError::Making)?)
                }
            };
            params.subject_alt_names.push(name);
        }
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        // Only nodes are called by others; no other role can impersonate one.
        if identity.role == Role::Node {
            let server = ExtendedKeyUsagePurpose::ServerAuth;
            params.extended_key_usages.push(server);
        }
        let certificate = params.signed_by(&key, &self.issuer);
        Ok(CertificatePair {
            certificate: certificate.map_err(AuthorityError::Making)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

impl Authority {
    /// Makes a list of revoked certificates, in PEM. Its next-update time is the end of the
    /// authority.
    ///
    /// # Errors
    /// [`AuthorityError`]
    pub fn revoke(&self, serials: &Serials, now: SystemTime) -> Result<String, AuthorityError> {
        if self.not_after <= now {
            return Err(AuthorityError::Expired);
        }
        let revoked = serials.iter().map(|(serial, since)| RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial),
            revocation_time: OffsetDateTime::from(*since),
            reason_code: None,
            invalidity_date: None,
        });
        let number = now.duration_since(SystemTime::UNIX_EPOCH);
        let list = CertificateRevocationListParams {
            this_update: OffsetDateTime::from(now),
            next_update: OffsetDateTime::from(self.not_after),
            crl_number: SerialNumber::from(number.unwrap_or_default().as_secs()),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let signed_list = list.signed_by(&self.issuer).map_err(AuthorityError::List)?;
        signed_list.pem().map_err(AuthorityError::List)
    }
}

fn params(name: &str, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = OffsetDateTime::from(validity.not_before);
    params.not_after = OffsetDateTime::from(validity.not_after);
    params
}
