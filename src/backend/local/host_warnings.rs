//! Warnings about this host, and its log.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::raw;
use super::step_context::StepContext;
use crate::inspect::libpmix;
use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_core::job::log_text::SyslogText;
use wireup_core::pmix::release::PmixRelease;
use wireup_core::pmix::sidecar_protocol::Hello;
use wireup_sys::syslog::Syslog;

/// Warns of problems of this host, and writes the ranks' log messages to its syslog.
#[derive(Default)]
pub(super) struct HostWarnings {
    /// Connection to the syslog of this host.
    syslog: Syslog,
    /// Whether the warning about a directory that a rank does not see was printed.
    hidden_directory: bool,
}

impl HostWarnings {
    /// Writes a text of a rank into the host's log.
    pub(super) fn log(&mut self, cx: &mut StepContext, node: NodeId, text: &SyslogText) {
        if let Some(problem) = self.syslog.log(text) {
            let name = cx.plan.node_name(node);
            cx.report_text(format!("warning: {name}: {problem}"));
        }
    }

    /// Warns once if a rank cannot see the directory of its PMIx server because it has a mount namespace of its own.
    pub(super) fn check_directory(&mut self, cx: &mut StepContext, node: NodeId, rank: GlobalRank) {
        let index = cx.scope.index(node);
        let directories = cx.jobs.first().directories.get(index);
        let Some((directories, pid)) = directories.zip(cx.slot(rank).running_pid()) else {
            return;
        };
        if self.hidden_directory || cx.nodes[index].sidecar.is_none() {
            return;
        }
        let server = &directories.server;
        let root = PathBuf::from(format!("/proc/{}/root", raw(pid)));
        let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
        let rank_view = identity(&root.join(server.strip_prefix("/").unwrap_or(server)));
        let is_hidden = match (identity(server), rank_view) {
            (Ok(own), Ok(rank_view)) => own != rank_view,
            // A process that has ended meanwhile has no root directory.
            (Ok(_), Err(error)) => error.kind() == ErrorKind::NotFound && identity(&root).is_ok(),
            _ => false,
        };
        if !is_hidden {
            return;
        }
        self.hidden_directory = true;
        let local = cx.look_up(rank).rank();
        let text = format!(
            "warning: rank {local} is in a mount namespace without {}, where the PMIx server describes the machine; Open \
             MPI 5 crashes in MPI_Init without it: mount this directory there, or put it elsewhere by TMPDIR",
            server.display()
        );
        cx.report_text(text);
    }
}

/// Returns the warning about a sidecar's libpmix, if that has a known vulnerability.
pub(super) fn vulnerable_libpmix(cx: &StepContext, hello: &Hello) -> Option<String> {
    let files = cx.plan.sidecar_files.as_ref()?;
    let release = PmixRelease::from_library_name(hello.libpmix.as_bytes())?;
    libpmix::vulnerable(&files.libpmix.path, release)
}
