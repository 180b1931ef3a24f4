//! Name server of a user's launches on a machine without an agent, and its address. The first launch that needs it starts
//! it as a process; it ends with the last launch.
//!
//! It listens in a private directory of the user. Where none can be made, it listens on a name in the abstract namespace.
//! Any user may bind such a name. So both sides check the other's user with the kernel, no process is waited for, and
//! there are several names: the first one that no other user has bound is used.
//!
//! Rule: a client gets [`FromRendezvous::Welcome`] first. A launch whose connection ends without it has connected to a
//! name server that was ending, and searches for another one.

mod private;

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};

use self::private::UnlinkedSocket;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::UserId;
use wireup_core::link::agent_protocol::{AgentReport, AgentRequest, VERSION};
use wireup_core::link::frame::{FrameAddress, FrameClass};
use wireup_core::link::{decode, socket as places};
use wireup_core::name_server::message::NameServerCommand;
use wireup_core::name_server::{ClientId, NameServer, Reply};
use wireup_sys::descriptors::{FIRST_FREE, open_null};
use wireup_sys::local_link::LocalLink;
use wireup_sys::poll::{Poll, PollEvent, PollSource, PollToken};
use wireup_sys::signals;
use wireup_sys::spawn::{ChildCommand, ProcessSpawner};
use wireup_sys::unix_socket::connect_within;

/// Descriptor of the listening socket in the process.
pub const LISTENER: RawFd = 3;

/// Time for which the process waits for the launch that started it.
const FIRST: Duration = Duration::from_secs(10);

/// Number of names that a user's name server may have.
const NAMES: u32 = 16;

/// Number of attempts on a name that other processes release and bind at the same time.
const RACES: u32 = 8;

/// Time that the owner of such a name has to accept a connection.
const ACCEPT_LIMIT: Duration = Duration::from_millis(100);

/// Backlog of the listening socket.
const BACKLOG: i32 = 1024;

/// Endpoint of the name server, as a launch finds or creates it.
#[derive(Debug)]
pub enum NameServerEndpoint {
    /// Connection to the running name server of the user.
    There(OwnedFd),
    /// None is running: connection to a name server that must be started with this listening socket.
    New {
        connection: OwnedFd,
        /// Listening socket, which becomes the descriptor [`LISTENER`] of the process.
        listener: OwnedFd,
    },
}

/// Finds the name server of this user for a name scope, which has at most
/// [`MEET_MAX`](wireup_core::name_server::MEET_MAX) bytes: below `base`, or else by an abstract name, which other users
/// could have bound; then `note` is called with the reason.
///
/// # Errors
/// The system's, or `EADDRINUSE` if others have taken all names.
pub fn find(
    meet: &str,
    base: &Path,
    note: impl FnOnce(&str),
) -> rustix::io::Result<NameServerEndpoint> {
    private::find(meet, base).or_else(|reason| {
        note(&reason.to_string());
        find_abstract(meet)
    })
}

/// Returns the directory for [`find`]: the one in which an agent of the user would listen. `runtime` is the user's
/// `XDG_RUNTIME_DIR`, which a process outside of the session may not have.
pub fn base(user: UserId, runtime: Option<&OsStr>) -> PathBuf {
    let of_session = PathBuf::from(format!("/run/user/{}", user.0));
    let runtime = match runtime {
        None if of_session.is_dir() => Some(of_session.as_os_str()),
        runtime => runtime,
    };
    let socket = places::agent_socket(user, runtime);
    socket.parent().map_or_else(PathBuf::new, Path::to_owned)
}

