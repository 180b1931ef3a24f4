//! Runs a program through wireup's agents, the way a scheduler does.
//!
//! ```text
//! scheduler-rust --agent /run/wireup/agent.sock -n 4 -- ./app input.dat
//! scheduler-rust --tls DIR --uid 1000 --node n1@10.0.0.1:7437:2 --node n2@10.0.0.2:7437:2 -- ./app
//! ```
//!
//! What the ranks print and read is this program's own output and input. Changes of the job's state
//! are printed on standard error. SIGINT and SIGUSR1 go to the ranks, SIGTERM ends the job, and the exit
//! code is the job's. docs/scheduler.md explains the calls.

mod agents;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Parser;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::v1::node_agent_client::NodeAgentClient;
use crate::v1::watch_event::Event;

/// The proto files as Rust.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
#[allow(clippy::missing_errors_doc, clippy::or_fun_call, clippy::unwrap_used)]
mod v1 {
    tonic::include_proto!("wireup.v1");
}

#[derive(Debug, Parser)]
struct Args {
    /// Socket of the agent of this node
    #[arg(long, default_value = "/run/wireup/agent.sock")]
    agent: PathBuf,
    /// Ranks on that agent's node
    #[arg(short, default_value_t = 1)]
    n: u32,
    /// NAME@HOST:PORT:RANKS, in place of --agent and -n
    #[arg(long)]
    node: Vec<String>,
    /// Directory with ca.pem, cert.pem and key.pem of a scheduler
    #[arg(long, required_unless_present = "agent")]
    tls: Option<PathBuf>,
    /// As whom; needed by root's agents over TLS
    #[arg(long)]
    uid: Option<u32>,
    /// PMI2, PMIX, AUTO, PMI1, ALL or NONE
    #[arg(long, default_value = "AUTO")]
    pmi: String,
    /// NAME=VALUE
    #[arg(long)]
    env: Vec<String>,
    #[arg(required = true, last = true)]
    program: Vec<String>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let code = runtime.block_on(run(args));
    // Dropping it would wait for the thread that reads standard input.
    runtime.shutdown_background();
    Ok(ExitCode::from(code?))
}

async fn run(args: Args) -> Result<u8> {
    let peers = peers(&args.node)?;
    let mut agents = Vec::new();
    for peer in &peers {
        let tls = args.tls.as_ref().context("--node needs --tls")?;
        let channel = agents::remote(&peer.node_id, &peer.grpc_address, tls).await?;
        agents.push(NodeAgentClient::new(channel));
    }
    if agents.is_empty() {
        agents.push(NodeAgentClient::new(
            agents::local(args.agent.clone()).await?,
        ));
    }
    let launch_id = launch_id();
    launch(&args, &mut agents, &peers, &launch_id).await?;
    let head = agents.remove(0);

    let signals = Signals {
        interrupt: signal(SignalKind::interrupt())?,
        user: signal(SignalKind::user_defined1())?,
        terminate: signal(SignalKind::terminate())?,
    };
    let output = tokio::spawn(copy_output(head.clone(), launch_id.clone()));
    let steering = tokio::spawn(steer(head.clone(), launch_id.clone(), signals));
    let end = follow(head, launch_id).await?;
    output.await??;
    steering.abort();

    for rank in &end.ranks {
        match rank.signaled {
            true => eprintln!("rank {}: signal {}", rank.rank, rank.signal),
            false => eprintln!("rank {}: code {}", rank.rank, rank.exit_code),
        }
    }
    if !end.error_message.is_empty() {
        eprintln!("{}", end.error_message);
    }
    // -1: it is not known.
    Ok(u8::try_from(end.exit_code).unwrap_or(125))
}

/// A name that no other launch has.
fn launch_id() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanoseconds = since.map_or(0, |since| since.as_nanos());
    format!("{nanoseconds}-{}", std::process::id())
}

/// The nodes of a launch, with consecutive ranks.
fn peers(nodes: &[String]) -> Result<Vec<v1::PeerInfo>> {
    let mut first_rank = 0;
    let peer = |text: &String| {
        let (node_id, place) = text.split_once('@')?;
        let (address, ranks) = place.rsplit_once(':')?;
        let num_ranks = ranks.parse().ok()?;
        first_rank += num_ranks;
        Some(v1::PeerInfo {
            node_id: node_id.to_owned(),
            grpc_address: address.to_owned(),
            first_rank: first_rank - num_ranks,
            num_ranks,
        })
    };
    let peers: Option<_> = nodes.iter().map(peer).collect();
    peers.context("write --node NAME@HOST:PORT:RANKS")
}

