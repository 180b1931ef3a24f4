//! Membership of a launch in an IMPI job, as a client: its agent is a child of the launcher. On several nodes each host has
//! an agent of its own too ([`HostAgents`]).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

use rustix::process::Pid;
use thiserror::Error;

use super::host_agents::{HostAgents, SECRETS};
use crate::cli::remote_launch::{option_words, switch_word};
use crate::inspect::agent_file::find;
use crate::plan::placed;
use wireup_core::executables::IMPI;
use wireup_core::failure::{CommandError, RequestError};
use wireup_core::job::ids::{NodeId, Rank};
use wireup_core::job::impi::ImpiWorld;
use wireup_core::job::outcome::RankEnd;
use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::spec::JobSpec;
use wireup_sys::zombie;

/// Error: invalid value of `--impi`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum ImpiSpecError {
    #[error("write HOST:PORT,client=K, as `wireup impi server` prints it")]
    Server,
    #[error("client=K is missing")]
    NoClient,
    #[error(
        "{0:?} is not client=K, address=IP, tls-ca=FILE, xsize=BYTES, maxlinear=N, print or lam"
    )]
    Word(String),
}

/// Value of `--impi`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ImpiSpec {
    server: String,
    client: u32,
    address: Option<IpAddr>,
    /// File of the authorities that may have issued the server's certificate; the connection uses TLS if it is set.
    tls_ca: Option<String>,
    /// Bytes from which collectives are long.
    xsize: Option<u16>,
    /// Clients up to which collectives are linear.
    max_linear: Option<u16>,
    lam: bool,
    /// Whether lines and errors go to the server.
    is_printing: bool,
}

impl FromStr for ImpiSpec {
    type Err = ImpiSpecError;

    fn from_str(text: &str) -> Result<Self, ImpiSpecError> {
        let mut words = text.split(',');
        let server = words.next().filter(|server| server.contains(':'));
        let server = server.ok_or(ImpiSpecError::Server)?.to_owned();
        let (mut client, mut address, mut tls_ca, mut lam) = (None, None, None, false);
        let (mut xsize, mut max_linear, mut is_printing) = (None, None, false);
        for word in words {
            let wrong = || ImpiSpecError::Word(word.to_owned());
            match word.split_once('=') {
                Some(("client", value)) => client = Some(value.parse().map_err(|_| wrong())?),
                Some(("address", value)) => address = Some(value.parse().map_err(|_| wrong())?),
                Some(("tls-ca", file)) if !file.is_empty() => tls_ca = Some(file.to_owned()),
                Some(("xsize", value)) => xsize = Some(value.parse().map_err(|_| wrong())?),
                Some(("maxlinear", value)) => {
                    max_linear = Some(value.parse().map_err(|_| wrong())?);
                }
                None if word == "lam" => lam = true,
                None if word == "print" => is_printing = true,
                _ => return Err(wrong()),
            }
        }
        let client = client.ok_or(ImpiSpecError::NoClient)?;
        Ok(Self {
            server,
            client,
            address,
            tls_ca,
            xsize,
            max_linear,
            lam,
            is_printing,
        })
    }
}

/// Variable with the address of the agent of a rank's host.
const AGENT: &str = "WIREUP_IMPI_AGENT";
/// Variable that the agent prints for hosts, and not for ranks.
const INVITATION: &str = "WIREUP_IMPI_INVITATION";

/// Line that the agent of a client or host reads before the end of its input, if the launch failed.
const FAILED: &[u8] = b"failed\n";

/// Error: a launch does not join. The agents have printed their messages before.
#[derive(Debug, Error)]
enum JoinError {
    #[error("the launch did not join the IMPI job")]
    Agent,
    #[error("the launch did not join the IMPI job: its agent was {0}")]
    AgentKilled(RankEnd),
    #[error("the IMPI agent did not report {0}")]
    Says(&'static str),
    #[error(
        "the route to {server} has the loopback address {place}, which other hosts cannot reach: let the server listen at an address of the network (--address)"
    )]
    Loopback { server: String, place: SocketAddr },
    #[error(
        "address= requires a launch on this machine alone: other hosts use the address of their route to the server"
    )]
    Address,
}

impl RequestError for JoinError {}

/// A launch that has joined.
#[derive(Debug)]
pub(crate) struct ImpiMembership {
    agent: ImpiAgentProcess,
    /// Agents of the hosts, for a launch on several hosts.
    hosts: Option<HostAgents>,
}

