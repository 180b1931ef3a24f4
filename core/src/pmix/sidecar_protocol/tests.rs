use proptest::collection::vec;
use proptest::prelude::*;

use super::super::arbitrary;
use super::super::value::{PmixRank, find};
use super::super::wire::{FrameDecoder, SidecarFrame};
use super::serve::{self, Body, SidecarRequest};
use super::*;

fn nspace(name: &str) -> Nspace {
    Nspace::new(name).unwrap()
}

fn frame(bytes: &[u8]) -> SidecarFrame {
    let mut frames = Vec::new();
    FrameDecoder::default().push(bytes, &mut frames).unwrap();
    frames.pop().unwrap()
}

fn decoded_infos(bytes: &[u8]) -> Vec<Info> {
    let mut from = Reader::new(bytes);
    let infos = Info::decode_list(&mut from).unwrap();
    from.end().unwrap();
    infos
}

#[test]
fn init_disables_tool_files_and_output_cache_of_libpmix() {
    let init = Init {
        nspace: nspace("server"),
        rank: Rank(1),
        hostname: "alpha".into(),
        tmpdir: "/run/x".into(),
    };
    let frame = frame(&SidecarCommand::Init(init).encode(1).unwrap());
    let Ok(SidecarRequest::Init { infos }) = SidecarRequest::decode(&frame) else {
        panic!("{frame:?}")
    };
    let infos = decoded_infos(infos);
    for (key, on) in [
        // The launcher writes these.
        (keys::SERVER_TOOL_SUPPORT, false),
        (keys::SERVER_SYSTEM_SUPPORT, false),
        (keys::SERVER_SESSION_SUPPORT, false),
        // Whom the kernel lets in decides `accept`, and root may attach as well.
        (keys::SERVER_ALLOW_FOREIGN_TOOLS, true),
        (keys::IOF_LOCAL_OUTPUT, false),
    ] {
        assert_eq!(find(&infos, key), Some(&Value::Bool(on)), "{key}");
    }
    assert_eq!(
        find(&infos, keys::SERVER_SHARE_TOPOLOGY),
        Some(&Value::Bool(true))
    );
    assert_eq!(
        find(&infos, keys::HOSTNAME),
        Some(&Value::String("alpha".into()))
    );
    assert_eq!(
        find(&infos, keys::SERVER_TMPDIR),
        Some(&Value::String("/run/x".into()))
    );
    assert_eq!(
        find(&infos, keys::SERVER_RANK),
        Some(&Value::Rank(PmixRank(1)))
    );
}

#[test]
fn requests_reach_sidecar_unchanged() {
    let (alpha, source) = (nspace("alpha"), PmixProc::new(&nspace("beta"), Rank(3)));
    let clients = vec![ClientRegistration {
        rank: Rank(4),
        uid: 1000,
        gid: 100,
    }];
    let infos = vec![Info::new("k", Value::Uint16(3))];
    let register = SidecarCommand::RegisterJob {
        nspace: alpha.clone(),
        infos: infos.clone(),
        clients: clients.clone(),
    };
    let sent = frame(&register.encode(1).unwrap());
    match SidecarRequest::decode(&sent) {
        Ok(SidecarRequest::RegisterJob {
            nspace,
            clients: read,
            infos: rest,
        }) => {
            assert_eq!((nspace, read), ("alpha".into(), clients));
            assert_eq!(decoded_infos(rest), infos);
        }
        other => panic!("{other:?}"),
    }
    let notify = SidecarCommand::Notify {
        code: Status(-5),
        source: source.clone(),
        range: DataRange::CUSTOM,
        infos: infos.clone(),
    };
    let sent = frame(&notify.encode(1).unwrap());
    match SidecarRequest::decode(&sent) {
        Ok(SidecarRequest::Notify {
            code,
            source: read,
            range,
            infos: rest,
        }) => {
            assert_eq!((code, read, range), (Status(-5), source, DataRange::CUSTOM));
            assert_eq!(decoded_infos(rest), infos);
        }
        other => panic!("{other:?}"),
    }
    let modex = SidecarCommand::DirectModex {
        nspace: alpha.clone(),
        rank: Rank(2),
    };
    let sent = frame(&modex.encode(1).unwrap());
    assert_eq!(
        SidecarRequest::decode(&sent),
        Ok(SidecarRequest::DirectModex(PmixProc::new(&alpha, Rank(2))))
    );
    let sent = frame(
        &SidecarCommand::DeregisterJob { nspace: alpha }
            .encode(1)
            .unwrap(),
    );
    assert_eq!(
        SidecarRequest::decode(&sent),
        Ok(SidecarRequest::DeregisterJob {
            nspace: "alpha".into()
        })
    );
    let sent = frame(&SidecarCommand::Finalize.encode(1).unwrap());
    assert_eq!(SidecarRequest::decode(&sent), Ok(SidecarRequest::Finalize));
    let sent = frame(&SidecarCommand::Probe.encode(1).unwrap());
    assert_eq!(SidecarRequest::decode(&sent), Ok(SidecarRequest::Probe));
    let deliver = SidecarCommand::IofDeliver {
        source: PmixProc::new(&nspace("gamma"), Rank(1)),
        channel: Channels::STDERR,
        data: b"a\0b".to_vec(),
    };
    let sent = frame(&deliver.encode(1).unwrap());
    assert_eq!(
        SidecarRequest::decode(&sent),
        Ok(SidecarRequest::IofDeliver {
            source: PmixProc::new(&nspace("gamma"), Rank(1)),
            channel: Channels::STDERR,
            data: b"a\0b",
        })
    );
}

