//! A process of the world: messages and collectives, over its agent.
//!
//! A thread reads and another writes, so messages move while the program computes.

mod agent_connection;
mod collective_execution;
mod process_error;
mod reduction;

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use wireup_impi_core::collective::{CollectiveChannel, Topology};
use wireup_impi_core::endpoint::{Completion, Endpoint, Envelope, MatchSpec, RequestId, Status};
use wireup_impi_core::external32::Representation;
use wireup_impi_core::packet::{Packet, PacketHeader, PacketType, ProcId};
use wireup_impi_core::world::{ImpiJob, decode};

use crate::agent::process_handshake::{self, greet};
use agent_connection::{ConnectionState, LinkState, check, check_request, read_all, write_all};
pub use process_error::PeerError;
pub use reduction::{ElementType, Operator};

/// Variables of other launchers with a process's rank in its launch; the first that is set counts.
const RANK_VARIABLES: [&str; 6] = [
    "WIREUP_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MPI_RANK",
    "SLURM_PROCID",
];

/// Context of point-to-point messages of the world, of its collectives, and of those within a client.
const POINT: u64 = 0;
const COLLECTIVE: u64 = 1;
const LOCAL: u64 = u64::MAX;

/// A process of the world.
#[derive(Debug)]
pub struct Peer {
    shared: Arc<LinkState>,
    world: ImpiJob,
    rank: usize,
    topology: Topology,
    representation: Representation,
    stream: TcpStream,
    /// The reader, and the writer until it has sent everything.
    reader: Option<JoinHandle<()>>,
    writer: Option<JoinHandle<()>>,
}

impl Peer {
    /// Joins by the variables that the agent has set.
    ///
    /// # Errors
    /// When the process was not started by an agent, or that does not let it in.
    pub fn open() -> Result<Self, PeerError> {
        let read = |name: &'static str| std::env::var(name).map_err(|_| PeerError::NoAgent(name));
        let (agent, ticket) = (
            read(process_handshake::AGENT)?,
            read(process_handshake::TICKET_VARIABLE)?,
        );
        let ranks = RANK_VARIABLES
            .iter()
            .filter_map(|name| std::env::var(name).ok());
        let index = ranks
            .filter_map(|rank| rank.parse().ok())
            .next()
            .ok_or(PeerError::NoRank)?;
        let (agent, index) =
            process_handshake::agent_of(&agent, index).ok_or(PeerError::NoHost(index))?;
        Self::connect(agent, &ticket, index)
    }

    /// Joins as process `index` of those of an agent.
    ///
    /// # Errors
    /// When the agent does not let it in.
    pub fn connect(agent: &str, ticket: &str, index: u32) -> Result<Self, PeerError> {
        let mut stream = TcpStream::connect(agent)?;
        stream.set_nodelay(true)?;
        let introduction = greet(&mut stream, ticket, index)?;
        let (clients, collected) = decode(&introduction.values).ok_or(PeerError::Values)?;
        let world = ImpiJob::new(clients, &collected)?;
        let rank = introduction.rank;
        if rank >= world.procs.len() {
            return Err(PeerError::Values);
        }
        let endpoint = Endpoint::new(rank, world.procs.clone(), world.limits);
        let state = ConnectionState {
            endpoint,
            broken: None,
            finishing: false,
            elements: HashMap::new(),
        };
        let shared = Arc::new(LinkState {
            state: Mutex::new(state),
            changed: Condvar::new(),
            out: Mutex::new(stream.try_clone()?),
        });
        let (reads, writes) = (Arc::clone(&shared), Arc::clone(&shared));
        let reader = stream.try_clone()?;
        let limit = world.limits.data_length;
        let reader = std::thread::Builder::new().spawn(move || read_all(&reads, reader, limit))?;
        let writer = std::thread::Builder::new().spawn(move || write_all(&writes))?;
        let reduce = if introduction.lam {
            CollectiveChannel::PointToPoint
        } else {
            CollectiveChannel::Collective
        };
        Ok(Self {
            topology: Topology::from_job(&world, reduce),
            representation: introduction.representation,
            reader: Some(reader),
            writer: Some(writer),
            shared,
            world,
            rank,
            stream,
        })
    }

    pub fn world(&self) -> &ImpiJob {
        &self.world
    }

    /// This process's rank in the world.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Processes of the world.
    pub fn size(&self) -> usize {
        self.world.procs.len()
    }

