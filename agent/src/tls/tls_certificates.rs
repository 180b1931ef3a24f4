//! This node's certificate, key, and the authorities it trusts, as files of one directory.
//!
//! They are read again when they change, without a restart: checked when a connection is made,
//! at most once a second. What does not fit together is not used; the previous ones stay.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tracing::{info, warn};

use super::open_connections::{ConnectionLife, OpenConnections};
use super::verify;
use crate::identity::{Certificate, Identity, IdentityError};
use crate::pki::authority::CertificatePair;
use crate::pki::certificate_files::{self, PkiFileError, certificates};
use crate::pki::{CA, CERTIFICATE, KEY, REVOKED, dates};
use crate::revocation_lists::RevocationLists;
use crate::user::spawn::step_spawner::StepSpawner;

/// Interval of checks of the files.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A certificate that expires sooner is warned of, unless most of its life is still ahead.
const SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Interval at which [`TlsConfigs::watch`] checks the files.
const WATCH: Duration = Duration::from_secs(60 * 60);

/// Reason for which the certificate files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateFilesError {
    /// No certificate has been installed.
    #[error("no certificate of this node in {}; create one with `wireup pki issue` and copy its directory there, or \
     name another directory (--tls)", .0.display())]
    None(PathBuf),
    /// Only some of the files are installed.
    #[error("{file} is missing in {}; copy the whole directory that `wireup pki issue` created", dir.display())]
    Incomplete {
        /// The first that is not there.
        file: &'static str,
        /// Directory of the missing file.
        dir: PathBuf,
    },
    /// A file cannot be read, or others may.
    #[error(transparent)]
    Store(#[from] PkiFileError),
    /// The helper does not open them.
    #[error("the privileged helper cannot open the certificate files: {0}")]
    Helper(io::Error),
    /// A file has wrong contents.
    #[error("{}: {reason}", path.display())]
    Content { path: PathBuf, reason: String },
}

/// The loaded credentials, ready for use.
#[derive(Debug)]
pub(super) struct LoadedCertificates {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
    identity: Identity,
    names: Vec<String>,
    revoked: Arc<RevocationLists>,
    not_before: SystemTime,
    not_after: SystemTime,
}

/// Identifies a version of a file.
type FileStamp = Option<(u64, u64, i64, i64, u64)>;

#[derive(Debug)]
struct CertificateState {
    loaded: Arc<LoadedCertificates>,
    stamps: [FileStamp; 4],
    looked: Instant,
}

/// TLS as this node.
#[derive(Debug)]
pub struct TlsConfigs {
    dir: PathBuf,
    /// Whether the certificates have no files.
    in_memory: bool,
    /// Opens the files, once this process may not.
    opener: OnceLock<Arc<StepSpawner>>,
    // Held for a look at four files, never over an await.
    state: Mutex<CertificateState>,
    lives: OpenConnections,
}

impl TlsConfigs {
    /// Reads `ca.pem`, `cert.pem` and `key.pem` of a directory, and `crl.pem` if it exists.
    ///
    /// # Errors
    /// [`CertificateFilesError`], also when they do not fit together, or the certificate is not valid now.
    pub fn load(dir: &Path) -> Result<Arc<Self>, CertificateFilesError> {
        if let Err(error) = certificate_files::check_place(dir) {
            return Err(missing(dir, error));
        }
        let files = paths(dir).map(|path| certificate_files::open(&path));
        let stamps = files.each_ref().map(stamp);
        let loaded = read(dir, files)?;
        warn_of_expiry(&loaded, dir);
        Ok(Self::new(dir, false, loaded, stamps))
    }

    fn new(
        dir: &Path,
        in_memory: bool,
        loaded: LoadedCertificates,
        stamps: [FileStamp; 4],
    ) -> Arc<Self> {
        Arc::new(Self {
            dir: dir.to_owned(),
            in_memory,
            opener: OnceLock::new(),
            state: Mutex::new(CertificateState {
                loaded: Arc::new(loaded),
                stamps,
                looked: Instant::now(),
            }),
            lives: OpenConnections::default(),
        })
    }

    /// Credentials that are in no file, in PEM: the authority's certificate, and this node's with its key.
    ///
    /// # Errors
    /// [`CertificateFilesError`], as for files.
    pub fn in_memory(
        authority: &str,
        certificate: &CertificatePair,
    ) -> Result<Arc<Self>, CertificateFilesError> {
        let dir = Path::new("memory");
        let authorities = certificates(authority.as_bytes());
        let chain = certificates(certificate.certificate.as_bytes());
        let key = certificate.key.as_bytes();
        let loaded = loaded(dir, &authorities, chain, key, Arc::default())?;
        Ok(Self::new(dir, true, loaded, [None; 4]))
    }

