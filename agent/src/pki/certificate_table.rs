//! `wireup pki show`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use serde::Serialize;

use super::dates::date_time;
use super::{CA, CERTIFICATE, PkiError, issued, read, revocation};
use crate::identity::{Certificate, role_name};
use wireup_core::text_table;

/// One certificate, as it is shown.
#[derive(Debug, Serialize)]
struct CertificateRow {
    name: String,
    /// Role of the holder; "authority" for certificates that sign others.
    role: &'static str,
    /// Serial number in hexadecimal.
    serial: String,
    /// Whether the authority has revoked the certificate, by the list in the same directory.
    revoked: bool,
    /// End of its validity, RFC 3339.
    expires: String,
    /// Days until then; negative when it is past.
    days: i64,
    /// Names by which others may address the holder.
    names: Vec<String>,
    file: PathBuf,
}

/// Prints the certificates of the files, or all of the authority in `dir`.
///
/// # Errors
/// [`PkiError`]
pub(super) fn main(
    dir: &Path,
    files: &[PathBuf],
    json: bool,
    now: SystemTime,
) -> Result<u8, PkiError> {
    let mut paths = files.to_vec();
    if paths.is_empty() {
        let ca = dir.join(CA);
        if !ca.exists() {
            return Err(PkiError::NoAuthority(dir.to_owned()));
        }
        paths.push(ca);
        let names = issued(dir)?.into_iter();
        paths.extend(names.map(|name| dir.join(name).join(CERTIFICATE)));
    }
    let mut shown = Vec::new();
    for path in paths {
        let certificate = read(&path)?;
        let revoked = revocation::is_revoked(&path)?;
        shown.push(shown_as(certificate, revoked, path, now));
    }
    let text = match json {
        true => serde_json::to_string_pretty(&shown).unwrap_or_default() + "\n",
        false => text(&shown),
    };
    // A reader that has seen enough is no failure.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(0)
}

fn shown_as(
    certificate: Certificate,
    revoked: bool,
    file: PathBuf,
    now: SystemTime,
) -> CertificateRow {
    let left = match certificate.not_after.duration_since(now) {
        Ok(left) => days(left),
        Err(past) => -days(past.duration()) - 1,
    };
    let (name, role) = match certificate.identity {
        Some(identity) => (identity.name, role_name(identity.role)),
        None if certificate.authority => (certificate.subject, "authority"),
        None => (certificate.subject, "none"),
    };
    CertificateRow {
        name,
        role,
        serial: HEXLOWER.encode(&certificate.serial),
        revoked,
        expires: date_time(certificate.not_after),
        days: left,
        names: certificate.names,
        file,
    }
}

fn text(shown: &[CertificateRow]) -> String {
    let rows: Vec<Vec<String>> = shown
        .iter()
        .map(|one| {
            let left = match one.days {
                _ if one.revoked => "revoked".to_owned(),
                past if past < 0 => "expired".to_owned(),
                days => days.to_string(),
            };
            let expires = one.expires.split('T').next().unwrap_or_default();
            let role = one.role.to_owned();
            let names = one.names.join(" ");
            vec![one.name.clone(), role, expires.to_owned(), left, names]
        })
        .collect();
    text_table::render(&["NAME", "ROLE", "EXPIRES", "DAYS", "CALLED"], &rows, None)
}

fn days(time: Duration) -> i64 {
    i64::try_from(time.as_secs() / (24 * 60 * 60)).unwrap_or(i64::MAX)
}
