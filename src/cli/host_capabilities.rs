//! `wireup capabilities`: prints which interfaces this host can offer to ranks. Agents start it, not people.

use std::io::Write as _;
use std::path::Path;

use crate::inspect::ldso::{Loader, LoaderFiles};
use crate::inspect::{libpmix, sidecar_files};
use crate::plan::Variable;
use wireup_core::failure::CommandError;
use wireup_core::link::agent_protocol::NodeCapabilities;

/// Prints the capabilities as one line of JSON.
///
/// # Errors
/// The agent does not read.
pub(super) fn execute() -> Result<u8, CommandError> {
    let text = serde_json::to_string(&find()).expect("texts only");
    let written = writeln!(std::io::stdout().lock(), "{text}");
    written.map_err(|error| CommandError::system("cannot write to the agent", error))?;
    Ok(0)
}

fn find() -> NodeCapabilities {
    let env: Vec<Variable> = std::env::vars_os().collect();
    let loader = Loader::new(&env, Path::new("/"), LoaderFiles::default());
    let named = std::env::var_os(libpmix::VARIABLE).filter(|value| !value.is_empty());
    let named = named.as_deref().map(Path::new);
    let library = libpmix::choose(None, None, named, &[], &loader);
    let mut interfaces = vec!["pmi1".to_owned(), "pmi2".to_owned()];
    let server = sidecar_files::are_installed();
    if server.is_ok() {
        interfaces.push("pmix".to_owned());
    }
    let (libpmix, missing) = match library {
        Ok(choice) => (choice.version.map(|version| version.to_string()), None),
        Err(error) => (None, Some(error.to_string())),
    };
    NodeCapabilities {
        interfaces,
        libpmix,
        pmix_problem: server.err().map(|failure| failure.to_string()).or(missing),
    }
}
