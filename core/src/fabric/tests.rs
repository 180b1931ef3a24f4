//! A manager in memory whose answers are lost, late and wrong.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;
use zeroize::Zeroizing;

use super::grant::{FabricDeviceError, FabricGrant, FabricGrantError, HostGrant, KEY};
use super::grant_lifecycle::{CREATE_LIMIT, GrantAction, GrantLifecycle, REVOKE_LIMIT};
use super::grant_record::{GrantRecord, VERSION};
use super::manager_rest::{
    GrantRequest, ManagerReply, ManagerRequest, ServiceId, authorized, created, listed,
};
use crate::job::spec::{FabricSource, FabricSpec};
use crate::secret::SecretBytes;

const HEX: &str = "00c0ffee";

fn spec() -> FabricSpec {
    FabricSpec {
        source: FabricSource::Service("http://fm".into()),
        token: None,
        authorities: None,
    }
}

fn grant_request() -> GrantRequest {
    GrantRequest {
        name: "wireup-7".into(),
        allocation: Some("41".into()),
        nodes: vec!["a".into(), "b".into()],
        vni: None,
    }
}

fn status(code: u16, body: &str) -> ManagerReply {
    ManagerReply::Status(code, Zeroizing::new(body.as_bytes().to_vec()))
}

/// What happens to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Served,
    /// It does not arrive.
    Dropped,
    /// Nobody answers at the address.
    Unsent,
    /// It is served, and its answer does not arrive.
    AnswerLost,
    /// It is served after the next one.
    Late,
    /// It is not served, with an error of the manager.
    Error,
}

/// A fabric manager.
#[derive(Default)]
struct Manager {
    services: BTreeMap<u32, String>,
    created_count: u32,
    lists: bool,
    idempotent: bool,
    late: Vec<ManagerRequest>,
}

