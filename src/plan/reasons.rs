//! Reasons for the choices in a plan, with their texts. No I/O.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::inspect::libpmix::{LibpmixChoice, LibpmixRejection, LibpmixSource, RejectedLibpmix};
use crate::inspect::{DetectionReason, DetectionResult, FoundLibrary, LibraryFamily, OpaqueReason};
use wireup_core::job::spec::InterfaceChoice;
use wireup_core::topology::ObjectType;
use wireup_core::wording::counted;

/// Reason for an application's number of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CountReason {
    /// The user requested this number of ranks.
    UserChoice,
    /// The user requested a number of ranks on every node.
    PerNode {
        /// Number of ranks on each node.
        ppn: u32,
        nodes: u32,
    },
    /// The user requested `each` ranks on every usable object of a level of this machine, of which it has `parts`.
    Parts {
        each: u32,
        parts: u32,
        level: ObjectType,
    },
    /// The only program gets all slots of this machine.
    Slots,
    /// The only program gets all slots of the hosts.
    HostSlots {
        /// Number of hosts with an unknown number of slots, which count as one each.
        unknown: u32,
    },
    /// Each of several programs gets one rank.
    OneOfSeveral,
}

/// Interfaces that are offered to the ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InterfaceOffer {
    /// Whether PMI-1 and PMI-2 are offered, on one socket.
    pub pmi: bool,
    pub pmix: bool,
    pub why: OfferReason,
    /// Error because of which PMIx is not offered although it was chosen.
    pub without_pmix: Option<String>,
}

/// Reason for an offer of interfaces. Programs are numbered from 0 in command-line order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OfferReason {
    /// The user chose the interfaces.
    UserChoice(InterfaceChoice),
    /// A program needs PMIx, and no program needs another interface.
    Pmix(usize),
    /// A program needs PMI, and no program needs another interface.
    Pmi(usize),
    /// One program needs PMIx and another one PMI.
    Both(usize, usize),
    /// The interface that a program needs cannot be determined.
    Unknown(usize),
    /// No program loads an MPI.
    Plain,
    /// Ranks may restart, and no program is known to need PMIx.
    Restartable,
}

impl InterfaceOffer {
    /// Names of the interfaces, for texts.
    pub fn names(&self) -> &'static str {
        match (self.pmi, self.pmix) {
            (true, true) => "PMI and PMIx",
            (true, false) => "PMI",
            (false, true) => "PMIx",
            (false, false) => "nothing",
        }
    }
}

impl fmt::Display for CountReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UserChoice => f.write_str("as given (-n)"),
            Self::PerNode { ppn, nodes } => {
                write!(f, "--ppn {ppn} on {}", counted(*nodes, "node"))
            }
            Self::Parts { each, parts, level } => {
                write!(
                    f,
                    "{each} on each of {parts} {} (--map-by ppr:{each}:{level})",
                    level.noun(*parts)
                )
            }
            Self::Slots => f.write_str("one per slot, since -n is not given"),
            Self::HostSlots { unknown } => {
                f.write_str("one per slot of the hosts, since -n is not given")?;
                match unknown {
                    0 => Ok(()),
                    1 => f.write_str("; one on the host whose slots are not given"),
                    _ => write!(
                        f,
                        "; one on each of {unknown} hosts whose slots are not given"
                    ),
                }
            }
            Self::OneOfSeveral => {
                f.write_str("one, since -n is not given and there are several programs")
            }
        }
    }
}

impl fmt::Display for OfferReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UserChoice(choice) => write!(f, "--pmi {choice}"),
            Self::Pmix(app) => write!(f, "program {} needs PMIx", app + 1),
            Self::Pmi(app) => write!(f, "program {} needs PMI", app + 1),
            Self::Both(pmix, pmi) => write!(
                f,
                "program {} needs PMIx and program {} PMI",
                pmix + 1,
                pmi + 1
            ),
            Self::Unknown(app) => write!(
                f,
                "the interface of program {} cannot be determined, so all are offered",
                app + 1
            ),
            Self::Plain => f.write_str("no program loads an MPI, and PMI costs nothing"),
            Self::Restartable => f.write_str("--restartable, which is for PMI"),
        }
    }
}

