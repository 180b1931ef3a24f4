//! `wireup impi agent`.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use wireup_core::duration::positive_duration;

const NOTES: &str = "\
With a command, runs it with the variables of the world in its environment, and ends with its exit code. Without one,
prints the variables, an empty line, and serves until its standard input ends; anything written there before says that the
launch failed.

With --host it is the agent of hosts that others serve (`wireup impi host`), in the order of their processes. It prints what
these wait for as the variable WIREUP_IMPI_INVITATION.

Examples:
  wireup impi agent 10.0.0.1:5678 --client 0 -n 4 -- mpiexec -n 4 ./app
  wireup run --impi 10.0.0.1:5678,client=0 -n 4 ./app          the same";

/// Arguments of `wireup impi agent`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct AgentArgs {
    /// Where the server listens
    #[arg(value_name = "HOST:PORT")]
    pub server: String,
    /// Rank of this client: its place among the clients
    #[arg(long, value_name = "K")]
    pub client: u32,
    /// Processes of the launch
    #[arg(short = 'n', long, value_name = "N", required_unless_present = "hosts")]
    pub procs: Option<u32>,
    /// Address at which other hosts reach this one [default: the one that leads to the server]
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
    /// A host of the launch: where it listens, and its processes
    #[arg(long = "host", value_name = "IP:PORT=N", value_parser = place)]
    #[arg(conflicts_with_all = ["procs", "address", "command"])]
    pub hosts: Vec<(SocketAddr, usize)>,
    /// Most bytes of data in a packet
    #[arg(long, value_name = "BYTES", default_value_t = 65_536)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub datalen: u32,
    /// Packets between acknowledgments
    #[arg(long, value_name = "PACKETS", default_value_t = 10)]
    pub ackmark: u32,
    /// Packets without acknowledgment
    #[arg(long, value_name = "PACKETS", default_value_t = 20)]
    pub hiwater: u32,
    /// Bytes from which collectives are long; the same for all clients [default: 1024]
    #[arg(long, value_name = "BYTES", default_value_t = -1, hide_default_value = true, allow_negative_numbers = true)]
    pub xsize: i32,
    /// Clients up to which collectives are linear; the same for all clients [default: 4]
    #[arg(long, value_name = "N", default_value_t = -1, hide_default_value = true, allow_negative_numbers = true)]
    pub maxlinear: i32,
    /// Some client is LAM/MPI 7.1: data in its byte order, Reduce where it expects it
    #[arg(long)]
    pub lam: bool,
    /// Print lines and errors of the processes at the server, which must be a print server (--print-server)
    #[arg(long)]
    pub print: bool,
    /// Speak TLS with the server, which must have a certificate of an authority in this file (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Time that other clients may take to end after this one
    #[arg(long, value_name = "DURATION", default_value = "60", value_parser = positive_duration)]
    pub patience: Duration,
    /// Command that starts the processes
    #[arg(last = true)]
    pub command: Vec<OsString>,
}

fn place(text: &str) -> Result<(SocketAddr, usize), String> {
    let wrong = || "write IP:PORT=N, as `wireup impi host` prints the first".to_owned();
    let (address, procs) = text.rsplit_once('=').ok_or_else(wrong)?;
    let address = address.parse().map_err(|_| wrong())?;
    let procs = procs.parse().ok().filter(|procs| *procs >= 1);
    Ok((address, procs.ok_or_else(wrong)?))
}
