//! The clients of one rank, one after the other, for what stands between them and the rank's server (`wireup serve
//! --restartable`): nothing of one reaches the next, and the server gets no half message.
//!
//! ```text
//!  client        between                     server
//!    │ ─ barrier_in ▶ │ ─────────────────────▶ │
//!    ✗ gone           │ ─ restart ───────────▶ │
//!                     │ ◀─ what was under way ─ │   dropped
//!                     │ ◀─ restarted ────────── │
//!  the next one ────▶ │
//! ```
//! Rule: `restart` and its answer are lines in both dialects. Source: docs/pmi-wire.md#restart.

use super::transcript::TranscriptSide;

/// Message to the server after the end of the rank's client.
const RESTART: &[u8] = b"cmd=restart\n";

/// The server's answer, as a [`TranscriptSide`] shows it: nothing for that client follows.
const RESTARTED: &str = "cmd=restarted rc=0";

/// The server's answer to the `init` of PMI-2.
const GREETING: &[u8] = b"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n";

/// State of the connection between a rank's server and its successive clients.
#[derive(Debug, Default)]
pub struct ClientHandover {
    client: TranscriptSide,
    /// A message of the client that has not ended.
    partial_message: Vec<u8>,
    /// Whether the client has sent finalize.
    finalized: bool,
    server: TranscriptSide,
    /// Whether the client has ended, and the server has not acknowledged it.
    between: bool,
}

impl ClientHandover {
    /// Takes bytes that the client has sent; returns the bytes that the server gets now.
    pub fn from_client(&mut self, bytes: &[u8]) -> Vec<u8> {
        for message in self.client.read_messages(bytes) {
            let is = |name| message.strip_prefix(name).is_some_and(is_end_of_name);
            self.finalized = is("cmd=finalize") || self.finalized && !is("cmd=init");
        }
        self.partial_message.extend_from_slice(bytes);
        let whole = self.partial_message.len() - self.client.unfinished();
        self.partial_message.drain(..whole).collect()
    }

    /// Notes that the server's answer to the client's `init` of PMI-2 is not among its later bytes.
    pub fn greeted(&mut self) {
        self.server.read_messages(GREETING);
    }

    /// Handles bytes of the server, which the client gets unless it has ended.
    pub fn from_server(&mut self, bytes: &[u8]) {
        let messages = self.server.read_messages(bytes);
        if self.between && messages.iter().any(|message| message == RESTARTED) {
            *self = Self::default();
        }
    }

    /// Handles the end of the client. Returns the message for the server; `None` if the client has finalized and no
    /// other one follows.
    pub fn client_gone(&mut self) -> Option<&'static [u8]> {
        self.partial_message.clear();
        self.between = !self.finalized;
        self.between.then_some(RESTART)
    }

    /// Whether the next client has to wait.
    pub fn is_between(&self) -> bool {
        self.between
    }
}

/// Whether a command's name ends in front of this.
fn is_end_of_name(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with([' ', ';'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PMI_2: &[u8] = b"cmd=init pmi_version=2 pmi_subversion=0\n    23cmd=fullinit;pmirank=1;";

    #[test]
    fn state_of_client_does_not_reach_next_client() {
        let mut between = ClientHandover::default();
        let init = b"cmd=init pmi_version=1 pmi_subversion=1\n";
        assert_eq!(between.from_client(init), init);
        between.from_server(b"cmd=response_to_init rc=0\n");
        assert_eq!(between.from_client(b"cmd=put kvsname=k key=a val"), b"");
        assert_eq!(between.client_gone(), Some(RESTART));
        assert!(between.is_between());
        between.from_server(b"cmd=barrier_out rc=0 tag=0\ncmd=rest");
        assert!(between.is_between());
        between.from_server(b"arted rc=0\n");
        assert!(!between.is_between());
        assert_eq!(between.from_client(init), init);
    }

    #[test]
    fn client_after_finalize_has_no_successor_unless_it_restarts() {
        for (text, gone) in [
            ("cmd=init pmi_version=1\ncmd=finalize\n", None),
            ("cmd=init pmi_version=1\ncmd=finalizes\n", Some(RESTART)),
            (
                "cmd=init pmi_version=1\ncmd=finalize\ncmd=init pmi_version=1\n",
                Some(RESTART),
            ),
            ("cmd=init pmi_version=2\n    13cmd=finalize;", None),
        ] {
            let mut between = ClientHandover::default();
            assert_eq!(between.from_client(text.as_bytes()), text.as_bytes());
            assert_eq!(between.client_gone(), gone, "{text}");
        }
    }

    proptest! {
        #[test]
        fn server_gets_whole_messages_of_both_versions_from_any_chunks(
            size in 1_usize..90, cut in 0_usize..70, greeted in any::<bool>(),
        ) {
            let mut between = ClientHandover::default();
            let mut got = Vec::new();
            let sent = &PMI_2[..cut.min(PMI_2.len())];
            for piece in sent.chunks(size) {
                got.extend(between.from_client(piece));
            }
            let line = 1 + PMI_2.iter().position(|byte| *byte == b'\n').unwrap();
            let whole = if cut >= PMI_2.len() { PMI_2.len() } else if cut >= line { line } else { 0 };
            prop_assert_eq!(got, &PMI_2[..whole]);
            if greeted {
                between.greeted();
                between.from_server(b"    28cmd=kvs-fence-response;rc=");
            } else {
                between.from_server(GREETING);
                between.from_server(b"    28cmd=kvs-fence-response;rc=");
            }
            between.client_gone();
            between.from_server(b"0;cmd=restarted rc=0\n");
            prop_assert!(!between.is_between());
        }
    }
}
