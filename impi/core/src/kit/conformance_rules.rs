//! Each rule of the specification, its section, and how it is checked. `docs/impi-conformance.md` has the same table.

/// Obligation of a rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// The specification demands it.
    Must,
    /// The specification advises it.
    Should,
    /// The text does not forbid it, or the facts show that implementations differ; reported, never a failure.
    Finding,
}

/// Commands that check a rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CheckedBy {
    /// The check program of `check-client`.
    Program,
    /// Each conversation that is seen: `decode`, `proxy`, `check-client`.
    Conversation,
    /// Checked by `check-server` alone.
    Server,
    /// `check-server` and each conversation that is seen.
    Both,
    /// Nothing on the wire shows it.
    Nothing,
}

macro_rules! rules {
    ($($rule:ident $section:literal $level:ident $by:ident $text:literal)*) => {
        /// A rule, in the order of the specification.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[allow(missing_docs, reason = "`text` describes each of them")]
        pub enum Rule { $($rule),* }

        impl Rule {
            /// All rules, in the order of the specification.
            pub const ALL: &'static [Self] = &[$(Self::$rule),*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$rule => stringify!($rule)),* }
            }

            /// Returns the section of the specification.
            pub fn section(self) -> &'static str {
                match self { $(Self::$rule => $section),* }
            }

            /// Returns the obligation of the rule.
            pub fn level(self) -> Level {
                match self { $(Self::$rule => Level::$level),* }
            }

            /// Returns the commands that check the rule.
            pub fn by(self) -> CheckedBy {
                match self { $(Self::$rule => CheckedBy::$by),* }
            }

            /// Returns the text of the rule.
            pub fn text(self) -> &'static str {
                match self { $(Self::$rule => $text),* }
            }
        }
    };
}

