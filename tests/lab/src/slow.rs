//! A slow network that loses frames: takes the place of the bridge.
//!
//! A thread in the bridge's namespace reads all frames at the bridge's ends of the cables, keeps them for a while, and
//! writes them to the cable of whom they are for. It stands for the kernel's own delay (`netem`), which is not
//! part of every kernel. What a sender leaves to its interface to divide is lost as a whole.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::start::enter;

/// Length that exceeds a frame of several segments that the sender leaves to its interface to
/// divide.
const LONGEST: usize = 1 << 17;

/// Room for frames that arrive while others are passed on.
const BUFFER: libc::c_int = 8 << 20;

/// `struct virtio_net_hdr`: describes checksums and segments that are left to the interface. Passed on as it is.
const HEADER: usize = 10;

/// Delay and loss that the network applies to each frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Between one host and the next.
    pub(crate) delay: Duration,
    /// Percentage of frames that are lost.
    pub(crate) loss: u8,
}

/// The thread; ends when dropped, and loses what is on its way.
#[derive(Debug)]
pub(crate) struct SlowNetwork {
    thread: Option<JoinHandle<()>>,
    life: Option<OwnedFd>,
}

impl SlowNetwork {
    /// Connects the interfaces `w0` to `wN` of that namespace. Frames for a hardware address that ends with
    /// the number of a host, from 1, go to that host; those for several go to all.
    pub(crate) fn start(
        namespace: Arc<OwnedFd>,
        hosts: usize,
        weather: Weather,
    ) -> io::Result<Self> {
        // Made there, they stay there.
        let opened = std::thread::spawn(move || {
            enter(namespace.as_fd(), libc::CLONE_NEWNET)?;
            (0..hosts)
                .map(|host| open(&format!("w{host}")))
                .collect::<io::Result<Vec<_>>>()
        });
        let cables = opened.join().expect("it does not panic")?;
        let (end, life) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let thread = std::thread::Builder::new().name("lab-slow".to_owned());
        let thread = thread.spawn(move || Switch::new(cables, weather).run(&end))?;
        Ok(Self {
            thread: Some(thread),
            life: Some(life),
        })
    }
}

impl Drop for SlowNetwork {
    fn drop(&mut self) {
        drop(self.life.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket for all frames that arrive at an interface of this thread's namespace; what is written to it leaves there.
fn open(interface: &str) -> io::Result<OwnedFd> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: makes a descriptor, which no other code has.
    let socket = unsafe {
        match libc::socket(libc::AF_PACKET, kind, 0) {
            -1 => return Err(io::Error::last_os_error()),
            socket => OwnedFd::from_raw_fd(socket),
        }
    };
    let set = |level, option, value: libc::c_int| {
        let length = size_of_val(&value) as libc::socklen_t;
        let value = (&raw const value).cast();
        // SAFETY: the value is an integer that outlives the call, and the length is its own.
        match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER)?;
    let index = rustix::net::netdevice::name_to_index(&socket, interface)?;
    // SAFETY: all zeros is a valid one.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index as libc::c_int;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is of the family's type, outlives the call, and the length is its own.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A frame, and the cable for which it is.
type OnTheWay = (usize, Arc<[u8]>);

/// State of the thread that forwards frames.
struct Switch {
    cables: Vec<OwnedFd>,
    weather: Weather,
    /// By when they are to arrive, in the order in which they came.
    on_the_way: BTreeMap<(Instant, u64), OnTheWay>,
    count: u64,
    /// State of the generator that selects lost frames: the same for each network.
    state: u64,
}

impl Switch {
    fn new(cables: Vec<OwnedFd>, weather: Weather) -> Self {
        Self {
            cables,
            weather,
            on_the_way: BTreeMap::new(),
            count: 0,
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }

    fn run(mut self, end: &OwnedFd) {
        let mut frame = vec![0; LONGEST];
        loop {
            self.deliver();
            let next = self.on_the_way.first_key_value();
            let wait = next.map(|((due, _), _)| {
                let left = due.saturating_duration_since(Instant::now());
                Timespec::try_from(left).expect("no delay is that long")
            });
            let cables = self.cables.iter().map(|cable| (cable, PollFlags::IN));
            let all = cables.chain([(end, PollFlags::empty())]);
            let mut polled: Vec<_> = all.map(|(fd, flags)| PollFd::new(fd, flags)).collect();
            match rustix::event::poll(&mut polled, wait.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => panic!("poll: {error}"),
            }
            let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[self.cables.len()] {
                return;
            }
            for from in (0..self.cables.len()).filter(|cable| ready[*cable]) {
                // Errors are those of a cable that was pulled out or whose host has crashed.
                while let Ok((_, length)) =
                    rustix::net::recv(&self.cables[from], &mut frame[..], RecvFlags::empty())
                {
                    self.take(from, &frame[..length]);
                }
            }
        }
    }

    /// Takes a frame with its header that one host has sent.
    fn take(&mut self, from: usize, frame: &[u8]) {
        let Some(to) = frame.get(HEADER..HEADER + 6) else {
            return;
        };
        let several = to[0] & 1 != 0;
        let last = usize::from(to[4]) << 8 | usize::from(to[5]);
        let due = Instant::now() + self.weather.delay;
        let frame = Arc::from(frame);
        for host in (0..self.cables.len()).filter(|host| *host != from) {
            if (several || last == host + 1) && !self.is_lost() {
                self.count += 1;
                let key = (due, self.count);
                self.on_the_way.insert(key, (host, Arc::clone(&frame)));
            }
        }
    }

    /// Whether the next is (xorshift).
    fn is_lost(&mut self) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 20) % 100 < u64::from(self.weather.loss)
    }

    /// Writes what is due.
    fn deliver(&mut self) {
        let now = Instant::now();
        while let Some(entry) = self.on_the_way.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let (host, frame) = entry.remove();
            // One that cannot be delivered is lost.
            let _ = rustix::io::write(&self.cables[host], &frame);
        }
    }
}
