//! The agent's settings: from the command line, then a file, then defaults.

mod addresses;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum as _;
use rustix::process::geteuid;
use serde::Deserialize;
use tracing::warn;

pub use self::addresses::{advertised, everywhere};
#[cfg(feature = "etcd")]
use crate::etcd::{EtcdSettings, EtcdSettingsError};
use crate::identity::Role;
#[cfg(not(feature = "etcd"))]
use crate::missing_feature::MissingFeature;
use crate::pki::{CERTIFICATE, PkiError, default_directory};
use crate::site_services::toml_problem;
use crate::tls::{CertificateFilesError, Heartbeat, TlsConfigs};
use wireup_agent_args::agent_args::{AgentArgs, AgentStopPolicy, LogFormat};
use wireup_core::duration::ConfiguredDuration;
#[cfg(feature = "etcd")]
use wireup_core::job::hosts::registered::EtcdHostSpec;
use wireup_core::job::hosts::{self, HostList, HostsProblem};
use wireup_core::job::ids::UserId;
use wireup_core::link::agent_protocol::NodeAddress;
use wireup_core::link::helper_protocol::UserIds;
use wireup_core::link::socket;
use wireup_sys::access::read_own_settings;
use wireup_sys::accounts;

/// Bounds of the heartbeat: less is noise on a busy machine, more would keep dead launches.
const HEARTBEAT: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(600);

/// Settings of an agent.
#[derive(Debug)]
pub struct AgentSettings {
    /// Name of the node.
    pub name: String,
    /// Address for connections of other agents; all addresses when absent.
    pub listen: Option<SocketAddr>,
    /// Address that other agents use, if the administrator set one.
    pub advertise: Option<String>,
    pub socket: PathBuf,
    pub tls: Arc<TlsConfigs>,
    /// Limits from which silence counts as loss.
    pub heartbeat: Heartbeat,
    /// Time limit of fences in launches of schedulers, if the site has one.
    pub fence_timeout: Option<Duration>,
    /// The name servers for launches; this agent if the list is empty.
    pub names: Vec<NodeAddress>,
    /// The executable of steps.
    pub step: PathBuf,
    /// Account to which the agent changes, if it gives up root's rights.
    pub user: Option<UserIds>,
    /// Whether root's launches are taken from other nodes all the same.
    pub root_launches: bool,
    /// Registration of this node, and the etcd cluster for it.
    #[cfg(feature = "etcd")]
    pub register: Option<(EtcdHostSpec, EtcdSettings)>,
    /// Address at which metrics are served; `None` for no metrics.
    pub metrics: Option<SocketAddr>,
}

/// The log's settings; read first, since everything else may be logged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogSettings {
    pub filter: String,
    pub format: LogFormat,
}

/// Error: the settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file of defaults.
    #[error("{}: {}", .0.display(), .1)]
    Config(PathBuf, String),
    #[error(transparent)]
    Directory(#[from] PkiError),
    #[error(transparent)]
    Credentials(#[from] CertificateFilesError),
    #[error(
        "--name {name} does not match the certificate, which is for {certified}; omit --name, or issue a certificate \
         for {name} (wireup pki issue --name {name})"
    )]
    Name {
        /// Name from the settings.
        name: String,
        /// Name in the certificate.
        certified: String,
    },
    /// The certificate is not a node's.
    #[error(
        "the certificate is that of {0}, but an agent needs a node's; issue one with `wireup pki issue`"
    )]
    Role(String),
    #[error("invalid --heartbeat {}: use 0.5 to 600 seconds", .0.as_secs_f64())]
    Heartbeat(Duration),
    #[error("invalid --advertise {0:?}: use HOST:PORT, or [ADDRESS]:PORT for IPv6")]
    Advertise(String),
    /// The agents where launches meet are wrong.
    #[error("--names: {0}")]
    Names(HostsProblem),
    /// Settings of the registration's etcd cluster.
    #[cfg(feature = "etcd")]
    #[error("--register: {0}")]
    Register(#[from] EtcdSettingsError),
    #[cfg(not(feature = "etcd"))]
    #[error("--register: {0}")]
    Register(#[from] MissingFeature),
    /// The executable of steps.
    #[error("step executable not found: {}; install it", .0.display())]
    Step(PathBuf),
    /// The user to which the agent would change.
    #[error("--user {0} needs an agent started by root, and an account other than root's")]
    User(String),
    /// The account of the agent.
    #[error(
        "unknown account {0}: create it (packaging/sysusers.d/wireup.conf) or choose another with --user"
    )]
    Account(String),
    /// The path of this executable is unknown.
    #[error("cannot find the path of this executable: {0}")]
    Own(io::Error),
}

