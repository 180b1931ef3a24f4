//! The [router](wireup_core::link::router) of a launch, with bodies as they are read here: to clone one does not
//! copy it.

use prost::bytes::Bytes;
pub use wireup_core::link::agent_protocol::NodeReturned;
use wireup_core::link::router;
pub use wireup_core::link::router::{Neighbour, NodeLoss, Router, TreePosition};

/// Frame of a launch; see [`router::RoutedFrame`].
pub type RoutedFrame = router::RoutedFrame<Bytes>;
/// Nodes that join; see [`router::GrowthRequest`].
pub type GrowthRequest = router::GrowthRequest<Bytes>;
/// Input of the router; see [`router::RouterEvent`].
pub type RouterEvent = router::RouterEvent<Bytes>;
/// Output of the router; see [`router::RouterAction`].
pub type RouterAction = router::RouterAction<Bytes>;
