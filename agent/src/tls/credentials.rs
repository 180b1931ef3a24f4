//! This node's certificate, key, and the authorities it trusts, as files of one directory.
//!
//! They are read again when they change, without a restart: looked at when a connection is made,
//! at most once a second. What does not fit together is not used; the previous ones stay.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tracing::{info, warn};

use super::verify::{self, Receipts};
use crate::identity::{Certificate, Identity, IdentityError};
use crate::pki::store::{self, StoreError};
use crate::pki::{CA, CERTIFICATE, KEY, show};

/// Files are looked at again after so long.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A certificate that expires sooner is warned of, unless most of its life is still ahead.
const SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// How often [`Tls::watch`] looks.
const WATCH: Duration = Duration::from_secs(60 * 60);

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// No certificate has been installed.
    #[error("this node has no certificate in {}; make one with `wireup pki issue` and copy its directory there, \
             or name another directory (--tls)", .0.display())]
    None(PathBuf),
    /// A file cannot be read, or others may.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file has not what it should.
    #[error("{}: {reason}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// What was read, ready for use.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
    identity: Identity,
    not_before: SystemTime,
    not_after: SystemTime,
}

/// What tells that a file was replaced or changed.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

#[derive(Debug)]
struct State {
    loaded: Arc<Loaded>,
    stamps: [Stamp; 3],
    looked: Instant,
}

/// TLS as this node.
#[derive(Debug)]
pub struct Tls {
    dir: PathBuf,
    // Held for a look at three files, never over an await.
    state: Mutex<State>,
}

impl Tls {
    /// Reads `ca.pem`, `cert.pem` and `key.pem` of a directory.
    ///
    /// # Errors
    /// [`CredentialsError`], also when they do not fit together, or the certificate is not valid
    /// now.
    pub fn load(dir: &Path) -> Result<Arc<Self>, CredentialsError> {
        let stamps = stamps(dir);
        let loaded = Arc::new(read(dir)?);
        warn_of_expiry(&loaded, dir);
        Ok(Arc::new(Self {
            dir: dir.to_owned(),
            state: Mutex::new(State {
                loaded,
                stamps,
                looked: Instant::now(),
            }),
        }))
    }

    /// Who this node is.
    pub fn identity(&self) -> Identity {
        self.current().identity.clone()
    }

    /// When its certificate expires.
    pub fn not_after(&self) -> SystemTime {
        self.current().not_after
    }

    /// Reads the files again if they changed, even if that was looked at just now.
    pub fn reload(&self) {
        self.look(Duration::ZERO);
    }

    /// Looks every hour whether the certificate was renewed, and warns when it expires soon.
    pub async fn watch(&self) {
        loop {
            tokio::time::sleep(WATCH).await;
            let loaded = self.look(Duration::ZERO);
            warn_of_expiry(&loaded, &self.dir);
        }
    }

    /// What is to be used now.
    pub(super) fn current(&self) -> Arc<Loaded> {
        self.look(LOOK_AGAIN)
    }

    fn look(&self, after: Duration) -> Arc<Loaded> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() < after {
            return state.loaded.clone();
        }
        state.looked = Instant::now();
        // Taken first: what changes while it is read is read again.
        let stamps = stamps(&self.dir);
        if stamps == state.stamps {
            return state.loaded.clone();
        }
        state.stamps = stamps;
        match read(&self.dir) {
            Ok(loaded) => {
                info!(
                    "the certificate in {} was renewed; it is valid until {}",
                    self.dir.display(),
                    show::date(loaded.not_after)
                );
                warn_of_expiry(&loaded, &self.dir);
                state.loaded = Arc::new(loaded);
            }
            Err(error) => warn!("the changed certificate is not used: {error}"),
        }
        state.loaded.clone()
    }
}

fn stamps(dir: &Path) -> [Stamp; 3] {
    [CA, CERTIFICATE, KEY].map(|name| {
        let found = fs::metadata(dir.join(name)).ok()?;
        let (dev, ino, size) = (found.dev(), found.ino(), found.size());
        Some((dev, ino, found.ctime(), found.ctime_nsec(), size))
    })
}

fn warn_of_expiry(loaded: &Loaded, dir: &Path) {
    let left = loaded.not_after.duration_since(SystemTime::now());
    let life = loaded.not_after.duration_since(loaded.not_before);
    let soon = SOON.min(life.unwrap_or_default() / 3);
    let date = show::date(loaded.not_after);
    let dir = dir.display();
    match left {
        Err(_) => warn!(
            "the certificate in {dir} expired on {date}: other agents refuse this one; renew it (wireup pki renew)"
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
fn read(dir: &Path) -> Result<Loaded, CredentialsError> {
    let [ca, certificate, key] = [CA, CERTIFICATE, KEY].map(|name| dir.join(name));
    let missing = |error: StoreError| match store::is_missing(&error) {
        true => CredentialsError::None(dir.to_owned()),
        false => error.into(),
    };
    let key_pem = store::read_secret(&key).map_err(missing)?;
    let wrong = |path: &Path, reason: String| CredentialsError::Content {
        path: path.to_owned(),
        reason,
    };
    let chain = certificates(&certificate).map_err(missing)?;
    let Some(own) = chain.first() else {
        return Err(wrong(
            &certificate,
            "there is no certificate in it (PEM)".into(),
        ));
    };
    let parsed = Certificate::of_der(own).map_err(|e| wrong(&certificate, e.to_string()))?;
    let identity = parsed.identity.clone().ok_or(IdentityError::Nobody);
    let identity = identity.map_err(|error| wrong(&certificate, error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for authority in certificates(&ca).map_err(missing)? {
        let added = roots.add(authority);
        added.map_err(|error| wrong(&ca, error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong(&ca, "there is no certificate in it (PEM)".into()));
    }
    let private = PrivateKeyDer::from_pem_slice(&key_pem)
        .map_err(|_| wrong(&key, "there is no private key in it (PEM)".into()))?;
    let verifiers = verify::Verifiers::new(roots).map_err(|e| wrong(&ca, e.to_string()))?;
    // Others would refuse it: better said here, where the remedy is.
    verifiers
        .check(own, chain.get(1..).unwrap_or_default())
        .map_err(|error| wrong(&certificate, verify::own(&error)))?;
    let configs = verifiers.configs(chain, private, Arc::new(Receipts));
    let (server, client) = configs.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => wrong(
            &key,
            format!("it is not the key of {}", certificate.display()),
        ),
        error => wrong(&key, error.to_string()),
    })?;
    Ok(Loaded {
        server: Arc::new(server),
        client: Arc::new(client),
        identity,
        not_before: parsed.not_before,
        not_after: parsed.not_after,
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let pem = store::read_public(path)?;
    // What cannot be read is missed by its reader.
    Ok(CertificateDer::pem_slice_iter(&pem)
        .filter_map(Result::ok)
        .collect())
}
