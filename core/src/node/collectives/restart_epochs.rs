//! Epochs of the launch: each restarted process that speaks for a rank begins one. The head node assigns the numbers,
//! so each is assigned after all lower ones, and an epoch is unknown everywhere before its process has started.

use std::collections::BTreeMap;

use crate::node::context::NodeContext;
use crate::node::context::collective_policy::HEAD;
use crate::node::event::PeerMessage;
use crate::node::lookups::remote_keys::KeyRequester;
use crate::node::service_messages::EpochMessage;

/// The processes of this node that wait for an epoch.
#[derive(Debug, Default)]
pub(in crate::node) struct EpochRequests {
    last_number: u64,
    waiting: BTreeMap<u64, KeyRequester>,
}

impl EpochRequests {
    /// Asks the first node for an epoch.
    pub(in crate::node) fn request_epoch(&mut self, asker: KeyRequester, cx: &mut NodeContext) {
        self.last_number += 1;
        let number = self.last_number;
        self.waiting.insert(number, asker);
        let message = PeerMessage::Epoch(EpochMessage::Begin { number });
        cx.send(HEAD, message);
    }

    /// Takes the process that waits for the reply with that number.
    pub(in crate::node) fn take(&mut self, number: u64) -> Option<KeyRequester> {
        self.waiting.remove(&number)
    }
}

#[cfg(test)]
mod tests;
