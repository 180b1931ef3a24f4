//! Statuses of PMIx: errors and events.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A PMIx status. Negative values are errors or event codes; compare numbers, never names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Status(pub i32);

/// Statuses are fixed by the PMIx standard; the C tests compare them with the headers.
#[allow(missing_docs, reason = "the PMIx standard's names")]
impl Status {
    pub const SUCCESS: Self = Self(0);
    pub const ERROR: Self = Self(-1);
    pub const DEBUGGER_RELEASE: Self = Self(-3);
    pub const READY_FOR_DEBUG: Self = Self(-58);
    pub const ERR_PROC_ABORTED: Self = Self(-7);
    pub const ERR_INVALID_CRED: Self = Self(-12);
    pub const ERR_NO_PERMISSIONS: Self = Self(-23);
    pub const ERR_TIMEOUT: Self = Self(-24);
    pub const ERR_UNREACH: Self = Self(-25);
    pub const ERR_BAD_PARAM: Self = Self(-27);
    pub const ERR_OUT_OF_RESOURCE: Self = Self(-29);
    pub const ERR_INIT: Self = Self(-31);
    pub const ERR_NOMEM: Self = Self(-32);
    pub const ERR_NOT_FOUND: Self = Self(-46);
    pub const ERR_NOT_SUPPORTED: Self = Self(-47);
    pub const ERR_PARTIAL_SUCCESS: Self = Self(-52);
    pub const ERR_DUPLICATE_KEY: Self = Self(-53);
    pub const ERR_LOST_CONNECTION: Self = Self(-61);
    pub const QUERY_PARTIAL_SUCCESS: Self = Self(-104);
    pub const PROC_TERMINATED: Self = Self(-111);
    pub const LAUNCHER_READY: Self = Self(-155);
    pub const LAUNCH_COMPLETE: Self = Self(-174);
    pub const EVENT_JOB_END: Self = Self(-145);
    pub const EVENT_JOB_START: Self = Self(-191);
    pub const OPERATION_SUCCEEDED: Self = Self(-157);
    pub const ERR_JOB_ABORTED: Self = Self(-182);
    pub const ERR_JOB_ABORTED_BY_SIG: Self = Self(-184);
    pub const ERR_JOB_TERM_WO_SYNC: Self = Self(-185);
    pub const ERR_JOB_NON_ZERO_TERM: Self = Self(-187);
    pub const GROUP_INVITED: Self = Self(-159);
    pub const GROUP_LEFT: Self = Self(-160);
    pub const GROUP_INVITE_FAILED: Self = Self(-163);
    pub const GROUP_CONSTRUCT_COMPLETE: Self = Self(-166);
    pub const GROUP_LEADER_SELECTED: Self = Self(-167);
    pub const GROUP_LEADER_FAILED: Self = Self(-168);
    pub const GROUP_MEMBER_FAILED: Self = Self(-170);
    pub const ERR_PROC_TERM_WO_SYNC: Self = Self(-200);
    pub const EVENT_NODE_DOWN: Self = Self(-231);
    pub const EVENT_NODE_OFFLINE: Self = Self(-232);
    pub const ERR_JOB_APP_NOT_EXECUTABLE: Self = Self(-177);
    pub const ERR_JOB_CANCELED: Self = Self(-180);
    pub const ERR_JOB_FAILED_TO_LAUNCH: Self = Self(-181);
    pub const ERR_JOB_EXE_NOT_FOUND: Self = Self(-190);
    pub const ERR_JOB_INSUFFICIENT_RESOURCES: Self = Self(-234);
    pub const ERR_PROC_ABORTED_BY_SIG: Self = Self(-402);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PMIx status {}", self.0)
    }
}
