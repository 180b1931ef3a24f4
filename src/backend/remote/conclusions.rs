//! What the fleet concludes, and what is done then.

use std::sync::Arc;

use super::RemoteBackend;
use crate::backend::backend_message::{FromBackend, ToBackend};
use crate::backend::job_label::JobStage;
use crate::backend::link_message::Carried;
use wireup_core::fleet::{Conclusion, Fleet};
use wireup_core::job::ids::JobNumber;
use wireup_core::job::outcome::Cause;
use wireup_core::job::roster::Roster;
use wireup_core::link::frame::Address;
use wireup_core::node::JobContext;

impl RemoteBackend {
    /// Hands something to the fleet, and does what it concludes.
    pub(super) fn conclude(
        &mut self,
        event: impl FnOnce(&mut Fleet, &Roster<Arc<JobContext>>, &mut Vec<Conclusion>),
    ) {
        let mut conclusions = Vec::new();
        event(&mut self.fleet, &self.jobs, &mut conclusions);
        for conclusion in conclusions {
            self.carry_out(conclusion);
        }
    }

    fn carry_out(&mut self, conclusion: Conclusion) {
        match conclusion {
            Conclusion::Ready => self.tell(FromBackend::Ready),
            Conclusion::Refused(refused) => self.tell(FromBackend::Refused(refused)),
            Conclusion::AllStarted(job) => {
                self.tell(FromBackend::AllStarted { job });
                if job == JobNumber(0) {
                    self.label.turn(JobStage::Running);
                    self.start_input();
                }
            }
            Conclusion::Joined(node, None) => self.joined(node),
            Conclusion::Joined(node, refusal) => self.tell(FromBackend::Joined { node, refusal }),
            Conclusion::HostFailed(node, error) => {
                let cause = match self.cut {
                    Some(_) => Cause::CutOff { error },
                    None => Cause::NodeFailed { node, error },
                };
                let (before, after) = self.failures.settle_around_loss(node);
                self.told.extend(before);
                self.tell(FromBackend::Failed { cause, state: None });
                self.told.extend(after);
            }
            Conclusion::Gone(rank) => self.tell(FromBackend::Gone { rank }),
            Conclusion::Late(node, what) => {
                let name = &self.plan.node_names[node.index()];
                let text = format!(
                    "warning: {name} did not {what} in time; its agent continues with that"
                );
                self.tell(FromBackend::Tell { text });
            }
            Conclusion::NodesLost(nodes, reason) => {
                self.link.sources_lost(&nodes);
                let order = ToBackend::NodesLost { nodes, reason };
                self.send(Address::EveryNode, &Carried::Order(order));
            }
            Conclusion::Credit(node, stream, bytes) => {
                let credit = Carried::Credit { stream, bytes };
                self.send(Address::Node(node), &credit);
            }
            Conclusion::Over => self.tell(FromBackend::Over),
        }
    }
}
