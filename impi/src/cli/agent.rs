//! `wireup impi agent`.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use wireup_impi_cli::agent_options::AgentArgs;

use super::host::INVITATION;
use crate::agent::{Events, JoinedClient, JoinedMember, LaunchSettings, PublishedHost, join};
use crate::stream::address_towards;
use crate::{secrets, tls};

/// Joins and serves.
pub(super) fn execute(args: AgentArgs) -> anyhow::Result<u8> {
    anyhow::ensure!(
        args.ackmark >= 1 && args.hiwater >= args.ackmark,
        "invalid --ackmark {} or --hiwater {}: use 1 <= ackmark <= hiwater",
        args.ackmark,
        args.hiwater
    );
    anyhow::ensure!(args.procs != Some(0), "invalid --procs 0: use at least 1");
    let address = match (args.address, args.hosts.first()) {
        (Some(address), _) => address,
        (None, Some((address, _))) => address.ip(),
        (None, None) => {
            address_towards(&args.server).with_context(|| format!("server {}", args.server))?
        }
    };
    let settings = LaunchSettings {
        server: args.server,
        client: args.client,
        procs: args.procs.unwrap_or_default() as usize,
        address,
        data_length: args.datalen,
        ack_mark: args.ackmark,
        high_water: args.hiwater,
        crossover_size: args.xsize,
        max_linear: args.maxlinear,
        lam: args.lam,
        is_printing: args.print,
        secrets: secrets::from_environment()?,
        tls: args.tls_ca.as_deref().map(tls::client).transpose()?,
    };
    if args.command.is_empty() {
        // Before the first wait, in which the process that started the agent may be killed.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    if !args.hosts.is_empty() {
        let hosts = args.hosts.into_iter();
        let places: Vec<PublishedHost> = hosts
            .map(|(address, procs)| PublishedHost { address, procs })
            .collect();
        return lead(JoinedMember::join(settings, &places)?);
    }
    let joined = join(settings)?;
    let patience = args.patience;
    if args.command.is_empty() {
        return serve_until_end_of_input(joined, patience);
    }
    run(joined, &args.command, patience)
}

/// Prints variables and an empty line.
fn print_variables(variables: &[(&'static str, String)]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (name, value) in variables {
        writeln!(out, "{name}={value}")?;
    }
    writeln!(out)?;
    out.flush()
}

/// Whether anything was written to standard input before its end: the launch has failed.
fn launch_has_failed() -> bool {
    let mut piece = [0; 64];
    let mut input = io::stdin().lock();
    let mut failed = false;
    while matches!(input.read(&mut piece), Ok(count) if count > 0) {
        failed = true;
    }
    failed
}

/// Runs the client of hosts that other processes serve.
fn lead(mut member: JoinedMember) -> anyhow::Result<u8> {
    let mut variables = member.environment();
    variables.push((INVITATION, member.invitation().line()));
    print_variables(&variables)?;
    if launch_has_failed() {
        // The server sees a client that ends without FINI.
        member.report("the launch has failed");
        return Ok(1);
    }
    member.leave();
    Ok(0)
}

fn serve_until_end_of_input(joined: JoinedClient, patience: Duration) -> anyhow::Result<u8> {
    print_variables(&joined.environment())?;
    let events = Events::default();
    let over = events.launch_over();
    std::thread::spawn(move || over.report(launch_has_failed()));
    joined.serve(&events, patience)?;
    Ok(0)
}

fn run(joined: JoinedClient, command: &[OsString], patience: Duration) -> anyhow::Result<u8> {
    let (program, arguments) = command.split_first().context("no command given")?;
    let mut child = Command::new(program)
        .args(arguments)
        .envs(joined.environment())
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
