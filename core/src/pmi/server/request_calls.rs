//! Executes one request of a rank: answers it, or holds it until other ranks have entered.

use super::{PmiServer, encode, send};
use crate::job::ids::{LocalRank, Rank};
use crate::pmi::client::{ClientPhase, OpenRequest};
use crate::pmi::command::{Dialect, RequestContext};
use crate::pmi::fragments::FragmentedRequests;
use crate::pmi::limits::{RESOURCES_MAX, VALLEN_2_MAX};
use crate::pmi::node_attributes::NodeAttributes;
use crate::pmi::pmi_action::PmiAction;
use crate::pmi::pmi_collective::PmiCollective;
use crate::pmi::pmi_store::TOPOLOGY_FILE;
use crate::pmi::reply::{PmiRefusal, PmiReply, VERSION_1, VERSION_1_WITHOUT_GROUPS, VERSION_2};
use crate::pmi::request::PmiRequest;
use crate::pmi::wire_v1::ProtocolError;

/// Job attribute of PMI-2 with the universe size.
const UNIVERSE_SIZE: &[u8] = b"universeSize";

/// Job attribute of PMI-2: whether names can be published.
const HAS_NAME_SERVICE: &[u8] = b"hasNameServ";

impl PmiServer {
    /// Handles a complete request, or one that must be refused.
    pub(super) fn on_request(
        &mut self,
        rank: LocalRank,
        call: RequestContext<'_>,
        request: Result<PmiRequest<'_>, PmiRefusal<'static>>,
    ) -> Result<(), ProtocolError> {
        let aborts = matches!(request, Ok(PmiRequest::Abort { .. }));
        let restarts = matches!(request, Ok(PmiRequest::Restart));
        if self.is_restart(rank, &request) {
            self.restart(rank);
        }
        let state = &mut self.client(rank).state;
        if !aborts && !restarts {
            state.check_idle(&call)?;
        }
        let subject = request.as_ref().map_or(&b""[..], PmiRequest::subject);
        state.note(&call, subject);
        let phase = state.phase();
        let is_out_of_place = match (&request, phase) {
            (Ok(PmiRequest::Init { .. } | PmiRequest::Restart) | Err(_), _) => false,
            (Ok(PmiRequest::FullInit { .. }), phase) => phase == ClientPhase::Silent,
            (Ok(_), phase) => !aborts && phase != ClientPhase::Initialized,
        };
        let reply = match request {
            _ if is_out_of_place => Err(PmiRefusal::NotInitialized),
            Ok(request) => self.carry_out(rank, &call, request),
            Err(why) => Err(why),
        };
        let bytes = match reply {
            Ok(Some(reply)) => encode(&call, &reply),
            Ok(None) => return Ok(()),
            Err(why) => encode(&call, &PmiReply::Refused(why)),
        };
        self.actions.push(PmiAction::Send { rank, bytes });
        Ok(())
    }

