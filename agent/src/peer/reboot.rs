//! Detects whether a lost host has rebooted, by the boot id from its agent. The agent is queried at once if the
//! connection was lost, and again for a while if there was no answer.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt, stream};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use super::peer_connection::{ConnectionUse, Peers};
use super::peer_error::PeerError;
use crate::budget::BudgetAccount;
use crate::launch::NodeReturned;
use crate::launch::frame_router::RouterEvent;
use crate::proto::v1;
use crate::proto::v1::peer_client::PeerClient;
use wireup_core::job::ids::NodeId;
use wireup_core::link::agent_protocol::{NO_SIGN, VERSION};

/// Longest delay of the report of a loss by the question. An agent that crashed and one that serves answer at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time for which a host that does not answer is asked again, unless the launch ends: large machines take some minutes
/// to boot.
const AWAITED: Duration = Duration::from_secs(15 * 60);

/// The time between two questions.
const INTERVAL: Duration = Duration::from_secs(2);

/// A child whose stream has failed.
pub(super) struct LostChild {
    pub(super) child: NodeId,
    /// Boot id from the agent of the host; empty if unknown.
    pub(super) boot: String,
    /// Connection to the agent.
    pub(super) line: Arc<ConnectionUse>,
    pub(super) peers: Arc<Peers>,
    pub(super) account: Arc<BudgetAccount>,
}

impl LostChild {
    /// Returns the loss with its reason, followed by the event that the agent answers again, if it does.
    pub(super) fn events(self, loss: PeerError) -> impl Stream<Item = RouterEvent> + Send {
        let first = async move {
            let at_once = matches!(&loss, PeerError::Lost { cause, .. } if cause != NO_SIGN);
            // A silent host would not answer, and its loss is known late already.
            let rebooted = match at_once {
                true => self.rebooted(PATIENCE).await,
                false => None,
            };
            let reason = match rebooted {
                Some(true) => PeerError::Rebooted(self.line.member().name.clone()).to_string(),
                _ => loss.to_string(),
            };
            let child = self.child;
            let gone = RouterEvent::ChildGone { child, reason };
            let awaited = rebooted.is_none() && matches!(loss, PeerError::Lost { .. });
            let later = async move {
                match awaited {
                    true => self.back().await,
                    false => None,
                }
            };
            let later = stream::once(later).filter_map(std::future::ready);
            stream::iter([gone]).chain(later)
        };
        first.flatten_stream()
    }

    /// Waits until its agent answers again.
    async fn back(&self) -> Option<RouterEvent> {
        if self.boot.is_empty() {
            return None;
        }
        let asking = async {
            loop {
                sleep(INTERVAL).await;
                if let Some(rebooted) = self.rebooted(self.peers.connecting() + PATIENCE).await {
                    return rebooted;
                }
            }
        };
        let rebooted = timeout(AWAITED, asking).await.ok()?;
        let node = self.child;
        Some(RouterEvent::Back(NodeReturned { node, rebooted }))
    }

    /// Whether the agent at its place answers within a time from another boot of the machine.
    async fn rebooted(&self, within: Duration) -> Option<bool> {
        if self.boot.is_empty() {
            return None;
        }
        let request = v1::StatusRequest { version: VERSION };
        let ask = |mut client: PeerClient<Channel>| async move { client.status(request).await };
        let member = self.line.member();
        let call = self.peers.call(member, &self.account, Duration::ZERO, ask);
        let (answer, _) = timeout(within, call).await.ok()?.ok()?;
        let boot = answer.boot;
        (!boot.is_empty()).then(|| boot != self.boot)
    }
}