fn find_abstract(meet: &str) -> rustix::io::Result<NameServerEndpoint> {
    let user = rustix::process::geteuid();
    for number in 0..NAMES {
        let name = format!("wireup-rendezvous-{}-{number}-{meet}", user.as_raw());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        for _ in 0..RACES {
            match connect_within(&address, ACCEPT_LIMIT) {
                Ok(connection) if socket_peercred(&connection)?.uid == user => {
                    return Ok(NameServerEndpoint::There(connection));
                }
                // Another user has bound the name.
                Ok(_) | Err(Errno::TIMEDOUT) => break,
                Err(Errno::CONNREFUSED) => {}
                Err(errno) => return Err(errno),
            }
            let listener = socket()?;
            match bind(&listener, &address) {
                Ok(()) => {}
                // Another process has bound it meanwhile.
                Err(Errno::ADDRINUSE) => continue,
                Err(errno) => return Err(errno),
            }
            listen(&listener, BACKLOG)?;
            let connection = connect_within(&address, ACCEPT_LIMIT)?;
            return Ok(NameServerEndpoint::New {
                connection,
                listener,
            });
        }
    }
    Err(Errno::ADDRINUSE)
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Connection of one launch to the name server.
struct LaunchConnection {
    link: LocalLink,
    /// Whether its request has arrived.
    request_received: bool,
}

/// State of the process.
struct NameServerProcess {
    poll: Poll,
    listener: OwnedFd,
    started: Instant,
    rendezvous: NameServer,
    callers: BTreeMap<ClientId, LaunchConnection>,
    last_client: u32,
    /// Connections of launches that have just left, dropped after the listening socket: when the last launch sees its own
    /// connection closed, nothing is left of the process.
    closing_links: Vec<LocalLink>,
}

/// Starts the process in a session of its own and without an environment, for launches without a guard. The caller does
/// not reap it.
///
/// # Errors
/// When the system cannot start it.
pub(crate) fn start(listener: impl AsFd) -> io::Result<()> {
    let high = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, FIRST_FREE);
    let listener = high(listener.as_fd())?;
    let null = high(open_null()?.as_fd())?;
    let null = null.as_fd();
    let argv = [c"wireup", c"rendezvous"].map(CStr::to_owned);
    let command = ChildCommand {
        cwd: Some(c"/"),
        descriptors: &[
            (null, 0),
            (null, 1),
            (null, 2),
            (listener.as_fd(), LISTENER),
        ],
        ..ChildCommand::new(c"/proc/self/exe", &argv)
    };
    drop(ProcessSpawner::default().spawn(&command)?);
    Ok(())
}

/// Serves until the last launch has disconnected.
///
/// # Errors
/// When there is no listening socket, or waiting fails.
pub fn serve() -> rustix::io::Result<()> {
    // SAFETY: the process that starts this one passes this descriptor, and nothing here has opened
    // or taken any before; if there is none, the next call fails.
    let listener = unsafe { BorrowedFd::borrow_raw(LISTENER) };
    rustix::net::sockopt::socket_type(listener)?;
    // SAFETY: it is known to be open, and no other code uses it.
    let listener = unsafe { OwnedFd::from_raw_fd(LISTENER) };
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC)?;
    let flags = rustix::fs::fcntl_getfl(&listener)?;
    rustix::fs::fcntl_setfl(&listener, flags | rustix::fs::OFlags::NONBLOCK)?;
    signals::block_for_ranks();
    // The name is informative; failure does not matter.
    let _ = rustix::thread::set_name(wireup_core::name_server::PROCESS_NAME);
    let poll = Poll::new()?;
    poll.add(&listener, PollToken::new(PollSource::Callers, 0))?;
    let user = UserId(rustix::process::geteuid().as_raw());
    let mut process = NameServerProcess {
        poll,
        listener,
        started: Instant::now(),
        rendezvous: NameServer::new(user),
        callers: BTreeMap::new(),
        last_client: 0,
        closing_links: Vec::new(),
    };
    process.run()
}

impl NameServerProcess {
    fn now(&self) -> Moment {
        Moment(self.started.elapsed())
    }

