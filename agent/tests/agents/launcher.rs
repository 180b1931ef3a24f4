//! A launcher: what `wireup run` is to an agent.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::cluster::{Agent, DEADLINE};
use serde::Serialize;
use wireup_core::job::ids::NodeId;
use wireup_core::link::agent_protocol::{
    AgentReport, AgentRequest, LaunchTree, NodeAddress, NodeStatus, VERSION,
};
use wireup_core::link::frame::{BODY_MAX, Frame, FrameAddress, FrameClass, FrameReader};
use wireup_core::link::{decode, encode};

/// Message or event that a launcher receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LauncherEvent {
    /// Text of a step, with the step's node.
    Step(u32, String),
    /// Report of the agent.
    Agent(AgentReport),
    /// The end of the connection.
    End,
}

pub(crate) struct Launcher {
    socket: UnixStream,
    reader: FrameReader,
    control: Vec<u8>,
}

impl Launcher {
    pub(crate) fn connect(agent: &Agent) -> Self {
        Self::over(UnixStream::connect(&agent.socket).unwrap())
    }

    /// Over a connection that was made.
    pub(crate) fn over(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        Self {
            socket,
            reader: FrameReader::default(),
            control: Vec::new(),
        }
    }

    /// Opens a launch with a name of its own.
    pub(crate) fn open(agent: &Agent, spread: LaunchTree) -> Self {
        Self::connect(agent).opens(spread)
    }

    /// Opens a launch over this connection.
    pub(crate) fn opens(mut self, spread: LaunchTree) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        self.ask(&AgentRequest::Open {
            version: VERSION,
            launch: format!("launch-{number}"),
            scheduled: String::new(),
            spread,
            description: vec![1; 1000],
        });
        self
    }

    pub(crate) fn ask(&mut self, request: &impl Serialize) {
        let request = encode(request);
        let mut bytes = Vec::new();
        let mut pieces = request.chunks(BODY_MAX).peekable();
        while let Some(piece) = pieces.next() {
            let frame = Frame {
                to: FrameAddress::EveryNode,
                from: FrameAddress::Launcher,
                class: FrameClass::Control,
                more: pieces.peek().is_some(),
                body: piece.to_vec(),
            };
            frame.encode(&mut bytes);
        }
        self.socket.write_all(&bytes).unwrap();
    }

    /// Sends bytes that may be no frames.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes)
    }

    pub(crate) fn send(&mut self, to: FrameAddress, text: &str) {
        let frame = Frame {
            to,
            from: FrameAddress::Launcher,
            class: FrameClass::Carried,
            more: false,
            body: text.as_bytes().to_vec(),
        };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.socket.write_all(&bytes).unwrap();
    }

    /// Sends a text with a command to one step.
    pub(crate) fn send_text(&mut self, node: u32, text: &str) {
        self.send(FrameAddress::Node(NodeId(node)), text);
    }

    /// Returns the next message or event.
    pub(crate) fn next_event(&mut self) -> LauncherEvent {
        loop {
            if let Some(frame) = self.reader.next_frame().unwrap() {
                match (frame.class, frame.from) {
                    (FrameClass::Carried, FrameAddress::Node(node)) => {
                        return LauncherEvent::Step(node.0, String::from_utf8(frame.body).unwrap());
                    }
                    // How long the agent may be silent.
                    (FrameClass::Sign, _) => {}
                    (FrameClass::Control, _) => {
                        self.control.extend_from_slice(&frame.body);
                        if !frame.more {
                            let message = std::mem::take(&mut self.control);
                            return LauncherEvent::Agent(decode(&message).unwrap());
                        }
                    }
                    other => panic!("{other:?}"),
                }
                continue;
            }
            let mut bytes = [0; 65536];
            match self.socket.read(&mut bytes) {
                Ok(0) => return LauncherEvent::End,
                Ok(count) => self.reader.push(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return LauncherEvent::End;
                }
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    /// Returns the next message, which must be one of a step, with its node.
    pub(crate) fn next_text(&mut self) -> (u32, String) {
        match self.next_event() {
            LauncherEvent::Step(node, text) => (node, text),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the steps of all these nodes have begun; gives the pids, by node.
    pub(crate) fn begun(&mut self, nodes: u32) -> Vec<u32> {
        self.begun_from(0, nodes)
    }

    /// Waits until the last `count` nodes of the launch, from `first` on, have started.
    pub(crate) fn begun_from(&mut self, first: u32, count: u32) -> Vec<u32> {
        let mut pids = vec![None; count as usize];
        while pids.contains(&None) {
            let (node, text) = self.next_text();
            let words: Vec<&str> = text.split(' ').collect();
            assert_eq!(words[0], "begun", "{text}");
            assert_eq!(words[1], node.to_string());
            assert_eq!(words[2], (first + count).to_string());
            let at = (node - first) as usize;
            assert_eq!(pids[at], None, "node {node} began twice");
            pids[at] = Some(words[4].parse().unwrap());
        }
        pids.into_iter().flatten().collect()
    }

    /// Lets steps send to each other, and then receives from all of them.
    #[track_caller]
    pub(crate) fn reaches(&mut self, pairs: &[(u32, u32)], nodes: u32) {
        for (from, to) in pairs {
            self.send_text(*from, &format!("send {to} from {from}"));
            assert_eq!(self.next_text(), (*to, format!("got {from} from {from}")));
        }
        self.send(FrameAddress::EveryNode, "hello");
        let mut texts: Vec<_> = (0..nodes).map(|_| self.next_text()).collect();
        texts.sort();
        let all: Vec<_> = (0..nodes).map(|n| (n, "heard hello".to_owned())).collect();
        assert_eq!(texts, all);
    }

    /// The next thing, which is the loss of nodes: which, why, and whether only the step is lost.
    pub(crate) fn lost(&mut self) -> (Vec<u32>, String, bool) {
        match self.next_event() {
            LauncherEvent::Agent(AgentReport::Unreachable(loss)) => {
                let nodes = loss.nodes.into_iter().map(|node| node.0);
                (nodes.collect(), loss.reason, loss.step)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The next thing, which is a refusal and the last.
    pub(crate) fn refused(&mut self) -> String {
        match self.next_event() {
            LauncherEvent::Agent(AgentReport::Refused { reason }) => {
                assert_eq!(self.next_event(), LauncherEvent::End);
                reason
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Asks an agent how nodes are.
pub(crate) fn nodes(agent: &Agent, members: Vec<NodeAddress>) -> Vec<NodeStatus> {
    let mut launcher = Launcher::connect(agent);
    launcher.ask(&AgentRequest::Nodes {
        version: VERSION,
        members,
    });
    match launcher.next_event() {
        LauncherEvent::Agent(AgentReport::Nodes(nodes)) => nodes,
        other => panic!("{other:?}"),
    }
}

/// Waits until processes are gone.
pub(crate) fn gone(pids: &[u32]) {
    let until = Instant::now() + DEADLINE;
    for pid in pids {
        while std::fs::exists(format!("/proc/{pid}")).unwrap() {
            assert!(Instant::now() < until, "process {pid} is still there");
            std::thread::yield_now();
        }
    }
}
