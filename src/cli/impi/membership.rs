//! A launch that is a client of an IMPI job: its agent is a child of the launcher.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write as _};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

use thiserror::Error;

use crate::failure::RunFailure;
use crate::inspect::agent_file::{IMPI, find};
use wireup_core::job::spec::JobSpec;

/// Why the value of `--impi` is none.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum LinkError {
    #[error("write HOST:PORT,client=K, as `wireup impi server` prints it")]
    Server,
    #[error("client=K is missing")]
    NoClient,
    #[error("{0:?} is not client=K, address=IP or lam")]
    Word(String),
}

/// The value of `--impi`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Link {
    server: String,
    client: u32,
    address: Option<IpAddr>,
    lam: bool,
}

impl FromStr for Link {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let mut words = text.split(',');
        let server = words.next().filter(|server| server.contains(':'));
        let server = server.ok_or(LinkError::Server)?.to_owned();
        let (mut client, mut address, mut lam) = (None, None, false);
        for word in words {
            let wrong = || LinkError::Word(word.to_owned());
            match word.split_once('=') {
                Some(("client", value)) => client = Some(value.parse().map_err(|_| wrong())?),
                Some(("address", value)) => address = Some(value.parse().map_err(|_| wrong())?),
                None if word == "lam" => lam = true,
                _ => return Err(wrong()),
            }
        }
        let client = client.ok_or(LinkError::NoClient)?;
        Ok(Self {
            server,
            client,
            address,
            lam,
        })
    }
}

/// Variables by which the server is joined; ranks find them empty.
const SECRETS: [&str; 2] = ["IMPI_AUTH_KEY", "WIREUP_IMPI_TOKEN"];

/// What the agent reads, whatever it is, before the end of its input if the launch failed.
const FAILED: &[u8] = b"failed\n";

/// A launch that has joined.
#[derive(Debug)]
pub(crate) struct Membership {
    agent: Child,
}

impl Link {
    /// Joins: waits for all clients, and gives the ranks what they need.
    pub(crate) fn join(self, spec: &mut JobSpec) -> Result<Membership, RunFailure> {
        let counts = spec.apps.iter().map(|app| app.count);
        let count = counts.sum::<Option<u32>>().ok_or_else(|| {
            RunFailure::request(
                "--impi needs the number of ranks: give every program its -n".to_owned(),
            )
        })?;
        let program = find(IMPI).map_err(RunFailure::request)?;
        let mut command = Command::new(program);
        command.arg("agent").arg(&self.server);
        command.args([
            "--client",
            &self.client.to_string(),
            "-n",
            &count.to_string(),
        ]);
        if let Some(address) = self.address {
            command.args(["--address", &address.to_string()]);
        }
        if self.lam {
            command.arg("--lam");
        }
        // Interrupts are the launcher's affair; when that dies, so does the agent.
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let failed = |error| RunFailure::system("cannot start the IMPI agent", error);
        let mut agent = command.spawn().map_err(failed)?;
        let mut variables: Vec<OsString> = Vec::new();
        let mut complete = false;
        if let Some(stdout) = agent.stdout.take() {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                complete = line.is_empty();
                if complete {
                    break;
                }
                variables.push(line.into());
            }
        }
        if !complete {
            // It has said why.
            agent.wait().map_err(failed)?;
            return Err(RunFailure::request(
                "the launch did not join the IMPI job".to_owned(),
            ));
        }
        // What lets into the job is not the ranks' affair.
        variables.extend(SECRETS.map(|name| format!("{name}=").into()));
        for app in &mut spec.apps {
            app.env.splice(0..0, variables.iter().cloned());
        }
        Ok(Membership { agent })
    }
}

impl Membership {
    /// The ranks have ended with this code: waits until the other clients have ended as well.
    pub(crate) fn leave(mut self, code: u8) -> u8 {
        if let Some(mut input) = self.agent.stdin.take()
            && code != 0
        {
            // An agent that has ended has said why.
            let _ = input.write_all(FAILED);
        }
        match self.agent.wait() {
            Ok(status) if status.success() => code,
            // It has said why; the ranks' own failure counts more.
            _ => code.max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_names_server_and_client() {
        let link: Link = "10.0.0.1:5678,client=1,address=10.0.0.2,lam"
            .parse()
            .unwrap();
        assert_eq!(
            (link.server.as_str(), link.client, link.lam),
            ("10.0.0.1:5678", 1, true)
        );
        assert_eq!(link.address, Some(IpAddr::from([10, 0, 0, 2])));
        for (text, error) in [
            ("10.0.0.1,client=1", LinkError::Server),
            ("h:1", LinkError::NoClient),
            ("h:1,client=x", LinkError::Word("client=x".into())),
            ("h:1,client=1,frob", LinkError::Word("frob".into())),
        ] {
            assert_eq!(text.parse::<Link>(), Err(error), "{text}");
        }
    }
}
