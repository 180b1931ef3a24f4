//! The table of all checks. The judgements are in the modules below, by topic.

mod across;
mod limits;
mod machine;
pub(super) mod network;
mod software;
#[cfg(test)]
mod tests;

use super::Check;
use super::CheckScope::{self, All, One};

const fn check(
    name: &'static str,
    reads: &'static str,
    remedy: &'static str,
    judge: CheckScope,
) -> Check {
    Check {
        name,
        reads,
        remedy,
        judge,
    }
}

/// Remedy for interfaces that lead to no other host.
pub const KEEP_TO_NETWORK: &str = "keep MPI to the network between the hosts: -x OMPI_MCA_btl_tcp_if_include=DEV, \
    -x FI_TCP_IFACE=DEV, -x MPIR_CVAR_NETWORK_IFACE=DEV, -x UCX_NET_DEVICES=DEV";

/// Every check, in the order in which findings are shown.
#[rustfmt::skip]
pub const CHECKS: &[Check] = &[
    // Hosts and their agents.
    check("agent", "the answer of each host's agent",
        "start the agent there (systemctl start wireup-agent, or wireup agent); `wireup ps --nodes` queries it alone", All(across::agent)),
    check("agent-version", "the version of each agent, against the others and the launcher on its host",
        "install one version of wireup on all hosts and restart the agents (systemctl restart wireup-agent): an upgrade may not have restarted them", All(across::agent_version)),
    check("answer", "whether `wireup doctor` runs on each host through its agent",
        "correct what the launch reports; where wireup is missing, install it at the same place on all hosts, or in PATH", All(across::answer)),
    check("wireup-version", "the version of wireup on each host",
        "install one version of wireup on all hosts", All(across::wireup_version)),
    check("parts", "the version of each program and library of wireup, against the launcher's",
        "install all parts in one version: the packages wireup and wireup-impi of one version, or all files of one target/release", One(software::parts)),
    check("machine", "uname -m on each host",
        "start programs for one processor only, or give each kind of host its own program (:)", All(across::machine)),
    check("uid", "the user number of ranks on each host",
        "give the user one number on all hosts (LDAP, or the same /etc/passwd)", All(across::uid)),
    check("clock", "the time on each host, against this host",
        "run chrony or systemd-timesyncd on all hosts", All(across::clock)),
    // The network between them.
    check("names", "addresses of a neighbour's name (getaddrinfo), against the neighbour's interfaces",
        "correct DNS or /etc/hosts on the host, so that each name resolves to an address of that host", All(across::names)),
    check("names-back", "the name of a neighbour's address (getnameinfo)",
        "add the address to the reverse zone of DNS or to /etc/hosts", All(across::names_back)),
    check("firewall", "a TCP connection to a port of a neighbour that listens, as MPIs choose them",
        "open all TCP ports above 1024 between the hosts, or keep MPI to a range and open that (OMPI_MCA_btl_tcp_port_min_v4, \
         MPIR_CVAR_CH3_PORT_RANGE, I_MPI_PORT_RANGE)", All(across::firewall)),
    check("ping-pong", "messages between two ranks of the user's MPI on two hosts, or on one machine (--run)",
        "start the pair alone: wireup run -v --hosts A,B -n 2 PROGRAM; other findings may explain the failure", All(across::ping_pong)),
    check("mtu", "MTUs of interfaces in one network on different hosts",
        "give the interfaces of one network the same MTU (ip link set DEV mtu N)", All(across::mtu)),
    check("same-address", "addresses that several hosts have, bridges of containers left out",
        KEEP_TO_NETWORK, All(across::same_address)),
    check("interfaces", "interfaces of bridges for containers and virtual machines",
        KEEP_TO_NETWORK, One(network::interfaces)),
    check("interface-variables", "variables that choose an MPI's network interface, against the interfaces of the host",
        "name an interface that the host has, or unset the variable", One(network::interface_variables)),
    check("own-name", "addresses of the host's own name",
        "put the name with the host's address on the network in /etc/hosts or DNS", One(network::own_name)),
    check("loopback", "a TCP connection over the loopback",
        "ip link set lo up; permit connections to 127.0.0.1 in the firewall", One(network::loopback)),
    check("ports", "net.ipv4.ip_local_port_range",
        "sysctl -w net.ipv4.ip_local_port_range='32768 60999'", One(network::ports)),
    // The program and its libraries.
    check("image-runtime", "the program of the container runtime in PATH (--image)",
        "install it on the host, or choose another (--image RUNTIME:…)", One(software::image_runtime)),
    check("image", "making a container of the image with a process that does nothing (--image)",
        "copy the directory to the host or put it where all see it, readable for the user; podman pull an image that has a name", One(software::image)),
    check("program", "the program: found, and may be executed",
        "put the program at the same place on all hosts, or copy it with the launch (wireup run --stage); with --image, put it into the image", One(software::program)),
    check("libraries", "libraries that the program needs, as the dynamic loader searches them",
        "install them, or add their directory: -x LD_LIBRARY_PATH=…", One(software::libraries)),
    check("program-build", "a digest of the program's file on each host",
        "put one build of the program on all hosts", All(across::program_build)),
    check("mpi-build", "the MPI library of the program on each host, and a digest of it",
        "install one build of the MPI on all hosts", All(across::mpi_build)),
    check("libpmix", "libpmix and the server for it, as a launch would choose them",
        "install libpmix 4.2.2 or newer (Debian: apt-get install libpmix2), or name it with --libpmix", One(software::libpmix)),
    check("libpmix-cve", "the version of libpmix, against known faults",
        "install OpenPMIx 4.2.6, 5.0.1 or newer, unless your distribution repaired it; --libpmix names another", One(software::vulnerable)),
    check("libpmix-version", "the version of libpmix on each host",
        "install one version of libpmix on all hosts", All(across::libpmix_version)),
    // Devices.
    check("fabric", "opening the device files of fast networks, and the state of their ports",
        "give the user access (group rdma, udev rules), bring the link up; without the network MPIs fall back to TCP", One(software::fabric)),
    check("providers", "opening the providers of libfabric (fi_getinfo, fi_fabric, fi_domain), and UCX (ucp_init)",
        "see fi_info and ucx_info -d; unset or correct FI_PROVIDER and UCX_TLS; without a provider MPIs fall back to TCP", One(software::providers)),
    check("gpu", "opening the device files of GPUs",
        "add the user to the groups video and render; start a container with the devices", One(software::gpu)),
    check("copy-device", "opening /dev/knem and /dev/xpmem",
        "give the user access to the file, or unload the kernel module", One(software::copy_device)),
    // Memory.
    check("shm", "free space of /dev/shm",
        "enlarge it: mount -o remount,size=SIZE /dev/shm; in a container start it with --shm-size", One(machine::shm)),
    check("shm-access", "making a file in /dev/shm",
        "mount a tmpfs there with mode 1777", One(machine::shm_access)),
    check("stale-shm", "files of MPIs in /dev/shm that no process uses",
        "remove them: rm those of yours in /dev/shm that no process has open (lsof +D /dev/shm)", One(machine::stale_shm)),
    check("sysv-shm", "System V segments that no process has attached",
        "remove them: ipcs -m shows them, ipcrm -m ID removes one", One(machine::sysv_shm)),
    check("memory", "memory that is available",
        "end the processes that use it, or start fewer ranks on the host", One(machine::memory)),
    check("cgroup-memory", "the memory limit of the cgroup",
        "request more memory from the batch system or container (--mem)", One(machine::cgroup_memory)),
    check("huge-pages", "huge pages that are reserved, free and mounted",
        "end the processes that hold them, or mount hugetlbfs at /dev/hugepages", One(machine::huge_pages)),
    check("overcommit", "vm.overcommit_memory",
        "sysctl -w vm.overcommit_memory=0", One(machine::overcommit)),
    // Processors.
    check("cpus", "processors that the cgroup's quota and the affinity permit",
        "request more processors from the batch system or container, or start fewer ranks", One(machine::cpus)),
    check("load", "the load average",
        "end other work on the host, or choose another host", One(machine::load)),
    check("steal", "steal time in /proc/stat while the doctor collects its facts",
        "give the virtual machine processors of its own (dedicated instead of shared or burstable), or choose another host", One(machine::steal)),
    check("governor", "the governor of the processors' frequency",
        "cpupower frequency-set -g performance", One(machine::governor)),
    check("numa-balancing", "kernel.numa_balancing, where there are several memory nodes",
        "sysctl -w kernel.numa_balancing=0, for ranks that are bound to processors", One(machine::numa_balancing)),
    // Limits.
    check("memlock", "the limit of locked memory, where there is a fast network",
        "ulimit -l unlimited before the agent starts (LimitMEMLOCK=infinity in its unit)", One(limits::memlock)),
    check("nofile", "the limit of open files",
        "ulimit -n, or LimitNOFILE= in the agent's unit", One(limits::nofile)),
    check("nproc", "the limit of processes of the user, and how many there are",
        "ulimit -u, or LimitNPROC= in the agent's unit", One(limits::nproc)),
    check("cgroup-processes", "the limit of processes of the cgroup",
        "TasksMax= in the agent's unit, or --pids-limit of the container", One(limits::cgroup_processes)),
    check("address-space", "the limits of address space and data",
        "ulimit -v unlimited, ulimit -d unlimited", One(limits::address_space)),
    check("stack", "the limit of the stack",
        "ulimit -s 8192", One(limits::stack)),
    check("file-size", "the limit of the size of files",
        "ulimit -f unlimited", One(limits::file_size)),
    check("cpu-time", "the limit of processor time",
        "ulimit -t unlimited", One(limits::cpu_time)),
    // The kernel and the surroundings.
    check("kernel", "uname -r",
        "install Linux 5.11 or newer", One(machine::kernel)),
    check("cma", "reading memory by process_vm_readv(2), which MPIs use between ranks of a host",
        "permit process_vm_readv in the container's seccomp profile (--cap-add SYS_PTRACE)", One(machine::cma)),
    check("ptrace-scope", "kernel.yama.ptrace_scope",
        "sysctl -w kernel.yama.ptrace_scope=0: MPIs copy directly between ranks, and wireup stacks can inspect them", One(machine::ptrace_scope)),
    check("autogroup", "kernel.sched_autogroup_enabled",
        "sysctl -w kernel.sched_autogroup_enabled=0; otherwise nice has no effect between sessions", One(machine::autogroup)),
    check("hidepid", "whether /proc hides processes of others",
        "mount -o remount,hidepid=0 /proc", One(machine::hidepid)),
    check("container", "the container runtime, and its shared memory",
        "start the container with --shm-size=1g or --ipc=host", One(machine::container)),
    check("synchronized", "whether the kernel regards its clock as synchronized, where there are several hosts",
        "run chrony or systemd-timesyncd", One(machine::synchronized)),
    check("tmp", "making a file in the directory for temporary files, and its free space",
        "remove files there, or set TMPDIR to a directory with space on the host itself", One(machine::tmp)),
    check("tmp-path", "the length of the path of temporary files",
        "set TMPDIR to a short path: sockets in it have at most 107 bytes", One(machine::tmp_path)),
    check("no-exec", "whether programs may be executed from the directory for temporary files",
        "set TMPDIR to a directory that is not mounted noexec: staged programs are put there", One(machine::no_exec)),
    check("home", "making a file in the home directory",
        "make the home directory on the host, or mount it", One(machine::home)),
    check("directory", "entering the working directory",
        "mount the directory on all hosts, or choose another (--wdir)", One(machine::directory)),
    check("left-processes", "processes of jobs whose launcher has ended",
        "wireup ps shows the jobs, wireup kill ends them", One(machine::left_processes)),
];
