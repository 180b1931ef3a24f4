//! Looks up what a launch needs to know besides its line: each of it once, before the launch begins.

use super::arguments::{CommandLine, LaunchArguments, LaunchLookups, ReadRankfile, wrong_rankfile};
use crate::cli::config::{self, Defaults};
use crate::cli::lookup_progress::LookupProgress;
use crate::cli::option_scan::OptionTable;
use crate::cli::options::LayoutArgs;
use crate::plan::{hostfile, launch_nodes};
use wireup_core::failure::CommandError;
use wireup_core::job::hosts::{HERE, HostEntry, HostList};
use wireup_core::job::rankfile::Rankfile;
use wireup_sys::log;
use wireup_sys::machine_slots::SlotLimits;

/// Reads the defaults files, unless the line refuses them.
///
/// # Errors
/// [`CommandError`] with the line that is wrong.
pub(super) fn read_defaults(
    table: &OptionTable,
    line: &CommandLine,
) -> Result<Defaults, CommandError> {
    match config::is_refused(table, &line.first) {
        true => Ok(Defaults::default()),
        false => config::read(table).map_err(CommandError::request),
    }
}

/// Reads the rankfile, if one is named.
///
/// # Errors
/// [`CommandError`] with the line that is wrong.
pub(super) fn read_rankfile(layout: &LayoutArgs) -> Result<Option<ReadRankfile>, CommandError> {
    let Some(path) = &layout.rankfile else {
        return Ok(None);
    };
    let text = hostfile::bytes(path).map_err(|error| wrong_rankfile(path, &error))?;
    let ranks = Rankfile::parse(&text).map_err(|error| wrong_rankfile(path, &error))?;
    Ok(Some(ReadRankfile {
        path: path.clone(),
        ranks,
    }))
}

/// The filter of the log that the environment gives.
///
/// # Errors
/// [`CommandError`] with what is wrong with it.
pub(in crate::cli) fn filter_of_environment() -> Result<Option<String>, CommandError> {
    let Some(filter) = std::env::var_os(log::VARIABLE).filter(|filter| !filter.is_empty()) else {
        return Ok(None);
    };
    let checked = log::check(&filter.to_string_lossy());
    checked
        .map(Some)
        .map_err(|error| CommandError::request(format!("{}: {error}", log::VARIABLE)))
}

/// Looks up the hosts of a launch, and the facts of this machine that it needs. What takes long is shown, and ends with
/// this process.
///
/// # Errors
/// [`CommandError`] for hosts that cannot be used.
pub(super) fn look_up(arguments: &LaunchArguments) -> Result<LaunchLookups, CommandError> {
    let spec = &arguments.spec;
    let log = match &spec.log {
        Some(filter) => Some(filter.clone()),
        None => filter_of_environment()?,
    };
    let node_names = launch_nodes::names_here(spec.layout.virtual_nodes);
    let file = arguments
        .rankfile
        .as_ref()
        .filter(|_| !arguments.is_virtual());
    let by_rankfile = file.and_then(|file| hosts_of(&file.ranks, &node_names));
    let count = |slots| arguments.needed_hosts(slots);
    let progress = LookupProgress::new(spec.status.no_progress, spec.verbose > 0);
    let (hosts, starter) =
        arguments
            .hosts
            .resolve(arguments.is_virtual(), count, by_rankfile, progress)?;
    Ok(LaunchLookups {
        hosts,
        starter,
        node_names,
        cpus: (spec.binding.cpus_per_rank > 1).then(|| SlotLimits::detect().count()),
        log,
    })
}

/// The hosts of a rankfile that has others than this machine, which is called so.
fn hosts_of(file: &Rankfile, node_names: &[String]) -> Option<HostList> {
    let named = file.named_hosts();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let here = |name: &str| {
        HERE.contains(&name)
            || node_names
                .iter()
                .any(|own| own == name || short(own) == short(name))
    };
    let other = named.iter().any(|(name, _)| !here(name));
    let entry = |(name, ranks): (&str, u32)| HostEntry::new(name, ranks);
    other.then(|| HostList(named.into_iter().map(entry).collect()))
}
