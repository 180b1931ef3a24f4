//! `wireup ps --nodes`: how the agents of nodes are, asked through the agent of this machine.

use std::io::Write as _;
use std::path::Path;

use super::width;
use crate::cli::node_status::query_nodes;
use crate::cli::options::HostsListArgs;
use wireup_core::failure::CommandError;
use wireup_core::link::agent_protocol::{NodeAddress, NodeStatus};
use wireup_core::text_table;

/// Prints how they are; exit code 1 if one was not reached.
pub(super) fn execute(args: HostsListArgs, json: bool) -> Result<u8, CommandError> {
    let agent = args.agent().map(Path::to_owned);
    let hosts = args.resolve()?;
    let members = hosts.into_iter().map(|host| NodeAddress {
        name: host.name,
        address: host.address,
    });
    let nodes = query_nodes(agent.as_deref(), members.collect())?;
    let text = match json {
        true => {
            let mut text = serde_json::to_string_pretty(&nodes).expect("text and numbers only");
            text.push('\n');
            text
        }
        false => node_table(&nodes),
    };
    // A reader that has seen enough is no failure.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(u8::from(nodes.iter().any(|node| node.problem.is_some())))
}

fn node_table(nodes: &[NodeStatus]) -> String {
    let head = [
        "NODE",
        "ASKED AT",
        "ADVERTISES",
        "VERSION",
        "LAUNCHES",
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
                state.to_owned(),
            ]
        })
        .collect();
    text_table::render(&head, &rows, width())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        };
        let lost = NodeStatus {
            name: "n2".into(),
            advertised: String::new(),
            queried_address: "n2:7437".into(),
            version: String::new(),
            launches: 0,
            draining: false,
            problem: Some("no answer".into()),
        };
        let draining = NodeStatus {
            draining: true,
            ..ready.clone()
        };
        assert_eq!(
            node_table(&[ready, lost, draining]),
            "NODE  ASKED AT  ADVERTISES     VERSION  LAUNCHES  STATE\n\
             n1    -         10.0.0.1:7437  0.1.0    2         ready\n\
             n2    n2:7437   -              -        -         no answer\n\
             n1    -         10.0.0.1:7437  0.1.0    2         draining: takes no new launch\n"
        );
    }
}
