use super::*;
use crate::job::allocation::Directive;
use crate::job::clock::Moment;
use crate::job::ids::{Nspace, Rank};
use crate::node::event::NodeEvent;
use crate::node::served;
use crate::pmix::upcall::{Upcall, UpcallRequest};

/// What rank 1 of a job on three nodes wants done with a session: what the launcher hears of it, and
/// the status that the rank gets unless another process is asked.
fn control(session: u32, directives: Vec<Info>) -> (Vec<NodeReport>, Option<Status>) {
    let upcall = Upcall::Request(UpcallRequest::SessionControl {
        proc: PmixProc::new(&Nspace::new("job").unwrap(), Rank(1)),
        session,
        directives,
    });
    let frame = upcall.encode(1).unwrap();
    let (mut reports, mut status) = (Vec::new(), None);
    let mut cores = served::three_nodes();
    let event = NodeEvent::UpcallReceived(&frame);
    for (node, action) in served::deliver(&mut cores, 0, event, Moment::default()) {
        match action {
            NodeAction::ReportToLauncher(report) => reports.push(report),
            NodeAction::SendUpcall(bytes) => {
                assert_eq!(node, 0);
                status = served::answers(&bytes)
                    .map(|(_, parts)| parts.status)
                    .last();
            }
            other => panic!("{other:?}"),
        }
    }
    (reports, status)
}

fn yes(key: &str) -> Info {
    Info::new(key, Value::Bool(true))
}

#[test]
fn session_control_applies_to_all_processes_of_launch() {
    for (info, what) in [
        (yes(keys::SESSION_PAUSE), JobControlAction::Signal(SIGSTOP)),
        (yes(keys::SESSION_RESUME), JobControlAction::Signal(SIGCONT)),
        (yes(keys::SESSION_TERMINATE), JobControlAction::Terminate),
        (
            Info::new(keys::SESSION_SIGNAL, Value::Int(10)),
            JobControlAction::Signal(10),
        ),
    ] {
        let id = Info::new(keys::SESSION_CTRL_ID, Value::String("mine".into()));
        let (reports, status) = control(OWN_SESSION, vec![id, info]);
        let [NodeReport::JobControl(demand)] = &reports[..] else {
            panic!("{reports:?}");
        };
        let ranks = None;
        let by = Some(GlobalRank(1));
        assert_eq!(
            *demand,
            JobControlRequest {
                requester: by,
                action: what,
                ranks
            }
        );
        assert_eq!(status, Some(Status::SUCCESS));
    }
}

#[test]
fn other_session_requests_go_to_allocator() {
    let nodes = Info::new(keys::ALLOC_NUM_NODES, Value::Uint64(2));
    let (reports, status) = control(OWN_SESSION, vec![nodes, yes(keys::SESSION_EXTEND)]);
    let [
        NodeReport::Allocate {
            requester: by,
            request,
            ..
        },
    ] = &reports[..]
    else {
        panic!("{reports:?}");
    };
    assert_eq!((*by, request.directive), (GlobalRank(1), Directive::Extend));
    let requested_keys: Vec<_> = request.infos.iter().map(|info| &*info.key).collect();
    assert_eq!(requested_keys, [keys::ALLOC_NUM_NODES]);
    assert_eq!(status, None);
}

#[test]
fn impossible_session_control_is_refused() {
    let mut preempt = yes("pmix.ssn.preempt");
    for (session, directives, expected) in [
        (7, vec![yes(keys::SESSION_PAUSE)], Status::ERR_NOT_FOUND),
        (OWN_SESSION, Vec::new(), Status::ERR_NOT_SUPPORTED),
        (
            OWN_SESSION,
            vec![preempt.clone()],
            Status::ERR_NOT_SUPPORTED,
        ),
        (
            OWN_SESSION,
            vec![Info::new(keys::SESSION_SIGNAL, Value::Int(65))],
            Status::ERR_BAD_PARAM,
        ),
        (
            OWN_SESSION,
            vec![Info::new(keys::SESSION_EXTEND, Value::Bool(false))],
            Status::ERR_NOT_SUPPORTED,
        ),
    ] {
        let (reports, status) = control(session, directives);
        assert_eq!((reports.len(), status), (0, Some(expected)));
    }
    preempt.required = true;
    let (reports, status) = control(OWN_SESSION, vec![yes(keys::SESSION_PAUSE), preempt]);
    assert_eq!(
        (reports.len(), status),
        (0, Some(Status::ERR_NOT_SUPPORTED))
    );
}
