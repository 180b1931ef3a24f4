//! Waiting for many descriptors: a typed face of level-triggered epoll.
//!
//! Level-triggered, so that a driver may stop reading a source at any point (backpressure) and
//! find it again at the next wait.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::event::{PollFd, Timespec};
use rustix::io::Errno;

/// Waits for this time. A signal that is handled ends the wait early.
pub fn pause(time: Duration) {
    let _ = rustix::event::poll(&mut [], Some(&timespec(time)));
}

/// Waits for events of a few descriptors. A signal that is handled ends the wait early.
///
/// # Errors
/// The system's error.
pub fn wait_for_events(
    fds: &mut [PollFd<'_>],
    timeout: Option<&Timespec>,
) -> rustix::io::Result<()> {
    match rustix::event::poll(fds, timeout) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Converts a time to the system's form.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// Owner of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum PollSource {
    /// Signals sent to the launcher.
    Signals = 0,
    /// Another thread has something for the loop.
    Wake,
    /// PMI socket of the rank with this job-wide index.
    Pmi,
    /// Pidfd of a rank.
    RankExit,
    /// Standard output of a rank.
    Stdout,
    /// Standard error of a rank.
    Stderr,
    /// Control channel of a node's sidecar.
    Control,
    /// Upcall channel of a node's sidecar.
    Upcall,
    /// Pidfd of a node's sidecar.
    SidecarExit,
    /// Output of a node's sidecar.
    SidecarOutput,
    /// Connection to an agent.
    Link,
    /// Pipe that feeds a rank's standard input.
    Feed,
    /// Pipe with standard input on its way to other hosts.
    Input,
    /// Orders to the launcher.
    Orders,
    /// Connection to the rendezvous of the user's launches.
    Rendezvous,
    /// Listener for connections of other commands and launches.
    Callers,
    /// Pipe that processes fill for a rank.
    Pushed,
    /// Connection to the allocator, an external process.
    Allocator,
    /// Results of a debugger for ranks; by the number of the request.
    Inspection,
    /// Requests of other commands; by the number of the connection, 0 for new ones.
    Requests,
    /// Pipe to the tool that has started the launcher.
    Director,
    /// Listener for PMIx tools while there is no sidecar.
    Tools,
}

const SOURCES: [PollSource; 22] = [
    PollSource::Signals,
    PollSource::Wake,
    PollSource::Pmi,
    PollSource::RankExit,
    PollSource::Stdout,
    PollSource::Stderr,
    PollSource::Control,
    PollSource::Upcall,
    PollSource::SidecarExit,
    PollSource::SidecarOutput,
    PollSource::Link,
    PollSource::Feed,
    PollSource::Input,
    PollSource::Orders,
    PollSource::Rendezvous,
    PollSource::Callers,
    PollSource::Pushed,
    PollSource::Allocator,
    PollSource::Inspection,
    PollSource::Requests,
    PollSource::Director,
    PollSource::Tools,
];

/// A source and the number of the rank or node it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollToken {
    pub source: PollSource,
    /// Rank or node number; 0 where there is only one.
    pub index: u32,
}

impl PollToken {
    /// Makes a token for `source` number `index`.
    pub fn new(source: PollSource, index: u32) -> Self {
        Self { source, index }
    }

    fn data(self) -> EventData {
        EventData::new_u64((self.source as u64) << 32 | u64::from(self.index))
    }

    fn from_data(data: EventData) -> Self {
        let raw = data.u64();
        Self {
            source: SOURCES[(raw >> 32) as usize],
            index: raw as u32,
        }
    }
}

/// Readiness of one descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollEvent {
    pub token: PollToken,
    /// Whether there is data, an end of file or an error to read.
    pub readable: bool,
    /// Whether there is room to write.
    pub writable: bool,
}

/// Readiness for which a descriptor is polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// Nothing: reading is paused. An error or hang-up is still reported by the system.
    Paused,
    Read,
    Write,
    /// Data to read and room to write.
    ReadWrite,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Self::Paused => EventFlags::empty(),
            Self::Read => EventFlags::IN,
            Self::Write => EventFlags::OUT,
            Self::ReadWrite => EventFlags::IN | EventFlags::OUT,
        }
    }
}

/// The set of watched descriptors. A clone is the same set: one of them waits, and the others add to it.
#[derive(Clone)]
pub struct Poll {
    epoll: Arc<OwnedFd>,
    events: Vec<epoll::Event>,
}

/// Events taken from the system per wait: enough that a burst of ranks costs few calls.
const BATCH: usize = 256;

impl fmt::Debug for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poll")
            .field("epoll", &self.epoll)
            .finish_non_exhaustive()
    }
}

impl Poll {
    /// Creates an empty set of descriptors.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            epoll: Arc::new(epoll::create(CreateFlags::CLOEXEC)?),
            events: Vec::new(),
        })
    }

    /// Adds an eventfd by which other threads wake the loop.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn add_wake(&self) -> rustix::io::Result<Arc<OwnedFd>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.add(&wake, PollToken::new(PollSource::Wake, 0))?;
        Ok(Arc::new(wake))
    }

    /// Watches a descriptor for reading. Remove it before closing it: a process that is being started holds duplicates
    /// of all descriptors until it execs, and until then the system continues to report a closed one.
    ///
    /// # Errors
    /// When the descriptor cannot be watched (a regular file) or limits are exhausted.
    pub fn add(&self, fd: impl AsFd, token: PollToken) -> rustix::io::Result<()> {
        epoll::add(&*self.epoll, fd, token.data(), EventFlags::IN)
    }

    /// Changes what a watched descriptor is watched for.
    ///
    /// # Errors
    /// When it is not watched.
    pub fn set(
        &self,
        fd: impl AsFd,
        token: PollToken,
        interest: Interest,
    ) -> rustix::io::Result<()> {
        epoll::modify(&*self.epoll, fd, token.data(), interest.flags())
    }

    /// Stops watching a descriptor.
    ///
    /// # Errors
    /// When it is not watched.
    pub fn remove(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        epoll::delete(&*self.epoll, fd)
    }

    /// Waits until something is ready or the time is over, and fills `ready`.
    ///
    /// # Errors
    /// The system's error, except an interruption, which is an empty result.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        ready: &mut Vec<PollEvent>,
    ) -> rustix::io::Result<()> {
        ready.clear();
        self.events.clear();
        self.events.reserve(BATCH);
        let timeout = timeout.map(timespec);
        match epoll::wait(
            &*self.epoll,
            spare_capacity(&mut self.events),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        ready.extend(self.events.iter().map(|event| {
            let flags = event.flags;
            PollEvent {
                token: PollToken::from_data(event.data),
                readable: flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR),
                writable: flags.intersects(EventFlags::OUT | EventFlags::ERR),
            }
        }));
        Ok(())
    }
}
