//! PMI served to the ranks of one node; no I/O.
//!
//! Bytes become messages and fields ([`wire_v1`], [`spawn_v1`], [`wire_v2`], [`spawn_v2`]), fields
//! become a typed [`request`] ([`request_v1`], [`request_v2`]), and a request is applied to the
//! job's state on this node ([`server`]), which keeps one [`client`] state per rank, what `get`
//! finds ([`pmi_store`]), the attributes of the node (`node_attributes`), the jobs it is connected with (`connections`),
//! and the members of each barrier or ring (`barriers`). A PMI-2 request in several messages becomes one first (`continued`). Out come [`pmi_action`]s, most of them a [`reply`] to send. [`limits`]
//! has every size. A client that comes over TCP passes a [`tcp_handshake`] first, perhaps with a [`challenge`];
//! one that carries several ranks goes through a [`client_multiplexer`];
//! with a process that runs without a launcher the conversation starts as [`singleton_handshake`] has it. A [`transcript`] is for people.
//!
//! The dialect is a matter of the connection: PMI-1 and PMI-2 are served side by side. The modules
//! with `_v1` in their name know lines, those with `_v2` frames; the others handle typed requests
//! and answered, whatever the form.

pub(crate) mod barriers;
pub mod challenge;
pub mod client;
pub mod client_handover;
pub mod client_multiplexer;
pub mod command;
mod connections;
mod fragments;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod limits;
mod node_attributes;
pub mod node_resource;
pub mod pmi_action;
pub mod pmi_collective;
pub mod pmi_store;
pub mod reply;
mod reply_v1;
mod reply_v2;
pub mod request;
pub mod request_v1;
pub mod request_v2;
mod ring;
pub mod server;
pub mod singleton_handshake;
pub mod spawn;
pub mod spawn_v1;
pub mod spawn_v2;
pub mod tcp_handshake;
pub mod transcript;
pub mod wire_v1;
pub mod wire_v2;

#[cfg(test)]
mod tests;
