//! Log lines for requests of known callers that were refused.
//!
//! Repeated refusals must not fill the log: each caller has a number of lines per period, and further ones are
//! counted.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::warn;

use crate::caller_identity::{LocalCaller, RemoteCaller};
use crate::counters::Counter;

/// Lines for one caller in a [`WHILE`].
const LINES: u64 = 20;

/// Period after which a caller may have lines again.
const WHILE: Duration = Duration::from_secs(60);

/// Most callers with lines of their own in that time. All others share one line.
const CALLERS: usize = 1024;

/// Maximum characters of a reason: it may quote the request.
const REASON: usize = 1000;

/// Calls that change a launch. A launch that is not the caller's is answered as unknown; a caller
/// that only asks about one finds out by it that it is forgotten.
const STEERING: [&str; 5] = [
    "/wireup.v1.NodeAgent/AbortProcesses",
    "/wireup.v1.NodeAgent/PmiFence",
    "/wireup.v1.NodeAgent/PmiFenceComplete",
    "/wireup.v1.NodeAgent/Signal",
    "/wireup.v1.NodeAgent/Stdio",
];

/// Callers that were refused recently.
#[derive(Debug, Default)]
pub struct Refusals {
    recent: Mutex<RefusalCounts>,
    count: Counter,
}

#[derive(Debug, Default)]
struct RefusalCounts(BTreeMap<String, RefusalCount>);

#[derive(Debug)]
struct RefusalCount {
    started_at: Instant,
    refusals: u64,
}

/// Whether to log a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LogDecision {
    Line,
    /// The line, and that it is the last for a while.
    Last,
    Nothing,
}

impl Refusals {
    /// Logs a refusal, unless there were too many.
    pub fn log(&self, who: &str, line: impl FnOnce()) {
        self.count.add(1);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        for (who, count) in recent.remove_expired(now) {
            warn!("refused {who} {count} more times; these were not logged");
        }
        let who = recent.counted_name(who);
        let admitted = recent.admit(who, now);
        drop(recent);
        if admitted != LogDecision::Nothing {
            line();
        }
        if admitted == LogDecision::Last {
            let seconds = WHILE.as_secs();
            warn!(
                "refused {who} {LINES} times within {seconds} s: further refusals are not logged"
            );
        }
    }

    /// Returns the number of refusals so far, logged or not.
    pub fn count(&self) -> u64 {
        self.count.get()
    }
}

impl RefusalCounts {
    /// Returns the name under which a caller is counted.
    fn counted_name<'a>(&self, who: &'a str) -> &'a str {
        match self.0.len() >= CALLERS && !self.0.contains_key(who) {
            true => "others",
            false => who,
        }
    }

    fn admit(&mut self, who: &str, now: Instant) -> LogDecision {
        let first = || RefusalCount {
            started_at: now,
            refusals: 0,
        };
        let count = self.0.entry(who.to_owned()).or_insert_with(first);
        count.refusals += 1;
        match count.refusals {
            ..LINES => LogDecision::Line,
            LINES => LogDecision::Last,
            _ => LogDecision::Nothing,
        }
    }

    /// Removes callers whose period is over; returns them with their numbers of unlogged refusals.
    fn remove_expired(&mut self, now: Instant) -> Vec<(String, u64)> {
        let mut unlogged = Vec::new();
        self.0.retain(|who, count| {
            let over = now.saturating_duration_since(count.started_at) >= WHILE;
            if over && count.refusals > LINES {
                unlogged.push((who.clone(), count.refusals - LINES));
            }
            !over
        });
        unlogged
    }
}

/// Logs refused requests and their callers: not permitted, too large, of another version, of a launch that exists
/// already, or when no new one is taken.
#[derive(Clone, Debug)]
pub struct LogRefusals(pub Arc<Refusals>);

impl<S> Layer<S> for LogRefusals {
    type Service = RefusalLogService<S>;