/// A file of defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct AgentConfigFile {
    listen: Option<SocketAddr>,
    advertise: Option<String>,
    name: Option<String>,
    socket: Option<PathBuf>,
    tls: Option<PathBuf>,
    heartbeat: Option<ConfiguredDuration>,
    fence_timeout: Option<ConfiguredDuration>,
    user: Option<String>,
    #[serde(default)]
    root_launches: bool,
    names: Option<Vec<String>>,
    register: Option<String>,
    on_stop: Option<String>,
    metrics: Option<SocketAddr>,
    log: Option<String>,
    log_format: Option<String>,
}

/// Adds the file of defaults to a command line.
///
/// # Errors
/// [`SettingsError`].
pub fn with_file(args: AgentArgs) -> Result<AgentArgs, SettingsError> {
    let (path, is_required) = match &args.config {
        Some(path) => (path.clone(), true),
        None => (default_directory("agent.toml", "--config")?, false),
    };
    let wrong = |what: String| SettingsError::Config(path.clone(), what);
    let text = match read_own_settings(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_required => return Ok(args),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let config: AgentConfigFile =
        toml::from_str(&text).map_err(|error| wrong(toml_problem(&text, &error)))?;
    let heartbeat = config.heartbeat.map(|ConfiguredDuration(time)| time);
    let fence_timeout = config.fence_timeout;
    let fence_timeout = fence_timeout.map(|ConfiguredDuration(time)| time);
    let format = config.log_format.map(|word| {
        LogFormat::from_str(&word, false)
            .map_err(|_| wrong(format!("invalid log-format {word:?}: use text or json")))
    });
    let format = format.transpose()?;
    let on_stop = config.on_stop.map(|word| {
        AgentStopPolicy::from_str(&word, false)
            .map_err(|_| wrong(format!("invalid on-stop {word:?}: use wait or leave")))
    });
    let on_stop = on_stop.transpose()?;
    let names = config.names.map(|names| names.join(",").parse());
    let names = names
        .transpose()
        .map_err(|error: HostsProblem| wrong(format!("names: {error}")))?;
    let register = config.register.map(|text| text.parse());
    let register = register
        .transpose()
        .map_err(|error: HostsProblem| wrong(format!("register: {error}")))?;
    Ok(AgentArgs {
        listen: args.listen.or(config.listen),
        advertise: args.advertise.or(config.advertise),
        name: args.name.or(config.name),
        socket: args.socket.or(config.socket),
        tls: args.tls.or(config.tls),
        config: Some(path),
        heartbeat: args.heartbeat.or(heartbeat),
        fence_timeout: args.fence_timeout.or(fence_timeout),
        user: args.user.or(config.user),
        root_launches: args.root_launches || config.root_launches,
        names: args.names.or(names),
        register: args.register.or(register),
        on_stop: args.on_stop.or(on_stop),
        metrics: args.metrics.or(config.metrics),
        log: args.log.or(config.log),
        log_format: args.log_format.or(format),
    })
}

impl LogSettings {
    /// Reads the log settings of a command line.
    pub fn new(args: &AgentArgs) -> Self {
        Self {
            filter: args.log.clone().unwrap_or_else(|| "info".to_owned()),
            format: args.log_format.unwrap_or(LogFormat::Text),
        }
    }
}

impl AgentSettings {
    /// Creates the settings from a command line to which defaults were added; reads the certificate.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn new(args: AgentArgs) -> Result<Self, SettingsError> {
        let host = host_name();
        let tls = match args.tls {
            Some(directory) => directory,
            None => host_directory(default_directory("tls", "--tls")?, &host),
        };
        let directory = tls.clone();
        let tls = TlsConfigs::load(&tls)?;
        let identity = tls.identity();
        if identity.role != Role::Node {
            return Err(SettingsError::Role(identity.to_string()));
        }
        let named = args.name.is_some();
        let name = args.name.unwrap_or_else(|| identity.name.clone());
        if name != identity.name {
            return Err(SettingsError::Name {
                name,
                certified: identity.name,
            });
        }
        if !named && !certified(&tls.names(), &host) {
            warn!(
                "this host is called {host}, but the certificate in {} is for {}: calls to it by the name {host} are \
                 refused; issue one for it (wireup pki issue --name {host}), or confirm this name (--name {name})",
                directory.display(),
                tls.names().join(" ")
            );
        }
        if let Some(address) = &args.advertise
            && !hosts::has_port(address)
        {
            return Err(SettingsError::Advertise(address.clone()));
        }
        let heartbeat = match args.heartbeat {
            Some(limit) if !HEARTBEAT.contains(&limit) => {
                return Err(SettingsError::Heartbeat(limit));
            }
            Some(limit) => Heartbeat::within(limit),
            None => Heartbeat::default(),
        };
        let user = UserId(geteuid().as_raw());
        #[cfg(not(feature = "etcd"))]
        if args.register.is_some() {
            return Err(MissingFeature("etcd").into());
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR");
        let socket = args
            .socket
            .unwrap_or_else(|| socket::agent_socket(user, runtime.as_deref()));
        Ok(Self {
            name,
            listen: args.listen,
            advertise: args.advertise,
            socket,
            tls,
            heartbeat,
            fence_timeout: args.fence_timeout.filter(|limit| !limit.is_zero()),
            names: names(args.names)?,
            #[cfg(feature = "etcd")]
            register: match args.register {
                Some(register) => Some((register, EtcdSettings::load()?)),
                None => None,
            },
            metrics: args.metrics,
            step: step()?,
            user: args.user.map(account).transpose()?,
            root_launches: args.root_launches,
        })
    }
}

/// Returns the host name of the system.
pub(crate) fn host_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

/// Returns the part of a name before its domain; an address as a whole.
fn first_label(name: &str) -> &str {
    match name.parse::<IpAddr>() {
        Ok(_) => name,
        Err(_) => name.split('.').next().unwrap_or(name),
    }
}

/// Returns the directory of this host in one where all have theirs, as in a home that they share; otherwise the given
/// one itself.
fn host_directory(directory: PathBuf, host: &str) -> PathBuf {
    let own = [host, first_label(host)].map(|name| directory.join(name));
    let known = |own: &PathBuf| own.join(CERTIFICATE).exists();
    let found = own.into_iter().find(known);
    found.filter(|_| !host.is_empty()).unwrap_or(directory)
}

/// Whether a certificate for these names is for the host, whatever its domain is.
fn certified(names: &[String], host: &str) -> bool {
    let host = first_label(host);
    host.is_empty()
        || names
            .iter()
            .any(|name| first_label(name).eq_ignore_ascii_case(host))
}

/// Returns the account of the agent: its own group and no other.
fn account(name: String) -> Result<UserIds, SettingsError> {
    let found = CString::new(name.as_str()).ok();
    let found = found.and_then(|name| accounts::by_name(&name).ok().flatten());
    let Some(found) = found else {
        return Err(SettingsError::Account(name));
    };
    if !geteuid().is_root() || found.uid == 0 || found.gid == 0 {
        return Err(SettingsError::User(name));
    }
    Ok(UserIds {
        uid: found.uid,
        gid: found.gid,
        groups: vec![found.gid],
    })
}

/// Returns the agents of a list.
fn names(list: Option<HostList>) -> Result<Vec<NodeAddress>, SettingsError> {
    let Some(list) = list else {
        return Ok(Vec::new());
    };
    let hosts = hosts::merge(list.0).map_err(SettingsError::Names)?;
    Ok(hosts.iter().map(NodeAddress::from).collect())
}

/// Returns the path of the `wireup` executable: in this executable's directory, or in `bin` when this one is in
/// `lib/wireup`.
pub(crate) fn step() -> Result<PathBuf, SettingsError> {
    let own = std::env::current_exe().map_err(SettingsError::Own)?;
    let beside = own.with_file_name("wireup");
    let directory = own.parent().unwrap_or(&own);
    let installed = directory.join("../../bin/wireup");
    let found = [&beside, &installed]
        .into_iter()
        .find(|path| path.is_file());
    found.cloned().ok_or(SettingsError::Step(beside))
}
