//! Fabric grants of Slingshot. A separate process, the grant holder (`wireup-agent fabric-keeper`), obtains and revokes
//! them.
//!
//! ```text
//!  launcher ── Obtain ──▶ holder ── REST, or the site's command
//!      ◀── Provided ───────┘
//!      ── Finished, or the end of the pipe, or of the launcher ──▶ holder revokes and verifies
//!      ◀── Over ───────────┘
//!  step (the first two nodes) ── Watch ──▶ holder: does the same if the step ends without Finished
//! ```
//! The holder outlives a launcher that is killed. A record has the grants that are not revoked yet; another holder of
//! the user or the next agent finds it ([`core::fabric`](wireup_core::fabric)).
//!
//! Rule: the key travels in pipes and in the link of the launch, never in an argument or a file.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use wireup_core::executables::{AGENT, GRANT_HOLDER};

use crate::inspect::agent_file;
use crate::plan::HostPlan;
use crate::plan::node_grant::{check_fabric, check_fabric_devices, grant_from_environment};
use wireup_core::fabric::grant::{FabricGrant, FabricGrantError};
use wireup_core::fabric::grant_record::GrantRecord;
use wireup_core::fabric::manager_rest::GrantRequest;
use wireup_core::failure::{AnyError, CommandError, RequestError};
use wireup_core::job::ids::NodeId;
use wireup_core::job::spec::{FabricSource, FabricSpec, FailurePolicy};
use wireup_core::link::grant_holder_messages::{
    GrantHolderReply, GrantHolderRequest, read_message, write_message,
};
use wireup_sys::leftovers::JOB;
use wireup_sys::pidfd::wait_for;

/// Time for which a launch waits at its end until its grant is verified to be revoked. The holder continues after it.
const END_LIMIT: Duration = Duration::from_secs(20);

/// Number of nodes with a grant holder that watches a launch of several hosts.
const WATCHING: u32 = 2;

/// Error: no grant was obtained.
#[derive(Debug, thiserror::Error)]
enum FabricGrantFailure {
    #[error("--fabric: no grant from {source_text}: {reason}")]
    Refused { source_text: String, reason: String },
    #[error("--fabric: {0}")]
    Environment(FabricGrantError),
}

impl RequestError for FabricGrantFailure {}

/// Process that revokes a grant, at the latest when this is dropped.
#[derive(Debug)]
pub(crate) struct GrantHolder {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
}

/// Starts a grant holder, with its first message in its pipe.
fn start(first: &GrantHolderRequest) -> Result<(Child, ChildStdin, ChildStdout), CommandError> {
    let program = agent_file::find(AGENT).map_err(CommandError::request)?;
    let failed = |error: io::Error| CommandError::system("cannot start wireup-agent", error);
    let mut child = Command::new(program)
        .arg(GRANT_HOLDER)
        // It gets no signals of the terminal, and not the variable by which the processes of a job are found and killed.
        .process_group(0)
        .env_remove(JOB)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(failed(io::Error::other("no pipes")));
    };
    write_message(&mut input, first).map_err(failed)?;
    Ok((child, input, output))
}

impl GrantHolder {
    /// Returns the pid of the grant holder.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or_default()
    }

    fn read_reply(&mut self) -> io::Result<GrantHolderReply> {
        let message = read_message(&mut self.output)?;
        message.ok_or_else(|| io::Error::other("ended without a reply"))
    }
}

impl Drop for GrantHolder {
    /// Handles the normal end of the launch: has the grant revoked, and prints a warning if it may remain.
    fn drop(&mut self) {
        if let Some(mut input) = self.input.take() {
            // A holder that was killed has left its record.
            let _ = write_message(&mut input, &GrantHolderRequest::Finished);
        }
        if !wait_for(&self.child, END_LIMIT) {
            let pid = self.pid();
            eprintln!(
                "wireup: warning: --fabric: the fabric grant is not revoked yet; process {pid} keeps trying"
            );
            return;
        }
        let reply = self.read_reply();
        let _ = self.child.wait();
        match reply {
            Ok(GrantHolderReply::Over(None)) => {}
            Ok(GrantHolderReply::Over(Some(leak))) => {
                eprintln!("wireup: warning: --fabric: the fabric grant may not be revoked: {leak}");
            }
            Ok(GrantHolderReply::Provided(..) | GrantHolderReply::Refused(_)) | Err(_) => {
                eprintln!(
                    "wireup: warning: --fabric: {AGENT} {GRANT_HOLDER} was lost; the next launch or \
                     agent of this user revokes the grant"
                );
            }
        }
    }
}

