use super::*;
use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::node::NodeCore;
use crate::node::event::{NodeAction, NodeEvent, SidecarEnd};
use crate::node::served;
use crate::pmix::upcall::{Notice, Upcall, UpcallRequest};
use crate::pmix::value::PmixRank;

fn proc(nspace: &str, rank: u32) -> PmixProc {
    PmixProc {
        nspace: nspace.into(),
        rank: PmixRank(rank),
    }
}

/// The second of three nodes.
struct Node {
    core: NodeCore,
    calls: u64,
}

impl Node {
    fn new() -> Self {
        let core = served::three_nodes().swap_remove(1);
        Self { core, calls: 0 }
    }

    fn call(&mut self, upcall: &Upcall, id: u64) -> Vec<NodeAction> {
        let (frame, mut actions) = (upcall.encode(id).unwrap(), Vec::new());
        let event = NodeEvent::UpcallReceived(&frame);
        self.core.handle(event, Moment::default(), &mut actions);
        actions
    }

    /// Attaches a tool that brings this name, or none; gives the name that it gets.
    fn attach(&mut self, name: Option<&PmixProc>) -> (String, u32) {
        let infos = name.map(|name| {
            vec![
                Info::new(keys::NSPACE, Value::String(name.nspace.clone())),
                Info::new(keys::RANK, Value::Rank(name.rank)),
            ]
        });
        let request = Upcall::Request(UpcallRequest::ToolConnected {
            infos: infos.unwrap_or_default(),
        });
        self.calls += 1;
        let id = self.calls;
        let actions = self.call(&request, id);
        let (reports, answers) = actions.split_at(actions.len() - 1);
        // Of a rank nothing is reported.
        assert!(reports.is_empty() || says(reports, true));
        let [NodeAction::SendUpcall(bytes)] = answers else {
            panic!("one answer: {actions:?}");
        };
        let (answered, parts) = served::answers(bytes).next().unwrap();
        assert_eq!(answered, id);
        let Some(Value::Rank(rank)) = find(&parts.infos, keys::RANK) else {
            panic!("a rank: {parts:?}");
        };
        (String::from_utf8(parts.data).unwrap(), rank.0)
    }

    fn lose(&mut self, first: PmixProc, others: &[PmixProc]) -> Vec<NodeAction> {
        let other = |proc: &PmixProc| Info::new(keys::PROCID, Value::Proc(proc.clone()));
        let infos = others.iter().map(other).collect();
        self.call(
            &Upcall::Notice(Notice::ConnectionsLost {
                source: first,
                infos,
            }),
            0,
        )
    }
}

/// Whether the launcher is notified that a tool has come, or the last is gone.
fn says(actions: &[NodeAction], came: bool) -> bool {
    let mut reports = actions.iter();
    reports.any(
        |action| matches!(action, NodeAction::ReportToLauncher(NodeReport::Tools { attached }) if *attached == came),
    )
}

#[test]
fn tool_keeps_its_name_unless_it_belongs_to_job_or_server() {
    let mut node = Node::new();
    let own_name = ("debugger".to_owned(), 4);
    assert_eq!(node.attach(Some(&proc("debugger", 4))), own_name);
    assert_eq!(node.attach(None), ("job-tool-1-1".to_owned(), 0));
    for (number, forged) in [
        (2, proc("job", 0)),
        (3, proc("job", 77)),
        (4, proc("job-host", 0)),
        (5, proc("", 0)),
        (6, proc("debugger", PmixRank::WILDCARD.0)),
    ] {
        let name = format!("job-tool-1-{number}");
        assert_eq!(node.attach(Some(&forged)), (name, 0), "{forged:?}");
    }
}

#[test]
fn generated_tool_name_is_not_taken_by_other_tool() {
    let mut node = Node::new();
    node.attach(Some(&proc("job-tool-1-1", 0)));
    assert_eq!(node.attach(None), ("job-tool-1-2".to_owned(), 0));
}

#[test]
fn tool_is_gone_after_its_last_connection() {
    let mut node = Node::new();
    let (name, other) = (proc("debugger", 4), proc("other", 0));
    node.attach(Some(&name));
    node.attach(Some(&name));
    node.attach(Some(&other));
    node.lose(name.clone(), &[]);
    assert!(!node.core.cx.tools.is_empty());
    // A rank, a tool, and one that never was.
    let lost = node.lose(proc("job", 2), &[other, proc("nobody", 0)]);
    assert!(!node.core.cx.tools.is_empty());
    assert!(!says(&lost, false));
    let lost = node.lose(name.clone(), &[]);
    assert!(node.core.cx.tools.is_empty());
    assert!(says(&lost, false));
    assert!(!says(&node.lose(name, &[]), false));
}

#[test]
fn tools_end_with_their_server() {
    let mut node = Node::new();
    node.attach(None);
    node.attach(Some(&proc("debugger", 4)));
    let mut actions = Vec::new();
    let ended = NodeEvent::SidecarEnded {
        how: "killed".into(),
        end: SidecarEnd::Failed,
    };
    node.core.handle(ended, Moment::default(), &mut actions);
    assert!(node.core.cx.tools.is_empty());
    assert!(says(&actions, false));
}

#[test]
fn output_is_forwarded_until_its_tool_detaches() {
    let mut node = Node::new();
    let (name, _) = node.attach(None);
    let pull = Upcall::Notice(Notice::IofPull {
        procs: vec![proc("job", PmixRank::WILDCARD.0)],
        infos: Vec::new(),
        channels: crate::pmix::value::Channels::STDOUT,
    });
    node.call(&pull, 0);
    let notified_nodes = |actions: &[NodeAction]| {
        let to = |action: &NodeAction| match action {
            NodeAction::SendPeer { to, .. } => Some(*to),
            _ => None,
        };
        actions.iter().filter_map(to).collect::<Vec<_>>()
    };
    // The ranks of this node never connect, so their end says nothing about who wants output.
    let end = NodeEvent::RankEnded {
        rank: crate::job::ids::NodeRank(0),
        end: crate::job::outcome::RankEnd::Code(0),
    };
    let mut actions = Vec::new();
    node.core.handle(end, Moment::default(), &mut actions);
    assert_eq!(notified_nodes(&actions), []);
    let gone = node.lose(proc(&name, 0), &[]);
    assert_eq!(notified_nodes(&gone), [NodeId(0), NodeId(2)]);
}
