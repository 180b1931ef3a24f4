//! Process-management interfaces.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _};

use super::choice;
use crate::cli::value_error::ValueError;
use wireup_core::duration::{DurationError, duration};
use wireup_core::job::name_store_kind::NameStoreKind;
use wireup_core::job::spec::{InterfaceChoice, InterfaceSpec};
use wireup_core::name_server::MEET_MAX;

/// Longest list of kinds of memory, in bytes: every PMI client accepts a value of this length.
const KINDS_MAX: usize = 512;

/// Process-management interfaces.
#[derive(Debug, Args)]
#[command(next_help_heading = "Process management")]
pub(crate) struct InterfaceArgs {
    /// Process-management interface to offer: auto, what the programs need, detected by inspecting them; pmi1 (MPICH, Intel
    /// MPI), pmi2 (MPICH built for it, programs on Slurm's libpmi2), pmix (Open MPI), all of these, or none: plain processes
    #[arg(long, default_value = "auto")]
    #[arg(value_parser = choice(&InterfaceChoice::NAMES), hide_possible_values = true)]
    pmi: InterfaceChoice,

    /// libpmix for the PMIx server [default: the program's own, $WIREUP_LIBPMIX, the system's]. Further words, also alone:
    /// host=FILE is the server's process and shim=FILE the library between libpmix and wireup [default: wireup-pmix-host
    /// and libwireup-pmix-host.so in the directory of wireup or in ../lib/wireup]
    #[arg(long, value_name = "[FILE][,host=FILE][,shim=FILE]")]
    #[arg(value_parser = OsStringValueParser::new().try_map(|text: OsString| PmixFiles::parse(&text)))]
    libpmix: Vec<PmixFiles>,

    /// Old spelling of `--libpmix host=FILE`
    #[arg(long, hide = true, value_name = "FILE")]
    pmix_host: Option<PathBuf>,

    /// Old spelling of `--libpmix shim=FILE`
    #[arg(long, hide = true, value_name = "FILE")]
    shim: Option<PathBuf>,

    /// Where names are kept that launches publish for each other (MPI_Publish_name, MPI_Comm_connect): agents, file:DIR
    /// (absolute, on a file system of all hosts), etcd:[ENDPOINTS], ldap://, ldaps:// or ldapi://HOST/BASE [default:
    /// $WIREUP_NAMES, or agents]. Further words, also alone: meet=NAME shares names only with your launches of the same
    /// NAME [default: $WIREUP_MEET]; keep[=DURATION] keeps names after their publisher and its launch, until they are
    /// withdrawn or for so long
    #[arg(long, value_name = "[STORE][,meet=NAME][,keep[=DURATION]]")]
    names: Vec<NamesSpec>,

    /// Old spelling of `--names meet=NAME`
    #[arg(long, hide = true, value_name = "NAME", value_parser = parse_meet)]
    meet: Option<String>,

    /// Old spelling of `--names keep=DURATION`
    #[arg(long, hide = true, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    #[arg(value_parser = whole_seconds)]
    keep_names: Option<u32>,

    /// Ask the allocator on this Unix socket when ranks request nodes or slots
    /// (PMIx_Allocation_request) [default: the launch grants its free slots]
    #[arg(long, value_name = "SOCKET")]
    allocator: Option<PathBuf>,

    /// Kinds of memory that MPI is asked to support, with commas between them (mpi,system,cuda:device);
    /// MPICH reads it [default: the library's own]
    #[arg(long, value_name = "KINDS", value_parser = parse_kinds)]
    memory_alloc_kinds: Option<String>,

    /// Also set the variables of a task of srun (SLURM_PROCID, …); MPI libraries use some of them
    #[arg(long)]
    slurm_env: bool,
}

/// Files of one `--libpmix`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct PmixFiles {
    libpmix: Option<PathBuf>,
    host: Option<PathBuf>,
    shim: Option<PathBuf>,
}

impl PmixFiles {
    /// The files of several options, of which later ones replace earlier ones of the same kind.
    fn merged(options: Vec<Self>) -> Self {
        options
            .into_iter()
            .fold(Self::default(), |before, later| Self {
                libpmix: later.libpmix.or(before.libpmix),
                host: later.host.or(before.host),
                shim: later.shim.or(before.shim),
            })
    }

    /// Reads a path, and the words behind it; the path may have commas.
    fn parse(text: &OsStr) -> Result<Self, ValueError> {
        let path = |bytes: &[u8]| match bytes.is_empty() {
            true => Err(ValueError::PmixFile),
            false => Ok(Some(PathBuf::from(OsStr::from_bytes(bytes)))),
        };
        let mut files = Self::default();
        let mut rest = Some(text.as_bytes());
        while let Some(words) = rest {
            let comma = words.iter().rposition(|byte| *byte == b',');
            let last = comma.map_or(words, |at| &words[at + 1..]);
            let (word, file) = match (last.strip_prefix(b"host="), last.strip_prefix(b"shim=")) {
                (Some(file), _) => (&mut files.host, file),
                (_, Some(file)) => (&mut files.shim, file),
                (None, None) => {
                    files.libpmix = path(words)?;
                    break;
                }
            };
            if word.is_none() {
                *word = path(file)?;
            }
            rest = comma.map(|at| &words[..at]);
        }
        Ok(files)
    }
}

