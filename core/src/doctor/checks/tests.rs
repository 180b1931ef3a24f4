//! Each check by one fault on the second of three hosts that are well otherwise: it is found there, once, and no other
//! check objects.

use super::*;
use crate::doctor::facts::{
    DetectedInterface, DeviceNode, DeviceNodeKind, HostFacts, ImageCheck, InstalledPart, Interface,
    NetworkLibrary, ProgramFacts, Provider, RankUser,
};
use crate::doctor::ping_pong::{Pair, PingPong};
use crate::doctor::{
    Clock, DoctorHost, Finding, LaunchNeeds, NeighbourView, Severity, judge, neighbours,
};
use std::net::{IpAddr, Ipv4Addr};

const HOSTS: usize = 3;
const NEEDS: LaunchNeeds = LaunchNeeds {
    ranks: Some(4),
    hosts: HOSTS as u32,
};

fn address(number: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number as u8 + 1).into()
}

fn interface(name: &str, address: IpAddr) -> Interface {
    Interface {
        name: name.into(),
        up: true,
        loopback: false,
        addresses: vec![address],
        mtu: 1500,
    }
}

/// A host without fault.
fn well(number: usize) -> DoctorHost {
    let mut facts = HostFacts {
        name: format!("n{number}"),
        wireup: "1.0.0".into(),
        user: RankUser {
            uid: 1000,
            account: Some("alice".into()),
        },
        ..HostFacts::default()
    };
    facts.kernel.release = "6.1.0-44-amd64".into();
    facts.kernel.machine = "x86_64".into();
    facts.kernel.synchronized = Some(true);
    (facts.cpus.online, facts.cpus.allowed) = (8, 8);
    facts.memory.available = 1 << 34;
    facts.shm.free = Some(1 << 30);
    facts.shm.size = 1 << 30;
    facts.tmp.path = "/tmp".into();
    facts.tmp.free = Some(1 << 30);
    facts.tmp.free_files = Some(1 << 20);
    facts.network.interfaces = vec![interface("eth0", address(number))];
    facts.network.own_addresses = vec![address(number)];
    facts.network_libraries = vec![NetworkLibrary {
        name: "libfabric".into(),
        path: "/l".into(),
        providers: vec![Provider {
            name: "tcp".into(),
            problem: None,
        }],
        ..NetworkLibrary::default()
    }];
    facts.pmix.version = Some("5.0.3".into());
    facts.program = Some(ProgramFacts {
        name: "./app".into(),
        digest: Some("d1".into()),
        wants: DetectedInterface::Pmix,
        mpi: Some("/usr/lib/libmpi.so.40".into()),
        mpi_digest: Some("m1".into()),
        ..ProgramFacts::default()
    });
    let neighbours = neighbours::neighbour_indices(number, HOSTS).into_iter();
    let neighbours = neighbours.map(|other| NeighbourView {
        host: other,
        forward: Ok(vec![address(other)]),
        back: Some(format!("n{other}.cluster")),
        unreached: None,
    });
    DoctorHost {
        name: format!("n{number}"),
        agent: Some(Ok("1.0.0".into())),
        facts: Ok(facts),
        clock: Some(Clock {
            ahead: 0.01,
            error: 0.02,
        }),
        neighbours: neighbours.collect(),
        pairs: vec![],
    }
}

fn hosts() -> Vec<DoctorHost> {
    (0..HOSTS).map(well).collect()
}

fn set(host: &mut HostFacts, name: &str, value: &str) {
    host.kernel.settings.insert(name.into(), value.into());
}

fn limit(host: &mut HostFacts, name: &str, value: u64) {
    host.limits.insert(name.into(), value);
}

fn device(host: &mut HostFacts, kind: DeviceNodeKind, problem: Option<&str>) {
    host.devices.push(DeviceNode {
        kind,
        path: "/dev/x".into(),
        problem: problem.map(str::to_owned),
    });
}

fn part(path: &str, version: &str) -> InstalledPart {
    InstalledPart {
        path: path.into(),
        version: Some(version.into()),
    }
}

