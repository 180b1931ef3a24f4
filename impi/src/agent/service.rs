//! The agent while the job runs: two threads for each connection, around one [`HostRouter`].

use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use wireup_impi_core::host::{ChannelPeer, HostRouter};
use wireup_impi_core::world::ImpiJob;

use super::AgentError;
use super::invitation::HostInvitation;
use super::outboxes::{Outboxes, WriterAction};
use super::pending_connections::PendingConnections;
use super::process_handshake::{HELLO, Welcome};
use crate::stream::read_packet;

/// Timeout of a process's first message.
const SAYS: Duration = Duration::from_secs(10);

/// Timeout for reading what processes had sent before the job broke. Only a process that goes on sending needs it.
const LAST_READ: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum ServiceEvent {
    /// All processes have finished and all channels are closed.
    Over,
    Broken(String),
    /// A process has sent a line to print.
    Line(String),
    LaunchOver {
        failed: bool,
    },
}

/// Channel through which others report to a service.
#[derive(Debug)]
pub struct Events {
    sender: Sender<ServiceEvent>,
    receiver: Receiver<ServiceEvent>,
}

/// Says that the launch is over.
#[derive(Clone, Debug)]
pub struct LaunchOver(Sender<ServiceEvent>);

impl Default for Events {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver }
    }
}

impl Events {
    /// Returns a handle for the thread that learns of the launch's end.
    pub fn launch_over(&self) -> LaunchOver {
        LaunchOver(self.sender.clone())
    }
}

impl LaunchOver {
    /// Reports that all processes of the launch have ended. If it `failed`, those that never connected are missed:
    /// without failure they are taken for processes that need no messages.
    pub fn report(&self, failed: bool) {
        // A service that is over needs no report.
        let _ = self.0.send(ServiceEvent::LaunchOver { failed });
    }
}

/// Connection of a process of this host.
#[derive(Debug)]
enum ProcessConnection {
    Absent,
    Open(TcpStream),
    /// All that the process sent has been read.
    Ended,
}

#[derive(Debug)]
struct ServicePhase {
    outboxes: Outboxes,
    processes: Vec<ProcessConnection>,
    end_reported: bool,
}

#[derive(Debug)]
struct ServiceState {
    state: Mutex<ServicePhase>,
    /// Something is in an outbox, or the connection of a process has ended.
    changed: Condvar,
    events: Sender<ServiceEvent>,
    limit: u32,
    /// World rank of the first process of this host, and of its launch.
    first: usize,
    first_of_launch: usize,
    /// The client of each host.
    clients: Vec<usize>,
}

impl ServiceState {
    fn lock(&self) -> MutexGuard<'_, ServicePhase> {
        // A thread that panicked has reported the end of the job by that.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Executes the machine's orders.
    fn act(&self, state: &mut ServicePhase) {
        state.outboxes.fill();
        for (rank, text) in state.outboxes.take_lines() {
            let text = String::from_utf8_lossy(&text);
            for line in text.lines() {
                self.report(ServiceEvent::Line(format!("process {rank}: {line}")));
            }
        }
        if state.outboxes.host.is_over() && !state.end_reported {
            state.end_reported = true;
            state.outboxes.close_all();
            self.report(ServiceEvent::Over);
        }
        self.changed.notify_all();
    }

    /// Records that no more bytes will be read from a connection.
    fn end_reading(&self, end: ChannelPeer) {
        if let ChannelPeer::Proc(rank) = end {
            self.lock().processes[rank - self.first] = ProcessConnection::Ended;
            self.changed.notify_all();
        }
    }

    fn report(&self, event: ServiceEvent) {
        // The service may be over already.
        let _ = self.events.send(event);
    }

    fn broken(&self, end: ChannelPeer, why: impl std::fmt::Display) {
        let who = match end {
            ChannelPeer::Host(host) => format!("host {host} of client {}", self.clients[host]),
            ChannelPeer::Proc(rank) => {
                let own = rank - self.first_of_launch;
                format!("process {rank} (rank {own} of this launch)")
            }
        };
        self.report(ServiceEvent::Broken(format!("{who}: {why}")));
    }
}

