//! `wireup impi agent`.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use crate::agent::{Events, Joined, Settings, join};
use crate::{secrets, tls};

const NOTES: &str = "\
With a command, runs it with the variables of the world in its environment, and ends with its exit code. Without one,
prints the variables, an empty line, and serves until its standard input ends; anything written there before says that the
launch failed.

Examples:
  wireup impi agent 10.0.0.1:5678 --client 0 -n 4 -- mpiexec -n 4 ./app
  wireup run --impi 10.0.0.1:5678,client=0 -n 4 ./app          the same";

/// Arguments of `wireup impi agent`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub(super) struct AgentArgs {
    /// Where the server listens
    #[arg(value_name = "HOST:PORT")]
    server: String,
    /// Rank of this client: its place among the clients
    #[arg(long, value_name = "K")]
    client: u32,
    /// Processes of the launch
    #[arg(short = 'n', long, value_name = "N")]
    procs: u32,
    /// Address at which other hosts reach this one
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Most bytes of data in a packet
    #[arg(long, value_name = "BYTES", default_value_t = 65_536)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    datalen: u32,
    /// Packets between acknowledgments
    #[arg(long, value_name = "PACKETS", default_value_t = 10)]
    ackmark: u32,
    /// Packets without acknowledgment
    #[arg(long, value_name = "PACKETS", default_value_t = 20)]
    hiwater: u32,
    /// Bytes from which collectives are long; the same for all clients [default: 1024]
    #[arg(long, value_name = "BYTES", default_value_t = -1, hide_default_value = true, allow_negative_numbers = true)]
    xsize: i32,
    /// Clients up to which collectives are linear; the same for all clients [default: 4]
    #[arg(long, value_name = "N", default_value_t = -1, hide_default_value = true, allow_negative_numbers = true)]
    maxlinear: i32,
    /// Some client is LAM/MPI 7.1: data in its byte order, Reduce where it expects it
    #[arg(long)]
    lam: bool,
    /// Speak TLS with the server, which must have a certificate of an authority in this file (PEM)
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Seconds that other clients may take to end after this one
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    /// Command that starts the processes
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// Joins and serves.
pub(super) fn execute(args: AgentArgs) -> anyhow::Result<u8> {
    anyhow::ensure!(
        args.ackmark >= 1 && args.hiwater >= args.ackmark,
        "1 <= ackmark <= hiwater must hold"
    );
    anyhow::ensure!(args.procs >= 1, "a client has at least one process");
    let settings = Settings {
        server: args.server,
        client: args.client,
        procs: args.procs as usize,
        address: args.address,
        data_length: args.datalen,
        ack_mark: args.ackmark,
        high_water: args.hiwater,
        crossover_size: args.xsize,
        max_linear: args.maxlinear,
        lam: args.lam,
        secrets: secrets::from_environment()?,
        tls: args.tls_ca.as_deref().map(tls::client).transpose()?,
    };
    if args.command.is_empty() {
        // Before the first wait, in which the process that started the agent may be killed.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    let joined = join(settings)?;
    let patience = Duration::from_secs(args.patience);
    if args.command.is_empty() {
        return serve_until_end_of_input(joined, patience);
    }
    run(joined, &args.command, patience)
}

fn serve_until_end_of_input(joined: Joined, patience: Duration) -> anyhow::Result<u8> {
    let mut out = io::stdout().lock();
    for (name, value) in joined.environment()? {
        writeln!(out, "{name}={value}")?;
    }
    writeln!(out).and_then(|()| out.flush())?;
    drop(out);
    let events = Events::default();
    let over = events.launch_over();
    std::thread::spawn(move || {
        let mut piece = [0; 64];
        let mut input = io::stdin().lock();
        let mut failed = false;
        while matches!(input.read(&mut piece), Ok(count) if count > 0) {
            failed = true;
        }
        over.report(failed);
    });
    joined.serve(&events, patience)?;
    Ok(0)
}

fn run(joined: Joined, command: &[OsString], patience: Duration) -> anyhow::Result<u8> {
    let (program, arguments) = command.split_first().context("no command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .envs(joined.environment()?)
        // What lets into the job is not the processes' affair.
        .env_remove("IMPI_AUTH_KEY")
        .env_remove("WIREUP_IMPI_TOKEN")
        .spawn()
        .with_context(|| program.to_string_lossy().into_owned())?;
    let events = Events::default();
    let over = events.launch_over();
    let pid = rustix::process::Pid::from_child(&child);
    let waits = std::thread::spawn(move || {
        let status = child.wait();
        over.report(!status.as_ref().is_ok_and(ExitStatus::success));
        status
    });
    let served = joined.serve(&events, patience);
    if served.is_err() && !waits.is_finished() {
        // The processes cannot go on; their launcher ends them.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let status = waits
        .join()
        .map_err(|_| anyhow::anyhow!("waiting for the command"))??;
    served?;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