rules! {
    AddressLine "2.2.1" Must Server "the server's first line on standard output is its address and port as A.B.C.D:PORT"
    OneLine "2.2.3" Should Server "the server writes one line only to standard output"
    UnknownCommand "2.3.2" Must Server "the server discards a command that it does not know, with its payload"
    Pieces "2.3.2" Must Server "a unit is read however the network divides it"
    AuthFirst "2.3.3" Must Both "AUTH is the first command, and no other comes before the client is authenticated"
    AuthMask "2.3.3" Must Conversation "AUTH has one or more masks of 4 bytes"
    AuthMasks "2.3.3" Must Server "AUTH may have more masks than one"
    AuthChoice "2.3.3" Must Both "the server chooses a method that the client offers"
    AuthNoCommon "2.3.3" Must Server "without a common method the server closes the connection"
    AuthNone "2.3.3" Must Both "for IMPI_AUTH_NONE the server sends {0, 0} without a command, and the client is in"
    AuthNoneWarning "2.3.3" Should Server "the server warns of a client without authentication, with its address"
    AuthKey "2.3.3" Must Both "for IMPI_AUTH_KEY the server sends {1, 0}, and the right key lets the client in"
    AuthWrongKey "2.3.3" Must Server "after a wrong key the server closes the connection"
    AuthUnavailable "2.3.3" Must Server "a server without a method ends with an error"
    ImpiRank "2.3.4" Must Conversation "IMPI has 4 bytes: a rank from 0 to the number of clients less 1, each once"
    ImpiWaits "2.3.4" Must Both "the server answers IMPI once all clients have sent it"
    ImpiSize "2.3.4" Must Both "the answer to IMPI is the number of clients"
    CollAfterImpi "2.3.5" Must Conversation "a client sends COLL after the answer to IMPI"
    LabelsAscend "2.3.5" Must Conversation "a client sends its labels in ascending order"
    LabelsAll "2.3.5" Must Conversation "a client sends all labels of version 0.0"
    NoLabel "2.3.5" Must Conversation "IMPI_NO_LABEL is not sent"
    CollByRank "2.3.5" Must Both "a reply has the values of the clients in ascending order of their ranks, as they are"
    CollMask "2.3.5" Must Both "bit i of client_mask is set if client i has sent the label"
    CollComplete "2.3.5" Must Both "the server answers a label once all clients have sent it, a greater one, or DONE"
    CollAtOnce "2.3.5" Must Server "the server answers a label as soon as it is complete"
    CollToAll "2.3.5" Must Both "replies go to all clients, also to those that have not sent the label"
    CollOpaque "2.3.5" Must Server "the server does not interpret labels and values"
    Versions "2.3.5" Must Conversation "IMPI_C_VERSION is a strictly ascending list with 0.0"
    HostCount "2.3.5" Must Conversation "IMPI_C_NHOSTS is 1 or more, and labels of hosts have as many values"
    ProcCount "2.3.5" Must Conversation "IMPI_C_NPROCS is 1 or more, labels of processes have as many values, and IMPI_H_NPROCS adds up to it"
    DataLength "2.3.5" Must Conversation "IMPI_C_DATALEN is 1 or more"
    Crossover "2.3.5" Must Conversation "IMPI_C_COLL_XSIZE and IMPI_C_COLL_MAXLINEAR are -1, 0 or more, and the same for all clients"
    CrossoverChoice "2.3.5" Must Nothing "users can choose the values of IMPI_C_COLL_XSIZE and IMPI_C_COLL_MAXLINEAR"
    PidUnique "2.3.5" Must Conversation "IMPI_P_PID is unique among processes with the same IMPI_P_IPV6"
    DoneEmpty "2.3.6" Must Both "DONE has no payload"
    DoneWaits "2.3.6" Must Both "the server answers DONE once all clients have sent it"
    FiniEmpty "2.3.7" Must Conversation "FINI has no payload"
    FiniSent "2.3.7" Must Conversation "a client sends FINI before it closes the connection"
    FiniNoReply "2.3.7" Must Both "the server does not answer FINI"
    LostReported "2.3.7" Should Server "the server reports a client that is lost before FINI"
    ServerExits "2.3.7" Must Server "after FINI of all clients the server exits with success, and not before"
    HigherConnects "2.3.8" Must Conversation "the host of the higher rank connects"
    RankFirst "2.3.8" Must Conversation "the host that connects sends its rank as 4 bytes first"
    FiniPackets "2.4" Must Conversation "a host sends one FINI packet on each channel, and closes it after FINI of the other"
    FiniAfterChannels "2.4" Must Conversation "a client sends FINI to the server after its hosts have received FINI of all others"
    AcksToTheEnd "2.4" Must Conversation "a host acknowledges what arrives until FINI of the other"
    Attributes "2.5" Must Nothing "IMPI_CLIENT_SIZE, IMPI_CLIENT_COLOR, IMPI_HOST_SIZE and IMPI_HOST_COLOR are attributes of all communicators"
    External32 "3.1" Finding Conversation "data is in external32 (the integer of the check program)"
    PacketProcs "3.2" Must Conversation "pk_src is a process of the host that sends, pk_dest one of the host that receives"
    WorldContext "3.3" Must Conversation "the context of MPI_COMM_WORLD is 0 (checked with the check program, which has no other communicator)"
    TagRange "3.4" Must Conversation "tags are from 0 to IMPI_Tag_ub"
    PacketType "3.5" Must Conversation "a packet has one of the eight types"
    PacketLength "3.5" Must Conversation "a packet has at most IMPI_Pk_maxdatalen bytes of data"
    LocalRank "3.5" Must Conversation "pk_lsrank is the sender's rank in the communicator (checked for MPI_COMM_WORLD)"
    UnusedFields "3.5" Finding Conversation "fields that a type does not use are 0"
    AckMark "3.6" Must Conversation "a protocol ACK follows each IMPI_Pk_ackmark packets of a pair of processes, and no fewer"
    Window "3.6" Must Conversation "no more than IMPI_Pk_hiwater packets of a pair of processes are without ACK"
    ShortMessage "3.7.1" Must Conversation "a message of up to IMPI_Pk_maxdatalen bytes is one packet: pk_len equals pk_msglen"
    SyncAck "3.7.1" Must Conversation "a synchronization ACK has the pk_srqid of a DATASYNC packet; each gets one"
    LongFirst "3.7.2" Must Conversation "the first packet of a long message is DATASYNC"
    LongWaits "3.7.2" Must Conversation "the other packets of a long message are DATA, and follow its synchronization ACK"
    LongRequest "3.7.2" Must Conversation "they have the pk_drqid of the ACK"
    LongSum "3.7.2" Must Conversation "the packets of a message add up to pk_msglen"
    Probe "3.7.3" Must Program "a message can be probed once its first packet has been read"
    CancelWindow "3.7.4" Must Conversation "CANCEL is for a message that was sent and has no synchronization ACK"
    CancelReply "3.7.4" Must Conversation "each CANCEL gets one reply, CANCELYES or CANCELNO"
    AfterFini "3.8" Must Conversation "a host sends no message after FINI"
    Limits "3.9" Must Conversation "1 <= ackmark <= hiwater, and 32767 <= tag_ub <= 2147483647"
    CollectiveContext "4" Finding Conversation "collectives use the context of their communicator plus 1 (the collectives of the check program)"
}

impl Rule {
    /// Returns the rule's line in the table of the page.
    pub fn row(self) -> String {
        let level = match self.level() {
            Level::Must => "must",
            Level::Should => "should",
            Level::Finding => "finding",
        };
        let by = match self.by() {
            CheckedBy::Conversation => "check-client, decode",
            CheckedBy::Server => "check-server",
            CheckedBy::Both => "check-server, decode",
            CheckedBy::Program => "check-client: the program's probe",
            CheckedBy::Nothing => "nothing: the wire does not show it",
        };
        let (section, name, text) = (self.section(), self.name(), self.text());
        format!("| {section} | {name} | {level} | {text} | {by} |")
    }
}