fn program(host: &mut HostFacts) -> &mut ProgramFacts {
    host.program.as_mut().unwrap()
}

use Severity::{Problem, Warning};

type Case = (&'static str, Severity, &'static str, fn(&mut HostFacts));

/// A fault of the host itself: the check that finds it, how bad it is, and words of the finding.
const OF_ONE: &[Case] = &[
    (
        "wireup-version",
        Problem,
        "wireup 2.0.0, on the others 1.0.0",
        |it| it.wireup = "2.0.0".into(),
    ),
    ("machine", Warning, "aarch64, on the others x86_64", |it| {
        it.kernel.machine = "aarch64".into()
    }),
    (
        "uid",
        Problem,
        "user number 1001, on the others 1000",
        |it| it.user.uid = 1001,
    ),
    ("uid", Problem, "1000 is bob, on the others alice", |it| {
        it.user.account = Some("bob".into())
    }),
    (
        "uid",
        Problem,
        "1000 has no account; on other hosts it is alice",
        |it| it.user.account = None,
    ),
    (
        "mtu",
        Problem,
        "an MTU of 9000 in the network 10.0.0.*",
        |it| it.network.interfaces[0].mtu = 9000,
    ),
    ("interfaces", Warning, "may choose docker0", |it| {
        it.network
            .interfaces
            .push(interface("docker0", Ipv4Addr::new(172, 17, 0, 1).into()));
    }),
    (
        "interface-variables",
        Problem,
        "FI_TCP_IFACE names \"ib0\"",
        |it| {
            it.variables.insert("FI_TCP_IFACE".into(), "ib0".into());
            it.variables
                .insert("UCX_NET_DEVICES".into(), "mlx5_0:1".into());
            it.variables.insert(
                "OMPI_MCA_btl_tcp_if_include".into(),
                "eth0,10.0.0.0/24".into(),
            );
        },
    ),
    ("own-name", Problem, "has no address: unknown", |it| {
        it.network.own_problem = Some("unknown".into())
    }),
    ("own-name", Warning, "resolves to the loopback", |it| {
        it.network.own_addresses = vec![Ipv4Addr::new(127, 0, 1, 1).into()];
    }),
    ("loopback", Problem, "over the loopback: refused", |it| {
        it.network.loopback_problem = Some("refused".into())
    }),
    ("ports", Problem, "11 ports from 40000 to 40010", |it| {
        set(it, "net/ipv4/ip_local_port_range", "40000\t40010")
    }),
    ("image-runtime", Problem, "ch-run not found in PATH", |it| {
        it.image = Some(ImageCheck {
            no_runtime: Some("ch-run".into()),
            ..ImageCheck::default()
        });
    }),
    ("image", Problem, "no such directory", |it| {
        it.image = Some(ImageCheck {
            problem: Some("--image /a: there is no such directory".into()),
            ..ImageCheck::default()
        });
    }),
    ("program", Problem, "not found", |it| {
        program(it).problem = Some("./app was not found".into())
    }),
    ("libraries", Problem, "needs libx.so.1", |it| {
        program(it).missing = vec!["libx.so.1".into()]
    }),
    ("program-build", Problem, "another build of ./app", |it| {
        program(it).digest = Some("d2".into())
    }),
    (
        "mpi-build",
        Problem,
        "another build of /usr/lib/libmpi.so.40",
        |it| program(it).mpi_digest = Some("m2".into()),
    ),
    (
        "parts",
        Problem,
        "/l/wireup-agent is 0.9.0, but wireup is 1.0.0",
        |it| {
            it.parts = vec![
                part("/l/wireup-impi", "1.0.0"),
                part("/l/wireup-agent", "0.9.0"),
            ]
        },
    ),
    (
        "parts",
        Problem,
        "/l/shim.so is of an unknown version, but wireup is 1.0.0",
        |it| {
            it.parts = vec![InstalledPart {
                path: "/l/shim.so".into(),
                version: None,
            }];
        },
    ),
    ("libpmix", Problem, "no libpmix", |it| {
        it.pmix.problem = Some("no libpmix.so.2 found".into())
    }),
    ("libpmix", Warning, "no libpmix", |it| {
        program(it).wants = DetectedInterface::Unknown;
        it.pmix.problem = Some("no libpmix.so.2 found".into());
    }),
    ("libpmix-cve", Warning, "CVE", |it| {
        it.pmix.vulnerable = Some("CVE-2023-41915".into())
    }),
    (
        "libpmix-version",
        Warning,
        "libpmix 4.2.2, on the others 5.0.3",
        |it| it.pmix.version = Some("4.2.2".into()),
    ),
    ("providers", Warning, "libfabric (/l): no provider", |it| {
        it.network_libraries[0].problem = Some("no provider".into())
    }),
    (
        "providers",
        Warning,
        "libfabric's provider tcp does not open: denied",
        |it| it.network_libraries[0].providers[0].problem = Some("denied".into()),
    ),
    (
        "providers",
        Warning,
        "this host has /dev/x, but libfabric (/l) has no provider for it",
        |it| device(it, DeviceNodeKind::Fabric, None),
    ),
    ("fabric", Problem, "/dev/x: Permission denied", |it| {
        device(it, DeviceNodeKind::Fabric, Some("Permission denied"))
    }),
    ("gpu", Warning, "/dev/x: Permission denied", |it| {
        device(it, DeviceNodeKind::Gpu, Some("Permission denied"))
    }),
    ("copy-device", Warning, "/dev/x: Permission denied", |it| {
        device(it, DeviceNodeKind::Copy, Some("Permission denied"))
    }),
    (
        "shm",
        Problem,
        "/dev/shm has 60 MB free of 64 MB; an MPI needs up to 128 MB for 4 ranks",
        |it| {
            (it.shm.free, it.shm.size) = (Some(60 << 20), 64 << 20);
        },
    ),
    ("shm", Warning, "/dev/shm has 100 MB free", |it| {
        it.shm.free = Some(100 << 20)
    }),
    ("shm-access", Problem, "/dev/shm: Read-only", |it| {
        it.shm.problem = Some("Read-only file system".into())
    }),
    (
        "stale-shm",
        Warning,
        "3 files of an MPI in /dev/shm that no process uses, 12 MB",
        |it| {
            (it.leftovers.files, it.leftovers.file_bytes) = (3, 12 << 20);
        },
    ),
    ("sysv-shm", Warning, "1 segment of System V", |it| {
        (it.leftovers.segments, it.leftovers.segment_bytes) = (1, 4096)
    }),
    (
        "memory",
        Problem,
        "100 MB of memory available; 4 ranks need at least 128 MB",
        |it| it.memory.available = 100 << 20,
    ),
    ("cgroup-memory", Problem, "the cgroup permits 64 MB", |it| {
        it.memory.cgroup = Some(64 << 20)
    }),
    ("huge-pages", Warning, "all 8 huge pages", |it| {
        it.memory.huge_pages = 8
    }),
    ("huge-pages", Warning, "no hugetlbfs is mounted", |it| {
        (it.memory.huge_pages, it.memory.huge_pages_free) = (8, 8);
    }),
    ("overcommit", Warning, "refuses reservations", |it| {
        set(it, "vm/overcommit_memory", "2")
    }),
    ("cpus", Warning, "4 ranks on 2 processors", |it| {
        it.cpus.quota = Some(2)
    }),
    ("cpus", Warning, "the affinity permits 6 of 8", |it| {
        it.cpus.allowed = 6
    }),
    ("load", Warning, "a load of 9 on 8", |it| it.cpus.load = 9.2),
    (
        "steal",
        Warning,
        "the hypervisor took 12 % of the processor time",
        |it| it.cpus.steal = Some(0.12),
    ),
    ("governor", Warning, "powersave", |it| {
        it.cpus.governor = Some("powersave".into())
    }),
    ("numa-balancing", Warning, "between 2 memory nodes", |it| {
        it.cpus.numa_nodes = 2;
        set(it, "kernel/numa_balancing", "1");
    }),
    ("memlock", Problem, "64 KB may be locked", |it| {
        device(it, DeviceNodeKind::Fabric, None);
        it.network_libraries[0].providers[0].name = "verbs".into();
        limit(it, "memlock", 64 << 10);
    }),
    (
        "nofile",
        Problem,
        "64 open files; a rank may need 76",
        |it| limit(it, "nofile", 64),
    ),
    (
        "nproc",
        Problem,
        "200 processes and threads of this user, of which 190 run",
        |it| {
            it.kernel.threads = 190;
            limit(it, "nproc", 200);
        },
    ),
    (
        "cgroup-processes",
        Problem,
        "permits 8 more processes",
        |it| it.memory.cgroup_processes = Some(8),
    ),
    ("address-space", Warning, "1 GB of address space", |it| {
        limit(it, "as", 1 << 30)
    }),
    ("address-space", Warning, "1 GB of data", |it| {
        limit(it, "data", 1 << 30)
    }),
    ("stack", Problem, "a stack of 128 KB", |it| {
        limit(it, "stack", 128 << 10)
    }),
    ("file-size", Problem, "files of at most 1 MB", |it| {
        limit(it, "fsize", 1 << 20)
    }),
    ("cpu-time", Warning, "after 60 s", |it| limit(it, "cpu", 60)),
    (
        "kernel",
        Problem,
        "Linux 5.4.0-150-generic; wireup needs 5.11",
        |it| it.kernel.release = "5.4.0-150-generic".into(),
    ),
    (
        "cma",
        Warning,
        "process_vm_readv: Operation not permitted",
        |it| {
            it.kernel.no_cma = Some("Operation not permitted".into());
        },
    ),
    ("ptrace-scope", Warning, "ptrace_scope is 1", |it| {
        set(it, "kernel/yama/ptrace_scope", "1")
    }),
    ("autogroup", Warning, "nice has no effect", |it| {
        set(it, "kernel/sched_autogroup_enabled", "1")
    }),
    ("hidepid", Warning, "hides processes", |it| {
        it.kernel.hides_processes = true
    }),
    ("synchronized", Warning, "not synchronized", |it| {
        it.kernel.synchronized = Some(false)
    }),
    ("tmp", Problem, "temporary files /tmp: No space", |it| {
        it.tmp.problem = Some("No space left on device".into())
    }),
    ("tmp", Problem, "4 KB free in /tmp", |it| {
        it.tmp.free = Some(4096)
    }),
    ("tmp", Problem, "12 more files", |it| {
        it.tmp.free_files = Some(12)
    }),
    ("tmp-path", Warning, "has 60 bytes", |it| {
        it.tmp.path = "/".repeat(60)
    }),
    ("no-exec", Warning, "executed from /tmp", |it| {
        it.tmp.no_exec = true
    }),
    (
        "home",
        Warning,
        "home directory /home/alice: No such",
        |it| {
            it.home.path = "/home/alice".into();
            it.home.problem = Some("No such file or directory".into());
        },
    ),
    (
        "directory",
        Problem,
        "working directory /scratch: No such",
        |it| {
            it.cwd.path = "/scratch".into();
            it.cwd.problem = Some("No such file or directory".into());
        },
    ),
    ("left-processes", Warning, "2 processes of a job", |it| {
        it.leftovers.processes = 2
    }),
];

