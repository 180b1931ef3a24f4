//! Spawns in which only some programs are a debugger's daemons (co-spawn): the ranks become one job, and the
//! daemons, when that has been started, another one whose target it is.
//!
//! Rule: daemons are not in the world of the ranks. Source: `PMIX_DEBUGGER_DAEMONS` and `PMIX_COSPAWN_APP` of the
//! PMIx Standard.

use crate::job::demand::{Demand, Wish};
use crate::job::ids::Nspace;
use crate::job::proc::PMIX_RANK_WILDCARD;
use crate::job::spawn::{SpawnInfo, SpawnRequest, Spawner};
use crate::node::NodeCore;
use crate::node::event::{Action, FromNode};

/// Declares programs to be daemons.
const DAEMONS: [&str; 2] = ["pmix.debugger", "PMIX_DEBUGGER_DAEMONS"];

/// What daemons debug.
const TARGET: [&str; 4] = [
    "pmix.dbg.tgt",
    "PMIX_DEBUG_TARGET",
    "pmix.dbg.job",
    "PMIX_DEBUG_JOB",
];

/// How many there are.
const NUMBER: [&str; 4] = [
    "pmix.dbg.dpnd",
    "PMIX_DEBUG_DAEMONS_PER_NODE",
    "pmix.dbg.dpproc",
    "PMIX_DEBUG_DAEMONS_PER_PROC",
];

/// Attributes of a whole spawn that concern its ranks alone. The output of one job can be forwarded to a tool with
/// the answer: libpmix subscribes to the job that this names.
const OF_RANKS: [&str; 18] = [
    "pmix.dbg.exec",
    "PMIX_DEBUG_STOP_ON_EXEC",
    "pmix.dbg.init",
    "PMIX_DEBUG_STOP_IN_INIT",
    "pmix.dbg.notify",
    "PMIX_DEBUG_STOP_IN_APP",
    "pmix.fwd.stdin",
    "PMIX_FWD_STDIN",
    "pmix.fwd.stdout",
    "PMIX_FWD_STDOUT",
    "pmix.fwd.stderr",
    "PMIX_FWD_STDERR",
    "pmix.stdin",
    "PMIX_STDIN_TGT",
    "pmix.mapby",
    "PMIX_MAPBY",
    "pmix.ppr",
    "PMIX_PPR",
];

fn is(info: &SpawnInfo, keys: &[&str]) -> bool {
    keys.contains(&&*info.key)
}

fn declares_daemons(infos: &[SpawnInfo]) -> bool {
    infos
        .iter()
        .any(|info| is(info, &DAEMONS) && info.value != "false")
}

/// What of the attributes of daemons decides where they are holds for their whole job.
fn lift(request: &mut SpawnRequest) {
    let keys = [&DAEMONS[..], &TARGET, &NUMBER].concat();
    for app in &mut request.apps {
        let own = std::mem::take(&mut app.infos);
        let (lifted, left): (Vec<_>, Vec<_>) = own.into_iter().partition(|info| is(info, &keys));
        request.infos.extend(lifted);
        app.infos = left;
    }
}

/// Separates daemons from ranks: the request for the ranks, and that for the daemons, if a spawn has both.
pub(super) fn divide(mut request: SpawnRequest) -> (SpawnRequest, Option<SpawnRequest>) {
    let daemons = |infos: &[SpawnInfo]| declares_daemons(infos);
    if daemons(&request.infos) || !request.apps.iter().any(|app| daemons(&app.infos)) {
        return (request, None);
    }
    let apps = std::mem::take(&mut request.apps);
    let (daemons, ranks): (Vec<_>, Vec<_>) = apps.into_iter().partition(|app| daemons(&app.infos));
    if ranks.is_empty() {
        request.apps = daemons;
        lift(&mut request);
        return (request, None);
    }
    let mut beside = SpawnRequest {
        apps: daemons,
        infos: request.infos.clone(),
        preputs: Vec::new(),
    };
    beside
        .infos
        .retain(|info| !is(info, &OF_RANKS) && !is(info, &TARGET));
    lift(&mut beside);
    request
        .infos
        .retain(|info| !is(info, &TARGET) && !is(info, &NUMBER));
    request.apps = ranks;
    (request, Some(beside))
}

/// The request for daemons of a job that has been started.
pub(super) fn targeting(mut daemons: SpawnRequest, job: &Nspace) -> SpawnRequest {
    daemons.infos.retain(|info| !is(info, &TARGET));
    daemons.infos.push(SpawnInfo {
        key: TARGET[0].to_owned(),
        value: format!("{job}:{PMIX_RANK_WILDCARD}"),
        required: true,
    });
    daemons
}

impl NodeCore {
    /// The daemons of a job cannot be started: neither is there the job.
    pub(super) fn end_without_daemons(
        &self,
        by: &Spawner,
        nspace: &Nspace,
        actions: &mut Vec<Action>,
    ) {
        let Some((job, _)) = self.job_named(nspace.as_str()) else {
            return;
        };
        actions.push(Action::Tell(FromNode::Demanded(Demand {
            by: match by {
                Spawner::Rank(process) => Some(*process),
                Spawner::Tool(_) => None,
            },
            what: Wish::Kill,
            ranks: Some(self.jobs.processes_of(job).collect()),
        })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::spawn::SpawnApp;

    fn infos(keys: &[&str]) -> Vec<SpawnInfo> {
        let info = |key: &&str| SpawnInfo {
            key: (*key).to_owned(),
            value: "true".to_owned(),
            required: false,
        };
        keys.iter().map(info).collect()
    }

    fn request(job: &[&str], apps: &[&[&str]]) -> SpawnRequest {
        let app = |keys: &&[&str]| SpawnApp {
            program: "prog".into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
            count: 1,
            infos: infos(keys),
        };
        SpawnRequest {
            apps: apps.iter().map(app).collect(),
            infos: infos(job),
            preputs: Vec::new(),
        }
    }

    #[test]
    fn ranks_and_daemons_of_one_spawn_are_two_jobs() {
        let job = ["pmix.dbg.init", "pmix.fwd.stdout", "pmix.timeout"];
        let whole = request(
            &job,
            &[
                &["pmix.wdir"],
                &["pmix.debugger", "pmix.dbg.dpnd", "pmix.host"],
            ],
        );
        let (ranks, daemons) = divide(whole);
        assert_eq!(ranks, request(&job, &[&["pmix.wdir"]]));
        let expected = ["pmix.timeout", "pmix.debugger", "pmix.dbg.dpnd"];
        let daemons = daemons.unwrap();
        assert_eq!(daemons, request(&expected, &[&["pmix.host"]]));
        let daemons = targeting(daemons, &Nspace::new("job").unwrap());
        let target = daemons.infos.last().unwrap();
        assert_eq!(
            (&*target.key, &*target.value),
            ("pmix.dbg.tgt", "job:4294967294")
        );
    }

    #[test]
    fn a_spawn_of_one_kind_is_one_job() {
        let plain = request(&["pmix.timeout"], &[&[], &["pmix.wdir"]]);
        assert_eq!(divide(plain.clone()), (plain, None));
        let whole = request(&["pmix.debugger", "pmix.dbg.dpnd"], &[&[], &[]]);
        assert_eq!(divide(whole.clone()), (whole, None));
        let alone = request(&["pmix.timeout"], &[&["pmix.debugger", "pmix.dbg.tgt"]]);
        let lifted = request(&["pmix.timeout", "pmix.debugger", "pmix.dbg.tgt"], &[&[]]);
        assert_eq!(divide(alone), (lifted, None));
    }
}
