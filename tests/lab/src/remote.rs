//! A stand-in for `ssh` on the hosts of a lab, for launchers that start their own daemons:
//! `lab rsh [OPTION]... HOST WORD...`.
//!
//! On each host the lab listens at an abstract socket, which belongs to the host's network: no file,
//! and nothing on the machine. A call hands over its standard descriptors; the command runs as root
//! in a login's environment, through the shell, as with `ssh`.
//!
//! ```text
//! to the lab    one byte with the descriptors 0, 1 and 2, then HOST, NUL, COMMAND and the end
//! from the lab  the exit code as one byte, then the end
//! ```

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::{Error, Host, Lab};

/// Name of the abstract socket.
const NAME: &str = "wireup-lab-rsh";

/// Exit code of `ssh` itself when it cannot reach the host.
pub const UNREACHABLE: u8 = 255;

fn address() -> SocketAddr {
    SocketAddr::from_abstract_name(NAME).expect("it is short")
}

impl Lab {
    /// Serves `lab rsh` on all hosts while the call lasts.
    ///
    /// # Errors
    /// When the sockets cannot be made.
    pub fn with_remote_shell<T>(&self, call: impl FnOnce() -> T) -> Result<T, Error> {
        let listen = |host: &Host| {
            let listener = host.on_network(|| UnixListener::bind_addr(&address()))?;
            listener.map_err(|error| Error::system("socket for lab rsh", error))
        };
        let listeners: Vec<_> = self.hosts().iter().map(listen).collect::<Result<_, _>>()?;
        Ok(std::thread::scope(|scope| {
            for listener in &listeners {
                scope.spawn(move || {
                    for connection in listener.incoming() {
                        let Ok(connection) = connection else { return };
                        scope.spawn(move || self.answer(connection));
                    }
                });
            }
            let _closing = Closing(&listeners);
            call()
        }))
    }

    fn answer(&self, mut connection: UnixStream) {
        let code = self.serve(&mut connection).unwrap_or(UNREACHABLE);
        // The caller may be gone.
        let _ = connection.write_all(&[code]);
    }

    fn serve(&self, connection: &mut UnixStream) -> io::Result<u8> {
        let [stdin, stdout, stderr] = receive_descriptors(connection)?;
        let mut request = String::new();
        connection.read_to_string(&mut request)?;
        let (name, command) = request.split_once('\0').ok_or(io::ErrorKind::InvalidData)?;
        let Some(host) = self.named(name) else {
            let mut stderr = std::fs::File::from(stderr);
            writeln!(stderr, "lab: no host is called {name}")?;
            return Ok(UNREACHABLE);
        };
        let mut shell = host.command("sh");
        let shell = shell.args(["-c", command]).env_clear();
        for (name, value) in [
            ("PATH", crate::network::PATH),
            ("HOME", "/root"),
            ("USER", "root"),
            ("LOGNAME", "root"),
            ("SHELL", "/bin/sh"),
        ] {
            shell.env(name, value);
        }
        let shell = shell.stdin(stdin).stdout(stdout).stderr(stderr);
        let mut child = shell.spawn()?;
        // Its descriptors are the caller's: here they would keep pipes open.
        shell
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        end_with(connection, &child)?;
        let status = child.wait()?;
        let code = status
            .code()
            .or_else(|| status.signal().map(|signal| 128 + signal));
        Ok(code.map_or(UNREACHABLE, |code| code as u8))
    }
}

/// Ends the waits for calls, also when the caller has panicked.
struct Closing<'a>(&'a [UnixListener]);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        for listener in self.0 {
            // The wait ends with an error.
            let _ = rustix::net::shutdown(listener, Shutdown::Both);
        }
    }
}

/// Waits for the command's end, and hangs it up when its caller is gone before.
fn end_with(caller: &UnixStream, child: &Child) -> io::Result<()> {
    let pid = Pid::from_child(child);
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    // The caller has ended its half of the connection: only its death shows.
    let mut both = [
        PollFd::new(&pidfd, PollFlags::IN),
        PollFd::new(caller, PollFlags::empty()),
    ];
    rustix::io::retry_on_intr(|| poll(&mut both, None))?;
    if both[0].revents().is_empty() {
        // It leads a session, and its group is called as it is.
        let _ = rustix::process::kill_process_group(pid, Signal::HUP);
    }
    Ok(())
}

fn receive_descriptors(connection: &UnixStream) -> io::Result<[OwnedFd; 3]> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(
        connection,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    descriptors
        .try_into()
        .map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Runs a command on another host of the lab this process is in; its exit code.
///
/// # Errors
/// When this is no host of a lab that serves it.
pub fn remote_shell(host: &str, command: &str) -> io::Result<u8> {
    let mut connection = UnixStream::connect_addr(&address())?;
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let descriptors = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(&descriptors));
    debug_assert!(fits, "there is space for three");
    rustix::net::sendmsg(
        &connection,
        &[IoSlice::new(b"x")],
        &mut control,
        SendFlags::empty(),
    )?;
    connection.write_all(format!("{host}\0{command}").as_bytes())?;
    connection.shutdown(std::net::Shutdown::Write)?;
    let mut code = [UNREACHABLE];
    connection.read_exact(&mut code)?;
    Ok(code[0])
}