impl ImpiSpec {
    /// Joins the IMPI job: waits for all clients, and adds the ranks' variables to the job.
    pub(crate) fn join(self, spec: &mut JobSpec) -> Result<ImpiMembership, CommandError> {
        let runs = runs(&placed(spec)?);
        let sizes: Vec<u32> = runs.iter().map(|(_, ranks)| *ranks).collect();
        let several = spec.layout.across_hosts() || spec.layout.virtual_nodes > 1;
        let mut hosts = match several {
            true if self.address.is_some() => return Err(JoinError::Address.into()),
            true => Some(HostAgents::start(spec, &runs, &self.server)?),
            false => None,
        };
        let mut words: Vec<OsString> = Vec::new();
        let mut doors = Vec::new();
        if let Some(hosts) = &mut hosts {
            for (place, ranks) in hosts.places()?.into_iter().zip(&sizes) {
                if spec.layout.hosts.len() > 1 && place.listens.ip().is_loopback() {
                    let (server, place) = (self.server, place.listens);
                    return Err(JoinError::Loopback { server, place }.into());
                }
                words.extend(["--host".into(), format!("{}={ranks}", place.listens).into()]);
                doors.push(format!("{ranks}={}", place.door));
            }
        } else {
            words.extend(["-n".into(), sizes.iter().sum::<u32>().to_string().into()]);
        }
        let address = self.address.map(|address| address.to_string());
        words.extend(option_words("--address", address));
        words.extend(option_words("--tls-ca", self.tls_ca));
        let xsize = self.xsize.map(|bytes| bytes.to_string());
        words.extend(option_words("--xsize", xsize));
        let max_linear = self.max_linear.map(|clients| clients.to_string());
        words.extend(option_words("--maxlinear", max_linear));
        words.extend(switch_word("--lam", self.lam));
        words.extend(switch_word("--print", self.is_printing));
        let mut agent = ImpiAgentProcess::start(&self.server, self.client, &words)?;
        if let (Some(hosts), Some(says)) = (&mut hosts, &agent.child.stdout) {
            hosts.watch_until_readable(says.as_fd())?;
        }
        let mut variables = agent.variables()?;
        if let Some(hosts) = &mut hosts {
            let invitation = variables.remove(INVITATION);
            let invitation = invitation.ok_or(JoinError::Says(INVITATION))?;
            hosts.invite(&invitation)?;
            variables.insert(AGENT.to_owned(), doors.join(","));
        }
        spec.impi = Some(world(&mut variables, sizes)?);
        let variables = variables.iter();
        let assigned = variables.map(|(name, value)| format!("{name}={value}"));
        // Ranks do not get the secrets of the IMPI job.
        let emptied = SECRETS.map(|name| format!("{name}="));
        let env: Vec<OsString> = assigned.chain(emptied).map(OsString::from).collect();
        for app in &mut spec.apps {
            app.env.splice(0..0, env.iter().cloned());
        }
        Ok(ImpiMembership { agent, hosts })
    }
}

/// Returns the nodes of consecutive ranks, with the number of ranks: IMPI's hosts, whose ranks are consecutive.
fn runs(ranks: &ProcessMap) -> Vec<(NodeId, u32)> {
    let mut runs: Vec<(NodeId, u32)> = Vec::new();
    for node in (0..ranks.size()).filter_map(|rank| ranks.node_of(Rank(rank))) {
        match runs.last_mut() {
            Some((last, count)) if *last == node => *count += 1,
            _ => runs.push((node, 1)),
        }
    }
    runs
}

/// Returns the description of the IMPI world for ranks, without the variables of [`ImpiWorld::of_rank`].
fn world(
    variables: &mut BTreeMap<String, String>,
    hosts: Vec<u32>,
) -> Result<ImpiWorld, JoinError> {
    let number = |name: &'static str, value: Option<&String>| {
        let value = value.and_then(|value| value.parse().ok());
        value.ok_or(JoinError::Says(name))
    };
    let color = variables.remove("IMPI_HOST_COLOR");
    let values = variables
        .iter()
        .filter(|(name, _)| name.starts_with("IMPI_"));
    Ok(ImpiWorld {
        values: values
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        first: number("IMPI_WORLD_FIRST", variables.get("IMPI_WORLD_FIRST"))?,
        first_host: number("IMPI_HOST_COLOR", color.as_ref())?,
        hosts,
    })
}

/// Agent of the client, and of the host if the launch is on this machine.
#[derive(Debug)]
struct ImpiAgentProcess {
    child: Child,
    joined: bool,
}

impl ImpiAgentProcess {
    fn start(server: &str, client: u32, words: &[OsString]) -> Result<Self, CommandError> {
        let mut command = Command::new(find(IMPI).map_err(CommandError::request)?);
        command.args(["agent", server, "--client", &client.to_string()]);
        // The launcher handles interrupts; the agent ends with the launcher.
        command
            .args(words)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let failed = |error| CommandError::system("cannot start the IMPI agent", error);
        let child = command.spawn().map_err(failed)?;
        // The backend reaps unknown children.
        zombie::remember(Pid::from_child(&child));
        Ok(Self {
            child,
            joined: false,
        })
    }

