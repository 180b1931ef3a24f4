//! Collectives between launches at the head node: its orders to its nodes, and its messages to other launches.

use super::InterlaunchState;
use crate::direct_modex::{ModexEvent, ModexResult};
use crate::interlaunch::{
    HeadNodeMessage, InterlaunchAction, InterlaunchHub, InterlaunchMessage, LaunchArrival,
};
use crate::job::ids::Nspace;
use crate::link::{decode, encode};
use crate::name_server::message::NameServerCommand;
use crate::node::context::NodeContext;
use crate::node::context::node_effect::{ModexRequester, NodeEffect};
use crate::pmix::value::Status;

impl InterlaunchState {
    /// Has the hub do something and carries out its orders.
    pub(super) fn with_hub(
        &mut self,
        cx: &mut NodeContext,
        operation: impl FnOnce(&mut InterlaunchHub),
    ) {
        operation(&mut self.hub);
        for output in self.hub.take_actions() {
            match output {
                InterlaunchAction::Send { to, packet } => self.relay(to, &packet, cx),
                InterlaunchAction::Register { key, nodes, jobs } => {
                    for job in &jobs {
                        let met = self.nodes_by_remote_job.entry(job.nspace.clone());
                        met.or_default().extend(&nodes);
                    }
                    for node in nodes {
                        let (key, jobs) = (key.clone(), jobs.clone());
                        let message = InterlaunchMessage::Register { key, jobs };
                        self.send(node, message, cx);
                    }
                }
                InterlaunchAction::Release {
                    key,
                    nodes,
                    outcome,
                } => {
                    for node in nodes {
                        let (key, outcome) = (key.clone(), outcome.clone());
                        let message = InterlaunchMessage::Release { key, outcome };
                        self.send(node, message, cx);
                    }
                }
            }
        }
    }

    pub(super) fn relay(&mut self, to: Nspace, packet: &HeadNodeMessage, cx: &mut NodeContext) {
        let sender_jobs = cx.running_jobs().map(|(_, job)| job.nspace.clone());
        let sender_jobs = sender_jobs.collect();
        cx.send_to_name_server(NameServerCommand::Relay {
            sender_jobs,
            to,
            body: encode(packet),
        });
    }

    /// Handles a message of another launch.
    pub(in crate::node) fn launch_message(
        &mut self,
        from: &Nspace,
        body: &[u8],
        cx: &mut NodeContext,
    ) {
        // Another version of wireup; it is refused before.
        let Ok(packet) = decode(body) else { return };
        match packet {
            HeadNodeMessage::Arrived {
                key,
                jobs,
                status,
                data,
            } => {
                let own = self.local_participants(&key.members, cx);
                if !own.nodes.is_empty() {
                    let data = &data;
                    let arrival = LaunchArrival { jobs, status, data };
                    self.with_hub(cx, |hub| hub.arrived(&key, own, arrival));
                }
            }
            HeadNodeMessage::Ready { key, jobs } => {
                self.with_hub(cx, |hub| hub.ready(&key, &jobs));
            }
            HeadNodeMessage::Fetch { serial, proc } => {
                let process = cx.find_job(proc.nspace.as_str());
                let owner = process.and_then(|(_, job)| job.context.process_map.node_of(proc.rank));
                let to = from.clone();
                let ask = ModexEvent::Ask {
                    proc,
                    owner,
                    timeout: None,
                    key: None,
                    ticket: ModexRequester::Far { to, serial },
                };
                cx.leave(NodeEffect::Modex(ask));
            }
            HeadNodeMessage::Fetched { serial, result } => self.fetched(serial, result, cx),
        }
    }

    fn fetched(&mut self, serial: u64, result: Result<Vec<u8>, i32>, cx: &mut NodeContext) {
        if let Some((node, serial, _)) = self.fetches.remove(&serial) {
            let message = InterlaunchMessage::Fetched { serial, result };
            self.send(node, message, cx);
        }
    }

    /// Passes on the data that another launch has requested.
    pub(in crate::node) fn reply_remote_data(
        &mut self,
        to: Nspace,
        serial: u64,
        result: ModexResult,
        cx: &mut NodeContext,
    ) {
        let result = result.map(|data| data.to_vec());
        let result =
            result.map_err(|failure| crate::node::context::upcalls::modex_status(failure).0);
        self.relay(to, &HeadNodeMessage::Fetched { serial, result }, cx);
    }

    /// Handles the end of these jobs of other launches, or of all of them.
    pub(in crate::node) fn jobs_gone(&mut self, jobs: Option<&[Nspace]>, cx: &mut NodeContext) {
        let is_gone = |nspace: &Nspace| jobs.is_none_or(|jobs| jobs.contains(nspace));
        let lost = Status::ERR_LOST_CONNECTION.0;
        self.with_hub(cx, |hub| hub.gone(is_gone, lost));
        let fetches = self.fetches.iter();
        let lost_ones = fetches.filter(|(_, (_, _, nspace))| is_gone(nspace));
        let lost_ones: Vec<u64> = lost_ones.map(|(serial, _)| *serial).collect();
        for serial in lost_ones {
            self.fetched(serial, Err(lost), cx);
        }
        // Without the name server the other launches may continue, connected to this one.
        for job in jobs.unwrap_or_default() {
            for node in self.nodes_by_remote_job.remove(job).unwrap_or_default() {
                let jobs = vec![job.clone()];
                let message = InterlaunchMessage::Forget { jobs };
                self.send(node, message, cx);
            }
        }
    }
}
