//! Commands by their names on the wire, and the parts of a request that its answer needs.
//!
//! Rule: the reply to a PMI-2 request is its name, as it was spelled, with `-response`, and repeats its `thrid`.
//! Source: docs/pmi2-wire.md#pmi-2-framing.
//! Rule: the answer to a barrier carries its tag, a refusal too: MPICH 5 follows a null pointer otherwise. Source:
//! docs/pmi-operations.md#group-barriers.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::job::ids::LocalRank;

/// The form in which a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum Dialect {
    /// Lines of text, as in PMI-1.
    #[default]
    Pmi1,
    /// Frames with a length in front.
    Pmi2,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pmi1 => "PMI-1",
            Self::Pmi2 => "PMI-2",
        })
    }
}

/// Makes the commands from one row each: the command, its names in a line, the name of its reply line where that is not the
/// command's name with `_result`, and its names in a frame.
macro_rules! commands {
    ($($(#[$comment:meta])* $command:ident [$($line:literal),*] [$($reply:literal)?] [$($frame:literal),*];)*) => {
        /// Commands, independent of the dialect.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum PmiCommand {
            $($(#[$comment])* $command,)*
            /// Any other command name.
            Other,
        }

        impl PmiCommand {
            /// Returns the command behind `cmd=` of a line.
            pub(super) fn from_line(name: &[u8]) -> Self {
                match name {
                    $($($line => Self::$command,)*)*
                    _ => Self::Other,
                }
            }

            /// Returns the command behind `cmd=` of a frame.
            pub(super) fn from_frame(name: &[u8]) -> Self {
                match name {
                    $($($frame => Self::$command,)*)*
                    _ => Self::Other,
                }
            }

            /// Returns the name of the reply line if it is not the command's name with `_result`.
            pub(super) fn reply_line(self) -> Option<&'static [u8]> {
                match self {
                    $($(Self::$command => Some($reply),)?)*
                    _ => None,
                }
            }
        }
    };
}

// Rule: some documents write `kvsput`, `kvsget`, `kvsfence`, `kvsgetall`, `kvsputall` and `job-getinfo`. Source:
// docs/pmi2-wire.md#pmi-2-commands.
commands! {
    /// The beginning of PMI-1, and of PMI-2 with its version.
    Init              [b"init"]               [b"response_to_init"]  [];
    /// The beginning of PMI-2.
    FullInit          []                      []                     [b"fullinit"];
    /// The limits of names and values.
    Maxes             [b"get_maxes"]          [b"maxes"]             [];
    /// The number of the rank's program.
    AppNum            [b"get_appnum"]         [b"appnum"]            [];
    /// The name of the job.
    KvsName           [b"get_my_kvsname"]     [b"my_kvsname"]        [b"job-getid"];
    /// The number of ranks that the job could have.
    UniverseSize      [b"get_universe_size"]  [b"universe_size"]     [];
    /// The ranks of each host, an extension of Intel's.
    Hosts             [b"get_ranks2hosts"]    [b"put_ranks2hosts"]   [];
    /// A barrier or fence.
    Barrier           [b"barrier_in"]         [b"barrier_out"]       [b"kvs-fence", b"kvsfence"];
    /// A pair for all ranks.
    Put               [b"put"]                []                     [b"kvs-put", b"kvsput"];
    /// The value of a key.
    Get               [b"get"]                []                     [b"kvs-get", b"kvsget"];
    /// An attribute of the job.
    JobAttribute      []                      []                     [b"info-getjobattr", b"job-getinfo"];
    /// An attribute for the ranks of the node.
    PutNodeAttribute  []                      []                     [b"info-putnodeattr"];
    /// An attribute of the node.
    NodeAttribute     []                      []                     [b"info-getnodeattr"];
    /// A resource of the node to be removed at the end of the job.
    RegisterResource  []                      []                     [b"node-registerresource"];
    /// A name for other jobs.
    Publish           [b"publish_name"]       [b"publish_result"]    [b"name-publish"];
    /// The port of a name.
    Lookup            [b"lookup_name"]        [b"lookup_result"]     [b"name-lookup"];
    /// The end of a name.
    Unpublish         [b"unpublish_name"]     [b"unpublish_result"]  [b"name-unpublish"];
    /// A new job: in PMI-1 a request of several lines, `mcmd=spawn`.
    Spawn             []                      []                     [b"spawn"];
    /// All pairs of the job.
    GetAll            []                      []                     [b"kvs-getall", b"kvsgetall"];
    /// Several pairs for all ranks.
    PutAll            []                      []                     [b"kvs-putall", b"kvsputall"];
    /// A connection with another job.
    Connect           []                      []                     [b"job-connect"];
    /// The end of a connection with another job.
    Disconnect        []                      []                     [b"job-disconnect"];
    /// A value for each neighbour.
    Ring              []                      []                     [b"ring"];
    /// The end of the job.
    Abort             [b"abort"]              []                     [b"abort"];
    /// The end of the rank's session.
    Finalize          [b"finalize"]           [b"finalize_ack"]      [b"finalize"];
    /// A command of wireup: another process speaks for the rank from here on.
    Restart           [b"restart"]            [b"restarted"]         [];
    /// Part of the first PMI-1, and not used by current clients.
    CreateKvs         [b"create_kvs"]         [b"newkvs"]            [];
    /// Part of the first PMI-1, and not used by current clients.
    DestroyKvs        [b"destroy_kvs"]        [b"kvs_destroyed"]     [];
    /// Part of the first PMI-1, and not used by current clients.
    GetByIndex        [b"getbyidx"]           [b"getbyidx_results"]  [];
}

/// One request, as far as its answer depends on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestContext<'a> {
    pub command: PmiCommand,
    /// Form of the question and of the answer.
    pub dialect: Dialect,
    /// Name of the command, as it was spelled.
    pub name: Cow<'a, [u8]>,
    /// Thread of the client, in the client's notation. PMI-2 only.
    pub thrid: Option<Cow<'a, [u8]>>,
    /// Tag of a PMI-1 barrier; 0 for all else.
    pub tag: u32,
}

/// A request that is held back, and whom to answer.
#[derive(Debug)]
pub(super) struct HeldRequest {
    pub(super) rank: LocalRank,
    pub(super) call: RequestContext<'static>,
}

impl<'a> RequestContext<'a> {
    /// Creates the context of a request in a line.
    pub(super) fn line(name: &'a [u8]) -> Self {
        Self {
            command: PmiCommand::from_line(name),
            dialect: Dialect::Pmi1,
            name: Cow::Borrowed(name),
            thrid: None,
            tag: 0,
        }
    }

    /// Creates the context of a multi-line spawn request.
    pub(super) fn spawn_lines() -> Self {
        Self {
            command: PmiCommand::Spawn,
            ..Self::line(b"spawn")
        }
    }

    /// Creates the context of a request in a frame.
    pub(super) fn frame(name: &'a [u8], thrid: Option<&'a [u8]>) -> Self {
        Self {
            command: PmiCommand::from_frame(name),
            dialect: Dialect::Pmi2,
            name: Cow::Borrowed(name),
            thrid: thrid.map(Cow::Borrowed),
            tag: 0,
        }
    }

    /// Returns a copy that outlives the message.
    pub(super) fn into_owned(self) -> RequestContext<'static> {
        let owned = |text: Cow<'a, [u8]>| Cow::Owned(text.into_owned());
        let named_by_command = self.dialect == Dialect::Pmi1 && self.command.reply_line().is_some();
        RequestContext {
            command: self.command,
            dialect: self.dialect,
            name: match named_by_command {
                true => Cow::Borrowed(&[]),
                false => owned(self.name),
            },
            thrid: self.thrid.map(owned),
            tag: self.tag,
        }
    }
}
