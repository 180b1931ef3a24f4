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

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use super::grant::{FabricGrant, HostGrant, LIST_MAX, key, traffic};

/// Path of the services at the manager.
const SERVICES: &str = "/fabric/cxi/services";

/// Most bytes of an answer that are read.
pub const ANSWER_MAX: usize = 1024 * 1024;

/// Request of a launch for a fabric grant.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GrantRequest {
    /// Name of the launch, different from that of any other.
    pub name: String,
    /// Id of the batch system's allocation.
    pub allocation: Option<String>,
    pub nodes: Vec<String>,
    /// Virtual network of the allocation, if known.
    pub vni: Option<u16>,
}

/// Request to the fabric manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ManagerRequest {
    Create(GrantRequest),
    Auth(ServiceId),
    Revoke(ServiceId),
    /// List the services with this name.
    List(String),
}

/// Request in the terms of HTTP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpRequest {
    pub method: &'static str,
    /// Below the address of the service.
    pub path: String,
    pub body: Option<String>,
    pub idempotency: Option<String>,
}

/// Result of a request to the manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ManagerReply {
    /// HTTP status and body.
    Status(u16, Zeroizing<Vec<u8>>),
    /// No answer arrived, for this reason. The request may have been executed.
    Lost(String),
    /// The request was not sent, because no connection to the manager's address was possible.
    Unsent(String),
    /// The request was not sent, because of an error that a repetition does not cure.
    Impossible(String),
}

/// The manager's name of a service: safe in a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ServiceId(String);

/// A text that is no name of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid service id")]
pub struct InvalidServiceId;

impl TryFrom<String> for ServiceId {
    type Error = InvalidServiceId;

    fn try_from(text: String) -> Result<Self, InvalidServiceId> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        let usable = (1..=128).contains(&text.len()) && text.bytes().all(plain);
        match usable && !text.bytes().all(|byte| byte == b'.') {
            true => Ok(Self(text)),
            false => Err(InvalidServiceId),
        }
    }
}

impl ServiceId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ManagerRequest {
    pub fn http(&self) -> HttpRequest {
        let plain = |method, path| HttpRequest {
            method,
            path,
            body: None,
            idempotency: None,
        };
        match self {
            Self::Create(request) => HttpRequest {
                method: "POST",
                path: SERVICES.to_owned(),
                body: Some(request.json()),
                idempotency: Some(request.name.clone()),
            },
            Self::Auth(id) => plain("GET", format!("{SERVICES}/{}/auth", id.0)),
            Self::Revoke(id) => plain("DELETE", format!("{SERVICES}/{}", id.0)),
            // Names of launches are letters, digits and `-_.`.
            Self::List(name) => plain("GET", format!("{SERVICES}?name={name}")),
        }
    }

    /// Returns the purpose of the request, for messages.
    pub fn title(&self) -> &'static str {
        match self {
            Self::Create(_) => "create a service",
            Self::Auth(_) => "get the key of the service",
            Self::Revoke(_) => "revoke the service",
            Self::List(_) => "list services",
        }
    }
}

impl GrantRequest {
    /// Returns the body of the request, as JSON.
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

/// A field of an answer that cannot be used. Its value is not shown: it may be a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field} must be {expected}")]
pub struct InvalidField {
    field: &'static str,
    expected: &'static str,
}

/// Part of an answer about one service.
struct ServiceReply(Map<String, Value>);

impl ServiceReply {
    fn parse(body: &[u8]) -> Result<Self, InvalidField> {
        serde_json::from_slice(body)
            .map(Self)
            .map_err(|_| invalid("the reply", "a JSON object"))
    }

