//! Variables with which a process becomes a rank that wireup did not start, and the formats in which they are written.

use std::net::SocketAddrV4;
use std::path::PathBuf;

use serde_json::{Map, Value};

use wireup_core::job::ids::Rank;
use wireup_core::pmi::challenge::{AuthKey, KEY_VARIABLE};

/// Variables of a rank that also hold for a process started by others.
const KEPT: [&str; 7] = [
    "PMI_JOBID",
    "PMI_SPAWNED",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "JSM_JSRUN_PORT",
    "MPIR_CVAR_PMI_VERSION",
    "WIREUP_RANK",
];

/// Prefixes of further variables that also hold for a process started by others: those of OpenPMIx, and those of
/// Open MPI about the place of a rank.
const KEPT_PREFIXES: [&str; 3] = ["PMIX_", "OMPI_COMM_WORLD_", "WIREUP_LAUNCH"];

/// Variable with the path of a rank's certificate and key.
const TLS_FILE: &str = "PMI_TLS_FILE";

/// Endpoint to which a rank's client connects.
#[derive(Debug)]
pub struct RankEndpoint {
    pub rank: Rank,
    /// HOST:PORT of the PMI port, and the key.
    pub pmi: Option<(String, AuthKey)>,
    /// File with the certificate and the key of TLS, if the PMI port requires TLS.
    pub tls_file: Option<PathBuf>,
    /// Port on this host that relays to the PMIx server.
    pub pmix: Option<u16>,
}

/// Variables of one rank, sorted.
#[derive(Debug, PartialEq, Eq)]
pub struct RankEnvironment(Vec<(String, String)>);

impl RankEnvironment {
    /// Creates the environment from the variables of the rank proxy.
    ///
    /// Rule: over TCP a client finds its rank in `PMI_ID`, and `PMI_FD`, `PMI_RANK` and `PMI_SIZE` must be absent. Source:
    /// docs/pmi-wire.md#tcp-mode.
    pub fn new(own: impl Iterator<Item = (String, String)>, served: &RankEndpoint) -> Self {
        let is_pmix = |name: &str| name.starts_with("PMIX_") || name == "JSM_JSRUN_PORT";
        let is_inherited = |name: &str| {
            let known =
                KEPT.contains(&name) || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            known && (served.pmix.is_some() || !is_pmix(name))
        };
        let mut variables: Vec<_> = own
            .filter(|(name, _)| is_inherited(name))
            .map(|(name, value)| {
                match served.pmix.and_then(|port| redirected(&name, &value, port)) {
                    Some(value) => (name, value),
                    None => (name, value),
                }
            })
            .collect();
        if let Some((port, key)) = &served.pmi {
            variables.push(("PMI_PORT".to_owned(), port.clone()));
            variables.push(("PMI_ID".to_owned(), served.rank.to_string()));
            variables.push((KEY_VARIABLE.to_owned(), key.text().to_owned()));
        }
        if let Some(file) = &served.tls_file {
            variables.push(("PMI_SOCKTYPE".to_owned(), "OpenSSL".to_owned()));
            variables.push((TLS_FILE.to_owned(), file.display().to_string()));
        }
        variables.sort();
        Self(variables)
    }

    /// Returns `NAME=value` lines, as podman and systemd read them, and `env $(cat FILE)` in a shell.
    pub fn lines(&self) -> String {
        let lines = self
            .0
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"));
        lines.collect()
    }

    /// Returns one line of JSON.
    pub fn json(&self, rank: Rank, host: &str) -> String {
        let variables = self.0.iter();
        let variables = variables.map(|(name, value)| (name.clone(), Value::from(&value[..])));
        let variables: Map<String, Value> = variables.collect();
        let line = serde_json::json!({"rank": rank.0, "host": host, "env": variables});
        line.to_string()
    }
}

/// Parses the address of the PMIx server in a `PMIX_SERVER_URI` variable: `NSPACE.RANK;tcp4://ADDRESS:PORT`.
pub fn server_address(name: &str, value: &str) -> Option<SocketAddrV4> {
    name.strip_prefix("PMIX_SERVER_URI")?;
    let (_, address) = value.split_once("tcp4://")?;
    let end = address.find(|c: char| !(c.is_ascii_digit() || ".:".contains(c)));
    address[..end.unwrap_or(address.len())].parse().ok()
}

/// Returns the value with another port.
pub(super) fn redirected(name: &str, value: &str, port: u16) -> Option<String> {
    let address = server_address(name, value)?;
    let other = SocketAddrV4::new(*address.ip(), port);
    Some(value.replacen(&address.to_string(), &other.to_string(), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> impl Iterator<Item = (String, String)> {
        [
            ("PATH", "/bin"),
            ("PMI_FD", "3"),
            ("PMI_RANK", "2"),
            ("PMI_SIZE", "4"),
            ("PMI_JOBID", "job"),
            ("PMIX_NAMESPACE", "job"),
            ("PMIX_SERVER_URI41", "job.0;tcp4://127.0.0.1:4711"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into_iter()
    }

    #[test]
    fn client_gets_proxy_ports_and_no_descriptor() {
        let key = AuthKey::from_text("k");
        let served = RankEndpoint {
            rank: Rank(2),
            pmi: Some(("127.0.0.1:99".to_owned(), key)),
            tls_file: Some("/env/rank-2.pem".into()),
            pmix: Some(1234),
        };
        let environment = RankEnvironment::new(own(), &served);
        let expected = "PMIX_NAMESPACE=job\nPMIX_SERVER_URI41=job.0;tcp4://127.0.0.1:1234\nPMI_AUTH_KEY=k\n\
            PMI_ID=2\nPMI_JOBID=job\nPMI_PORT=127.0.0.1:99\nPMI_SOCKTYPE=OpenSSL\nPMI_TLS_FILE=/env/rank-2.pem\n";
        assert_eq!(environment.lines(), expected);
        let json: Value = serde_json::from_str(&environment.json(Rank(2), "n1")).unwrap();
        assert_eq!(json["rank"], 2);
        assert_eq!(json["host"], "n1");
        assert_eq!(json["env"]["PMI_ID"], "2");
    }

    #[test]
    fn pmix_variables_are_omitted_without_pmix() {
        let served = RankEndpoint {
            rank: Rank(0),
            pmi: None,
            tls_file: None,
            pmix: None,
        };
        assert_eq!(
            RankEnvironment::new(own(), &served).lines(),
            "PMI_JOBID=job\n"
        );
    }

    #[test]
    fn addresses_of_servers_are_found_whatever_follows() {
        let address = |value| server_address("PMIX_SERVER_URI21", value);
        let expected = "127.0.0.1:4711".parse().ok();
        assert_eq!(address("a.b.0;tcp4://127.0.0.1:4711"), expected);
        assert_eq!(address("a.b.0;tcp4://127.0.0.1:4711;v6"), expected);
        assert_eq!(address("a.b.0;tcp6://::1:4711"), None);
        assert_eq!(server_address("PMIX_X", "a;tcp4://127.0.0.1:4711"), None);
    }
}
