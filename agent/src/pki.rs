//! `wireup pki`: a certificate authority for a cluster, in files.
//!
//! ```text
//!  DIR/            0700
//!    ca.pem        the authority's certificate; further ones in it are trusted as well
//!    ca.key        its key, which stays on this machine
//!    issued.tsv    every certificate it has made: number, name, end
//!    crl.pem       those that were revoked; not there while there are none
//!    NAME/         the files of NAME, as a whole: copied to its node
//!      ca.pem  crl.pem  cert.pem  key.pem
//! ```
//! Keys are made here and travel with the certificate; no request is signed that came from
//! elsewhere.

pub mod authority;
pub mod certificate_files;
pub mod certificate_table;
pub mod dates;
mod pki_commands;
mod pki_error;
mod push;
pub mod revocation;

use std::path::{Path, PathBuf};
use std::{fs, io};

use authority::{Authority, CertificatePair, Validity};
use certificate_files::{PUBLIC, PkiFileError, SECRET};
pub use pki_commands::main;
pub use pki_error::PkiError;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::identity::{Certificate, Identity, IdentityError};
use wireup_agent_args::pki_args::Role;

/// The authorities that are trusted, in a node's directory; the authority itself in its own.
pub const CA: &str = "ca.pem";
/// The certificate of the directory's holder.
pub const CERTIFICATE: &str = "cert.pem";
pub const KEY: &str = "key.pem";
/// Certificates that were taken back; not there while there are none.
pub const REVOKED: &str = "crl.pem";
/// File of the authority's key.
const CA_KEY: &str = "ca.key";
/// A line for each certificate that was made.
const MADE: &str = "issued.tsv";

