//! The life of a credential. No I/O: answers and time in, one order at a time out.
//!
//! ```text
//!             ┌────────── no answer, 5xx ──────────┐
//!             ▼                                    │
//!  begin ─▶ Listing ── none ──▶ Creating ─────────┤
//!             │ one of ours       │ 2xx            │
//!             └──────────────────▶ Authorizing ────┘
//!                                   │ 200
//!                                   ▼
//!                                 Ready ── end ──▶ Revoking ──▶ Checking ── 404 ──▶ (next one) ──▶ over
//!                                                     ▲            │ still there, no answer
//!  refused, too late ──▶ Refused ── end ──────────────┴────────────┘
//! ```
//! The first attempt creates at once; `Listing` follows an answer that was lost or an error of the manager, because the
//! service may exist. Rule: what may exist is looked for under its name before it is created again, and at the end until it
//! is missing twice: a request that was given up may still be carried out, even after the first look. A manager that cannot list gets the request again with
//! the same idempotency key. A request that was not sent changes nothing: it is sent again, unless it never can be.

use std::time::Duration;

use super::grant::FabricGrant;
use super::grant_record::{GrantRecord, VERSION};
use super::manager_rest::{
    GrantRequest, ManagerReply, ManagerRequest, ServiceId, authorized, created, listed,
};
use crate::job::spec::FabricSpec;

/// Longest wait of a launch for its grant.
pub const CREATE_LIMIT: Duration = Duration::from_secs(60);

/// Longest time for which one process tries to revoke a grant. Then its record is left for another one.
pub const REVOKE_LIMIT: Duration = Duration::from_secs(10 * 60);

/// Waits between attempts: each twice the one before.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Wait between the first list without a service of ours and the second: the manager may still be at work on a request
/// that was given up.
const LATE_SERVICE: Duration = Duration::from_secs(5);

