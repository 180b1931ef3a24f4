//! OCI hook for a container in which a user's own command runs a rank. The texts are those of the OCI runtime
//! specification 1.0: the state of a container, and `config.json` of its bundle.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use crate::wording::json_problem;
use serde::Deserialize;

/// Annotation that requests the hook, and its value.
pub const ANNOTATION: (&str, &str) = ("org.wireup.ranks", "yes");

/// Annotation that requests the host's MPI in place of the image's, and its value.
pub const MPI_ANNOTATION: (&str, &str) = ("org.wireup.mpi", "host");

/// The directory of a PMIx server, for its clients.
const SERVER: &str = "PMIX_SERVER_TMPDIR=";

/// Directory that the ranks of one node share.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// Mounts that the hook makes, at the host's paths, below the root directory of the container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HookPlan {
    pub root: PathBuf,
    /// The user whose process the rank is, in the container.
    pub user: u32,
    /// Group of the rank's process in the container.
    pub group: u32,
    /// The directory of the rank's node in its job, if it is offered PMIx.
    pub node: Option<PathBuf>,
    /// Program of the container, if it gets the host's MPI.
    pub host_mpi: Option<HookProgram>,
}

/// A program of a container.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HookProgram {
    /// Program's name in the container; empty if it has none.
    pub name: OsString,
    pub env: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
}

/// Error: a rank cannot run in the container.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("cannot read the {document} of the container: {}", json_problem(.error))]
    Unreadable {
        document: &'static str,
        error: serde_json::Error,
    },
    #[error(
        "the container has a {0} namespace of its own, in which MPIs fail; start it with that of the host ({1})"
    )]
    Namespace(&'static str, &'static str),
    #[error("invalid annotation org.wireup.mpi {0:?}: use \"host\"")]
    Mpi(String),
    #[error("{SERVER}{}: not a directory of a job", .0.display())]
    NoJob(PathBuf),
}

#[derive(Deserialize)]
struct OciState {
    bundle: PathBuf,
}

#[derive(Deserialize)]
struct OciConfig {
    root: Root,
    process: OciProcess,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    linux: Linux,
}

