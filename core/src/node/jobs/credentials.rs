//! Credentials of the launch's processes (`PMIx_Get_credential`, `PMIx_Validate_credential`). The sidecar first tries
//! munge; those that munge does not issue are handled here.
//!
//! Rule: the answer to a validation names user and group. Source: `pmix.h`.

use std::time::Duration;

use crate::job::clock::Moment;
use crate::job::pmix_credential::{CredentialSubject, LaunchKey};
use crate::pmix::keys;
use crate::pmix::upcall::UpcallAnswer;
use crate::pmix::value::{Info, PmixProc, PmixRank, Status, Text, Value};

/// Type of wireup's credentials in `PMIX_CRED_TYPE`.
const KIND: &str = "wireup";
/// Lifetime of a credential. munge has the same.
const LIFETIME: Duration = Duration::from_secs(300);

/// Signs and validates the credentials of a launch on one node.
#[derive(Clone, Debug)]
pub struct CredentialSigner {
    key: LaunchKey,
    /// User and group of the launch's processes here.
    ids: (u32, u32),
    unix_offset: Duration,
}

impl CredentialSigner {
    /// Creates a signer. `ids` are the user and group of the launch's processes on this node; `unix_offset` is the time
    /// from 1970-01-01T00:00:00Z to moment zero of the node.
    pub fn new(key: LaunchKey, ids: (u32, u32), unix_offset: Duration) -> Self {
        Self {
            key,
            ids,
            unix_offset,
        }
    }

    /// Converts a time to seconds since 1970-01-01T00:00:00Z.
    fn seconds(&self, now: Moment) -> u64 {
        self.unix_offset.saturating_add(now.0).as_secs()
    }
}

/// The signing of credentials, where the launch has a key.
#[derive(Debug, Default)]
pub(in crate::node) struct Credentials(pub Option<CredentialSigner>);

impl Credentials {
    /// Issues a credential for a process. libpmix identifies the requesting client.
    pub(in crate::node) fn issue_credential(
        &self,
        proc: PmixProc,
        directives: &[Info],
        now: Moment,
    ) -> UpcallAnswer {
        let Some(signer) = self.signer_for(directives) else {
            return UpcallAnswer::Status(Status::ERR_NOT_SUPPORTED);
        };
        let identity = CredentialSubject {
            nspace: proc.nspace.into_bytes(),
            rank: proc.rank.0,
            uid: signer.ids.0,
            gid: signer.ids.1,
        };
        let expiry = signer.seconds(now) + LIFETIME.as_secs();
        let mut token = signer.key.sign(&identity, expiry);
        // Others handle it as a string.
        token.push(0);
        UpcallAnswer::Credential(token, vec![kind()])
    }

    pub(in crate::node) fn validate(
        &self,
        token: &[u8],
        directives: &[Info],
        now: Moment,
    ) -> UpcallAnswer {
        let Some(signer) = self.signer_for(directives) else {
            return UpcallAnswer::Status(Status::ERR_NOT_SUPPORTED);
        };
        match signer.key.check(token, signer.seconds(now)) {
            Ok(identity) => {
                let proc = PmixProc::new(Text::new(identity.nspace), PmixRank(identity.rank));
                let infos = vec![
                    kind(),
                    Info::new(keys::USERID, Value::Uint32(identity.uid)),
                    Info::new(keys::GRPID, Value::Uint32(identity.gid)),
                    Info::new(keys::PROCID, Value::Proc(proc)),
                ];
                UpcallAnswer::Infos(Status::SUCCESS, infos)
            }
            Err(_) => UpcallAnswer::Status(Status::ERR_INVALID_CRED),
        }
    }

    /// Returns the signer of the launch; `None` if a directive is required that it does not honour. The sidecar has chosen
    /// by the kind.
    fn signer_for(&self, directives: &[Info]) -> Option<&CredentialSigner> {
        let is_honoured = |info: &Info| {
            !info.required || info.key == keys::CRED_TYPE || info.key == keys::TIMEOUT
        };
        match directives.iter().all(is_honoured) {
            true => self.0.as_ref(),
            false => None,
        }
    }
}

fn kind() -> Info {
    Info::new(keys::CRED_TYPE, Value::String(KIND.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::ids::{Nspace, Rank};

    /// Credentials of a node whose clock started this many seconds after 1970-01-01.
    fn credentials(since: u64) -> Credentials {
        let key = LaunchKey::new([3; 32]);
        let since = Duration::from_secs(since);
        Credentials(Some(CredentialSigner::new(key, (1000, 100), since)))
    }

    #[test]
    fn credential_is_valid_for_its_time_also_on_later_nodes() {
        let (early, late) = (credentials(1_000_000), credentials(1_000_100));
        let after = |seconds| Moment(Duration::from_secs(seconds));
        let proc = PmixProc::new(&Nspace::new("job").unwrap(), Rank(1));
        let UpcallAnswer::Credential(token, _) =
            early.issue_credential(proc.clone(), &[], after(50))
        else {
            panic!("no credential");
        };
        let UpcallAnswer::Infos(Status::SUCCESS, infos) = late.validate(&token, &[], after(249))
        else {
            panic!("refused");
        };
        let expected = [
            kind(),
            Info::new(keys::USERID, Value::Uint32(1000)),
            Info::new(keys::GRPID, Value::Uint32(100)),
            Info::new(keys::PROCID, Value::Proc(proc)),
        ];
        assert_eq!(infos, expected);
        let expired = UpcallAnswer::Status(Status::ERR_INVALID_CRED);
        assert_eq!(late.validate(&token, &[], after(250)), expired);
        assert_eq!(early.validate(&token, &[], after(350)), expired);
    }

    #[test]
    fn credential_with_unknown_required_directive_is_refused() {
        let mut strange = Info::new("site.key", Value::Bool(true));
        let proc = PmixProc::new(&Nspace::new("job").unwrap(), Rank(1));
        let fine =
            credentials(0).issue_credential(proc.clone(), &[strange.clone()], Moment::default());
        assert!(matches!(fine, UpcallAnswer::Credential(..)), "{fine:?}");
        strange.required = true;
        let refused = credentials(0).issue_credential(proc, &[strange], Moment::default());
        assert_eq!(refused, UpcallAnswer::Status(Status::ERR_NOT_SUPPORTED));
    }
}
