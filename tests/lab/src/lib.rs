//! Several hosts on one machine, for tests of what runs on many.
//!
//! A [`Lab`] is a number of [`Host`]s on a network of their own. Each has a network namespace (`lo`
//! and `eth0`), its own name, processes, System V objects, `/proc`, `/sys`, `/tmp`, `/run`,
//! `/dev/shm` and `/etc/hosts`; all other files are the machine's, as on a cluster with one file
//! system. Hosts can be cut off from each other, paused and crashed, and their network made slow.
//!
//! ```text
//!  the lab's owner ──pipe──▶ process 1 of each host: ends when the owner has ended, and with it
//!       │                                            everything that runs there
//!       └─ holds ──▶ network namespace of the bridge: gone when no process holds it
//! ```
//!
//! Nothing has a name on the machine: no directory, no interface, no cgroup, no named namespace. So
//! labs do not disturb each other, may use the same addresses, and leave nothing, also when their
//! owner is killed.
//!
//! Needs root with `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`, and iproute2: see [`available`].

mod command;
mod host;
mod network;
mod process;
mod remote;
mod service_manager;
mod slow;
mod start;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

pub use command::Command;
pub use host::Host;
pub use process::Process;
pub use remote::{UNREACHABLE, remote_shell};
pub use service_manager::ServiceManager;

use network::Fabric;
use start::Starting;

/// The most hosts a lab may have: their addresses share three numbers.
pub const MAX_HOSTS: usize = 250;

/// Error: a lab cannot be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The number of hosts is not between 1 and [`MAX_HOSTS`].
    #[error("a lab has 1 to {MAX_HOSTS} hosts, not {0}")]
    Count(usize),
    /// The machine refused something.
    #[error("{what}: {source}")]
    System {
        /// Operation in which the error occurred.
        what: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A program of iproute2 refused something.
    #[error("{program}: {message}")]
    Tool {
        /// Name of the program that failed.
        program: &'static str,
        /// Error output of the program.
        message: String,
    },
    /// The host has crashed.
    #[error("{0} has crashed")]
    Crashed(String),
}

impl Error {
    fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            what: what.into(),
            source: source.into(),
        }
    }
}

/// Hosts on a network of their own; gone, with everything that runs on them, when dropped.
#[derive(Debug)]
pub struct Lab {
    hosts: Vec<Host>,
    fabric: Fabric,
}

/// Configuration of a lab.
#[derive(Clone, Debug)]
pub struct Builder {
    count: usize,
    pub(crate) shared: Vec<PathBuf>,
    pub(crate) files: Vec<(PathBuf, Vec<u8>)>,
}

impl Builder {
    /// Gives each host this in place of a file of the machine's, `/etc/passwd` for instance.
    #[must_use]
    pub fn file(mut self, path: impl AsRef<Path>, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((path.as_ref().to_owned(), content.into()));
        self
    }

    /// Keeps a directory of the machine visible although it is below one that each host has of its
    /// own, such as `/tmp`. Others are visible anyway.
    #[must_use]
    pub fn share(mut self, directory: impl AsRef<Path>) -> Self {
        self.shared.push(directory.as_ref().to_owned());
        self
    }

    /// Starts the hosts and connects them.
    ///
    /// # Errors
    /// When the machine does not permit it.
    pub fn start(&self) -> Result<Lab, Error> {
        if !(1..=MAX_HOSTS).contains(&self.count) {
            return Err(Error::Count(self.count));
        }
        let names: Vec<String> = (1..=self.count).map(|i| format!("node{i:02}")).collect();
        let (life_read, life) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| Error::system("pipe", error))?;
        // All at once: making namespaces takes the kernel a while.
        let starting: Vec<Starting> = names
            .iter()
            .map(|name| start::start(name, &names, self, &life_read))
            .collect::<Result<_, _>>()?;
        let fabric = Fabric::new()?;
        let life = std::sync::Arc::new(life);
        let hosts: Vec<Host> = starting
            .into_iter()
            .enumerate()
            .map(|(index, starting)| {
                let (init, own) = starting.finish()?;
                Ok(Host::new(index, init, own, &life))
            })
            .collect::<Result<_, Error>>()?;
        fabric.connect(&hosts)?;
        Ok(Lab { hosts, fabric })
    }
}