/// Words of one `--names`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::cli) struct NamesSpec {
    pub(in crate::cli) store: Option<NameStoreKind>,
    pub(in crate::cli) meet: Option<String>,
    /// Seconds; 0 without a limit.
    pub(in crate::cli) keep: Option<u32>,
}

impl NamesSpec {
    /// The words of several options, of which later ones replace earlier ones of the same kind.
    pub(in crate::cli) fn merged(options: Vec<Self>) -> Self {
        options
            .into_iter()
            .fold(Self::default(), |before, later| Self {
                store: later.store.or(before.store),
                meet: later.meet.or(before.meet),
                keep: later.keep.or(before.keep),
            })
    }
}

impl FromStr for NamesSpec {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut spec = Self::default();
        let mut rest = Some(text);
        // Commas belong to endpoints and to names of a directory too: the words are at the end.
        while let Some(words) = rest {
            let (front, last) = match words.rsplit_once(',') {
                Some((front, last)) => (Some(front), last),
                None => (None, words),
            };
            if last == "keep" {
                spec.keep.get_or_insert(0);
            } else if let Some(time) = last.strip_prefix("keep=") {
                spec.keep.get_or_insert(whole_seconds(time)?);
            } else if let Some(name) = last.strip_prefix("meet=") {
                spec.meet.get_or_insert(parse_meet(name)?);
            } else {
                spec.store = Some(words.parse()?);
                break;
            }
            rest = front;
        }
        Ok(spec)
    }
}

/// Seconds of a duration, rounded up.
fn whole_seconds(text: &str) -> Result<u32, DurationError> {
    let seconds = duration(text)?.as_millis().div_ceil(1000);
    u32::try_from(seconds).map_err(|_| DurationError::Invalid)
}

fn parse_kinds(text: &str) -> Result<String, ValueError> {
    let kinds = |byte: u8| byte.is_ascii_alphanumeric() || b",:_-".contains(&byte);
    match (1..=KINDS_MAX).contains(&text.len()) && text.bytes().all(kinds) {
        true => Ok(text.to_owned()),
        false => Err(ValueError::MemoryKinds),
    }
}

fn parse_meet(text: &str) -> Result<String, ValueError> {
    match (1..=MEET_MAX).contains(&text.len()) && !text.contains('\0') {
        true => Ok(text.to_owned()),
        false => Err(ValueError::Meet),
    }
}

impl From<InterfaceArgs> for InterfaceSpec {
    fn from(args: InterfaceArgs) -> Self {
        let names = NamesSpec::merged(args.names);
        let pmix = PmixFiles::merged(args.libpmix);
        Self {
            pmi: args.pmi,
            libpmix: pmix.libpmix,
            pmix_host: pmix.host.or(args.pmix_host),
            shim: pmix.shim.or(args.shim),
            memory_kinds: args.memory_alloc_kinds,
            slurm_env: args.slurm_env,
            meet: names.meet.or(args.meet),
            names: names.store,
            keep_names: names.keep.or(args.keep_names),
            allocator: args.allocator,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_pmix_follow_libpmix() {
        let read = |text: &str| PmixFiles::parse(OsStr::new(text));
        let files = |libpmix: &str, host: &str, shim: &str| {
            let [libpmix, host, shim] =
                [libpmix, host, shim].map(|path| (!path.is_empty()).then(|| PathBuf::from(path)));
            Ok(PmixFiles {
                libpmix,
                host,
                shim,
            })
        };
        assert_eq!(read("/l"), files("/l", "", ""));
        assert_eq!(read("/l,host=h,shim=s"), files("/l", "h", "s"));
        assert_eq!(read("shim=s,host=h"), files("", "h", "s"));
        assert_eq!(read("/a,b,host=h"), files("/a,b", "h", ""));
        let name = OsStr::from_bytes(b"/\xff");
        assert_eq!(PmixFiles::parse(name).unwrap().libpmix, Some(name.into()));
        for wrong in ["", ",host=h", "host=", "/l,shim="] {
            assert_eq!(read(wrong), Err(ValueError::PmixFile), "{wrong}");
        }
        let both = [read("/l,host=a"), read("host=b")].map(Result::unwrap);
        assert_eq!(Ok(PmixFiles::merged(both.into())), files("/l", "b", ""));
    }

    #[test]
    fn words_of_names_follow_store() {
        let read = |text: &str| text.parse::<NamesSpec>();
        let spec = |store: Option<&str>, meet: Option<&str>, keep| NamesSpec {
            store: store.map(|store| store.parse().unwrap()),
            meet: meet.map(str::to_owned),
            keep,
        };
        for (text, expected) in [
            ("agents", spec(Some("agents"), None, None)),
            ("meet=a", spec(None, Some("a"), None)),
            ("keep,meet=a", spec(None, Some("a"), Some(0))),
            ("etcd:,keep=1.2s", spec(Some("etcd:"), None, Some(2))),
            (
                "etcd:a:1,b:2,keep=1h",
                spec(Some("etcd:a:1,b:2"), None, Some(3600)),
            ),
            (
                "ldap://h/ou=n,dc=x,meet=a",
                spec(Some("ldap://h/ou=n,dc=x"), Some("a"), None),
            ),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        for wrong in ["", "keep,agents", "keep=x", "meet=", "agents,", "dns:x"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