    /// Returns the answer; `None` if it follows later.
    fn carry_out(
        &mut self,
        rank: LocalRank,
        call: &RequestContext<'_>,
        request: PmiRequest<'_>,
    ) -> Result<Option<PmiReply<'_>>, PmiRefusal<'static>> {
        Ok(Some(match request {
            PmiRequest::Init { version, .. } => {
                self.init(rank, version)?;
                return Ok(None);
            }
            PmiRequest::FullInit { rank: stated, job } => self.full_init(rank, stated, job)?,
            PmiRequest::Maxes => PmiReply::Maxes,
            PmiRequest::AppNum => PmiReply::AppNum(self.client(rank).appnum),
            PmiRequest::KvsName => PmiReply::KvsName(&self.store.kvsname),
            PmiRequest::UniverseSize => PmiReply::UniverseSize(self.universe_size),
            PmiRequest::Hosts => {
                let hosts = self.barriers.hosts(&self.hosts)?;
                send(rank, call, &PmiReply::Hosts(&hosts), &mut self.actions);
                return Ok(None);
            }
            PmiRequest::Barrier(group) => {
                let collective = self.barrier(rank, group)?;
                return self.arrive(rank, call, collective, None);
            }
            PmiRequest::Ring {
                left_value: left,
                right,
            } => {
                let values = (self.client(rank).rank, left.to_vec(), right.to_vec());
                return self.arrive(rank, call, PmiCollective::Ring, Some(values));
            }
            PmiRequest::Put {
                kvsname,
                key,
                value,
            } => {
                self.store.put(rank, kvsname, key, value)?;
                PmiReply::Put
            }
            PmiRequest::Get { kvsname, key } if let Some(job) = self.store.other_job(kvsname) => {
                return self.key_of(rank, call, job, key);
            }
            PmiRequest::Get { kvsname, key } => {
                self.before_read(key);
                PmiReply::Value(self.store.get(call.dialect, kvsname, key)?)
            }
            PmiRequest::JobAttribute { key } => {
                self.before_read(key);
                self.job_attribute(call.dialect, key)?
            }
            PmiRequest::PutNodeAttribute { key, value } => {
                self.put_node_attribute(rank, call, key, value)?;
                return Ok(None);
            }
            PmiRequest::NodeAttribute { key, wait } => {
                return self.node_attribute(rank, call, key, wait);
            }
            PmiRequest::RegisterResource(resource) => {
                let client = self.client(rank);
                if client.resources == RESOURCES_MAX {
                    return Err(PmiRefusal::Other("too many registered resources"));
                }
                client.resources += 1;
                self.actions.push(PmiAction::RemoveAtEnd { resource });
                PmiReply::Put
            }
            PmiRequest::Publish {
                service,
                port,
                limits,
            } => {
                let (service, port) = (service.to_vec(), port.to_vec());
                let effect = PmiAction::Publish {
                    rank,
                    service,
                    port,
                    limits,
                };
                return Ok(self.name(rank, call, effect));
            }
            PmiRequest::Lookup { service } => {
                let service = service.to_vec();
                return Ok(self.name(rank, call, PmiAction::Lookup { rank, service }));
            }
            PmiRequest::Unpublish { service } => {
                let service = service.to_vec();
                return Ok(self.name(rank, call, PmiAction::Unpublish { rank, service }));
            }
            PmiRequest::Spawn(spawn) => {
                self.spawn(rank, call, spawn)?;
                return Ok(None);
            }
            PmiRequest::GetAll { kvsname } => {
                self.all_pairs(rank, call, kvsname)?;
                return Ok(None);
            }
            PmiRequest::PutAll { job, pairs } => {
                let job = self.store.other_job(Some(job));
                let job = job.ok_or(PmiRefusal::NotConnected)?;
                self.connections.bring(&job, rank, &pairs)?;
                PmiReply::Put
            }
            PmiRequest::Connect { job } => return self.connect(rank, call, job),
            PmiRequest::Disconnect { job } => {
                if let Some(job) = self.store.other_job(Some(job)) {
                    self.connections.disconnect(&job, rank)?;
                } else {
                    self.store.own_kvs(Some(job))?;
                }
                PmiReply::Disconnected
            }
            PmiRequest::Abort { code, message } => {
                let message = String::from_utf8_lossy(message).into_owned();
                self.actions.push(PmiAction::Abort {
                    rank,
                    code,
                    message,
                });
                return Ok(None);
            }
            PmiRequest::Finalize => {
                self.client(rank).state.enter(ClientPhase::Finalized);
                send(rank, call, &PmiReply::FinalizeAck, &mut self.actions);
                self.actions.push(PmiAction::Finalized { rank });
                return Ok(None);
            }
            PmiRequest::Restart if self.restartable => PmiReply::Restarted,
            PmiRequest::Restart => return Err(PmiRefusal::NotSupported),
        }))
    }

