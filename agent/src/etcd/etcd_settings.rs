//! Settings for etcd: variables of the environment as in `etcdctl`, then a file, `etcd.toml`, for the missing values.
//!
//! Secrets and certificates are read once, together with the settings.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::pki::certificate_files::{self, PkiFileError};
use crate::site_services::{self, FileError};
use crate::site_settings;
use wireup_core::duration::ConfiguredDuration;
use wireup_core::secret::Secret;

/// The list of members.
const ENDPOINTS: &str = "ETCDCTL_ENDPOINTS";

/// Timeout of a connection to a member.
const CONNECT: Duration = Duration::from_secs(2);

/// Time of a member's silence after which it gets a probe, and the time that it then has to answer.
const PROBE: Duration = Duration::from_secs(5);

/// Bounds of the time after which a host is gone whose agent does not renew its registration. etcd has a lower bound of its own.
const TTL: RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(3600);

/// Error in the settings for etcd.
#[derive(Debug, thiserror::Error)]
pub enum EtcdSettingsError {
    #[error(
        "no endpoints of etcd: set ETCDCTL_ENDPOINTS, or write endpoints = [\"https://HOST:2379\"] into {}",
        .0.display()
    )]
    NoEndpoints(PathBuf),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("invalid etcd endpoint {0:?}: use http://HOST:PORT or https://HOST:PORT")]
    Endpoint(String),
    #[error(
        "etcd needs both a certificate and its key: name both (cert and key, or ETCDCTL_CERT and ETCDCTL_KEY)"
    )]
    HalfIdentity,
    #[error(
        "no password for etcd's user {0}: name a file (password-file), or set ETCDCTL_PASSWORD"
    )]
    NoPassword(String),
    #[error("invalid ttl = {}: use 2 to 3600 seconds", .0.as_secs_f64())]
    Ttl(Duration),
    #[error(transparent)]
    Store(#[from] PkiFileError),
    #[error("cannot use the certificates for etcd: {0}")]
    Tls(tonic::transport::Error),
}

/// Contents of the settings file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct EtcdConfigFile {
    #[serde(default)]
    endpoints: Vec<String>,
    cacert: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    prefix: Option<String>,
    ttl: Option<ConfiguredDuration>,
}

/// A user of etcd, which is none of the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Login {
    pub(super) name: String,
    pub(super) password: Secret<String>,
}

/// Settings for etcd: endpoints, login, and the prefix of wireup's keys.
#[derive(Debug)]
pub struct EtcdSettings {
    /// One or more endpoints.
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) login: Option<Login>,
    /// All keys begin so.
    pub prefix: String,
    /// Time after which a registration that is not renewed is gone.
    pub ttl: Duration,
}

impl EtcdSettings {
    /// Reads the settings of this process.
    ///
    /// # Errors
    /// [`EtcdSettingsError`]
    pub fn load() -> Result<Self, EtcdSettingsError> {
        Self::load_with("")
    }

    /// Reads the settings of this process, with these endpoints unless the list is empty.
    ///
    /// # Errors
    /// [`EtcdSettingsError`]
    pub fn load_with(endpoints: &str) -> Result<Self, EtcdSettingsError> {
        let (config, file) = site_settings::settings("etcd")?;
        let variable = |name: &str| match name {
            ENDPOINTS if !endpoints.is_empty() => Some(endpoints.to_owned()),
            name => std::env::var(name).ok().filter(|value| !value.is_empty()),
        };
        Self::new(config, file, &variable)
    }

