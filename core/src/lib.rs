//! The protocols and decisions of wireup, without I/O: no socket, no file, no clock, no environment. Time is an
//! argument.
//!
//! Map, from the vocabulary up; a module uses only those above it:
//! - [`duration`]: durations as people write them; [`wording`]: parts of messages
//! - [`metrics`]: metrics as Prometheus reads them
//! - [`topology`]: what a host is made of
//! - [`job`]: ids, the job's description, rank placement, how a job ends
//! - [`placement`]: which nodes the ranks of a job run on
//! - [`engine_context`]: the time of an event, and where its actions go
//! - [`binding`]: which CPUs each rank of a host gets
//! - [`container`]: what the container of a node is made of
//! - [`fabric`]: credentials of a fast network, from the request to their end
//! - [`kvs`], [`pmi`], [`fence`], [`direct_modex`], [`groups`], [`names`], [`pmix`]: the protocol cores
//! - [`interlaunch`]: collectives between launches
//! - [`name_server`]: where launches meet that know nothing of each other
//! - [`link`]: messages between launcher, agents and steps of a launch on several hosts
//! - [`node_tracker`]: the state of the nodes of a launch, at its launcher; [`staging`]: which files they are sent; [`step`]: the duties of a step
//! - [`node`]: the state machine of a node

#![forbid(unsafe_code)]

pub mod binding;
pub mod container;
pub mod direct_modex;
pub mod doctor;
pub mod duration;
pub mod engine_context;
pub mod fabric;
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
pub mod queries;
pub mod record;
pub mod secret;
pub mod staging;
pub mod step;
pub mod supervisor;
pub mod timeline;
pub mod topology;
pub mod wording;
