//! The launcher sends the offered files to the steps that lack them.

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

/// The offered files of a job, and how far they have been sent.
#[derive(Debug)]
pub(super) struct FileTransfer {
    distribution: StagingScheduler,
    paths: Vec<PathBuf>,
    /// The one that is being sent.
    open: Option<(u32, File)>,
}

impl FileTransfer {
    /// Of what is offered, if something is.
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

    /// The contents of a piece; nothing if it cannot be read any more, which its readers take for a changed file.
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
    /// A step has said what it lacks.
    pub(super) fn lacks(&mut self, node: NodeId, files: &[u32]) {
        self.distribute(|distribution| distribution.lacks(node, files));
    }

    /// Has these nodes prepared for a job that will be spawned.
    pub(crate) fn prepare(&mut self, mut job: Box<SpawnedJobPlan>, nodes: &[NodeId]) {
        self.file_transfer = FileTransfer::new(&job.staged_files, nodes.iter().copied());
        self.preparing = nodes.iter().copied().collect();
        job.unload();
        let message = LauncherToStep::Prepare(job);
        for node in nodes {
            self.send(FrameAddress::Node(*node), &message);
        }
    }

    /// A node has been prepared, or cannot be.
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

    /// A step has taken some bytes.
    pub(super) fn on_chunk_taken(&mut self, node: NodeId, bytes: u64) {
        self.distribute(|distribution| distribution.on_bytes_taken(node, bytes));
    }

    /// These nodes get nothing any more.
    pub(super) fn stop_staging(&mut self, nodes: &[NodeId]) {
        self.distribute(|distribution| nodes.iter().for_each(|node| distribution.gone(*node)));
    }

    /// Sends what can be sent now.
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
