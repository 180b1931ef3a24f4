//! Protocols and decisions of wireup, without I/O: no socket, no file, no clock, no environment. Time is an argument.
//!
//! Modules, lowest first; a module uses only those above it in this list:
//! - [`duration`]: durations as users write them; [`wording`]: parts of messages; [`printable`], [`text_table`],
//!   [`shell_words`]: texts for terminals and shells
//! - [`executables`]: the programs of wireup and their hidden commands
//! - [`metrics`]: metrics in the format of Prometheus
//! - [`topology`]: the parts of a host
//! - [`job`]: ids, the job's description, process maps, ends of jobs; [`failure`]: the error of a command, and its exit code
//! - [`placement`]: the nodes of a job's ranks
//! - [`engine_context`]: the time of an event, and its resulting actions
//! - [`binding`]: the CPUs of each rank of a host
//! - [`container`]: the contents of a node's container
//! - [`fabric`]: grants of a fast network, from the request to the revocation
//! - [`kvs`], [`pmi`], [`fence`], [`direct_modex`], [`groups`], [`names`], [`pmix`]: the protocol cores
//! - [`interlaunch`]: operations between launches
//! - [`name_server`]: names and messages that launches of a user share
//! - [`link`]: messages between launcher, agents and steps of a launch on several hosts
//! - [`node_tracker`]: the state of the nodes of a launch, at its launcher; [`staging`]: the files that they are sent;
//!   [`step`]: the state machine of a step
//! - [`node`]: the state machine of a node

#![forbid(unsafe_code)]

pub mod binding;
pub mod container;
pub mod direct_modex;
pub mod doctor;
pub mod duration;
pub mod engine_context;
pub mod executables;
pub mod fabric;
pub mod failure;
pub mod fence;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod groups;
pub mod interlaunch;
pub mod job;
pub mod kvs;
pub mod link;
pub mod log_once;
pub mod metrics;
pub mod name_server;
pub mod names;
pub mod node;
pub mod node_tracker;
pub mod output_credit;
pub mod placement;
pub mod pmi;
pub mod pmix;
pub mod printable;
pub mod queries;
pub mod record;
pub mod secret;
pub mod shell_words;
pub mod staging;
pub mod step;
pub mod supervisor;
pub mod text_table;
pub mod timeline;
pub mod topology;
pub mod wording;
