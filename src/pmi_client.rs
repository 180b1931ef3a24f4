//! Client of PMI-1 under any launcher, for tests of its PMI server (`wireup pmi`).

pub mod proxy;

use std::env;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use wireup_sys::inherited_fd;

/// Timeout of a reply; long, because other ranks may be slow to enter a barrier.
const REPLY_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum length of a reply in bytes.
const REPLY_MAX: u64 = 1024 * 1024;

/// Failure of a request to the PMI server.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no launcher serves PMI here: neither PMI_FD nor PMI_PORT is set")]
    NoServer,
    #[error("{0} must be set to a number")]
    Variable(&'static str),
    #[error("cannot send {kind} {text:?} over PMI-1: it must not contain {forbidden}")]
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
    #[error("the server refused `{request}`: `{answer}`")]
    Refused { request: String, answer: String },
}

/// Connection to a PMI server after the `init` request.
#[derive(Debug)]
pub struct PmiConnection {
    stream: BufReader<UnixStream>,
    pub rank: u32,
    pub size: u32,
    pub kvsname: String,
}

/// Line with which the server replies to one request.
#[derive(Debug)]
pub struct ServerReply(String);

impl ServerReply {
    /// Value of a field; it ends at the next blank, but `value` extends to the end of the line.
    pub fn field(&self, name: &str) -> Option<&str> {
        let (_, rest) = self.0.split_once(&format!(" {name}="))?;
        match name {
            "value" => Some(rest),
            _ => rest.split(' ').next(),
        }
    }
}

/// Refuses a key, or a kvsname, that would be sent as more than one field.
fn check_key(key: &str) -> Result<(), ClientError> {
    let is_field = !key.contains(|c: char| c.is_whitespace() || c == '=' || c == '\0');
    is_field
        .then_some(())
        .ok_or_else(|| ClientError::Unsendable {
            kind: "name",
            text: key.to_owned(),
            forbidden: "blanks, `=` or line breaks",
        })
}

impl PmiConnection {
    /// Connects to the server that `PMI_FD` or `PMI_PORT` names, and initializes PMI.
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
            .and_then(|()| stream.set_read_timeout(Some(REPLY_TIMEOUT)));
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
            // The server sends size, rank and debug flag in three lines.
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

    fn read_reply(&mut self, request: &str) -> Result<ServerReply, ClientError> {
        let lost = |error| ClientError::Lost {
            request: request.to_owned(),
            error,
        };
        let mut line = String::new();
        let read = self.stream.by_ref().take(REPLY_MAX).read_line(&mut line);
        match read {
            Ok(_) if line.ends_with('\n') => Ok(ServerReply(line.trim_end().to_owned())),
            Ok(_) => Err(lost(std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(lost(error)),
        }
    }

    /// Sends a request and returns the reply, whatever its `rc`.
    fn exchange(&mut self, request: &str) -> Result<ServerReply, ClientError> {
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

    /// Sends a request and returns the reply if it reports success.
    ///
    /// # Errors
    /// [`ClientError`], also for an `rc` other than 0. Some servers omit `rc` on success.
    pub fn send_request(&mut self, request: &str) -> Result<ServerReply, ClientError> {
        let answer = self.exchange(request)?;
        match answer.field("rc") {
            None | Some("0") => Ok(answer),
            Some(_) => Err(ClientError::Refused {
                request: request.to_owned(),
                answer: answer.0,
            }),
        }
    }

    /// Enters a barrier. Returns the time until the server released it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn barrier(&mut self) -> Result<Duration, ClientError> {
        let start = Instant::now();
        self.send_request("cmd=barrier_in")?;
        Ok(start.elapsed())
    }

    /// Puts a pair into the job's KVS.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn put(&mut self, key: &str, value: &str) -> Result<(), ClientError> {
        check_key(key)?;
        // The value extends to the end of the line.
        if value.contains(['\n', '\0']) {
            return Err(ClientError::Unsendable {
                kind: "value",
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

    /// Gets the value of a key from a KVS, by default the job's; `None` if the key does not exist.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get(&mut self, kvsname: Option<&str>, key: &str) -> Result<Option<String>, ClientError> {
        check_key(key)?;
        kvsname.map_or(Ok(()), check_key)?;
        let kvsname = kvsname.unwrap_or(&self.kvsname);
        let answer = self.exchange(&format!("cmd=get kvsname={kvsname} key={key}"))?;
        let found = matches!(answer.field("rc"), None | Some("0"));
        Ok(answer.field("value").filter(|_| found).map(str::to_owned))
    }

    /// Finalizes PMI and closes the connection.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn finalize(mut self) -> Result<(), ClientError> {
        self.send_request("cmd=finalize").map(drop)
    }
}
