//! Builds of a program and its MPI library on the hosts of a launch, compared.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::hosts::compress;

/// Characters of a build id that are shown; all are more than a line holds.
const SHOWN: usize = 12;

/// Reaction to hosts that have other builds of a program or its MPI library.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum BuildMismatchPolicy {
    /// The user is warned.
    #[default]
    Warn,
    Fail,
    /// Builds are not compared.
    Off,
}

impl BuildMismatchPolicy {
    /// The values of `--same-build`.
    pub const NAMES: [(&str, Self); 3] = [
        ("warn", Self::Warn),
        ("fail", Self::Fail),
        ("off", Self::Off),
    ];
}

/// A file that the ranks of a program load, on one host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Build {
    /// The number of the program.
    pub app: u32,
    /// Whether the file is the program's MPI library.
    pub library: bool,
    pub name: String,
    /// The build id that its linker gave it, in hexadecimal.
    pub id: String,
}

/// Describes in one line the hosts that have other builds than the launcher's machine; `None` without any. Files that
/// the launcher's machine lacks are compared with those of most hosts. Hosts are in the order of their nodes.
pub fn describe_other_builds(own: &[Build], hosts: &[(&str, &[Build])]) -> Option<String> {
    let mut kinds: BTreeMap<(u32, bool), Vec<(&str, &Build)>> = BTreeMap::new();
    for (host, builds) in hosts {
        for build in *builds {
            let kind = kinds.entry((build.app, build.library));
            kind.or_default().push((host, build));
        }
    }
    let mut found = Vec::new();
    for (kind, all) in kinds {
        let here = own.iter().find(|build| (build.app, build.library) == kind);
        let (place, usual) = match here {
            Some(build) => ("here".to_owned(), build.id.as_str()),
            None => {
                let usual = most(&all);
                let first = all.iter().find(|(_, build)| build.id == usual);
                (format!("on {}", first.map_or("", |(host, _)| host)), usual)
            }
        };
        let mut different: Vec<(&str, &str, Vec<&str>)> = Vec::new();
        for (host, build) in &all {
            let (name, id) = (build.name.as_str(), build.id.as_str());
            if id == usual {
                continue;
            }
            let same = |known: &&mut (&str, &str, Vec<&str>)| known.0 == name && known.1 == id;
            match different.iter_mut().find(same) {
                Some((_, _, hosts)) => hosts.push(host),
                None => different.push((name, id, vec![host])),
            }
        }
        found.extend(different.into_iter().map(|(name, id, hosts)| {
            let (hosts, id, usual) = (compress(hosts), shown(id), shown(usual));
            format!("{name} on {hosts} is build {id} ({place} {usual})")
        }));
    }
    (!found.is_empty()).then(|| found.join("; "))
}

/// Returns the build that most hosts have; of several, that of the first host.
fn most<'a>(all: &[(&str, &'a Build)]) -> &'a str {
    let count = |id: &str| all.iter().filter(|(_, build)| build.id == id).count();
    // Of several, `max_by_key` takes the last one.
    let most = all.iter().rev().max_by_key(|(_, build)| count(&build.id));
    most.map_or("", |(_, build)| build.id.as_str())
}

fn shown(id: &str) -> String {
    id.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(library: bool, id: &str) -> Build {
        Build {
            app: 0,
            library,
            name: if library { "libmpi.so.40" } else { "/opt/app" }.to_owned(),
            id: id.to_owned(),
        }
    }

    #[test]
    fn hosts_with_other_builds_are_named_together() {
        let (same, other) = (
            [build(false, "aa"), build(true, "cc")],
            [build(false, "bb"), build(true, "cc")],
        );
        let hosts: [(&str, &[Build]); 3] = [("n1", &same), ("n2", &other), ("n3", &other)];
        assert_eq!(
            describe_other_builds(&same, &hosts).as_deref(),
            Some("/opt/app on n[2-3] is build bb (here aa)")
        );
        assert_eq!(describe_other_builds(&same, &hosts[..1]), None);
        // What the launcher does not have is compared among the hosts.
        assert_eq!(
            describe_other_builds(&[], &hosts).as_deref(),
            Some("/opt/app on n1 is build aa (on n2 bb)")
        );
    }

    #[test]
    fn file_without_build_id_is_not_compared() {
        let own = [build(false, "aa")];
        let library = [build(true, "0123456789abcdef")];
        assert_eq!(
            describe_other_builds(&own, &[("n1", &[]), ("n2", &library)]),
            None
        );
        let second = [build(true, "1")];
        assert_eq!(
            describe_other_builds(&own, &[("n1", &library), ("n2", &second)]).as_deref(),
            Some("libmpi.so.40 on n2 is build 1 (on n1 0123456789ab)")
        );
    }
}
