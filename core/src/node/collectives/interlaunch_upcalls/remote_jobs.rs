//! Jobs of other launches that are registered with the sidecar.

use std::collections::BTreeSet;

use super::InterlaunchState;
use crate::interlaunch::{InterlaunchId, InterlaunchMessage, RemoteJob};
use crate::job::ids::Nspace;
use crate::node::context::NodeContext;
use crate::node::context::collective_policy::HEAD;
use crate::pmix::job_info;
use crate::pmix::sidecar_link::RequestId;
use crate::pmix::sidecar_protocol::{ControlRefusal, SidecarCommand};
use crate::pmix::value::Status;

impl InterlaunchState {
    /// Registers jobs of other launches with the sidecar.
    pub(super) fn register_remote_jobs(
        &mut self,
        key: InterlaunchId,
        jobs: &[RemoteJob],
        cx: &mut NodeContext,
    ) {
        let mut missing = BTreeSet::new();
        for job in jobs {
            let known = &self.registered_jobs;
            if known.contains(&job.nspace) || !missing.insert(job.nspace.clone()) {
                continue;
            }
            let mut under_way = self.registering.values();
            if under_way.any(|nspace| *nspace == job.nspace) {
                continue;
            }
            let request_id = match job_info::remote_job_infos(job) {
                Ok(infos) => {
                    let request = SidecarCommand::RegisterJob {
                        nspace: job.nspace.clone(),
                        infos,
                        clients: Vec::new(),
                    };
                    cx.control(&request).ok_or(Status::ERR_LOST_CONNECTION.0)
                }
                Err(_) => Err(Status::ERR_BAD_PARAM.0),
            };
            match request_id {
                Ok(id) => drop(self.registering.insert(id, job.nspace.clone())),
                Err(status) => {
                    let result = Err(status);
                    let message = InterlaunchMessage::Registered { key, result };
                    return self.send(HEAD, message, cx);
                }
            }
        }
        self.unregistered.push((key, missing));
        self.report_registered(Ok(()), BTreeSet::is_empty, cx);
    }

    /// Handles the sidecar's reply to the registration of such a job.
    pub(crate) fn on_remote_jobs_registered(
        &mut self,
        id: RequestId,
        result: Result<(), ControlRefusal>,
        cx: &mut NodeContext,
    ) {
        let Some(nspace) = self.registering.remove(&id) else {
            return;
        };
        if let Err(refusal) = result {
            let needs_job = |missing: &BTreeSet<Nspace>| missing.contains(&nspace);
            return self.report_registered(Err(refusal.status.0), needs_job, cx);
        }
        for (_, missing) in &mut self.unregistered {
            missing.remove(&nspace);
        }
        self.registered_jobs.insert(nspace);
        self.report_registered(Ok(()), BTreeSet::is_empty, cx);
    }

    /// Removes jobs of other launches that have ended from the sidecar, which would keep all of them in a long launch.
    pub(super) fn deregister_remote_jobs(&mut self, jobs: &[Nspace], cx: &mut NodeContext) {
        for nspace in jobs {
            if self.registered_jobs.remove(nspace) && cx.sidecar.is_ready() {
                let nspace = nspace.clone();
                cx.control(&SidecarCommand::DeregisterJob { nspace });
            }
        }
    }

    /// Reports the result of the operations for whose missing jobs `is_decided` holds.
    fn report_registered(
        &mut self,
        result: Result<(), i32>,
        is_decided: impl Fn(&BTreeSet<Nspace>) -> bool,
        cx: &mut NodeContext,
    ) {
        let unregistered = &mut self.unregistered;
        let done: Vec<InterlaunchId> = unregistered
            .extract_if(.., |(_, missing)| is_decided(missing))
            .map(|(key, _)| key)
            .collect();
        for key in done {
            let message = InterlaunchMessage::Registered { key, result };
            self.send(HEAD, message, cx);
        }
    }
}
