//! `wireup names`: names that the user's launches have published for each other, in any store.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::options::NamesSpec;
use crate::backend::name_store_process::NameStoreClient;
use wireup_core::failure::{CommandError, RequestError};
use wireup_core::job::name_store_kind::{InvalidNameStore, NameStoreKind};
use wireup_core::name_server::MEET_MAX;
use wireup_core::names::request::{
    ListedName, NameRefusal, NameReply, NameRequest, Persistence, PublishedData, UnpublishScope,
};
use wireup_core::text_table;
use wireup_core::wording::counted;
use wireup_sys::poll::pause;

const LS: &str = "\
Examples:
  wireup names ls                                    names of your launches at the agent of this machine
  wireup names ls --names file:/shared/names         those in a directory
  wireup names ls --json | jq -r '.[].name'";

const RM: &str = "\
Examples:
  wireup names rm --names etcd: 'the service'        withdraws a name, whichever launch of yours has published it";

const WATCH: &str = "\
Examples:
  wireup names watch --names file:/shared/names      a line for each name that comes (+) or goes (-)";

/// Interval between queries of the store.
const PAUSE: Duration = Duration::from_millis(500);

/// Arguments of `wireup names`.
#[derive(Debug, Args)]
#[command(after_help = LS)]
pub(super) struct NamesArgs {
    #[command(subcommand)]
    command: NamesSubcommand,
}

#[derive(Debug, Args)]
struct StoreArgs {
    /// Where they are kept, as `wireup run --names` has it [default: $WIREUP_NAMES, or agents], and which launches have
    /// published them [default: $WIREUP_MEET, or those without a name]
    #[arg(long, value_name = "[STORE][,meet=NAME]")]
    names: Vec<NamesSpec>,

    /// Old spelling of `--names meet=NAME`
    #[arg(long, hide = true, value_name = "NAME")]
    meet: Option<String>,
}

