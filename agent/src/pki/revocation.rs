//! The certificates that the authority revokes, and the choice of those to revoke.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::authority::CertificatePair;
use super::certificate_files::{self, PkiFileError, certificates};
use super::dates::date;
use super::{CA, CERTIFICATE, MADE, PkiError, REVOKED, issued, load, parse, read};
use crate::identity::{check_name, significant};
use crate::revocation_lists::{RevocationListError, RevocationLists};

/// Last line of a list.
const END: &str = "-----END X509 CRL-----\n";

/// Records a certificate before its first use: once it is replaced in its directory, no other file
/// has its number.
pub(super) fn remember(dir: &Path, pair: &CertificatePair) -> Result<(), PkiError> {
    let path = dir.join(MADE);
    let certificate = parse(pair.certificate.as_bytes(), &path)?;
    let identity = certificate.identity;
    let name = identity.map_or(certificate.subject, |identity| identity.name);
    let line = format!(
        "{}\t{name}\t{}\n",
        HEXLOWER.encode(&certificate.serial),
        date(certificate.not_after)
    );
    Ok(certificate_files::append(
        &path,
        &line,
        certificate_files::SECRET,
    )?)
}

/// Revokes every certificate of these names, and those of these serial numbers: makes a list of them and of all
/// that were revoked before, for the authority and all its holders. How many are new in it.
///
/// # Errors
/// [`PkiError`]
pub fn revoke(
    dir: &Path,
    names: &[String],
    serials: &[String],
    now: SystemTime,
) -> Result<usize, PkiError> {
    let authority = load(dir)?;
    let path = dir.join(REVOKED);
    let lists = read_text(&path)?;
    let text = lists.as_deref().unwrap_or_default();
    let end = text.find(END).map_or(text.len(), |end| end + END.len());
    let (own, others) = text.split_at(end);
    let failed = |error| PkiError::Revoked {
        path: path.clone(),
        error,
    };
    let mut all = match &lists {
        None => Default::default(),
        Some(_) => {
            let ca = CertificateDer::from_pem_slice(authority.certificate.as_bytes());
            let ca =
                ca.map_err(|error| failed(RevocationListError::Malformed(error.to_string())))?;
            let read = RevocationLists::read(own.as_bytes(), &[ca]);
            read.map_err(failed)?.into_serials()
        }
    };
    let before = all.len();
    // Of any length: it is this user's own, and grows with every renewal.
    let table = fs::read_to_string(dir.join(MADE)).unwrap_or_default();
    for name in names {
        check_name(name)?;
        let mut found = numbers(&table, name);
        let certificate = dir.join(name).join(CERTIFICATE);
        if certificate.exists() {
            found.push(read(&certificate)?.serial);
        }
        if found.is_empty() {
            return Err(PkiError::Unknown {
                name: name.clone(),
                dir: dir.to_owned(),
            });
        }
        for serial in found {
            all.entry(serial).or_insert(now);
        }
    }
    for text in serials {
        let serial = number(text).ok_or_else(|| PkiError::Serial(text.clone()))?;
        all.entry(serial).or_insert(now);
    }
    let list = authority.revoke(&all, now);
    let list = list.map_err(PkiError::authority(dir.join(CA)))?;
    let text = list.replace("\r\n", "\n") + others;
    certificate_files::write(&path, text.as_bytes(), certificate_files::PUBLIC)?;
    for name in issued(dir)? {
        let path = dir.join(name).join(REVOKED);
        certificate_files::write(&path, text.as_bytes(), certificate_files::PUBLIC)?;
    }
    Ok(all.len() - before)
}

/// Whether a certificate is in the list of its directory, if there is one.
///
/// # Errors
/// [`PkiError`]
pub(super) fn is_revoked(certificate: &Path) -> Result<bool, PkiError> {
    let path = certificate.with_file_name(REVOKED);
    let Some(list) = read_text(&path)? else {
        return Ok(false);
    };
    let authorities = certificate_files::read_public(&certificate.with_file_name(CA))?;
    let failed = |error| PkiError::Revoked { path, error };
    let revoked = RevocationLists::read(list.as_bytes(), &certificates(&authorities));
    let revoked = revoked.map_err(failed)?;
    let pem = certificate_files::read_public(certificate)?;
    let der = CertificateDer::from_pem_slice(&pem);
    Ok(der.is_ok_and(|der| revoked.contains(&der)))
}

/// Returns the numbers of a name's certificates in the list of all.
fn numbers(table: &str, name: &str) -> Vec<Vec<u8>> {
    let lines = table.lines().filter_map(|line| {
        let mut fields = line.split('\t');
        let serial = fields.next()?;
        (fields.next()? == name).then(|| number(serial)).flatten()
    });
    lines.collect()
}

/// Parses a serial number in people's notation: hexadecimal, with colons or without.
fn number(text: &str) -> Option<Vec<u8>> {
    let digits: String = text.chars().filter(|c| *c != ':').collect();
    let padded = match digits.len() % 2 {
        0 => digits,
        _ => format!("0{digits}"),
    };
    let bytes = HEXLOWER_PERMISSIVE.decode(padded.as_bytes()).ok()?;
    (!bytes.is_empty()).then(|| significant(&bytes))
}

fn read_text(path: &Path) -> Result<Option<String>, PkiFileError> {
    match certificate_files::read_public(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if certificate_files::is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
