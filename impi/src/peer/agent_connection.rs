//! The connection of a process to its agent: one thread reads packets, another writes them.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use wireup_impi_core::endpoint::{Endpoint, RequestId};
use wireup_impi_core::packet::{Packet, PacketHeader, PacketType, ProcId};

use super::{ElementType, PeerError};
use crate::stream::read_packet;

#[derive(Debug)]
pub(super) struct ConnectionState {
    pub(super) endpoint: Endpoint,
    pub(super) broken: Option<String>,
    pub(super) finishing: bool,
    /// Element size of each receive that goes on.
    pub(super) elements: HashMap<RequestId, (ElementType, usize)>,
}

#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) state: Mutex<ConnectionState>,
    pub(super) changed: Condvar,
    /// Stream to the agent, on which packets are written whole.
    pub(super) out: Mutex<TcpStream>,
}

impl LinkState {
    pub(super) fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a packet to the agent.
    pub(super) fn write(&self, packet: &[u8]) -> io::Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(packet)
    }

    pub(super) fn wait<'a>(
        &self,
        state: MutexGuard<'a, ConnectionState>,
    ) -> MutexGuard<'a, ConnectionState> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn check(state: &ConnectionState) -> Result<(), PeerError> {
    state
        .broken
        .clone()
        .map_or(Ok(()), |why| Err(PeerError::Broken(why)))
}

pub(super) fn check_request(state: &ConnectionState, request: RequestId) -> Result<(), PeerError> {
    let known = state.endpoint.is_known(request);
    known
        .then_some(())
        .ok_or_else(|| PeerError::Argument(format!("unknown request {}", request.0)))
}

pub(super) fn read_all(shared: &LinkState, mut stream: TcpStream, limit: u32) {
    let why = loop {
        match read_packet(&mut stream, limit) {
            Ok(Some(packet)) => {
                let result = shared.lock().endpoint.received(packet);
                shared.changed.notify_all();
                if let Err(error) = result {
                    break error.to_string();
                }
            }
            Ok(None) => break "the agent has ended".into(),
            Err(error) => break error.to_string(),
        }
    };
    let mut state = shared.lock();
    if !state.finishing {
        state.broken = Some(why);
    }
    shared.changed.notify_all();
}

pub(super) fn write_all(shared: &LinkState) {
    loop {
        let mut state = shared.lock();
        let packet = loop {
            if let Some(packet) = state.endpoint.next_packet() {
                // A send may have ended with it.
                shared.changed.notify_all();
                break packet;
            }
            if state.broken.is_some() {
                return;
            }
            if state.finishing && state.endpoint.is_idle() {
                let none = ProcId::default();
                let header = PacketHeader::new(PacketType::Fini, none, none);
                drop(state);
                // The agent notices the end in any case.
                drop(shared.write(&header.encode()));
                return;
            }
            state = shared.wait(state);
        };
        drop(state);
        if let Err(error) = shared.write(&Packet::bytes(&packet)) {
            shared.lock().broken = Some(error.to_string());
            shared.changed.notify_all();
            return;
        }
    }
}
