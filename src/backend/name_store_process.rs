//! Process that accesses an external name store (`--names`), and the client of any store for `wireup names`.

use std::ffi::{CString, OsString};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use wireup_core::executables::AGENT;

use super::local_agent;
use super::name_server_process::{self, NameServerEndpoint};
use crate::inspect::agent_file;
use crate::plan::rank_env::entry;
use wireup_core::failure::{AnyError, CommandError};
use wireup_core::job::ids::{AppNum, NodeId, Nspace, Rank, UserId};
use wireup_core::job::name_store_kind::NameStoreKind;
use wireup_core::job::proc::Proc;
use wireup_core::link::agent_protocol::{AgentReport, AgentRequest, VERSION};
use wireup_core::link::decode;
use wireup_core::link::frame::{FrameAddress, FrameClass, FrameReader};
use wireup_core::link::reassembly::{Envelope, Reassembly, write};
use wireup_core::name_server::STORE_COMMAND;
use wireup_core::name_server::message::{NameServerCommand, NameServerReport};
use wireup_core::names::name_server_requests::{NameRequestId, NameServerRequest};
use wireup_core::names::request::{NameReply, NameRequest, NameRequester};
use wireup_sys::descriptors::{FIRST_FREE, open_null};
use wireup_sys::spawn::{ChildCommand, ProcessSpawner};

/// Variables that the process inherits, or prefixes of them: addresses and settings of the stores.
const PASSED: [&str; 7] = [
    "HOME",
    "XDG_CONFIG_HOME",
    "ETCDCTL_",
    "WIREUP_ETCD_",
    "LDAPBINDDN",
    "LDAPTLS_CACERT",
    "WIREUP_LDAP_",
];

/// Time limit of a store's reply to `wireup names`.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of attempts to find a name server when the found one has ended.
const ATTEMPTS: u32 = 8;

/// Starts the process and returns the connection to it, which shows its end. It may outlive this process.
pub(crate) fn start(
    backend: &NameStoreKind,
    meet: &str,
    variables: &[(OsString, OsString)],
) -> Result<OwnedFd, AnyError> {
    let program = agent_file::find(AGENT)?;
    let word = |bytes: &[u8]| CString::new(bytes);
    let argv = [
        word(b"wireup-agent")?,
        word(STORE_COMMAND.as_bytes())?,
        word(backend.to_string().as_bytes())?,
        word(meet.as_bytes())?,
    ];
    let program = word(program.as_os_str().as_bytes())?;
    let passed = |name: &[u8]| {
        PASSED
            .iter()
            .any(|front| name.starts_with(front.as_bytes()))
    };
    let variables = variables.iter().filter(|(name, _)| passed(name.as_bytes()));
    let env: Vec<CString> = variables
        .filter_map(|(name, value)| entry(name, value))
        .collect();
    let high = |fd: OwnedFd| -> io::Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(fd, FIRST_FREE)?)
    };
    let (own, other) = UnixStream::pair()?;
    let other = high(other.into())?;
    let null = high(open_null()?)?;
    let (null, other) = (null.as_fd(), other.as_fd());
    let command = ChildCommand {
        cwd: Some(c"/"),
        env: &[&env],
        descriptors: &[(other, 0), (null, 1), (null, 2)],
        ..ChildCommand::new(&program, &argv)
    };
    drop(ProcessSpawner::default().spawn(&command)?);
    Ok(own.into())
}

/// Connection of `wireup names` to a store.
#[derive(Debug)]
pub(crate) struct NameStoreClient {
    backend: NameStoreKind,
    socket: UnixStream,
    frames: FrameReader,
    parts: Reassembly,
}

