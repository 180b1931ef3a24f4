//! `wireup impi proxy` and `wireup impi decode`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use clap::Args;

const PROXY_NOTES: &str = "\
Prints A.B.C.D:PORT, which clients take for the server, and ends with the job. It stands between the hosts too: clients see
its ports instead of those of the hosts. The record has all data that passes, in clear.

Examples:
  wireup impi proxy 10.0.0.1:5678 --record job.impi
  wireup impi decode job.impi";

const DECODE_NOTES: &str = "\
Each line has the time, the connection and the section of the specification. Rules that were not kept follow at the end;
the exit code is 1 if one of them is a must.

Examples:
  wireup impi decode job.impi
  wireup impi decode --findings <job.impi";

/// Arguments of `wireup impi proxy`.
#[derive(Debug, Args)]
#[command(after_help = PROXY_NOTES)]
pub struct ProxyArgs {
    /// Where the server listens
    #[arg(value_name = "HOST:PORT")]
    pub server: String,
    /// Where the record is written
    #[arg(long, value_name = "FILE")]
    pub record: PathBuf,
    /// Address at which clients and hosts reach the proxy
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub address: IpAddr,
    /// Port for clients [default: any]
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub port: u16,
}

/// Arguments of `wireup impi decode`.
#[derive(Debug, Args)]
#[command(after_help = DECODE_NOTES)]
pub struct DecodeArgs {
    /// What `wireup impi proxy` has written [default: standard input]
    pub record: Option<PathBuf>,
    /// Print only the rules that were not kept
    #[arg(long)]
    pub findings: bool,
    /// The processes ran the program of `check-client`, of which more is known
    #[arg(long)]
    pub program: bool,
}