    /// Returns the files, in the order in which the helper passes them.
    pub fn paths(&self) -> [PathBuf; 4] {
        paths(&self.dir)
    }

    /// Makes the helper open the files from now on. Their place was checked: the directory is root's.
    pub fn opened_by(&self, helper: Arc<StepSpawner>) {
        // Once.
        let _ = self.opener.set(helper);
    }

    /// Opens the certificate files, by the helper if there is one.
    fn open(&self) -> Result<Files, CertificateFilesError> {
        let Some(helper) = self.opener.get() else {
            certificate_files::check_place(&self.dir).map_err(|error| missing(&self.dir, error))?;
            return Ok(self.paths().map(|path| certificate_files::open(&path)));
        };
        let files = helper
            .credentials()
            .map_err(CertificateFilesError::Helper)?;
        let mut files = files.into_iter();
        Ok(self.paths().map(|path| {
            let file = files.next().flatten();
            file.ok_or_else(|| certificate_files::absent(&path))
        }))
    }

    /// Returns the identity of this node.
    pub fn identity(&self) -> Identity {
        self.current().identity.clone()
    }

    /// Names and addresses its certificate is for.
    pub fn names(&self) -> Vec<String> {
        self.current().names.clone()
    }

    /// Watches a connection whose other side showed this chain, as long as the returned value is
    /// kept.
    pub(super) fn life(&self, chain: Option<&[CertificateDer<'_>]>) -> Arc<ConnectionLife> {
        let life = self.lives.add(chain);
        // It may have been revoked since the chain was checked.
        life.end_if(&self.current().revoked);
        life
    }

    /// Returns the expiry of the node's certificate.
    pub fn not_after(&self) -> SystemTime {
        self.current().not_after
    }

    /// Reads the files again if they changed, even if they were checked just now.
    pub fn reload(&self) {
        self.reload_if_older(Duration::ZERO);
    }

    /// Looks every hour whether the certificate was renewed, and warns when it expires soon.
    pub async fn watch(&self) {
        loop {
            tokio::time::sleep(WATCH).await;
            let loaded = self.reload_if_older(Duration::ZERO);
            warn_of_expiry(&loaded, &self.dir);
        }
    }

    /// Returns the server's configuration: callers must show a certificate of this node's authority.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.current().server.clone()
    }

    /// Returns the current certificates, which are reloaded if they are old.
    pub(super) fn current(&self) -> Arc<LoadedCertificates> {
        self.reload_if_older(LOOK_AGAIN)
    }

    fn reload_if_older(&self, after: Duration) -> Arc<LoadedCertificates> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.in_memory || state.looked.elapsed() < after {
            return state.loaded.clone();
        }
        state.looked = Instant::now();
        let files = match self.open() {
            Ok(files) => files,
            Err(error) => {
                warn!("cannot check the certificate: {error}");
                return state.loaded.clone();
            }
        };
        // Taken first: files that change while they are read are read again.
        let stamps = files.each_ref().map(stamp);
        if stamps == state.stamps {
            return state.loaded.clone();
        }
        let before = std::mem::replace(&mut state.stamps, stamps);
        match read(&self.dir, files) {
            Ok(loaded) => {
                let dir = self.dir.display();
                if before[..3] != stamps[..3] {
                    let until = dates::date(loaded.not_after);
                    info!("the certificate in {dir} was renewed; it is valid until {until}");
                    warn_of_expiry(&loaded, &self.dir);
                }
                if before[3] != stamps[3] {
                    let count = loaded.revoked.count();
                    info!("{count} certificates are revoked by the list in {dir} ({REVOKED})");
                    self.lives.end(&loaded.revoked);
                }
                state.loaded = Arc::new(loaded);
            }
            Err(error) => warn!("cannot use the changed certificate: {error}"),
        }
        state.loaded.clone()
    }
}

/// The open files, or the errors: authorities, certificate, key, revocation lists.
type Files = [Result<File, PkiFileError>; 4];

/// Returns the files of a directory, in the same order.
fn paths(dir: &Path) -> [PathBuf; 4] {
    [CA, CERTIFICATE, KEY, REVOKED].map(|name| dir.join(name))
}

fn stamp(file: &Result<File, PkiFileError>) -> FileStamp {
    let found = file.as_ref().ok()?.metadata().ok()?;
    let (dev, ino, size) = (found.dev(), found.ino(), found.size());
    Some((dev, ino, found.ctime(), found.ctime_nsec(), size))
}

