//! Texts for the user: about the plan, the state and failures.

pub(crate) mod bindings;
pub(crate) mod command_line;
pub(crate) mod dry_run;
pub mod explain;
pub mod failures;
pub mod late_fence;
pub(crate) mod node_texts;
pub(crate) mod page;
pub(crate) mod plan_record;
pub mod process_names;
pub mod progress_line;
pub(crate) mod running_ranks;
pub mod singleton_detection;
pub mod stacks;
pub mod status_stream;