#[derive(Deserialize)]
struct Root {
    path: PathBuf,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OciProcess {
    env: Vec<String>,
    user: OciUser,
    args: Vec<String>,
    cwd: PathBuf,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OciUser {
    uid: u32,
    gid: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Linux {
    namespaces: Vec<Namespace>,
}

#[derive(Deserialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
    /// Path of an existing namespace; `None` for a new one.
    path: Option<PathBuf>,
}

/// Returns the directory of the container's bundle from its state.
///
/// # Errors
/// [`HookError`]
pub fn bundle(state: &[u8]) -> Result<PathBuf, HookError> {
    let state: OciState = parse("state", state)?;
    Ok(state.bundle)
}

fn parse<'a, T: Deserialize<'a>>(document: &'static str, text: &'a [u8]) -> Result<T, HookError> {
    serde_json::from_slice(text).map_err(|error| HookError::Unreadable { document, error })
}

/// Plans the mounts for a container; `None` if its annotations do not request any.
///
/// # Errors
/// [`HookError`] if ranks cannot run in the container.
pub fn plan(config: &[u8], bundle: &Path) -> Result<Option<HookPlan>, HookError> {
    let config: OciConfig = parse("configuration", config)?;
    let (name, value) = ANNOTATION;
    if config.annotations.get(name).map(String::as_str) != Some(value) {
        return Ok(None);
    }
    let server = config.process.env.iter();
    let server = server
        .filter_map(|entry| entry.strip_prefix(SERVER))
        .next_back();
    let node = server
        .map(|path| node_directory(Path::new(path)))
        .transpose()?;
    let own = |kind: &str| {
        let mut all = config.linux.namespaces.iter();
        all.any(|namespace| namespace.kind == kind && namespace.path.is_none())
    };
    for (kind, remedy, matters) in [
        ("pid", "--pid host", true),
        // Clients call their server over the loopback interface.
        ("network", "--network host", node.is_some()),
    ] {
        if matters && own(kind) {
            return Err(HookError::Namespace(kind, remedy));
        }
    }
    let host_mpi = match config.annotations.get(MPI_ANNOTATION.0) {
        None => None,
        Some(value) if value == MPI_ANNOTATION.1 => Some(config.process.program()),
        Some(other) => return Err(HookError::Mpi(other.clone())),
    };
    Ok(Some(HookPlan {
        root: bundle.join(config.root.path),
        user: config.process.user.uid,
        group: config.process.user.gid,
        node,
        host_mpi,
    }))
}

impl OciProcess {
    fn program(&self) -> HookProgram {
        let env = self.env.iter().filter_map(|entry| entry.split_once('='));
        HookProgram {
            name: self.args.first().cloned().unwrap_or_default().into(),
            env: env
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            cwd: self.cwd.clone(),
        }
    }
}

/// Returns the directory of a node, which has those of its PMIx server and of its sessions:
/// `…/wireup-0123456789abcdef/n0`. No other directory of the host is mounted into a container because of a variable.
fn node_directory(server: &Path) -> Result<PathBuf, HookError> {
    let no_job = || HookError::NoJob(server.to_owned());
    let plain = server
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let node = server.parent().ok_or_else(no_job)?;
    let name = |path: Option<&Path>| {
        let name = path.and_then(Path::file_name);
        name.map(|name| name.to_string_lossy().into_owned())
    };
    let number = name(Some(node));
    let number = number.as_deref().and_then(|name| name.strip_prefix('n'));
    let number = number.is_some_and(|rest| rest.parse::<u32>().is_ok());
    let job = name(node.parent()).is_some_and(|name| name.starts_with("wireup-"));
    match plain && server.is_absolute() && server.ends_with("server") && number && job {
        true => Ok(node.to_owned()),
        false => Err(no_job()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER_OF_JOB: &str = "PMIX_SERVER_TMPDIR=/tmp/wireup-0123.n1/n1/server";

    fn planned(
        annotation: &str,
        env: &[&str],
        namespaces: &[&str],
    ) -> Result<Option<HookPlan>, String> {
        let namespaces: Vec<_> = namespaces
            .iter()
            .map(|kind| serde_json::json!({ "type": kind }))
            .collect();
        let config = serde_json::json!({
            "root": { "path": "rootfs" },
            "process": { "env": env, "user": { "uid": 7, "gid": 8 } },
            "annotations": { "org.wireup.ranks": annotation },
            "linux": { "namespaces": namespaces },
        });
        let planned = plan(config.to_string().as_bytes(), Path::new("/bundle"));
        planned.map_err(|error| error.to_string())
    }

    #[test]
    fn container_gets_directory_of_its_node_on_request() {
        let expected = HookPlan {
            root: "/bundle/rootfs".into(),
            user: 7,
            group: 8,
            node: Some("/tmp/wireup-0123.n1/n1".into()),
            host_mpi: None,
        };
        assert_eq!(
            planned("yes", &["A=1", SERVER_OF_JOB], &["mount"]),
            Ok(Some(expected))
        );
        assert_eq!(planned("no", &[SERVER_OF_JOB], &["pid"]), Ok(None));
        let plain = planned("yes", &[], &["mount", "network"]).unwrap().unwrap();
        assert_eq!(plain.node, None);
    }

    #[test]
    fn host_mpi_is_mounted_only_on_request() {
        let planned = |value: &str| {
            let config = serde_json::json!({
                "root": { "path": "rootfs" },
                "process": { "env": ["A=b=c"], "args": ["app", "x"], "cwd": "/data" },
                "annotations": { "org.wireup.ranks": "yes", "org.wireup.mpi": value },
            });
            plan(config.to_string().as_bytes(), Path::new("/bundle"))
        };
        let program = HookProgram {
            name: "app".into(),
            env: vec![("A".into(), "b=c".into())],
            cwd: "/data".into(),
        };
        assert_eq!(planned("host").unwrap().unwrap().host_mpi, Some(program));
        let error = planned("mine").unwrap_err().to_string();
        assert!(error.contains("org.wireup.mpi \"mine\""), "{error}");
    }

    #[test]
    fn namespaces_that_break_mpi_are_refused() {
        for kind in ["pid", "network"] {
            let error = planned("yes", &[SERVER_OF_JOB], &["mount", kind]).unwrap_err();
            assert!(
                error.contains(&format!("has a {kind} namespace of its own")),
                "{error}"
            );
        }
    }

    #[test]
    fn variable_selects_no_other_directory_of_host() {
        for path in [
            "/etc",
            "/etc/n0/server",
            "/tmp/wireup-1/../n0/server",
            "tmp/wireup-1/n0/server",
            "/tmp/wireup-1/x/server",
        ] {
            let variable = format!("PMIX_SERVER_TMPDIR={path}");
            assert!(planned("yes", &[&variable], &[]).is_err(), "{path}");
        }
    }

    #[test]
    fn container_state_names_place_of_configuration() {
        let state = br#"{"ociVersion":"1.0","id":"a","pid":0,"bundle":"/b","status":"created"}"#;
        assert_eq!(bundle(state).unwrap(), Path::new("/b"));
        assert!(bundle(b"{}").is_err());
    }
}
