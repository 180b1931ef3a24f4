//! Three threads: one for the network, one for users' requests, and the main one.
//!
//! The network's thread accepts connections, makes them, encrypts, moves the frames of launches, and shows the other
//! sides that this agent lives: a frame wakes one thread of an agent. The main thread accepts connections of this
//! machine and does what would delay frames. The requests' thread decodes, checks and executes requests, so that no user's request delays the
//! network or a running launch.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;
use tower::{Layer, Service};

/// Threads that look up names of hosts. One user has [a part of them](crate::budget::LOOKUPS).
const LOOKUPS: usize = 512;

/// Threads that look up accounts and start launchers for requests.
const ACCOUNTS: usize = 8;

/// Most helper threads of the main thread.
const MAIN_HELPERS: usize = 8;

/// Creates the runtime of the network's thread.
///
/// # Errors
/// The system refuses a thread.
pub fn network() -> io::Result<Runtime> {
    own_thread("network", LOOKUPS)
}

/// Makes the thread of users' requests.
///
/// # Errors
/// When the system refuses a thread.
pub fn requests() -> io::Result<Runtime> {
    own_thread("requests", ACCOUNTS)
}

fn own_thread(name: &str, helpers: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(helpers)
        .thread_name(name)
        .enable_all()
        .build()
}

/// Creates the runtime of an agent's main thread.
///
/// # Errors
/// The system refuses a descriptor.
pub fn main() -> io::Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAIN_HELPERS)
        .build()
}

/// Creates the runtime of a process that does one thing.
///
/// # Errors
/// The system refuses a descriptor.
pub fn single_task() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Has requests that arrive on the network's thread executed by another thread.
#[derive(Clone, Debug)]
pub struct WorkerLayer(pub Handle);

impl<S> Layer<S> for WorkerLayer {
    type Service = WorkerService<S>;

    fn layer(&self, inner: S) -> WorkerService<S> {
        WorkerService {
            inner,
            work: self.0.clone(),
        }
    }
}

/// Service of [`WorkerLayer`], which runs the inner one on another runtime.
#[derive(Clone, Debug)]
pub struct WorkerService<S> {
    inner: S,
    work: Handle,
}

impl<S, R> Service<R> for WorkerService<S>
where
    S: Service<R>,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let answer = self.inner.call(request);
        // Dropped with the set when the caller goes away.
        let mut one = JoinSet::new();
        one.spawn_on(answer, &self.work);
        Box::pin(async move {
            match one.join_next().await {
                Some(Ok(answer)) => answer,
                Some(Err(error)) if error.is_panic() => {
                    std::panic::resume_unwind(error.into_panic())
                }
                // The agent ends.
                _ => std::future::pending().await,
            }
        })
    }
}
