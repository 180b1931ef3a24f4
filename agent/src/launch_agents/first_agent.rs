//! Agent on the launcher's host: creates the launch's authority, starts the agents of all hosts, and serves the one
//! connection that it inherits.

use std::io::{self, Read as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::launch_authority::LaunchCertificates;
use super::{READY, RankSignals, agent, run};
use crate::launch_agent_ports::{AgentPorts, LaunchAgents};
use crate::local_socket;
use wireup_core::executables::{AGENT, LAUNCH_LINK};
use wireup_core::failure::CommandError;
use wireup_core::job::spec::AgentLaunchCommand;
use wireup_core::link::decode;

/// Time for the agents' commands to end after the end of their standard input.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Time for the agents' commands to end after SIGTERM.
const TERM_LIMIT: Duration = Duration::from_secs(2);

/// Serves the launcher that has started this process: its link is [`LAUNCH_LINK`], and an encoded [`AgentLaunchCommand`] comes on
/// standard input.
///
/// # Errors
/// One line.
pub fn inherited() -> Result<u8, CommandError> {
    let failed = |error| CommandError::system("cannot read the launch", error);
    let mut orders = Vec::new();
    io::stdin().read_to_end(&mut orders).map_err(failed)?;
    // SAFETY: the launcher passes this descriptor, and nothing here has opened or taken any before.
    let link = unsafe { OwnedFd::from_raw_fd(LAUNCH_LINK) };
    // The agents' commands must not have it: its end is the launch's.
    rustix::io::fcntl_setfd(&link, rustix::io::FdFlags::CLOEXEC)
        .map_err(|errno| failed(errno.into()))?;
    main(link, &orders)
}

/// Serves the launcher at the other end of `link`.
///
/// # Errors
/// One line.
fn main(link: OwnedFd, orders: &[u8]) -> Result<u8, CommandError> {
    let starter: AgentLaunchCommand = decode(orders)
        .map_err(|error| CommandError::system("cannot read the launch", io::Error::other(error)))?;
    run(async |network| {
        let failed = |error| CommandError::system("cannot serve the launch", error);
        // The launcher gets them too, and ends the launch.
        let ignored = (
            RankSignals::new()?,
            signal(SignalKind::terminate()).map_err(failed)?,
        );
        let link = std::os::unix::net::UnixStream::from(link);
        link.set_nonblocking(true).map_err(failed)?;
        let link = UnixStream::from_std(link).map_err(failed)?;
        let uid = link.peer_cred().map_err(failed)?.uid();
        let bundle = LaunchCertificates::new(starter.hosts())?;
        let own = format!("launcher-{}", std::process::id());
        let (known, agents) = watch::channel(AgentPorts::default());
        let tls = bundle.credentials(&own)?;
        let agents = LaunchAgents {
            agent_ports: agents,
            addresses: starter.addresses.clone(),
        };
        let agent = agent(own, tls, Some(agents), network)?;
        let mut commands = start(&starter, bundle.text(), Arc::new(known));
        local_socket::serve_one(agent, link, uid).await;
        for command in &mut commands {
            command.input.abort();
        }
        for command in commands {
            command.end().await;
        }
        drop(ignored);
        Ok(())
    })
}

/// A command that starts agents, and keeps them as long as it has its input.
struct StarterProcess {
    child: Child,
    input: tokio::task::JoinHandle<()>,
}

/// Starts all of them at once.
fn start(
    starter: &AgentLaunchCommand,
    text: String,
    ports: Arc<watch::Sender<AgentPorts>>,
) -> Vec<StarterProcess> {
    let own = std::env::current_exe().unwrap_or_else(|_| "wireup-agent".into());
    let text: Arc<str> = text.into();
    let one = |part: usize| {
        let words = starter.command_for(part);
        // An agent that is alone in its part need not find out its name.
        let host = match &starter.parts[part][..] {
            [only] => Some(only),
            _ => None,
        };
        let name = words.first().cloned().unwrap_or_default();
        let file = match name == AGENT {
            true => own.clone(),
            false => program(&name),
        };
        let mut command = Command::new(file);
        command.args(words.get(1..).unwrap_or_default());
        command.arg(&own).arg(super::host_agent::COMMAND).args(host);
        for variable in &starter.without {
            command.env_remove(variable);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        match command.spawn() {
            Ok(child) => Some(running(child, name, text.clone(), ports.clone())),
            Err(error) => {
                ports.send_modify(|known| known.end_reason = Some(format!("{name}: {error}")));
                None
            }
        }
    };
    // Parts of which the launch uses no host keep their numbers.
    let used = |part: &usize| !starter.parts[*part].is_empty();
    let parts = (0..starter.parts.len()).filter(used);
    parts.filter_map(one).collect()
}

/// Returns the file of a command. Links to wireup in its place (`wireup install-links`) would start a launch in place
/// of agents.
fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().and_then(|own| own.with_file_name("wireup").canonicalize());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|dir| dir.join(name));
    let other = |file: &PathBuf| {
        rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
            && own.as_ref().is_ok_and(|own| {
                let real = file.canonicalize();
                real.is_ok_and(|real| real != *own)
            })
    };
    let found = (!name.contains('/')).then(|| files.find(other)).flatten();
    found.unwrap_or_else(|| name.into())
}

fn running(
    mut child: Child,
    name: String,
    text: Arc<str>,
    ports: Arc<watch::Sender<AgentPorts>>,
) -> StarterProcess {
    let stdin = child.stdin.take();
    let input = tokio::spawn(async move {
        if let Some(mut stdin) = stdin {
            // A command that has ended is noticed by its output.
            let _ = stdin.write_all(text.as_bytes()).await;
            let _ = stdin.flush().await;
            // Open as long as the launch.
            std::future::pending::<()>().await;
        }
    });
    let stdout = child.stdout.take();
    tokio::spawn(async move {
        if let Some(stdout) = stdout {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some((host, port)) = ready(&line) {
                    ports.send_modify(|known| {
                        known.ports.insert(host, port);
                    });
                }
            }
        }
        ports.send_modify(|known| known.end_reason = Some(format!("{name} has ended")));
    });
    StarterProcess { child, input }
}

impl StarterProcess {
    /// Waits for the command, whose input has ended; one that does not end is terminated.
    async fn end(self) {
        let mut child = self.child;
        if timeout(END_LIMIT, child.wait()).await.is_ok() {
            return;
        }
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if timeout(TERM_LIMIT, child.wait()).await.is_err() {
            let _ = child.kill().await;
        }
    }
}

/// Returns the host and port in a line, which a command may have prefixed with other words.
fn ready(line: &str) -> Option<(String, u16)> {
    let (_, found) = line.split_once(READY)?;
    let (host, port) = found.trim().split_once(' ')?;
    Some((host.to_owned(), port.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_line_is_found_after_label() {
        let found = Some(("n1".to_owned(), 4711));
        assert_eq!(ready("wireup-agent-ready n1 4711"), found);
        assert_eq!(ready("0: wireup-agent-ready n1 4711 "), found);
        assert_eq!(ready("wireup-agent-ready n1"), None);
        assert_eq!(ready("motd"), None);
    }
}