/// A host that is connected with all others; its processes may connect.
#[derive(Debug)]
pub struct ConnectedHost {
    pub(super) world: ImpiJob,
    /// Index of the host in the world.
    pub(super) number: usize,
    pub(super) channels: Vec<(usize, TcpStream)>,
    pub(super) door: TcpListener,
    pub(super) invitation: HostInvitation,
}

impl ConnectedHost {
    /// Serves the processes until all have finished and all hosts have sent FINI. [`Events::launch_over`] reports that
    /// no further process will connect. After that, the others have `patience` to end. `print` gets lines of processes.
    ///
    /// # Errors
    /// When a process, another host or the network broke the job.
    pub fn serve(
        self,
        events: &Events,
        patience: Duration,
        print: &mut dyn FnMut(&str),
    ) -> Result<(), AgentError> {
        let (me, world) = (self.number, self.world);
        let (first, size) = (world.hosts[me].first, world.hosts[me].size);
        let welcome = Welcome {
            ticket: self.invitation.ticket,
            first,
            lam: self.invitation.lam,
            values: self.invitation.values,
        };
        let shared = Arc::new(ServiceState {
            state: Mutex::new(ServicePhase {
                outboxes: Outboxes::new(HostRouter::new(me, world.clone())),
                processes: (0..size).map(|_| ProcessConnection::Absent).collect(),
                end_reported: false,
            }),
            changed: Condvar::new(),
            events: events.sender.clone(),
            limit: world.limits.data_length,
            first,
            first_of_launch: world.clients[world.hosts[me].client].first,
            clients: world.hosts.iter().map(|host| host.client).collect(),
        });
        let mut writers = Vec::new();
        for (host, stream) in self.channels {
            let writer = attach(&shared, ChannelPeer::Host(host), stream);
            writers.push(writer.map_err(AgentError::io(format!("host {host}")))?);
        }
        let (door, at_door) = (self.door, Arc::clone(&shared));
        std::thread::spawn(move || admit_all(&at_door, &door, &welcome, size));
        let served = wait_for_end(&shared, events, patience, print);
        match served {
            // What has been queued is written before the process ends.
            Ok(()) => writers.into_iter().for_each(|writer| drop(writer.join())),
            Err(_) => print_last_lines(&shared, events, print),
        }
        served
    }
}

fn wait_for_end(
    shared: &ServiceState,
    events: &Events,
    patience: Duration,
    print: &mut dyn FnMut(&str),
) -> Result<(), AgentError> {
    let mut until = None;
    loop {
        let event = match until {
            None => events.receiver.recv().ok(),
            Some(until) => {
                let left = Instant::saturating_duration_since(&until, Instant::now());
                events.receiver.recv_timeout(left).ok()
            }
        };
        // `events` has a sender itself: only the time can end a wait.
        let Some(event) = event else {
            let why = "the launch has ended, but other clients did not end in time";
            return Err(AgentError::Broken(why.into()));
        };
        match event {
            ServiceEvent::Over => return Ok(()),
            ServiceEvent::Broken(why) => return Err(AgentError::Broken(why)),
            ServiceEvent::Line(line) => print(&line),
            ServiceEvent::LaunchOver { failed } => {
                let mut state = shared.lock();
                let processes = state.processes.iter().enumerate();
                let absent =
                    processes.filter(|(_, process)| matches!(process, ProcessConnection::Absent));
                let absent: Vec<usize> = absent.map(|(index, _)| index).collect();
                if failed && !absent.is_empty() {
                    let why = "the launch failed before all of its processes had joined";
                    return Err(AgentError::Broken(why.into()));
                }
                for index in absent {
                    state.outboxes.host.finish(shared.first + index);
                }
                shared.act(&mut state);
                until = Some(Instant::now() + patience);
            }
        }
    }
}

/// Prints the lines that processes had sent before the job broke. The end of a process may be read first: a launcher
/// ends all processes when one calls `MPI_Abort`, whose line then is the cause of the other ends.
fn print_last_lines(shared: &ServiceState, events: &Events, print: &mut dyn FnMut(&str)) {
    let is_open = |process: &ProcessConnection| matches!(process, ProcessConnection::Open(_));
    let state = shared.lock();
    for process in &state.processes {
        if let ProcessConnection::Open(stream) = process {
            // Its reader gets the bytes that have arrived, then the end. An error means that it has ended.
            let _ = stream.shutdown(Shutdown::Read);
        }
    }
    let is_reading = |state: &mut ServicePhase| state.processes.iter().any(is_open);
    drop(
        shared
            .changed
            .wait_timeout_while(state, LAST_READ, is_reading),
    );
    for event in events.receiver.try_iter() {
        if let ServiceEvent::Line(line) = event {
            print(&line);
        }
    }
}

