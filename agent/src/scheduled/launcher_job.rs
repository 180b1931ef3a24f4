//! A request as the job that a launcher gets; no I/O.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::launch_request::{LaunchRequest, RequestedProgram};
use wireup_core::job::spec::{
    AppRequest, FabricSource, FabricSpec, GRACE, JobSpec, LayoutSpec, StatusSpec, StatusTarget,
    TerminationSpec,
};
use wireup_core::link::scheduled_launcher::ORDERS;

impl LaunchRequest {
    /// Returns the requested job; `home` is its user's, where the ranks start unless another directory is requested,
    /// and `agent` the socket of this agent. Its launcher has the [variables](LaunchRequest::variables).
    pub fn job(&self, home: &Path, agent: &Path) -> JobSpec {
        let env = self.variables();
        let apps = self.programs.iter();
        let apps = apps.map(|program| self.app(program, home, &env));
        let mut job = JobSpec::from_apps(apps.collect());
        job.layout = LayoutSpec {
            oversubscribe: true,
            ..LayoutSpec::default()
        };
        if self.place.nodes.len() > 1 {
            job.layout.hosts.clone_from(&self.place.nodes);
            job.layout.runs.clone_from(&self.place.blocks);
            job.layout.spread.agent = Some(agent.to_owned());
        }
        job.fabric = self.cxi.as_ref().map(|_| FabricSpec {
            source: FabricSource::Request,
            token: None,
            authorities: None,
        });
        job.stdio.stdin = self.stdin;
        job.interface.pmi = self.pmi;
        job.ending = TerminationSpec {
            timeout: self.timeout,
            exit: self.exit_policy,
            kill_on_bad_exit: self
                .kill_on_bad_exit
                .unwrap_or_else(|| !self.exit_policy.needs_every_end()),
            grace: self.grace.unwrap_or(GRACE),
            strict_pmi: self.strict_pmi,
            fence: self.fence_timeout,
            ..TerminationSpec::default()
        };
        job.status = StatusSpec {
            json: Some(StatusTarget::Stdout),
            control: Some(ORDERS),
            ..StatusSpec::default()
        };
        job
    }

    fn app(
        &self,
        program: &RequestedProgram,
        home: &Path,
        env: &[(OsString, OsString)],
    ) -> AppRequest {
        // Variables are named one by one, since a launcher leaves out those that look like another launcher's. No name
        // of these ends with the character by which a word means several names.
        let own = |name: &OsStr| program.env.0.iter().any(|(own, _)| own == name);
        let names = env.iter().map(|(name, _)| name);
        let names = names.filter(|name| !own(name) && !name.as_bytes().ends_with(b"*"));
        let set = program.env.0.iter().map(|(name, value)| {
            let mut word = name.clone();
            word.push("=");
            word.push(value);
            word
        });
        let cwd = program.cwd.as_deref().or(self.cwd.as_deref());
        let mut argv = vec![program.program.clone()];
        argv.extend_from_slice(&program.args);
        AppRequest {
            count: Some(program.ranks),
            env: names.cloned().chain(set).collect(),
            wdir: Some(cwd.unwrap_or(home).to_owned()),
            umask: Some(self.umask.unwrap_or(0o022)),
            argv,
            ..AppRequest::default()
        }
    }

    /// Returns the variables for the launcher and all ranks, in addition to the plain environment of their user.
    /// Variables from other fields come last and replace those that the request lists.
    pub fn variables(&self) -> Vec<(OsString, OsString)> {
        let mut found = vec![("WIREUP_LAUNCH_ID", self.id.clone())];
        if !self.allocation.is_empty() {
            found.push(("WIREUP_ALLOC_ID", self.allocation.clone()));
        }
        if let Some(cxi) = &self.cxi {
            found.push(("FI_CXI_DEFAULT_VNI", cxi.vni.to_string()));
            found.push(("SLINGSHOT_VNIS", cxi.vni.to_string()));
            if !cxi.key.expose().is_empty() {
                found.push(("FI_CXI_AUTH_KEY", cxi.key.hex().to_string()));
            }
            if cxi.service != 0 {
                found.push(("SLINGSHOT_SVC_IDS", cxi.service.to_string()));
            }
        }
        let found = found.into_iter();
        let found = found.map(|(name, value)| (name.into(), value.into()));
        let env = self.env.0.iter().cloned();
        env.chain(found).collect()
    }
}
