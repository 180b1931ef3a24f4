//! Sends the launcher's offered files to the steps that lack them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::RemoteBackend;
use crate::backend::step_messages::{LauncherToStep, NodeRefusal, StepToLauncher};
use crate::plan::{SpawnedJobPlan, StagedFiles};
use wireup_core::job::ids::NodeId;
use wireup_core::job::outcome::EXIT_WIREUP;
use wireup_core::link::frame::FrameAddress;
use wireup_core::staging::{FileChunk, StagingScheduler};

/// Offered files of a job, and the progress of their transfer.
#[derive(Debug)]
pub(super) struct FileTransfer {
    distribution: StagingScheduler,
    paths: Vec<PathBuf>,
    /// File that is being sent, with its number.
    open: Option<(u32, File)>,
}

impl FileTransfer {
    /// Creates the transfer of the offered files; `None` if none are offered.
    pub(super) fn new(
        files: &[StagedFiles],
        nodes: impl IntoIterator<Item = NodeId>,
    ) -> Option<Self> {
        let offered = files.iter().flat_map(StagedFiles::offered);
        let (sizes, paths): (Vec<u64>, Vec<PathBuf>) =
            offered.map(|file| (file.size, file.path.clone())).unzip();
        (!paths.is_empty()).then(|| Self {
            distribution: StagingScheduler::new(sizes, nodes),
            paths,
            open: None,
        })
    }

    /// Reads a piece of a file; empty if it cannot be read, which the receivers treat as a changed file.
    fn read(&mut self, piece: FileChunk) -> Vec<u8> {
        if self
            .open
            .as_ref()
            .is_none_or(|(file, _)| *file != piece.file)
        {
            let path = &self.paths[piece.file as usize];
            self.open = File::open(path).ok().map(|file| (piece.file, file));
        }
        let mut bytes = vec![0; piece.length];
        let read = self
            .open
            .as_ref()
            .map(|(_, file)| file.read_exact_at(&mut bytes, piece.offset));
        match read {
            Some(Ok(())) => bytes,
            _ => Vec::new(),
        }
    }
}

impl RemoteBackend {
    /// Handles the list of files that a step lacks.
    pub(super) fn lacks(&mut self, node: NodeId, files: &[u32]) {
        self.distribute(|distribution| distribution.lacks(node, files));
    }

    /// Prepares these nodes for a job that will be spawned.
    pub(crate) fn prepare(&mut self, mut job: Box<SpawnedJobPlan>, nodes: &[NodeId]) {
        self.file_transfer = FileTransfer::new(&job.staged_files, nodes.iter().copied());
        self.preparing = nodes.iter().copied().collect();
        job.unload();
        let message = LauncherToStep::Prepare(job);
        for node in nodes {
            self.send(FrameAddress::Node(*node), &message);
        }
    }

    /// Handles the result of the preparation of a node.
    pub(super) fn prepared(&mut self, node: NodeId, refusal: Option<NodeRefusal>) {
        if self.preparing.remove(&node) {
            self.queue_report(StepToLauncher::Prepared { node, refusal });
            self.stop_staging(&[node]);
        }
    }

    /// Stops the preparation of nodes that are lost.
    pub(super) fn stop_preparing(&mut self, nodes: &[NodeId], reason: &str) {
        self.stop_staging(nodes);
        for node in nodes {
            let refusal = NodeRefusal {
                code: EXIT_WIREUP,
                message: reason.to_owned(),
            };
            self.prepared(*node, Some(refusal));
        }
    }

    /// Handles a step's acknowledgement of received bytes.
    pub(super) fn on_chunk_taken(&mut self, node: NodeId, bytes: u64) {
        self.distribute(|distribution| distribution.on_bytes_taken(node, bytes));
    }

    /// Stops the transfer to these nodes.
    pub(super) fn stop_staging(&mut self, nodes: &[NodeId]) {
        self.distribute(|distribution| nodes.iter().for_each(|node| distribution.gone(*node)));
    }

    /// Passes an event to the scheduler, and sends the pieces that can be sent now.
    fn distribute(&mut self, event: impl FnOnce(&mut StagingScheduler)) {
        let Some(mut sending) = self.file_transfer.take() else {
            return;
        };
        event(&mut sending.distribution);
        while let Some(piece) = sending.distribution.send() {
            let bytes = sending.read(piece);
            let file = piece.file;
            self.send(piece.to, &LauncherToStep::Piece { file, bytes });
        }
        self.file_transfer = Some(sending);
    }
}
