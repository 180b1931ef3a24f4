//! A client of PMI-1, for people who look at what a launcher serves (`wireup pmi`): under any launcher.

pub mod proxy;

use std::env;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use wireup_sys::inherited_fd;

/// How long a server may take to answer: the others may be slow to enter a barrier.
const PATIENCE: Duration = Duration::from_secs(600);
/// Most bytes of an answer.
const ANSWER_MAX: u64 = 1024 * 1024;

/// Why the server cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no launcher serves PMI here: neither PMI_FD nor PMI_PORT is set")]
    NoServer,
    #[error("{0} is not set, or is no number")]
    Variable(&'static str),
    #[error("PMI-1 has no place for {kind} like {text:?}: no {forbidden}")]
    Unsendable {
        kind: &'static str,
        text: String,
        forbidden: &'static str,
    },
    #[error("cannot reach the server: {0}")]
    Connect(#[source] std::io::Error),
    #[error("no answer to `{request}`: {error}")]
    Lost {
        request: String,
        #[source]
        error: std::io::Error,
    },
    #[error("`{request}` is answered `{answer}`")]
    Refused { request: String, answer: String },
}

/// A connection after its init.
#[derive(Debug)]
pub struct PmiConnection {
    stream: BufReader<UnixStream>,
    pub rank: u32,
    pub size: u32,
    kvsname: String,
}

/// One answer.
#[derive(Debug)]
pub struct ServerReply(String);

impl ServerReply {
    /// The value of a field without blanks; that of `value` goes to the end of the line.
    pub fn field(&self, name: &str) -> Option<&str> {
        let (_, rest) = self.0.split_once(&format!(" {name}="))?;
        match name {
            "value" => Some(rest),
            _ => rest.split(' ').next(),
        }
    }
}

/// Fails for a key, or the name of a store, that would be more than one field.
fn check_key(key: &str) -> Result<(), ClientError> {
    let is_field = !key.contains(|c: char| c.is_whitespace() || c == '=' || c == '\0');
    is_field
        .then_some(())
        .ok_or_else(|| ClientError::Unsendable {
            kind: "a name",
            text: key.to_owned(),
            forbidden: "blanks, `=` and line breaks",
        })
}

impl PmiConnection {
    /// Connects to the server that the environment names, and starts the protocol.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn new() -> Result<Self, ClientError> {
        let number = |name| env::var(name).ok()?.parse::<u32>().ok();
        let needed = |name| number(name).ok_or(ClientError::Variable(name));
        let fd = env::var("PMI_FD").ok().and_then(|text| text.parse().ok());
        let (stream, over_tcp) = match (fd, env::var("PMI_PORT")) {
            (Some(fd), _) => (
                inherited_fd::socket(fd).map_err(|error| ClientError::Connect(error.into()))?,
                false,
            ),
            (None, Ok(port)) => {
                let stream = TcpStream::connect(port).map_err(ClientError::Connect)?;
                (OwnedFd::from(stream), true)
            }
            (None, Err(_)) => return Err(ClientError::NoServer),
        };
        let stream = UnixStream::from(stream);
        let prepared = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
        prepared.map_err(ClientError::Connect)?;
        let mut client = Self {
            stream: BufReader::new(stream),
            rank: 0,
            size: 0,
            kvsname: String::new(),
        };
        if over_tcp {
            let id = needed("PMI_ID")?;
            client.send_request(&format!("cmd=initack pmiid={id}"))?;
            client.rank = id;
            // Three values follow; the one of them that is not known yet comes first.
            for _ in 0..3 {
                let answer = client.read_reply("cmd=initack")?;
                if let Some(size) = answer.field("size") {
                    client.size = size.parse().unwrap_or_default();
                }
            }
        } else {
            (client.rank, client.size) = (needed("PMI_RANK")?, needed("PMI_SIZE")?);
        }
        client.send_request("cmd=init pmi_version=1 pmi_subversion=1")?;
        client.send_request("cmd=get_maxes")?;
        let answer = client.send_request("cmd=get_my_kvsname")?;
        answer
            .field("kvsname")
            .unwrap_or_default()
            .clone_into(&mut client.kvsname);
        Ok(client)
    }

    pub fn kvsname(&self) -> &str {
        &self.kvsname
    }

    fn read_reply(&mut self, request: &str) -> Result<ServerReply, ClientError> {
        let lost = |error| ClientError::Lost {
            request: request.to_owned(),
            error,
        };
        let mut line = String::new();
        let read = self.stream.by_ref().take(ANSWER_MAX).read_line(&mut line);
        match read {
            Ok(_) if line.ends_with('\n') => Ok(ServerReply(line.trim_end().to_owned())),
            Ok(_) => Err(lost(std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(lost(error)),
        }
    }

    /// The answer to a request, whatever its `rc`.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub fn try_ask(&mut self, request: &str) -> Result<ServerReply, ClientError> {
        let sent = self
            .stream
            .get_mut()
            .write_all(format!("{request}\n").as_bytes());
        sent.map_err(|error| ClientError::Lost {
            request: request.to_owned(),
            error,
        })?;
        self.read_reply(request)
    }

    /// The answer to a request that must not fail.
    ///
    /// # Errors
    /// [`ClientError`], also for an `rc` other than 0. Some servers leave it out on success.
    pub fn send_request(&mut self, request: &str) -> Result<ServerReply, ClientError> {
        let answer = self.try_ask(request)?;
        match answer.field("rc") {
            None | Some("0") => Ok(answer),
            Some(_) => Err(ClientError::Refused {
                request: request.to_owned(),
                answer: answer.0,
            }),
        }
    }

    /// Enters a barrier; how long it took.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn barrier(&mut self) -> Result<Duration, ClientError> {
        let start = Instant::now();
        self.send_request("cmd=barrier_in")?;
        Ok(start.elapsed())
    }

    /// # Errors
    /// [`ClientError`].
    pub fn put(&mut self, key: &str, value: &str) -> Result<(), ClientError> {
        check_key(key)?;
        // It goes to the end of the line.
        if value.contains(['\n', '\0']) {
            return Err(ClientError::Unsendable {
                kind: "a value",
                text: value.to_owned(),
                forbidden: "line breaks",
            });
        }
        let kvsname = &self.kvsname;
        self.send_request(&format!(
            "cmd=put kvsname={kvsname} key={key} value={value}"
        ))?;
        Ok(())
    }

    /// The value of a key, if it has one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get(&mut self, kvsname: Option<&str>, key: &str) -> Result<Option<String>, ClientError> {
        check_key(key)?;
        kvsname.map_or(Ok(()), check_key)?;
        let kvsname = kvsname.unwrap_or(&self.kvsname);
        let answer = self.try_ask(&format!("cmd=get kvsname={kvsname} key={key}"))?;
        let found = matches!(answer.field("rc"), None | Some("0"));
        Ok(answer.field("value").filter(|_| found).map(str::to_owned))
    }

    /// Ends the protocol.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn finalize(mut self) -> Result<(), ClientError> {
        self.send_request("cmd=finalize").map(drop)
    }
}
