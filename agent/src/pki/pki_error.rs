//! Errors of the commands of `wireup pki`.

use std::path::PathBuf;

use super::authority::AuthorityError;
use super::certificate_files::PkiFileError;
use crate::identity::IdentityError;
use crate::revocation_lists::RevocationListError;
use wireup_core::job::hosts::HostsProblem;

/// Reason for which a command failed.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A command that is the same for every node.
    #[error("invalid --by {0:?}: write {{host}} for the name of the node, as in 'ssh {{host}}'")]
    NoHost(String),
    #[error("{} already exists; issue certificates with `wireup pki issue`", .0.display())]
    AuthorityExists(PathBuf),
    #[error("no authority in {}; create one (wireup pki init) or name its directory (--dir)", .0.display())]
    NoAuthority(PathBuf),
    #[error("{name} already has a certificate in {}; replace it with wireup pki renew --name {name}", .path.display())]
    Issued { name: String, path: PathBuf },
    #[error("{name} has no certificate in {}; create one with wireup pki issue --name {name}", .path.display())]
    NotIssued {
        name: String,
        /// Path of the missing certificate.
        path: PathBuf,
    },
    #[error("no node has a certificate in {}; create one (wireup pki issue --name NAME)", .0.display())]
    NoNodes(PathBuf),
    /// Further names of several certificates.
    #[error("--address needs a single node: name one node at a time")]
    Addresses,
    /// A name that is that of a file of the authority.
    #[error("invalid name {0}: reserved for a file of the authority")]
    Reserved(String),
    /// A list of names.
    #[error("--name: {0}")]
    Names(HostsProblem),
    /// A name without any certificate.
    #[error("no certificate of {name} in {}; give its serial number (--serial)", .dir.display())]
    Unknown {
        name: String,
        /// Directory of the authority.
        dir: PathBuf,
    },
    #[error("invalid --serial {0:?}: use a hexadecimal number")]
    Serial(String),
    /// A list of revoked certificates.
    #[error("{}: {error}", path.display())]
    Revoked {
        path: PathBuf,
        error: RevocationListError,
    },
    /// No place for files of this user.
    #[error("no home directory ($HOME); name a directory with {0}")]
    Homeless(&'static str),
    #[error(transparent)]
    Store(#[from] PkiFileError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("{}: {error}", path.display())]
    Authority {
        /// Path of the authority's certificate, or the expected path.
        path: PathBuf,
        error: AuthorityError,
    },
    #[error("{}: {error}", path.display())]
    Certificate { path: PathBuf, error: String },
}

impl PkiError {
    /// Returns the conversion of an error of the authority whose files are at this path.
    pub(super) fn authority(path: PathBuf) -> impl FnOnce(AuthorityError) -> Self {
        move |error| Self::Authority { path, error }
    }
}
