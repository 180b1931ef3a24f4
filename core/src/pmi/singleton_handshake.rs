//! Handshake with a process that runs without a launcher and requests a spawn. It listens, and the server that it has
//! started for this connects and sends the first message.
//!
//! ```text
//! server: singinit        client: singinit        server: singinit_info        then as any client of PMI-1
//! ```
//! Rule: the client's program starts `mpiexec -pmi_args PORT INTERFACE KEY PID`; a KEY other than `default_key` is a
//! secret that the client repeats as its `authstring`. Source: docs/pmi-wire.md#singletons.

use super::request_v1;
use super::wire_v1::{Pmi1Line, ProtocolError};

/// The KEY of clients that have none.
pub const NO_KEY: &str = "default_key";

/// Most bytes of the client's only line.
const ANSWER_MAX: usize = 1024;

/// Reason for which the client cannot be served.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SingletonError {
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("the answer is not singinit")]
    NotSinginit,
    #[error("the answer is longer than {ANSWER_MAX} bytes")]
    TooLong,
    #[error("authentication by `{0}` was not offered")]
    AuthType(String),
    #[error("the answer does not repeat the key of the command line")]
    WrongKey,
}

/// Result of a completed handshake.
#[derive(Debug, PartialEq, Eq)]
pub struct SingletonAgreement {
    /// Last line of the server, which ends the conversation if it does not support the client's version.
    pub reply: String,
    pub version_ok: bool,
    /// Three more connections are made, which become the client's standard streams.
    pub stdio: bool,
    /// Bytes that followed the client's line.
    pub received: Vec<u8>,
}

/// State of the handshake with a singleton, on the server's side.
#[derive(Debug)]
pub struct SingletonHandshake {
    key: Option<String>,
    /// The server takes the client's standard streams if that offers it.
    stdio: bool,
    kvsname: String,
    received: Vec<u8>,
}

impl SingletonHandshake {
    /// Starts a handshake with a client that was started with this KEY.
    pub fn new(key: &str, stdio: bool, kvsname: &str) -> Self {
        Self {
            key: (key != NO_KEY).then(|| key.to_owned()),
            stdio,
            kvsname: kvsname.to_owned(),
            received: Vec::new(),
        }
    }

    fn auth_type(&self) -> &'static str {
        match self.key {
            Some(_) => "shared",
            None => "none",
        }
    }

    /// Returns the first line of the server.
    pub fn greeting(&self) -> String {
        format!(
            "cmd=singinit pmi_version=1 pmi_subversion=1 stdio={} authtype={}\n",
            yes(self.stdio),
            self.auth_type()
        )
    }

    /// Takes the client's bytes in any pieces; `None` until there is a whole line.
    ///
    /// # Errors
    /// [`SingletonError`]: the connection is of no use.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<SingletonAgreement>, SingletonError> {
        self.received.extend_from_slice(bytes);
        let window = &self.received[..self.received.len().min(ANSWER_MAX)];
        let Some(end) = memchr::memchr(b'\n', window) else {
            return match self.received.len() >= ANSWER_MAX {
                true => Err(SingletonError::TooLong),
                false => Ok(None),
            };
        };
        let line = Pmi1Line::parse(&self.received[..end])?;
        if line.name != b"singinit" {
            return Err(SingletonError::NotSinginit);
        }
        let names = ["pmi_version", "stdio", "authtype", "authstring"];
        let [version, stdio, auth_type, auth_string] = request_v1::pick(line.fields(), names)?;
        match auth_type.unwrap_or(b"none") {
            auth_type if auth_type == self.auth_type().as_bytes() => {}
            other => return Err(SingletonError::AuthType(other.escape_ascii().to_string())),
        }
        if let Some(key) = &self.key
            && auth_string != Some(key.as_bytes())
        {
            return Err(SingletonError::WrongKey);
        }
        let version_ok = version == Some(b"1");
        let stdio = self.stdio && stdio == Some(b"yes");
        let reply = format!(
            "cmd=singinit_info rc=0 versionok={} stdio={} kvsname={}\n",
            yes(version_ok),
            yes(stdio),
            self.kvsname
        );
        let received = self.received.split_off(end + 1);
        Ok(Some(SingletonAgreement {
            reply,
            version_ok,
            stdio,
            received,
        }))
    }
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As MPICH 5.0.2 sends it.
    const ANSWER: &str = "cmd=singinit pmi_version=1 pmi_subversion=2 stdio=yes authtype=none\n";

    #[test]
    fn captured_client_gets_kvsname() {
        for (stdio, word) in [(false, "no"), (true, "yes")] {
            let mut singleton = SingletonHandshake::new(NO_KEY, stdio, "job-1");
            assert!(singleton.greeting().starts_with("cmd=singinit "));
            assert!(singleton.greeting().ends_with(" authtype=none\n"));
            let agreed = singleton.receive(ANSWER.as_bytes()).unwrap().unwrap();
            let expected =
                format!("cmd=singinit_info rc=0 versionok=yes stdio={word} kvsname=job-1\n");
            assert_eq!(agreed.reply, expected);
            assert_eq!((agreed.version_ok, agreed.stdio), (true, stdio));
        }
    }

    #[test]
    fn key_must_match_and_version_be_known() {
        let handshake = |key: &str, text: &str| {
            SingletonHandshake::new(key, false, "j").receive(text.as_bytes())
        };
        let shared = "cmd=singinit pmi_version=1 pmi_subversion=1 authtype=shared authstring=";
        assert!(
            handshake("k1", &format!("{shared}k1\n"))
                .unwrap()
                .unwrap()
                .version_ok
        );
        assert_eq!(
            handshake("k1", &format!("{shared}k2\n")),
            Err(SingletonError::WrongKey)
        );
        assert!(matches!(
            handshake("k1", ANSWER),
            Err(SingletonError::AuthType(_))
        ));
        assert!(matches!(
            handshake(NO_KEY, &format!("{shared}k\n")),
            Err(SingletonError::AuthType(_))
        ));
        let other = ANSWER.replace("version=1", "version=7");
        assert!(!handshake(NO_KEY, &other).unwrap().unwrap().version_ok);
        assert_eq!(
            handshake(NO_KEY, "cmd=init pmi_version=1\n"),
            Err(SingletonError::NotSinginit)
        );
        assert_eq!(
            handshake(NO_KEY, &"x".repeat(ANSWER_MAX)),
            Err(SingletonError::TooLong)
        );
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(at in 0..ANSWER.len() + 4) {
            let text = format!("{ANSWER}next");
            let (first, second) = text.as_bytes().split_at(at);
            let mut singleton = SingletonHandshake::new(NO_KEY, false, "j");
            let mut agreed = singleton.receive(first).unwrap();
            let mut rest = second;
            if agreed.is_none() {
                agreed = singleton.receive(second).unwrap();
                rest = b"";
            }
            prop_assert_eq!([agreed.unwrap().received, rest.to_vec()].concat(), b"next");
        }
    }
}
