//! The commands of `wireup impi` and their options, without their execution: `wireup-impi` executes them, and `wireup`,
//! which does not know it, shows them in completions, manual pages and help.

pub mod agent_options;
pub mod check_client_options;
pub mod check_server_options;
pub mod host_options;
pub mod play_options;
pub mod proxy_options;
pub mod server_options;
mod single_dash;

use std::ffi::OsString;

use clap::{Parser, Subcommand};
pub use single_dash::respell;

const EXAMPLES: &str = "\
Examples:
  IMPI_AUTH_KEY=5678 wireup impi -server 2              the rendezvous server of two jobs; prints where it listens
  wireup run --impi 10.0.0.1:5678,client=0 -n 4 ./app   one of the jobs (docs/impi.md)";

/// A line of `wireup impi`.
#[derive(Debug, Parser)]
#[command(
    name = "wireup impi",
    version,
    about = "Interoperable MPI: make launches of different MPIs one job",
    after_help = EXAMPLES
)]
pub struct Line {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Be the rendezvous server of a job; also `-server COUNT [-port PORT] [-auth LIST] [-file FILE]`
    Server(server_options::ServerArgs),
    /// Join a launch of any launcher to a job, as one of its clients; also `-client K HOST:PORT …`
    Agent(agent_options::AgentArgs),
    /// Be one host of a launch on several; started by `wireup run --impi`
    Host(host_options::HostArgs),
    /// Test a server: be the clients of its sessions
    CheckServer(check_server_options::CheckServerArgs),
    /// Test a client: be the server and the other clients of its job
    CheckClient(check_client_options::CheckClientArgs),
    /// Be a process of the program that `check-client` runs
    Play(play_options::PlayArgs),
    /// Record the conversations of clients with their server, and of their hosts
    Proxy(proxy_options::ProxyArgs),
    /// Explain a record, with the section of the specification that each message follows
    Decode(proxy_options::DecodeArgs),
}

/// Parses the words of a line, of which the first is the program's name.
///
/// # Errors
/// Requested help, or the error in the line.
pub fn parse(words: Vec<OsString>) -> Result<Command, clap::Error> {
    Ok(Line::try_parse_from(respell(words))?.command)
}
