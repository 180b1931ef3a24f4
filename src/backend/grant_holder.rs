//! Credentials of Slingshot that a process of their own has asked for and revokes: `wireup-agent fabric-keeper`.
//!
//! ```text
//!  launcher ── Obtain ──▶ keeper ── REST, or the site's command
//!      ◀── Provided ───────┘
//!      ── Finished, or the end of the pipe, or of the launcher ──▶ keeper revokes, asks whether it is gone
//!      ◀── Over ───────────┘
//!  step (the first two nodes) ── Watch ──▶ keeper: does the same if the step ends without Finished
//! ```
//! The keeper outlives a launcher that is killed. What it has not revoked yet is in a record, which another keeper of the
//! user or the next agent finds ([`core::fabric`](wireup_core::fabric)).
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

/// How long a launch waits at its end for the proof that its credential is gone. The keeper goes on.
const END_LIMIT: Duration = Duration::from_secs(20);

/// The nodes that watch a launch of several hosts.
const WATCHING: u32 = 2;

/// Why there is no credential.
#[derive(Debug, thiserror::Error)]
enum FabricGrantFailure {
    #[error("--fabric: no credential from {source_text}: {reason}")]
    Refused { source_text: String, reason: String },
    #[error("--fabric: {0}")]
    Environment(FabricGrantError),
}

impl RequestError for FabricGrantFailure {}

/// A process that revokes a credential, at the latest when this is dropped.
#[derive(Debug)]
pub(crate) struct GrantHolder {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
}

/// Starts a keeper, with its first message in its pipe.
fn start(first: &GrantHolderRequest) -> Result<(Child, ChildStdin, ChildStdout), CommandError> {
    let program = agent_file::find(AGENT).map_err(CommandError::request)?;
    let failed = |error: io::Error| CommandError::system("cannot start wireup-agent", error);
    let mut child = Command::new(program)
        .arg(GRANT_HOLDER)
        // Signals of the terminal are the launcher's, and what marks the processes of a job ends them.
        .process_group(0)
        .env_remove(JOB)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(failed(io::Error::other("it has no pipes")));
    };
    write_message(&mut input, first).map_err(failed)?;
    Ok((child, input, output))
}

impl GrantHolder {
    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or_default()
    }

    fn read_reply(&mut self) -> io::Result<GrantHolderReply> {
        let message = read_message(&mut self.output)?;
        message.ok_or_else(|| io::Error::other("it ended without an answer"))
    }

    /// The launch has ended in order: what it says about its credential.
    fn finish(&mut self) {
        if let Some(mut input) = self.input.take() {
            // One that is gone has left its record.
            let _ = write_message(&mut input, &GrantHolderRequest::Finished);
        }
    }
}

impl Drop for GrantHolder {
    fn drop(&mut self) {
        self.finish();
        if !wait_for(&self.child, END_LIMIT) {
            let pid = self.pid();
            eprintln!(
                "wireup: warning: --fabric: the credential is not revoked yet; process {pid} goes on trying"
            );
            return;
        }
        let told = self.read_reply();
        let _ = self.child.wait();
        match told {
            Ok(GrantHolderReply::Over(None)) => {}
            Ok(GrantHolderReply::Over(Some(leak))) => {
                eprintln!("wireup: warning: --fabric: the credential may not be revoked: {leak}");
            }
            Ok(GrantHolderReply::Provided(..) | GrantHolderReply::Refused(_)) | Err(_) => {
                eprintln!(
                    "wireup: warning: --fabric: {AGENT} {GRANT_HOLDER} was lost; the next launch or \
                     agent of this user revokes the credential"
                );
            }
        }
    }
}

/// What a step uses to watch the launch. What its keeper does when this is dropped takes longer than the step lives.
#[derive(Debug)]
pub(crate) struct GrantWatcher(Child, ChildStdin);

impl GrantWatcher {
    /// Watches for a node, if its part is to watch.
    ///
    /// # Errors
    /// [`CommandError`] if there can be no keeper.
    pub(crate) fn start(plan: &HostPlan, node: NodeId) -> Result<Option<Self>, CommandError> {
        // A launch that goes on without a host goes on with its credential, and the host cannot know.
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

    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap_or_default()
    }

    /// The launcher has ended the launch in order.
    pub(crate) fn finish(mut self) {
        // One that is gone has nothing to do.
        if write_message(&mut self.1, &GrantHolderRequest::Finished).is_ok() {
            let _ = self.0.wait();
        }
    }
}

/// Puts the credential that a job asks for into its plan, and returns what revokes it.
///
/// # Errors
/// [`CommandError`] if there is none, or it cannot be used on this machine.
pub(crate) fn obtain(plan: &mut HostPlan) -> Result<Option<GrantHolder>, CommandError> {
    let Some(spec) = plan.spec.fabric.clone() else {
        return Ok(None);
    };
    let has_ranks_here = plan.scope.is_some();
    let keeper = match spec.source {
        FabricSource::Environment | FabricSource::Request => {
            let credential = plan.grant_from_environment();
            plan.job_plan.launch_mut().fabric_grant = match credential {
                Ok(credential) => Some(Arc::new(credential)),
                Err(_) if spec.source == FabricSource::Request => None,
                // A batch system gives them to steps: to the hosts' agents, and not to the script of a job.
                Err(FabricGrantError::None) if !has_ranks_here => None,
                Err(error) => return Err(FabricGrantFailure::Environment(error).into()),
            };
            None
        }
        FabricSource::Service(_) | FabricSource::Command(_) => {
            if has_ranks_here {
                plan.check_fabric_devices()?;
            }
            let (keeper, credential, record) = request_grant(grant_request(plan), absolute(spec)?)?;
            let launch = plan.job_plan.launch_mut();
            launch.fabric_grant = Some(Arc::from(credential));
            launch.grant_record = Some(record);
            Some(keeper)
        }
    };
    plan.check_fabric()?;
    Ok(keeper)
}

fn grant_request(plan: &HostPlan) -> GrantRequest {
    let vni = plan.grant_from_environment().ok();
    let allocation = plan.names.allocation.as_ref();
    GrantRequest {
        name: plan.job.nspace.to_string(),
        allocation: allocation.map(|id| id.to_string_lossy().into_owned()),
        nodes: plan.node_names.clone(),
        vni: vni.and_then(|known| known.vnis.first().copied()),
    }
}

/// Names of files that hold wherever the keeper, or its successor, runs.
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
        Ok(GrantHolderReply::Over(_)) => Err(broken("an answer to no question".into())),
        Err(error) => Err(broken(error.into())),
    }
}
