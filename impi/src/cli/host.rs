//! `wireup impi host`: one host of a launch that has several. `wireup run --impi` starts one on each.

use std::io;

use anyhow::Context;
use wireup_impi_cli::host_options::HostArgs;

use crate::agent::{Events, HostInvitation, ListeningHost};
use crate::stream::address_towards;

/// The variable in which the agent prints the invitation for hosts.
pub(super) const INVITATION: &str = "WIREUP_IMPI_INVITATION";

/// Runs the host until the job is over.
pub(super) fn execute(args: &HostArgs) -> anyhow::Result<u8> {
    let number = std::env::var("WIREUP_RANK").ok();
    let number = number.and_then(|number| number.parse().ok());
    let number = number.context("WIREUP_RANK is not a number; start hosts with `wireup run`")?;
    match serve(args, number) {
        Ok(()) => Ok(0),
        Err(error) => {
            println!("broken {number} {error:#}");
            Ok(1)
        }
    }
}

fn serve(args: &HostArgs, number: usize) -> anyhow::Result<()> {
    let server = &args.server;
    let address = address_towards(server).with_context(|| format!("server {server}"))?;
    let host = ListeningHost::listen(address)?;
    println!("host {number} {} {}", host.place()?, host.door()?);
    let invitation = match &*line()? {
        "" => anyhow::bail!("the launcher ended before all clients had joined"),
        line => HostInvitation::from_line(line),
    };
    let invitation = invitation.context("invalid invitation from the agent")?;
    let host = host.connect(invitation, number)?;
    println!("ready {number}");
    let events = Events::default();
    let over = events.launch_over();
    std::thread::spawn(move || {
        // A launcher that is killed sends nothing.
        over.report(!matches!(line().as_deref(), Ok("over")));
    });
    host.serve(&events, args.patience, &mut |line| {
        eprintln!("wireup impi: {line}")
    })?;
    Ok(())
}

/// Returns the next line of standard input, without its end; empty at the end of the input.
fn line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    line.truncate(line.trim_end().len());
    Ok(line)
}
