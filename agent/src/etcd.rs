//! A client of etcd's API, version 3: calls that go to another member when one does not answer.
//!
//! Rule: a call may be sent to several members, and one that failed may have been executed, or be executed later. All calls
//! here may therefore be repeated: reads, and writes that are conditional or end in the same state.

mod etcd_settings;

use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::metadata::{AsciiMetadataValue, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

use self::etcd_settings::Login;
pub use self::etcd_settings::{EtcdSettings, EtcdSettingsError};
use crate::proto::etcd::auth_client::AuthClient;
use crate::proto::etcd::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::etcd::kv_client::KvClient;
use crate::proto::etcd::lease_client::LeaseClient;
use crate::proto::etcd::request_op::Request as Operation;
use crate::proto::etcd::watch_client::WatchClient;
use crate::proto::etcd::watch_request::RequestUnion;
use crate::proto::etcd::{
    AuthenticateRequest, Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest,
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};

/// Longest time for the answer of a member. Without a leader a member answers at once, after it has noticed.
const ANSWER: Duration = Duration::from_secs(3);

/// Error: a call was not answered.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No member can be reached, or none answers.
    #[error("cannot reach etcd ({0})")]
    Unreachable(String),
    /// Members answer that they have no leader: most members have crashed, or cannot reach each other.
    #[error("etcd has no quorum ({0}); it needs more than half of its members")]
    NoQuorum(String),
    /// etcd has refused the call.
    #[error("etcd refused the request ({endpoint}: {reason})")]
    Refused {
        endpoint: String,
        code: Code,
        reason: String,
    },
}

/// Result of a conditional write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteOutcome {
    Done,
    /// The key was changed since the read; nothing was written.
    Changed,
    /// The lease does not exist; nothing was written.
    NoLease,
}

/// Keys with their values at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct EtcdSnapshot {
    pub revision: i64,
    pub keys: Vec<KeyValue>,
}

/// Error of a call to one member.
#[derive(Debug)]
enum MemberError {
    Unreachable(String),
    NoLeader(String),
    /// The token is unknown to it, or has expired.
    Token,
    Refused(Status),
}

#[derive(Debug)]
struct Member {
    endpoint: String,
    channel: Channel,
}

/// A cluster of etcd.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    /// Index of the member that answered last; it is tried first.
    preferred: AtomicUsize,
    login: Option<Login>,
    /// Token of the login; none if etcd needs no user.
    token: Mutex<AuthToken>,
}

#[derive(Clone, Debug)]
enum AuthToken {
    Unknown,
    None,
    Known(AsciiMetadataValue),
}

impl Etcd {
    /// Makes a client that connects at the first request. Needs a runtime.
    pub fn new(settings: &EtcdSettings) -> Self {
        let members = settings.endpoints.iter().map(|endpoint| Member {
            endpoint: endpoint
                .uri()
                .authority()
                .map_or_else(String::new, ToString::to_string),
            channel: endpoint.connect_lazy(),
        });
        Self {
            members: members.collect(),
            preferred: AtomicUsize::new(0),
            login: settings.login.clone(),
            token: Mutex::new(AuthToken::Unknown),
        }
    }

    /// Returns the keys with a prefix, as most members know them.
    ///
    /// # Errors
    /// [`EtcdError`]
    pub async fn list(&self, prefix: &str) -> Result<EtcdSnapshot, EtcdError> {
        let found = self.range(prefix.as_bytes().to_vec(), prefix_end(prefix));
        found.await
    }

    /// Returns one key, if it exists.
    ///
    /// # Errors
    /// [`EtcdError`]
    pub async fn get(&self, key: &str) -> Result<Option<KeyValue>, EtcdError> {
        Ok(self.get_snapshot(key).await?.keys.into_iter().next())
    }

    /// Returns one key, if it exists, and the revision of the answer.
    ///
    /// # Errors
    /// [`EtcdError`]
    pub async fn get_snapshot(&self, key: &str) -> Result<EtcdSnapshot, EtcdError> {
        self.range(key.as_bytes().to_vec(), Vec::new()).await
    }

    async fn range(&self, key: Vec<u8>, range_end: Vec<u8>) -> Result<EtcdSnapshot, EtcdError> {
        let message = RangeRequest { key, range_end };
        let range = |channel, request| async move { KvClient::new(channel).range(request).await };
        let answer = self.call(message, range).await?;
        Ok(EtcdSnapshot {
            revision: answer.header.map_or(0, |header| header.revision),
            keys: answer.kvs,
        })
    }

