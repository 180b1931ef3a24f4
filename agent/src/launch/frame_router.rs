//! The [router](wireup_core::link::router) of a launch, with bodies as they are read here: to clone one does not
//! copy it.

use prost::bytes::Bytes;
pub use wireup_core::link::control::Returned;
use wireup_core::link::router;
pub use wireup_core::link::router::{Loss, Neighbour, Router, TreePosition};

/// See [`router::Packet`].
pub type Packet = router::Packet<Bytes>;
/// See [`router::Growth`].
pub type Growth = router::Growth<Bytes>;
/// See [`router::Event`].
pub type Event = router::Event<Bytes>;
/// See [`router::Action`].
pub type Action = router::Action<Bytes>;
