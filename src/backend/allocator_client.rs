//! Client of an external allocator: a process that listens on a Unix socket and answers requests in lines of JSON.
//! docs/allocations.md describes the protocol for authors of allocators.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memchr::memchr;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::backend::local_agent;
use wireup_core::job::allocation::{Directive, NodeShare};
use wireup_core::job::ids::{Rank, UserId};
use wireup_core::wording::json_problem;
use wireup_sys::channel::{BacklogPolicy, Channel, ReadResult};
use wireup_sys::poll::{Poll, PollSource, PollToken};

/// Version of the allocator protocol.
const VERSION: u32 = 1;

/// Most bytes of a line: the nodes of the largest launch.
const LINE_MAX: usize = 16 << 20;

/// First message of the launch on a connection.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Hello<'a> {
    version: u32,
    pub(crate) launch: &'a str,
    pub(crate) user: u32,
    pub(crate) pid: u32,
    pub(crate) nodes: Vec<NodeShare>,
}

impl<'a> Hello<'a> {
    pub(crate) fn new(launch: &'a str, user: UserId, nodes: Vec<NodeShare>) -> Self {
        Self {
            version: VERSION,
            launch,
            user: user.0,
            pid: std::process::id(),
            nodes,
        }
    }
}

/// Allocation request of a rank or tool.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AllocatorRequest<'a> {
    pub(crate) number: u64,
    pub(crate) directive: Directive,
    pub(crate) nspace: &'a str,
    pub(crate) rank: Rank,
    /// Name of the allocation, as in [`WantedAllocation`](crate::plan::allocation_table::WantedAllocation).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) req_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nodes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slots: Option<u32>,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pub(crate) slots_of: &'a [u32],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) hosts: Vec<NodeShare>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds: Option<u64>,
    /// Info keys of the request that wireup does not interpret, with their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) infos: BTreeMap<&'a str, &'a str>,
    /// Unused slots of the launch.
    pub(crate) free: Vec<NodeShare>,
}

/// Messages to an allocator.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToAllocator<'a> {
    Hello(Hello<'a>),
    Request(AllocatorRequest<'a>),
    /// A pending request is withdrawn; the allocator need not reply.
    Cancel {
        number: u64,
    },
    /// An allocation is no longer needed: the job that requested it has ended.
    Ended {
        id: &'a str,
    },
}

/// Positive reply of an allocator: slots that it grants, or a release that it confirms.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AllocatorGrant {
    pub(crate) number: u64,
    pub(crate) id: Option<String>,
    /// The granted or released slots.
    #[serde(default)]
    pub(crate) nodes: Vec<NodeShare>,
    pub(crate) seconds: Option<u64>,
}

/// Replies of an allocator.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum FromAllocator {
    Granted(AllocatorGrant),
    Refused { number: u64, reason: String },
}

/// Error: a request cannot be sent to the allocator, or its reply cannot be received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocatorError {
    /// No process listens at the socket, or a process of another user does.
    #[error("no allocator: {0}")]
    Unreachable(local_agent::AgentUnavailable),
    /// The allocator was lost earlier; the launch does not connect again.
    #[error("the allocator was lost earlier")]
    None,
    /// The system lacks resources for the connection.
    #[error(transparent)]
    Channel(#[from] Errno),
    /// The allocator sent a line that is not a reply.
    #[error("invalid message {start:?}: {}", json_problem(error))]
    NoAnswer {
        start: String,
        error: serde_json::Error,
    },
    #[error("a message is longer than {LINE_MAX} bytes")]
    LongLine,
    #[error("connection closed")]
    Gone,
}

/// Client that connects to the allocator with the first message.
#[derive(Debug)]
pub(crate) struct AllocatorClient {
    path: PathBuf,
    channel: Option<Channel>,
    bytes: Vec<u8>,
}