    fn run(&mut self) -> rustix::io::Result<()> {
        let mut ready = Vec::new();
        loop {
            let first = (self.last_client == 0).then_some(FIRST);
            let deadline = self.rendezvous.next_deadline().map(|at| at.0).or(first);
            let wait = deadline.map(|at| at.saturating_sub(self.now().0));
            self.poll.wait(wait, &mut ready)?;
            let mut out = Vec::new();
            for event in &ready {
                match event.token.source {
                    PollSource::Callers => self.accept(),
                    _ => self.read(*event, &mut out),
                }
            }
            self.rendezvous.tick(self.now(), &mut out);
            self.send(out);
            // A client may have connected before the last one left.
            let is_over =
                self.callers.is_empty() && (self.last_client > 0 || self.now().0 >= FIRST);
            if is_over {
                let hidden = private::hide(&self.listener);
                self.accept();
                if self.callers.is_empty() {
                    hidden.iter().for_each(UnlinkedSocket::remove);
                    return Ok(());
                }
            }
            self.closing_links.clear();
        }
    }

    fn accept(&mut self) {
        while let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC) {
            let own = rustix::process::geteuid();
            if socket_peercred(&socket).is_ok_and(|peer| peer.uid == own) {
                self.last_client += 1;
                let token = PollToken::new(PollSource::Rendezvous, self.last_client);
                // Without descriptors or memory no client is accepted.
                if let Ok(link) = LocalLink::new(socket, FrameAddress::EveryNode, token, &self.poll)
                {
                    let id = ClientId(u64::from(self.last_client));
                    self.callers.insert(
                        id,
                        LaunchConnection {
                            link,
                            request_received: false,
                        },
                    );
                }
            }
        }
    }

    fn read(&mut self, event: PollEvent, out: &mut Vec<Reply>) {
        let id = ClientId(u64::from(event.token.index));
        let now = self.now();
        let Some(caller) = self.callers.get_mut(&id) else {
            return;
        };
        let mut messages = Vec::new();
        let mut goes_on = caller.link.turn(event, &self.poll, &mut messages).is_ok();
        for (envelope, body) in messages {
            goes_on &= match (caller.request_received, envelope.class) {
                (false, FrameClass::Control) => {
                    caller.request_received = meets(&mut caller.link, &body, &self.poll);
                    if caller.request_received {
                        self.rendezvous.joined(id, out);
                    }
                    caller.request_received
                }
                (true, FrameClass::Carried) => match decode::<NameServerCommand>(&body) {
                    Ok(message) => {
                        self.rendezvous.on_command(id, message, now, out);
                        true
                    }
                    Err(_) => false,
                },
                _ => false,
            };
        }
        if !goes_on {
            let caller = self.callers.remove(&id);
            self.closing_links.extend(caller.map(|caller| caller.link));
            self.rendezvous.on_launch_left(id, out);
        }
    }

    fn send(&mut self, out: Vec<Reply>) {
        for (id, message) in out {
            if let Some(caller) = self.callers.get_mut(&id) {
                let to = FrameAddress::Launcher;
                caller
                    .link
                    .send(to, FrameClass::Carried, &message, &self.poll);
            }
        }
    }
}

/// Whether a launch's first message is a request to the name server in a supported version.
fn meets(link: &mut LocalLink, body: &[u8], poll: &Poll) -> bool {
    let reason = match decode(body) {
        // The name scope is that of the socket.
        Ok(AgentRequest::Meet {
            version: VERSION, ..
        }) => return true,
        Ok(AgentRequest::Meet { version, .. }) => format!(
            "it was started by a wireup {} with link version {VERSION}, and this one has version \
             {version}; wait for that one's launches to end, or use the same wireup",
            env!("CARGO_PKG_VERSION")
        ),
        _ => "this process accepts only launches that request the name server".to_owned(),
    };
    let refused = AgentReport::Refused { reason };
    link.send(FrameAddress::Launcher, FrameClass::Control, &refused, poll);
    false
}