    /// Reads the variables that the agent prints when it has joined.
    fn variables(&mut self) -> Result<BTreeMap<String, String>, JoinError> {
        let mut variables = BTreeMap::new();
        let output = self.child.stdout.take().into_iter();
        let lines = output.flat_map(|output| BufReader::new(output).lines());
        for line in lines.map_while(Result::ok) {
            let Some((name, value)) = line.split_once('=') else {
                self.joined = true;
                return Ok(variables);
            };
            variables.insert(name.to_owned(), value.to_owned());
        }
        Err(match self.wait() {
            Some(end @ RankEnd::Signal(_)) => JoinError::AgentKilled(end),
            // The agent has printed the reason.
            _ => JoinError::Agent,
        })
    }

    /// Ends the agent. Returns whether it has ended normally.
    fn end(&mut self, failed: bool) -> bool {
        self.close(failed);
        let end = self.wait();
        // An agent that exits by itself has printed the reason.
        if let Some(end @ RankEnd::Signal(_)) = end {
            eprintln!("wireup impi: the agent of this launch was {end}");
        }
        end == Some(RankEnd::Code(0))
    }

    /// Waits for the end of the agent; `None` if its status is unknown.
    fn wait(&mut self) -> Option<RankEnd> {
        let Ok(status) = self.child.wait() else {
            return zombie::end_of(Pid::from_child(&self.child));
        };
        let code = status.code().map(|code| RankEnd::Code((code & 0xff) as u8));
        code.or_else(|| status.signal().map(RankEnd::Signal))
    }

    fn close(&mut self, failed: bool) {
        if let Some(mut input) = self.child.stdin.take()
            && failed
        {
            // An agent that has ended has printed the reason.
            let _ = input.write_all(FAILED);
        }
    }
}

impl Drop for ImpiAgentProcess {
    fn drop(&mut self) {
        // An agent that has not joined waits for other clients, and is killed. Afterwards its pid may be reused.
        if !self.joined {
            // It may have ended.
            let _ = self.child.kill();
        }
        self.close(true);
        let _ = self.child.wait();
    }
}

impl ImpiMembership {
    /// Waits for the end of the other clients, after the ranks have ended with this exit code. Returns the code of the launch.
    pub(crate) fn leave(mut self, code: u8) -> u8 {
        let hosts = self.hosts.map(|hosts| hosts.end(code != 0));
        let broken = hosts.is_some_and(|in_order| !in_order);
        // The agents have printed the reason; the exit code of the ranks takes precedence.
        match self.agent.end(code != 0 || broken) && !broken {
            true => code,
            false => code.max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ranks_of_node_are_host() {
        let map = |runs: &[(u32, u32)]| {
            let runs = runs.iter().map(|(node, ranks)| (NodeId(*node), *ranks));
            super::runs(&ProcessMap::from_runs(runs))
        };
        let expected = |runs: &[(u32, u32)]| -> Vec<(NodeId, u32)> {
            runs.iter()
                .map(|(node, ranks)| (NodeId(*node), *ranks))
                .collect()
        };
        assert_eq!(map(&[(0, 2), (1, 3)]), expected(&[(0, 2), (1, 3)]));
        assert_eq!(
            map(&[(1, 1), (0, 1), (1, 0), (0, 1)]),
            expected(&[(1, 1), (0, 2)])
        );
    }

    #[test]
    fn option_names_server_and_client() {
        let text =
            "10.0.0.1:5678,client=1,address=10.0.0.2,tls-ca=/a=b.pem,xsize=64,maxlinear=2,lam";
        let link: ImpiSpec = text.parse().unwrap();
        assert_eq!(
            (link.server.as_str(), link.client, link.lam),
            ("10.0.0.1:5678", 1, true)
        );
        assert_eq!(link.address, Some(IpAddr::from([10, 0, 0, 2])));
        assert_eq!(link.tls_ca.as_deref(), Some("/a=b.pem"));
        assert_eq!((link.xsize, link.max_linear), (Some(64), Some(2)));
        for (text, error) in [
            ("10.0.0.1,client=1", ImpiSpecError::Server),
            ("h:1", ImpiSpecError::NoClient),
            ("h:1,client=x", ImpiSpecError::Word("client=x".into())),
            (
                "h:1,client=1,tls-ca=",
                ImpiSpecError::Word("tls-ca=".into()),
            ),
            (
                "h:1,client=1,xsize=-1",
                ImpiSpecError::Word("xsize=-1".into()),
            ),
            ("h:1,client=1,frob", ImpiSpecError::Word("frob".into())),
        ] {
            assert_eq!(text.parse::<ImpiSpec>(), Err(error), "{text}");
        }
    }
}
