//! The service by which schedulers and other programs drive launches. docs/scheduler.md is for its
//! callers.
//!
//! ```text
//!  LaunchProcesses ─▶ request ─▶ job ─▶ start ─▶ wireup launch
//!                                                      │ records
//!  Watch, Query ◀──────────── progress ◀─────────── launcher (one task per launch)
//!  Stdio ◀═══════════════════ output ◀══════════════════╯
//! ```
//! On the head node a launch is a process, `wireup launch`, which has all its state; on the other
//! nodes it is only a name.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use self::launcher_start::LauncherStartError;
use self::turn::RequestPermit;
use crate::proto::v1;
use crate::proto::v1::node_agent_server::NodeAgent;
use crate::scheduled::caller::Caller;
use crate::scheduled::exchange::ExchangeError;
use crate::scheduled::launch_request::LaunchRequest;
use crate::scheduled::scheduled_launch::{
    ExchangeAnswer, ExchangeEnd, LauncherCommand, LauncherState, ScheduledLaunch,
};
use crate::state::Agent;
use crate::user::{User, UserError};
use wireup_core::job::spec::InterfaceChoice;
use wireup_core::link::agent_protocol::NodeCapabilities;
use wireup_core::record::ResizeCommand;

mod launch_streams;
pub mod launcher_process;
pub mod launcher_start;
mod offered_services;
pub mod process;
mod signal;
mod turn;

pub use offered_services::routes;

/// Time for which an exchange of keys waits for the last node.
const EXCHANGE: Duration = Duration::from_secs(60);

/// Cost of a known launch, in bytes for each byte of the request.
const REGISTERED: usize = 4;

/// Longest reason for an end, in bytes.
const REASON_MAX: usize = 1024;

#[derive(Debug)]
pub struct NodeAgentService(pub Arc<Agent>);

