//! A request to start a new job, whatever form it came in ([`spawn_v1`](super::spawn_v1),
//! [`spawn_v2`](super::spawn_v2)).

/// A key and its value, as the client wrote them.
pub type Pair = (Vec<u8>, Vec<u8>);

/// A request to start a new job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spawn {
    /// What to start, in appnum order; at least one.
    pub commands: Vec<SpawnCommand>,
    /// Pairs to put into the new job's key-value store before its ranks start.
    pub preputs: Vec<Pair>,
}

/// One command of a [`Spawn`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpawnCommand {
    /// Number of processes.
    pub nprocs: u32,
    /// The program, absolute or not.
    pub program: Vec<u8>,
    /// Arguments without the program itself; each may be empty.
    pub args: Vec<Vec<u8>>,
    /// Info keys and values given by the application (`wdir`, `path`, `host`, ...).
    pub info: Vec<Pair>,
}