/// Tells every node of the launch, its head last: then all others know it.
async fn launch(
    args: &Args,
    agents: &mut [NodeAgentClient<Channel>],
    peers: &[v1::PeerInfo],
    launch_id: &str,
) -> Result<()> {
    let variable = |text: &String| {
        let (name, value) = text.split_once('=').context("write --env NAME=VALUE")?;
        Ok((name.to_owned(), value.to_owned()))
    };
    let env = args.env.iter().map(variable).collect::<Result<_>>()?;
    let pmi = v1::PmiMode::from_str_name(&args.pmi).context("no such --pmi")?;
    let request = v1::LaunchProcessesRequest {
        launch_id: launch_id.to_owned(),
        entrypoint: args.program[0].clone(),
        args: args.program[1..].to_vec(),
        tasks_per_node: args.n,
        world_size: args.n,
        env,
        pmi_mode: pmi.into(),
        peers: peers.to_vec(),
        head_node_index: 0,
        job: Some(v1::JobSpec {
            stdin: Some(v1::StdinTarget {
                target: Some(v1::stdin_target::Target::Rank(0)),
            }),
            hold_output: true,
            cwd: std::env::current_dir()?.as_os_str().as_bytes().to_vec(),
            ..Default::default()
        }),
        run_as: args.uid.map(|uid| v1::RunAs { uid, gid: None }),
        ..Default::default()
    };
    for (index, agent) in agents.iter_mut().enumerate().rev() {
        let mut request = request.clone();
        if let Some(peer) = peers.get(index) {
            request.tasks_per_node = peer.num_ranks;
            request.first_rank = peer.first_rank;
            request.world_size = peers.iter().map(|peer| peer.num_ranks).sum();
        }
        agent.launch_processes(request).await?;
    }
    Ok(())
}

/// Copies standard input to the ranks, and what they print to where it belongs, until they have ended.
async fn copy_output(mut head: NodeAgentClient<Channel>, launch_id: String) -> Result<()> {
    let (input, messages) = mpsc::channel(1);
    let first = v1::StdioInput {
        launch_id,
        ..Default::default()
    };
    input.send(first).await?;
    tokio::spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut buffer = vec![0; 64 * 1024];
        // The end of this task is the end of the ranks' standard input.
        while let Ok(count @ 1..) = stdin.read(&mut buffer).await {
            let message = v1::StdioInput {
                data: buffer[..count].to_vec(),
                ..Default::default()
            };
            if input.send(message).await.is_err() {
                return;
            }
        }
    });
    let mut output = head
        .stdio(ReceiverStream::new(messages))
        .await?
        .into_inner();
    while let Some(piece) = output.message().await? {
        match piece.stream() {
            v1::StdioStream::Stdout => {
                let mut stdout = std::io::stdout();
                stdout.write_all(&piece.data)?;
                stdout.flush()?;
            }
            _ => std::io::stderr().write_all(&piece.data)?,
        }
    }
    Ok(())
}

/// Signals to this program.
struct Signals {
    interrupt: Signal,
    user: Signal,
    terminate: Signal,
}

/// Passes them on.
async fn steer(
    mut head: NodeAgentClient<Channel>,
    launch_id: String,
    mut signals: Signals,
) -> Result<()> {
    loop {
        let number = tokio::select! {
            _ = signals.interrupt.recv() => SignalKind::interrupt(),
            _ = signals.user.recv() => SignalKind::user_defined1(),
            _ = signals.terminate.recv() => {
                let abort = v1::AbortProcessesRequest {
                    launch_id: launch_id.clone(),
                    reason: "the scheduler was ended".into(),
                };
                head.abort_processes(abort).await?;
                continue;
            }
        };
        let request = v1::SignalRequest {
            launch_id: launch_id.clone(),
            signal: number.as_raw_value(),
            ranks: Vec::new(),
        };
        head.signal(request).await?;
    }
}

/// Tells every change, and returns the end.
async fn follow(
    mut head: NodeAgentClient<Channel>,
    launch_id: String,
) -> Result<v1::LaunchCompleteNotification> {
    let mut events = head
        .watch(v1::WatchRequest { launch_id })
        .await?
        .into_inner();
    let mut ranks = Vec::new();
    while let Some(event) = events.message().await? {
        match event.event {
            Some(Event::Launch(change)) => {
                let state = change.state().as_str_name();
                eprintln!("launch {}", state.trim_start_matches("LAUNCH_STATE_"));
            }
            Some(Event::Rank(rank)) => {
                let state = rank.state().as_str_name();
                let state = state.trim_start_matches("RANK_STATE_");
                eprintln!("rank {} {state}", rank.rank);
            }
            Some(Event::Warning(text)) => eprintln!("warning: {text}"),
            Some(Event::Complete(mut end)) => {
                ranks.append(&mut end.ranks);
                if !end.more {
                    end.ranks = ranks;
                    return Ok(end);
                }
            }
            None => {}
        }
    }
    bail!("the agent ended before the launch")
}
