//! Members of a group that do not take part in its construct (`PMIX_GROUP_ADD_MEMBERS`).
//!
//! Rule: with libpmix up to 5 they do not call. Any caller may name some; the answer lists those that
//! called and then all that were added. From 6 on they call as well, without a list of members, and
//! the construct waits for them: such groups are refused. Source: docs/pmix-groups.md#groups.

use super::GroupState;
use crate::groups::GroupRelease;
use crate::node::context::NodeContext;
use crate::node::context::upcalls::procs;
use crate::pmix::keys;
use crate::pmix::value::{Array, Info, PmixProc, Status, Value};
use crate::pmix::wire::Reader;

/// First libpmix whose added members call.
const CALL_SINCE: u32 = 6;

impl GroupState {
    /// Returns the members that the callers of this node add: processes of the launch one by one, others as they are
    /// named.
    ///
    /// # Errors
    /// The status of the construct.
    pub(super) fn added_here(
        &self,
        infos: &[Info],
        cx: &NodeContext,
    ) -> Result<Vec<PmixProc>, Status> {
        let mut added = Vec::new();
        for info in infos
            .iter()
            .filter(|info| info.key == keys::GROUP_ADD_MEMBERS)
        {
            if !self.libpmix_is_before(CALL_SINCE) {
                return Err(Status::ERR_NOT_SUPPORTED);
            }
            for proc in procs(&info.value).ok_or(Status::ERR_BAD_PARAM)? {
                let known = cx.members(std::slice::from_ref(&proc));
                match known {
                    Some(known) => {
                        added.extend(known.iter().map(|one| PmixProc::from(&cx.name_of(*one))));
                    }
                    None if proc.rank.rank().is_some() => added.push(proc),
                    None => return Err(Status::ERR_BAD_PARAM),
                }
            }
        }
        Ok(added)
    }
}

/// Returns the info that lists the members that a node adds; `None` without any.
pub(super) fn added_members_info(added: Vec<PmixProc>) -> Option<Info> {
    let added = Array::new(added.into_iter().map(Value::Proc).collect())?;
    Some(Info::new(keys::GROUP_ADD_MEMBERS, Value::Array(added)))
}

/// Returns all members: those that called, and those that any node adds; `None` if the data cannot be decoded.
pub(super) fn members_of(released: &GroupRelease) -> Option<Vec<PmixProc>> {
    let called = released.members.iter();
    let mut members: Vec<PmixProc> = called.map(|member| PmixProc::from(&member)).collect();
    for part in released.parts.iter() {
        let infos = Info::decode_list(&mut Reader::new(part)).ok()?;
        let added = infos
            .iter()
            .filter(|info| info.key == keys::GROUP_ADD_MEMBERS);
        for proc in added.flat_map(|info| procs(&info.value)).flatten() {
            if !members.contains(&proc) {
                members.push(proc);
            }
        }
    }
    Some(members)
}
