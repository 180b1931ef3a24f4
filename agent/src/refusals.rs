//! A line in the log for every request that was refused.

use std::pin::Pin;
use std::task::{Context, Poll};

use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::warn;

use crate::tls::Peer;

/// Logs which requests of whom were answered with a refusal: not permitted, too large, of another
/// version, of what is there already, or when nothing new is taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogRefusals;

impl<S> Layer<S> for LogRefusals {
    type Service = Logged<S>;

    fn layer(&self, inner: S) -> Logged<S> {
        Logged { inner }
    }
}

/// What [`LogRefusals`] makes of a service.
#[derive(Clone, Debug)]
pub struct Logged<S> {
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Logged<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().cloned();
        let path = request.uri().path().to_owned();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            // A refusal is all headers: there is no body to wait for.
            let status = Status::from_header_map(answer.headers());
            if let Some(status) = status.filter(|status| is_refusal(status.code())) {
                let who = match peer {
                    Some(peer) => format!("{} ({})", peer.identity, peer.address),
                    None => "a local user".to_owned(),
                };
                warn!("refused {path} of {who}: {}", status.message());
            }
            Ok(answer)
        })
    }
}

fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::PermissionDenied
            | Code::Unauthenticated
            | Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::AlreadyExists
            | Code::Unavailable
            | Code::ResourceExhausted
            // What a message larger than the limit is.
            | Code::OutOfRange
    )
}
