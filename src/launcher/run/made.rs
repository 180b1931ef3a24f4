//! What a run needs and may not get: descriptors, directories, the nodes' state.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::super::directory::{self, JobDirectory, NodeDirectories};
use super::super::drive::Node;
use super::super::guard::{Guard, become_subreaper};
use super::super::plan::Plan;
use super::super::signals::Signals;
use super::super::streams::{Show, Streams};
use super::super::surroundings::Surroundings;
use super::RunFailure;
use crate::agent::core::{NodeCore, Terms};
use crate::agent::poll::{Poll, Source, Token};

/// What can fail to be made.
pub(super) struct Made {
    pub(super) poll: Poll,
    pub(super) signals: Signals,
    pub(super) wake: Arc<OwnedFd>,
    pub(super) nodes: Vec<Node>,
    pub(super) streams: Streams,
    pub(super) directories: Vec<NodeDirectories>,
}

impl Made {
    /// `directory` is set as soon as there is one.
    pub(super) fn new(
        plan: &Arc<Plan>,
        surroundings: &Surroundings,
        show: Show,
        guard: &mut Guard,
        directory: &mut Option<JobDirectory>,
    ) -> Result<Self, RunFailure> {
        let own = |what: &str, error: &dyn std::fmt::Display| RunFailure::own(what, error);
        // From here on signals wait until the loop reads them.
        let signals = Signals::take(&surroundings.ignored, plan.spec.stdio.pty.is_some())
            .map_err(|error| own("cannot receive signals", &error))?;
        become_subreaper().map_err(|error| own("cannot adopt orphans", &error))?;
        let poll = Poll::new().map_err(|error| own("cannot wait for events", &error))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| own("cannot wait for events", &error))?;
        let wake = Arc::new(wake);
        poll.add(signals.as_fd(), Token::new(Source::Signals, 0))
            .and_then(|()| poll.add(&wake, Token::new(Source::Wake, 0)))
            .map_err(|error| own("cannot wait for events", &error))?;
        let streams = Streams::new(plan.job.ranks.size(), show, &wake)
            .map_err(|error| own("cannot duplicate standard output", &error))?;
        if plan.offer.pmix {
            *directory = Some(job_directory(plan, guard)?);
        }
        let directories = directory
            .iter()
            .flat_map(|dir| {
                plan.job
                    .ranks
                    .node_ids()
                    .map(|node| dir.node(node, &plan.job.nspace))
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| own("cannot make the job's directories", &error))?;
        let nodes = plan
            .job
            .ranks
            .node_ids()
            .map(|node| {
                NodeCore::new(
                    node,
                    Arc::clone(&plan.job),
                    plan.offer.pmi,
                    plan.offer.pmix,
                    Terms::of(&plan.spec.ending),
                )
                .map(Node::new)
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| own("cannot serve this job", &error))?;
        Ok(Self {
            poll,
            signals,
            wake,
            nodes,
            streams,
            directories,
        })
    }
}

fn job_directory(plan: &Plan, guard: &mut Guard) -> Result<JobDirectory, RunFailure> {
    let path = directory::of_job(&plan.job.nspace);
    // Told before there is one, so that no moment is left in which nobody would remove it. A guard
    // that was killed in the meantime only means less protection against our own death.
    let _ = guard.add_directory(&path);
    JobDirectory::create(path)
}