type Outgoing<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl NodeAgent for NodeAgentService {
    type WatchStream = Outgoing<v1::WatchEvent>;
    type StdioStream = Outgoing<v1::StdioOutput>;
    type QueryStream = Outgoing<v1::LaunchInfo>;

    async fn launch_processes(
        &self,
        request: Request<v1::LaunchProcessesRequest>,
    ) -> Result<Response<v1::LaunchProcessesResponse>, Status> {
        let caller = Caller::from_extensions(request.extensions())?;
        let agent = Arc::clone(&self.0);
        let turn = request.extensions().get::<RequestPermit>().cloned();
        let request = request.into_inner();
        // A separate task: a caller that disconnects meanwhile leaves no half-started launch.
        let starting =
            tokio::spawn(async move { launch_processes(&agent, &caller, request, turn).await });
        let started = starting.await;
        started
            .unwrap_or_else(|error| Err(Status::internal(error.to_string())))
            .map(Response::new)
    }

    async fn pmi_fence(
        &self,
        request: Request<v1::PmiFenceRequest>,
    ) -> Result<Response<v1::PmiFenceResponse>, Status> {
        let caller = Caller::from_extensions(request.extensions())?;
        let request = request.into_inner();
        let launch = self.0.scheduled.steer(&request.launch_id, &caller)?;
        let answer = launch.arrive(request.node_index, request.kvs_entries)?;
        // The caller may go away.
        let waiting = ExchangeWaiter {
            launch: &launch,
            node: request.node_index,
        };
        let mut answer = std::pin::pin!(answer);
        let answer = match tokio::time::timeout(EXCHANGE, &mut answer).await {
            Ok(answer) => answer,
            Err(_) => {
                launch.fail_exchange();
                answer.await
            }
        };
        std::mem::forget(waiting);
        let answer: ExchangeAnswer =
            answer.map_err(|_| Status::internal("an exchange had no reply"))?;
        match answer {
            Ok(merged) => Ok(Response::new(v1::PmiFenceResponse {
                success: true,
                merged_kvs: Arc::unwrap_or_clone(merged),
            })),
            Err(end) => Err(end.status(&launch)),
        }
    }

    async fn pmi_fence_complete(
        &self,
        request: Request<v1::PmiFenceCompleteRequest>,
    ) -> Result<Response<v1::PmiFenceCompleteResponse>, Status> {
        let caller = Caller::from_extensions(request.extensions())?;
        let request = request.into_inner();
        let launch = self.0.scheduled.steer(&request.launch_id, &caller)?;
        let answered = launch.end_exchange(&Ok(Arc::new(request.merged_kvs)));
        Ok(Response::new(v1::PmiFenceCompleteResponse { answered }))
    }

    async fn abort_processes(
        &self,
        request: Request<v1::AbortProcessesRequest>,
    ) -> Result<Response<v1::AbortProcessesResponse>, Status> {
        let caller = Caller::from_extensions(request.extensions())?;
        let v1::AbortProcessesRequest { launch_id, reason } = request.into_inner();
        if reason.len() > REASON_MAX {
            return Err(Status::invalid_argument(format!(
                "reason of {} bytes: at most {REASON_MAX} are allowed",
                reason.len()
            )));
        }
        let launch = self.0.scheduled.steer(&launch_id, &caller)?;
        let reason = reason.replace(char::is_control, " ");
        tracing::info!(launch = launch.id, uid = launch.owner, %caller, reason, "abort");
        match &launch.head {
            Some(head) => {
                let reason = match reason.trim() {
                    "" => format!("by {caller}"),
                    reason => reason.to_owned(),
                };
                head.learn(|progress| progress.abort(&reason));
                head.order(LauncherCommand::End);
            }
            None => launch.abort(),
        }
        Ok(Response::new(v1::AbortProcessesResponse {}))
    }

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let caller = Caller::from_extensions(request.extensions())?;
        let launch_id = request.into_inner().launch_id;
        let launch = self.0.scheduled.find(&launch_id, &caller)?;
        let head = Arc::clone(head(&launch)?);
        Ok(Response::new(launch_streams::watch(launch, head)))
    }

    async fn stdio(
        &self,
        request: Request<Streaming<v1::StdioInput>>,
    ) -> Result<Response<Self::StdioStream>, Status> {
        let caller = Caller::from_extensions(request.extensions())?;
        let mut input = request.into_inner();
        let first = input.message().await?.ok_or_else(|| {
            Status::invalid_argument("no message: the first one must name the launch")
        })?;
        let launch = self.0.scheduled.steer(&first.launch_id, &caller)?;
        let head = Arc::clone(head(&launch)?);
        let output = launch_streams::stdio(launch, head, first, input)?;
        Ok(Response::new(output))
    }

    async fn signal(
        &self,
        request: Request<v1::SignalRequest>,
    ) -> Result<Response<v1::SignalResponse>, Status> {
        let caller = Caller::from_extensions(request.extensions())?;
        let request = request.into_inner();
        let launch = self.0.scheduled.steer(&request.launch_id, &caller)?;
        signal::send(head(&launch)?, &launch, request.signal, request.ranks)?;
        tracing::info!(launch = launch.id, uid = launch.owner, %caller, signal = request.signal, "signal");
        Ok(Response::new(v1::SignalResponse {}))
    }

    async fn resize(
        &self,
        request: Request<v1::ResizeRequest>,
    ) -> Result<Response<v1::ResizeResponse>, Status> {
        let caller = Caller::from_extensions(request.extensions())?;
        let v1::ResizeRequest {
            launch_id,
            add,
            remove,
            end_ranks: ends_ranks,
        } = request.into_inner();
        let launch = self.0.scheduled.steer(&launch_id, &caller)?;
        tracing::info!(launch = launch.id, uid = launch.owner, %caller, add, remove, "resize");
        let command = ResizeCommand {
            request: 0,
            add,
            remove,
            ends_ranks,
        };
        match head(&launch)?.resize(command).await {
            Ok(Ok(changes)) => Ok(Response::new(v1::ResizeResponse { changes })),
            Ok(Err(reason)) => Err(Status::failed_precondition(reason)),
            Err(_) => Err(Status::failed_precondition(format!(
                "launch {launch_id:?} has ended: no host can join or leave"
            ))),
        }
    }

    async fn query(
        &self,
        request: Request<v1::QueryRequest>,
    ) -> Result<Response<Self::QueryStream>, Status> {
        let caller = Caller::from_extensions(request.extensions())?;
        let v1::QueryRequest { launch_id, ranks } = request.into_inner();
        let launches = match launch_id.is_empty() {
            true => self.0.scheduled.visible_to(&caller),
            false => vec![self.0.scheduled.find(&launch_id, &caller)?],
        };
        Ok(Response::new(launch_streams::query(launches, ranks)))
    }

    async fn capabilities(
        &self,
        request: Request<v1::CapabilitiesRequest>,
    ) -> Result<Response<v1::CapabilitiesResponse>, Status> {
        Caller::from_extensions(request.extensions())?;
        let found = self.0.capability_probe.capabilities().await;
        let found = found.ok_or_else(|| {
            Status::unavailable(format!(
                "the agent of {} cannot find the interfaces of its node; its log has the reason",
                self.0.name
            ))
        })?;
        Ok(Response::new(v1::CapabilitiesResponse {
            capabilities: Some(found.into()),
        }))
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainResponse>, Status> {
        let caller = Caller::from_extensions(request.extensions())?;
        if !caller.may_drain(self.0.agent_uid()) {
            return Err(Status::permission_denied(format!(
                "{caller} may not drain this agent: only root, its own user and schedulers may"
            )));
        }
        tracing::info!(%caller, "drain");
        self.0.registry.drain();
        let launches = self.0.count_launches();
        Ok(Response::new(v1::DrainResponse { launches }))
    }
}

