//! Sizes the PMI protocols agree on, and the bounds that keep a misbehaving client harmless.
//!
//! The first group is announced to clients or forced by them; the second is ours.

/// Longest kvsname in bytes, announced as `kvsname_max`.
///
/// Not a free choice: MPICH 4.0 fails an assertion when a server announces 1024.
/// Source: docs/pmi-wire.md#limits.
pub const KVSNAME_MAX: usize = 256;

/// Longest key in bytes, announced as `keylen_max`. Every measured server announces 64.
pub const KEYLEN_MAX: usize = 64;

/// Longest value in bytes, announced as `vallen_max`.
///
/// MPICH cuts larger values into pieces of this size itself, and the PMI-2 libraries reject longer
/// replies. Source: docs/pmi-wire.md#limits.
pub const VALLEN_MAX: usize = 1024;

/// Longest `PMI_process_mapping` in bytes that is served; a longer one is answered as a miss.
///
/// MPICH 4.0 lowers the announced value length to what fits into its 1024 byte line with a name and a key (1024 − 256 −
/// 64 − 30 = 674 with a terminator) and would parse a truncated map. A miss is safe: all clients then derive the nodes
/// from host names. Source: docs/pmi-operations.md#process-mapping.
pub const PROCESS_MAPPING_MAX: usize = 673;

/// Longest value in bytes that every PMI-2 client takes: its buffers hold 1024 with a terminator.
/// Source: docs/pmi-wire.md#limits.
pub const VALLEN_2_MAX: usize = VALLEN_MAX - 1;

/// Longest service or port name in bytes. MPI bounds port names at 256; service names share it
/// with room to spare.
pub const NAME_MAX: usize = 1024;

/// Longest request line in bytes, without its newline.
///
/// Real requests stay below 1.5 KiB; the bound only has to stop garbage that never ends a line.
pub const REQUEST_LINE_MAX: usize = 64 * 1024;

/// Longest PMI-2 frame in bytes, without its length, but for spawn requests.
///
/// What the clients' own buffers hold. Source: docs/pmi-wire.md#limits.
pub const FRAME_MAX: usize = 64 * 1024;

/// Longest group of a barrier in bytes: MPICH 5 reserves 8 for each rank, so 6000 ranks may be
/// listed at least.
pub const GROUP_MAX: usize = 48 * 1024;

/// Most memory in bytes the attributes of a node may take.
pub const NODE_ATTRIBUTES_MAX: usize = 64 * 1024 * 1024;

/// Most resources that one rank may register.
pub const RESOURCES_MAX: usize = 1024;

/// Most requests of one rank that may wait for their answers at a time, one per thread.
pub const OPEN_REQUESTS_MAX: usize = 1024;

/// Largest multi-line spawn request in bytes, all its blocks and newlines included.
///
/// Room for a long argument vector per command (execve itself takes 128 KiB for one argument).
pub const SPAWN_MAX: usize = 1024 * 1024;

/// Maximum bytes of incomplete requests of one PMI-2 connection in several messages. It also bounds the copies of
/// stores of other launches on one node, and the pairs of one answer.
///
/// The pairs of 100,000 ranks with short cards fit.
pub const CONTINUED_MAX: usize = 16 * 1024 * 1024;

/// Most other jobs that the ranks of one node may be connected with.
pub const CONNECTED_JOBS_MAX: usize = 1024;

/// Longest command name in bytes; it is repeated in the answer to an unknown command.
pub const COMMAND_MAX: usize = 64;

/// Most memory in bytes the key-value store of one job may take on one node.
///
/// A hundred thousand ranks with the largest cards seen (9 KiB) fit; a rank that puts in an
/// endless loop does not.
pub const KVS_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// Most codes of processes in the reply to a PMI-2 spawn: MPICH 5 reads 1000 pairs of a message.
pub const SPAWN_CODES_MAX: usize = 512;

/// Most bytes of the reason why nothing was spawned: a line of old clients holds 1024.
pub const REASON_MAX: usize = 512;
