//! Proxy of a process that was started without a launcher and spawns: rank 0 of a launch, connected with that process by
//! the rules of core's `pmi::singleton_handshake`.

use std::env;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd as _, RawFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::rank_port::check_user;
use super::singleton_end;
use super::socket_relay::{RelayStatus, SocketRelay};
use wireup_core::failure::{AnyError, CommandError};
use wireup_core::pmi::singleton_handshake::{SingletonAgreement, SingletonHandshake};
use wireup_sys::inherited_fd;
use wireup_sys::poll::wait_for_events;
use wireup_sys::signals::{Signals, ignored_at_start};
use wireup_sys::tcp_peer::TcpEndpoint;

/// Time in which the process must answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Variable; with the value `yes`, the process's standard streams become those of its launch if it offers them.
pub const STDIO: &str = "WIREUP_SINGLETON_STDIO";

/// Serves the process that listens on that port of this host, until it ends. If the launch ends before, sends it SIGTERM.
///
/// # Errors
/// [`CommandError`] if the process cannot be reached, or is not a client.
pub fn serve(port: u16, key: &str) -> Result<u8, CommandError> {
    let name = |name| env::var(name).unwrap_or_default();
    let server = name("PMI_FD")
        .parse()
        .map_err(|_| CommandError::request("the launch offers no PMI".to_owned()))?;
    let singleton = SingletonHandshake::new(key, name(STDIO) == "yes", &name("PMI_JOBID"));
    relay(port, server, singleton).map_err(|error| {
        let doing = format!("cannot serve the process that listens on port {port}");
        CommandError::system(doing, error)
    })?;
    Ok(0)
}

/// Connects to the process, and relays its bytes and those of the server, whose socket is the descriptor `server`.
fn relay(port: u16, server: RawFd, singleton: SingletonHandshake) -> Result<(), AnyError> {
    let server = inherited_fd::socket(server)?;
    let mut signals = Signals::take(&ignored_at_start(), false)?;
    let (stream, program, agreed) = connect_singleton(port, singleton)?;
    let streams = match agreed.stdio {
        true => standard_streams(port)?,
        false => Vec::new(),
    };
    if agreed.version_ok {
        stream.set_nonblocking(true)?;
        let mut carrier = SocketRelay::new(stream.into(), server).begun(agreed.received);
        while carrier.carry(|_, _| {}) == RelayStatus::On {
            if singleton_end::is_ordered(&mut signals) {
                let program = program.process();
                drop(carrier);
                // An error means that the program has just exited.
                if let Ok(program) = program {
                    singleton_end::end(&program);
                }
                break;
            }
            let [client, server] = carrier.interests();
            let sources = [client, server, (signals.as_fd(), PollFlags::IN)];
            let mut ready = sources.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
            wait_for_events(&mut ready, None)?;
        }
    }
    for stream in streams {
        let _ = stream.join();
    }
    Ok(())
}

/// Connects to the process, and completes the handshake.
fn connect_singleton(
    port: u16,
    mut singleton: SingletonHandshake,
) -> Result<(TcpStream, TcpEndpoint, SingletonAgreement), AnyError> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.write_all(singleton.greeting().as_bytes())?;
    let until = Instant::now() + PATIENCE;
    let mut buffer = [0; 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let silent = || io::Error::from(io::ErrorKind::TimedOut);
        if left.is_zero() {
            return Err(silent().into());
        }
        stream.set_read_timeout(Some(left))?;
        let count = match stream.read(&mut buffer) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(silent().into()),
            Err(error) => return Err(error.into()),
        };
        if let Some(agreed) = singleton.receive(&buffer[..count])? {
            // Not earlier: the kernel names no owner of a connection that has not been accepted.
            let program = check_user(&stream)?;
            stream.write_all(agreed.reply.as_bytes())?;
            return Ok((stream, program, agreed));
        }
    }
}

/// Opens the connections for the client's standard streams, in the order in which it accepts them. Returns the threads that
/// must be joined: input may wait forever.
fn standard_streams(port: u16) -> io::Result<Vec<JoinHandle<()>>> {
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let (mut input, mut output, mut errors) = (connect()?, connect()?, connect()?);
    // Each thread ends with its connection, or when the reader has closed the stream.
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut input);
        let _ = input.shutdown(std::net::Shutdown::Write);
    });
    let output = std::thread::spawn(move || drop(io::copy(&mut output, &mut io::stdout())));
    let errors = std::thread::spawn(move || drop(io::copy(&mut errors, &mut io::stderr())));
    Ok(vec![output, errors])
}