    /// Starts a send of whole elements.
    ///
    /// # Errors
    /// If the destination or the tag is invalid, or the job has failed.
    pub fn start_send(
        &self,
        data: &[u8],
        element: ElementType,
        to: usize,
        tag: i32,
        synchronous: bool,
    ) -> Result<RequestId, PeerError> {
        let envelope = Envelope {
            destination: to,
            tag,
            context: POINT,
            synchronous,
        };
        self.send_in(envelope, data, element)
    }

    /// Starts a receive of at most `limit` bytes; any source or tag for `None`.
    ///
    /// # Errors
    /// If the source or the tag is invalid, or the job has failed.
    pub fn start_receive(
        &self,
        limit: usize,
        element: ElementType,
        source: Option<usize>,
        tag: Option<i32>,
    ) -> Result<RequestId, PeerError> {
        let match_spec = MatchSpec {
            source,
            tag,
            context: POINT,
        };
        self.receive_in(match_spec, limit, element)
    }

    /// Waits for a request's end; a message is in the machine's byte order, and never truncated.
    ///
    /// # Errors
    /// When the job breaks, the message is too long, or there is no such request.
    pub fn wait(&self, request: RequestId) -> Result<Completion, PeerError> {
        let mut state = self.shared.lock();
        loop {
            if let Some(completion) = state.endpoint.take_completion(request) {
                return self.outcome(&mut state, request, completion);
            }
            check_request(&state, request)?;
            check(&state)?;
            state = self.shared.wait(state);
        }
    }

    /// Whether a request has ended.
    ///
    /// # Errors
    /// If the job has failed, or the request is unknown.
    pub fn test(&self, request: RequestId) -> Result<bool, PeerError> {
        let state = self.shared.lock();
        if state.endpoint.is_complete(request) {
            return Ok(true);
        }
        check_request(&state, request)?;
        check(&state).map(|()| false)
    }

