//! What several nodes have to say, told once.

use crate::job::hosts::compress;
use crate::job::ids::NodeId;
use crate::launcher::run::RunFailure;

/// The failures of nodes, each told once with the nodes that have it, in the order of the first of
/// these. `names` are those of all nodes of the job.
pub fn by_node(mut failures: Vec<(NodeId, RunFailure)>, names: &[String]) -> Vec<RunFailure> {
    failures.sort_by_key(|(node, _)| *node);
    let mut groups: Vec<(Vec<&str>, RunFailure)> = Vec::new();
    for (node, failure) in failures {
        let name = names.get(node.index()).map_or("?", String::as_str);
        let same =
            |other: &RunFailure| (other.code, &other.message) == (failure.code, &failure.message);
        match groups.iter_mut().find(|(_, other)| same(other)) {
            Some((nodes, _)) => nodes.push(name),
            None => groups.push((vec![name], failure)),
        }
    }
    let told = |(nodes, failure): (Vec<&str>, RunFailure)| {
        let where_ = match nodes.len() {
            all if all > 1 && all == names.len() => format!("all {all} hosts"),
            _ => compress(nodes),
        };
        RunFailure {
            code: failure.code,
            message: format!("on {where_}: {}", failure.message),
        }
    };
    groups.into_iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(names: &[&str], failures: &[(u32, u8, &str)]) -> Vec<(u8, String)> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let failures = failures.iter().map(|(node, code, message)| {
            let message = (*message).to_owned();
            let code = *code;
            (NodeId(*node), RunFailure { code, message })
        });
        let told = by_node(failures.collect(), &names);
        told.into_iter()
            .map(|failure| (failure.code, failure.message))
            .collect()
    }

    #[test]
    fn one_problem_of_several_nodes_is_told_once_with_the_nodes() {
        let names = ["node01", "node02", "node03", "node04", "node05"];
        let gone = "program \"./a\" not found";
        let failures = [
            (4, 127, gone),
            (1, 127, gone),
            (3, 125, "no core"),
            (2, 127, gone),
        ];
        assert_eq!(
            told(&names, &failures),
            [
                (127, format!("on node[02-03,05]: {gone}")),
                (125, "on node04: no core".to_owned()),
            ]
        );
        let all = [(0, 127, gone), (1, 127, gone)];
        assert_eq!(
            told(&["a", "b"], &all),
            [(127, format!("on all 2 hosts: {gone}"))]
        );
        assert_eq!(told(&["a"], &all[..1]), [(127, format!("on a: {gone}"))]);
        assert_eq!(told(&["a"], &[]), []);
    }
}
