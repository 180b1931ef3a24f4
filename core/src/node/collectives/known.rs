//! Jobs of other launches that the sidecar gets to know.

use std::collections::BTreeSet;

use crate::collective::{CollectiveMessage, Description, Key};
use crate::job::ids::Nspace;
use crate::node::{HEAD, NodeCore};
use crate::pmix::control::{Control, ControlRefusal};
use crate::pmix::job_info;
use crate::pmix::sidecar::RequestId;
use crate::pmix::value::Status;

impl NodeCore {
    /// Makes jobs of other launches known to the sidecar.
    pub(super) fn register_far(&mut self, key: Key, jobs: &[Description]) {
        let mut missing = BTreeSet::new();
        for job in jobs {
            let known = &self.collectives.known;
            if known.contains(&job.nspace) || !missing.insert(job.nspace.clone()) {
                continue;
            }
            let mut under_way = self.collectives.registering.iter();
            if under_way.any(|(_, nspace)| *nspace == job.nspace) {
                continue;
            }
            let request = job_info::elsewhere(job).map(|infos| Control::RegisterJob {
                nspace: job.nspace.clone(),
                infos,
                clients: Vec::new(),
            });
            let asked = match request {
                Ok(request) => {
                    let id = self.cx.control(&request);
                    id.ok_or(Status::ERR_LOST_CONNECTION.0)
                }
                Err(_) => Err(Status::ERR_BAD_PARAM.0),
            };
            match asked {
                Ok(id) => self.collectives.registering.push((id, job.nspace.clone())),
                Err(status) => {
                    let result = Err(status);
                    let message = CollectiveMessage::Registered { key, result };
                    return self.send_collective(HEAD, message);
                }
            }
        }
        self.collectives.unregistered.push((key, missing));
        self.tell_registered();
    }

    /// The sidecar has registered such a job, or has not.
    pub(crate) fn far_registered(&mut self, id: RequestId, result: Result<(), ControlRefusal>) {
        let registering = &mut self.collectives.registering;
        let Some(at) = registering.iter().position(|(request, _)| *request == id) else {
            return;
        };
        let (_, nspace) = registering.swap_remove(at);
        if let Err(refusal) = result {
            let unregistered = std::mem::take(&mut self.collectives.unregistered);
            for (key, missing) in unregistered {
                if !missing.contains(&nspace) {
                    self.collectives.unregistered.push((key, missing));
                    continue;
                }
                let result = Err(refusal.status.0);
                let message = CollectiveMessage::Registered { key, result };
                self.send_collective(HEAD, message);
            }
            return;
        }
        for (_, missing) in &mut self.collectives.unregistered {
            missing.remove(&nspace);
        }
        self.collectives.known.insert(nspace);
        self.tell_registered();
    }

    /// Jobs of other launches are gone for good: the sidecar of a launch that meets many in its time
    /// would keep them all.
    pub(super) fn forget_far(&mut self, jobs: &[Nspace]) {
        for nspace in jobs {
            if self.collectives.known.remove(nspace) && self.cx.sidecar.is_ready() {
                let nspace = nspace.clone();
                self.cx.control(&Control::DeregisterJob { nspace });
            }
        }
    }

    fn tell_registered(&mut self) {
        let unregistered = &mut self.collectives.unregistered;
        let done: Vec<Key> = unregistered
            .extract_if(.., |(_, missing)| missing.is_empty())
            .map(|(key, _)| key)
            .collect();
        for key in done {
            let result = Ok(());
            let message = CollectiveMessage::Registered { key, result };
            self.send_collective(HEAD, message);
        }
    }
}