impl Manager {
    fn serve(&mut self, request: &ManagerRequest) -> ManagerReply {
        match request {
            ManagerRequest::Create(grant_request) => {
                let known = self
                    .services
                    .iter()
                    .find(|(_, name)| **name == grant_request.name);
                let id = match known.filter(|_| self.idempotent) {
                    Some((id, _)) => *id,
                    None => {
                        self.created_count += 1;
                        self.services
                            .insert(self.created_count, grant_request.name.clone());
                        self.created_count
                    }
                };
                status(201, &format!(r#"{{"id": {id}, "vni": 1034, "svc_id": 5}}"#))
            }
            ManagerRequest::Auth(id) if self.has(id) => {
                status(200, &format!(r#"{{"auth_key": "{HEX}", "vni": 1034}}"#))
            }
            ManagerRequest::Revoke(id) if self.has(id) => {
                self.services.remove(&id.as_str().parse().unwrap());
                status(204, "")
            }
            ManagerRequest::Auth(_) | ManagerRequest::Revoke(_) => status(404, ""),
            ManagerRequest::List(name) if self.lists => {
                let named = self.services.iter().filter(|(_, known)| *known == name);
                let entries =
                    named.map(|(id, name)| format!(r#"{{"id": {id}, "name": "{name}"}}"#));
                let entries: Vec<String> = entries.collect();
                status(200, &format!("[{}]", entries.join(",")))
            }
            ManagerRequest::List(_) => status(405, ""),
        }
    }

    fn has(&self, id: &ServiceId) -> bool {
        let id = id.as_str().parse().unwrap();
        self.services.contains_key(&id)
    }

    fn meet(&mut self, request: &ManagerRequest, fate: Fate) -> ManagerReply {
        let answer = match fate {
            Fate::Served => self.serve(request),
            Fate::AnswerLost => {
                self.serve(request);
                ManagerReply::Lost("timed out".into())
            }
            Fate::Dropped => ManagerReply::Lost("timed out".into()),
            Fate::Unsent => ManagerReply::Unsent("connection refused".into()),
            Fate::Late => {
                self.late.push(request.clone());
                return ManagerReply::Lost("timed out".into());
            }
            Fate::Error => status(500, r#"{"detail": "disk full"}"#),
        };
        for late in std::mem::take(&mut self.late) {
            self.serve(&late);
        }
        answer
    }
}

/// Runs a life with these fates, served when there are no more; returns whether there was a credential, and what may be left.
fn live(
    manager: &mut Manager,
    fates: &[Fate],
) -> (Option<FabricGrant>, Option<String>, GrantLifecycle) {
    let mut now = Duration::ZERO;
    let (mut life, mut order) = GrantLifecycle::begin(grant_request(), spec(), now);
    let mut fates = fates.iter();
    let mut provided = None;
    for _ in 0..2000 {
        order = match order {
            GrantAction::Send(request) => {
                if matches!(request, ManagerRequest::Create(_)) {
                    assert!(!life.is_void(), "a successor has to know");
                }
                let fate = fates.next().copied().unwrap_or(Fate::Served);
                let answer = manager.meet(&request, fate);
                now += Duration::from_secs(1);
                life.answered(&answer, now)
            }
            GrantAction::Wait(wait) => {
                now += wait;
                life.waited()
            }
            GrantAction::Provide(credential) => {
                provided = Some(credential);
                life.end(now)
            }
            GrantAction::Refuse(_) => life.end(now),
            GrantAction::Over { leak } => return (provided, leak, life),
        };
    }
    panic!("it does not end: {life:?}");
}

#[test]
fn service_is_created_and_removed_at_end() {
    let mut manager = Manager::default();
    let (credential, leak, life) = live(&mut manager, &[]);
    let credential = credential.unwrap();
    assert_eq!(
        (&*credential.vnis, &*credential.services),
        (&[1034][..], &[5][..])
    );
    assert_eq!(*credential.key.hex(), HEX);
    assert_eq!((leak, life.is_void()), (None, true));
    assert!(manager.services.is_empty());
}

#[test]
fn lost_reply_leaks_no_service() {
    for (lists, idempotent) in [(true, false), (true, true)] {
        let mut manager = Manager {
            lists,
            idempotent,
            ..Manager::default()
        };
        let (credential, leak, _) = live(&mut manager, &[Fate::AnswerLost]);
        assert!(credential.is_some());
        assert_eq!(leak, None);
        assert_eq!((manager.created_count, manager.services.len()), (1, 0));
    }
}

#[test]
fn manager_without_list_gets_same_key_and_doubt_is_reported() {
    let mut manager = Manager {
        idempotent: true,
        ..Manager::default()
    };
    let (credential, leak, life) = live(&mut manager, &[Fate::AnswerLost]);
    assert!(credential.is_some());
    assert_eq!((manager.created_count, manager.services.len()), (1, 0));
    let leak = leak.unwrap();
    assert!(leak.contains("does not list"), "{leak}");
    assert!(!life.is_void());
}

#[test]
fn service_that_stays_after_revocation_is_reported() {
    let now = Duration::ZERO;
    let (mut life, _) = GrantLifecycle::begin(grant_request(), spec(), now);
    life.answered(&status(201, r#"{"id": "s-1", "vni": 7}"#), now);
    let order = life.answered(&status(200, &format!(r#"{{"auth_key": "{HEX}"}}"#)), now);
    assert!(matches!(order, GrantAction::Provide(_)));
    let id = ServiceId::try_from("s-1".to_owned()).unwrap();
    let revoke = GrantAction::Send(ManagerRequest::Revoke(id.clone()));
    assert_eq!(life.end(now), revoke);
    let check = GrantAction::Send(ManagerRequest::Auth(id));
    assert_eq!(life.answered(&status(204, ""), now), check);
    let there = status(200, &format!(r#"{{"auth_key": "{HEX}"}}"#));
    assert!(matches!(life.answered(&there, now), GrantAction::Wait(_)));
    assert_eq!(life.waited(), revoke);
    life.answered(&status(204, ""), now);
    let GrantAction::Over { leak: Some(leak) } = life.answered(&there, REVOKE_LIMIT) else {
        panic!("it is too late");
    };
    assert!(
        leak.contains("still exists") && !leak.contains(HEX),
        "{leak}"
    );
    assert!(!life.is_void());
    // A successor knows what to do.
    let (_, order) = GrantLifecycle::resume(life.record(), now);
    assert_eq!(order, revoke);
}

#[test]
fn refusal_is_reported_and_nothing_revoked() {
    let (mut life, _) = GrantLifecycle::begin(grant_request(), spec(), Duration::ZERO);
    let answer = status(403, r#"{"detail": "no quota for user 7"}"#);
    let refused = GrantAction::Refuse("status 403: no quota for user 7".into());
    assert_eq!(life.answered(&answer, Duration::ZERO), refused);
    assert_eq!(life.end(Duration::ZERO), GrantAction::Over { leak: None });
    assert!(life.is_void());
}

#[test]
fn silent_manager_is_given_up() {
    let (mut life, _) = GrantLifecycle::begin(grant_request(), spec(), Duration::ZERO);
    let lost = ManagerReply::Lost("connection reset".into());
    let refused = GrantAction::Refuse("timed out after 60 s: connection reset".into());
    assert_eq!(life.answered(&lost, CREATE_LIMIT), refused);
    let search = GrantAction::Send(ManagerRequest::List("wireup-7".into()));
    assert_eq!(life.end(CREATE_LIMIT), search);
    // The manager may still be at work on the request.
    let none = status(200, "[]");
    assert!(matches!(
        life.answered(&none, CREATE_LIMIT),
        GrantAction::Wait(_)
    ));
    assert!(!life.is_void());
    assert_eq!(life.waited(), search);
    let over = life.answered(&none, CREATE_LIMIT);
    assert_eq!(over, GrantAction::Over { leak: None });
    assert!(life.is_void());
}

#[test]
fn request_that_was_never_sent_is_not_looked_for() {
    let begin = || GrantLifecycle::begin(grant_request(), spec(), Duration::ZERO).0;
    let mut life = begin();
    let unsent = ManagerReply::Unsent("connection refused".into());
    assert!(matches!(
        life.answered(&unsent, Duration::ZERO),
        GrantAction::Wait(_)
    ));
    assert_eq!(
        life.waited(),
        GrantAction::Send(ManagerRequest::Create(grant_request()))
    );
    let refused = GrantAction::Refuse("timed out after 60 s: connection refused".into());
    assert_eq!(life.answered(&unsent, CREATE_LIMIT), refused);
    assert_eq!(life.end(CREATE_LIMIT), GrantAction::Over { leak: None });
    // No time makes this better.
    let mut life = begin();
    let impossible = ManagerReply::Impossible("its certificate expired".into());
    let refused = GrantAction::Refuse("its certificate expired".into());
    assert_eq!(life.answered(&impossible, Duration::ZERO), refused);
    assert_eq!(life.end(Duration::ZERO), GrantAction::Over { leak: None });
    // An earlier request may have been carried out.
    let mut life = begin();
    life.answered(&ManagerReply::Lost("timed out".into()), Duration::ZERO);
    life.waited();
    assert_eq!(life.answered(&impossible, Duration::ZERO), refused);
    let search = GrantAction::Send(ManagerRequest::List("wireup-7".into()));
    assert_eq!(life.end(Duration::ZERO), search);
    assert!(matches!(
        life.answered(&impossible, Duration::ZERO),
        GrantAction::Wait(_)
    ));
}

#[test]
fn replies_are_parsed_as_far_as_usable() {
    let mut credential = FabricGrant::default();
    let body = br#"{"id": "a/b", "vni": 7}"#;
    assert!(created(body, &mut credential).is_err(), "no path of ours");
    let body = br#"{"id": 4, "vnis": [7, 8], "svc_ids": [1, 2], "traffic_classes": "0xa"}"#;
    assert_eq!(created(body, &mut credential).unwrap().as_str(), "4");
    let body = br#"{"auth_key": "AB", "hosts": {"n1": {"devices": ["cxi1"], "svc_id": 9}}}"#;
    authorized(body, &mut credential).unwrap();
    assert_eq!(credential.key, SecretBytes::from_hex("ab").unwrap());
    assert_eq!(credential.hosts["n1"].services, [9]);
    let body = br#"{"auth_key": "zz", "vni": 1}"#;
    assert!(authorized(body, &mut FabricGrant::default()).is_err());
    let body = br#"{"services": [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}, {"id": 3}]}"#;
    assert_eq!(listed(body, "y").unwrap().len(), 1);
}

#[test]
fn host_gets_service_for_each_of_its_devices() {
    let mut credential = FabricGrant {
        vnis: vec![1034, 77],
        services: vec![5],
        key: SecretBytes::from_hex(HEX).unwrap(),
        ..FabricGrant::default()
    };
    let variables_of = |credential: &FabricGrant, present: &[&str]| {
        let present: Vec<String> = present.iter().map(|name| (*name).to_owned()).collect();
        let variables = credential.variables("n1", &present)?;
        let lines = variables.iter();
        let lines = lines.map(|(name, value)| format!("{name}={}", value.as_str()));
        Ok::<_, FabricDeviceError>(lines.collect::<Vec<_>>())
    };
    let expected = [
        "SLINGSHOT_VNIS=1034,77",
        "FI_CXI_DEFAULT_VNI=1034",
        "FI_CXI_AUTH_KEY=00c0ffee",
        "SLINGSHOT_DEVICES=cxi0,cxi1",
        "SLINGSHOT_SVC_IDS=5,5",
    ];
    assert_eq!(
        variables_of(&credential, &["cxi0", "cxi1"]).unwrap(),
        expected
    );
    assert_eq!(
        variables_of(&credential, &[]),
        Err(FabricDeviceError::NoDevice)
    );
    credential.hosts.insert(
        "n1".into(),
        HostGrant {
            devices: vec!["cxi1".into()],
            services: vec![9],
        },
    );
    let own = variables_of(&credential, &["cxi0", "cxi1"]).unwrap();
    assert_eq!(own[3..], ["SLINGSHOT_DEVICES=cxi1", "SLINGSHOT_SVC_IDS=9"]);
    let missing = "cxi1".to_owned();
    assert_eq!(
        variables_of(&credential, &["cxi0"]),
        Err(FabricDeviceError::NotThere { missing })
    );
    credential.hosts.clear();
    credential.services = vec![1, 2, 3];
    let error = variables_of(&credential, &["cxi0"]).unwrap_err();
    assert_eq!(
        error,
        FabricDeviceError::Services {
            services: 3,
            devices: 1
        }
    );
}

#[test]
fn grant_is_read_from_environment_of_scheduler() {
    let read = |variables: &[(&str, &str)]| {
        let variables = variables.iter();
        FabricGrant::from_environment(
            variables.map(|(name, value)| (OsStr::new(*name), OsStr::new(*value))),
        )
    };
    let found = read(&[
        ("SLINGSHOT_VNIS", "1034,77"),
        ("SLINGSHOT_DEVICES", "cxi0,cxi1"),
        ("SLINGSHOT_SVC_IDS", "5,6"),
        ("SLINGSHOT_TCS", "0xa"),
        ("FI_CXI_DEFAULT_VNI", "3"),
        (KEY, HEX),
    ]);
    let found = found.unwrap();
    assert_eq!(
        (&*found.vnis, &*found.services),
        (&[1034, 77][..], &[5, 6][..])
    );
    assert_eq!(found.devices, ["cxi0", "cxi1"]);
    assert!(!format!("{found:?}").contains("192"), "bytes of the key");
    assert_eq!(read(&[("PATH", "/bin")]), Err(FabricGrantError::None));
    let wrong = FabricGrantError::Malformed("SLINGSHOT_VNIS");
    assert_eq!(read(&[("SLINGSHOT_VNIS", "secret")]), Err(wrong));
    assert_eq!(read(&[(KEY, "xyz")]), Err(FabricGrantError::Key));
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        3 => Just(Fate::Served),
        1 => Just(Fate::Dropped),
        1 => Just(Fate::Unsent),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::Late),
        1 => Just(Fate::Error),
    ]
}

#[test]
fn service_created_after_first_search_is_revoked() {
    let mut manager = Manager {
        lists: true,
        ..Manager::default()
    };
    let mut fates = vec![Fate::Error];
    fates.resize(13, Fate::Dropped);
    // The last request before the limit is carried out behind the first look for it.
    fates.extend([Fate::Served, Fate::Late, Fate::Served]);
    let (credential, leak, life) = live(&mut manager, &fates);
    assert!(credential.is_none());
    assert_eq!((leak, life.is_void()), (None, true));
    assert_eq!((manager.created_count, manager.services.len()), (1, 0));
}

proptest! {
    /// Whatever is lost, nothing stays that is not reported.
    #[test]
    fn leftover_service_is_always_reported(
        fates in prop::collection::vec(fate(), 0..30),
        lists in any::<bool>(),
        idempotent in any::<bool>(),
    ) {
        let mut manager = Manager { lists, idempotent, ..Manager::default() };
        let (_, leak, life) = live(&mut manager, &fates);
        prop_assert_eq!(leak.is_none(), life.is_void());
        if leak.is_none() {
            prop_assert_eq!(manager.services.len(), 0);
        }
        if lists {
            prop_assert_eq!(leak, None);
        }
    }
}

#[test]
fn refused_answer_names_field_without_value() {
    for (body, field) in [
        ("[]", "the reply must be a JSON object"),
        (r#"{"id": -7}"#, "id must be a string of 1 to 128 "),
        (
            r#"{"id": 1, "vni": "7001"}"#,
            "vni must be an integer from 0 to 65535",
        ),
        (
            r#"{"id": 1, "vnis": [70010]}"#,
            "vnis must be a list of integers from 0 to 65535",
        ),
        (
            r#"{"id": 1, "svc_ids": "7001"}"#,
            "svc_ids must be a list of integers",
        ),
        (
            r#"{"id": 1, "auth_key": 7001}"#,
            "auth_key must be a string of hexadecimal digits",
        ),
        (
            r#"{"id": 1, "hosts": {"n1": {"devices": [7001]}}}"#,
            "devices must be a list of strings",
        ),
    ] {
        let refused = created(body.as_bytes(), &mut FabricGrant::default());
        let text = refused.unwrap_err().to_string();
        assert!(text.starts_with(field), "{text}");
        assert!(!text.contains("7001"), "{text}");
    }
    let refused = authorized(b"{}", &mut FabricGrant::default()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "vni or vnis must be in this reply or an earlier one"
    );
}

#[test]
fn refused_list_names_field_without_value() {
    let now = Duration::ZERO;
    for (body, field) in [
        (
            "7001",
            "the list of services must be a JSON list of objects",
        ),
        (
            r#"{"items": "7001"}"#,
            "the list of services must be a JSON list of objects",
        ),
        (
            r#"[{"name": "wireup-7", "id": -7001}]"#,
            "id must be a string of 1 to 128 ",
        ),
        (
            r#"{"services": [{"name": "wireup-7", "id": 1, "vni": "7001"}]}"#,
            "vni must be an integer from 0 to 65535",
        ),
    ] {
        // The list is read before the service is created again, or at the end.
        for is_end in [false, true] {
            let (mut life, _) = GrantLifecycle::begin(grant_request(), spec(), now);
            life.answered(&ManagerReply::Lost("cut".into()), now);
            let list = GrantAction::Send(ManagerRequest::List("wireup-7".into()));
            if is_end {
                assert_eq!(life.end(now), list);
            } else {
                assert_eq!(life.waited(), list);
            }
            let mut order = life.answered(&status(200, body), now);
            if !is_end {
                order = life.end(now);
            }
            let GrantAction::Over { leak: Some(leak) } = order else {
                panic!("{order:?}");
            };
            let start = "a reply was lost: invalid list of services: ";
            assert!(leak.starts_with(&format!("{start}{field}")), "{leak}");
            assert!(!leak.contains("7001"), "{leak}");
        }
    }
}

#[test]
fn records_of_every_shape_are_read_back() {
    let files = [None, Some("/etc/token"), Some("/etc/t\u{fc}r \"1\"")];
    let sources = [
        FabricSource::Service("https://fm:8080/api".into()),
        FabricSource::Command("/opt/site/cxi --quiet".into()),
    ];
    let services = [vec![], vec!["7"], vec!["1", "a-b.c:d_2"]];
    for source in sources {
        for (token, authorities) in files.iter().flat_map(|a| files.iter().map(move |b| (a, b))) {
            for services in &services {
                let ids = services
                    .iter()
                    .map(|id| ServiceId::try_from((*id).to_owned()).unwrap());
                let record = GrantRecord {
                    version: VERSION,
                    name: "wireup-7".into(),
                    spec: FabricSpec {
                        source: source.clone(),
                        token: token.map(Into::into),
                        authorities: authorities.map(Into::into),
                    },
                    services: ids.collect(),
                    uncertain: services.is_empty(),
                };
                let text = serde_json::to_vec(&record).unwrap();
                assert_eq!(GrantRecord::read(&text).unwrap(), record);
                // Cut off by a shorter one that was written over it.
                let rest = [&text[..], b"\"]}"].concat();
                assert_eq!(GrantRecord::read(&rest).unwrap(), record);
            }
        }
    }
}

#[test]
fn records_of_earlier_release_are_read() {
    let read = |source: &str, path: &str| {
        let text = format!(
            r#"{{"version":1,"name":"wireup-7","spec":{{"source":{source},"token":{path},"authorities":{path}}},"services":["7"],"uncertain":false}}"#
        );
        GrantRecord::read(text.as_bytes()).unwrap().spec
    };
    let sources = [
        (
            r#"{"Service":"http://fm"}"#,
            FabricSource::Service("http://fm".into()),
        ),
        (
            r#"{"Command":"/opt/fm -q"}"#,
            FabricSource::Command("/opt/fm -q".into()),
        ),
    ];
    // One is not UTF-8: a release that wrote bytes could keep it.
    let not_text = OsString::from_vec(b"/etc/\xff".to_vec());
    let paths: [(&str, Option<PathBuf>); 4] = [
        ("null", None),
        (
            "[47,101,116,99,47,116,111,107,101,110]",
            Some("/etc/token".into()),
        ),
        (r#""/etc/token""#, Some("/etc/token".into())),
        ("[47,101,116,99,47,255]", Some(not_text.into())),
    ];
    for (written, source) in &sources {
        for (path, expected) in &paths {
            let spec = read(written, path);
            assert_eq!(spec.source, *source, "{written}");
            assert_eq!(spec.token, *expected, "{path}");
            assert_eq!(spec.authorities, *expected, "{path}");
        }
    }
}

#[test]
fn unreadable_records_give_reason() {
    let why = |text: &str| GrantRecord::read(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(
        why(r#"{"version":2,"lease":7}"#),
        "record of version 2; this wireup reads version 1"
    );
    assert_eq!(why("{"), "invalid record: the JSON is incomplete");
    let lacking = why(r#"{"version":1}"#);
    assert!(lacking.contains(" is missing"), "{lacking}");
}
