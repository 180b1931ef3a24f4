//! A launch on one machine of a batch system's allocation names the other nodes.

use std::env;

use crate::plan::launch_names::own_host;
use wireup_core::job::hosts::{compress, expand};
use wireup_core::wording::counted;

/// Slurm's variable with the nodes of the allocation.
const NODES: &str = "SLURM_JOB_NODELIST";
/// Ranks have it: their launches stay on their node by default.
const RANK: &str = "WIREUP_RANK";

/// The line about them; `None` where there are no others, and for what ranks launch.
pub(super) fn other_nodes() -> Option<String> {
    let list = env::var(NODES).ok()?;
    if env::var_os(RANK).is_some() {
        return None;
    }
    line(&list, &own_host())
}

fn line(list: &str, own: &str) -> Option<String> {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let own = short(own);
    let others = expand(list).ok()?.into_iter();
    let others: Vec<String> = others.filter(|name| short(name) != own).collect();
    if others.is_empty() {
        return None;
    }
    Some(format!(
        "this launch uses this machine only; the allocation has {} ({}): to use them too, \
         start it as one task and without --engine none, or, where agents run, write --hosts \"${NODES}\"",
        counted(others.len(), "other node"),
        compress(&others),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_nodes_are_named_with_remedy() {
        let message = line("n[1-3],m", "n2.cluster.example").unwrap();
        assert!(message.contains("3 other nodes (n[1,3],m)"), "{message}");
        assert!(
            message.ends_with("--hosts \"$SLURM_JOB_NODELIST\""),
            "{message}"
        );
        assert_eq!(line("n2", "n2"), None);
        assert_eq!(line("", "n2"), None);
        assert_eq!(line("n[1-", "n2"), None);
    }
}
