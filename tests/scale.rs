//! Costs of a job of 100,000 ranks on 4,096 nodes for one of them: bytes on the wire, memory, and
//! time.
//!
//! A target of its own, because it counts what is allocated; its numbers are printed with
//! `cargo test --release --test scale -- --nocapture`.
#![allow(unsafe_code, reason = "an allocator that counts")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use wireup_core::fence::{
    FenceId, FenceMessage, FenceOperation, FenceRelease, FenceSeries, Participants,
};
use wireup_core::job::appnums::Appnums;
use wireup_core::job::ids::{NodeId, Nspace, UserId};
use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::spawn::JobRequester;
use wireup_core::link::agent_protocol::{LaunchTree, NodeAddress};
use wireup_core::link::frame::{FrameAddress, FrameClass, FrameReader};
use wireup_core::link::reassembly::{Envelope, Reassembly, write};
use wireup_core::link::{decode, encode};
use wireup_core::node::event::PeerMessage;
use wireup_core::node::{CollectivePolicy, JobContext, NodeCore};
use wireup_core::pmix::job_info::{PmixAppInfo, PmixJobInfo};

/// The system's allocator, and how many bytes it has given out.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn taken(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call is the system allocator's own; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // As if old and new were there at a time, which they may be.
        taken(size);
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time: they count for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// The result, the bytes it keeps, and the most there were on the way.
fn measured<T>(make: impl FnOnce() -> T) -> (T, usize, usize) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let result = make();
    let remaining = NOW.load(Ordering::Relaxed).saturating_sub(before);
    let most = MOST.load(Ordering::Relaxed).saturating_sub(before);
    (result, remaining, most)
}

const RANKS: u32 = 100_000;
const NODES: u32 = 4_096;
const OWN: NodeId = NodeId(17);
const MIB: usize = 1 << 20;

fn each(node: u32) -> u32 {
    RANKS / NODES + u32::from(node < RANKS % NODES)
}

/// The layouts, by name: node by node, and round robin.
fn layouts() -> [(&'static str, ProcessMap); 2] {
    let block = ProcessMap::from_runs((0..NODES).map(|node| (NodeId(node), each(node))));
    let cyclic = ProcessMap::from_runs((0..RANKS).map(|rank| (NodeId(rank % NODES), 1)));
    [("block", block), ("cyclic", cyclic)]
}

fn job(ranks: ProcessMap) -> JobContext {
    JobContext {
        nspace: Nspace::new("wireup-job").unwrap(),
        process_map: ranks,
        app_map: Appnums::from_sizes([RANKS]),
        universe_size: RANKS,
        unbounded_universe: false,
        uid: UserId(1000),
        psets: Vec::new(),
        requester: JobRequester::User,
        debug: Default::default(),
        first_global_rank: Default::default(),
        initial_kvs: Vec::new(),
    }
}

fn spread() -> LaunchTree {
    let members = (0..NODES).map(|node| NodeAddress {
        name: format!("node{node:04}"),
        address: format!("node{node:04}:7437"),
    });
    LaunchTree {
        nodes: members.collect(),
        joined: 0,
        star_limit: 128,
        width: 32,
    }
}

#[test]
fn description_of_large_job_and_node_share_fit_in_8_mib() {
    let _alone = ALONE.lock();
    for (layout, ranks) in layouts() {
        let description = encode(&job(ranks));
        let nodes = encode(&spread());
        let ((core, names, request), remaining, most) = measured(|| {
            let job: JobContext = decode(&description).unwrap();
            let spread: LaunchTree = decode(&nodes).unwrap();
            let names: Vec<String> = spread.nodes.into_iter().map(|node| node.name).collect();
            let infos = PmixJobInfo {
                nspace: &job.nspace,
                ranks: &job.process_map,
                node_names: &names,
                node: OWN,
                apps: &[PmixAppInfo {
                    size: RANKS,
                    argv: vec!["program".into()],
                    wdir: "/home/user".into(),
                }],
                universe_size: RANKS,
                parent: None,
                offset: Default::default(),
                before: &[],
                other_job_procs: &[],
                cpusets: &BTreeMap::new(),
                tmpdir: &"/tmp/wireup".into(),
                nsdir: &"/tmp/wireup/job".into(),
                uid: 1000,
                gid: 1000,
            };
            let infos = infos.infos().unwrap();
            let mut request = wireup_core::pmix::wire::Writer::frame();
            wireup_core::pmix::value::Info::encode_list(&infos, &mut request);
            drop(infos);
            let request = request.into_bytes().len();
            let core =
                NodeCore::new(OWN, Arc::new(job), true, true, CollectivePolicy::default()).unwrap();
            (core, names, request)
        });
        println!(
            "{layout}: job {} bytes, nodes {} bytes on the wire; sidecar receives {request} bytes; \
             {} KiB in memory, {} KiB at most",
            description.len(),
            nodes.len(),
            remaining / 1024,
            most / 1024
        );
        assert!(description.len() + nodes.len() < MIB / 4);
        assert!(remaining < MIB, "{remaining}");
        assert!(most < 8 * MIB, "{most}");
        drop((core, names));
    }
}

#[test]
fn large_fence_result_is_at_most_twice_in_memory() {
    let _alone = ALONE.lock();
    let data: Arc<[u8]> = vec![7; RANKS as usize * 200].into();
    let message = PeerMessage::Fence(FenceMessage::Release {
        id: FenceId {
            series: FenceSeries {
                kind: FenceOperation::Pmix,
                participants: Participants::whole_job(Nspace::new("wireup-job").unwrap()),
            },
            generation: 0,
        },
        released: FenceRelease {
            data: data.clone(),
            status: 0,
        },
        all: true,
    });
    let envelope = Envelope {
        to: FrameAddress::Node(OWN),
        from: FrameAddress::Node(NodeId(0)),
        class: FrameClass::Carried,
    };
    let start = Instant::now();
    let (stream, _, most) = measured(|| {
        let mut stream = Vec::with_capacity(data.len() + data.len() / 1000);
        write(envelope, &message, &mut stream);
        stream
    });
    let written = start.elapsed();
    assert!(most < data.len() + data.len() / 100, "{most}");

    let start = Instant::now();
    let (read, remaining, most) = measured(|| {
        let mut reader = FrameReader::default();
        let mut reassembly = Reassembly::default();
        let mut rest = stream.as_slice();
        loop {
            let room = reader.room();
            let now = rest.len().min(room.capacity() - room.len());
            room.extend_from_slice(&rest[..now]);
            rest = &rest[now..];
            while let Some(frame) = reader.next_frame().unwrap() {
                if let Some((_, body)) = reassembly.take(frame).unwrap() {
                    return decode::<PeerMessage>(&body).unwrap();
                }
            }
        }
    });
    println!(
        "release of {} bytes: {} on the wire, written in {written:?}, read in {:?}; {most} bytes at \
         most",
        data.len(),
        stream.len(),
        start.elapsed()
    );
    assert!(stream.len() - data.len() < data.len() / 1000);
    assert!(remaining < data.len() + MIB, "{remaining}");
    assert!(most < 2 * data.len() + 2 * MIB, "{most}");
    let PeerMessage::Fence(FenceMessage::Release { released, .. }) = read else {
        panic!("{read:?}");
    };
    assert_eq!(released.data, data);
}
