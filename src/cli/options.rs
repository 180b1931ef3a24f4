//! Options of `wireup run`, by topic: one file for each group of its help.

mod binding;
mod container;
mod debug;
mod ending;
mod fabric;
mod hosts;
mod interface;
mod layout;
mod status;
mod stdio;
mod surroundings;

pub(super) use binding::BindingArgs;
pub(super) use container::{ContainerArgs, ImageArgs, words as image_words};
pub(super) use debug::DebugArgs;
pub(super) use ending::{EndingArgs, OnLoss};
pub(super) use fabric::FabricArgs;
pub(super) use hosts::{HostsArgs, HostsListArgs};
pub(super) use interface::InterfaceArgs;
pub(super) use layout::LayoutArgs;
pub(super) use status::StatusArgs;
pub(super) use stdio::StdioArgs;
pub(super) use surroundings::SurroundingsArgs;
