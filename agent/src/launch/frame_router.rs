//! The [router](wireup_core::link::router) of a launch, with bodies as they are read here: to clone one does not
//! copy it.

use prost::bytes::Bytes;
pub use wireup_core::link::agent_protocol::{NodeLoss, NodeReturned};
use wireup_core::link::frame::{BODY_MAX, FrameAddress};
use wireup_core::link::router;
pub use wireup_core::link::router::{Neighbour, Router, TreePosition};

/// Frame of a launch; see [`router::RoutedFrame`].
pub type RoutedFrame = router::RoutedFrame<Bytes>;
/// Nodes that join; see [`router::GrowthRequest`].
pub type GrowthRequest = router::GrowthRequest<Bytes>;
/// Input of the router; see [`router::RouterEvent`].
pub type RouterEvent = router::RouterEvent<Bytes>;
/// Output of the router; see [`router::RouterAction`].
pub type RouterAction = router::RouterAction<Bytes>;

/// Cuts a message into the bodies of frames, at least one, each with whether the message continues in the next.
pub fn frame_bodies(message: Bytes) -> impl Iterator<Item = (Bytes, bool)> {
    let mut rest = Some(message);
    std::iter::from_fn(move || {
        let mut whole = rest.take()?;
        let body = whole.split_to(whole.len().min(BODY_MAX));
        let more = !whole.is_empty();
        rest = more.then_some(whole);
        Some((body, more))
    })
}

/// Cuts a message of a name server into frames for the launcher.
pub fn frames_to_launcher(message: Bytes) -> impl Iterator<Item = RoutedFrame> {
    frame_bodies(message).map(|(body, more)| RoutedFrame {
        to: FrameAddress::Launcher,
        from: FrameAddress::EveryNode,
        more,
        body,
    })
}
