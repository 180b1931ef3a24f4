//! What all nodes have to say before the launcher hears of it.

use super::Fleet;
use super::node::NodeState;
use crate::job::ids::{JobNumber, NodeId};
use crate::launcher::message::FromCrew;
use crate::launcher::plate::Stage as Life;

impl Fleet {
    /// Once every node has answered, the ranks may be started or the job is refused.
    pub(super) fn check_ready(&mut self) {
        if self.decided || !self.nodes.iter().all(NodeState::has_answered) {
            return;
        }
        self.decided = true;
        let numbers = (0..).map(NodeId);
        let refused = numbers
            .zip(&self.nodes)
            .filter_map(|(node, state)| Some((node, state.refusal.clone()?)));
        let refused: Vec<_> = refused.collect();
        match refused.is_empty() {
            true => self.tell(FromCrew::Ready),
            false => self.tell(FromCrew::Refused(refused)),
        }
    }

    pub(super) fn check_started(&mut self, job: JobNumber) {
        // One that joins has no rank of a job that is started meanwhile.
        let started =
            |node: &NodeState| node.started.contains(&job) || node.is_lost() || node.is_guest();
        if !self.nodes.iter().all(started) || !self.starting.remove(&job) {
            return;
        }
        self.tell(FromCrew::AllStarted { job });
        if job == JobNumber(0) {
            self.plate.turn(Life::Running);
            self.start_input();
        }
    }

    pub(super) fn check_over(&mut self) {
        if self.nodes.iter().all(|node| node.over || node.is_lost()) {
            self.tell(FromCrew::Over);
        }
    }
}
