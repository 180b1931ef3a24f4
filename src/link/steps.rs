//! What an agent says to `wireup steps`, the process from which its steps are forked.
//!
//! With each order come two descriptors: the step's end of its link, and the pipe for what it says.
//! With a good answer comes the step's pidfd. The step is a child of the agent.

use serde::{Deserialize, Serialize};

/// A step is wanted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Whose process it becomes, if it has to become somebody else's.
    pub account: Option<Account>,
    /// Its environment, in place of what there is: `NAME=value`.
    pub environment: Vec<Vec<u8>>,
}

/// The numbers of a user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Account {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What became of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// There is a step. That it becomes its user's is its own business: if it cannot, it says so and
    /// ends.
    Made {
        /// Its process.
        pid: i32,
    },
    /// There is none.
    Failed {
        /// The system's reason.
        errno: i32,
    },
}
