//! Takes large requests of users in turn. A request is charged to its user by its encoded length while it arrives, and
//! decoded when the user's request before it has been decoded and checked.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::{BodyExt as _, Full};
use prost::bytes::{Bytes, BytesMut};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tower::Service;

use crate::budget::{BudgetAccount, ByteReservation};
use crate::caller_identity::LocalCaller;
use crate::memory;
use crate::scheduled::launch_request::check_encoded;
use crate::state::Agent;

const LAUNCH_PROCESSES: &str = "/wireup.v1.NodeAgent/LaunchProcesses";

/// Calls whose requests may be large.
const LARGE: [&str; 3] = [
    LAUNCH_PROCESSES,
    "/wireup.v1.NodeAgent/PmiFence",
    "/wireup.v1.NodeAgent/PmiFenceComplete",
];

/// Longest message, in bytes: the default of tonic, which refuses a longer one.
const MESSAGE_MAX: usize = 4 * 1024 * 1024;

/// Bytes before a message: a flag and its length. Source: gRPC over HTTP2.
const PREFIX: usize = 5;

/// Length of a request in bytes from which on the memory that it took is returned to the kernel.
const RETURNED: usize = 64 * 1024;

/// Turn of a user's request, given back with its share of the budget when the last copy is dropped.
#[derive(Clone, Debug)]
pub(super) struct RequestPermit {
    _permit: Arc<(OwnedSemaphorePermit, ByteReservation)>,
}

/// Service whose large requests are taken in turn; each has its [`RequestPermit`] as an extension.
#[derive(Clone, Debug)]
pub(super) struct InTurn<S> {
    pub(super) inner: S,
    pub(super) agent: Arc<Agent>,
}

impl<S: NamedService> NamedService for InTurn<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for InTurn<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        if !LARGE.contains(&path) {
            return Box::pin(self.inner.call(request));
        }
        let is_launch = path == LAUNCH_PROCESSES;
        let local = request.extensions().get::<LocalCaller>();
        let uid = local.map_or_else(|| self.agent.agent_uid(), |local| local.uid);
        let account = self.agent.budgets.account(uid);
        // The one that is ready.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let (bytes, held) = match collect(body, &account).await {
                Ok(collected) => collected,
                Err(status) => return Ok(status.into_http()),
            };
            let permit = account.turn().await;
            let is_large = bytes.len() > RETURNED;
            // A call has one message; further ones would be decoded too.
            let message = message(&bytes);
            let bytes = bytes.slice(..bytes.len().min(PREFIX + message.len()));
            let refusal = is_launch.then(|| check_encoded(message));
            let answer = match refusal {
                Some(Err(error)) => Ok(Status::invalid_argument(error.to_string()).into_http()),
                _ => {
                    parts.extensions.insert(RequestPermit {
                        _permit: Arc::new((permit, held)),
                    });
                    let body = Body::new(Full::new(bytes));
                    inner.call(Request::from_parts(parts, body)).await
                }
            };
            if is_large {
                memory::schedule_trim(&Handle::current());
            }
            answer
        })
    }
}

/// Collects a request's body up to the greatest size of a message, with its share of the budget.
async fn collect(
    mut body: Body,
    account: &Arc<BudgetAccount>,
) -> Result<(Bytes, ByteReservation), Status> {
    let mut held = account.hold(0);
    let mut bytes = BytesMut::new();
    // A longer one is refused when it is decoded.
    while bytes.len() <= PREFIX + MESSAGE_MAX
        && let Some(frame) = body.frame().await
    {
        let Ok(piece) = frame?.into_data() else {
            continue;
        };
        held.grow(piece.len())
            .map_err(|spent| Status::resource_exhausted(spent.to_string()))?;
        bytes.extend_from_slice(&piece);
    }
    Ok((bytes.freeze(), held))
}

/// Returns the first message of a body; empty if it is not complete.
fn message(body: &Bytes) -> Bytes {
    let length = body
        .get(1..PREFIX)
        .and_then(|length| length.try_into().ok());
    let length = length.map_or(0, u32::from_be_bytes) as usize;
    match body.len() >= PREFIX + length {
        true => body.slice(PREFIX..PREFIX + length),
        false => Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::budget::{BYTES, Budgets};

    #[tokio::test]
    async fn request_is_charged_by_encoded_length_and_refused_over_budget() {
        let account = Budgets::default().account(1);
        let body = || Body::new(Full::new(Bytes::from_static(b"\0\0\0\0\x06encode")));
        let (bytes, held) = collect(body(), &account).await.unwrap();
        assert_eq!((held.bytes(), &*message(&bytes)), (11, &b"encode"[..]));
        drop(held);
        let others = account.take(BYTES - 10).unwrap();
        let status = collect(body(), &account).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(
            status.message().contains("user id 1 uses 1024 MiB"),
            "{status}"
        );
        // What is refused leaves nothing charged.
        drop(others);
        account.take(BYTES).unwrap();
    }
}
