//! Resource limits that a user sets for ranks, checked against those of this host.

use std::collections::BTreeMap;

use rustix::process::{Resource as Raw, Rlimit, getrlimit, setrlimit};

use wireup_core::job::limit::{LimitValue, Resource, ResourceLimit};

/// Smallest stack that wireup needs, in KiB. Measured without optimization, with all MPIs: 128 KiB are too few.
const STACK_MIN: u64 = 256;

/// A stack on which this process would crash.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot run with a stack limit of {limit} KiB: raise it to {STACK_MIN} KiB or more (ulimit -s {STACK_MIN})"
)]
pub struct StackError {
    /// Soft limit in KiB.
    limit: u64,
}

/// Refuses a limit of this process's stack that is too small.
///
/// # Errors
/// [`StackError`]
pub fn check_stack() -> Result<(), StackError> {
    match getrlimit(Raw::Stack).current {
        Some(limit) if limit < STACK_MIN << 10 => Err(StackError { limit: limit >> 10 }),
        _ => Ok(()),
    }
}

/// A limit in the system's terms: the number of the resource, and its values.
pub type RawLimit = (i32, libc::rlimit);

/// A limit that may not be set.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the hard limit of {name} is {hard} and cannot be raised; use at most that, or start wireup with a higher one \
     (ulimit -H{letter})",
    name = resource.name(), letter = resource.letter()
)]
pub struct Forbidden {
    pub resource: Resource,
    pub hard: LimitValue,
}

/// Returns the limits that ranks get: each resource once, the last request for it.
///
/// # Errors
/// [`Forbidden`] for a value above the hard limit that this process may not exceed.
pub fn resolve(requests: &[ResourceLimit]) -> Result<Vec<RawLimit>, Forbidden> {
    let mut limits: Vec<RawLimit> = Vec::with_capacity(requests.len());
    for (index, limit) in requests.iter().enumerate() {
        let resource = limit.resource;
        if requests[index + 1..].iter().any(|l| l.resource == resource) {
            continue;
        }
        let own = getrlimit(raw(resource));
        let inherited = own.maximum.map_or(LimitValue::Unlimited, LimitValue::At);
        // A soft limit above the inherited hard one raises both.
        let hard = limit.hard.unwrap_or_else(|| inherited.max(limit.soft));
        if hard > inherited && !may_raise(raw(resource), &own, hard) {
            return Err(Forbidden {
                resource,
                hard: inherited,
            });
        }
        let limit = libc::rlimit {
            rlim_cur: number(limit.soft).unwrap_or(libc::RLIM_INFINITY),
            rlim_max: number(hard).unwrap_or(libc::RLIM_INFINITY),
        };
        limits.push((raw(resource) as i32, limit));
    }
    Ok(limits)
}

/// Returns the soft limits of this process by their names; those without a name are left out.
pub fn own_limits() -> BTreeMap<String, u64> {
    let all = Resource::ALL.iter();
    let limited = all.filter_map(|(resource, name, _)| {
        Some(((*name).to_owned(), getrlimit(raw(*resource)).current?))
    });
    limited.collect()
}

/// Whether the hard limit may be raised: found out by doing so for a moment, since privileges
/// alone do not show (user namespaces; the system's own maximum of descriptors).
fn may_raise(resource: Raw, own: &Rlimit, hard: LimitValue) -> bool {
    let raised = Rlimit {
        current: own.current,
        maximum: number(hard),
    };
    // Going back is always allowed.
    setrlimit(resource, raised).is_ok() && setrlimit(resource, *own).is_ok()
}

fn number(bound: LimitValue) -> Option<libc::rlim_t> {
    match bound {
        LimitValue::At(value) => Some(value),
        LimitValue::Unlimited => None,
    }
}

fn raw(resource: Resource) -> Raw {
    match resource {
        Resource::As => Raw::As,
        Resource::Core => Raw::Core,
        Resource::Cpu => Raw::Cpu,
        Resource::Data => Raw::Data,
        Resource::Fsize => Raw::Fsize,
        Resource::Locks => Raw::Locks,
        Resource::Memlock => Raw::Memlock,
        Resource::Msgqueue => Raw::Msgqueue,
        Resource::Nice => Raw::Nice,
        Resource::Nofile => Raw::Nofile,
        Resource::Nproc => Raw::Nproc,
        Resource::Rss => Raw::Rss,
        Resource::Rtprio => Raw::Rtprio,
        Resource::Rttime => Raw::Rttime,
        Resource::Sigpending => Raw::Sigpending,
        Resource::Stack => Raw::Stack,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_codes_equal_system_and_last_request_counts() {
        let hard = getrlimit(Raw::Core).maximum;
        let requests = ["core=0", "stack=1M:2M", "core=0:0"].map(|text| text.parse().unwrap());
        let limits = resolve(&requests).unwrap();
        let flat: Vec<(i32, u64, u64)> = limits
            .iter()
            .map(|(code, limit)| (*code, limit.rlim_cur, limit.rlim_max))
            .collect();
        let stack = (libc::RLIMIT_STACK as i32, 1 << 20, 2 << 20);
        assert_eq!(flat, [stack, (libc::RLIMIT_CORE as i32, 0, 0)]);
        let limits = resolve(&requests[..1]).unwrap();
        assert_eq!(limits[0].1.rlim_max, hard.unwrap_or(libc::RLIM_INFINITY));
    }
}
