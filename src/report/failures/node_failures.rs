//! Merges equal messages of several nodes.

use std::net::{IpAddr, SocketAddr};

use wireup_core::failure::CommandError;
use wireup_core::job::hosts::compress;
use wireup_core::job::ids::NodeId;

/// Nodes with the same failure.
struct Group<'a> {
    nodes: Vec<&'a str>,
    /// Common part of the failures' messages.
    shape: String,
    /// Exit code of the first node's failure.
    code: u8,
    message: String,
    /// Whether messages of other nodes differ from `message`.
    varies: bool,
}

/// Merges the failures of nodes: each is returned once with its nodes, in the order of the first of
/// these. Failures that differ only in names and addresses count as equal. `names` are those of all nodes of
/// the job.
pub fn by_node(mut failures: Vec<(NodeId, CommandError)>, names: &[String]) -> Vec<CommandError> {
    failures.sort_by_key(|(node, _)| *node);
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (node, failure) in failures {
        let name = names.get(node.index()).map_or("?", String::as_str);
        let (code, message) = (failure.code(), failure.to_string());
        let shape = shape(&message, name);
        let same = |other: &&mut Group<'_>| {
            let alike = other.message == message || other.shape == shape;
            other.code == code && alike
        };
        match groups.iter_mut().find(same) {
            Some(group) => {
                group.nodes.push(name);
                group.varies |= group.message != message;
            }
            None => groups.push(Group {
                nodes: vec![name],
                shape,
                code,
                message,
                varies: false,
            }),
        }
    }
    let to_error = |group: Group<'_>| {
        let where_ = match group.nodes.len() {
            all if all > 1 && all == names.len() => format!("all {all} hosts"),
            _ => compress(group.nodes),
        };
        let message = group.message;
        let rest = if group.varies {
            ", and likewise the others"
        } else {
            ""
        };
        CommandError::Reported {
            code: group.code,
            message: format!("on {where_}: {message}{rest}"),
        }
    };
    groups.into_iter().map(to_error).collect()
}

/// Returns a message without the parts that differ on every node: its name and addresses.
fn shape(message: &str, name: &str) -> String {
    let general = |word: &str| {
        let bare = word.trim_end_matches([':', ',', ';']);
        let is_address = bare.parse::<SocketAddr>().is_ok() || bare.parse::<IpAddr>().is_ok();
        match is_address {
            true => "*".to_owned(),
            false => word.replace(name, "*"),
        }
    };
    let words: Vec<String> = message.split(' ').map(general).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged_failures(names: &[&str], failures: &[(u32, u8, &str)]) -> Vec<(u8, String)> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let failures = failures.iter().map(|(node, code, message)| {
            let message = (*message).to_owned();
            let code = *code;
            (NodeId(*node), CommandError::Reported { code, message })
        });
        let errors = by_node(failures.collect(), &names);
        errors
            .into_iter()
            .map(|failure| (failure.code(), failure.to_string()))
            .collect()
    }

    #[test]
    fn equal_problem_of_several_nodes_is_reported_once() {
        let names = ["node01", "node02", "node03", "node04", "node05"];
        let gone = "program \"./a\" not found";
        let failures = [
            (4, 127, gone),
            (1, 127, gone),
            (3, 125, "no core"),
            (2, 127, gone),
        ];
        assert_eq!(
            merged_failures(&names, &failures),
            [
                (127, format!("on node[02-03,05]: {gone}")),
                (125, "on node04: no core".to_owned()),
            ]
        );
        let all = [(0, 127, gone), (1, 127, gone)];
        assert_eq!(
            merged_failures(&["a", "b"], &all),
            [(127, format!("on all 2 hosts: {gone}"))]
        );
        assert_eq!(
            merged_failures(&["a"], &all[..1]),
            [(127, format!("on a: {gone}"))]
        );
        assert_eq!(merged_failures(&["a"], &[]), []);
    }
    #[test]
    fn problems_differing_only_in_names_and_addresses_are_merged() {
        let names = ["node01", "node02", "node03"];
        let no = |node: &str, address: &str| format!("{node}:7437 at {address}: refused");
        let (second, third) = (
            no("node02", "10.0.0.2:7437"),
            no("node03", "[fd00::3]:7437"),
        );
        let failures = [(1, 125, &*second), (2, 125, &*third)];
        let expected = format!("on node[02-03]: {second}, and likewise the others");
        assert_eq!(merged_failures(&names, &failures), [(125, expected)]);
        let failures = [(1, 125, &*second), (2, 125, "node03:7437 is unknown")];
        assert_eq!(merged_failures(&names, &failures).len(), 2);
    }
}