    fn new(
        config: EtcdConfigFile,
        file: PathBuf,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, EtcdSettingsError> {
        let path = |name, file: Option<PathBuf>| variable(name).map(PathBuf::from).or(file);
        let endpoints = match variable(ENDPOINTS) {
            Some(list) => list.split(',').map(|one| one.trim().to_owned()).collect(),
            None => config.endpoints,
        };
        if endpoints.is_empty() {
            return Err(EtcdSettingsError::NoEndpoints(file));
        }
        let authority = path("ETCDCTL_CACERT", config.cacert);
        let pair = [
            path("ETCDCTL_CERT", config.cert),
            path("ETCDCTL_KEY", config.key),
        ];
        let identity = match pair {
            [Some(certificate), Some(key)] => Some(Identity::from_pem(
                certificate_files::read_public(&certificate)?,
                certificate_files::read_secret(&key)?,
            )),
            [None, None] => None,
            _ => return Err(EtcdSettingsError::HalfIdentity),
        };
        let with_tls = authority.is_some() || identity.is_some();
        let mut tls = None;
        let mut etcd_endpoints = Vec::new();
        for text in endpoints {
            let url = match (text.contains("://"), with_tls) {
                (true, _) => text.clone(),
                (false, true) => format!("https://{text}"),
                (false, false) => format!("http://{text}"),
            };
            let wrong = || EtcdSettingsError::Endpoint(text.clone());
            let mut endpoint = Endpoint::from_shared(url.clone()).map_err(|_| wrong())?;
            match endpoint.uri().scheme_str() {
                _ if endpoint.uri().port_u16().is_none() => return Err(wrong()),
                Some("http") => {}
                Some("https") => {
                    let tls = match &tls {
                        Some(tls) => tls,
                        None => tls.insert(client(authority.as_deref(), identity.clone())?),
                    };
                    let with = endpoint.tls_config(tls.clone());
                    endpoint = with.map_err(EtcdSettingsError::Tls)?;
                }
                _ => return Err(wrong()),
            }
            let endpoint = endpoint.connect_timeout(CONNECT);
            etcd_endpoints.push(
                endpoint
                    .http2_keep_alive_interval(PROBE)
                    .keep_alive_timeout(PROBE),
            );
        }
        let user = variable("ETCDCTL_USER").or(config.user);
        let login = user
            .map(|user| login(user, variable("ETCDCTL_PASSWORD"), config.password_file))
            .transpose()?;
        let ttl = config
            .ttl
            .map_or(Duration::from_secs(15), |ConfiguredDuration(ttl)| ttl);
        if !TTL.contains(&ttl) {
            return Err(EtcdSettingsError::Ttl(ttl));
        }
        let mut prefix = config.prefix.unwrap_or_else(|| "/wireup".to_owned());
        if !prefix.ends_with('/') {
            prefix.push('/');
        }
        Ok(Self {
            endpoints: etcd_endpoints,
            login,
            prefix,
            ttl,
        })
    }
}

fn client(
    authority: Option<&Path>,
    identity: Option<Identity>,
) -> Result<ClientTlsConfig, EtcdSettingsError> {
    let authority = certificate_files::read_public(site_services::authorities(authority))?;
    let authority = Certificate::from_pem(authority);
    let tls = ClientTlsConfig::new().ca_certificate(authority);
    Ok(match identity {
        Some(identity) => tls.identity(identity),
        None => tls,
    })
}

/// `NAME` or, as etcdctl takes it, `NAME:PASSWORD`.
fn login(
    user: String,
    password: Option<String>,
    file: Option<PathBuf>,
) -> Result<Login, EtcdSettingsError> {
    if let Some((name, password)) = user.split_once(':') {
        return Ok(Login {
            name: name.to_owned(),
            password: Secret::new(password.to_owned()),
        });
    }
    match site_settings::password(password, file)? {
        Some(password) => Ok(Login {
            name: user,
            password: Secret::new(password),
        }),
        None => Err(EtcdSettingsError::NoPassword(user)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn settings(file: &str, variables: &[(&str, &str)]) -> Result<EtcdSettings, String> {
        let config = toml::from_str(file).unwrap();
        let variable = |name: &str| {
            let mut found = variables.iter().filter(|(key, _)| *key == name);
            found.next().map(|(_, value)| (*value).to_owned())
        };
        EtcdSettings::new(config, "etcd.toml".into(), &variable).map_err(|error| error.to_string())
    }

    fn uris(settings: &EtcdSettings) -> Vec<String> {
        let uris = settings.endpoints.iter();
        uris.map(|endpoint| endpoint.uri().to_string()).collect()
    }

    #[tokio::test]
    async fn variables_of_etcdctl_override_settings_file() {
        let file =
            "endpoints = ['http://a:1', 'b:2']\nuser = 'agent:x:y'\nprefix = '/site'\nttl = 5";
        let of_file = settings(file, &[]).unwrap();
        assert_eq!(uris(&of_file), ["http://a:1/", "http://b:2/"]);
        assert_eq!(of_file.prefix, "/site/");
        assert_eq!(of_file.ttl, Duration::from_secs(5));
        let login = of_file.login.unwrap();
        assert_eq!((&*login.name, &**login.password.expose()), ("agent", "x:y"));
        assert!(!format!("{login:?}").contains("x:y"));
        let variables = [
            ("ETCDCTL_ENDPOINTS", "c:3, http://d:4"),
            ("ETCDCTL_USER", "me"),
            ("ETCDCTL_PASSWORD", "secret"),
        ];
        let both = settings(file, &variables).unwrap();
        assert_eq!(uris(&both), ["http://c:3/", "http://d:4/"]);
        assert_eq!(both.login.unwrap().password.expose(), "secret");
    }

    #[tokio::test]
    async fn missing_or_invalid_etcd_setting_is_named() {
        for (file, part) in [
            ("", "set ETCDCTL_ENDPOINTS, or write endpoints"),
            (
                "endpoints = ['http://a']",
                "invalid etcd endpoint \"http://a\"",
            ),
            (
                "endpoints = ['ftp://a:1']",
                "invalid etcd endpoint \"ftp://a:1\"",
            ),
            (
                "endpoints = ['a:1']\ncert = '/c'",
                "etcd needs both a certificate and its key",
            ),
            (
                "endpoints = ['a:1']\nuser = 'me'",
                "no password for etcd's user me",
            ),
            (
                "endpoints = ['a:1']\nttl = 1",
                "invalid ttl = 1: use 2 to 3600",
            ),
            ("endpoints = ['a:1']\ncacert = '/nowhere/ca'", "/nowhere/ca"),
        ] {
            let error = settings(file, &[]).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[tokio::test]
    async fn password_file_readable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        std::fs::write(&path, "secret\n").unwrap();
        let file = format!(
            "endpoints = ['a:1']\nuser = 'me'\npassword-file = '{}'",
            path.display()
        );
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        mode(0o644).unwrap();
        let error = settings(&file, &[]).unwrap_err();
        assert!(error.contains("may be read by others"), "{error}");
        mode(0o600).unwrap();
        let login = settings(&file, &[]).unwrap().login.unwrap();
        assert_eq!(login.password.expose(), "secret");
    }
}