#[derive(Debug, Subcommand)]
enum NamesSubcommand {
    /// List published names
    #[command(after_help = LS)]
    Ls {
        #[command(flatten)]
        store: StoreArgs,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Withdraw names
    #[command(after_help = RM)]
    Rm {
        #[command(flatten)]
        store: StoreArgs,
        /// The names
        #[arg(value_name = "NAME", required = true)]
        keys: Vec<String>,
    },
    /// Show what is published and withdrawn, until this command is ended
    #[command(after_help = WATCH)]
    Watch {
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// Error: names cannot be shown or withdrawn.
#[derive(Debug, thiserror::Error)]
enum NamesError {
    #[error("WIREUP_NAMES: {0}")]
    Variable(InvalidNameStore),
    #[error("--names {0}: {1}")]
    Refused(NameStoreKind, NameRefusal),
    #[error("{0:?} is not published")]
    Missing(String),
    #[error("keep is for names that a launch publishes: give it to wireup run")]
    Keep,
    #[error("a name by which launches meet has at most {MEET_MAX} bytes")]
    Meet,
}

impl RequestError for NamesError {}

impl StoreArgs {
    fn open(self) -> Result<(NameStoreClient, NameStoreKind), CommandError> {
        let names = NamesSpec::merged(self.names);
        if names.keep.is_some() {
            return Err(NamesError::Keep.into());
        }
        let backend = match (names.store, std::env::var("WIREUP_NAMES")) {
            (Some(backend), _) => backend,
            (None, Ok(text)) => text.parse().map_err(NamesError::Variable)?,
            (None, Err(_)) => NameStoreKind::Agents,
        };
        let meet = names
            .meet
            .or(self.meet)
            .or_else(|| std::env::var("WIREUP_MEET").ok())
            .unwrap_or_default();
        if meet.len() > MEET_MAX {
            return Err(NamesError::Meet.into());
        }
        Ok((NameStoreClient::open(&backend, &meet)?, backend))
    }
}

/// Carries the command out; the exit code.
pub(super) fn names(args: NamesArgs) -> Result<u8, CommandError> {
    match args.command {
        NamesSubcommand::Ls { store, json } => {
            let (mut connection, backend) = store.open()?;
            let names = list(&mut connection, &backend)?;
            let text = match json {
                true => format!("{}\n", as_json(&names)),
                false => as_table(&names),
            };
            super::print(text.as_bytes())?;
        }
        NamesSubcommand::Rm { store, keys } => {
            let (mut connection, backend) = store.open()?;
            for key in keys {
                let request = NameRequest::Unpublish {
                    removal: UnpublishScope::Anybodys,
                    keys: vec![key.clone().into_bytes()],
                };
                match connection.send_request(request)? {
                    NameReply::Refused(NameRefusal::NotFound) => {
                        return Err(NamesError::Missing(key).into());
                    }
                    NameReply::Refused(why) => return Err(NamesError::Refused(backend, why).into()),
                    _ => {}
                }
            }
        }
        NamesSubcommand::Watch { store } => {
            let (mut connection, backend) = store.open()?;
            let mut known = BTreeSet::new();
            loop {
                let names = list(&mut connection, &backend)?;
                let now: BTreeSet<String> = names.iter().map(named).collect();
                let gone = known.difference(&now).map(|name| format!("- {name}\n"));
                let come = now.difference(&known).map(|name| format!("+ {name}\n"));
                super::print(gone.chain(come).collect::<String>().as_bytes())?;
                known = now;
                pause(PAUSE);
            }
        }
    }
    Ok(0)
}

fn list(
    connection: &mut NameStoreClient,
    backend: &NameStoreKind,
) -> Result<Vec<ListedName>, CommandError> {
    match connection.send_request(NameRequest::List)? {
        NameReply::Listed(names) => Ok(names),
        NameReply::Refused(why) => Err(NamesError::Refused(backend.clone(), why).into()),
        // It lists nothing else.
        _ => Ok(Vec::new()),
    }
}

/// Bytes as a shell would take them: a terminal gets no control characters.
fn word(bytes: &[u8]) -> String {
    text_table::words(&[OsString::from_vec(bytes.to_vec())])
}

fn value(name: &ListedName) -> String {
    match &name.data {
        PublishedData::Text(text) => word(text),
        PublishedData::Typed(bytes) => format!("({})", counted(bytes.len(), "byte")),
    }
}

fn named(name: &ListedName) -> String {
    format!("{} {}", word(&name.key), value(name))
}

fn stays(persistence: Persistence) -> &'static str {
    match persistence {
        Persistence::Indefinite => "until withdrawn",
        Persistence::FirstRead => "first lookup",
        Persistence::Proc => "rank",
        Persistence::App => "program",
        Persistence::Session => "launch",
    }
}

fn as_table(names: &[ListedName]) -> String {
    let row = |name: &ListedName| {
        let seconds = name
            .limits
            .expires
            .map(|left| format!("{} s", left.as_secs()));
        vec![
            word(&name.key),
            format!("{} of {}", name.owner.rank, name.owner.nspace),
            stays(name.persistence).to_owned(),
            text_table::or_dash(seconds),
            text_table::or_dash(name.limits.reads),
            value(name),
        ]
    };
    let rows: Vec<Vec<String>> = names.iter().map(row).collect();
    text_table::render(
        &["NAME", "RANK", "UNTIL", "EXPIRES", "LOOKUPS", "VALUE"],
        &rows,
        None,
    )
}

fn as_json(names: &[ListedName]) -> Value {
    let of = |name: &ListedName| {
        let text = match &name.data {
            PublishedData::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            PublishedData::Typed(_) => None,
        };
        json!({
            "name": String::from_utf8_lossy(&name.key),
            "value": text,
            "bytes": name.data.bytes().len(),
            "job": name.owner.nspace.as_str(),
            "rank": name.owner.rank.0,
            "until": stays(name.persistence),
            "expires_seconds": name.limits.expires.map(|left| left.as_secs()),
            "lookups": name.limits.reads,
        })
    };
    names.iter().map(of).collect()
}