    /// Takes a field out; `null` is none.
    fn take<T: DeserializeOwned>(
        &mut self,
        field: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>, InvalidField> {
        let value = self.0.remove(field).unwrap_or_default();
        serde_json::from_value(value).map_err(|_| invalid(field, expected))
    }

    fn id(&mut self) -> Result<ServiceId, InvalidField> {
        let expected = "a string of 1 to 128 letters, digits and -_.: or an unsigned integer";
        let text = match self.0.remove("id") {
            Some(Value::String(text)) => Some(text),
            Some(Value::Number(number)) => number.as_u64().map(|number| number.to_string()),
            _ => None,
        };
        let id = text.and_then(|text| text.try_into().ok());
        id.ok_or_else(|| invalid("id", expected))
    }

    /// Adds the values of the reply to a grant.
    fn add_to(mut self, credential: &mut FabricGrant) -> Result<(), InvalidField> {
        // The key is read first, so that it is overwritten if another field is refused.
        let expected = "a string of hexadecimal digits";
        if let Some(text) = self
            .take::<String>("auth_key", expected)?
            .map(Zeroizing::new)
        {
            credential.key = key(&text).map_err(|_| invalid("auth_key", expected))?;
        }
        let vni = self.take("vni", "an integer from 0 to 65535")?;
        if let Some(vnis) = self.list("vnis", "a list of integers from 0 to 65535", vni)? {
            credential.vnis = vnis;
        }
        if let Some(services) = self.services()? {
            credential.services = services;
        }
        let expected = "a string of traffic classes";
        if let Some(classes) = self.take::<String>("traffic_classes", expected)? {
            let classes = traffic(&classes);
            credential.traffic = Some(classes.ok_or_else(|| invalid("traffic_classes", expected))?);
        }
        if let Some(devices) = self.devices()? {
            credential.devices = devices;
        }
        let expected = "an object with an object for each host";
        let hosts: Option<BTreeMap<String, Map<String, Value>>> = self.take("hosts", expected)?;
        for (host, reply) in hosts.into_iter().flatten() {
            let mut reply = Self(reply);
            let part = HostGrant {
                devices: reply.devices()?.unwrap_or_default(),
                services: reply.services()?.unwrap_or_default(),
            };
            credential.hosts.insert(host, part);
        }
        Ok(())
    }

    fn services(&mut self) -> Result<Option<Vec<u32>>, InvalidField> {
        let one = self.take("svc_id", "an integer from 0 to 4294967295")?;
        self.list("svc_ids", "a list of integers from 0 to 4294967295", one)
    }

    fn devices(&mut self) -> Result<Option<Vec<String>>, InvalidField> {
        self.list("devices", "a list of strings", None)
    }

    /// Takes a list, or makes one of the `single` value if that is present instead.
    fn list<T: DeserializeOwned>(
        &mut self,
        field: &'static str,
        expected: &'static str,
        single: Option<T>,
    ) -> Result<Option<Vec<T>>, InvalidField> {
        let list: Option<Vec<T>> = self.take(field, expected)?;
        match list.or_else(|| single.map(|one| vec![one])) {
            Some(list) if list.len() > LIST_MAX => Err(invalid(field, "a shorter list")),
            list => Ok(list),
        }
    }
}

fn invalid(field: &'static str, expected: &'static str) -> InvalidField {
    InvalidField { field, expected }
}

/// Reads the service from the answer to a request to create one, and adds its values to the grant.
///
/// # Errors
/// [`InvalidField`]
pub fn created(body: &[u8], credential: &mut FabricGrant) -> Result<ServiceId, InvalidField> {
    let mut reply = ServiceReply::parse(body)?;
    let id = reply.id()?;
    reply.add_to(credential)?;
    Ok(id)
}

/// Adds the answer about a key to a credential, which must be complete then.
///
/// # Errors
/// [`InvalidField`]
pub fn authorized(body: &[u8], credential: &mut FabricGrant) -> Result<(), InvalidField> {
    ServiceReply::parse(body)?.add_to(credential)?;
    match credential.vnis.is_empty() {
        true => Err(invalid("vni or vnis", "in this reply or an earlier one")),
        false => Ok(()),
    }
}

/// Reads the services with this name from the answer to a list request.
///
/// # Errors
/// [`InvalidField`]
pub fn listed(body: &[u8], name: &str) -> Result<Vec<(ServiceId, FabricGrant)>, InvalidField> {
    let no_list = || invalid("the list of services", "a JSON list of objects");
    let list: Value = serde_json::from_slice(body).map_err(|_| no_list())?;
    let list = match list {
        Value::Object(mut inside) => inside.remove("services").ok_or_else(no_list)?,
        list => list,
    };
    let services: Vec<Map<String, Value>> = serde_json::from_value(list).map_err(|_| no_list())?;
    let ours = services.into_iter();
    let ours = ours.filter(|service| service.get("name").and_then(Value::as_str) == Some(name));
    ours.map(|service| {
        let mut service = ServiceReply(service);
        let mut credential = FabricGrant::default();
        let id = service.id()?;
        service.add_to(&mut credential)?;
        Ok((id, credential))
    })
    .collect()
}