    fn layer(&self, inner: S) -> RefusalLogService<S> {
        RefusalLogService {
            inner,
            refusals: self.0.clone(),
        }
    }
}

/// Service of [`LogRefusals`], which logs the refusals of the inner one.
#[derive(Clone, Debug)]
pub struct RefusalLogService<S> {
    inner: S,
    refusals: Arc<Refusals>,
}

impl<S, B, R> Service<Request<B>> for RefusalLogService<S>
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
        let peer = request.extensions().get::<RemoteCaller>().cloned();
        let local = request.extensions().get::<LocalCaller>().copied();
        let path = request.uri().path().to_owned();
        let refusals = self.refusals.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            // A refusal is all headers: there is no body to wait for.
            let status = Status::from_header_map(answer.headers());
            if let Some(status) = status.filter(|status| is_refusal(status.code(), &path)) {
                let (who, from) = match (&peer, local) {
                    (Some(peer), _) => (peer.identity.to_string(), format!(" ({})", peer.address)),
                    (None, Some(local)) => (local.to_string(), String::new()),
                    (None, None) => ("an unknown caller".to_owned(), String::new()),
                };
                refusals.log(&who, || {
                    warn!("refused {path} of {who}{from}: {}", reason(&status));
                });
            }
            Ok(answer)
        })
    }
}

/// Escapes the reason for a log line.
fn reason(status: &Status) -> String {
    let text: String = status.message().chars().take(REASON).collect();
    text.replace(char::is_control, " ")
}

fn is_refusal(code: Code, path: &str) -> bool {
    match code {
        Code::PermissionDenied
        | Code::Unauthenticated
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::AlreadyExists
        | Code::Unavailable
        | Code::ResourceExhausted
        // What a message larger than the limit is.
        | Code::OutOfRange => true,
        Code::NotFound => STEERING.contains(&path),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_refusals_are_counted_after_some_lines_per_caller() {
        let mut recent = RefusalCounts::default();
        let begin = Instant::now();
        let many = 3 * LINES;
        let lines = (0..many).map(|_| recent.admit("a", begin));
        let lines: Vec<_> = lines.collect();
        let admitted = |kind| lines.iter().filter(|line| **line == kind).count() as u64;
        assert_eq!(admitted(LogDecision::Line), LINES - 1);
        assert_eq!(lines[LINES as usize - 1], LogDecision::Last);
        assert_eq!(admitted(LogDecision::Nothing), many - LINES);
        assert_eq!(recent.admit("b", begin + WHILE / 2), LogDecision::Line);
        assert_eq!(recent.remove_expired(begin + WHILE / 2), []);
        assert_eq!(
            recent.remove_expired(begin + WHILE),
            [("a".to_owned(), many - LINES)]
        );
        assert_eq!(recent.admit("a", begin + WHILE), LogDecision::Line);
        // A caller within its limit is removed without a message.
        assert_eq!(recent.remove_expired(begin + 3 * WHILE), []);
        assert!(recent.0.is_empty());
    }

    #[test]
    fn callers_without_number_are_counted_together() {
        let mut recent = RefusalCounts::default();
        let now = Instant::now();
        for caller in 0..3 * CALLERS {
            let who = format!("caller {caller}");
            let who = recent.counted_name(&who);
            recent.admit(who, now);
        }
        assert_eq!(recent.0.len(), CALLERS + 1);
        assert_eq!(recent.counted_name("caller 0"), "caller 0");
    }

    #[test]
    fn missing_launch_is_refusal_for_control_calls() {
        assert!(is_refusal(Code::NotFound, "/wireup.v1.NodeAgent/Signal"));
        assert!(!is_refusal(Code::NotFound, "/wireup.v1.NodeAgent/Query"));
        assert!(is_refusal(
            Code::PermissionDenied,
            "/wireup.v1.NodeAgent/Query"
        ));
        let status = Status::not_found("a\nb".repeat(REASON));
        assert!(reason(&status).starts_with("a b") && reason(&status).len() == REASON);
    }
}
