//! Typed PMI-1 requests: which commands exist and which fields they have. Answers are in
//! [`reply`](super::reply), the meaning in [`server`](super::server).
//! Rule: the last field of `put`, of the name commands and of `abort` runs to the end of the line
//! and may hold blanks. Source: docs/pmi-wire.md#framing.

use std::fmt;
use std::str::FromStr;

use super::limits::{COMMAND_MAX, KEYLEN_MAX, KVSNAME_MAX, NAME_MAX, VALLEN_MAX};
use super::reply::Refusal;
use super::wire_v1::{Fields, Line, LineBuilder, ProtocolError};

/// A command by its name on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command<'a> {
    /// `init`
    Init,
    /// `get_maxes`
    Maxes,
    /// `get_appnum`
    AppNum,
    /// `get_my_kvsname`
    KvsName,
    /// `get_universe_size`
    UniverseSize,
    /// `barrier_in`
    Barrier,
    /// `put`
    Put,
    /// `get`
    Get,
    /// `publish_name`
    Publish,
    /// `lookup_name`
    Lookup,
    /// `unpublish_name`
    Unpublish,
    /// `abort`
    Abort,
    /// `finalize`
    Finalize,
    /// `mcmd=spawn`
    Spawn,
    /// `create_kvs`, part of the first PMI-1 and sent by nobody today.
    CreateKvs,
    /// `destroy_kvs`, likewise.
    DestroyKvs,
    /// `getbyidx`, likewise.
    GetByIndex,
    /// Any other name.
    Other(&'a [u8]),
}

impl<'a> Command<'a> {
    fn named(name: &'a [u8]) -> Self {
        match name {
            b"init" => Self::Init,
            b"get_maxes" => Self::Maxes,
            b"get_appnum" => Self::AppNum,
            b"get_my_kvsname" => Self::KvsName,
            b"get_universe_size" => Self::UniverseSize,
            b"barrier_in" => Self::Barrier,
            b"put" => Self::Put,
            b"get" => Self::Get,
            b"publish_name" => Self::Publish,
            b"lookup_name" => Self::Lookup,
            b"unpublish_name" => Self::Unpublish,
            b"abort" => Self::Abort,
            b"finalize" => Self::Finalize,
            b"create_kvs" => Self::CreateKvs,
            b"destroy_kvs" => Self::DestroyKvs,
            b"getbyidx" => Self::GetByIndex,
            other => Self::Other(other),
        }
    }

    /// The command's name and that of its reply. `None` means `NAME_result`, which also stands for
    /// the reply that abort never gets.
    fn names(&self) -> (&'a [u8], Option<&'static [u8]>) {
        match *self {
            Self::Init => (b"init", Some(b"response_to_init")),
            Self::Maxes => (b"get_maxes", Some(b"maxes")),
            Self::AppNum => (b"get_appnum", Some(b"appnum")),
            Self::KvsName => (b"get_my_kvsname", Some(b"my_kvsname")),
            Self::UniverseSize => (b"get_universe_size", Some(b"universe_size")),
            Self::Barrier => (b"barrier_in", Some(b"barrier_out")),
            Self::Put => (b"put", None),
            Self::Get => (b"get", None),
            Self::Publish => (b"publish_name", Some(b"publish_result")),
            Self::Lookup => (b"lookup_name", Some(b"lookup_result")),
            Self::Unpublish => (b"unpublish_name", Some(b"unpublish_result")),
            Self::Abort => (b"abort", None),
            Self::Finalize => (b"finalize", Some(b"finalize_ack")),
            Self::Spawn => (b"spawn", None),
            Self::CreateKvs => (b"create_kvs", Some(b"newkvs")),
            Self::DestroyKvs => (b"destroy_kvs", Some(b"kvs_destroyed")),
            Self::GetByIndex => (b"getbyidx", Some(b"getbyidx_results")),
            Self::Other(name) => (name, None),
        }
    }

    /// The command's name on the wire.
    pub fn name(&self) -> &'a [u8] {
        self.names().0
    }

    /// Starts the line of a reply to this command.
    pub(super) fn reply(&self) -> LineBuilder {
        match self.names() {
            (_, Some(reply)) => LineBuilder::new(reply),
            (name, None) => {
                // An unknown name may have the full length; its reply is a command too.
                const END: &[u8] = b"_result";
                let kept = name.len().min(COMMAND_MAX - END.len());
                LineBuilder::new(&[&name[..kept], END].concat())
            }
        }
    }
}

