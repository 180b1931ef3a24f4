//! Duration of a launch of very many nodes, on a network with these costs: the launcher, routers, cores and fences of
//! a launch, each message with its time at both ends and on its way.
//!
//! `scripts/scale` prints the tables of docs/scale.md. Each node asks its step once for what its ranks do together, as
//! its PMIx server would.

mod costs;
mod data;
mod timed;

use std::time::Duration;

use costs::Costs;
use wireup_core::link::routing_tree::TreeShape;

const RANKS: u32 = 64;

/// Measurements of a launch.
#[derive(Clone, Debug, Default)]
struct Measured {
    /// From the start until the last rank has been started.
    fan_out: Duration,
    /// The first of five fences without data: the first host still passes on who has started.
    first_fence: Duration,
    /// One of the others: their mean.
    fence: Duration,
    /// From a spawn's request, of a job with one rank on each of up to 64 nodes, to its answer.
    spawn: Duration,
    /// The making of a group of all ranks of up to 256 nodes.
    group: Duration,
    /// From the end of the ranks until nothing is left.
    end: Duration,
    /// Messages between agents: in all, and most of one agent.
    messages: (usize, usize),
    /// Their bytes: what one agent in the middle gets, and most that one gets or sends.
    bytes: (usize, usize),
    /// Bytes of memory of a core with its router.
    memory: usize,
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

fn shape(width: u32) -> TreeShape {
    TreeShape {
        star_limit: if width == 0 { u32::MAX } else { 1 },
        width: width.max(2),
    }
}

fn name(width: u32) -> String {
    match width {
        0 => "star".to_owned(),
        width => width.to_string(),
    }
}

/// The rows of both tables for these numbers of nodes and widths of trees; 0 is a star.
fn table(nodes: &[u32], widths: &[u32], costs: Costs) {
    launches(nodes, widths, costs);
    fences(nodes, widths, costs);
}

fn launches(nodes: &[u32], widths: &[u32], costs: Costs) {
    println!("{costs}\n");
    println!(
        "| nodes | tree | fan-out, ms | first fence, ms | fence, ms | spawn, ms | group, ms | end, ms | messages | most of one agent | KiB to a leaf | MiB most of one agent | KiB of memory |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for nodes in nodes {
        for width in widths {
            let measured = timed::launch(*nodes, RANKS, shape(*width), costs);
            println!(
                "| {nodes} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1} | {} |",
                name(*width),
                milliseconds(measured.fan_out),
                milliseconds(measured.first_fence),
                milliseconds(measured.fence),
                milliseconds(measured.spawn),
                milliseconds(measured.group),
                milliseconds(measured.end),
                measured.messages.0,
                measured.messages.1,
                measured.bytes.0 / 1024,
                measured.bytes.1 as f64 / f64::from(1 << 20),
                measured.memory / 1024,
            );
        }
    }
}

fn fences(nodes: &[u32], widths: &[u32], costs: Costs) {
    println!("\n| nodes | tree | all data, MiB | its time on a link, ms | fence with data, ms |");
    println!("|---|---|---|---|---|");
    for nodes in nodes {
        for width in widths {
            let bytes = RANKS as usize * 200;
            let all = bytes * *nodes as usize;
            println!(
                "| {nodes} | {} | {:.1} | {} | {} |",
                name(*width),
                all as f64 / f64::from(1 << 20),
                milliseconds(costs.on_a_link(all)),
                milliseconds(data::fence(*nodes, shape(*width), bytes, costs)),
            );
        }
    }
}

fn numbers(variable: &str) -> Option<Vec<u32>> {
    let text = std::env::var(variable).ok()?;
    let number = |word: &str| word.parse().expect("a number");
    Some(text.split(',').map(number).collect())
}

/// The table that the environment asks for, or a short one.
#[test]
fn scale_table() {
    let nodes = numbers("WIREUP_SCALE_NODES").unwrap_or_else(|| vec![16, 64]);
    let widths = numbers("WIREUP_SCALE_WIDTHS").unwrap_or_else(|| vec![0, 8]);
    match numbers("WIREUP_SCALE_FENCES") {
        Some(nodes) => fences(&nodes, &widths, Costs::of_environment()),
        None => table(&nodes, &widths, Costs::of_environment()),
    }
}

/// The goals of docs/scale.md that can be seen in a moment.
#[test]
fn launch_of_256_nodes_fans_out_in_50_ms() {
    let measured = timed::launch(256, RANKS, TreeShape::default(), Costs::default());
    assert!(measured.fan_out < Duration::from_millis(50), "{measured:?}");
    assert!(
        measured.first_fence < Duration::from_millis(5),
        "{measured:?}"
    );
}

/// From a number of nodes to sixteen times as many: what an agent gets, the most that one gets or sends, and all messages,
/// none of which is sent for each pair of nodes. The path of a fence without data grows with the depth of the tree.
#[test]
fn traffic_of_each_agent_grows_at_most_linearly_with_nodes() {
    let small = timed::launch(64, RANKS, shape(4), Costs::default());
    let large = timed::launch(1024, RANKS, shape(4), Costs::default());
    let words = format!("{small:?} {large:?}");
    assert!(large.bytes.0 < small.bytes.0 * 16, "{words}");
    assert!(large.bytes.1 < small.bytes.1 * 20, "{words}");
    assert!(large.messages.0 < small.messages.0 * 20, "{words}");
    assert!(large.fence < small.fence * 2, "{words}");
}
