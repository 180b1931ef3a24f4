//! The services and messages of `proto/`, as Rust.

use std::fmt;

pub use self::generated::{etcd, v1};

#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::missing_errors_doc,
    clippy::or_fun_call,
    clippy::unwrap_used
)]
mod generated {
    /// Messages and services of package `wireup.v1`.
    pub mod v1 {
        tonic::include_proto!("wireup.v1");
    }

    /// The part of etcd's API that is used.
    pub mod etcd {
        tonic::include_proto!("etcdserverpb");
    }
}

/// Hides the password from logs.
impl fmt::Debug for etcd::AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateRequest")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The descriptions of all files of wireup, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

impl fmt::Debug for v1::CxiCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CxiCredentials").finish_non_exhaustive()
    }
}

/// Without the value, which may be a secret.
impl fmt::Debug for v1::EnvVar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvVar")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Hides the token from logs.
impl fmt::Debug for v1::Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("version", &self.version)
            .field("agent", &self.agent)
            .field("launch", &self.launch)
            .field("uid", &self.uid)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// Without the description, which holds the launcher's environment.
impl fmt::Debug for v1::Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening")
            .field("members", &self.members.len())
            .finish_non_exhaustive()
    }
}

/// Without arguments and variables, which may hold secrets.
impl fmt::Debug for v1::LaunchProcessesRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchProcessesRequest")
            .field("launch_id", &self.launch_id)
            .field("allocation_id", &self.allocation_id)
            .field("world_size", &self.world_size)
            .field("peers", &self.peers.len())
            .field("run_as", &self.run_as)
            .finish_non_exhaustive()
    }
}

/// Hides the values from logs.
impl fmt::Debug for v1::PmiFenceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PmiFenceRequest")
            .field("launch_id", &self.launch_id)
            .field("node_index", &self.node_index)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_printed() {
        let secret = b"s3cret".as_slice();
        let shown = format!(
            "{:?} {:?} {:?}",
            v1::LaunchProcessesRequest {
                args: vec!["s3cret".to_owned()],
                env: [("KEY".to_owned(), "s3cret".to_owned())].into(),
                cxi_credentials: Some(v1::CxiCredentials {
                    vni: 7,
                    auth_key: secret.into(),
                    svc_id: 1,
                }),
                ..Default::default()
            },
            v1::Hello {
                token: secret.into(),
                opening: secret.into(),
                ..Default::default()
            },
            v1::CxiCredentials {
                auth_key: secret.into(),
                ..Default::default()
            },
        );
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(!shown.contains("115, 51"), "{shown}");
    }
}