type CaseOfAll = (&'static str, Severity, &'static str, fn(&mut DoctorHost));

/// A fault that shows from outside.
const OF_ALL: &[CaseOfAll] = &[
    ("agent", Problem, "cannot be reached", |it| {
        it.agent = Some(Err("it cannot be reached".into()));
        it.facts = Err("no agent".into());
    }),
    (
        "agent-version",
        Problem,
        "the agent is 0.9.0, on the others 1.0.0",
        |it| it.agent = Some(Ok("0.9.0".into())),
    ),
    ("answer", Problem, "not found", |it| {
        it.facts = Err("wireup was not found".into())
    }),
    ("clock", Problem, "the clock is 5 s behind that", |it| {
        it.clock = Some(Clock {
            ahead: -5.0,
            error: 0.1,
        })
    }),
    (
        "clock",
        Problem,
        "the clock is 60 minutes ahead of that",
        |it| {
            it.clock = Some(Clock {
                ahead: 3600.0,
                error: 0.1,
            });
        },
    ),
    ("names", Problem, "no address for n2: unknown", |it| {
        it.neighbours[0].forward = Err("unknown".into())
    }),
    ("names", Problem, "n2 resolves to 10.0.0.9", |it| {
        it.neighbours[0].forward = Ok(vec![address(8)])
    }),
    ("names-back", Warning, "10.0.0.3 of n2 has no name", |it| {
        it.neighbours[0].back = None
    }),
    (
        "names-back",
        Warning,
        "10.0.0.3 of n2 has the name other",
        |it| it.neighbours[0].back = Some("other.cluster".into()),
    ),
    (
        "firewall",
        Problem,
        "no connection to n2 and n0: 10.0.0.3:4000: timed out",
        |it| {
            for neighbour in &mut it.neighbours {
                neighbour.unreached = Some("10.0.0.3:4000: timed out".into());
            }
        },
    ),
    ("ping-pong", Problem, "no messages with n2: rank 1", |it| {
        it.pairs = vec![pair(2, Err("rank 1 (n2) died".into()))]
    }),
    (
        "ping-pong",
        Warning,
        "a message to n2 takes 90 us, 10 us between most pairs",
        |it| {
            let measured = |latency_us| {
                Ok(PingPong {
                    latency_us: Some(latency_us),
                    ..PingPong::default()
                })
            };
            it.pairs = vec![
                pair(0, measured(10.0)),
                pair(0, measured(9.0)),
                pair(2, measured(90.0)),
            ];
        },
    ),
    (
        "container",
        Warning,
        "a container of docker with its default of 64 MB",
        |it| {
            let facts = it.facts.as_mut().unwrap();
            facts.kernel.container = Some("docker".into());
            (facts.shm.free, facts.shm.size) = (None, 64 << 20);
        },
    ),
];

