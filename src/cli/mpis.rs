//! `wireup mpis`: the MPIs of hosts, by the names that `--mpi` takes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::config;
use super::host_records::HostRecords;
use super::option_scan::OptionTable;
use super::options::HostsListArgs;
use super::run_args::RunArgs;
use crate::inspect::ldso::{Loader, LoaderFiles};
use crate::inspect::mpi_files::{MpiSearch, own_libpmix, read_installations};
use wireup_core::failure::CommandError;
use wireup_core::job::mpi::{MpiDefinition, MpiInstallation};
use wireup_core::text_table;

/// The option of `wireup run` that names an MPI.
const DEFINE_MPI: &str = "define-mpi";

const HELP: &str = "\
Examples:
  wireup mpis                       the MPIs of this host
  wireup mpis --hosts n[01-32]      those of all hosts
  wireup mpis --json | jq -r '.[] | select(.abis.standard) | .name'
  wireup run --mpi mpich5 -n 4 ./app

How:
  Searched are the directories of LD_LIBRARY_PATH, those that MPI_HOME, I_MPI_ROOT, VIRTUAL_ENV, CONDA_PREFIX and others
  name, those of mpiexec and mpicc in PATH, the dynamic loader's, /opt and other usual ones, modules (MODULEPATH) and
  Spack. Files are read, and nothing is executed. With --hosts each host searches for itself.

Exit status:
  0    the MPIs were listed
  1    a host was not reached
  125  wireup failed or was called wrongly";

/// Arguments of `wireup mpis`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct MpisArgs {
    #[command(flatten)]
    hosts: HostsListArgs,

    /// List this MPI too, as for `wireup run`
    #[arg(long, value_name = "'NAME=PATH [VARIABLE=VALUE]…'", value_parser = MpiDefinition::parse)]
    define_mpi: Vec<MpiDefinition>,

    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Lists the MPIs of this host or of others.
///
/// # Errors
/// [`CommandError`] when a defaults file is wrong, or the hosts cannot be asked.
pub(super) fn execute(args: MpisArgs) -> Result<u8, CommandError> {
    let defaults = config::read(&OptionTable::from_parser::<RunArgs>());
    let defaults = defaults.map_err(CommandError::request)?;
    let mut definitions = Vec::new();
    for text in defaults.values_of(DEFINE_MPI) {
        let wrong = |error| CommandError::request(format!("{DEFINE_MPI} {text:?}: {error}"));
        definitions.push(MpiDefinition::parse(text).map_err(wrong)?);
    }
    definitions.extend(args.define_mpi);
    let found = match args.hosts.has_hosts() {
        true => {
            let mut words: Vec<OsString> = vec!["mpis".into(), "--json".into()];
            words.extend(definitions.iter().map(definition_word));
            HostRecords::collect(args.hosts, "MPIs", &words)?
        }
        false => HostRecords {
            hosts: Vec::new(),
            records: local_records(&definitions)?,
            missed: false,
        },
    };
    found.show("MPIs", args.json, table)
}

/// A definition as an option for another host.
fn definition_word(definition: &MpiDefinition) -> OsString {
    let mut word = OsString::from(format!("--{DEFINE_MPI}={}=", definition.name));
    word.push(&definition.path);
    for (name, value) in &definition.variables {
        word.push(" ");
        word.push(name);
        word.push("=");
        word.push(value);
    }
    word
}

/// The MPIs of this host; those that are defined come first.
fn local_records(definitions: &[MpiDefinition]) -> Result<Vec<Value>, CommandError> {
    let cwd = std::env::current_dir();
    let cwd =
        cwd.map_err(|error| CommandError::system("cannot use the current directory", error))?;
    let env: Vec<_> = std::env::vars_os().collect();
    let loader = Loader::new(&env, &cwd, LoaderFiles::default());
    let mut records = Vec::new();
    for definition in definitions {
        for installation in read_installations(&definition.path, "--define-mpi") {
            let installation = MpiInstallation {
                variables: definition.variables.clone(),
                ..installation
            };
            records.push(record(&definition.name, &installation, &loader));
        }
    }
    let search = MpiSearch {
        variable: &|name| std::env::var_os(name).map(PathBuf::from),
        loader: &loader,
        program: None,
    };
    let found = search.installations();
    records.extend(found.iter().map(|it| record(&it.name(), it, &loader)));
    Ok(records)
}

fn record(name: &str, installation: &MpiInstallation, loader: &Loader) -> Value {
    let abis = installation.libraries.iter();
    let abis = abis.map(|(abi, path)| (abi.as_str().to_owned(), json!(path.to_string_lossy())));
    let variables = installation.variables.iter();
    let variables = variables.map(|(name, value)| {
        let name = name.to_string_lossy().into_owned();
        (name, json!(value.to_string_lossy()))
    });
    json!({
        "name": name,
        "family": installation.family.as_str(),
        "version": installation.version,
        "interface": installation.family.launch_interface(),
        "abis": abis.collect::<serde_json::Map<_, _>>(),
        "directory": installation.directory().to_string_lossy(),
        "libpmix": own_libpmix(installation, loader).map(|path| path.to_string_lossy().into_owned()),
        "found_by": installation.source,
        "variables": variables.collect::<serde_json::Map<_, _>>(),
    })
}

fn table(records: &[Value]) -> String {
    let mut head = vec![
        "NAME",
        "VERSION",
        "ABI",
        "INTERFACE",
        "FOUND BY",
        "DIRECTORY",
    ];
    let has_hosts = records.iter().any(|record| record["on"].is_string());
    if has_hosts {
        head.insert(0, "HOST");
    }
    let rows: Vec<Vec<String>> = records
        .iter()
        .map(|record| {
            let text = |key: &str| record[key].as_str().unwrap_or("?").to_owned();
            let abis = record["abis"].as_object().into_iter().flatten();
            let abis: Vec<&str> = abis.map(|(abi, _)| abi.as_str()).collect();
            let mut row = vec![
                text("name"),
                text("version"),
                abis.join(","),
                text("interface"),
                text("found_by"),
                text("directory"),
            ];
            if has_hosts {
                row.insert(0, text("on"));
            }
            row
        })
        .collect();
    text_table::render(&head, &rows, None)
}