    /// Requests the cancellation of a request; [`Self::wait`] returns its result.
    ///
    /// # Errors
    /// When there is no such request.
    pub fn cancel(&self, request: RequestId) -> Result<(), PeerError> {
        let mut state = self.shared.lock();
        check_request(&state, request)?;
        state.endpoint.cancel(request);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Returns the status of the first message that a receive would take, if there is one; with `wait`, once there is.
    ///
    /// # Errors
    /// If the job has failed.
    pub fn probe(
        &self,
        source: Option<usize>,
        tag: Option<i32>,
        wait: bool,
    ) -> Result<Option<Status>, PeerError> {
        let match_spec = MatchSpec {
            source,
            tag,
            context: POINT,
        };
        let mut state = self.shared.lock();
        loop {
            let found = state.endpoint.probe(match_spec);
            if found.is_some() || !wait {
                return Ok(found);
            }
            check(&state)?;
            state = self.shared.wait(state);
        }
    }

    /// Starts a send of bytes as they are on the wire, in any context.
    ///
    /// # Errors
    /// If the destination or the tag is invalid, or the job has failed.
    pub fn start_send_bytes(
        &self,
        envelope: Envelope,
        data: &[u8],
    ) -> Result<RequestId, PeerError> {
        self.send_in(envelope, data, ElementType::Byte)
    }

    /// Starts a receive of at most `limit` bytes as they are on the wire, in any context.
    ///
    /// # Errors
    /// If the source or the tag is invalid.
    pub fn start_receive_bytes(
        &self,
        match_spec: MatchSpec,
        limit: usize,
    ) -> Result<RequestId, PeerError> {
        self.receive_in(match_spec, limit, ElementType::Byte)
    }

    /// Returns the status of the first message that a receive in any context would take, if there is one.
    ///
    /// # Errors
    /// If the job has failed.
    pub fn find_message(&self, match_spec: MatchSpec) -> Result<Option<Status>, PeerError> {
        let state = self.shared.lock();
        let found = state.endpoint.probe(match_spec);
        found.map_or_else(|| check(&state).map(|()| None), |found| Ok(Some(found)))
    }

    /// Returns the completion of a request, with bytes as they were on the wire; `None` while the request goes on.
    ///
    /// # Errors
    /// If the job has failed, or the request is unknown.
    pub fn take_completion(&self, request: RequestId) -> Result<Option<Completion>, PeerError> {
        let mut state = self.shared.lock();
        if let Some(completion) = state.endpoint.take_completion(request) {
            state.elements.remove(&request);
            return Ok(Some(completion));
        }
        check_request(&state, request)?;
        check(&state).map(|()| None)
    }

    /// Converts elements of `size` bytes from the machine's order into that of messages, or back.
    pub fn convert(&self, data: &mut [u8], size: usize) {
        self.representation.convert(data, size);
    }

    /// Waits until a packet arrives or a send progresses, at most for `timeout`.
    pub fn pause(&self, timeout: Duration) {
        let state = self.shared.lock();
        drop(self.shared.changed.wait_timeout(state, timeout));
    }

    /// Prints text at the print server of the job; without one, the agent prints it. Longer text than a packet is cut.
    ///
    /// # Errors
    /// If the job has failed.
    pub fn print(&self, text: &str) -> Result<(), PeerError> {
        let limit = self.world.limits.data_length as usize;
        let data = text.as_bytes()[..text.floor_char_boundary(limit)].to_vec();
        let own = self.world.procs[self.rank];
        let header = PacketHeader {
            length: u32::try_from(data.len()).unwrap_or(0),
            message_length: data.len() as u64,
            ..PacketHeader::new(PacketType::Data, own, ProcId::default())
        };
        check(&self.shared.lock())?;
        Ok(self.shared.write(&Packet { header, data }.bytes())?)
    }

    /// Returns the clients of a communicator with so many processes in each, for the tables of collectives.
    pub fn communicator_topology(&self, sizes: impl IntoIterator<Item = usize>) -> Topology {
        Topology::new(sizes, self.topology.max_linear, self.topology.reduce)
    }

    /// Leaves in order: a barrier of the world, then FINI. Source: IMPI 2.4.
    ///
    /// # Errors
    /// If the job has failed.
    pub fn close(self) -> Result<(), PeerError> {
        self.barrier()?;
        self.leave()
    }

    /// Leaves after a barrier of the world that the caller has executed.
    ///
    /// # Errors
    /// If the job has failed.
    pub fn leave(mut self) -> Result<(), PeerError> {
        self.shared.lock().finishing = true;
        self.shared.changed.notify_all();
        if let Some(writer) = self.writer.take() {
            drop(writer.join());
        }
        check(&self.shared.lock())
    }

    fn send_in(
        &self,
        envelope: Envelope,
        data: &[u8],
        element: ElementType,
    ) -> Result<RequestId, PeerError> {
        self.check_peer(envelope.destination)?;
        self.check_tag(envelope.tag)?;
        let mut data = data.to_vec();
        self.representation.convert(&mut data, element.size());
        let mut state = self.shared.lock();
        check(&state)?;
        let request = state.endpoint.send(envelope, &data);
        self.shared.changed.notify_all();
        Ok(request)
    }

    fn receive_in(
        &self,
        match_spec: MatchSpec,
        limit: usize,
        element: ElementType,
    ) -> Result<RequestId, PeerError> {
        let MatchSpec { source, tag, .. } = match_spec;
        source.map_or(Ok(()), |source| self.check_peer(source))?;
        tag.map_or(Ok(()), |tag| self.check_tag(tag))?;
        let mut state = self.shared.lock();
        let request = state.endpoint.receive(match_spec, limit as u64);
        state.elements.insert(request, (element, limit));
        // A match may have to be acknowledged.
        self.shared.changed.notify_all();
        Ok(request)
    }

    fn outcome(
        &self,
        state: &mut ConnectionState,
        request: RequestId,
        completion: Completion,
    ) -> Result<Completion, PeerError> {
        let known = state.elements.remove(&request);
        match completion {
            Completion::Received(status, mut data) => {
                let size = known.map_or(1, |(element, _)| element.size());
                self.representation.convert(&mut data, size);
                Ok(Completion::Received(status, data))
            }
            Completion::Truncated(status, _) => {
                let limit = known.map_or(0, |(_, limit)| limit);
                Err(PeerError::Truncated {
                    length: status.length,
                    limit,
                })
            }
            completion => Ok(completion),
        }
    }

    fn check_peer(&self, rank: usize) -> Result<(), PeerError> {
        let wrong = || {
            PeerError::Argument(format!(
                "invalid process {rank}: the world has {}",
                self.size()
            ))
        };
        (rank < self.size()).then_some(()).ok_or_else(wrong)
    }

    fn check_tag(&self, tag: i32) -> Result<(), PeerError> {
        let limit = self.world.limits.tag_upper_bound;
        let wrong = || PeerError::Argument(format!("invalid tag {tag}: use 0 to {limit}"));
        (0..=limit).contains(&tag).then_some(()).ok_or_else(wrong)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Ends the threads, and where the peer was not closed in order, the job.
        drop(self.stream.shutdown(Shutdown::Both));
        for thread in [self.writer.take(), self.reader.take()]
            .into_iter()
            .flatten()
        {
            drop(thread.join());
        }
    }
}