impl NameStoreClient {
    /// Connects to a store: to the name server as launches would find it, or to a process for an external store.
    ///
    /// # Errors
    /// [`CommandError`]
    pub(crate) fn open(backend: &NameStoreKind, meet: &str) -> Result<Self, CommandError> {
        let mut attempts = 0;
        loop {
            let failed = match Self::try_open(backend, meet) {
                Ok(connection) => return Ok(connection),
                Err(failed) => failed,
            };
            attempts += 1;
            // The name server may be ending with its last launch.
            let came_late = *backend == NameStoreKind::Agents && failed.is::<io::Error>();
            if !came_late || attempts == ATTEMPTS {
                return Err(CommandError::request(format!(
                    "--names {backend}: {failed}"
                )));
            }
        }
    }

    fn try_open(backend: &NameStoreKind, meet: &str) -> Result<Self, AnyError> {
        let variables: Vec<_> = std::env::vars_os().collect();
        let socket = match backend {
            NameStoreKind::Agents => rendezvous_of_user(meet)?,
            _ => start(backend, meet, &variables)?,
        };
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut connection = Self {
            backend: backend.clone(),
            socket,
            frames: FrameReader::default(),
            parts: Reassembly::default(),
        };
        let meet = AgentRequest::Meet {
            version: VERSION,
            name: meet.to_owned(),
        };
        connection.write(FrameClass::Control, &meet)?;
        while connection.read_report()? != NameServerReport::Welcome {}
        Ok(connection)
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// [`CommandError`]
    pub(crate) fn send_request(&mut self, request: NameRequest) -> Result<NameReply, CommandError> {
        let nspace = Nspace::new("wireup-names").expect("a short word");
        let who = NameRequester {
            proc: Proc::new(nspace, Rank(0)),
            node: NodeId(0),
            // The receiver knows the user from the connection.
            user: UserId(rustix::process::geteuid().as_raw()),
            app: AppNum(0),
            app_size: 1,
        };
        // One request at a time.
        let ask = NameServerRequest::Ask {
            ticket: NameRequestId::NOBODY,
            who,
            request,
        };
        let answer = self
            .write(FrameClass::Carried, &NameServerCommand::Store(ask))
            .map_err(AnyError::from)
            .and_then(|()| {
                loop {
                    if let NameServerReport::Store(answer) = self.read_report()? {
                        return Ok(answer.answer);
                    }
                }
            });
        let backend = &self.backend;
        answer.map_err(|error| CommandError::request(format!("--names {backend}: {error}")))
    }

    /// Reads the next message.
    fn read_report(&mut self) -> Result<NameServerReport, AnyError> {
        loop {
            while let Some(frame) = self.frames.next_frame()? {
                match self.parts.take(frame)? {
                    Some((envelope, body)) if envelope.class == FrameClass::Carried => {
                        return Ok(decode(&body)?);
                    }
                    Some((envelope, body)) if envelope.class == FrameClass::Control => {
                        return Err(match decode(&body) {
                            Ok(AgentReport::Refused { reason }) => reason.into(),
                            _ => "unexpected reply".into(),
                        });
                    }
                    _ => {}
                }
            }
            let mut bytes = vec![0; 64 * 1024];
            match self.socket.read(&mut bytes)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                count => self.frames.push(&bytes[..count]),
            }
        }
    }

    fn write(&mut self, class: FrameClass, message: &impl serde::Serialize) -> io::Result<()> {
        let mut bytes = Vec::new();
        let envelope = Envelope {
            to: FrameAddress::EveryNode,
            from: FrameAddress::Launcher,
            class,
        };
        write(envelope, message, &mut bytes);
        self.socket.write_all(&bytes)
    }
}

/// Connects to the name server that a launch of this process would find.
fn rendezvous_of_user(meet: &str) -> io::Result<OwnedFd> {
    let user = UserId(rustix::process::geteuid().as_raw());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR");
    if let Some(socket) = local_agent::try_find(None, user, runtime.as_deref()) {
        return Ok(socket);
    }
    let base = name_server_process::base(user, runtime.as_deref());
    match name_server_process::find(meet, &base, |_| {})? {
        NameServerEndpoint::There(socket) => Ok(socket),
        // A name server that is started here ends with this process.
        NameServerEndpoint::New {
            connection,
            listener,
        } => {
            name_server_process::start(&listener)?;
            Ok(connection)
        }
    }
}