    /// Returns when a key with a prefix changes after this revision, or that cannot be watched any more.
    ///
    /// # Errors
    /// [`EtcdError`]
    pub async fn changed(&self, prefix: &str, revision: i64) -> Result<(), EtcdError> {
        let message = WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
                key: prefix.as_bytes().to_vec(),
                range_end: prefix_end(prefix),
                start_revision: revision + 1,
            })),
        };
        let watch = |channel, request: Request<_>| async move {
            // What ends there ends the watch.
            let request = request.map(|create| stream::iter([create]).chain(stream::pending()));
            WatchClient::new(channel).watch(request).await
        };
        let mut events: Streaming<WatchResponse> = self.call(message, watch).await?;
        loop {
            match events.message().await {
                Ok(Some(event)) if event.created && !event.canceled => {}
                Ok(_) | Err(_) => return Ok(()),
            }
        }
    }

    /// Makes a lease, whose number is returned. One of a call that failed ends by itself.
    ///
    /// # Errors
    /// [`EtcdError`]
    pub async fn grant(&self, ttl: Duration) -> Result<i64, EtcdError> {
        let message = LeaseGrantRequest {
            ttl: i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX),
            id: 0,
        };
        let grant =
            |channel, request| async move { LeaseClient::new(channel).lease_grant(request).await };
        Ok(self.call(message, grant).await?.id)
    }

    /// Renews a lease; whether it is still there.
    ///
    /// # Errors
    /// [`EtcdError`]
    pub async fn renew_lease(&self, lease: i64) -> Result<bool, EtcdError> {
        let message = LeaseKeepAliveRequest { id: lease };
        let renew = |channel, request: Request<_>| async move {
            let request = request.map(|renewal| stream::iter([renewal]));
            let mut client = LeaseClient::new(channel);
            let mut answers = client.lease_keep_alive(request).await?.into_inner();
            let answer: Option<LeaseKeepAliveResponse> = answers.message().await?;
            let none = || Status::unavailable("the stream ended without a reply");
            answer.map(Response::new).ok_or_else(none)
        };
        Ok(self.call(message, renew).await?.ttl > 0)
    }

    /// Ends a lease, and with it its keys.
    ///
    /// # Errors
    /// [`EtcdError`]
    pub async fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        let message = LeaseRevokeRequest { id: lease };
        let revoke =
            |channel, request| async move { LeaseClient::new(channel).lease_revoke(request).await };
        match self.call(message, revoke).await {
            Err(EtcdError::Refused {
                code: Code::NotFound,
                ..
            }) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Writes a key, under a lease unless that is 0, if its last change was at this revision; 0: if it is not there.
    ///
    /// # Errors
    /// [`EtcdError`]; it is undecided then whether the key is written, now or later.
    pub async fn put_if(
        &self,
        key: &str,
        revision: i64,
        value: &[u8],
        lease: i64,
    ) -> Result<WriteOutcome, EtcdError> {
        let key = key.as_bytes().to_vec();
        let put = PutRequest {
            key: key.clone(),
            value: value.to_vec(),
            lease,
        };
        self.change_if(key, revision, Operation::RequestPut(put))
            .await
    }

    /// Removes a key if its last change was at this revision.
    ///
    /// # Errors
    /// [`EtcdError`]; it is undecided then whether the key is removed, now or later.
    pub async fn delete_if(&self, key: &str, revision: i64) -> Result<WriteOutcome, EtcdError> {
        let key = key.as_bytes().to_vec();
        let delete = DeleteRangeRequest { key: key.clone() };
        self.change_if(key, revision, Operation::RequestDeleteRange(delete))
            .await
    }

    async fn change_if(
        &self,
        key: Vec<u8>,
        revision: i64,
        change: Operation,
    ) -> Result<WriteOutcome, EtcdError> {
        let message = TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Equal.into(),
                target: CompareTarget::Mod.into(),
                key,
                target_union: Some(TargetUnion::ModRevision(revision)),
            }],
            success: vec![RequestOp {
                request: Some(change),
            }],
            failure: Vec::new(),
        };
        let change = |channel, request| async move { KvClient::new(channel).txn(request).await };
        match self.call(message, change).await {
            Ok(answer) if answer.succeeded => Ok(WriteOutcome::Done),
            Ok(_) => Ok(WriteOutcome::Changed),
            Err(EtcdError::Refused {
                code: Code::NotFound,
                ..
            }) => Ok(WriteOutcome::NoLease),
            Err(error) => Err(error),
        }
    }

    /// Sends a message to the members one after the other, to that which answered last first.
    async fn call<M: Clone, T, F>(
        &self,
        message: M,
        send: impl Fn(Channel, Request<M>) -> F,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut troubles = Vec::new();
        let mut leaderless = false;
        for turn in 0..self.members.len() {
            let index = (first + turn) % self.members.len();
            let Member { endpoint, .. } = &self.members[index];
            let reason = match timeout(ANSWER, self.call_member(index, &message, &send)).await {
                Ok(Ok(answer)) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Err(MemberError::Refused(status))) => {
                    return Err(EtcdError::Refused {
                        endpoint: endpoint.clone(),
                        code: status.code(),
                        reason: own_words(&status),
                    });
                }
                Ok(Err(MemberError::NoLeader(reason))) => {
                    leaderless = true;
                    reason
                }
                Ok(Err(MemberError::Unreachable(reason))) => reason,
                Ok(Err(MemberError::Token)) => "it rejects its own token".to_owned(),
                Err(_) => format!("no reply within {} s", ANSWER.as_secs()),
            };
            troubles.push(format!("{endpoint}: {reason}"));
        }
        let troubles = troubles.join("; ");
        Err(match leaderless {
            true => EtcdError::NoQuorum(troubles),
            false => EtcdError::Unreachable(troubles),
        })
    }

    /// Sends a message to one member; again with another token if the first one has expired.
    async fn call_member<M: Clone, T, F>(
        &self,
        index: usize,
        message: &M,
        send: impl Fn(Channel, Request<M>) -> F,
    ) -> Result<T, MemberError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let channel = &self.members[index].channel;
        let mut renewed = false;
        loop {
            let token = self.token(channel).await?;
            let answer = send(channel.clone(), request(message.clone(), token)).await;
            match answer.map_err(trouble) {
                Err(MemberError::Token) if !renewed => {
                    renewed = true;
                    *self.token.lock().await = AuthToken::Unknown;
                }
                other => return other.map(Response::into_inner),
            }
        }
    }

    async fn token(&self, channel: &Channel) -> Result<AuthToken, MemberError> {
        let Some(login) = &self.login else {
            return Ok(AuthToken::None);
        };
        let mut token = self.token.lock().await;
        if let AuthToken::Unknown = &*token {
            let message = AuthenticateRequest {
                name: login.name.clone(),
                password: login.password.expose().clone(),
            };
            let request = request(message, AuthToken::None);
            *token = match AuthClient::new(channel.clone()).authenticate(request).await {
                Ok(answer) => {
                    let text = answer.into_inner().token;
                    let unusable = |_| MemberError::Unreachable("invalid token from it".to_owned());
                    AuthToken::Known(MetadataValue::try_from(text).map_err(unusable)?)
                }
                // Without users, all may do everything: as etcd's own client has it.
                Err(status) if status.message().contains("authentication is not enabled") => {
                    AuthToken::None
                }
                Err(status) => return Err(trouble(status)),
            };
        }
        Ok(token.clone())
    }
}

