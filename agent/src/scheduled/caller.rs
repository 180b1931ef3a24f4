//! Identity and permissions of a caller; no I/O.

use tonic::Status;

use super::launch_request::LaunchRequest;
use crate::caller_identity::{LocalCaller, RemoteCaller};
use crate::identity::Role;
use crate::proto::v1::RunAs;

/// The caller, identified by its connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Caller {
    /// A user of this machine, over the Unix socket.
    Local {
        /// User id, from the kernel.
        uid: u32,
    },
    /// A scheduler, by its certificate.
    Scheduler { name: String },
    /// An observer, by its certificate.
    Observer { name: String },
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local { uid } => write!(f, "local user {uid}"),
            Self::Scheduler { name } => write!(f, "scheduler {name:?}"),
            Self::Observer { name } => write!(f, "observer {name:?}"),
        }
    }
}

impl Caller {
    /// Returns the caller of a request.
    ///
    /// # Errors
    /// A status, if its connection permits no calls.
    pub fn from_extensions(extensions: &tonic::Extensions) -> Result<Self, Status> {
        if let Some(LocalCaller { uid }) = extensions.get() {
            return Ok(Self::Local { uid: *uid });
        }
        if let Some(RemoteCaller { identity, .. }) = extensions.get() {
            let name = identity.name.clone();
            return match identity.role {
                Role::Scheduler => Ok(Self::Scheduler { name }),
                Role::Observer => Ok(Self::Observer { name }),
                Role::Node => Err(Status::permission_denied(format!(
                    "the certificate of {name:?} is a node's: schedulers need one made by `wireup pki \
                     issue --name NAME --role scheduler`"
                ))),
            };
        }
        Err(Status::unauthenticated(
            "the caller is not identified: use the agent's Unix socket, or a certificate",
        ))
    }

    /// Whether it starts launches for others: users' launches must not conflict with it.
    pub fn starts_for_others(&self) -> bool {
        matches!(self, Self::Local { uid: 0 } | Self::Scheduler { .. })
    }

    /// Whether it may observe a launch that runs as `owner`.
    pub fn may_see(&self, owner: u32) -> bool {
        match self {
            Self::Local { uid } => *uid == 0 || *uid == owner,
            Self::Scheduler { .. } | Self::Observer { .. } => true,
        }
    }

    /// Whether this caller may steer a launch that runs as `owner` and was started by `starter`, and send it input. A
    /// scheduler's key controls only launches of its scheduler: neither those that read input from another caller, nor
    /// root's, whose shell for instance would take the input.
    pub fn may_steer(&self, owner: u32, starter: &Self) -> bool {
        match self {
            Self::Local { .. } => self.may_see(owner),
            Self::Scheduler { .. } => owner != 0 && self == starter,
            Self::Observer { .. } => false,
        }
    }

    /// Whether an agent with the rights of `own` may be drained.
    pub fn may_drain(&self, own: u32) -> bool {
        self.may_see(own) && !matches!(self, Self::Observer { .. })
    }

    /// Returns the user as whom an agent with the rights of `own` executes a request. The agent's [users](crate::user)
    /// check whether it can act as that user.
    ///
    /// # Errors
    /// A status with the remedy.
    pub fn runs_as(&self, request: &LaunchRequest, own: u32) -> Result<RunAs, Status> {
        let denied = |text: String| Err(Status::permission_denied(text));
        let plain = |uid| RunAs { uid, gid: None };
        Ok(match (self, request.run_as) {
            (Self::Local { uid }, None) => plain(*uid),
            (Self::Local { uid }, Some(target)) if *uid == 0 || *uid == target.uid => target,
            (Self::Local { uid }, Some(target)) => {
                return denied(format!(
                    "user {uid} may not start a launch as user {}: omit run_as",
                    target.uid
                ));
            }
            (Self::Scheduler { .. }, Some(target)) if target.uid == 0 => {
                return denied(
                    "schedulers may not start launches as root (run_as.uid 0): use another user"
                        .to_owned(),
                );
            }
            (Self::Scheduler { .. }, Some(target)) => target,
            (Self::Scheduler { .. }, None) if own == 0 => {
                return Err(Status::invalid_argument(
                    "this agent runs as root: set run_as to the user of the launch",
                ));
            }
            (Self::Scheduler { .. }, None) => plain(own),
            (Self::Observer { name }, _) => {
                return denied(format!(
                    "the certificate of {name:?} does not have the role scheduler"
                ));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::v1::LaunchProcessesRequest;

    fn uid(caller: &Caller, run_as: Option<u32>, own: u32) -> Option<u32> {
        let message = LaunchProcessesRequest {
            launch_id: "l".into(),
            entrypoint: "true".into(),
            tasks_per_node: 1,
            world_size: 1,
            run_as: run_as.map(|uid| RunAs { uid, gid: None }),
            ..Default::default()
        };
        let request = LaunchRequest::check(message, "n1").unwrap();
        caller.runs_as(&request, own).ok().map(|user| user.uid)
    }

    #[test]
    fn user_starts_as_self_root_as_any_and_scheduler_as_non_root() {
        let local = |uid| Caller::Local { uid };
        let name = String::from("s");
        let scheduler = Caller::Scheduler { name: name.clone() };
        for (caller, run_as, own, expected) in [
            (local(1000), None, 0, Some(1000)),
            (local(1000), Some(1000), 0, Some(1000)),
            (local(1000), Some(0), 0, None),
            (local(1000), Some(1001), 0, None),
            (local(1000), None, 1000, Some(1000)),
            (local(0), None, 0, Some(0)),
            (local(0), Some(1000), 0, Some(1000)),
            (local(0), Some(1000), 1000, Some(1000)),
            (scheduler.clone(), Some(1000), 0, Some(1000)),
            (scheduler.clone(), Some(0), 0, None),
            (scheduler.clone(), None, 0, None),
            (scheduler.clone(), None, 1000, Some(1000)),
            (Caller::Observer { name }, Some(1000), 0, None),
        ] {
            assert_eq!(
                uid(&caller, run_as, own),
                expected,
                "{caller}, {run_as:?}, {own}"
            );
        }
    }

    #[test]
    fn only_root_and_roles_see_launches_of_others() {
        let scheduler = |name: &str| Caller::Scheduler { name: name.into() };
        let starters = [Caller::Local { uid: 1000 }, scheduler("a")];
        let may = |caller: &Caller, owner| {
            let steers = |starter| caller.may_steer(owner, starter);
            (
                caller.may_see(owner),
                steers(&starters[0]),
                steers(&starters[1]),
            )
        };
        for (caller, expected) in [
            (Caller::Local { uid: 1000 }, (true, true, true)),
            (Caller::Local { uid: 1001 }, (false, false, false)),
            (Caller::Local { uid: 0 }, (true, true, true)),
            (scheduler("a"), (true, false, true)),
            (scheduler("b"), (true, false, false)),
            (Caller::Observer { name: "a".into() }, (true, false, false)),
        ] {
            assert_eq!(may(&caller, 1000), expected, "{caller}");
        }
        assert_eq!(may(&scheduler("a"), 0), (true, false, false));
        let mut extensions = tonic::Extensions::new();
        assert!(Caller::from_extensions(&extensions).is_err());
        extensions.insert(LocalCaller { uid: 7 });
        assert_eq!(
            Caller::from_extensions(&extensions).unwrap(),
            Caller::Local { uid: 7 }
        );
    }
}
