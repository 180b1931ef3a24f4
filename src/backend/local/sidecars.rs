//! Sidecars of local nodes: start, sockets, output, and the end of their processes. `core`'s `supervisor::first_failure`
//! decides the consequence of a sidecar's death; the timeouts are in `core`'s `node::sidecar`. See
//! docs/decisions/0004-probing-the-sidecar.md.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::buffer::spare_capacity;
use rustix::process::{Signal, kill_process_group};

use super::node_cores::LocalNode;
use super::raw;
use super::step_context::StepContext;
use crate::backend::sidecar_process::{Sidecar, SidecarSpec};
use crate::backend::step_messages::StepToLauncher;
use crate::inspect::sidecar_files::SidecarFiles;
use crate::report::failures::{self, SidecarStartError};
use wireup_core::failure::CommandError;
use wireup_core::job::ids::NodeId;
use wireup_core::job::outcome::RankEnd;
use wireup_core::node::event::{NodeEvent, SidecarActivity, SidecarEnd};
use wireup_core::pmix::upcall::UpcallKind;
use wireup_core::queries::QueryId;
use wireup_sys::channel::{Channel, ReadResult};
use wireup_sys::poll::PollSource;
use wireup_sys::procfs;
use wireup_sys::spawn;

/// Number of bytes of a sidecar's output that are kept for a failure report.
const SIDECAR_OUTPUT_MAX: usize = 8 * 1024;

/// Starts the sidecar of a node. It takes over `listener`, the socket at which its tools have connected.
///
/// # Errors
/// [`CommandError`] when it cannot be started.
pub(super) fn start(
    cx: &mut StepContext,
    node: NodeId,
    parts: &SidecarFiles,
    env: &[CString],
    reset: &[i32],
    listener: Option<BorrowedFd<'_>>,
) -> Result<(), CommandError> {
    let group = cx.cleanup.cgroup.clone();
    let spec = SidecarSpec {
        program: &parts.program,
        libpmix: &parts.libpmix.path,
        shim: &parts.shim,
        env,
        reset_signals: reset,
        group: group.as_ref().map(|group| group.as_fd()),
        listener,
    };
    let index = cx.scope.index(node);
    let namespaces = cx
        .namespaces
        .as_ref()
        .map(|ns| ns.namespaces_of_node(index));
    let sidecar = Sidecar::start(&spec, node, namespaces, &cx.poll);
    let sidecar = sidecar
        .map_err(|error| CommandError::request(SidecarStartError::new(&parts.program, error)))?;
    cx.processes.add_owned(sidecar.child.pid);
    cx.guard_sessions([sidecar.child.pid]);
    cx.node_mut(node).sidecar = Some(sidecar);
    Ok(())
}

/// Reports, once, that every sidecar is ready and ranks can be started.
pub(super) fn check_ready(cx: &mut StepContext) {
    let known = |env: &Option<_>| env.is_some();
    let any_sidecar = cx.nodes.iter().any(|node| node.sidecar.is_some());
    if !cx.ready_reported && (!any_sidecar || cx.jobs.first().envs.iter().all(known)) {
        cx.ready_reported = true;
        cx.report(StepToLauncher::Ready);
    }
}

/// Returns the nodes whose PMIx server is not ready.
pub(super) fn late_nodes(cx: &StepContext) -> Vec<NodeId> {
    let late = |index: &usize| {
        let node = &cx.nodes[*index];
        node.sidecar.is_some() && cx.jobs.first().envs[*index].is_none()
    };
    let late = (0..cx.nodes.len()).filter(late);
    late.map(|index| cx.scope.node_at(index)).collect()
}

fn channel(sidecar: &mut Sidecar, source: PollSource) -> &mut Channel {
    match source {
        PollSource::Control => &mut sidecar.control,
        _ => &mut sidecar.upcall,
    }
}

/// Sends bytes on one of the sockets of a node's sidecar, if it has one.
pub(super) fn send(cx: &mut StepContext, node: NodeId, source: PollSource, bytes: &[u8]) {
    let index = cx.scope.index(node);
    if let Some(sidecar) = &mut cx.nodes[index].sidecar {
        channel(sidecar, source).send(bytes, &cx.poll);
    }
}

/// Writes queued bytes to one of the sidecar's sockets.
pub(super) fn write(cx: &mut StepContext, node: NodeId, source: PollSource) {
    let index = cx.scope.index(node);
    if let Some(sidecar) = &mut cx.nodes[index].sidecar {
        channel(sidecar, source).writable(&cx.poll);
    }
}

/// Reads one of the sidecar's sockets once. A socket at its end is removed from the poll set.
pub(super) fn receive(
    cx: &mut StepContext,
    node: NodeId,
    source: PollSource,
    buffer: &mut Vec<u8>,
) -> ReadResult {
    let index = cx.scope.index(node);
    let Some(sidecar) = &mut cx.nodes[index].sidecar else {
        return ReadResult::Nothing;
    };
    let channel = channel(sidecar, source);
    let received = channel.receive(buffer);
    if received == ReadResult::End {
        let _ = cx.poll.remove(channel.as_fd());
    }
    received
}

