//! `wireup ps --nodes`: how the agents of nodes are, asked through the agent of this machine.

use super::width;
use crate::cli::node_status::query_nodes;
use crate::cli::options::HostsListArgs;
use crate::cli::show;
use wireup_core::failure::CommandError;
use wireup_core::link::agent_protocol::NodeStatus;
use wireup_core::text_table;

/// Prints how they are; exit code 1 if one was not reached.
pub(super) fn execute(args: HostsListArgs, json: bool) -> Result<u8, CommandError> {
    let agent = args.agent.clone();
    let nodes = query_nodes(agent.as_deref(), &args.resolve()?)?;
    let text = match json {
        true => {
            let mut text = serde_json::to_string_pretty(&nodes).expect("text and numbers only");
            text.push('\n');
            text
        }
        false => node_table(&nodes),
    };
    show(&text);
    Ok(u8::from(nodes.iter().any(|node| node.problem.is_some())))
}

fn node_table(nodes: &[NodeStatus]) -> String {
    let head = [
        "NODE",
        "ASKED AT",
        "ADVERTISES",
        "VERSION",
        "LAUNCHES",
        "INTERFACES",
        "STATE",
    ];
    let or = |text: &str| match text.is_empty() {
        true => "-".to_owned(),
        false => text.to_owned(),
    };
    let rows: Vec<Vec<String>> = nodes
        .iter()
        .map(|node| {
            let launches = match node.problem {
                None => node.launches.to_string(),
                Some(_) => "-".to_owned(),
            };
            let state = match (&node.problem, node.draining) {
                (Some(problem), _) => problem.as_str(),
                (None, true) => "draining: takes no new launch",
                (None, false) => "ready",
            };
            vec![
                node.name.clone(),
                or(&node.queried_address),
                or(&node.advertised),
                or(&node.version),
                launches,
                interfaces(node),
                state.to_owned(),
            ]
        })
        .collect();
    text_table::render(&head, &rows, width())
}

/// Interfaces of a node with the release of its libpmix; `unknown` for an agent that does not report them.
fn interfaces(node: &NodeStatus) -> String {
    let Some(known) = &node.capabilities else {
        let text = match node.problem {
            None => "unknown",
            Some(_) => "-",
        };
        return text.to_owned();
    };
    let word = |name: &String| match (&**name, &known.libpmix) {
        ("pmix", Some(release)) => format!("pmix={release}"),
        ("pmix", None) => "pmix=no-libpmix".to_owned(),
        (other, _) => other.to_owned(),
    };
    known
        .interfaces
        .iter()
        .map(word)
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireup_core::link::agent_protocol::NodeCapabilities;

    #[test]
    fn node_table_shows_known_facts_and_reason_for_missing_ones() {
        let ready = NodeStatus {
            name: "n1".into(),
            advertised: "10.0.0.1:7437".into(),
            queried_address: String::new(),
            version: "0.1.0".into(),
            launches: 2,
            draining: false,
            problem: None,
            capabilities: None,
        };
        let lost = NodeStatus {
            name: "n2".into(),
            advertised: String::new(),
            queried_address: "n2:7437".into(),
            version: String::new(),
            launches: 0,
            draining: false,
            problem: Some("no answer".into()),
            capabilities: None,
        };
        let draining = NodeStatus {
            draining: true,
            ..ready.clone()
        };
        assert_eq!(
            node_table(&[ready, lost, draining]),
            "NODE  ASKED AT  ADVERTISES     VERSION  LAUNCHES  INTERFACES  STATE\n\
             n1    -         10.0.0.1:7437  0.1.0    2         unknown     ready\n\
             n2    n2:7437   -              -        -         -           no answer\n\
             n1    -         10.0.0.1:7437  0.1.0    2         unknown     draining: takes no new launch\n"
        );
    }

    #[test]
    fn interfaces_show_libpmix_or_its_absence() {
        let node = |names: &[&str], libpmix: Option<&str>| NodeStatus {
            name: "n1".into(),
            advertised: String::new(),
            queried_address: String::new(),
            version: "0.1.0".into(),
            launches: 0,
            draining: false,
            problem: None,
            capabilities: Some(NodeCapabilities {
                interfaces: names.iter().map(|name| (*name).to_owned()).collect(),
                libpmix: libpmix.map(ToOwned::to_owned),
                pmix_problem: None,
            }),
        };
        let all = ["pmi1", "pmi2", "pmix"];
        assert_eq!(
            interfaces(&node(&all, Some("5.0.3"))),
            "pmi1,pmi2,pmix=5.0.3"
        );
        assert_eq!(interfaces(&node(&all, None)), "pmi1,pmi2,pmix=no-libpmix");
        assert_eq!(interfaces(&node(&all[..2], Some("5.0.3"))), "pmi1,pmi2");
    }
}