impl Lab {
    /// A lab of this many hosts: `node01`, `node02` and so on.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub fn new(count: usize) -> Result<Self, Error> {
        Self::builder(count).start()
    }

    /// Starts the configuration of a lab.
    #[must_use]
    pub fn builder(count: usize) -> Builder {
        Builder {
            count,
            shared: Vec::new(),
            files: Vec::new(),
        }
    }

    /// All hosts, in order.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host of that number, from 0.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// The host of that name, if there is one.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name() == name)
    }

    /// Silently loses all that two hosts send to each other from now on; connections stay open.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn partition(&self, one: &Host, other: &Host) -> Result<(), Error> {
        network::set_reachable(one, other, false)?;
        network::set_reachable(other, one, false)
    }

    /// Silently loses what one host sends to the other from now on, and not what the other sends, until
    /// [`Lab::heal`].
    ///
    /// # Errors
    /// When the system refuses.
    pub fn cut(&self, from: &Host, to: &Host) -> Result<(), Error> {
        network::set_reachable(from, to, false)
    }

    /// Cuts a host off from all others, see [`Lab::partition`].
    ///
    /// # Errors
    /// When the system refuses.
    pub fn isolate(&self, host: &Host) -> Result<(), Error> {
        let others = self.hosts.iter().filter(|o| o.name() != host.name());
        others
            .into_iter()
            .try_for_each(|other| self.partition(host, other))
    }

    /// Undoes [`Lab::partition`] of two hosts.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn heal(&self, one: &Host, other: &Host) -> Result<(), Error> {
        network::set_reachable(one, other, true)?;
        network::set_reachable(other, one, true)
    }

    /// Undoes every [`Lab::partition`] and [`Lab::isolate`].
    ///
    /// # Errors
    /// When the system refuses.
    pub fn heal_all(&self) -> Result<(), Error> {
        for (index, one) in self.hosts.iter().enumerate() {
            for other in &self.hosts[index + 1..] {
                self.heal(one, other)?;
            }
        }
        Ok(())
    }

    /// Delays every frame by `delay` from now on, in either direction, and loses `percent_lost` of them; with
    /// zeros the network is as at first. What is on its way is lost. Hosts that have crashed may not be among them.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn slow_down(&self, delay: Duration, percent_lost: u8) -> Result<(), Error> {
        let loss = percent_lost;
        let weather = slow::Weather { delay, loss };
        self.fabric.set_weather(self.hosts.len(), weather)
    }

    /// Pulls a host's cable: `eth0` loses its carrier.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn link_down(&self, host: &Host) -> Result<(), Error> {
        self.fabric.set_link(host, false)
    }

    /// Plugs a host's cable in again.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn link_up(&self, host: &Host) -> Result<(), Error> {
        self.fabric.set_link(host, true)
    }

    /// Ends a host as a loss of power does: its peers see nothing but silence. It does not come
    /// back. Returns when nothing runs there any more.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn crash(&self, host: &Host) -> Result<(), Error> {
        // The link goes first, or the kernel would close all its connections in order.
        self.link_down(host)?;
        host.kill_init();
        Ok(())
    }
}

/// Whether this machine permits labs; tried once for each process.
///
/// # Errors
/// Why it does not, for people.
pub fn available() -> Result<(), String> {
    static TRIED: OnceLock<Result<(), String>> = OnceLock::new();
    let tried = TRIED.get_or_init(|| {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN".to_owned());
        }
        Lab::new(1).map(drop).map_err(|error| {
            format!("needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN, and iproute2: {error}")
        })
    });
    tried.clone()
}
