//! Errors of a process of the world, and of its calls.

use std::io;

use thiserror::Error;
use wireup_impi_core::world::WorldError;

use crate::agent::process_handshake::AGENT;

/// Error of a process of the world.
#[derive(Debug, Error)]
pub enum PeerError {
    #[error("not in an IMPI job: {0} is not set (`wireup run --impi`, `wireup impi agent`)")]
    NoAgent(&'static str),
    #[error(
        "unknown rank of this process: set WIREUP_RANK, PMI_RANK, PMIX_RANK, OMPI_COMM_WORLD_RANK or SLURM_PROCID to a number"
    )]
    NoRank,
    #[error("{AGENT} has no host for rank {0}")]
    NoHost(u32),
    #[error("agent: {0}")]
    Agent(#[from] io::Error),
    #[error("invalid values from the agent: {0}")]
    World(#[from] WorldError),
    #[error("cannot decode the values from the agent")]
    Values,
    #[error("the job has failed: {0}")]
    Broken(String),
    #[error("{0}")]
    Argument(String),
    #[error("the message has {length} bytes, but the receiver accepts {limit}")]
    Truncated { length: u64, limit: usize },
}
