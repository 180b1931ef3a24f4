//! What a launch and the rendezvous say to each other.

use serde::{Deserialize, Serialize};

use crate::store::shared::{FromShared, ToShared};

/// From a launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToRendezvous {
    /// For the shared store.
    Store(ToShared),
}

/// To a launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FromRendezvous {
    /// The first message: the launch is one of those that meet here.
    Welcome,
    /// From the shared store.
    Store(FromShared),
}