impl fmt::Display for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name().escape_ascii())
    }
}

/// One request of a rank, borrowed from its line. Lengths are within [`limits`](super::limits).
/// A spawn is not among them: see [`Spawn`](super::spawn_v1::Spawn).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// Start of the protocol, or a new start after a finalize.
    Init {
        /// PMI version the client speaks.
        version: u32,
        /// Its subversion.
        subversion: u32,
    },
    /// Asks for the announced limits.
    Maxes,
    /// Asks for the rank's appnum.
    AppNum,
    /// Asks for the job's kvsname.
    KvsName,
    /// Asks for the universe size.
    UniverseSize,
    /// Enters the barrier of all ranks of the job.
    Barrier,
    /// Stores a pair. The value may be empty.
    Put {
        /// Name of the store.
        kvsname: &'a [u8],
        /// Key, not empty.
        key: &'a [u8],
        /// Value, to the end of the line.
        value: &'a [u8],
    },
    /// Asks for a value or a job attribute.
    Get {
        /// Name of the store.
        kvsname: &'a [u8],
        /// Key, not empty.
        key: &'a [u8],
    },
    /// Publishes a port under a service name.
    Publish {
        /// Service name; may hold blanks.
        service: &'a [u8],
        /// Port name, to the end of the line.
        port: &'a [u8],
    },
    /// Asks for the port of a service.
    Lookup {
        /// Service name; may hold blanks.
        service: &'a [u8],
    },
    /// Withdraws a service.
    Unpublish {
        /// Service name; may hold blanks.
        service: &'a [u8],
    },
    /// Ends the whole job. Has no reply.
    Abort {
        /// Exit code for the job.
        code: i32,
        /// The client's words, perhaps empty.
        message: &'a [u8],
    },
    /// Ends the protocol, not the process.
    Finalize,
}

/// Why a line is no [`Request`].
#[derive(Debug, PartialEq, Eq)]
pub enum RequestError<'a> {
    /// Understood and refused: answer with [`Reply::Refused`](super::reply::Reply::Refused).
    Refused(Command<'a>, Refusal<'static>),
    /// Not understood: the connection is lost.
    Protocol(ProtocolError),
}

impl From<ProtocolError> for RequestError<'_> {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