fn pair(host: usize, result: Result<PingPong, String>) -> Pair {
    Pair { host, result }
}

#[track_caller]
fn expect(hosts: &[DoctorHost], check: &str, severity: Severity, words: &str) {
    let findings = judge(hosts, &NEEDS);
    let expected = |it: &&Finding| it.host == 1;
    let (here, elsewhere): (Vec<_>, Vec<_>) = findings.iter().partition(expected);
    assert!(elsewhere.is_empty(), "{check}: {elsewhere:?}");
    let [one] = here[..] else {
        panic!("{check}, {words}: {here:?}");
    };
    assert_eq!(
        (one.check, one.result.severity),
        (check, severity),
        "{one:?}"
    );
    assert!(one.result.text.contains(words), "{check}: {one:?}");
}

#[test]
fn healthy_hosts_have_no_findings() {
    assert_eq!(judge(&hosts(), &NEEDS), []);
    let alone = LaunchNeeds {
        ranks: None,
        hosts: 1,
    };
    assert_eq!(judge(&hosts()[..1], &alone), []);
}

#[test]
fn every_fault_is_found_on_its_host_by_its_check_alone() {
    for (check, severity, words, fault) in OF_ONE {
        let mut hosts = hosts();
        fault(hosts[1].facts.as_mut().unwrap());
        expect(&hosts, check, *severity, words);
    }
    for (check, severity, words, fault) in OF_ALL {
        let mut hosts = hosts();
        fault(&mut hosts[1]);
        expect(&hosts, check, *severity, words);
    }
}