impl AllocatorClient {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            channel: None,
            bytes: Vec::new(),
        }
    }

    /// Returns the path of the allocator's socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Sends a message. The first one opens the connection and is preceded by `hello`.
    ///
    /// # Errors
    /// [`AllocatorError`]; nothing was sent.
    pub(crate) fn send_message(
        &mut self,
        message: &ToAllocator<'_>,
        hello: &Hello<'_>,
        poll: &Poll,
    ) -> Result<(), AllocatorError> {
        let channel = match &mut self.channel {
            Some(channel) => channel,
            none => {
                let socket = local_agent::connect_trusted(&self.path, UserId(hello.user))
                    .map_err(AllocatorError::Unreachable)?;
                let token = PollToken::new(PollSource::Allocator, 0);
                let channel = Channel::new(socket, token, BacklogPolicy::Flows, poll)?;
                self.bytes.clear();
                let channel = none.insert(channel);
                channel.send(&line(&ToAllocator::Hello(hello.clone())), poll);
                channel
            }
        };
        channel.send(&line(message), poll);
        Ok(())
    }

    /// Sends a message if the connection is open; otherwise drops it.
    pub(crate) fn mention(&mut self, message: &ToAllocator<'_>, poll: &Poll) {
        if let Some(channel) = &mut self.channel {
            channel.send(&line(message), poll);
        }
    }

    /// Continues to send queued bytes when the socket is writable.
    pub(crate) fn writable(&mut self, poll: &Poll) {
        if let Some(channel) = &mut self.channel {
            channel.writable(poll);
        }
    }

    /// Appends the messages received so far to `messages`.
    ///
    /// # Errors
    /// [`AllocatorError`]; the connection is closed then.
    pub(crate) fn drain_messages(
        &mut self,
        messages: &mut Vec<FromAllocator>,
    ) -> Result<(), AllocatorError> {
        let result = self.receive(messages);
        if result.is_err() {
            self.channel = None;
        }
        result
    }

    fn receive(&mut self, messages: &mut Vec<FromAllocator>) -> Result<(), AllocatorError> {
        let Some(channel) = &self.channel else {
            return Ok(());
        };
        self.bytes.reserve(4096);
        let received = channel.append(&mut self.bytes);
        while let Some(end) = memchr(b'\n', &self.bytes) {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            messages.push(serde_json::from_slice(&line).map_err(|error| {
                let line = String::from_utf8_lossy(&line);
                let start: String = line.trim_end().chars().take(80).collect();
                AllocatorError::NoAnswer { start, error }
            })?);
        }
        match received {
            ReadResult::End => Err(AllocatorError::Gone),
            _ if self.bytes.len() > LINE_MAX => Err(AllocatorError::LongLine),
            _ => Ok(()),
        }
    }
}

fn line(message: &ToAllocator<'_>) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("texts and numbers are JSON");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_equal_documentation() {
        let request = ToAllocator::Request(AllocatorRequest {
            number: 3,
            directive: Directive::New,
            nspace: "job",
            rank: Rank(1),
            id: None,
            req_id: Some("mine"),
            nodes: Some(2),
            slots: None,
            slots_of: &[],
            hosts: Vec::new(),
            seconds: None,
            infos: BTreeMap::from([("pmix.alloc.queue", "debug")]),
            free: vec![NodeShare {
                name: "n1".to_owned(),
                slots: Some(2),
            }],
        });
        assert_eq!(
            String::from_utf8(line(&request)).unwrap(),
            "{\"request\":{\"number\":3,\"directive\":\"new\",\"nspace\":\"job\",\"rank\":1,\
             \"req_id\":\"mine\",\"nodes\":2,\"infos\":{\"pmix.alloc.queue\":\"debug\"},\
             \"free\":[{\"name\":\"n1\",\"slots\":2}]}}\n"
        );
        let ended = line(&ToAllocator::Ended { id: "a1" });
        assert_eq!(ended, b"{\"ended\":{\"id\":\"a1\"}}\n");
    }

    #[test]
    fn replies_may_omit_empty_fields() {
        let read = |line: &str| serde_json::from_str::<FromAllocator>(line);
        let bare = read("{\"granted\":{\"number\":3}}").unwrap();
        assert_eq!(
            bare,
            FromAllocator::Granted(AllocatorGrant {
                number: 3,
                id: None,
                nodes: Vec::new(),
                seconds: None,
            })
        );
        assert!(read("{\"granted\":{\"number\":3,\"node\":[]}}").is_err());
        assert!(read("{\"refused\":{\"number\":3,\"reason\":\"no\"}}").is_ok());
    }
}