/// Grant holder of a step, which watches the launch. After this is dropped, the holder may run longer than the step.
#[derive(Debug)]
pub(crate) struct GrantWatcher(Child, ChildStdin);

impl GrantWatcher {
    /// Starts the grant holder of a node, if the node is one of those that watch.
    ///
    /// # Errors
    /// [`CommandError`] if the holder cannot be started.
    pub(crate) fn start(plan: &HostPlan, node: NodeId) -> Result<Option<Self>, CommandError> {
        // A launch that continues without this host keeps its grant; the host cannot know that.
        let goes_on = plan.spec.ending.on_failure == FailurePolicy::Continue;
        let Some(record) = plan
            .grant_record
            .clone()
            .filter(|_| node.0 < WATCHING && !goes_on)
        else {
            return Ok(None);
        };
        let (child, input, _) = start(&GrantHolderRequest::Watch(record, node.0))?;
        Ok(Some(Self(child, input)))
    }

    /// Returns the pid of the grant holder.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap_or_default()
    }

    /// Handles the normal end of the launch.
    pub(crate) fn finish(mut self) {
        // A holder that has exited has nothing left to do.
        if write_message(&mut self.1, &GrantHolderRequest::Finished).is_ok() {
            let _ = self.0.wait();
        }
    }
}

/// Puts the requested fabric grant into the plan of a launch, and returns the process that revokes it.
///
/// # Errors
/// [`CommandError`] if no grant is given, or it cannot be used on this machine.
pub(crate) fn obtain(plan: &mut HostPlan) -> Result<Option<GrantHolder>, CommandError> {
    let Some(spec) = plan.spec.fabric.clone() else {
        return Ok(None);
    };
    let has_ranks_here = plan.scope.is_some();
    let keeper = match spec.source {
        FabricSource::Environment | FabricSource::Request => {
            let credential = grant_from_environment(plan);
            plan.job_plan.launch_mut().fabric_grant = match credential {
                Ok(credential) => Some(Arc::new(credential)),
                Err(_) if spec.source == FabricSource::Request => None,
                // A batch system gives grants to its steps, that is to the hosts' agents, and not to the script of a job.
                Err(FabricGrantError::None) if !has_ranks_here => None,
                Err(error) => return Err(FabricGrantFailure::Environment(error).into()),
            };
            None
        }
        FabricSource::Service(_) | FabricSource::Command(_) => {
            if has_ranks_here {
                check_fabric_devices()?;
            }
            let (keeper, credential, record) = request_grant(grant_request(plan), absolute(spec)?)?;
            let launch = plan.job_plan.launch_mut();
            launch.fabric_grant = Some(Arc::from(credential));
            launch.grant_record = Some(record);
            Some(keeper)
        }
    };
    check_fabric(plan)?;
    Ok(keeper)
}

fn grant_request(plan: &HostPlan) -> GrantRequest {
    let vni = grant_from_environment(plan).ok();
    let allocation = plan.names.allocation.as_ref();
    GrantRequest {
        name: plan.job.nspace.to_string(),
        allocation: allocation.map(|id| id.to_string_lossy().into_owned()),
        nodes: plan.node_names.clone(),
        vni: vni.and_then(|known| known.vnis.first().copied()),
    }
}

/// Makes the file names absolute: they must be valid wherever this holder, or a later one, runs.
fn absolute(mut spec: FabricSpec) -> Result<FabricSpec, CommandError> {
    for file in [&mut spec.token, &mut spec.authorities]
        .into_iter()
        .flatten()
    {
        *file =
            std::path::absolute(&file).map_err(|error| CommandError::system("--fabric", error))?;
    }
    Ok(spec)
}

fn request_grant(
    grant_request: GrantRequest,
    spec: FabricSpec,
) -> Result<(GrantHolder, Box<FabricGrant>, GrantRecord), CommandError> {
    let source_text = spec.source.to_string();
    let (child, input, output) = start(&GrantHolderRequest::Obtain(grant_request, spec))?;
    let mut keeper = GrantHolder {
        child,
        input: Some(input),
        output,
    };
    let broken = |error: AnyError| CommandError::system("wireup-agent fabric-keeper", error);
    match keeper.read_reply() {
        Ok(GrantHolderReply::Provided(credential, record)) => Ok((keeper, credential, record)),
        Ok(GrantHolderReply::Refused(reason)) => Err(FabricGrantFailure::Refused {
            source_text,
            reason,
        }
        .into()),
        Ok(GrantHolderReply::Over(_)) => Err(broken("unexpected reply".into())),
        Err(error) => Err(broken(error.into())),
    }
}