/// Returns the directory for files of this user: `/etc/wireup/WHAT` for root, otherwise one below the user's
/// configuration. `flag` is the option that names another directory.
///
/// # Errors
/// [`PkiError::Homeless`]
pub fn default_directory(what: &str, flag: &'static str) -> Result<PathBuf, PkiError> {
    if rustix::process::geteuid().is_root() {
        return Ok(Path::new("/etc/wireup").join(what));
    }
    let absolute = |name| {
        let value = std::env::var_os(name).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    let config = absolute("XDG_CONFIG_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".config")))
        .ok_or(PkiError::Homeless(flag))?;
    Ok(config.join("wireup").join(what))
}

/// Creates an authority in a directory.
///
/// # Errors
/// [`PkiError`]
pub fn init(dir: &Path, name: &str, validity: Validity) -> Result<(), PkiError> {
    certificate_files::make_private(dir)?;
    for file in [CA, CA_KEY] {
        let path = dir.join(file);
        if fs::symlink_metadata(&path).is_ok() {
            return Err(PkiError::AuthorityExists(path));
        }
    }
    let pair = Authority::init(name, validity).map_err(PkiError::authority(dir.to_owned()))?;
    let files = [
        (CA_KEY, &*pair.key, SECRET),
        (CA, &*pair.certificate, PUBLIC),
    ];
    Ok(certificate_files::write_all(dir, &files)?)
}

/// Reads the authority of a directory.
///
/// # Errors
/// [`PkiError`]
pub fn load(dir: &Path) -> Result<Authority, PkiError> {
    let missing = |error: PkiFileError| match certificate_files::is_missing(&error) {
        true => PkiError::NoAuthority(dir.to_owned()),
        false => error.into(),
    };
    certificate_files::check_private(dir).map_err(missing)?;
    let path = dir.join(CA);
    let certificate = certificate_files::read_public(&path).map_err(missing)?;
    let key = certificate_files::read_secret(&dir.join(CA_KEY)).map_err(missing)?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Authority::load(&text(certificate), &text(key)).map_err(PkiError::authority(path))
}

/// Makes a certificate for each name; none, if one of them cannot have one. `addresses` are
/// further names of the only one. Gives the directories that were made.
///
/// # Errors
/// [`PkiError`]
pub fn issue(
    dir: &Path,
    names: &[String],
    addresses: &[String],
    role: Role,
    validity: Validity,
) -> Result<Vec<PathBuf>, PkiError> {
    if names.len() > 1 && !addresses.is_empty() {
        return Err(PkiError::Addresses);
    }
    let authority = load(dir)?;
    for address in addresses {
        crate::identity::check_name(address)?;
    }
    let mut holders = Vec::new();
    for name in names {
        let identity = Identity::new(name, role)?;
        if [CA, CA_KEY, REVOKED, MADE].contains(&name.as_str()) {
            return Err(PkiError::Reserved(name.clone()));
        }
        let path = dir.join(name);
        if fs::symlink_metadata(&path).is_ok() || holders.iter().any(|(_, other)| *other == path) {
            return Err(PkiError::Issued {
                name: name.clone(),
                path,
            });
        }
        holders.push((identity, path));
    }
    let mut directories = Vec::new();
    for (identity, path) in holders {
        let pair = authority.issue(&identity, addresses, validity);
        let pair = pair.map_err(PkiError::authority(dir.join(CA)))?;
        revocation::remember(dir, &pair)?;
        let fresh = certificate_files::StagedDirectory::begin(&path)?;
        put(dir, &fresh.path, &pair, &authority.certificate)?;
        fresh.finish()?;
        directories.push(path);
    }
    Ok(directories)
}

/// Writes the files of a holder. The key comes first: a reader in between detects that it is not
/// the certificate's, and reads again.
fn put(authority: &Path, dir: &Path, pair: &CertificatePair, ca: &str) -> Result<(), PkiFileError> {
    match certificate_files::read_public(&authority.join(REVOKED)) {
        Ok(list) => certificate_files::write(&dir.join(REVOKED), &list, PUBLIC)?,
        Err(error) if certificate_files::is_missing(&error) => {}
        Err(error) => return Err(error),
    }
    let files = [
        (KEY, &*pair.key, SECRET),
        (CERTIFICATE, &*pair.certificate, PUBLIC),
        (CA, ca, PUBLIC),
    ];
    certificate_files::write_all(dir, &files)
}

/// Reads the first certificate of a file.
///
/// # Errors
/// [`PkiError`]
pub fn read(path: &Path) -> Result<Certificate, PkiError> {
    parse(&certificate_files::read_public(path)?, path)
}

/// Parses the first certificate in the contents of a file.
fn parse(pem: &[u8], path: &Path) -> Result<Certificate, PkiError> {
    let unreadable = |error: &dyn std::fmt::Display| PkiError::Certificate {
        path: path.to_owned(),
        error: error.to_string(),
    };
    let der = CertificateDer::from_pem_slice(pem)
        .map_err(|_| unreadable(&"no certificate in this file (PEM)"))?;
    Certificate::from_der(&der).map_err(|error| unreadable(&error))
}

/// Returns the names that have certificates, in order.
///
/// # Errors
/// [`PkiError`]
pub fn issued(dir: &Path) -> Result<Vec<String>, PkiError> {
    let failed = |error: io::Error| PkiFileError::Io {
        action: "list",
        path: dir.to_owned(),
        error,
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && entry.path().join(CERTIFICATE).exists() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Gives the holder a new certificate and key, for the same identity and names.
///
/// # Errors
/// [`PkiError`]
pub fn renew(
    dir: &Path,
    authority: &Authority,
    name: &str,
    validity: Validity,
) -> Result<PathBuf, PkiError> {
    let path = dir.join(name);
    let certificate = path.join(CERTIFICATE);
    crate::identity::check_name(name)?;
    if fs::symlink_metadata(&path).is_err() {
        let name = name.to_owned();
        return Err(PkiError::NotIssued { name, path });
    }
    certificate_files::check_private(&path)?;
    let found = read(&certificate)?;
    let identity = found.identity.ok_or(IdentityError::Nobody)?;
    let pair = authority.issue(&identity, &found.names, validity);
    let pair = pair.map_err(PkiError::authority(dir.join(CA)))?;
    revocation::remember(dir, &pair)?;
    put(dir, &path, &pair, &authority.certificate)?;
    Ok(path)
}

#[cfg(test)]
mod tests;