    /// Starts a connection, or starts it again, in either version of PMI.
    fn init(&mut self, rank: LocalRank, version: u32) -> Result<(), PmiRefusal<'static>> {
        let dialect = match version {
            version if version == VERSION_1.0 => Dialect::Pmi1,
            version if version == VERSION_2.0 => Dialect::Pmi2,
            _ => return Err(PmiRefusal::Version),
        };
        let version = match (dialect, self.client(rank).has_groups) {
            (Dialect::Pmi1, true) => VERSION_1,
            (Dialect::Pmi1, false) => VERSION_1_WITHOUT_GROUPS,
            (Dialect::Pmi2, _) => VERSION_2,
        };
        self.client(rank).continued = FragmentedRequests::default();
        let state = &mut self.client(rank).state;
        let was_in_session = state.in_session();
        if !was_in_session {
            // Another program than in the session before may use the connection.
            state.finalizes_at_exit = false;
        }
        state.speak(dialect);
        state.enter(match dialect {
            Dialect::Pmi1 => ClientPhase::Initialized,
            Dialect::Pmi2 => ClientPhase::Greeted,
        });
        send(
            rank,
            &RequestContext::line(b"init"),
            &PmiReply::Init(version),
            &mut self.actions,
        );
        self.request_epoch(rank, was_in_session);
        if !was_in_session {
            self.actions.push(PmiAction::Initialized { rank });
        }
        Ok(())
    }

    /// Rule: the connection identifies the rank; a client that claims another rank or job is refused.
    /// Source: docs/pmi2-wire.md#pmi-2-commands.
    fn full_init(
        &mut self,
        local: LocalRank,
        stated: Option<Rank>,
        job: Option<&[u8]>,
    ) -> Result<PmiReply<'_>, PmiRefusal<'static>> {
        let size = self.barriers.size();
        let client = &mut self.clients[local.index()];
        if stated.is_some_and(|stated| stated != client.rank) {
            return Err(PmiRefusal::OtherRank);
        }
        if self.store.own_kvs(job).is_err() {
            return Err(PmiRefusal::OtherJob);
        }
        if !client.state.in_session() {
            self.actions.push(PmiAction::Initialized { rank: local });
        }
        client.state.enter(ClientPhase::Initialized);
        Ok(PmiReply::FullInit {
            rank: client.rank,
            size,
            appnum: client.appnum,
            spawner: self.spawner.as_ref(),
        })
    }

    /// Requests the description of the host before a client gets the path of its file for the first time.
    fn before_read(&mut self, key: &[u8]) {
        if !self.is_host_described && key == TOPOLOGY_FILE.as_bytes() {
            self.is_host_described = true;
            self.actions.push(PmiAction::DescribeHost);
        }
    }

    fn job_attribute(
        &self,
        dialect: Dialect,
        key: &[u8],
    ) -> Result<PmiReply<'_>, PmiRefusal<'static>> {
        if let Some(value) = self.store.attribute(dialect, key) {
            return Ok(PmiReply::Value(value));
        }
        match key {
            UNIVERSE_SIZE => Ok(PmiReply::UniverseSize(self.universe_size)),
            HAS_NAME_SERVICE => Ok(PmiReply::Value(b"TRUE")),
            _ => Err(PmiRefusal::KeyNotFound),
        }
    }

    fn put_node_attribute(
        &mut self,
        rank: LocalRank,
        call: &RequestContext<'_>,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), PmiRefusal<'static>> {
        let woken = self.node_attributes.put(rank, key, value)?;
        send(rank, call, &PmiReply::Put, &mut self.actions);
        for waiter in woken {
            let state = &mut self.client(waiter.rank).state;
            state.answered(|open| matches!(open, OpenRequest::Attribute(name) if name == key));
            send(
                waiter.rank,
                &waiter.call,
                &PmiReply::Value(value),
                &mut self.actions,
            );
        }
        Ok(())
    }

    fn node_attribute(
        &mut self,
        rank: LocalRank,
        call: &RequestContext<'_>,
        key: &[u8],
        wait: bool,
    ) -> Result<Option<PmiReply<'_>>, PmiRefusal<'static>> {
        if self.node_attributes.get(key).is_none() {
            let ranks: Vec<Rank> = self.clients.iter().map(|client| client.rank).collect();
            let value = NodeAttributes::placement_attribute(key, &ranks);
            if let Some(value) = value.filter(|value| value.len() <= VALLEN_2_MAX) {
                self.node_attributes.put(rank, key, value.as_bytes())?;
            } else if wait {
                let open = OpenRequest::Attribute(key.to_vec());
                self.client(rank).state.wait(call, open);
                self.node_attributes
                    .wait(key, rank, call.clone().into_owned());
                return Ok(None);
            }
        }
        let value = self.node_attributes.get(key);
        Ok(Some(PmiReply::Value(value.ok_or(PmiRefusal::KeyNotFound)?)))
    }

    /// Hands a call to the name service, or keeps it until the rank's earlier ones are answered.
    fn name(
        &mut self,
        rank: LocalRank,
        call: &RequestContext<'_>,
        effect: PmiAction,
    ) -> Option<PmiReply<'static>> {
        let client = &mut self.clients[rank.index()];
        client.state.wait(call, OpenRequest::Name);
        let effect = match client.names.is_empty() {
            true => {
                self.actions.push(effect);
                None
            }
            false => Some(effect),
        };
        client
            .names
            .push_back((Some(call.clone().into_owned()), effect));
        None
    }
}
