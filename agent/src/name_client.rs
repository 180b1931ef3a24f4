//! A launch of this machine that uses the name server.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio_stream::Stream;
use tonic::transport::Channel;
use tracing::warn;

use crate::budget::BudgetAccount;
use crate::launch::RoutedFrame;
use crate::launch::frame_link::{LinkInput, LinkReader, LinkWriter};
use crate::launch::queue::{LinkQueue, Resend, queue};
use crate::name_servers::NameServerKey;
use crate::peer::packet;
use crate::peer::peer_connection::RESTART;
use crate::peer::peer_error::PeerError;
use crate::proto::v1;
use crate::proto::v1::peer_client::PeerClient;
use crate::state::Agent;
use wireup_core::link::agent_protocol::{AgentReport, NodeAddress};

/// Serves a launch until one of both sides ends.
pub async fn serve_launch(
    agent: Arc<Agent>,
    scope: NameServerKey,
    reader: LinkReader,
    mut writer: LinkWriter,
) {
    let uid = scope.0;
    let mut failures = Vec::new();
    let names = &agent.name_servers.names;
    for member in names {
        if member.name == agent.name {
            return serve_locally(&agent, scope, reader, writer).await;
        }
        let account = agent.budgets.account(uid);
        match agent.peers.connect_launch(member, &scope, &account).await {
            Ok((queue, messages)) => {
                return relay_to_agent(&agent, member, queue, messages, reader, writer).await;
            }
            Err(error) => failures.push(error.to_string()),
        }
    }
    if names.is_empty() {
        return serve_locally(&agent, scope, reader, writer).await;
    }
    let reason = failures.join("; ");
    warn!(uid, "no name server for a launch: {reason}");
    writer.report(&AgentReport::Refused { reason }).await;
}

/// Serves a launch whose rendezvous is at this agent.
async fn serve_locally(
    agent: &Agent,
    scope: NameServerKey,
    mut reader: LinkReader,
    mut writer: LinkWriter,
) {
    let uid = scope.0;
    let (mut launch, mut queued) = agent.name_servers.join(scope);
    loop {
        tokio::select! {
            incoming = reader.next() => match incoming {
                Some(Ok(LinkInput::Carried(packet))) => {
                    if let Err(error) = launch.take(&packet) {
                        warn!(uid, "connection of a launch closed: {error}");
                        return;
                    }
                }
                Some(Ok(LinkInput::Sign(sign))) if writer.answer(sign, agent.liveness_limit) => {}
                _ => return,
            },
            packet = queued.next() => match packet {
                Some(packet) if writer.carry(&packet).is_ok() => {}
                _ => return,
            },
            () = writer.flush(), if writer.waits() => {}
        }
    }
}

/// Serves a launch whose rendezvous is at another agent.
async fn relay_to_agent(
    agent: &Agent,
    member: &NodeAddress,
    queue: LinkQueue<v1::MeetRequest>,
    frames: impl Stream<Item = Result<RoutedFrame, PeerError>>,
    mut reader: LinkReader,
    mut writer: LinkWriter,
) {
    let mut frames = std::pin::pin!(frames);
    loop {
        let reason = tokio::select! {
            incoming = reader.next() => match incoming {
                Some(Ok(LinkInput::Carried(mut packet))) => {
                    let bytes = packet.body.len();
                    packet.body = queue.account().count_message(packet.body);
                    let message = Some(v1::meet_request::Message::Frame(packet.into()));
                    match queue.push(v1::MeetRequest { message }, bytes) {
                        Ok(()) => continue,
                        Err(full) => full.to_string(),
                    }
                }
                Some(Ok(LinkInput::Sign(sign))) if writer.answer(sign, agent.liveness_limit) => {
                    continue;
                }
                _ => return,
            },
            packet = frames.next() => match packet {
                Some(Ok(packet)) if writer.carry(&packet).is_ok() => continue,
                Some(Ok(_)) => return,
                Some(Err(error)) => error.to_string(),
                None => PeerError::Ended(member.name.clone()).to_string(),
            },
            () = writer.flush(), if writer.waits() => continue,
        };
        warn!("a launch lost its name server: {reason}");
        return writer.report(&AgentReport::Refused { reason }).await;
    }
}

impl crate::peer::peer_connection::Peers {
    /// Connects a launch of this machine to the name server at another agent: returns a queue for
    /// its messages, and the stream of messages to it, which ends with an error if the other agent
    /// is lost.
    async fn connect_launch(
        self: &Arc<Self>,
        member: &NodeAddress,
        (uid, name): &NameServerKey,
        account: &Arc<BudgetAccount>,
    ) -> Result<
        (
            LinkQueue<v1::MeetRequest>,
            impl Stream<Item = Result<RoutedFrame, PeerError>> + use<>,
        ),
        PeerError,
    > {
        let (to, queued) = queue(account);
        let message = Some(v1::meet_request::Message::Hello(v1::MeetHello {
            version: wireup_core::link::agent_protocol::VERSION,
            agent: crate::PROGRAM_VERSION.to_owned(),
            uid: *uid,
            name: name.clone(),
        }));
        to.push(v1::MeetRequest { message }, 0)
            .expect("the queue is empty");
        let sent = Resend::new(queued);
        let meet = |mut client: PeerClient<Channel>| {
            let attempt = sent.attempt();
            async move { client.meet(attempt).await }
        };
        // While it is restarted, the next of the list would be another name server.
        let (stream, line) = self.call(member, account, RESTART, meet).await?;
        sent.accept();
        let messages = stream.map(move |frame| match frame {
            Ok(frame) => packet(frame).map_err(|error| line.misunderstood(error)),
            Err(status) => Err(line.failed(&status)),
        });
        Ok((to, messages))
    }
}
