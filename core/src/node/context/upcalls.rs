//! Answers of a node to upcalls of libpmix.
//!
//! Rule: a client that has connected and not yet finalized is active. The sidecar writes both notices before libpmix
//! lets the client continue, so they are read before its exit is judged. Source: docs/shim.md.

use std::time::Duration;

use crate::direct_modex::ModexFailure;
use crate::fence::{FenceFailure, FenceResult, NodeSet, Participants};
use crate::job::ids::Nspace;
use crate::job::proc::{PMIX_RANK_WILDCARD, RankOrWildcard};
use crate::node::context::NodeContext;
use crate::pmix::keys;
use crate::pmix::sidecar_link::UpcallId;
use crate::pmix::upcall::UpcallAnswer;
use crate::pmix::value::{Info, PmixProc, PmixRank, Status, Value, find};

/// Returns the participants and the nodes that host them; `None` when they are not of this launch.
pub(in crate::node) fn participants(
    cx: &NodeContext,
    procs: &[PmixProc],
) -> Option<(Participants, NodeSet)> {
    let mut named = Vec::with_capacity(procs.len());
    let mut nodes = Vec::new();
    for proc in procs {
        let (_, member) = cx.find_pmix_job(&proc.nspace)?;
        let rank = RankOrWildcard::from_pmix(proc.rank.0)?;
        match rank {
            RankOrWildcard::One(rank) => nodes.push(member.context.process_map.node_of(rank)?),
            RankOrWildcard::Wildcard => nodes.extend(member.world.1.iter()),
        }
        named.push((member.context.nspace.clone(), rank));
    }
    let participants = Participants::from_procs(named).ok()?;
    Some((participants, NodeSet::new(nodes)?))
}

/// Returns processes and whole jobs by their names, sorted and each once; `None` if one of them is neither.
pub(in crate::node) fn named_members(procs: &[PmixProc]) -> Option<Vec<(Nspace, RankOrWildcard)>> {
    let named = procs.iter().map(|proc| {
        let nspace = Nspace::new(proc.nspace.to_str()?).ok()?;
        Some((nspace, RankOrWildcard::from_pmix(proc.rank.0)?))
    });
    let mut members: Vec<_> = named.collect::<Option<_>>()?;
    members.sort();
    members.dedup();
    Some(members)
}

/// Returns the processes of `PMIX_EVENT_CUSTOM_RANGE`, one or an array; `None` without it, or for anything else.
pub(in crate::node) fn custom_range(infos: &[Info]) -> Option<Vec<PmixProc>> {
    match find(infos, keys::EVENT_CUSTOM_RANGE)? {
        Value::Proc(proc) => Some(vec![proc.clone()]),
        other => procs(other),
    }
}

/// Returns the processes of an array; `None` for anything else.
pub(in crate::node) fn procs(value: &Value) -> Option<Vec<PmixProc>> {
    let Value::Array(array) = value else {
        return None;
    };
    let procs = array.items().iter().map(|item| match item {
        Value::Proc(proc) => Some(proc.clone()),
        _ => None,
    });
    procs.collect()
}

pub(in crate::node) fn fence_answer(cx: &mut NodeContext, id: UpcallId, result: FenceResult) {
    let answer = match result {
        Ok(released) if released.status == 0 => UpcallAnswer::Data(released.data.to_vec()),
        Ok(released) => UpcallAnswer::Status(Status(released.status)),
        Err(failure) => UpcallAnswer::Status(failure_status(&failure)),
    };
    cx.answer(id, &answer);
}

/// Answers an upcall with the status of a fence that exchanges no data.
pub(in crate::node) fn connect_answer(cx: &mut NodeContext, id: UpcallId, result: FenceResult) {
    let status = match result {
        Ok(released) => Status(released.status),
        Err(failure) => failure_status(&failure),
    };
    cx.answer_status(id, status);
}

/// Converts a modex failure to its PMIx status.
pub(in crate::node) fn modex_status(failure: ModexFailure) -> Status {
    match failure {
        ModexFailure::NotFound | ModexFailure::RankGone => Status::ERR_NOT_FOUND,
        ModexFailure::Timeout { .. } => Status::ERR_TIMEOUT,
        ModexFailure::PeerLost { .. } | ModexFailure::TornDown { .. } => {
            Status::ERR_LOST_CONNECTION
        }
        ModexFailure::TooLarge(_) => Status::ERR_OUT_OF_RESOURCE,
        ModexFailure::Host(status) => Status(status),
    }
}

fn failure_status(failure: &FenceFailure) -> Status {
    match failure {
        FenceFailure::Timeout { .. } => Status::ERR_TIMEOUT,
        FenceFailure::PeerLost { .. } | FenceFailure::TornDown { .. } => {
            Status::ERR_LOST_CONNECTION
        }
        _ => Status::ERROR,
    }
}

/// Returns the status that libpmix reports for the local part of a collective; 0 if it reports none.
pub(in crate::node) fn local_status(infos: &[Info]) -> i32 {
    let status = infos.iter().find_map(|info| match &info.value {
        Value::Status(status) if info.key == keys::LOCAL_COLLECTIVE_STATUS => Some(status.0),
        _ => None,
    });
    status.unwrap_or(0)
}

/// Returns the key for which a client waits. Keys that only the host provides (`pmix…`) are left out, since the rank
/// does not publish them.
pub(in crate::node) fn required_key(infos: &[Info]) -> Option<Box<[u8]>> {
    let required = infos.iter().find(|info| info.key == keys::REQUIRED_KEY)?;
    match &required.value {
        Value::String(key) if !key.as_bytes().starts_with(b"pmix") => Some(key.as_bytes().into()),
        _ => None,
    }
}

/// Reads `PMIX_TIMEOUT`, an int or unsigned; 0 means none.
pub(in crate::node) fn timeout(infos: &[Info]) -> Option<Duration> {
    let seconds = infos
        .iter()
        .filter(|info| info.key == keys::TIMEOUT)
        .find_map(|info| match info.value {
            Value::Int(seconds) | Value::Int32(seconds) => u64::try_from(seconds).ok(),
            Value::Uint(seconds) | Value::Uint32(seconds) => Some(u64::from(seconds)),
            _ => None,
        })?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// The special rank that stands for a whole nspace never names one process.
const _: () = assert!(PmixRank::WILDCARD.0 == PMIX_RANK_WILDCARD);
