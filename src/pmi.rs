//! PMI served to the ranks of one node; no I/O.
//!
//! Bytes become lines and fields ([`wire_v1`], [`spawn_v1`]), fields become a typed request
//! ([`message`]), and a request is applied to the job's state on this node ([`server`]), which
//! keeps one [`client`] state per rank and what `get` finds ([`store`]). Out come [`effect`]s, most
//! of them a [`reply`] to send. [`limits`] has every size.
//!
//! The wire version is a matter of the connection: PMI-1 today. The modules with `_v1` in their
//! name know the text form, `message` and `server` know what is asked and answered.

pub mod client;
pub mod effect;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod limits;
pub mod message;
pub mod reply;
pub mod server;
pub mod spawn_v1;
pub mod store;
pub mod wire_v1;

#[cfg(test)]
mod tests;