fn missing(dir: &Path, error: PkiFileError) -> CertificateFilesError {
    if !certificate_files::is_missing(&error) {
        return error.into();
    }
    let absent = |file: &&str| !dir.join(file).exists();
    let files = [CA, CERTIFICATE, KEY];
    match files.into_iter().find(absent) {
        Some(file) if !files.iter().all(absent) => CertificateFilesError::Incomplete {
            file,
            dir: dir.to_owned(),
        },
        _ => CertificateFilesError::None(dir.to_owned()),
    }
}

fn warn_of_expiry(loaded: &LoadedCertificates, dir: &Path) {
    let left = loaded.not_after.duration_since(SystemTime::now());
    let life = loaded.not_after.duration_since(loaded.not_before);
    let soon = SOON.min(life.unwrap_or_default() / 3);
    let date = dates::date(loaded.not_after);
    let dir = dir.display();
    match left {
        Err(_) => warn!(
            "the certificate in {dir} expired on {date}: other agents refuse this agent; renew it (wireup pki renew)"
        ),
        Ok(left) if left < soon => {
            let days = left.as_secs() / (24 * 60 * 60);
            warn!(
                "the certificate in {dir} expires on {date}, in {days} days; renew it (wireup pki renew)"
            );
        }
        Ok(_) => {}
    }
}

/// Reads and checks everything.
fn read(dir: &Path, files: Files) -> Result<LoadedCertificates, CertificateFilesError> {
    let [ca, certificate, key, list] = paths(dir);
    let [ca_file, certificate_file, key_file, list_file] = files;
    let missing = |error| missing(dir, error);
    let key = key_file.and_then(|file| certificate_files::read_secret_of(file, &key));
    let key = key.map_err(missing)?;
    let read_all = |file: Result<File, PkiFileError>, path: &Path| {
        certificate_files::read_public_of(file?, path).map(|pem| certificates(&pem))
    };
    let chain = read_all(certificate_file, &certificate).map_err(missing)?;
    let authorities = read_all(ca_file, &ca).map_err(missing)?;
    let revoked = Arc::new(revoked(list_file, list, &authorities)?);
    loaded(dir, &authorities, chain, &key, revoked)
}

/// Checks everything, the private key in PEM; errors name the files.
fn loaded(
    dir: &Path,
    authorities: &[CertificateDer<'_>],
    chain: Vec<CertificateDer<'static>>,
    key_pem: &[u8],
    revoked: Arc<RevocationLists>,
) -> Result<LoadedCertificates, CertificateFilesError> {
    let [ca, certificate, key, _] = paths(dir);
    let wrong = |path: &Path, reason: String| CertificateFilesError::Content {
        path: path.to_owned(),
        reason,
    };
    let Some(own) = chain.first() else {
        return Err(wrong(
            &certificate,
            "no certificate in this file (PEM)".into(),
        ));
    };
    let parsed = Certificate::from_der(own).map_err(|e| wrong(&certificate, e.to_string()))?;
    let identity = parsed.identity.clone().ok_or(IdentityError::Nobody);
    let identity = identity.map_err(|error| wrong(&certificate, error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        let added = roots.add(authority.clone());
        added.map_err(|error| wrong(&ca, error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong(&ca, "no certificate in this file (PEM)".into()));
    }
    let private = PrivateKeyDer::from_pem_slice(key_pem)
        .map_err(|_| wrong(&key, "no private key in this file (PEM)".into()))?;
    let verifiers = verify::Verifiers::new(roots, revoked.clone());
    let verifiers = verifiers.map_err(|e| wrong(&ca, e.to_string()))?;
    // Other agents would refuse the certificate. An error at the start has the remedy.
    verifiers
        .check(own, chain.get(1..).unwrap_or_default())
        .map_err(|error| wrong(&certificate, verify::own_error_text(&error)))?;
    let configs = verifiers.configs(chain, private);
    let (server, client) = configs.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => wrong(
            &key,
            format!("the key does not match {}", certificate.display()),
        ),
        error => wrong(&key, error.to_string()),
    })?;
    Ok(LoadedCertificates {
        server: Arc::new(server),
        client: Arc::new(client),
        identity,
        names: parsed.names,
        revoked,
        not_before: parsed.not_before,
        not_after: parsed.not_after,
    })
}

/// Reads the revocation lists of the authorities, if there are any.
fn revoked(
    file: Result<File, PkiFileError>,
    path: PathBuf,
    authorities: &[CertificateDer<'_>],
) -> Result<RevocationLists, CertificateFilesError> {
    match file.and_then(|file| certificate_files::read_public_of(file, &path)) {
        Ok(pem) => RevocationLists::read(&pem, authorities).map_err(|error| {
            CertificateFilesError::Content {
                path,
                reason: error.to_string(),
            }
        }),
        Err(error) if certificate_files::is_missing(&error) => Ok(RevocationLists::default()),
        Err(error) => Err(error.into()),
    }
}
