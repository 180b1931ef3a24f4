//! Facts that a host reports about itself.
//!
//! Fields that a host of another version does not send have their defaults, which no check objects to.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// All facts of one host.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFacts {
    /// Host name of the kernel.
    pub name: String,
    /// Version of the wireup that reports.
    pub wireup: String,
    #[serde(flatten)]
    pub user: RankUser,
    pub kernel: Kernel,
    pub cpus: Cpus,
    pub memory: Memory,
    /// Soft limits by the names of `ulimit`'s resources in wireup (`nofile`, …); those without limit are left out.
    pub limits: BTreeMap<String, u64>,
    /// Directory of shared memory.
    pub shm: Directory,
    /// Directory of temporary files.
    pub tmp: Directory,
    pub home: Directory,
    /// Working directory of the ranks.
    pub cwd: Directory,
    #[serde(rename = "left")]
    pub leftovers: Leftovers,
    pub network: NetworkFacts,
    pub devices: Vec<DeviceNode>,
    /// libfabric and UCX, as far as they are installed.
    pub network_libraries: Vec<NetworkLibrary>,
    pub pmix: Pmix,
    /// Programs and libraries of wireup that are installed with the launcher there.
    pub parts: Vec<InstalledPart>,
    /// The container that ranks would run in.
    pub image: Option<ImageCheck>,
    /// The program that the user names, as ranks in an image would find it.
    pub program: Option<ProgramFacts>,
    /// Variables that direct an MPI, by name.
    pub variables: BTreeMap<String, String>,
}

/// User of the ranks on one host.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankUser {
    /// User id of the ranks' processes.
    pub uid: u32,
    /// Account name of that user id; `None` without an account.
    pub account: Option<String>,
}

/// The kernel and its settings.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Kernel {
    /// Kernel release, as in `uname -r`.
    pub release: String,
    /// Machine type, as in `uname -m`.
    pub machine: String,
    /// Files below `/proc/sys`, by their path there.
    pub settings: BTreeMap<String, String>,
    /// Reason for which a process may not read the memory of another with process_vm_readv(2).
    pub no_cma: Option<String>,
    /// Whether the kernel regards its clock as synchronized.
    pub synchronized: Option<bool>,
    /// The container runtime that this is inside of.
    pub container: Option<String>,
    /// `/proc` hides processes of other users.
    pub hides_processes: bool,
    /// Threads of this user.
    pub threads: u64,
}

/// Processors of one host.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpus {
    pub online: u32,
    /// Number of processors that this process may use.
    pub allowed: u32,
    /// The quota of its cgroup, rounded up to whole processors.
    pub quota: Option<u32>,
    /// Number of memory nodes.
    pub numa_nodes: u32,
    /// Processes that run or are ready to, on average in the last minute.
    pub load: f64,
    /// Share of processor time that the hypervisor took while the host collected its facts, from 0 to 1; `None` if the
    /// kernel does not count it.
    pub steal: Option<f64>,
    /// The governor of their frequency.
    pub governor: Option<String>,
}

impl Cpus {
    /// Returns the number of processors that ranks can use at once.
    pub(super) fn usable(&self) -> u32 {
        self.allowed.min(self.quota.unwrap_or(u32::MAX)).max(1)
    }
}

/// Memory of one host, in bytes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    pub available: u64,
    /// Bytes that the cgroup of this process still permits.
    pub cgroup: Option<u64>,
    /// Processes that the cgroup still permits.
    pub cgroup_processes: Option<u64>,
    /// Huge pages that are reserved, and those that are free.
    pub huge_pages: u64,
    pub huge_pages_free: u64,
    /// Huge pages can be had as files.
    pub huge_pages_mounted: bool,
}

/// A directory, and the file system that it is on.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Directory {
    pub path: String,
    /// Reason for which this user cannot create a file in the directory, or enter it.
    pub problem: Option<String>,
    /// Bytes that are free to this user, and all.
    pub free: Option<u64>,
    pub size: u64,
    /// Files that can be added.
    pub free_files: Option<u64>,
    /// No program can be executed from it.
    pub no_exec: bool,
}

/// Leftovers of killed launches.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Leftovers {
    /// Files of MPIs in shared memory that no process uses.
    pub files: u64,
    pub file_bytes: u64,
    /// System V segments of this user that no process has attached.
    pub segments: u64,
    pub segment_bytes: u64,
    /// Number of processes of this user in jobs whose launcher has ended.
    pub processes: u64,
}

/// The network as this host has it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkFacts {
    pub interfaces: Vec<Interface>,
    /// Addresses that the host's own name has here.
    pub own_addresses: Vec<IpAddr>,
    /// Error of the lookup of the host's own name.
    pub own_problem: Option<String>,
    /// Error of a connection from the host to itself over the loopback.
    pub loopback_problem: Option<String>,
}

/// Network interface of one host.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    pub name: String,
    pub up: bool,
    pub loopback: bool,
    pub addresses: Vec<IpAddr>,
    pub mtu: u32,
}

/// Purpose of a device node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceNodeKind {
    /// Device of a fast network.
    Fabric,
    /// Accelerator, such as a GPU.
    Gpu,
    /// Device for copies between processes.
    Copy,
}

/// A device node or a port.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeviceNode {
    pub kind: DeviceNodeKind,
    /// Path of the device node.
    pub path: String,
    /// Error of the device, if it cannot be used.
    pub problem: Option<String>,
}

/// A library by which MPIs use networks.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkLibrary {
    /// Name: `libfabric` or `UCX`.
    pub name: String,
    /// Path of the library.
    pub path: String,
    pub version: String,
    /// Providers of libfabric; empty for other libraries.
    pub providers: Vec<Provider>,
    /// Error of the library, if it cannot be used.
    pub problem: Option<String>,
}

/// Provider of libfabric on one host.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Provider {
    pub name: String,
    /// Error when the provider was opened.
    pub problem: Option<String>,
}

/// Parts that PMIx needs on one host.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pmix {
    /// The library that would be loaded.
    pub library: Option<String>,
    pub version: Option<String>,
    /// Known faults of that version.
    pub vulnerable: Option<String>,
    /// Error, if libpmix or its server is missing.
    pub problem: Option<String>,
}

/// Installed part of wireup, in the launcher's directory.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InstalledPart {
    pub path: String,
    /// `None` if it has none to print, as parts of older versions.
    pub version: Option<String>,
}

/// Result of a test container of an image.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageCheck {
    /// The program of the runtime that PATH does not have.
    pub no_runtime: Option<String>,
    /// Error of the container.
    pub problem: Option<String>,
}

/// Process-management interface to offer a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DetectedInterface {
    /// PMIx: Open MPI, or any program on libpmix.
    Pmix,
    /// PMI-1 or PMI-2: MPICH and its relatives, or any program on libpmi.
    Pmi,
    /// Every interface: the program behind an interpreter or wrapper is unknown.
    #[default]
    Unknown,
    /// PMI, because it costs nothing; no MPI was found.
    Plain,
}

/// The program as a host has it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramFacts {
    /// Name that the user has given.
    pub name: String,
    pub path: Option<String>,
    /// Error, if the program cannot be executed.
    pub problem: Option<String>,
    /// The file exists, and this host cannot execute it.
    pub is_unsuitable: bool,
    /// A digest of its contents.
    pub digest: Option<String>,
    pub wants: DetectedInterface,
    /// MPI library that the program loads.
    pub mpi: Option<String>,
    pub mpi_digest: Option<String>,
    /// Libraries that are nowhere.
    pub missing: Vec<String>,
}
