//! The process that keeps this launch's names outside of wireup (`--names`): started with the first request that other launches
//! may have to do with, it takes the place of the rendezvous for names. Launches meet at the rendezvous all the same.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::Controller;
use super::rendezvous::Lost;
use crate::failure::AnyError;
use crate::inspect::agent_file;
use crate::sys::descriptors::FIRST_FREE;
use crate::sys::local_link::LinkEnd;
use crate::sys::poll::{Source, Token};
use crate::sys::spawn::{ChildCommand, Spawner};
use wireup_core::job::clock::Moment;
use wireup_core::job::name_backend::NameBackend;
use wireup_core::link::control::{ToAgent, VERSION};
use wireup_core::link::frame::{Address, Class};
use wireup_core::link::liveness::SILENCE;
use wireup_core::names::request::{NameRequest, Persistence};
use wireup_core::names::shared::ToShared;
use wireup_core::rendezvous::STORE_COMMAND;
use wireup_core::rendezvous::message::ToRendezvous;

/// The variable with the default of `--names`.
const VARIABLE: &str = "WIREUP_NAMES";

/// The number of its connection, among those of [`Source::Rendezvous`].
pub(super) const STORE: u32 = 1;

/// Variables that the process gets, or their beginnings: how the stores are reached, and where their settings are.
const PASSED: [&str; 5] = [
    "HOME",
    "XDG_CONFIG_HOME",
    "ETCDCTL_",
    "LDAP",
    "WIREUP_LDAP_",
];

impl Controller {
    /// Which store keeps names.
    pub(super) fn names_backend(&self) -> Result<NameBackend, Lost> {
        if let Some(backend) = &self.plan.spec.interface.names {
            return Ok(backend.clone());
        }
        match self.plan.inheritance.variable(VARIABLE) {
            None => Ok(NameBackend::Agents),
            Some(text) => {
                let parsed = text.to_string_lossy().parse();
                parsed.map_err(|error| Lost::Backend(VARIABLE, error))
            }
        }
    }

    /// Has names stay after their publishers, if the user wants that (`--keep-names`).
    pub(super) fn keep_names(&self, message: &mut ToRendezvous) {
        let Some(seconds) = self.plan.spec.interface.keep_names else {
            return;
        };
        if let ToRendezvous::Store(ToShared::Ask { request, .. } | ToShared::Keep { request, .. }) =
            message
            && let NameRequest::Publish {
                persistence,
                limits,
                ..
            } = request
            // Such a value is part of a connection between jobs and no name.
            && *persistence != Persistence::FirstRead
        {
            *persistence = Persistence::Indefinite;
            let kept = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
            limits.expires = limits.expires.or(kept);
        }
    }

    /// Starts the process.
    pub(super) fn start_name_store(&mut self, backend: &NameBackend) -> Result<LinkEnd, Lost> {
        let name = self.meeting_name()?;
        let failed = |error: AnyError| Lost::NoStore(backend.clone(), error);
        let program = agent_file::find(agent_file::AGENT).map_err(|error| failed(error.into()))?;
        let word = |bytes: &[u8]| CString::new(bytes).map_err(|error| failed(error.into()));
        let argv = [
            word(b"wireup-agent")?,
            word(STORE_COMMAND.as_bytes())?,
            word(backend.to_string().as_bytes())?,
            word(name.as_bytes())?,
        ];
        let program = word(program.as_os_str().as_bytes())?;
        let passed = |name: &[u8]| {
            PASSED
                .iter()
                .any(|beginning| name.starts_with(beginning.as_bytes()))
        };
        let variables = self.plan.inheritance.vars.iter();
        let variables = variables.filter(|(name, _)| passed(name.as_bytes()));
        let env: Result<Vec<CString>, Lost> = variables
            .map(|(name, value)| word(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
            .collect();
        let io_failed = |error: io::Error| failed(error.into());
        let high = |fd: OwnedFd| -> io::Result<OwnedFd> {
            Ok(rustix::io::fcntl_dupfd_cloexec(fd, FIRST_FREE)?)
        };
        let pair = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let (own, other) = pair.map_err(|errno| io_failed(errno.into()))?;
        let other = high(other).map_err(io_failed)?;
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.and_then(|file| high(file.into())).map_err(io_failed)?;
        let (null, other) = (null.as_fd(), other.as_fd());
        let command = ChildCommand {
            cwd: Some(c"/"),
            env: &[&env?],
            descriptors: &[(other, 0), (null, 1), (null, 2)],
            ..ChildCommand::new(&program, &argv)
        };
        // Its end is seen by its connection, and it may live longer than this process.
        let started = Spawner::new().spawn(&command);
        drop(started.map_err(|error| failed(error.into()))?);
        let now = Moment(self.now());
        let poll = self.backend.poll();
        let token = Token::new(Source::Rendezvous, STORE);
        let mut link = LinkEnd::new(own, Address::Launcher, token, poll)?;
        let meet = ToAgent::Meet {
            version: VERSION,
            name,
        };
        link.send(Address::EveryNode, Class::Control, &meet, poll);
        link.watch(SILENCE, false, now);
        Ok(link)
    }
}