#[test]
fn sidecar_refuses_frame_that_is_not_request() {
    let good = SidecarFrame {
        op: ControlKind::Finalize.op(),
        reply: false,
        id: 1,
        payload: Vec::new(),
    };
    let op = good.op;
    let reply = SidecarFrame {
        reply: true,
        ..good.clone()
    };
    assert_eq!(
        SidecarRequest::decode(&reply),
        Err(WireError::Operation { op, reply: true })
    );
    let unknown = SidecarFrame {
        op: 0x7777,
        ..good.clone()
    };
    let error = WireError::Operation {
        op: 0x7777,
        reply: false,
    };
    assert_eq!(SidecarRequest::decode(&unknown), Err(error));
    let notice = SidecarFrame {
        id: 0,
        ..good.clone()
    };
    assert_eq!(
        SidecarRequest::decode(&notice),
        Err(WireError::Id { op, id: 0 })
    );
    let longer = SidecarFrame {
        payload: vec![0],
        ..good
    };
    assert_eq!(SidecarRequest::decode(&longer), Err(WireError::Trailing(1)));
}

#[test]
fn replies_come_back_as_given() {
    let variable = |name: &str| (Text::from(name), Text::from("v"));
    let env = ForkEnv {
        common: vec![variable("A"), variable("B")],
        clients: vec![(Rank(2), vec![variable("C")]), (Rank(5), Vec::new())],
    };
    let refusal = ControlRefusal {
        status: Status::ERR_NOMEM,
        text: "no memory".into(),
    };
    let read = |kind, outcome: Result<Body<'_>, &ControlRefusal>| {
        let frame = frame(&serve::reply(kind, 7, outcome).unwrap());
        assert_eq!((frame.op, frame.reply, frame.id), (kind.op(), true, 7));
        ControlReply::decode(kind, &frame.payload).unwrap()
    };
    assert_eq!(
        read(ControlKind::RegisterJob, Ok(Body::ForkEnv(&env))),
        ControlReply::RegisterJob(Ok(env.clone()))
    );
    assert_eq!(
        read(ControlKind::DirectModex, Ok(Body::Data(b"x\0y"))),
        ControlReply::DirectModex(Ok(b"x\0y".to_vec()))
    );
    assert_eq!(
        read(ControlKind::Init, Ok(Body::Done)),
        ControlReply::Init(Ok(()))
    );
    for kind in ControlKind::ALL {
        let reply = read(kind, Err(&refusal));
        let text = format!("{reply:?}");
        assert!(text.contains("Err") && text.contains("no memory"), "{text}");
    }
    let names = |rank| {
        env.variables_of(Rank(rank))
            .map(|(name, _)| name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(2), ["A", "B", "C"]);
    assert_eq!(names(5), ["A", "B"]);
}

#[test]
fn notices_come_back_as_given() {
    let hello = SidecarNotice::Hello(Hello {
        libpmix: "OpenPMIx 5".into(),
    });
    let failed = |stage| {
        SidecarNotice::Failed(StartupFailure {
            stage,
            text: "why".into(),
        })
    };
    let warning = SidecarNotice::Warning("beware".into());
    for notice in [hello.clone(), warning]
        .into_iter()
        .chain(StartupStage::ALL.map(failed))
    {
        let frame = frame(&serve::notice(&notice).unwrap());
        assert_eq!((frame.reply, frame.id), (false, 0));
        assert_eq!(SidecarNotice::decode(frame.op, &frame.payload), Ok(notice));
    }
    let mut frame = frame(&serve::notice(&hello).unwrap());
    frame.payload[0] ^= 0x40;
    let other = SidecarNotice::decode(frame.op, &frame.payload);
    assert_eq!(
        other,
        Err(WireError::Bad("protocol version of the sidecar"))
    );
}

proptest! {
    #[test]
    fn any_payload_is_decoded_without_panic(payload in vec(0..40_u8, 0..200)) {
        for kind in ControlKind::ALL {
            let _ = ControlReply::decode(kind, &payload);
            let frame = SidecarFrame { op: kind.op(), reply: false, id: 1, payload: payload.clone() };
            let _ = SidecarRequest::decode(&frame);
        }
        for op in [1, 2, 3] {
            let _ = SidecarNotice::decode(op, &payload);
        }
    }

    #[test]
    fn infos_of_request_stay_unchanged(infos in arbitrary::infos()) {
        let control = SidecarCommand::Notify {
            code: Status(-1),
            source: PmixProc::new(&nspace("n"), PmixRank::WILDCARD),
            range: DataRange::GLOBAL,
            infos: infos.clone(),
        };
        let sent = frame(&control.encode(1).unwrap());
        let Ok(SidecarRequest::Notify { infos: rest, .. }) = SidecarRequest::decode(&sent) else {
            panic!("{sent:?}")
        };
        prop_assert_eq!(decoded_infos(rest), infos);
    }
}
