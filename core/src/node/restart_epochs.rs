//! Epochs of the launch: each process that speaks for a rank in place of another one begins one. The first node gives the
//! numbers, so each is given after all lower ones, and an epoch is known nowhere before its process has come.

use std::collections::BTreeMap;

use super::node_context::NodeContext;
use super::remote_keys::KeyRequester;
use super::service_messages::EpochMessage;
use super::terms::HEAD;
use crate::node::event::{NodeAction, PeerMessage};

/// The processes of this node that wait for an epoch.
#[derive(Debug, Default)]
pub(super) struct EpochRequests {
    last_number: u64,
    waiting: BTreeMap<u64, KeyRequester>,
}

impl EpochRequests {
    /// Asks the first node for an epoch.
    pub(super) fn request_epoch(&mut self, asker: KeyRequester, cx: &mut NodeContext) {
        self.last_number += 1;
        let number = self.last_number;
        self.waiting.insert(number, asker);
        let message = PeerMessage::Epoch(EpochMessage::Begin { number });
        cx.order(NodeAction::SendPeer { to: HEAD, message });
    }

    /// Takes the process that waits for the answer of that number.
    pub(super) fn take(&mut self, number: u64) -> Option<KeyRequester> {
        self.waiting.remove(&number)
    }
}

#[cfg(test)]
mod tests;
