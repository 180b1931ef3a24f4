//! `wireup pki`: a certificate authority for a cluster, in files.
//!
//! ```text
//!  DIR/            0700
//!    ca.pem        the authority's certificate; further ones in it are trusted as well
//!    ca.key        its key, which stays on this machine
//!    issued.tsv    every certificate it has made: number, name, end
//!    crl.pem       those that were revoked; not there while there are none
//!    NAME/         what NAME needs, as a whole: copied to its node
//!      ca.pem  crl.pem  cert.pem  key.pem
//! ```
//! Keys are made here and travel with the certificate; no request is signed that came from
//! elsewhere.

pub mod authority;
pub mod dates;
pub mod revoked;
pub mod show;
pub mod store;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use authority::{Authority, AuthorityError, Pair, Validity};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use store::StoreError;

use crate::identity::{Certificate, Identity, IdentityError};
use crate::revoked::RevokedError;
use wireup::cli::agent_commands::pki::{PkiArgs, Role, What};
use wireup::failure::RunFailure;
use wireup_core::job::hosts::{self, Problem};

/// The authorities that are trusted, in a node's directory; the authority itself in its own.
pub const CA: &str = "ca.pem";
/// The certificate of the directory's holder.
pub const CERTIFICATE: &str = "cert.pem";
/// Its key.
pub const KEY: &str = "key.pem";
/// Certificates that were taken back; not there while there are none.
pub const REVOKED: &str = "crl.pem";
/// The authority's key.
const CA_KEY: &str = "ca.key";
/// A line for each certificate that was made.
const MADE: &str = "issued.tsv";

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// There is an authority already.
    #[error("{} is there already: an authority is made once; issue certificates with `wireup pki issue`", .0.display())]
    Made(PathBuf),
    /// There is no authority.
    #[error("there is no authority in {}; make one (wireup pki init) or name its directory (--dir)", .0.display())]
    NoAuthority(PathBuf),
    /// A name that has a certificate.
    #[error("{name} has a certificate already, in {}; to replace it: wireup pki renew --name {name}", .path.display())]
    Issued {
        name: String,
        /// Where.
        path: PathBuf,
    },
    /// A name that has none.
    #[error("{name} has no certificate in {}; to make one: wireup pki issue --name {name}", .path.display())]
    NotIssued {
        name: String,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Further names of several certificates.
    #[error("--address belongs to one certificate: name one node at a time")]
    Addresses,
    /// A name that is that of a file of the authority.
    #[error("{0} cannot be a name: a file of the authority is called so")]
    Reserved(String),
    /// A list of names.
    #[error("--name {0}")]
    Names(Problem),
    /// A name without any certificate.
    #[error("no certificate of {name} is known in {}; name its number (--serial)", .dir.display())]
    Unknown {
        name: String,
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// An invalid serial number.
    #[error("--serial {0:?} is no number in hexadecimal")]
    Serial(String),
    /// A list of revoked certificates.
    #[error("{}: {error}", path.display())]
    Revoked {
        path: PathBuf,
        /// Why.
        error: RevokedError,
    },
    /// No place for files of this user.
    #[error("there is no home directory ($HOME); name a directory with {0}")]
    Homeless(&'static str),
    /// A file or directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("{}: {error}", path.display())]
    Authority {
        /// Its certificate, or the expected path.
        path: PathBuf,
        /// Why.
        error: AuthorityError,
    },
    /// A certificate that cannot be read.
    #[error("{}: {error}", path.display())]
    Certificate {
        path: PathBuf,
        /// Why.
        error: String,
    },
}

/// Carries out the command.
///
/// # Errors
/// One line: the problem and the remedy.
pub fn main(args: PkiArgs) -> Result<u8, RunFailure> {
    let dir = match args.dir {
        Some(dir) => dir,
        None => default_directory("pki", "--dir").map_err(refused)?,
    };
    let now = SystemTime::now();
    match args.what {
        What::Init { name, days } => {
            init(&dir, &name, Validity::days(now, days)).map_err(refused)?;
            say(&dir.join(CA), "made", &dir)?;
            Ok(0)
        }
        What::Issue {
            name: names,
            address,
            role,
            days,
        } => {
            let names = expand(&names).map_err(refused)?;
            let made = issue(&dir, &names, &address, role, Validity::days(now, days));
            for path in made.map_err(refused)? {
                say(&path.join(CERTIFICATE), "made", &path)?;
            }
            if role == Role::Node {
                next(&dir, &names);
            }
            Ok(0)
        }
        What::Renew { name, within, days } => {
            let names = expand(&name).map_err(refused)?;
            renew_some(&dir, names, within, now, days)
        }
        What::Revoke { name, serial } => {
            let names = expand(&name).map_err(refused)?;
            let count = revoked::revoke(&dir, &names, &serial, now).map_err(refused)?;
            eprintln!(
                "wireup: revoked {count} certificates; copy {} to every node, beside ca.pem: its agent refuses \
                 them from the next connection on, and ends those of theirs then or at once on SIGHUP",
                dir.join(REVOKED).display()
            );
            for name in names {
                eprintln!("wireup: a new certificate of {name}: wireup pki renew --name {name}");
            }
            Ok(0)
        }
        What::Show { files, json } => show::main(&dir, &files, json, now).map_err(refused),
    }
}

/// Certificates that could not be renewed; the reasons are printed.
#[derive(Debug, thiserror::Error)]
#[error("{failed} not renewed, {done} renewed")]
struct NotAllRenewed {
    failed: usize,
    done: usize,
}

fn refused(error: PkiError) -> RunFailure {
    RunFailure::request(error)
}

/// Prints the new certificate and its validity.
fn say(certificate: &Path, what: &str, path: &Path) -> Result<(), RunFailure> {
    let found = read(certificate).map_err(refused)?;
    let until = dates::date(found.not_after);
    let whose = match found.identity {
        Some(identity) => identity.to_string(),
        None => format!("authority {}", found.subject),
    };
    eprintln!(
        "wireup: {what} {} ({whose}), valid until {until}",
        path.display()
    );
    Ok(())
}

/// The names of lists as in `--hosts`.
fn expand(lists: &[String]) -> Result<Vec<String>, PkiError> {
    let mut names = Vec::new();
    for list in lists {
        names.extend(hosts::expand(list).map_err(PkiError::Names)?);
    }
    Ok(names)
}

/// Says what to do with certificates of nodes.
fn next(dir: &Path, names: &[String]) {
    let dir = dir.display();
    let (each, name) = match names {
        [name] => (String::new(), name.as_str()),
        _ => (" for each node:".to_owned(), "NAME"),
    };
    match rustix::process::geteuid().is_root() {
        true => eprintln!(
            "wireup: next,{each} rsync -a --chmod=D700,F600 {dir}/{name}/ {name}:/etc/wireup/tls/, and there \
             systemctl enable --now wireup-agent"
        ),
        false => eprintln!(
            "wireup: next,{each} cp -rp {dir}/{name} ~/.config/wireup/tls/{name}, and there wireup agent"
        ),
    }
}

/// Where files of this user are: `/etc/wireup/WHAT` of root, otherwise below the user's
/// configuration. `flag` is what names another directory.
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

/// Makes an authority.
///
/// # Errors
/// [`PkiError`]
pub fn init(dir: &Path, name: &str, validity: Validity) -> Result<(), PkiError> {
    store::make_private(dir)?;
    for file in [CA, CA_KEY] {
        let path = dir.join(file);
        if fs::symlink_metadata(&path).is_ok() {
            return Err(PkiError::Made(path));
        }
    }
    let made = Authority::init(name, validity).map_err(|error| PkiError::Authority {
        path: dir.to_owned(),
        error,
    })?;
    store::write(&dir.join(CA_KEY), made.key.as_bytes(), store::SECRET)?;
    store::write(&dir.join(CA), made.certificate.as_bytes(), store::PUBLIC)?;
    Ok(())
}

/// Reads the authority of a directory.
///
/// # Errors
/// [`PkiError`]
pub fn load(dir: &Path) -> Result<Authority, PkiError> {
    let missing = |error: StoreError| match store::is_missing(&error) {
        true => PkiError::NoAuthority(dir.to_owned()),
        false => error.into(),
    };
    store::check_private(dir).map_err(missing)?;
    let path = dir.join(CA);
    let certificate = store::read_public(&path).map_err(missing)?;
    let key = store::read_secret(&dir.join(CA_KEY)).map_err(missing)?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Authority::load(&text(certificate), &text(key))
        .map_err(|error| PkiError::Authority { path, error })
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
    let mut wanted = Vec::new();
    for name in names {
        let identity = Identity::new(name, role)?;
        if [CA, CA_KEY, REVOKED, MADE].contains(&name.as_str()) {
            return Err(PkiError::Reserved(name.clone()));
        }
        let path = dir.join(name);
        if fs::symlink_metadata(&path).is_ok() || wanted.iter().any(|(_, other)| *other == path) {
            return Err(PkiError::Issued {
                name: name.clone(),
                path,
            });
        }
        wanted.push((identity, path));
    }
    let mut made = Vec::new();
    for (identity, path) in wanted {
        let pair = authority.issue(&identity, addresses, validity);
        let pair = pair.map_err(|error| PkiError::Authority {
            path: dir.join(CA),
            error,
        })?;
        revoked::remember(dir, &pair)?;
        let fresh = store::Fresh::begin(&path)?;
        put(dir, fresh.path(), &pair, authority.certificate())?;
        fresh.finish()?;
        made.push(path);
    }
    Ok(made)
}

/// Writes the files of a holder. The key comes first: a reader in between detects that it is not
/// the certificate's, and reads again.
fn put(authority: &Path, dir: &Path, pair: &Pair, ca: &str) -> Result<(), StoreError> {
    match store::read_public(&authority.join(REVOKED)) {
        Ok(list) => store::write(&dir.join(REVOKED), &list, store::PUBLIC)?,
        Err(error) if store::is_missing(&error) => {}
        Err(error) => return Err(error),
    }
    store::write(&dir.join(KEY), pair.key.as_bytes(), store::SECRET)?;
    let certificate = dir.join(CERTIFICATE);
    store::write(&certificate, pair.certificate.as_bytes(), store::PUBLIC)?;
    store::write(&dir.join(CA), ca.as_bytes(), store::PUBLIC)
}

/// Reads the first certificate of a file.
///
/// # Errors
/// [`PkiError`]
pub fn read(path: &Path) -> Result<Certificate, PkiError> {
    let unreadable = |error: &dyn std::fmt::Display| PkiError::Certificate {
        path: path.to_owned(),
        error: error.to_string(),
    };
    let bytes = store::read_public(path)?;
    let der = CertificateDer::from_pem_slice(&bytes)
        .map_err(|_| unreadable(&"there is no certificate in it (PEM)"))?;
    Certificate::of_der(&der).map_err(|error| unreadable(&error))
}

/// The names that have certificates, in order.
///
/// # Errors
/// [`PkiError`]
pub fn issued(dir: &Path) -> Result<Vec<String>, PkiError> {
    let failed = |error: io::Error| StoreError::Io {
        what: "list",
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
    store::check_private(&path)?;
    let found = read(&certificate)?;
    let identity = found.identity.ok_or(IdentityError::Nobody)?;
    let pair = authority.issue(&identity, &found.names, validity);
    let pair = pair.map_err(|error| PkiError::Authority {
        path: dir.join(CA),
        error,
    })?;
    revoked::remember(dir, &pair)?;
    put(dir, &path, &pair, authority.certificate())?;
    Ok(path)
}

/// Renews those that are named, or else those that expire soon.
fn renew_some(
    dir: &Path,
    names: Vec<String>,
    within: u32,
    now: SystemTime,
    days: u32,
) -> Result<u8, RunFailure> {
    let authority = load(dir).map_err(refused)?;
    let limit = now + Duration::from_secs(u64::from(within) * 24 * 60 * 60);
    let all = names.is_empty();
    let names = match all {
        true => issued(dir).map_err(refused)?,
        false => names,
    };
    let (mut done, mut failed) = (0, 0);
    for name in names {
        let due = || read(&dir.join(&name).join(CERTIFICATE)).map(|found| found.not_after <= limit);
        let result = match all.then(due) {
            Some(Ok(false)) => continue,
            Some(Err(error)) => Err(error),
            Some(Ok(true)) | None => renew(dir, &authority, &name, Validity::days(now, days)),
        };
        match result {
            Ok(path) => {
                say(&path.join(CERTIFICATE), "renewed", &path)?;
                done += 1;
            }
            Err(error) => {
                eprintln!("wireup: {error}");
                failed += 1;
            }
        }
    }
    if failed > 0 {
        return Err(RunFailure::request(NotAllRenewed { failed, done }));
    }
    if done == 0 {
        eprintln!("wireup: nothing expires within {within} days");
    }
    Ok(0)
}

#[cfg(test)]
mod tests;