/// Handles a [`NodeAgent::launch_processes`] call.
async fn launch_processes(
    agent: &Agent,
    caller: &Caller,
    request: v1::LaunchProcessesRequest,
    turn: Option<RequestPermit>,
) -> Result<v1::LaunchProcessesResponse, Status> {
    let name = &agent.name;
    let bytes = REGISTERED * request.encoded_len();
    let mut request = LaunchRequest::check(request, name)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    request.limit_fences(agent.fence_timeout);
    // What follows may wait for a directory service.
    drop(turn);
    refuse_missing_pmix(agent, &request).await?;
    let user = user(agent, caller.runs_as(&request, agent.agent_uid())?).await?;
    let uid = user.uid;
    let held = agent.budgets.account(uid).take(bytes);
    let held = held.map_err(|spent| Status::resource_exhausted(spent.to_string()))?;
    let started = agent.registry.start_launcher().map_err(|refusal| {
        Status::unavailable(format!("the agent of {name}: {refusal}; use another node"))
    })?;
    let place = agent.scheduled.reserve(&request.id, uid, caller)?;
    let head = request.place.is_head();
    let mut response = v1::LaunchProcessesResponse {
        head,
        node_id: name.clone(),
        node_index: request.place.local_node,
        launcher_pid: 0,
    };
    place.fill(match head {
        true => {
            let steps = Arc::clone(&agent.step_spawner);
            let (launch, pid) =
                launcher_start::start(steps, &agent.socket, &request, user, started, held).await?;
            response.launcher_pid = pid;
            launch
        }
        false => Arc::new(ScheduledLaunch::new(&request, uid, None, held)),
    });
    tracing::info!(
        launch = request.id,
        allocation = request.allocation,
        ranks = request.place.size,
        nodes = request.place.nodes.len(),
        uid,
        %caller,
        head,
        "launch"
    );
    Ok(response)
}