/// Lets processes in until the service ends with its process.
fn admit_all(shared: &Arc<ServiceState>, door: &TcpListener, welcome: &Welcome, size: usize) {
    let mut strangers = PendingConnections::<HELLO>::new(SAYS);
    loop {
        let (stream, hello) = match strangers.next(door, None) {
            Ok(next) => next,
            Err(error) => {
                let why = format!("listening for processes: {error}");
                return shared.report(ServiceEvent::Broken(why));
            }
        };
        if let Err(error) = admit(shared, stream, &hello, welcome, size) {
            eprintln!("wireup impi: refused a process: {error}");
        }
    }
}

fn admit(
    shared: &Arc<ServiceState>,
    mut stream: TcpStream,
    hello: &[u8; HELLO],
    welcome: &Welcome,
    size: usize,
) -> io::Result<()> {
    let index = welcome.admit(hello, size)?;
    let connection = stream.try_clone()?;
    let mut state = shared.lock();
    let process = &mut state.processes[index];
    if !matches!(process, ProcessConnection::Absent) {
        return Err(io::Error::other(format!("rank {index} has already joined")));
    }
    *process = ProcessConnection::Open(connection);
    drop(state);
    let end = ChannelPeer::Proc(shared.first + index);
    let attached = stream.set_nodelay(true);
    let attached = attached.and_then(|()| welcome.introduce(&mut stream, index));
    if let Err(error) = attached.and_then(|()| attach(shared, end, stream)) {
        // The process counts as there, and nothing would report its end.
        shared.end_reading(end);
        shared.broken(end, error);
    }
    Ok(())
}

/// Starts the threads of a connection; the writer's handle.
fn attach(
    shared: &Arc<ServiceState>,
    end: ChannelPeer,
    stream: TcpStream,
) -> io::Result<std::thread::JoinHandle<()>> {
    let reader = stream.try_clone()?;
    let (reads, writes) = (Arc::clone(shared), Arc::clone(shared));
    std::thread::Builder::new().spawn(move || {
        read(&reads, end, reader);
        reads.end_reading(end);
    })?;
    std::thread::Builder::new().spawn(move || {
        let Err(error) = write(&writes, end, stream) else {
            return;
        };
        let mut state = writes.lock();
        if state.outboxes.host.ended(end).is_err() {
            return writes.broken(end, error);
        }
        state.outboxes.discard(end);
        writes.act(&mut state);
    })
}

fn read(shared: &ServiceState, end: ChannelPeer, mut stream: TcpStream) {
    loop {
        let packet = match read_packet(&mut stream, shared.limit) {
            Ok(Some(packet)) => packet,
            Ok(None) => {
                if let Err(why) = shared.lock().outboxes.host.ended(end) {
                    shared.broken(end, why);
                }
                return;
            }
            Err(error) => {
                if shared.lock().outboxes.host.ended(end).is_err() {
                    shared.broken(end, error);
                }
                return;
            }
        };
        let mut state = shared.lock();
        let result = state.outboxes.host.packet(end, packet);
        shared.act(&mut state);
        drop(state);
        if let Err(why) = result {
            return shared.broken(end, why);
        }
    }
}

fn write(shared: &ServiceState, end: ChannelPeer, mut stream: TcpStream) -> io::Result<()> {
    loop {
        let mut state = shared.lock();
        let packet = loop {
            match state.outboxes.next(end) {
                WriterAction::Write(packet) => break packet,
                WriterAction::Close => {
                    drop(state);
                    return stream.shutdown(Shutdown::Write);
                }
                WriterAction::Wait => {
                    state = shared
                        .changed
                        .wait(state)
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                }
            }
        };
        if let ChannelPeer::Proc(_) = end {
            // Its ack is for another writer.
            shared.act(&mut state);
        }
        drop(state);
        stream.write_all(&packet.bytes())?;
    }
}