#[test]
fn every_check_has_fault_unique_name_and_text() {
    let tried = |name: &str| {
        OF_ONE.iter().any(|case| case.0 == name)
            || OF_ALL.iter().any(|case| case.0 == name)
            || name == "same-address"
    };
    for (at, check) in CHECKS.iter().enumerate() {
        assert!(tried(check.name), "{}", check.name);
        assert!(
            !check.reads.is_empty() && !check.remedy.is_empty(),
            "{}",
            check.name
        );
        let twice = CHECKS[..at].iter().any(|other| other.name == check.name);
        assert!(!twice, "{}", check.name);
    }
    assert!(CHECKS.len() >= 30);
}

#[test]
fn unneeded_facts_are_not_reported() {
    let mut hosts = hosts();
    let facts = hosts[1].facts.as_mut().unwrap();
    program(facts).wants = DetectedInterface::Pmi;
    facts.pmix.problem = Some("no libpmix.so.2 found".into());
    facts.pmix.vulnerable = Some("CVE-2023-41915".into());
    limit(facts, "memlock", 4096);
    facts.user.uid = 0;
    limit(facts, "nproc", 1);
    set(facts, "kernel/yama/ptrace_scope", "1");
    hosts
        .iter_mut()
        .for_each(|host| host.facts.as_mut().unwrap().user.uid = 0);
    assert_eq!(judge(&hosts, &NEEDS), []);
}

