//! Requests to a fabric manager, and its answers.
//!
//! ```text
//!  POST   /fabric/cxi/services             creates a service: {"name", "allocation_id", "nodes", "vni"} → {"id", …}
//!  GET    /fabric/cxi/services/{id}/auth   its key: {"auth_key", "svc_id", "vni"}; 404 once it is gone
//!  DELETE /fabric/cxi/services/{id}        revokes it
//!  GET    /fabric/cxi/services?name={name} those with a name, of a manager that can list them
//! ```
//! The key is read from the answer about it only, numbers from both answers. An answer may have `hosts`, by name:
//! `{"devices": ["cxi0"], "svc_ids": [5]}`.
//!
//! Rule: every request can be repeated. A request to create carries the launch's name, as `name` and as
//! `Idempotency-Key`: an answer may be lost after the service has been created.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::credential::{Credential, HostPart, LIST_MAX, key, traffic};

/// Where the services are.
const SERVICES: &str = "/fabric/cxi/services";

/// Most bytes of an answer that are read.
pub const ANSWER_MAX: usize = 1024 * 1024;

/// What a launch asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// Of the launch, different from that of any other.
    pub name: String,
    /// Of the batch system's allocation.
    pub allocation: Option<String>,
    pub nodes: Vec<String>,
    /// The virtual network that the allocation has, if it is known.
    pub vni: Option<u16>,
}

/// What is asked of the manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    Create(Wanted),
    Auth(ServiceId),
    Revoke(ServiceId),
    /// Those with a name.
    List(String),
}

/// As HTTP has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpRequest {
    pub method: &'static str,
    /// Below the address of the service.
    pub path: String,
    pub body: Option<String>,
    pub idempotency: Option<String>,
}

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// HTTP status and body.
    Status(u16, Zeroizing<Vec<u8>>),
    /// None came, and why. The request may be carried out.
    Lost(String),
    /// The request was not sent, and why: nobody answers at the manager's address.
    Unsent(String),
    /// The request was not sent, and why: it makes no sense to repeat it until somebody mends that.
    Impossible(String),
}

/// The manager's name of a service: safe in a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceId(String);

/// A text that is no name of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not the id of a service")]
pub struct NoServiceId;

impl TryFrom<String> for ServiceId {
    type Error = NoServiceId;

    fn try_from(text: String) -> Result<Self, NoServiceId> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        let usable = (1..=128).contains(&text.len()) && text.bytes().all(plain);
        match usable && !text.bytes().all(|byte| byte == b'.') {
            true => Ok(Self(text)),
            false => Err(NoServiceId),
        }
    }
}

impl From<ServiceId> for String {
    fn from(id: ServiceId) -> Self {
        id.0
    }
}

impl ServiceId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Request {
    pub fn http(&self) -> HttpRequest {
        let plain = |method, path| HttpRequest {
            method,
            path,
            body: None,
            idempotency: None,
        };
        match self {
            Self::Create(wanted) => HttpRequest {
                method: "POST",
                path: SERVICES.to_owned(),
                body: Some(wanted.json()),
                idempotency: Some(wanted.name.clone()),
            },
            Self::Auth(id) => plain("GET", format!("{SERVICES}/{}/auth", id.0)),
            Self::Revoke(id) => plain("DELETE", format!("{SERVICES}/{}", id.0)),
            // Names of launches are letters, digits and `-_.`.
            Self::List(name) => plain("GET", format!("{SERVICES}?name={name}")),
        }
    }

    /// What it is about, in messages.
    pub fn title(&self) -> &'static str {
        match self {
            Self::Create(_) => "create a service",
            Self::Auth(_) => "get its key",
            Self::Revoke(_) => "revoke it",
            Self::List(_) => "list services",
        }
    }
}

impl Wanted {
    /// As the body of a request.
    pub fn json(&self) -> String {
        let mut body = serde_json::json!({ "name": self.name, "nodes": self.nodes });
        if let Some(allocation) = &self.allocation {
            body["allocation_id"] = allocation.as_str().into();
        }
        if let Some(vni) = self.vni {
            body["vni"] = vni.into();
        }
        body.to_string()
    }
}

/// Part of an answer about one service.
#[derive(Deserialize)]
struct Told {
    id: Option<TextOrNumber>,
    name: Option<String>,
    vni: Option<u16>,
    vnis: Option<Vec<u16>>,
    svc_id: Option<u32>,
    svc_ids: Option<Vec<u32>>,
    traffic_classes: Option<String>,
    devices: Option<Vec<String>>,
    auth_key: Option<Zeroizing<String>>,
    hosts: Option<BTreeMap<String, ToldHost>>,
}

#[derive(Deserialize)]
struct ToldHost {
    devices: Option<Vec<String>>,
    svc_id: Option<u32>,
    svc_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrNumber {
    Text(String),
    Number(u64),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ToldList {
    Plain(Vec<Told>),
    Inside { services: Vec<Told> },
}

impl Told {
    fn id(&self) -> Option<ServiceId> {
        let text = match self.id.as_ref()? {
            TextOrNumber::Text(text) => text.clone(),
            TextOrNumber::Number(number) => number.to_string(),
        };
        text.try_into().ok()
    }

    /// Adds what it says to a credential.
    fn add_to(self, credential: &mut Credential) -> Option<()> {
        if let Some(vnis) = self.vnis.or_else(|| self.vni.map(|vni| vec![vni])) {
            credential.vnis = limited(vnis)?;
        }
        if let Some(services) = self.svc_ids.or_else(|| self.svc_id.map(|id| vec![id])) {
            credential.services = limited(services)?;
        }
        if let Some(classes) = self.traffic_classes {
            credential.traffic = Some(traffic(&classes)?);
        }
        if let Some(devices) = self.devices {
            credential.devices = limited(devices)?;
        }
        if let Some(text) = self.auth_key {
            credential.key = key(&text).ok()?;
        }
        for (host, told) in self.hosts.into_iter().flatten() {
            let part = HostPart {
                devices: limited(told.devices.unwrap_or_default())?,
                services: limited(
                    told.svc_ids
                        .unwrap_or_else(|| told.svc_id.into_iter().collect()),
                )?,
            };
            credential.hosts.insert(host, part);
        }
        Some(())
    }
}

fn limited<T>(list: Vec<T>) -> Option<Vec<T>> {
    (list.len() <= LIST_MAX).then_some(list)
}

/// The service of an answer to a request to create one, which adds to the credential.
pub fn created(body: &[u8], credential: &mut Credential) -> Option<ServiceId> {
    let told: Told = serde_json::from_slice(body).ok()?;
    let id = told.id()?;
    told.add_to(credential)?;
    Some(id)
}

/// Adds the answer about a key to a credential, which must be complete then.
pub fn authorized(body: &[u8], credential: &mut Credential) -> Option<()> {
    let told: Told = serde_json::from_slice(body).ok()?;
    told.add_to(credential)?;
    (!credential.vnis.is_empty()).then_some(())
}

/// The services with this name in an answer to a list.
pub fn listed(body: &[u8], name: &str) -> Option<Vec<(ServiceId, Credential)>> {
    let list: ToldList = serde_json::from_slice(body).ok()?;
    let (ToldList::Plain(told) | ToldList::Inside { services: told }) = list;
    let ours = told.into_iter();
    let ours = ours.filter(|told| told.name.as_deref() == Some(name));
    ours.map(|told| {
        let mut credential = Credential::default();
        let id = told.id()?;
        told.add_to(&mut credential)?;
        Some((id, credential))
    })
    .collect()
}