impl<'a> Request<'a> {
    /// Interprets one line.
    ///
    /// # Errors
    /// [`RequestError`], which tells a refusal from the end of the connection.
    pub fn parse(line: &Line<'a>) -> Result<Self, RequestError<'a>> {
        let command = Command::named(line.name);
        let refused = |why| RequestError::Refused(command, why);
        match command {
            Command::Init => {
                let [version, subversion] = pick(line.fields(), ["pmi_version", "pmi_subversion"])?;
                Ok(Self::Init {
                    version: numeric(version, "pmi_version").map_err(refused)?,
                    subversion: numeric(subversion, "pmi_subversion").map_err(refused)?,
                })
            }
            Command::Barrier => match pick(line.fields(), ["group"])? {
                [None] => Ok(Self::Barrier),
                [Some(_)] => Err(refused(Refusal::NotSupported)),
            },
            Command::Put => {
                let (head, value) = line.split_tail(b" value=");
                let [kvsname, key] = pick(head, ["kvsname", "key"])?;
                let kvsname = bounded(kvsname, "kvsname", KVSNAME_MAX).map_err(refused)?;
                let key = bounded(key, "key", KEYLEN_MAX).map_err(refused)?;
                let value = value.ok_or_else(|| refused(Refusal::MissingField("value")))?;
                if value.len() > VALLEN_MAX {
                    return Err(refused(Refusal::TooLong("value")));
                }
                Ok(Self::Put {
                    kvsname,
                    key,
                    value,
                })
            }
            Command::Get => {
                let [kvsname, key] = pick(line.fields(), ["kvsname", "key"])?;
                Ok(Self::Get {
                    kvsname: bounded(kvsname, "kvsname", KVSNAME_MAX).map_err(refused)?,
                    key: bounded(key, "key", KEYLEN_MAX).map_err(refused)?,
                })
            }
            Command::Publish => {
                let (service, port) = line.split_service(Some(b" port="));
                Ok(Self::Publish {
                    service: bounded(service, "service", NAME_MAX).map_err(refused)?,
                    port: bounded(port, "port", NAME_MAX).map_err(refused)?,
                })
            }
            Command::Lookup | Command::Unpublish => {
                let (service, _) = line.split_service(None);
                let service = bounded(service, "service", NAME_MAX).map_err(refused)?;
                Ok(match command {
                    Command::Lookup => Self::Lookup { service },
                    _ => Self::Unpublish { service },
                })
            }
            Command::Abort => Ok(Self::parse_abort(line)?),
            Command::Maxes => plain(line, Self::Maxes),
            Command::AppNum => plain(line, Self::AppNum),
            Command::KvsName => plain(line, Self::KvsName),
            Command::UniverseSize => plain(line, Self::UniverseSize),
            Command::Finalize => plain(line, Self::Finalize),
            Command::Spawn | Command::CreateKvs | Command::DestroyKvs | Command::GetByIndex => {
                Err(refused(Refusal::NotSupported))
            }
            Command::Other(_) => Err(refused(Refusal::UnknownCommand)),
        }
    }

    /// An abort is never refused: without a usable code it fails the job as a protocol error.
    fn parse_abort(line: &Line<'a>) -> Result<Self, ProtocolError> {
        let (head, message) = match line.split_tail(b" message=") {
            (head, None) => match line.split_tail(b" error_msg=") {
                (_, None) => (head, None),
                found => found,
            },
            found => found,
        };
        let [code, flux_code] = pick(head, ["exitcode", "exit_code"])?;
        let code = code
            .or(flux_code)
            .and_then(number)
            .ok_or(ProtocolError::AbortCode)?;
        Ok(Self::Abort {
            code,
            message: message.unwrap_or(b""),
        })
    }

    /// The request's command.
    pub fn command(&self) -> Command<'static> {
        match self {
            Self::Init { .. } => Command::Init,
            Self::Maxes => Command::Maxes,
            Self::AppNum => Command::AppNum,
            Self::KvsName => Command::KvsName,
            Self::UniverseSize => Command::UniverseSize,
            Self::Barrier => Command::Barrier,
            Self::Put { .. } => Command::Put,
            Self::Get { .. } => Command::Get,
            Self::Publish { .. } => Command::Publish,
            Self::Lookup { .. } => Command::Lookup,
            Self::Unpublish { .. } => Command::Unpublish,
            Self::Abort { .. } => Command::Abort,
            Self::Finalize => Command::Finalize,
        }
    }

    /// What the request is about, for a report: a key or a service, else empty.
    pub fn subject(&self) -> &'a [u8] {
        match *self {
            Self::Put { key, .. } | Self::Get { key, .. } => key,
            Self::Publish { service, .. }
            | Self::Lookup { service }
            | Self::Unpublish { service } => service,
            _ => b"",
        }
    }
}

/// The first value of each wanted key; other fields are ignored, as long as they are fields.
fn pick<'a, const N: usize>(
    fields: Fields<'a>,
    wanted: [&str; N],
) -> Result<[Option<&'a [u8]>; N], ProtocolError> {
    let mut found = [None; N];
    for field in fields {
        let (key, value) = field?;
        let place = wanted.iter().position(|name| name.as_bytes() == key);
        if let Some(place) = place.map(|index| &mut found[index]) {
            place.get_or_insert(value);
        }
    }
    Ok(found)
}

/// A request without fields of its own.
fn plain<'a>(line: &Line<'a>, request: Request<'a>) -> Result<Request<'a>, RequestError<'a>> {
    let [] = pick(line.fields(), [])?;
    Ok(request)
}

/// A text that must be there and have 1 to `limit` bytes.
fn bounded<'a>(
    value: Option<&'a [u8]>,
    name: &'static str,
    limit: usize,
) -> Result<&'a [u8], Refusal<'static>> {
    match value {
        None | Some([]) => Err(Refusal::MissingField(name)),
        Some(value) if value.len() > limit => Err(Refusal::TooLong(name)),
        Some(value) => Ok(value),
    }
}

fn numeric(value: Option<&[u8]>, name: &'static str) -> Result<u32, Refusal<'static>> {
    let value = value.ok_or(Refusal::MissingField(name))?;
    number(value).ok_or(Refusal::BadField(name))
}

/// A decimal number, whole and in range.
pub(super) fn number<N: FromStr>(text: &[u8]) -> Option<N> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
