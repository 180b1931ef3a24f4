//! Epochs of the launch: each process that speaks for a rank in place of another one begins one. The first node gives the
//! numbers, so each is given after all lower ones, and an epoch is known nowhere before its process has come.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::NodeCore;
use super::keys::Asker;
use crate::fence::FenceInput;
use crate::job::ids::NodeId;
use crate::node::event::{Action, PeerMessage};

/// The node that gives the numbers.
const HEAD: NodeId = NodeId(0);

/// Part of beginning an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EpochMessage {
    /// To the first node: a process has come.
    Begin { number: u64 },
    /// From the first node.
    Begun { number: u64, epoch: u64 },
}

/// The processes of this node that wait for an epoch.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    asked: u64,
    waiting: BTreeMap<u64, Asker>,
}

impl NodeCore {
    /// A process speaks for a rank of this node in place of another one.
    pub(super) fn begin_epoch(&mut self, asker: Asker) {
        if self.cx.node == HEAD {
            let epoch = self.next_epoch();
            return self.epoch_begun(asker, epoch);
        }
        self.epochs.asked += 1;
        let number = self.epochs.asked;
        self.epochs.waiting.insert(number, asker);
        let message = PeerMessage::Epoch(EpochMessage::Begin { number });
        self.cx.order(Action::SendPeer { to: HEAD, message });
    }

    pub(super) fn epoch_message(&mut self, from: NodeId, message: EpochMessage) {
        if !self.cx.terms.restartable {
            return;
        }
        match message {
            EpochMessage::Begin { number } if self.cx.node == HEAD => {
                let epoch = self.next_epoch();
                let message = PeerMessage::Epoch(EpochMessage::Begun { number, epoch });
                self.cx.order(Action::SendPeer { to: from, message });
            }
            EpochMessage::Begun { number, epoch } if from == HEAD => {
                if let Some(asker) = self.epochs.waiting.remove(&number) {
                    self.epoch_begun(asker, epoch);
                }
            }
            _ => {}
        }
    }

    fn next_epoch(&mut self) -> u64 {
        let epoch = self.fences.engine.epoch().saturating_add(1);
        self.fence(FenceInput::Renew { epoch });
        epoch
    }

    fn epoch_begun(&mut self, asker: Asker, epoch: u64) {
        self.fence(FenceInput::Renew { epoch });
        let Asker { job, rank, number } = asker;
        let server = self.cx.jobs.get_mut(job).and_then(|job| job.pmi.as_mut());
        let Some(server) = server else { return };
        let mut effects = Vec::new();
        server.renewed(rank, number, &mut effects);
        self.pmi_effects(job, effects);
    }
}

#[cfg(test)]
mod tests;