/// Refuses ranks of this node that would be offered PMIx alone and cannot be.
async fn refuse_missing_pmix(agent: &Agent, request: &LaunchRequest) -> Result<(), Status> {
    if request.pmi != InterfaceChoice::Pmix {
        return Ok(());
    }
    let found = agent.capability_probe.capabilities().await;
    match found.as_ref().and_then(NodeCapabilities::missing_pmix) {
        Some(problem) => Err(Status::failed_precondition(format!(
            "{} cannot offer PMIx: {problem}",
            agent.name
        ))),
        None => Ok(()),
    }
}

/// Returns the user of a launch.
async fn user(agent: &Agent, run_as: v1::RunAs) -> Result<User, Status> {
    let mut user = agent.user(run_as.uid).await?;
    if let Some(gid) = run_as.gid.filter(|gid| *gid != user.gid) {
        // Only root can change it, whatever the user's groups are.
        if agent.agent_uid() != 0 || !user.groups.contains(&gid) {
            return Err(Status::permission_denied(format!(
                "user id {} cannot run in group {gid}: omit run_as.gid, or use an agent of root and a group of the user",
                run_as.uid
            )));
        }
        user.gid = gid;
    }
    Ok(user)
}

/// Returns the launcher's side of a launch.
fn head(launch: &ScheduledLaunch) -> Result<&Arc<LauncherState>, Status> {
    launch.head.as_ref().ok_or_else(|| {
        let head = &launch.place.nodes[launch.place.head as usize];
        Status::failed_precondition(format!(
            "the head node of launch {:?} is {:?}: call its agent at {}",
            launch.id, head.name, head.address
        ))
    })
}

/// A node's part in an exchange, taken back when its caller goes away.
struct ExchangeWaiter<'a> {
    launch: &'a ScheduledLaunch,
    node: u32,
}

impl Drop for ExchangeWaiter<'_> {
    fn drop(&mut self) {
        self.launch.leave(self.node);
    }
}

impl ExchangeEnd {
    fn status(self, launch: &ScheduledLaunch) -> Status {
        match self {
            Self::LaunchEnded => Status::aborted(format!("launch {:?} has ended", launch.id)),
            Self::Missing(_) if launch.head.is_none() => Status::deadline_exceeded(format!(
                "PmiFenceComplete was not called on this node for launch {:?} within {} s; call it on all nodes but the \
                 head node",
                launch.id,
                EXCHANGE.as_secs(),
            )),
            Self::Missing(nodes) => {
                let names: Vec<&str> = nodes
                    .iter()
                    .take(16)
                    .map(|node| &*launch.place.nodes[*node as usize].name)
                    .collect();
                Status::deadline_exceeded(format!(
                    "{} of {} nodes have not called PmiFence of launch {:?} within {} s: {}{}",
                    nodes.len(),
                    launch.place.nodes.len(),
                    launch.id,
                    EXCHANGE.as_secs(),
                    names.join(", "),
                    if nodes.len() > names.len() {
                        ", …"
                    } else {
                        ""
                    },
                ))
            }
        }
    }
}

impl From<ExchangeError> for Status {
    fn from(error: ExchangeError) -> Self {
        let text = error.to_string();
        match error {
            ExchangeError::NoNode { .. } => Self::invalid_argument(text),
            ExchangeError::Twice(_) => Self::already_exists(text),
            ExchangeError::Part(_) | ExchangeError::All => Self::resource_exhausted(text),
        }
    }
}

impl From<LauncherStartError> for Status {
    fn from(error: LauncherStartError) -> Self {
        Self::internal(error.to_string())
    }
}

impl From<UserError> for Status {
    fn from(error: UserError) -> Self {
        let text = error.to_string();
        match error {
            UserError::NotServed { .. } => Self::permission_denied(text),
            UserError::Unknown(_) => Self::failed_precondition(text),
            UserError::Lookup { .. } => Self::unavailable(text),
        }
    }
}
