//! Process sets, as queries see them.
//!
//! Rule: only the name identifies a set, whichever job its members belong to, since libpmix does not name the client.
//! So jobs with sets of one name have one in common.
//! Rule: ranks whose node has left the launch or is lost are in no set, and a set without ranks is not listed.

use super::scope::QueryScope;
use crate::job::ids::{AppNum, Rank};
use crate::job::pset::ProcessSet;
use crate::node::context::NodeContext;
use crate::node::context::job_context::JobContext;
use crate::pmix::keys;
use crate::pmix::upcall::Query;
use crate::pmix::value::{Array, PmixProc, Text, Value, find};

/// Whether a set is listed. The set of a single application is the whole job and is left out. Open MPI 5 queries each
/// listed set, and has only errors for sets beyond MPI's own.
fn is_listed(job: &JobContext, name: &str) -> bool {
    name != ProcessSet::app_set_name(0)
        || job.app_map.ranks_of(AppNum(0)).end < job.process_map.size()
}

/// Returns the ranks of a set whose nodes take part in the launch.
fn members<'a>(
    job: &'a JobContext,
    set: &'a ProcessSet,
    cx: &'a NodeContext,
) -> impl Iterator<Item = Rank> + 'a {
    set.ranks().filter(|rank| {
        let node = job.process_map.node_of(*rank);
        node.is_some_and(|node| !cx.lost_nodes.contains(&node))
    })
}

impl QueryScope<'_> {
    /// Returns the answer to a query for process sets; `None` for any other key or for an unknown set.
    pub(super) fn query_sets(&self, key: &Text, query: &Query, cx: &NodeContext) -> Option<Value> {
        let mut names = Vec::<&str>::new();
        for job in self.jobs(cx) {
            let sets = job.psets.iter();
            let sets = sets.filter(|set| members(job, set, cx).next().is_some());
            for name in sets
                .map(ProcessSet::name)
                .filter(|name| is_listed(job, name))
            {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        if *key == keys::QUERY_NUM_PSETS {
            Some(Value::Size(names.len() as u64))
        } else if *key == keys::QUERY_PSET_NAMES {
            Some(Value::String(names.join(",").into()))
        } else if *key == keys::QUERY_PSET_MEMBERSHIP {
            let Some(Value::String(name)) = find(&query.qualifiers, keys::PSET_NAME) else {
                return None;
            };
            let members = self.jobs(cx).flat_map(|job| {
                let sets = job.psets.iter().filter(|set| *name == set.name());
                let ranks = sets.flat_map(|set| members(job, set, cx));
                ranks.map(|rank| Value::Proc(PmixProc::new(&job.nspace, rank)))
            });
            let members: Vec<Value> = members.collect();
            (!members.is_empty()).then(|| Array::new(members).map(Value::Array))?
        } else {
            None
        }
    }
}
