//! Settings for a directory: its URL, then variables of the environment as in ldap.conf(5), then a file, `ldap.toml`,
//! for the missing values.
//!
//! Rule: a password is sent only over TLS, a Unix socket or the loopback interface, and never read from a command line.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use serde::Deserialize;
use url::Url;

use crate::pki::certificate_files::PkiFileError;
use crate::site_services::{self, FileError};
use crate::site_settings;
use wireup_core::duration::ConfiguredDuration;
use wireup_core::secret::Secret;

/// Bounds of the time after which a launch is gone that does not renew its entry. Servers count whole seconds.
const TTL: RangeInclusive<Duration> = Duration::from_secs(3)..=Duration::from_secs(3600);

/// Error in the settings for a directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LdapSettingsError {
    #[error("invalid directory URL {0:?}: {1}")]
    Url(String, String),
    #[error(
        "no base of names in the directory: write ldap://HOST/BASE, or base = \"ou=names,dc=example,dc=org\" into {}",
        .0.display()
    )]
    NoBase(PathBuf),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Password(#[from] PkiFileError),
    #[error("no password for {0}: name a file (password-file), or set WIREUP_LDAP_PASSWORD")]
    NoPassword(String),
    #[error("the password of {0} would be sent unencrypted: use ldaps://, or leave starttls on")]
    Plain(String),
    #[error("invalid ttl = {}: use 3 to 3600 seconds", .0.as_secs_f64())]
    Ttl(Duration),
}

/// Contents of the settings file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LdapConfigFile {
    base: Option<String>,
    bind_dn: Option<String>,
    password_file: Option<PathBuf>,
    cacert: Option<PathBuf>,
    starttls: Option<bool>,
    ttl: Option<ConfiguredDuration>,
}

/// Identity with which the directory is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Bind {
    Anonymous,
    /// User that the kernel reports to the server (SASL EXTERNAL).
    External,
    Password {
        dn: String,
        password: Secret<String>,
    },
}

/// Settings for a directory, and the place of the names in it.
#[derive(Debug)]
pub(crate) struct LdapSettings {
    pub(super) url: Url,
    pub(super) bind: Bind,
    /// None for connections without TLS.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// Below it the names are.
    pub(crate) base: String,
    /// Time after which a launch that does not renew its entry is gone.
    pub(crate) ttl: Duration,
}

impl LdapSettings {
    /// Reads the settings of this process, for the directory at a URL.
    pub(crate) fn load(url: &str) -> Result<Self, LdapSettingsError> {
        let (config, file) = site_settings::settings("ldap")?;
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self::new(url, config, file, &variable)
    }

    fn new(
        text: &str,
        config: LdapConfigFile,
        file: PathBuf,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, LdapSettingsError> {
        let wrong = |reason: String| LdapSettingsError::Url(text.to_owned(), reason);
        let url = Url::parse(text).map_err(|error| wrong(error.to_string()))?;
        let parts = ldap3::get_url_params(&url).map_err(|error| wrong(error.to_string()))?;
        let base = match &*parts.base {
            "" => config.base.ok_or(LdapSettingsError::NoBase(file))?,
            base => base.to_owned(),
        };
        let is_local = url.scheme() == "ldapi";
        let with_tls = match url.scheme() {
            "ldapi" => false,
            "ldaps" => true,
            _ => config.starttls.unwrap_or(true),
        };
        let tls = match with_tls {
            true => {
                let ca_file = variable("LDAPTLS_CACERT").map(PathBuf::from);
                let ca_file = ca_file.or(config.cacert);
                let authorities = site_services::authorities(ca_file.as_deref());
                Some(Arc::new(site_services::tls_client(authorities)?))
            }
            false => None,
        };
        let bind = match variable("LDAPBINDDN").or(config.bind_dn) {
            None if is_local => Bind::External,
            None => Bind::Anonymous,
            Some(dn) if !(with_tls || is_local || is_loopback(&url)) => {
                return Err(LdapSettingsError::Plain(dn));
            }
            Some(dn) => {
                let variable = variable("WIREUP_LDAP_PASSWORD");
                let password = site_settings::password(variable, config.password_file)?;
                // Servers take an empty one for no user at all (RFC 4513, 5.1.2).
                match password.filter(|password| !password.is_empty()) {
                    Some(password) => Bind::Password {
                        dn,
                        password: Secret::new(password),
                    },
                    None => return Err(LdapSettingsError::NoPassword(dn)),
                }
            }
        };
        let ttl = config
            .ttl
            .map_or(Duration::from_secs(30), |ConfiguredDuration(ttl)| ttl);
        if !TTL.contains(&ttl) {
            return Err(LdapSettingsError::Ttl(ttl));
        }
        Ok(Self {
            url,
            bind,
            tls,
            base,
            ttl,
        })
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str, file: &str, variables: &[(&str, &str)]) -> Result<LdapSettings, String> {
        let config = toml::from_str(file).unwrap();
        let variable = |name: &str| {
            let mut found = variables.iter().filter(|(key, _)| *key == name);
            found.next().map(|(_, value)| (*value).to_owned())
        };
        LdapSettings::new(url, config, "ldap.toml".into(), &variable)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn url_and_variables_override_settings_file() {
        let file = "base = 'dc=file'\nbind-dn = 'cn=file'\nstarttls = false\nttl = 5";
        let variables = [("LDAPBINDDN", "cn=me"), ("WIREUP_LDAP_PASSWORD", "secret")];
        let url = "ldap://127.0.0.1:3389/ou=the%20names,dc=url";
        let both = settings(url, file, &variables).unwrap();
        assert_eq!(both.base, "ou=the names,dc=url");
        assert_eq!(both.ttl, Duration::from_secs(5));
        let (dn, password) = ("cn=me".to_owned(), Secret::new("secret".to_owned()));
        assert_eq!(both.bind, Bind::Password { dn, password });
        assert!(both.tls.is_none());
        assert!(!format!("{both:?}").contains("secret"));
        let of_file = settings("ldapi://%2frun%2fldapi", "base = 'dc=file'", &[]).unwrap();
        assert_eq!((&*of_file.base, of_file.bind), ("dc=file", Bind::External));
    }

    #[test]
    fn missing_or_invalid_ldap_setting_is_named() {
        let plain = "starttls = false\nbind-dn = 'cn=me'";
        let secret = ("WIREUP_LDAP_PASSWORD", "secret");
        let no_ttl = "starttls = false\nttl = 2";
        let no_authority = "cacert = '/nowhere/ca'";
        for (url, file, variables, part) in [
            ("ldap://h:x/dc=a", "", &[][..], "invalid directory URL"),
            (
                "ldap://h",
                "starttls = false",
                &[],
                "write ldap://HOST/BASE",
            ),
            (
                "ldap://h/dc=a",
                plain,
                &[secret],
                "would be sent unencrypted",
            ),
            ("ldap://[::1]/dc=a", plain, &[], "no password for cn=me"),
            ("ldap://h/dc=a", no_ttl, &[], "invalid ttl = 2: use 3"),
            ("ldap://h/dc=a", no_authority, &[], "/nowhere/ca: "),
            ("ldaps://h/dc=a", no_authority, &[], "/nowhere/ca: "),
        ] {
            let error = settings(url, file, variables).unwrap_err();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
