//! `wireup impi server`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use wireup_core::duration::positive_duration;
use wireup_impi_core::server::MAX_CLIENTS;

const NOTES: &str = "\
Prints A.B.C.D:PORT, where clients connect, and ends when all clients have ended: with 0 if all did so in order.

The environment names the clients that may join, for server and clients alike:
  IMPI_AUTH_KEY=NUMBER        a key of 64 bits, sent in clear
  IMPI_AUTH_NONE=             everybody
  WIREUP_IMPI_TOKEN=TEXT      a secret that does not cross the network; clients of wireup only

Examples:
  IMPI_AUTH_KEY=5678 wireup impi -server 2
  wireup impi server 2 --address 10.0.0.1 --port 5000-5100
  IMPI_AUTH_KEY=5678 wireup impi -server 2 -file clients      with a line for each client, such as
      bar -client 0 $hostport -n 8 -- mpiexec -n 8 ./app";

/// Arguments of `wireup impi server`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct ServerArgs {
    /// Clients of the job, 1 to 32
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CLIENTS)))]
    pub count: u32,
    /// Port, or a range of which the first free one is taken [default: any]
    #[arg(long, value_name = "PORT[-PORT]")]
    pub port: Option<String>,
    /// Methods of authentication, best first: numbers and ranges, `8,1-0` [default: the strongest first]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub auth: Option<String>,
    /// Start the clients of this file: lines `HOST -client K $hostport …`, which `wireup impi` runs on the hosts
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sessions", "tls_cert"])]
    pub file: Option<PathBuf>,
    /// Command of the clients of --file on other hosts than localhost; it runs `sh -s` there
    #[arg(
        long,
        value_name = "COMMAND",
        default_value = "ssh {host}",
        requires = "file"
    )]
    pub rsh: String,
    /// Address to listen at [default: all, and the one towards the network is printed]
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
    /// Sessions to serve, at the same time; 0 serves until it is killed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub sessions: u64,
    /// Time within which a connection must join
    #[arg(long, value_name = "DURATION", default_value = "30", value_parser = positive_duration)]
    pub join_timeout: Duration,
    /// Time from the first client to the end of start-up [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub timeout: Option<Duration>,
    /// Print lines and errors of clients that use it (--impi …,print), with the client's rank, until all clients have ended
    #[arg(long)]
    pub print_server: bool,
    /// Serve TLS with this chain of certificates (PEM); only clients of wireup speak it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the first certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}
