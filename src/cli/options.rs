//! Options of `wireup run`, by topic: one file for each group of its help.

use clap::builder::{PossibleValuesParser, TypedValueParser};

mod binding_args;
mod container_args;
mod debug_args;
mod ending_args;
mod fabric_args;
mod hosts_args;
mod interface_args;
mod layout_args;
mod status_args;
mod stdio_args;
mod surroundings_args;

pub(super) use binding_args::BindingArgs;
pub(super) use container_args::{ContainerArgs, ImageArgs, words as image_words};
pub(super) use debug_args::DebugArgs;
pub(super) use ending_args::{DetachPolicy, TerminationArgs};
pub(super) use fabric_args::FabricArgs;
pub(super) use hosts_args::{BatchSystemArg, HostsArgs, HostsListArgs};
pub(super) use interface_args::{InterfaceArgs, NamesSpec};
pub(super) use layout_args::LayoutArgs;
pub(super) use status_args::{ReportTarget, StatusArgs};
pub(super) use stdio_args::StdioArgs;
pub(super) use surroundings_args::ProcessArgs;

/// Reads the name of one of these choices.
pub(super) fn choice<T: Copy + Send + Sync + 'static>(
    names: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names.iter().map(|(name, _)| *name)).map(|word| {
        let mut named = names.iter().filter(|(name, _)| *name == word);
        let (_, found) = named.next().expect("only these names are accepted");
        *found
    })
}