#[test]
fn steal_below_tenth_is_not_reported() {
    let mut hosts = hosts();
    hosts[1].facts.as_mut().unwrap().cpus.steal = Some(0.09);
    assert_eq!(judge(&hosts, &NEEDS), []);
    hosts[1].facts.as_mut().unwrap().cpus.steal = Some(0.1);
    expect(&hosts, "steal", Warning, "took 10 %");
}

#[test]
fn shared_address_is_found_on_both_hosts_unless_of_bridge() {
    let mut hosts = hosts();
    for host in &mut hosts[..2] {
        let both = interface("eth1", Ipv4Addr::new(10, 9, 0, 1).into());
        host.facts.as_mut().unwrap().network.interfaces.push(both);
    }
    let findings = judge(&hosts, &NEEDS);
    let found: Vec<_> = findings.iter().map(|it| (it.check, it.host)).collect();
    assert_eq!(found, [("same-address", 0), ("same-address", 1)]);
    for host in &mut hosts[..2] {
        host.facts.as_mut().unwrap().network.interfaces[1].name = "docker0".into();
    }
    let findings = judge(&hosts, &NEEDS);
    let found: Vec<_> = findings.iter().map(|it| (it.check, it.host)).collect();
    assert_eq!(found, [("interfaces", 0), ("interfaces", 1)]);
}

#[test]
fn second_of_two_different_hosts_is_named() {
    let mut hosts: Vec<DoctorHost> = (0..2).map(well).collect();
    hosts.iter_mut().for_each(|host| host.neighbours.clear());
    program(hosts[1].facts.as_mut().unwrap()).digest = Some("d2".into());
    expect(&hosts, "program-build", Problem, "another build");
}

#[test]
fn agent_version_is_compared_with_launcher_on_every_host() {
    let mut hosts = hosts();
    for host in &mut hosts {
        host.agent = Some(Ok("0.9.0".into()));
    }
    let found = judge(&hosts, &NEEDS);
    assert_eq!(found.len(), HOSTS, "{found:#?}");
    for finding in found {
        assert_eq!(finding.check, "agent-version");
        assert_eq!(
            finding.result.text,
            "the agent is 0.9.0, but the installed wireup is 1.0.0"
        );
    }
}

#[test]
fn remedy_fits_non_program_file() {
    let remedy = |is_unsuitable| {
        let mut hosts = hosts();
        let program = program(hosts[1].facts.as_mut().unwrap());
        program.problem = Some("app.c is a source".into());
        program.is_unsuitable = is_unsuitable;
        let findings = judge(&hosts, &NEEDS);
        let found = findings.iter().find(|finding| finding.check == "program");
        found.map(|finding| finding.remedy).unwrap()
    };
    assert!(remedy(false).contains("--stage"));
    assert!(!remedy(true).contains("--stage"));
}
