//! The death of a node's sidecar: probes, and the end of its process. What it means for the job is
//! decided in `core`'s `supervisor::first_failure`; the timeouts are in `core`'s `node::sidecar`. See docs/decisions/0004-probing-the-sidecar.md.

use std::os::fd::AsFd;

use rustix::process::{Signal, kill_process_group};

use crate::backend::local::{LocalBackend, LocalNode, raw};
use crate::report::failures;
use crate::sys::poll::PollSource;
use crate::sys::procfs;
use crate::sys::spawn;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::NodeId;
use wireup_core::job::outcome::RankEnd;
use wireup_core::node::event::{NodeEvent, SidecarActivity, SidecarEnd};

impl LocalBackend {
    pub(super) fn sidecar_exited(&mut self, node: NodeId) -> std::io::Result<()> {
        while self.read_sidecar(node, PollSource::Control) {}
        while self.read_sidecar(node, PollSource::Upcall) {}
        self.read_sidecar_output(node)?;
        let LocalNode {
            sidecar,
            hello,
            printed,
            ..
        } = &mut self.nodes[self.scope.index(node)];
        let Some(sidecar) = sidecar else {
            return Ok(());
        };
        if sidecar.exit_collected {
            return Ok(());
        }
        sidecar.exit_collected = true;
        self.owned_pids.remove(&raw(sidecar.child.pid));
        let _ = self.poll.remove(sidecar.child.pidfd.as_fd());
        let end = RankEnd::from(spawn::wait(&sidecar.child.pidfd)?);
        let how = failures::sidecar_end(end, hello.is_some(), printed);
        let end = match end {
            RankEnd::Code(0) => SidecarEnd::InOrder,
            RankEnd::Signal(libc::SIGKILL) => SidecarEnd::Killed,
            _ => SidecarEnd::Failed,
        };
        self.handle_event(node, NodeEvent::SidecarEnded { how, end });
        self.reap_orphans();
        self.await_later_tools(node);
        Ok(())
    }

    /// Asks every sidecar for a sign of life.
    pub(super) fn probe_sidecars(&mut self) {
        let now = Moment(self.now());
        for index in 0..self.nodes.len() {
            let mut actions = Vec::new();
            self.nodes[index]
                .core
                .with_actions(now, &mut actions, |core| core.probe_sidecar());
            self.execute_actions(self.scope.node_at(index), actions);
        }
    }

    /// What a sidecar's process does that is silent.
    pub(super) fn sidecar_activity(&self, node: NodeId) -> SidecarActivity {
        let sidecar = self.node(node).sidecar.as_ref();
        let pid = sidecar.map(|sidecar| raw(sidecar.child.pid));
        match pid {
            Some(pid) if procfs::is_busy(pid) => SidecarActivity::Works,
            Some(pid) if procfs::process(pid).is_some_and(|seen| seen.is_stopped()) => {
                SidecarActivity::Stopped
            }
            _ => SidecarActivity::Waits,
        }
    }

    /// Ends a sidecar, with whatever it may have started, without asking it.
    pub(super) fn kill_sidecar(&self, node: NodeId) {
        let sidecar = &self.node(node).sidecar;
        if let Some(sidecar) = sidecar.as_ref().filter(|sidecar| !sidecar.exit_collected) {
            let _ = kill_process_group(sidecar.child.pid, Signal::KILL);
        }
    }
}