impl fmt::Display for DetectionResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.behind.is_empty() {
            write!(f, "behind {}: ", self.behind.join(", "))?;
        }
        let program = self.program.display();
        match &self.why {
            DetectionReason::Library(library, family) => write!(f, "{library}: {family}")?,
            DetectionReason::NoMpi => write!(f, "{program} needs no MPI or PMI library")?,
            DetectionReason::Static(clients) => {
                let has = match clients.map(|clients| (clients.pmi, clients.pmix)) {
                    Some((false, false)) => "has no client of PMI or PMIx",
                    Some((true, false)) => "has a client of PMI",
                    Some((false, true)) => "has a client of PMIx",
                    Some((true, true)) => "has clients of PMI and PMIx",
                    None => "cannot be searched for an MPI",
                };
                write!(f, "{program} is static and {has}")?;
            }
            DetectionReason::Script { interpreter } => {
                write!(f, "{program} is a script for {}", interpreter.display())?;
            }
            DetectionReason::ShellScript => write!(f, "{program} is a shell script")?,
            DetectionReason::Registered { handler } => {
                write!(f, "{program} is run by the binary format {handler}")?;
            }
            DetectionReason::Unreadable => write!(f, "{program} cannot be read, only executed")?,
            DetectionReason::NotHere => write!(f, "{program} is not on this machine")?,
            DetectionReason::StartsNothing => write!(f, "{program} starts no other program here")?,
            DetectionReason::Opaque(opaque) => opaque.write_text(&self.program, f)?,
            DetectionReason::NotFound { wrapper: by, name } => write!(
                f,
                "{by} is to start {}, which cannot be found or run",
                name.to_string_lossy()
            )?,
        }
        if !self.missing.is_empty() {
            write!(f, "; libraries not found: {}", self.missing.join(", "))?;
        }
        Ok(())
    }
}

impl OpaqueReason {
    fn write_text(&self, program: &Path, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interpreter(name) => write!(
                f,
                "{} ({name}) runs another program or a script",
                program.display()
            ),
            Self::Option(name, option) => write!(
                f,
                "{name} has the unknown option {}",
                option.to_string_lossy()
            ),
            Self::Script(name) => {
                write!(f, "{name} takes its commands from a text or from its user")
            }
            Self::TooDeep => f.write_str("too many wrappers are nested"),
        }
    }
}

impl fmt::Display for FoundLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} needs {}", self.dependent.display(), self.name)?;
        match &self.path {
            Some(path) => write!(f, " ({})", path.display()),
            None => f.write_str(" (not found)"),
        }
    }
}

impl fmt::Display for LibraryFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "Open MPI",
            Self::Pmix => "PMIx",
            Self::Mpich => "MPICH or a relative",
            Self::Pmi => "PMI",
            Self::BesideOpenMpi => "an unknown MPI in the directory of Open MPI's libraries",
            Self::BesideMpich => "an unknown MPI in the directory of MPICH's libraries",
            Self::UnknownMpi => "an MPI of unknown kind",
        })
    }
}

impl fmt::Display for LibpmixSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "given by --libpmix",
            Self::Program => "the program's own",
            Self::Variable => "given by WIREUP_LIBPMIX",
            Self::Script => "of the Open MPI that a script finds",
            Self::System => "found by the dynamic loader",
        })
    }
}

impl fmt::Display for LibpmixChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match self.version {
            Some(version) => write!(f, " (OpenPMIx {version}), {}", self.source),
            None => write!(f, " (of unknown version), {}", self.source),
        }
    }
}

impl fmt::Display for RejectedLibpmix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}: ", self.path.display(), self.source)?;
        match &self.why {
            LibpmixRejection::TooOld(version) => write!(f, "OpenPMIx {version} is too old"),
            LibpmixRejection::NoVersion => f.write_str("no version in the library"),
            LibpmixRejection::Unusable(why) => f.write_str(why),
            LibpmixRejection::OtherMachine(machine) => write!(f, "it is for {machine}"),
        }
    }
}
