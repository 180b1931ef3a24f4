//! The command line. Nothing below this module knows a flag.

mod agent;
mod check_client;
mod check_server;
mod play;
mod record;
mod server;
mod single_dash;

use std::ffi::OsString;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "wireup impi",
    version,
    about = "Interoperable MPI: jobs of different launchers form one world"
)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Be the rendezvous server of a job; also `-server COUNT [-port PORT] [-auth LIST]`
    Server(server::ServerArgs),
    /// Join a launch of any launcher to a job, as one of its clients
    Agent(agent::AgentArgs),
    /// Test a server: be the clients of its sessions
    CheckServer(check_server::CheckServerArgs),
    /// Test a client: be the server and the other clients of its job
    CheckClient(check_client::CheckClientArgs),
    /// Be a process of the program that `check-client` runs
    Play(play::PlayArgs),
    /// Record what clients, their server and their hosts say to each other
    Proxy(record::ProxyArgs),
    /// Explain a record, with the section of the specification that each message follows
    Decode(record::DecodeArgs),
}

/// Parses the arguments (program name included), runs the command and returns its exit code.
pub fn main(args: Vec<OsString>) -> u8 {
    let line = match Line::try_parse_from(single_dash::respell(args)) {
        Ok(line) => line,
        Err(error) => {
            // Help goes to stdout, complaints to stderr; either may be gone.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    let result = match line.command {
        Command::Server(args) => server::execute(&args),
        Command::Agent(args) => agent::execute(args),
        Command::CheckServer(args) => check_server::execute(args),
        Command::CheckClient(args) => check_client::execute(args),
        Command::Play(args) => play::execute(&args),
        Command::Proxy(args) => record::proxy(&args),
        Command::Decode(args) => record::decode(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("wireup impi: {error:#}");
        1
    })
}
