//! `wireup impi check-client`.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use wireup_core::duration::positive_duration;
use wireup_impi_core::server::MAX_CLIENTS;

const NOTES: &str = "\
The command starts the client under test with processes that run the program which --print-program prints; {server} and
{client} in its words stand for the server's address and the client's rank. Without IMPI_AUTH_KEY the client is to use
IMPI_AUTH_NONE, which is set for it. The results are lines of the Test Anything Protocol, one for each rule
(docs/impi-conformance.md); the exit code is 1 if a must is not kept or the program does not pass.

Examples:
  wireup impi check-client --print-program >check.c && mpicc check.c -o check
  wireup impi check-client -- mpirun -client {client} {server} -np 2 ./check
  wireup impi check-client -- wireup run --impi {server},client={client} -n 2 wireup impi play";

/// Arguments of `wireup impi check-client`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct CheckClientArgs {
    /// All clients, that under test included
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=i64::from(MAX_CLIENTS)))]
    pub clients: u32,
    /// Rank of the client under test
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub client: u32,
    /// Processes of each other client
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub procs: u32,
    /// Address of the server and of the other clients
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub address: IpAddr,
    /// The client is LAM/MPI 7.1: expect Reduce where it sends it, and data in its byte order; implies --no-probe and --no-gather
    #[arg(long)]
    pub lam: bool,
    /// Leave synchronous sends out; the client's program must as well (`check NO-SSEND`)
    #[arg(long)]
    pub no_ssend: bool,
    /// Leave probe and cancel out; the client's program must as well (`check NO-PROBE`)
    #[arg(long)]
    pub no_probe: bool,
    /// Leave gather, its kin and scan out; the client's program must as well (`check NO-GATHER`)
    #[arg(long)]
    pub no_gather: bool,
    /// Time for the whole test
    #[arg(long, value_name = "DURATION", default_value = "120", value_parser = positive_duration)]
    pub timeout: Duration,
    /// Keep the conversation, for `wireup impi decode --program`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Print the program that the processes of the client run, in C
    #[arg(long, exclusive = true)]
    pub print_program: bool,
    /// Command that starts the client
    #[arg(last = true, required_unless_present = "print_program")]
    pub command: Vec<OsString>,
}
