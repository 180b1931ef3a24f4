use super::*;
use crate::pmix::sidecar_protocol::serve::{self, Body};
use crate::pmix::sidecar_protocol::{ControlRefusal, StartupStage};
use crate::pmix::value::{PmixProc, PmixRank};
use crate::pmix::wire::{HEADER_LEN, MAX_PAYLOAD};

fn proc() -> PmixProc {
    PmixProc {
        nspace: "job".into(),
        rank: PmixRank(1),
    }
}

fn fence(id: u64) -> Vec<u8> {
    let data = vec![7; 10];
    Upcall::Request(UpcallRequest::Fence {
        procs: vec![proc()],
        infos: Vec::new(),
        data,
    })
    .encode(id)
    .unwrap()
}

fn upcall_id(events: &[SidecarEvent]) -> UpcallId {
    match events {
        [SidecarEvent::Request { id, .. }] => *id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn upcall_is_answered_once() {
    let mut link = SidecarLink::default();
    let id = upcall_id(&link.on_upcall_bytes(&fence(5)).unwrap());
    assert_eq!(
        link.outstanding_upcalls().collect::<Vec<_>>(),
        [(id, UpcallKind::Fence)]
    );
    assert!(
        link.answer(UpcallId(6), &UpcallAnswer::Data(Vec::new()))
            .is_none(),
        "never asked"
    );
    let bytes = link.answer(id, &UpcallAnswer::Data(vec![1, 2, 3])).unwrap();
    assert_eq!(
        bytes,
        UpcallAnswer::Data(vec![1, 2, 3])
            .encode(UpcallKind::Fence, 5)
            .unwrap()
    );
    assert!(
        link.answer(id, &UpcallAnswer::Data(Vec::new())).is_none(),
        "answered already"
    );
    assert_eq!(link.outstanding_upcalls().count(), 0);
    let count = link.count(UpcallKind::Fence);
    assert_eq!((count.received, count.answered), (1, 1));
    let payload = |frame: &[u8]| frame.len() as u64 - 16;
    assert_eq!(
        (count.bytes_in, count.bytes_out),
        (payload(&fence(5)), payload(&bytes))
    );
    assert_eq!(link.count(UpcallKind::Log), UpcallCount::default());
}

#[test]
fn waiter_of_lost_sidecar_does_not_answer_its_successor() {
    let mut link = SidecarLink::default();
    let old = upcall_id(&link.on_upcall_bytes(&fence(5)).unwrap());
    let (request, _) = link.control(&SidecarCommand::Probe).unwrap();
    link.renew();
    assert_eq!(link.outstanding_controls().count(), 0);
    // The next one counts from the beginning.
    let new = upcall_id(&link.on_upcall_bytes(&fence(5)).unwrap());
    let answer = UpcallAnswer::Data(vec![1]);
    assert!(link.answer(old, &answer).is_none());
    let bytes = link.answer(new, &answer).unwrap();
    assert_eq!(bytes, answer.encode(UpcallKind::Fence, 5).unwrap());
    assert_ne!(link.control(&SidecarCommand::Probe).unwrap().0, request);
}

#[test]
fn reply_over_limit_becomes_error_of_its_upcall() {
    let mut link = SidecarLink::default();
    let id = upcall_id(&link.on_upcall_bytes(&fence(5)).unwrap());
    let bytes = link
        .answer(id, &UpcallAnswer::Data(vec![0; MAX_PAYLOAD]))
        .unwrap();
    let refused = UpcallAnswer::Status(Status::ERR_OUT_OF_RESOURCE);
    assert_eq!(bytes, refused.encode(UpcallKind::Fence, 5).unwrap());
}

#[test]
fn notices_need_no_answer() {
    let mut link = SidecarLink::default();
    let notice = Notice::ClientConnected {
        proc: proc(),
        infos: Vec::new(),
    };
    let connected = Upcall::Notice(notice.clone());
    let events = link.on_upcall_bytes(&connected.encode(0).unwrap()).unwrap();
    assert_eq!(events, [SidecarEvent::Notice(notice)]);
    assert_eq!(link.outstanding_upcalls().count(), 0);
    let error = WireError::Id {
        op: UpcallKind::ClientConnected.op(),
        id: 1,
    };
    assert_eq!(
        link.on_upcall_bytes(&connected.encode(1).unwrap()),
        Err(error)
    );
}

#[test]
fn upcall_id_in_use_is_refused() {
    let mut link = SidecarLink::default();
    link.on_upcall_bytes(&fence(5)).unwrap();
    let error = WireError::Id {
        op: UpcallKind::Fence.op(),
        id: 5,
    };
    assert_eq!(link.on_upcall_bytes(&fence(5)), Err(error));
    assert!(
        SidecarLink::default().on_upcall_bytes(&fence(0)).is_err(),
        "a request needs an id"
    );
}

#[test]
fn replies_may_come_out_of_order_but_only_once() {
    let mut link = SidecarLink::default();
    let modex = || SidecarCommand::DirectModex {
        nspace: crate::job::ids::Nspace::new("job").unwrap(),
        rank: crate::job::ids::Rank(0),
    };
    let (first, _) = link.control(&modex()).unwrap();
    let (second, _) = link.control(&SidecarCommand::Finalize).unwrap();
    assert_ne!(first, second);
    let refusal = ControlRefusal {
        status: Status::ERR_NOT_FOUND,
        text: "gone".into(),
    };
    let late = serve::reply(ControlKind::DirectModex, 1, Err(&refusal)).unwrap();
    let done = serve::reply(ControlKind::Finalize, 2, Ok(Body::Done)).unwrap();
    let mut bytes = done.clone();
    bytes.extend(&late);
    let events = link.on_control_bytes(&bytes).unwrap();
    let reply = ControlReply::DirectModex(Err(refusal));
    assert_eq!(
        events,
        [
            SidecarEvent::Reply {
                id: second,
                reply: ControlReply::Finalize(Ok(()))
            },
            SidecarEvent::Reply { id: first, reply },
        ]
    );
    assert_eq!(link.outstanding_controls().count(), 0);
    assert!(link.on_control_bytes(&done).is_err(), "a second reply");
}

#[test]
fn reply_of_other_kind_is_refused() {
    let mut link = SidecarLink::default();
    link.control(&SidecarCommand::Finalize).unwrap();
    let wrong = serve::reply(ControlKind::Init, 1, Ok(Body::Done)).unwrap();
    assert!(link.on_control_bytes(&wrong).is_err());
}

#[test]
fn hello_comes_once_and_failure_has_reason() {
    let mut link = SidecarLink::default();
    let hello = Hello {
        libpmix: "OpenPMIx 5.0.1".into(),
    };
    let bytes = serve::notice(&SidecarNotice::Hello(hello.clone())).unwrap();
    // Byte by byte: an event appears with its last byte.
    let (last, before) = bytes.split_last().unwrap();
    for byte in before {
        assert_eq!(link.on_control_bytes(&[*byte]).unwrap(), []);
        assert!(!link.is_idle());
    }
    assert_eq!(
        link.on_control_bytes(&[*last]).unwrap(),
        [SidecarEvent::Hello(hello)]
    );
    assert!(link.is_idle());
    assert_eq!(
        link.on_control_bytes(&bytes),
        Err(WireError::Bad("second hello"))
    );
    let failed = StartupFailure {
        stage: StartupStage::Pmix,
        text: "too old".into(),
    };
    let bytes = serve::notice(&SidecarNotice::Failed(failed.clone())).unwrap();
    assert_eq!(
        SidecarLink::default().on_control_bytes(&bytes).unwrap(),
        [SidecarEvent::Failed(failed)]
    );
}

#[test]
fn complete_messages_before_error_are_delivered_first() {
    let mut link = SidecarLink::default();
    let mut bytes = fence(5);
    bytes.extend([0xa5; HEADER_LEN]);
    assert_eq!(link.on_upcall_bytes(&bytes).unwrap().len(), 1);
    let error = link.error().cloned().unwrap();
    assert!(matches!(error, WireError::TooLarge(_)), "{error}");
    assert_eq!(link.on_control_bytes(&[]), Err(error.clone()));
    assert_eq!(link.on_upcall_bytes(&fence(6)), Err(error));
}
