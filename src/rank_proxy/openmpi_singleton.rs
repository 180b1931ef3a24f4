//! Proxy of an Open MPI process that was started without a launcher and spawns: rank 0 of a launch that has adopted the
//! process's namespace. The process connects to the PMIx server as that rank; the proxy detects its end.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::pmix_port::PmixPort;
use super::rank_variables::{redirected, server_address};
use super::refused_connections::RefusalLines;
use super::singleton_end;
use wireup_core::failure::CommandError;
use wireup_core::job::ids::Nspace;
use wireup_core::wording::without_error_codes;
use wireup_sys::poll::wait_for_events;
use wireup_sys::signals::{Signals, ignored_at_start};

/// Variable with the namespace, in the environment of the launcher.
pub const NSPACE: &str = "WIREUP_ADOPTED_NSPACE";

/// Returns the namespace that the launch adopts, if any.
pub fn nspace() -> Option<Nspace> {
    Nspace::new(&env::var(NSPACE).ok()?).ok()
}

/// Sends a process the address of the server, through one of its descriptors, and serves the client until it has ended, or
/// until the writer of the other descriptor has exited without a client. If the launch ends before, sends the client SIGTERM.
///
/// # Errors
/// [`CommandError`] if the process does not exist, or the launch offers no PMIx.
pub fn serve(process: u32, report: u32, keepalive: u32) -> Result<u8, CommandError> {
    let failed =
        |error: io::Error| CommandError::system("cannot serve a program as its rank", error);
    let path = |number: u32| format!("/proc/{process}/fd/{number}");
    let mut signals = Signals::take(&ignored_at_start(), false).map_err(failed)?;
    let mut keepalive = Some(File::open(path(keepalive)).map_err(failed)?);
    let (mut passages, uri) = offered().map_err(failed)?;
    let mut refusals = RefusalLines::default();
    let report = OpenOptions::new().write(true).open(path(report));
    let result = report.and_then(|mut report| report.write_all(uri.as_bytes()));
    result.map_err(failed)?;
    loop {
        if singleton_end::is_ordered(&mut signals) {
            let clients = passages.clients();
            drop(passages);
            clients.iter().for_each(singleton_end::end);
            return Ok(0);
        }
        let gone = {
            let lives = keepalive.iter();
            let lives = lives.map(|file| PollFd::new(file, PollFlags::IN));
            let signals = PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN);
            let carried = passages.interests();
            let carried = carried.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
            let ready = lives.chain(carried).chain(std::iter::once(signals));
            let mut ready: Vec<PollFd<'_>> = ready.collect();
            wait_for_events(&mut ready, None).map_err(|error| failed(error.into()))?;
            // The pipe carries no data, so an event is its end.
            keepalive.is_some() && !ready[0].revents().is_empty()
        };
        if gone {
            keepalive = None;
        }
        passages.advance(|from, refusal| {
            for line in refusals.add(from, &refusal, Instant::now()) {
                eprintln!("wireup: {}", without_error_codes(&line));
            }
        });
        if passages.is_over() || (keepalive.is_none() && !passages.is_used()) {
            return Ok(0);
        }
    }
}

/// Opens a port for the client. Also returns the text about it that `prte --report-uri` would write: names of variables, and
/// their value. Source: `pmix_ptl_base_setup_listener` of OpenPMIx.
fn offered() -> io::Result<(PmixPort, String)> {
    let mut variables: Vec<(String, String)> = env::vars()
        .filter(|(name, value)| server_address(name, value).is_some())
        .collect();
    // The newest protocol first; a client uses it if it supports it.
    variables.sort_by(|one, other| other.0.cmp(&one.0));
    let none = || io::Error::other("the launch offers no PMIx");
    let (name, value) = variables.first().ok_or_else(none)?;
    let server = server_address(name, value).ok_or_else(none)?;
    let passages = PmixPort::new(server)?;
    let address = redirected(name, value, passages.port()?).ok_or_else(none)?;
    let names: Vec<&str> = variables.iter().map(|(name, _)| &**name).collect();
    Ok((passages, format!("{};{address}\0", names.join(":"))))
}