/// Next action of the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GrantAction {
    /// Send a request and report the [answer](GrantLifecycle::answered).
    Send(ManagerRequest),
    /// Wait and report that the time has [passed](GrantLifecycle::waited).
    Wait(Duration),
    /// Provide the grant to the ranks; the driver does nothing more until the end of the launch.
    Provide(FabricGrant),
    /// Refuse the launch for this reason. The driver [ends](GrantLifecycle::end) the grant, since a part of it may
    /// exist.
    Refuse(String),
    /// Nothing is left of it, or why that is not certain.
    Over { leak: Option<String> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GrantState {
    Creating,
    Listing,
    Authorizing,
    Ready,
    Refused,
    /// The last look for services under the launch's name.
    Searching,
    Revoking,
    Checking,
    Over,
}

/// State machine of one fabric grant, until its services are proved to be gone.
#[derive(Debug)]
pub struct GrantLifecycle {
    state: GrantState,
    request: GrantRequest,
    spec: FabricSpec,
    credential: FabricGrant,
    /// Services of this grant that may exist; the first is the one that is used.
    services: Vec<ServiceId>,
    uncertain: bool,
    /// Whether a request to create a service was sent whose result is unknown.
    unanswered: bool,
    /// The last list had no service of ours.
    is_missing: bool,
    /// Error in the manager's list of services.
    list_problem: Option<String>,
    /// Reason of the refusal, for the message.
    refusal: String,
    attempt: u32,
    /// Start time of the current half of the lifecycle: creation or revocation.
    started_at: Duration,
}

impl GrantLifecycle {
    /// Starts a grant; returns it with the first action.
    pub fn begin(request: GrantRequest, spec: FabricSpec, now: Duration) -> (Self, GrantAction) {
        let create = ManagerRequest::Create(request.clone());
        let life = Self {
            state: GrantState::Creating,
            request,
            spec,
            credential: FabricGrant::default(),
            services: Vec::new(),
            uncertain: true,
            unanswered: false,
            is_missing: false,
            list_problem: None,
            refusal: String::new(),
            attempt: 0,
            started_at: now,
        };
        (life, GrantAction::Send(create))
    }

    /// Starts the revocation of a grant that another process has left.
    pub fn resume(record: GrantRecord, now: Duration) -> (Self, GrantAction) {
        let request = GrantRequest {
            name: record.name,
            ..GrantRequest::default()
        };
        let (begun, _) = Self::begin(request, record.spec, now);
        let mut life = Self {
            state: GrantState::Ready,
            services: record.services,
            uncertain: record.uncertain,
            unanswered: record.uncertain,
            ..begun
        };
        let order = life.end(now);
        (life, order)
    }

    /// Returns the record that a successor needs. A [void](GrantLifecycle::is_void) grant needs no successor.
    pub fn record(&self) -> GrantRecord {
        GrantRecord {
            version: VERSION,
            name: self.request.name.clone(),
            spec: self.spec.clone(),
            services: self.services.clone(),
            uncertain: self.uncertain,
        }
    }

    /// Whether nothing of it can exist.
    pub fn is_void(&self) -> bool {
        self.services.is_empty() && !self.uncertain
    }

    /// Ends the grant, at the end of the launch or if it does not need the grant any more. Not called while an answer
    /// is awaited.
    pub fn end(&mut self, now: Duration) -> GrantAction {
        match self.state {
            GrantState::Creating
            | GrantState::Listing
            | GrantState::Authorizing
            | GrantState::Ready
            | GrantState::Refused => self.clean(now),
            // It is already on its way.
            _ => GrantAction::Wait(Duration::ZERO),
        }
    }

    /// Continues after the requested wait.
    pub fn waited(&mut self) -> GrantAction {
        GrantAction::Send(match self.state {
            GrantState::Creating => {
                // For the record, which is written before the request is sent.
                self.uncertain = true;
                ManagerRequest::Create(self.request.clone())
            }
            GrantState::Listing | GrantState::Searching => {
                ManagerRequest::List(self.request.name.clone())
            }
            GrantState::Authorizing | GrantState::Checking => ManagerRequest::Auth(self.first()),
            GrantState::Revoking => ManagerRequest::Revoke(self.first()),
            GrantState::Ready => return GrantAction::Provide(self.credential.clone()),
            GrantState::Refused => return GrantAction::Refuse(self.refusal.clone()),
            GrantState::Over => return self.finish(None),
        })
    }

    /// Handles the result of a request.
    pub fn answered(&mut self, answer: &ManagerReply, now: Duration) -> GrantAction {
        match self.state {
            GrantState::Creating => self.on_created(answer, now),
            GrantState::Listing => self.on_listed(answer, now),
            GrantState::Authorizing => self.on_authorized(answer, now),
            GrantState::Searching => self.on_searched(answer, now),
            GrantState::Revoking => self.on_revoked(answer, now),
            GrantState::Checking => self.on_checked(answer, now),
            GrantState::Ready | GrantState::Refused | GrantState::Over => self.waited(),
        }
    }

    fn on_created(&mut self, answer: &ManagerReply, now: Duration) -> GrantAction {
        match answer {
            ManagerReply::Status(200..=299, body) => match created(body, &mut self.credential) {
                Ok(id) => {
                    // With one answer for one request, there is one service.
                    self.uncertain = self.unanswered;
                    self.services.push(id);
                    self.enter_state(GrantState::Authorizing)
                }
                Err(invalid) => {
                    self.fail(format!("invalid reply about the new service: {invalid}"))
                }
            },
            ManagerReply::Status(code, body) if is_final(*code) => {
                self.uncertain = self.unanswered;
                self.fail(refusal(*code, body))
            }
            other => {
                self.unanswered |=
                    matches!(other, ManagerReply::Status(..) | ManagerReply::Lost(_));
                self.uncertain = self.unanswered;
                let next = match self.unanswered && self.list_problem.is_none() {
                    true => GrantState::Listing,
                    false => GrantState::Creating,
                };
                self.again(next, other, now)
            }
        }
    }

    fn on_listed(&mut self, answer: &ManagerReply, now: Duration) -> GrantAction {
        match self.read_list(answer) {
            Some(Ok(found)) => {
                let mut found = found.into_iter();
                let Some((id, credential)) = found.next() else {
                    self.state = GrantState::Creating;
                    return self.waited();
                };
                self.credential = credential;
                self.services = vec![id];
                self.services.extend(found.map(|(id, _)| id));
                self.enter_state(GrantState::Authorizing)
            }
            Some(Err(problem)) => self.unlisted(problem),
            None => self.again(GrantState::Listing, answer, now),
        }
    }

    /// Returns the services of this grant in an answer, or why the manager cannot list them; `None` if the request is
    /// to be repeated.
    fn read_list(
        &self,
        answer: &ManagerReply,
    ) -> Option<Result<Vec<(ServiceId, FabricGrant)>, String>> {
        match answer {
            ManagerReply::Status(200, body) => Some(
                listed(body, &self.request.name)
                    .map_err(|invalid| format!("invalid list of services: {invalid}")),
            ),
            ManagerReply::Status(400..=499 | 501, _) => {
                Some(Err("the fabric manager does not list services".to_owned()))
            }
            _ => None,
        }
    }

    /// Continues without a list of services, which the manager cannot provide.
    fn unlisted(&mut self, problem: String) -> GrantAction {
        self.list_problem = Some(problem);
        self.state = GrantState::Creating;
        self.waited()
    }

    fn on_authorized(&mut self, answer: &ManagerReply, now: Duration) -> GrantAction {
        match answer {
            ManagerReply::Status(200, body) => match authorized(body, &mut self.credential) {
                Ok(()) => {
                    self.state = GrantState::Ready;
                    self.waited()
                }
                Err(invalid) => self.fail(format!("invalid reply about the key: {invalid}")),
            },
            ManagerReply::Status(code, body) if is_final(*code) => self.fail(refusal(*code, body)),
            other => self.again(GrantState::Authorizing, other, now),
        }
    }

    fn on_searched(&mut self, answer: &ManagerReply, now: Duration) -> GrantAction {
        match self.read_list(answer) {
            Some(Ok(found)) => {
                let found = found.into_iter().map(|(id, _)| id);
                self.services = found.collect();
                let was_missing = std::mem::replace(&mut self.is_missing, self.services.is_empty());
                match (self.is_missing, was_missing) {
                    (true, true) => {
                        self.uncertain = false;
                        self.finish(None)
                    }
                    (true, false) => GrantAction::Wait(LATE_SERVICE),
                    (false, _) => self.enter_state(GrantState::Revoking),
                }
            }
            Some(Err(problem)) => self.unsearchable(problem),
            None => self.again(GrantState::Searching, answer, now),
        }
    }

    fn unsearchable(&mut self, problem: String) -> GrantAction {
        match self.services.is_empty() {
            false => {
                self.list_problem = Some(problem);
                self.enter_state(GrantState::Revoking)
            }
            true => self.finish(Some(format!("a reply was lost: {problem}"))),
        }
    }

    fn on_revoked(&mut self, answer: &ManagerReply, now: Duration) -> GrantAction {
        match answer {
            ManagerReply::Status(200..=299 | 404 | 410, _) => {
                self.state = GrantState::Checking;
                self.waited()
            }
            other => self.again(GrantState::Revoking, other, now),
        }
    }

    fn on_checked(&mut self, answer: &ManagerReply, now: Duration) -> GrantAction {
        match answer {
            ManagerReply::Status(404 | 410, _) => {
                self.services.remove(0);
                self.attempt = 0;
                self.revoke_next()
            }
            ManagerReply::Status(200, _) => {
                let still = ManagerReply::Lost("the service still exists".to_owned());
                self.again(GrantState::Revoking, &still, now)
            }
            other => self.again(GrantState::Checking, other, now),
        }
    }

    fn enter_state(&mut self, state: GrantState) -> GrantAction {
        self.state = state;
        self.attempt = 0;
        self.waited()
    }

    /// Tries again later, unless it has become too late.
    fn again(&mut self, state: GrantState, answer: &ManagerReply, now: Duration) -> GrantAction {
        let beginning = matches!(
            state,
            GrantState::Creating | GrantState::Listing | GrantState::Authorizing
        );
        let limit = if beginning {
            CREATE_LIMIT
        } else {
            REVOKE_LIMIT
        };
        let text = match answer {
            ManagerReply::Status(code, body) => refusal(*code, body),
            ManagerReply::Lost(reason) | ManagerReply::Unsent(reason) => reason.clone(),
            ManagerReply::Impossible(reason) if beginning => return self.fail(reason.clone()),
            // What makes it so may be mended before it is too late.
            ManagerReply::Impossible(reason) => reason.clone(),
        };
        if now.saturating_sub(self.started_at) >= limit {
            let text = format!("timed out after {} s: {text}", limit.as_secs());
            return match beginning {
                true => self.fail(text),
                false => self.finish(Some(text)),
            };
        }
        self.state = state;
        let wait = FIRST_WAIT * 2_u32.saturating_pow(self.attempt.min(8));
        self.attempt += 1;
        GrantAction::Wait(wait.min(LAST_WAIT))
    }

    fn fail(&mut self, reason: String) -> GrantAction {
        self.refusal = reason;
        self.state = GrantState::Refused;
        self.waited()
    }

    /// Begins to revoke credentials that may exist.
    fn clean(&mut self, now: Duration) -> GrantAction {
        self.started_at = now;
        self.credential = FabricGrant::default();
        self.revoke_next()
    }

    /// Goes on with the services that may still be there.
    fn revoke_next(&mut self) -> GrantAction {
        match (self.services.is_empty(), self.uncertain) {
            (false, _) => self.enter_state(GrantState::Revoking),
            (true, false) => self.finish(None),
            (true, true) => match self.list_problem.take() {
                Some(problem) => self.unsearchable(problem),
                None => self.enter_state(GrantState::Searching),
            },
        }
    }

    fn finish(&mut self, leak: Option<String>) -> GrantAction {
        self.state = GrantState::Over;
        GrantAction::Over { leak }
    }

    fn first(&self) -> ServiceId {
        let first = self.services.first().cloned();
        first.expect("a state about a service has one")
    }
}

/// Whether it makes no sense to repeat a request that was answered so.
fn is_final(code: u16) -> bool {
    matches!(code, 300..=499) && !matches!(code, 408 | 425 | 429)
}

/// Returns the text of a manager's refusal. A body that may have a key is never quoted.
fn refusal(code: u16, body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct ManagerError {
        detail: Option<String>,
        error: Option<String>,
        message: Option<String>,
    }
    let error = (code >= 300).then(|| serde_json::from_slice::<ManagerError>(body).ok());
    let text = error
        .flatten()
        .and_then(|error| error.detail.or(error.error).or(error.message));
    match text {
        Some(text) => {
            let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
            format!("status {code}: {text}")
        }
        None => format!("status {code}"),
    }
}