/// Creates a request to which a member without a leader answers at once with an error. Source: rpctypes of etcd,
/// `MetadataRequireLeaderKey`.
fn request<T>(message: T, token: AuthToken) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert("hasleader", MetadataValue::from_static("true"));
    if let AuthToken::Known(token) = token {
        metadata.insert("token", token);
    }
    request
}

/// Returns the first key after all with a prefix.
fn prefix_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // Text has no byte 0xff.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// Converts a status of etcd. Source: api/v3rpc/rpctypes/error.go.
fn trouble(status: Status) -> MemberError {
    let text = own_words(&status);
    match status.code() {
        Code::Unavailable if status.message().starts_with("etcdserver: ") => match &*text {
            "server stopped" => MemberError::Unreachable(text),
            _ => MemberError::NoLeader(text),
        },
        Code::Unauthenticated => MemberError::Token,
        Code::InvalidArgument if text.contains("revision of auth store is old") => {
            MemberError::Token
        }
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded => {
            MemberError::Unreachable(text)
        }
        _ => MemberError::Refused(status),
    }
}

/// Returns the first cause, without the prefixes of libraries and etcd.
fn own_words(status: &Status) -> String {
    let mut cause = status.source();
    while let Some(deeper) = cause.and_then(|cause| cause.source()) {
        cause = Some(deeper);
    }
    let text = cause.map_or_else(|| status.message().to_owned(), ToString::to_string);
    let front = "etcdserver: ";
    text.strip_prefix(front).unwrap_or(&text).to_owned()
}
