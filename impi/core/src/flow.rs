//! Throttling of one ordered pair of processes.
//!
//! Rule: the source stops at `hiwater` unacknowledged packets, the destination acknowledges each `ackmark`. Source: IMPI 3.6.

/// Counter of unacknowledged packets at the source.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SendWindow {
    sent: u32,
}

impl SendWindow {
    /// Whether another packet may go.
    pub fn is_open(self, high_water: u32) -> bool {
        self.sent < high_water
    }

    /// Counts a packet that was sent.
    pub fn sent(&mut self) {
        self.sent += 1;
    }

    /// Handles a protocol ack; returns whether it is valid. One that acknowledges more than was sent violates the
    /// protocol.
    pub fn acknowledged(&mut self, ack_mark: u32) -> bool {
        let valid = self.sent >= ack_mark;
        self.sent = self.sent.saturating_sub(ack_mark);
        valid
    }
}

/// Counter of unacknowledged packets at the destination.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReceiveWindow {
    count: u32,
}

impl ReceiveWindow {
    /// Counts a packet that was received; returns whether it is the one to acknowledge.
    pub fn received(&mut self, ack_mark: u32) -> bool {
        self.count += 1;
        let due = self.count == ack_mark;
        if due {
            self.count = 0;
        }
        due
    }
}