/// Reads the output of a sidecar, and reports its lines.
///
/// # Errors
/// When a closed pipe cannot be unwatched.
pub(super) fn read_output(cx: &mut StepContext, node: NodeId) -> std::io::Result<()> {
    let index = cx.scope.index(node);
    let LocalNode {
        sidecar, printed, ..
    } = &mut cx.nodes[index];
    let Some(sidecar) = sidecar else {
        return Ok(());
    };
    let Some(output) = &sidecar.output else {
        return Ok(());
    };
    cx.buffer.clear();
    let count = match rustix::io::read(output, spare_capacity(&mut cx.buffer)) {
        Ok(count) => count,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(()),
        Err(_) => 0,
    };
    if count == 0 {
        cx.poll.remove(output)?;
        sidecar.output = None;
        return Ok(());
    }
    printed.extend_from_slice(&cx.buffer[..count]);
    let excess = printed.len().saturating_sub(SIDECAR_OUTPUT_MAX);
    printed.drain(..excess);
    if cx.plan.spec.verbose > 1 || cx.plan.spec.log.is_some() {
        let name = cx.plan.node_name(node).to_owned();
        let text = String::from_utf8_lossy(&cx.buffer[..count]).into_owned();
        for line in text.lines() {
            cx.report_text(format!("PMIx server of {name}: {line}"));
        }
    }
    Ok(())
}

/// Reaps a node's sidecar; `None` if it was reaped before.
///
/// # Errors
/// When the exit status was lost.
pub(super) fn collect_exit(
    cx: &mut StepContext,
    node: NodeId,
) -> std::io::Result<Option<NodeEvent<'static>>> {
    let index = cx.scope.index(node);
    let LocalNode {
        sidecar,
        hello,
        printed,
        ..
    } = &mut cx.nodes[index];
    let Some(sidecar) = sidecar else {
        return Ok(None);
    };
    if sidecar.exit_collected {
        return Ok(None);
    }
    sidecar.exit_collected = true;
    cx.processes.remove_owned(sidecar.child.pid);
    let _ = cx.poll.remove(sidecar.child.pidfd.as_fd());
    let end = RankEnd::from(spawn::wait(&sidecar.child.pidfd)?);
    let how = failures::sidecar_end(end, hello.is_some(), printed);
    let end = match end {
        RankEnd::Code(0) => SidecarEnd::InOrder,
        RankEnd::Signal(libc::SIGKILL) => SidecarEnd::Killed,
        _ => SidecarEnd::Failed,
    };
    Ok(Some(NodeEvent::SidecarEnded { how, end }))
}

/// Measures the activity of the process of a silent sidecar.
pub(super) fn activity(cx: &StepContext, node: NodeId) -> SidecarActivity {
    let sidecar = cx.node(node).sidecar.as_ref();
    let pid = sidecar.map(|sidecar| raw(sidecar.child.pid));
    match pid {
        Some(pid) if procfs::is_busy(pid) => SidecarActivity::Works,
        Some(pid) if procfs::process(pid).is_some_and(|process| process.is_stopped()) => {
            SidecarActivity::Stopped
        }
        _ => SidecarActivity::Waits,
    }
}

/// Kills a sidecar and the processes that it may have started.
pub(super) fn kill(cx: &StepContext, node: NodeId) {
    let sidecar = &cx.node(node).sidecar;
    if let Some(sidecar) = sidecar.as_ref().filter(|sidecar| !sidecar.exit_collected) {
        let _ = kill_process_group(sidecar.child.pid, Signal::KILL);
    }
}

/// Whether the process of any local sidecar has not ended.
pub(super) fn any_running(cx: &StepContext) -> bool {
    let mut sidecars = cx.nodes.iter().filter_map(|node| node.sidecar.as_ref());
    sidecars.any(|sidecar| !sidecar.exit_collected)
}

/// Measures the memory of a node's processes for its core.
pub(super) fn measure_memory(
    cx: &StepContext,
    node: NodeId,
    query: QueryId,
    pids: &[u32],
) -> NodeEvent<'static> {
    let sidecar = cx.node(node).sidecar.as_ref();
    let server = sidecar.and_then(|sidecar| procfs::memory(raw(sidecar.child.pid)));
    let measure = |pid: &u32| Some((*pid, procfs::memory(i32::try_from(*pid).ok()?)?));
    NodeEvent::MemoryMeasured {
        query,
        server,
        processes: pids.iter().filter_map(measure).collect(),
    }
}

/// Reports the number of upcalls of libpmix on each node.
pub(super) fn report_upcall_counts(cx: &mut StepContext) {
    for index in 0..cx.nodes.len() {
        let node = &cx.nodes[index];
        if node.sidecar.is_none() {
            continue;
        }
        let counts: Vec<String> = UpcallKind::ALL
            .into_iter()
            .map(|kind| (kind.name(), node.core.upcalls(kind)))
            .filter(|(_, count)| count.received > 0)
            .map(|(name, count)| {
                let (received, bytes_in, bytes_out) =
                    (count.received, count.bytes_in, count.bytes_out);
                format!("{name} {received} ({bytes_in} bytes in, {bytes_out} out)")
            })
            .collect();
        let counts = match counts.is_empty() {
            true => "none".to_owned(),
            false => counts.join(", "),
        };
        let name = &cx.plan.node_names[cx.scope.node_at(index).index()];
        let text = format!("upcalls of {name}: {counts}");
        cx.report_text(text);
    }
}
